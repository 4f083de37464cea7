//! Throwing away all that a session changed, so that it is as new.
//!
//! Each upper and then the journal is exchanged for an empty directory, one rename each. The journal is marked as open
//! before: killed in between, the next command finds it so and compares it with the uppers.

use super::lock::Lock;
use super::remove::remove_tree;
use super::store::Session;
use crate::base::{Errno, Error, Result, Sys};
use crate::journal::Journal;
use crate::sys::file;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The name of what is about to be removed, or about to come in; never an object of the session's.
const ASIDE: &[u8] = b"#reset";

/// Empties the uppers, the work directories and the journal of a session whose lock is ours.
///
/// # Errors
/// As renaming and removing files; the session can be used, and emptied again, all the same.
pub fn empty_session(session: &Session, _lock: &Lock) -> Result<()> {
    let open_journal = Journal::open(&session.journal_dir())?;
    for root in session.all_roots() {
        let told = |e: Errno| Error::on_path("empty", root.upper_dir().as_os_str().as_bytes(), e);
        let (upper, work) = (root.upper_dir(), root.work_dir());
        let dir = upper.parent().unwrap_or(&session.dir);
        let (dir, work) = (open(dir).map_err(told)?, open(&work).map_err(told)?);
        exchange(&dir, b"upper").map_err(told)?;
        remove_tree(work.as_fd(), b"index").map_err(told)?;
    }
    // Dropped as it is: what it says is going away.
    drop(open_journal);
    let dir = session.dir.as_path();
    let told = |e: Errno| Error::on_path("empty the journal of", dir.as_os_str().as_bytes(), e);
    exchange(&open(dir).map_err(told)?, b"journal").map_err(told)
}

fn open(path: &Path) -> Sys<OwnedFd> {
    file::open_path(path.as_os_str().as_bytes(), libc::O_RDONLY | libc::O_DIRECTORY)
}

/// Puts an empty directory in the place of `name` in `dir`.
fn exchange(dir: &OwnedFd, name: &[u8]) -> Sys<()> {
    remove_tree(dir.as_fd(), ASIDE)?;
    file::mkdirat(dir.as_fd(), ASIDE, 0o700)?;
    file::renameat(dir.as_fd(), ASIDE, dir.as_fd(), name, libc::RENAME_EXCHANGE)?;
    remove_tree(dir.as_fd(), ASIDE)
}
