//! Where a session logs what it applies and keeps what that replaced: a directory for each application, numbered.
//!
//! `apply/lock` is held (`flock(2)`) while one is at work, so that a log without an end and without a holder is what
//! a crash left.

use super::copy;
use super::intent::{APPLY_LOG, Log, UNDO_LOG, is_done, read};
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
    /// None when it is only looked at.
    lock: Option<Flock<File>>,
}

/// One application in it.
pub(crate) struct Entry {
    pub number: u32,
    pub apply: Log,
    pub undo: Option<Log>,
}

/// How far an application is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// A crash left it, or somebody is at work.
    Unfinished,
    /// It can be undone.
    Applied,
    /// It was undone.
    Undone,
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
        if create {
            std::fs::DirBuilder::new()
                .mode(0o700)
                .recursive(true)
                .create(path)
                .map_err(|e| Error::on_path("make the directory", path.as_os_str().as_bytes(), e))?;
        }
        let Some(looked) = Vault::look(path)? else { return Ok(None) };
        let lock =
            OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path.join("lock"));
        let lock = lock.map_err(|e| Error::on_path("use", path.as_os_str().as_bytes(), e))?;
        match Flock::lock(lock, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => Ok(Some(Vault { lock: Some(lock), ..looked })),
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => Ok(None),
            Err((_, e)) => Err(Error::on_path("lock", path.as_os_str().as_bytes(), e)),
        }
    }

    /// The vault at `path`, only to be looked at: somebody may be at work in it. `None` when there is none.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn look(path: &Path) -> Result<Option<Vault>> {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY;
        match file::open_path(path.as_os_str().as_bytes(), flags) {
            Ok(fd) => Ok(Some(Vault { path: path.to_owned(), fd, lock: None })),
            Err(crate::base::Errno::ENOENT) => Ok(None),
            Err(e) => Err(Error::on_path("use", path.as_os_str().as_bytes(), e)),
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

    /// The numbers of the applications, oldest first.
    ///
    /// # Errors
    /// When the vault cannot be listed.
    pub fn numbers(&self) -> Result<Vec<u32>> {
        let failed = |e| Error::on_path("read", self.path.as_os_str().as_bytes(), e);
        let names = dir::entries(self.fd.as_fd()).map_err(failed)?;
        for gone in names.iter().filter(|e| self.lock.is_some() && e.name.ends_with(GONE.as_bytes())) {
            RelPath::new(&gone.name)
                .and_then(|name| copy::remove_all(self.fd.as_fd(), &name))
                .map_err(failed)?;
        }
        let number = |name: &[u8]| std::str::from_utf8(name).ok().and_then(|n| n.parse::<u32>().ok());
        let mut numbers: Vec<u32> = names.iter().filter_map(|e| number(&e.name)).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// One application.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn entry(&self, number: u32) -> Result<Entry> {
        let failed = |e| Error::on_path("read", self.dir(number).as_os_str().as_bytes(), e);
        let fd = self.open_dir(number)?;
        let apply = read(fd.as_fd(), APPLY_LOG).map_err(failed)?.unwrap_or_default();
        let undo = read(fd.as_fd(), UNDO_LOG).map_err(failed)?;
        Ok(Entry { number, apply, undo })
    }

    /// What its logs say without being read: whether anything is left to do about it.
    ///
    /// # Errors
    /// When they cannot be opened.
    pub fn progress(&self, number: u32) -> Result<Stage> {
        let failed = |e| Error::on_path("read", self.dir(number).as_os_str().as_bytes(), e);
        let fd = self.open_dir(number)?;
        if is_done(fd.as_fd(), APPLY_LOG).map_err(failed)? != Some(true) {
            return Ok(Stage::Unfinished);
        }
        Ok(match is_done(fd.as_fd(), UNDO_LOG).map_err(failed)? {
            None => Stage::Applied,
            Some(true) => Stage::Undone,
            Some(false) => Stage::Unfinished,
        })
    }

    /// Whether an application has a log: without one, nothing was done yet.
    ///
    /// # Errors
    /// When it cannot be looked at.
    pub fn has_begun(&self, number: u32) -> Result<bool> {
        match file::stat_at(self.open_dir(number)?.as_fd(), APPLY_LOG) {
            Ok(_) => Ok(true),
            Err(crate::base::Errno::ENOENT) => Ok(false),
            Err(e) => Err(Error::on_path("read", self.dir(number).as_os_str().as_bytes(), e)),
        }
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
