//! Inverses of the steps of an application. Paths are those at the moment when the inverse is due.

use super::attrs::{self, Saved};
use super::{RootDirs, objects};
use crate::base::{Errno, Kind, RelPath, Sys};
use crate::sys::{data, file};
use objects::Object;
use std::os::fd::{AsFd, BorrowedFd};

/// One inverse.
#[derive(Clone, Debug)]
pub(crate) enum Undo {
    /// Remove a file that was made, if it is still there.
    Unlink { root: u16, path: RelPath },
    /// Remove a directory that was made.
    Rmdir { root: u16, path: RelPath },
    /// Rename back.
    Move { root: u16, from: RelPath, to: RelPath },
    /// Exchange back.
    Exchange { root: u16, one: RelPath, other: RelPath },
    /// Give attributes back.
    Attrs(Saved),
    /// Write the bytes back that were saved in the work directory.
    Bytes { root: u16, path: RelPath, save: Vec<u8> },
}

impl Undo {
    /// Which root it is for.
    pub fn root(&self) -> u16 {
        match self {
            Undo::Unlink { root, .. }
            | Undo::Rmdir { root, .. }
            | Undo::Move { root, .. }
            | Undo::Exchange { root, .. }
            | Undo::Attrs(Saved { root, .. })
            | Undo::Bytes { root, .. } => *root,
        }
    }

    /// What it puts in order, for messages.
    pub fn path(&self) -> &RelPath {
        match self {
            Undo::Unlink { path, .. }
            | Undo::Rmdir { path, .. }
            | Undo::Move { to: path, .. }
            | Undo::Exchange { one: path, .. }
            | Undo::Attrs(Saved { path, .. })
            | Undo::Bytes { path, .. } => path,
        }
    }

    /// Carries it out.
    ///
    /// # Errors
    /// As the calls it is made of.
    pub fn take(&self, dirs: &RootDirs) -> Sys<()> {
        let real = dirs.real.as_fd();
        let rename = |from: &RelPath, to: &RelPath, flags| {
            let (from_dir, from_name) = objects::open_parent(real, from)?;
            let (to_dir, to_name) = objects::open_parent(real, to)?;
            file::renameat(from_dir.as_fd(), from_name, to_dir.as_fd(), to_name, flags)
        };
        match self {
            Undo::Unlink { path, .. } => {
                let (dir, name) = objects::open_parent(real, path)?;
                match file::unlinkat(dir.as_fd(), name) {
                    Ok(()) | Err(Errno::ENOENT) => Ok(()),
                    Err(e) => Err(e),
                }
            }
            Undo::Rmdir { path, .. } => {
                let (dir, name) = objects::open_parent(real, path)?;
                file::rmdirat(dir.as_fd(), name)
            }
            Undo::Move { from, to, .. } => match rename(from, to, libc::RENAME_NOREPLACE) {
                Err(Errno::EINVAL | Errno::ENOSYS) => rename(from, to, 0),
                other => other,
            },
            Undo::Exchange { one, other, .. } => rename(one, other, libc::RENAME_EXCHANGE),
            Undo::Attrs(saved) => attrs::restore(real, saved),
            Undo::Bytes { path, save, .. } => {
                let save = file::openat(dirs.work.as_fd(), save, libc::O_RDONLY, 0)?;
                let object = Object::find(real, path)?.ok_or(Errno::ENOENT)?;
                let to = file::reopen(object.fd.as_fd(), libc::O_WRONLY)?;
                data::ftruncate(to.as_fd(), 0)?;
                let size = file::stat(save.as_fd())?.size;
                data::copy_content(save.as_fd(), to.as_fd(), size, |_| {})
            }
        }
    }
}

/// Removes what is at `path`, with everything beneath; follows no symlink.
///
/// # Errors
/// As `unlinkat(2)`.
pub(crate) fn remove_all(top: BorrowedFd<'_>, path: &RelPath) -> Sys<()> {
    let Some(attr) = objects::stat(top, path)? else { return Ok(()) };
    let mut dirs = Vec::new();
    if attr.kind == Kind::Dir {
        dirs.push(path.clone());
        let mut files = Vec::new();
        objects::walk(top, path, &mut |child, attr| {
            match attr.kind {
                Kind::Dir => dirs.push(child.clone()),
                _ => files.push(child.clone()),
            }
            Ok(())
        })?;
        for file in files {
            remove_one(top, &file, false)?;
        }
    } else {
        remove_one(top, path, false)?;
    }
    // Parents come before children in `dirs`.
    dirs.iter().rev().try_for_each(|dir| remove_one(top, dir, true))
}

/// Removes one entry, also from a directory of ours that we may not write to at the moment.
fn remove_one(top: BorrowedFd<'_>, path: &RelPath, is_dir: bool) -> Sys<()> {
    let (dir, name) = objects::open_parent(top, path)?;
    objects::in_writable(dir.as_fd(), || match is_dir {
        true => file::rmdirat(dir.as_fd(), name),
        false => file::unlinkat(dir.as_fd(), name),
    })
}
