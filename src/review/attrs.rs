//! Giving a real object the attributes of a session's object, and what it had back.

use super::objects::{self, ACL_ACCESS, ACL_DEFAULT, Object};
use super::settle::MetaDiff;
use crate::base::{Attr, Errno, Kind, RelPath, SetTime, Sys, Time};
use crate::sys::{file, xattr};
use std::os::fd::{AsFd, BorrowedFd};

/// What an object had before its attributes were set.
#[derive(Clone, Debug)]
pub(crate) struct Saved {
    pub root: u16,
    pub path: RelPath,
    attr: Attr,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Notes the attributes of `object`, which is at `path`.
///
/// # Errors
/// As `listxattr(2)`.
pub(crate) fn save(root: u16, path: &RelPath, object: &Object) -> Sys<Saved> {
    Ok(Saved { root, path: path.clone(), attr: object.attr, xattrs: objects::xattrs(object)? })
}

/// Gives an object back what was saved of it.
///
/// # Errors
/// As the calls that set attributes.
pub(crate) fn restore(real: BorrowedFd<'_>, saved: &Saved) -> Sys<()> {
    let object = Object::find(real, &saved.path)?.ok_or(Errno::ENOENT)?;
    set_xattrs(&object, &saved.xattrs)?;
    set_owner(&object, saved.attr.uid, saved.attr.gid)?;
    set_mode(&object, saved.attr.perm)?;
    set_times(&object, Some(saved.attr.atime), saved.attr.mtime)
}

/// Gives a new object all attributes: owner where permitted, xattrs, mode, times. In this order, because a change of
/// owner clears set-uid bits and an ACL changes the mode.
///
/// # Errors
/// As the calls that set attributes.
pub(crate) fn give_all(to: &Object, attr: &Attr, xattrs: &[(Vec<u8>, Vec<u8>)]) -> Sys<()> {
    set_owner(to, attr.uid, attr.gid)?;
    set_xattrs(to, xattrs)?;
    set_mode(to, attr.perm)?;
    set_times(to, None, attr.mtime)
}

/// Gives a real object those attributes of `from` that differ.
///
/// # Errors
/// As the calls that set attributes.
pub(crate) fn give(to: &Object, from: &Object, diff: &MetaDiff) -> Sys<()> {
    if let Some((_, (uid, gid))) = diff.owner {
        set_owner(to, uid, gid)?;
    }
    if !diff.xattrs.is_empty() {
        set_xattrs(to, &objects::xattrs(from)?)?;
    }
    if let Some((_, perm)) = diff.mode {
        set_mode(to, perm)?;
    } else if diff.owner.is_some() || !diff.xattrs.is_empty() {
        set_mode(to, from.attr.perm)?;
    }
    match diff.mtime {
        Some((_, mtime)) => set_times(to, None, mtime),
        None => Ok(()),
    }
}

fn set_owner(to: &Object, uid: u32, gid: u32) -> Sys<()> {
    if (to.attr.uid, to.attr.gid) == (uid, gid) {
        return Ok(());
    }
    match file::chown_fd(to.fd.as_fd(), uid, gid) {
        // Without the right to give a file away, at least the group may be ours to set.
        Err(Errno::EPERM) => match file::chown_fd(to.fd.as_fd(), u32::MAX, gid) {
            Err(Errno::EPERM) => Ok(()),
            other => other,
        },
        other => other,
    }
}

fn set_mode(to: &Object, perm: u32) -> Sys<()> {
    if to.attr.kind == Kind::Symlink { Ok(()) } else { file::chmod_fd(to.fd.as_fd(), perm) }
}

fn set_times(to: &Object, atime: Option<Time>, mtime: Time) -> Sys<()> {
    file::utimens_at(to.fd.as_fd(), b"", atime.map(SetTime::At), Some(SetTime::At(mtime)))
}

/// Sets the mtime of the directory at `path`.
///
/// # Errors
/// As `utimensat(2)`.
pub(crate) fn set_mtime(real: BorrowedFd<'_>, path: &RelPath, mtime: Time) -> Sys<()> {
    let object = Object::find(real, path)?.ok_or(Errno::ENOENT)?;
    set_times(&object, None, mtime)
}

/// Makes the xattrs of `to` exactly `wanted`, among those that count as a file's own.
fn set_xattrs(to: &Object, wanted: &[(Vec<u8>, Vec<u8>)]) -> Sys<()> {
    let present = objects::xattrs(to)?;
    for (name, _) in present.iter().filter(|(name, _)| !wanted.iter().any(|(w, _)| w == name)) {
        match objects::in_writable(to.fd.as_fd(), || xattr::remove(to.fd.as_fd(), name)) {
            Ok(()) | Err(Errno::ENODATA) => {}
            Err(e) => return Err(e),
        }
    }
    for (name, value) in wanted.iter().filter(|pair| !present.contains(pair)) {
        match objects::in_writable(to.fd.as_fd(), || xattr::set(to.fd.as_fd(), name, value, 0)) {
            Ok(()) => {}
            // Capabilities need a privilege; a file system without ACLs has the mode, which says nearly the same.
            Err(Errno::EPERM) if name == objects::CAPABILITY => {}
            Err(Errno::EOPNOTSUPP) if name == ACL_ACCESS || name == ACL_DEFAULT => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
