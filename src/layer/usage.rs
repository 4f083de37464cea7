//! How much room an upper takes.

use crate::base::{Errno, Kind, Sys};
use crate::sys::{dir, file};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Room on the disk, as `du` counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Bytes of allocated blocks, with those of directories.
    pub bytes: u64,
    /// Objects, with directories and whiteouts; one with several names is one.
    pub inodes: u64,
}

/// Adds what is at and below the directory `top` to `usage`, but for objects in `seen`, which grows. Directories whose
/// mode keeps their owner out are looked into all the same.
///
/// # Errors
/// As reading directories; what vanishes meanwhile is no error.
pub fn add_usage(top: BorrowedFd<'_>, seen: &mut HashSet<(u64, u64)>, usage: &mut Usage) -> Sys<()> {
    let mut add = |attr: &crate::base::Attr| {
        if seen.insert((attr.dev, attr.ino)) {
            usage.bytes += attr.blocks * 512;
            usage.inodes += 1;
        }
    };
    add(&file::stat(top)?);
    let flags = libc::O_RDONLY | libc::O_DIRECTORY;
    let mut todo: Vec<(Arc<OwnedFd>, Box<[u8]>)> = Vec::new();
    let mut at = Arc::new(file::reopen(top, flags)?);
    loop {
        for entry in dir::entries(at.as_fd())? {
            let attr = match file::stat_at(at.as_fd(), &entry.name) {
                Err(Errno::ENOENT) => continue,
                other => other?,
            };
            add(&attr);
            if attr.kind == Kind::Dir {
                todo.push((at.clone(), entry.name));
            }
        }
        at = loop {
            let Some((parent, name)) = todo.pop() else { return Ok(()) };
            match open_dir(parent.as_fd(), &name) {
                Err(Errno::ENOENT) => {}
                other => break Arc::new(other?),
            }
        };
    }
}

fn open_dir(parent: BorrowedFd<'_>, name: &[u8]) -> Sys<OwnedFd> {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY;
    match file::openat(parent, name, flags, 0) {
        Err(Errno::EACCES) => {}
        other => return other,
    }
    let handle = file::openat(parent, name, libc::O_PATH | libc::O_DIRECTORY, 0)?;
    let perm = file::stat(handle.as_fd())?.perm;
    file::chmod_fd(handle.as_fd(), perm | 0o700)?;
    let opened = file::reopen(handle.as_fd(), flags);
    file::chmod_fd(handle.as_fd(), perm)?;
    opened
}
