//! Whole trees copied where they cannot be renamed, and removed again.

use super::intent::{Place, Space};
use super::objects::{self, Object};
use super::transaction::Spaces;
use super::{attrs, paths};
use crate::base::{Errno, Kind, RelPath, Sys};
use crate::sys::{data, file};
use std::os::fd::{AsFd, BorrowedFd};

/// Copies what is at `from`, with everything beneath, to the free place `to`: content, attributes, times. Sockets are
/// left out, as nobody could listen on the copy.
///
/// # Errors
/// The first failure; what was copied stays.
pub(crate) fn tree(spaces: &Spaces<'_>, from: &Place, to: &Place) -> Sys<()> {
    let source = spaces.top(from.space)?;
    let target = spaces.top(to.space)?;
    one(source, &from.path, target, &to.path)?;
    let mut dirs = Vec::new();
    objects::walk(source, &from.path, &mut |child, attr| {
        let rest = child.strip_prefix(&from.path).ok_or(Errno::EINVAL)?;
        let there = paths::under(&to.path, &rest);
        one(source, child, target, &there)?;
        if attr.kind == Kind::Dir {
            dirs.push((child.clone(), there));
        }
        Ok(())
    })?;
    // Directories get their mode and times when nothing is made in them any more, the deepest first.
    dirs.insert(0, (from.path.clone(), to.path.clone()));
    for (old, new) in dirs.iter().rev() {
        let (Some(old), Some(new)) = (Object::find(source, old)?, Object::find(target, new)?) else {
            continue;
        };
        if old.attr.kind == Kind::Dir {
            attrs::restore(&new, &old.attr, &objects::xattrs(&old)?)?;
        }
    }
    let (dir, _) = spaces.parent(to)?;
    data::syncfs(file::reopen(dir.as_fd(), libc::O_RDONLY | libc::O_DIRECTORY)?.as_fd())
}

fn one(source: BorrowedFd<'_>, from: &RelPath, target: BorrowedFd<'_>, to: &RelPath) -> Sys<()> {
    let object = Object::find(source, from)?.ok_or(Errno::ENOENT)?;
    let (dir, name) = objects::open_parent(target, to)?;
    match object.attr.kind {
        Kind::Dir => return file::mkdirat(dir.as_fd(), name, 0o700),
        Kind::Socket => return Ok(()),
        Kind::File => {
            let made = file::openat(dir.as_fd(), name, libc::O_CREAT | libc::O_EXCL | libc::O_RDWR, 0o600)?;
            data::copy_content(object.readable()?.as_fd(), made.as_fd(), object.attr.size, |_| {})?;
        }
        Kind::Symlink => file::symlinkat(&object.target()?, dir.as_fd(), name)?,
        Kind::Fifo | Kind::Char | Kind::Block => {
            file::mknodat(dir.as_fd(), name, object.attr.kind.mode_bits() | 0o600, object.attr.rdev)?;
        }
    }
    let made = Object::find(target, to)?.ok_or(Errno::ESTALE)?;
    attrs::restore(&made, &object.attr, &objects::xattrs(&object)?)
}

/// Copies the bytes of the file at `from` to the new file at `to`, synced.
///
/// # Errors
/// As the calls it is made of.
pub(crate) fn bytes(spaces: &Spaces<'_>, from: &Object, to: &Place) -> Sys<()> {
    let (dir, name) = spaces.parent(to)?;
    let made = file::openat(dir.as_fd(), name, libc::O_CREAT | libc::O_EXCL | libc::O_RDWR, 0o600)?;
    data::copy_content(from.readable()?.as_fd(), made.as_fd(), from.attr.size, |_| {})?;
    data::fsync(made.as_fd(), false)
}

/// Writes the bytes kept at `save` into the file `object`.
///
/// # Errors
/// As the calls it is made of.
pub(crate) fn bytes_back(spaces: &Spaces<'_>, object: &Object, save: &Place) -> Sys<()> {
    debug_assert!(save.space == Space::Kept);
    let from = spaces.find(save)?.ok_or(Errno::ENOENT)?;
    let to = file::reopen(object.fd.as_fd(), libc::O_WRONLY)?;
    data::ftruncate(to.as_fd(), 0)?;
    data::copy_content(from.readable()?.as_fd(), to.as_fd(), from.attr.size, |_| {})?;
    data::fsync(to.as_fd(), false)
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
