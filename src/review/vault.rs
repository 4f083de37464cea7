//! Where a session logs what it applies and keeps what that replaced: a directory for each application, numbered.
//!
//! `apply/lock` is held (`flock(2)`) while one is at work, so that a log without an end and without a holder is what
//! a crash left.

use super::copy;
use super::intent::{APPLY_LOG, Log, UNDO_LOG, read};
use crate::base::{Error, ErrorKind, RelPath, Result, Sys};
use crate::sys::{data, dir, file};
use nix::fcntl::{Flock, FlockArg};
use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A name with this ending is of an application that could not be put in order, and is left to a person.
const STUCK: &str = "stuck";
/// And one with this ending is being removed.
const GONE: &str = "gone";

/// The applications of a session.
pub(crate) struct Vault {
    path: PathBuf,
    fd: OwnedFd,
    _lock: Flock<File>,
}

/// One application in it.
pub(crate) struct Entry {
    pub number: u32,
    pub apply: Log,
    pub undo: Option<Log>,
}

fn name_of(number: u32) -> String {
    format!("{number:06}")
}

impl Vault {
    /// Opens the vault at `path`, and makes it if `create`. `None` when there is none, or when it is in use: then what is in
    /// it is somebody's work, and no leftover.
    ///
    /// # Errors
    /// When it cannot be made or opened.
    pub fn open(path: &Path, create: bool) -> Result<Option<Vault>> {
        let failed = |e| Error::on_path("use", path.as_os_str().as_bytes(), e);
        if create {
            std::fs::DirBuilder::new()
                .mode(0o700)
                .recursive(true)
                .create(path)
                .map_err(|e| Error::on_path("make the directory", path.as_os_str().as_bytes(), e))?;
        }
        let flags = libc::O_RDONLY | libc::O_DIRECTORY;
        let fd = match file::open_path(path.as_os_str().as_bytes(), flags) {
            Ok(fd) => fd,
            Err(crate::base::Errno::ENOENT) => return Ok(None),
            Err(e) => return Err(failed(e)),
        };
        let lock =
            OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path.join("lock"));
        let lock = lock.map_err(|e| Error::on_path("use", path.as_os_str().as_bytes(), e))?;
        match Flock::lock(lock, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => Ok(Some(Vault { path: path.to_owned(), fd, _lock: lock })),
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => Ok(None),
            Err((_, e)) => Err(Error::on_path("lock", path.as_os_str().as_bytes(), e)),
        }
    }

    /// As [`Vault::open`] for writing.
    ///
    /// # Errors
    /// `Locked` when another command is applying or undoing.
    pub fn take(path: &Path) -> Result<Vault> {
        Vault::open(path, true)?.ok_or_else(|| {
            Error::new(ErrorKind::Locked, "changes of this session are being applied or undone at the moment")
                .hint("try again when that is done")
        })
    }

    /// The applications, oldest first.
    ///
    /// # Errors
    /// When one cannot be read.
    pub fn entries(&self) -> Result<Vec<Entry>> {
        let failed = |e| Error::on_path("read", self.path.as_os_str().as_bytes(), e);
        let names = dir::entries(self.fd.as_fd()).map_err(failed)?;
        for gone in names.iter().filter(|e| e.name.ends_with(GONE.as_bytes())) {
            RelPath::new(&gone.name)
                .and_then(|name| copy::remove_all(self.fd.as_fd(), &name))
                .map_err(failed)?;
        }
        let number = |name: &[u8]| std::str::from_utf8(name).ok().and_then(|n| n.parse::<u32>().ok());
        let mut numbers: Vec<u32> = names.iter().filter_map(|e| number(&e.name)).collect();
        numbers.sort_unstable();
        let mut all = Vec::new();
        for number in numbers {
            let fd = self.open_dir(number)?;
            let apply = read(fd.as_fd(), APPLY_LOG).map_err(failed)?.unwrap_or_default();
            let undo = read(fd.as_fd(), UNDO_LOG).map_err(failed)?;
            all.push(Entry { number, apply, undo });
        }
        Ok(all)
    }

    /// Makes the directory of a new application.
    ///
    /// # Errors
    /// As `mkdirat(2)`.
    pub fn add(&self) -> Result<(u32, OwnedFd)> {
        let failed = |e| Error::on_path("make a directory in", self.path.as_os_str().as_bytes(), e);
        let names = dir::entries(self.fd.as_fd()).map_err(failed)?;
        // Also one that is stuck has its number.
        let number = |name: &[u8]| std::str::from_utf8(name.get(..6)?).ok()?.parse::<u32>().ok();
        let last = names.iter().filter_map(|e| number(&e.name)).max().unwrap_or(0);
        let made = file::mkdirat(self.fd.as_fd(), name_of(last + 1).as_bytes(), 0o700);
        made.and_then(|()| data::fsync(self.fd.as_fd(), false)).map_err(failed)?;
        Ok((last + 1, self.open_dir(last + 1)?))
    }

    /// The directory of an application.
    ///
    /// # Errors
    /// As `openat(2)`.
    pub fn open_dir(&self, number: u32) -> Result<OwnedFd> {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY;
        file::openat(self.fd.as_fd(), name_of(number).as_bytes(), flags, 0)
            .map_err(|e| Error::on_path("open", self.dir(number).as_os_str().as_bytes(), e))
    }

    /// Its path, for messages.
    pub fn dir(&self, number: u32) -> PathBuf {
        self.path.join(name_of(number))
    }

    /// Removes an application and what it kept.
    ///
    /// # Errors
    /// As `unlinkat(2)`.
    pub fn remove(&self, number: u32) -> Sys<()> {
        // By a rename first: a log without its kept files must never be acted upon.
        let gone = format!("{}.{GONE}", name_of(number));
        file::renameat(self.fd.as_fd(), name_of(number).as_bytes(), self.fd.as_fd(), gone.as_bytes(), 0)?;
        copy::remove_all(self.fd.as_fd(), &RelPath::new(gone.as_bytes())?)
    }

    /// Sets an application aside that could not be put in order; returns where it is now.
    ///
    /// # Errors
    /// As `renameat2(2)`.
    pub fn set_aside(&self, number: u32) -> Sys<PathBuf> {
        let name = format!("{}.{STUCK}", name_of(number));
        file::renameat(self.fd.as_fd(), name_of(number).as_bytes(), self.fd.as_fd(), name.as_bytes(), 0)?;
        Ok(self.path.join(name))
    }
}
