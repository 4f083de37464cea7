//! What a server that died leaves behind, other than in journal and upper: a dead mount and temporary files.

use super::lock::Lock;
use super::mounts::{mounted, unmount_stale};
use super::remove::remove_tree;
use super::store::Session;
use crate::base::{Errno, Error, Result, quote};
use crate::layer::partial;
use crate::sys::{dir, file};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// What in a root's work directory belongs to the upper and stays: the index of hard links, and the notes on files that
/// are not complete yet.
const WORK_KEEPS: &[&[u8]] = &[b"index", partial::MARKERS, STAGED_PARTS];

/// In a root's work directory: parts of files that are being applied, until the journal knows of it.
pub const STAGED_PARTS: &[u8] = b".sbx-fuse.parts.tmp";

/// Takes away dead mounts and temporary files of a session whose lock is ours, completes files whose copying the death
/// of the server interrupted, and says in sentences what it did.
///
/// # Errors
/// When a dead mount or a file cannot be taken away.
pub fn recover(session: &mut Session, _lock: &Lock) -> Result<Vec<String>> {
    let mut done = Vec::new();
    let mut ours = vec![session.mountpoint_dir()];
    if let Some(at) = &session.meta.mountpoint {
        ours.push(at.as_path().to_owned());
    }
    let source = session.fsname();
    for mount in mounted()?.iter().rev() {
        if ours.contains(&mount.at) && mount.source == source.as_bytes() {
            unmount_stale(&mount.at)?;
            done.push(format!("took away the dead mount at {}", quote(mount.at.as_os_str().as_bytes())));
        }
    }
    let mut temps = 0;
    for i in 0..session.meta.roots.len() + session.meta.private.len() {
        temps += clean_work(session, i)?;
    }
    if temps > 0 {
        let s = if temps == 1 { "" } else { "s" };
        done.push(format!("removed {temps} unfinished temporary file{s}"));
    }
    for i in 0..session.meta.roots.len() {
        done.append(&mut complete_copies(session, i)?);
    }
    if session.meta.mountpoint.take().is_some() {
        session.save_meta()?;
    }
    Ok(done)
}

/// Completes the files of root `i` that were being copied block by block.
fn complete_copies(session: &Session, i: usize) -> Result<Vec<String>> {
    let root = session.root(i);
    let open = |path: &Path| {
        let path = path.as_os_str().as_bytes();
        file::open_path(path, libc::O_PATH | libc::O_DIRECTORY).map_err(|e| Error::on_path("open", path, e))
    };
    let (work, upper) = match (open(&root.work_dir()), open(&root.upper_dir())) {
        (Err(e), _) | (_, Err(e)) if e.errno == Some(Errno::ENOENT) => return Ok(Vec::new()),
        (work, upper) => (work?, upper?),
    };
    let told =
        |e: Errno| Error::on_path("complete the copies in", root.upper_dir().as_os_str().as_bytes(), e);
    if !partial::has_incomplete(work.as_fd()).map_err(told)? {
        return Ok(Vec::new());
    }
    let (lower, _) = root.open_lower()?;
    let found = partial::recover(work.as_fd(), upper.as_fd(), lower.as_fd()).map_err(told)?;
    let mut said = Vec::new();
    if found.completed > 0 {
        let s = if found.completed == 1 { "" } else { "s" };
        said.push(format!("completed the interrupted copy of {} large file{s}", found.completed));
    }
    for left in found.incomplete {
        let why = match left.why {
            Errno::ESTALE => "the real file was changed meanwhile, so that parts of the session's are lost; \
                              discard it"
                .to_owned(),
            e => format!("{e}; the next command tries again"),
        };
        said.push(format!("the copy of {} is not complete: {why}", left.path));
    }
    Ok(said)
}

/// Removes all but the index from the work directory of root `i`; returns how many objects that were.
fn clean_work(session: &Session, i: usize) -> Result<usize> {
    let path = session.root(i).work_dir();
    let told = |e: Errno| Error::on_path("clean", path.as_os_str().as_bytes(), e);
    let work = match file::open_path(path.as_os_str().as_bytes(), libc::O_RDONLY | libc::O_DIRECTORY) {
        Ok(work) => work,
        Err(Errno::ENOENT) => return Ok(0),
        Err(e) => return Err(told(e)),
    };
    let mut count = 0;
    for entry in dir::entries(work.as_fd()).map_err(told)? {
        if !WORK_KEEPS.contains(&&*entry.name) {
            remove_tree(work.as_fd(), &entry.name).map_err(told)?;
            count += 1;
        }
    }
    Ok(count)
}
