//! `sbx-fuse export`: the changes for other programs.

use super::context::Opened;
use super::output::{self, Out, count};
use super::risk::{Noise, Reviewed};
use super::{Which, paths};
use crate::base::{Error, Result};
use crate::review::Settled;
use crate::review::export::{self, Form};
use clap::Args;
use sha2::{Digest, Sha256};
use std::io::{IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Write the changes in a form that other programs take
///
/// A patch is for `git apply`, and as far as it is text for `patch -p1`. An archive has the files that are new or
/// differ; an image layer also says what is gone. What the form cannot carry is told.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("form").required(true))]
pub(super) struct ExportArgs {
    #[command(flatten)]
    which: Which,
    /// A patch in git's format
    #[arg(long, group = "form")]
    patch: bool,
    /// A tar archive
    #[arg(long, group = "form")]
    tar: bool,
    /// A layer of an OCI image: a tar archive with marks for what is gone; its digest goes to stderr
    #[arg(long, group = "form")]
    oci_layer: bool,
    /// Write to this file, which is replaced only when all is written; `-` is stdout [default: stdout]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    noise: Noise,
    /// Only changes at or beneath these
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
}

pub(super) fn run(args: ExportArgs) -> Result<u8> {
    // The second by its name, as the stdout that we were given may be open to us and not to be opened.
    let is_stdout = |path: &&Path| *path == Path::new("-") || *path == Path::new("/dev/stdout");
    let output = args.output.as_deref().filter(|path| !is_stdout(path));
    if output.is_none() && !args.patch && std::io::stdout().is_terminal() {
        return Err(Error::usage("an archive is not for a terminal").hint("name a file with -o"));
    }
    let opened = Opened::open(&args.which)?;
    let set = opened.settled()?;
    let selection = paths::select(&opened.session, &args.paths, &set)?;
    let chosen: Vec<Settled> =
        Reviewed::new(&opened, set, &args.noise)?.set.into_iter().filter(|s| selection.takes(s)).collect();
    let several = opened.session.meta.roots.len() > 1;
    let prefix = |root: u16| match opened.session.meta.roots.get(usize::from(root)) {
        Some(meta) if several => meta.name.as_bytes().to_vec(),
        _ => Vec::new(),
    };
    let write = |to: &mut dyn Write| {
        let mut hashing = Hashing { to, hash: Sha256::new() };
        let lost = if args.patch {
            export::patch(&opened.roots, &chosen, several, &mut hashing)?
        } else {
            let form = if args.tar { Form::Tar } else { Form::OciLayer };
            export::archive(&opened.roots, &chosen, form, &prefix, &mut hashing)?
        };
        Ok((lost, hashing.hash.finalize()))
    };
    let (lost, digest) = match output {
        None => {
            let mut out = Out::new();
            let done = write(&mut out)?;
            out.flush()?;
            done
        }
        Some(path) => to_file(path, write)?,
    };
    output::notes(&lost);
    if args.oci_layer {
        let hex: String = digest.iter().map(|b| format!("{b:02x}")).collect();
        output::note(&format!("digest sha256:{hex}"));
    }
    output::note(&format!(
        "exported {} (session {})",
        count(chosen.len(), "change", "changes"),
        opened.session.name
    ));
    Ok(0)
}

struct Hashing<'a> {
    to: &'a mut dyn Write,
    hash: Sha256,
}

impl Write for Hashing<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let n = self.to.write(bytes)?;
        self.hash.update(bytes.get(..n).unwrap_or_default());
        Ok(n)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.to.flush()
    }
}

/// Beside the file first, so that a failure leaves what was there. What is there and no file, a device or a fifo, cannot
/// be replaced: it is written to.
fn to_file<T>(path: &Path, write: impl FnOnce(&mut dyn Write) -> Result<T>) -> Result<T> {
    let failed = |e: std::io::Error| {
        let told = Error::on_path("write", path.as_os_str().as_bytes(), e);
        told.hint("name a file in a directory that is there and that you may write to")
    };
    let fill = |file: std::fs::File| {
        let mut buffered = std::io::BufWriter::with_capacity(64 << 10, file);
        let value = write(&mut buffered)?;
        Ok((value, buffered.into_inner().map_err(|e| failed(e.into_error()))?))
    };
    if path.metadata().is_ok_and(|m| !m.is_file() && !m.is_dir()) {
        let file = std::fs::OpenOptions::new().write(true).open(path).map_err(failed)?;
        return fill(file).map(|(value, _)| value);
    }
    // As with a redirection of the shell, what a symlink leads to is meant.
    let target = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let mut name = target.as_os_str().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    let temp = PathBuf::from(name);
    let written = std::fs::File::create_new(&temp).map_err(failed).and_then(|file| {
        let (value, file) = fill(file)?;
        file.sync_all().map_err(failed)?;
        std::fs::rename(&temp, &target).map_err(failed)?;
        Ok(value)
    });
    if written.is_err() {
        // The first error is the one to tell.
        drop(std::fs::remove_file(&temp));
    }
    written
}
