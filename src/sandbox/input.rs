//! The standard streams of a command.
//!
//! A descriptor leads around every mount: `/proc/self/fd` opens its file anew, for all that the file itself allows, and
//! from a directory the whole tree can be walked. What our caller opened for writing is meant to be written to. What it
//! opened to be read only is handed on as a copy.

use crate::base::{Errno, Error, Result};
use crate::sys::descriptors::{What, what};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::Stdio;

/// Up to how many bytes of a file can be sought in; more come through a pipe.
const SEEKABLE: u64 = 64 << 20;

/// What a command reads in the place of a real file.
#[derive(Debug)]
pub(super) struct Input {
    real: File,
    /// In memory; none of a file that is too large.
    copy: Option<File>,
}

impl Input {
    /// What stands for our standard input; `None` when the command may have that itself.
    ///
    /// # Errors
    /// `Usage` when a standard stream is a directory, or the output a file that is not open for writing; when the copy
    /// cannot be made.
    pub fn of_ours() -> Result<Option<Input>> {
        let (input, output, error) = (std::io::stdin(), std::io::stdout(), std::io::stderr());
        for (name, fd) in [("output", output.as_fd()), ("error", error.as_fd())] {
            if is_read_only_file(name, fd)? {
                return Err(Error::usage(format!(
                    "the standard {name} is a file that is not open for writing"
                )));
            }
        }
        if !is_read_only_file("input", input.as_fd())? {
            return Ok(None);
        }
        let real = input.as_fd().try_clone_to_owned().map(File::from);
        real.and_then(Input::of).map(Some).map_err(|e| Error::sys("copy the standard input", e))
    }

    fn of(mut real: File) -> std::io::Result<Input> {
        let start = real.stream_position()?;
        let mut copy = File::from(memfd_create(c"stdin", MFdFlags::MFD_CLOEXEC)?);
        real.rewind()?;
        let size = std::io::copy(&mut Read::by_ref(&mut real).take(SEEKABLE + 1), &mut copy)?;
        real.seek(SeekFrom::Start(start))?;
        copy.seek(SeekFrom::Start(start))?;
        Ok(Input { real, copy: (size <= SEEKABLE).then_some(copy) })
    }

    /// What the command shall have. This may start a thread, after which no user namespace can be entered.
    ///
    /// # Errors
    /// As `fcntl(2)`, `F_DUPFD_CLOEXEC`, and `pipe(2)`.
    pub fn stdio(&self) -> Result<Stdio> {
        let file = self.copy.as_ref().map_or_else(|| piped(self.real.try_clone()?), File::try_clone);
        file.map(Stdio::from).map_err(|e| Error::sys("copy the standard input", e))
    }

    /// Whoever reads the real file after the command goes on where that stopped reading.
    pub fn go_on_behind(&self) {
        // From a pipe nobody can tell; then it is where the copying stopped.
        let Some(mut copy) = self.copy.as_ref() else { return };
        let moved = copy.stream_position().and_then(|at| (&self.real).seek(SeekFrom::Start(at)));
        if let Err(e) = moved {
            tracing::warn!("cannot move on in the standard input: {e}");
        }
    }
}

fn is_read_only_file(name: &str, fd: BorrowedFd<'_>) -> Result<bool> {
    match what(fd) {
        Ok(What { kind: libc::S_IFDIR, .. }) => {
            Err(Error::usage(format!("the standard {name} is a directory, a way out of the sandbox"))
                .hint("give the command /dev/null instead"))
        }
        Ok(What { kind: libc::S_IFREG, read_only }) => Ok(read_only),
        Ok(_) | Err(Errno::EBADF) => Ok(false),
        Err(e) => Err(Error::sys(&format!("look at the standard {name}"), e)),
    }
}

/// A pipe from which the rest of `from` can be read, for as long as somebody reads.
fn piped(mut from: File) -> std::io::Result<File> {
    let (out, mut into) = std::io::pipe()?;
    std::thread::Builder::new().name("stdin".into()).spawn(move || {
        match std::io::copy(&mut from, &mut into) {
            Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
                tracing::warn!("cannot read the standard input: {e}");
            }
            _ => {}
        }
    })?;
    Ok(File::from(std::os::fd::OwnedFd::from(out)))
}
