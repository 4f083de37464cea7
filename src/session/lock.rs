//! Who holds a session.
//!
//! One `flock(2)` on the session's `lock` file; the kernel gives it up when the holder dies, however it dies. The
//! file's content, who that is, is only for messages and for finding the server's socket: it counts only while the
//! lock is held.

use super::meta::PathBytes;
use crate::base::{Error, ErrorKind, Result};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long to wait for a command that holds the lock for a moment; on a machine that is busy that can be long.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a lock is tried for against a server: only as long as another's look at the lock takes.
const LOOK: Duration = Duration::from_millis(100);

/// What the holder is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Serves the session's mount; holds the lock for as long.
    Server,
    /// A command that needs the session for a moment.
    Command,
}

/// Who holds a session.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Holder {
    /// Process id.
    pub pid: i32,
    /// What it does.
    pub role: Role,
    /// The socket on which a server answers.
    #[serde(default)]
    pub socket: Option<PathBytes>,
}

/// The session is ours until this is dropped.
pub struct Lock {
    file: Flock<File>,
}

impl Lock {
    /// Takes the lock file at `path`, waiting a little for a command that has it only for a moment.
    ///
    /// # Errors
    /// `Locked` naming the holder's pid; `Failure` when the file cannot be opened or written.
    pub fn take(path: &Path, name: &str, role: Role) -> Result<Lock> {
        Lock::take_within(PATIENCE, path, name, role)
    }

    /// As [`Lock::take`], waiting for so long for commands that have it.
    ///
    /// # Errors
    /// As [`Lock::take`].
    pub(super) fn take_within(patience: Duration, path: &Path, name: &str, role: Role) -> Result<Lock> {
        let start = Instant::now();
        let mut file = open(path)?;
        loop {
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(locked) => {
                    if !still_there(&locked, path) {
                        return Err(Error::failure(format!("session {name} was removed meanwhile"))
                            .hint("what there is: sbx-fuse ls"));
                    }
                    let mut lock = Lock { file: locked };
                    lock.tell(&Holder { pid: nix::unistd::getpid().as_raw(), role, socket: None })?;
                    return Ok(lock);
                }
                Err((back, Errno::EWOULDBLOCK)) => file = back,
                Err((_, e)) => return Err(Error::on_path("lock", path.as_os_str().as_bytes(), e)),
            }
            let holder = read(&mut file);
            let waited = start.elapsed();
            let served = holder.as_ref().is_some_and(|h| h.role == Role::Server);
            if waited > patience || (served && waited > LOOK) {
                return Err(in_use(name, holder.as_ref()));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Writes down who we are, for others' messages.
    ///
    /// # Errors
    /// As writing a file.
    pub fn tell(&mut self, holder: &Holder) -> Result<()> {
        let text = serde_json::to_vec(holder).map_err(|e| Error::failure(e.to_string()))?;
        let file = &mut *self.file;
        file.set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| file.write_all(&text))
            .map_err(|e| Error::sys("write the session's lock file", e))
    }
}

/// Who holds the lock at `path`; `None` when nobody does.
///
/// # Errors
/// When the lock file cannot be opened.
pub(super) fn holder(path: &Path) -> Result<Option<Holder>> {
    let file = match OpenOptions::new().read(true).open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Error::on_path("open", path.as_os_str().as_bytes(), e)),
    };
    match Flock::lock(file, FlockArg::LockSharedNonblock) {
        Ok(_) => Ok(None),
        Err((mut file, Errno::EWOULDBLOCK)) => {
            Ok(Some(read(&mut file).unwrap_or(Holder { pid: 0, role: Role::Command, socket: None })))
        }
        Err((_, e)) => Err(Error::on_path("lock", path.as_os_str().as_bytes(), e)),
    }
}

/// The error for a session that another process holds.
pub(super) fn in_use(name: &str, holder: Option<&Holder>) -> Error {
    let who = match holder {
        Some(Holder { pid: 1.., role: Role::Server, .. }) => "a server",
        _ => "another command",
    };
    let pid = holder.map_or(0, |h| h.pid);
    let by = if pid == 0 { who.to_owned() } else { format!("{who} (pid {pid})") };
    Error::new(ErrorKind::Locked, format!("session {name} is in use by {by}"))
        .hint(format!("wait for it to end, or see: sbx-fuse status -s {name}"))
}

/// Whether `path` still leads to the file that was locked: the session may have been removed, and one of the same
/// name made, while we waited.
fn still_there(file: &File, path: &Path) -> bool {
    match (file.metadata(), path.symlink_metadata()) {
        (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}

fn open(path: &Path) -> Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map_err(|e| Error::on_path("open", path.as_os_str().as_bytes(), e))
}

fn read(file: &mut File) -> Option<Holder> {
    let mut text = Vec::new();
    file.rewind().ok()?;
    file.read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_taker_learns_who_has_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let lock = Lock::take(&path, "x", Role::Server).unwrap();
        assert_eq!(holder(&path).unwrap().unwrap().pid, nix::unistd::getpid().as_raw());
        let Err(e) = Lock::take(&path, "x", Role::Command) else { panic!("taken twice") };
        assert_eq!(e.kind, ErrorKind::Locked);
        assert!(e.message.contains(&format!("pid {}", nix::unistd::getpid().as_raw())), "{e}");
        drop(lock);
        assert!(holder(&path).unwrap().is_none());
        assert!(Lock::take(&path, "x", Role::Command).is_ok());
    }
}
