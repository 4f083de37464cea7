//! Giving a real object the attributes of a session's object, and what it had back.

use super::objects::{self, ACL_ACCESS, ACL_DEFAULT, Object};
use super::settle::MetaDiff;
use crate::base::{Attr, Errno, Kind, SetTime, Sys, Time};
use crate::sys::{file, xattr};
use std::os::fd::AsFd;

/// Gives an object the attributes that were saved of it, or of what it is a copy of. What only root could set stays.
///
/// # Errors
/// As the calls that set attributes.
pub(crate) fn restore(object: &Object, attr: &Attr, xattrs: &[(Vec<u8>, Vec<u8>)]) -> Sys<()> {
    if matches!(object.attr.kind, Kind::File | Kind::Dir) {
        set_xattrs(object, xattrs)?;
    }
    set_owner(object, attr.uid, attr.gid)?;
    if file::stat(object.fd.as_fd())?.perm != attr.perm {
        set_mode(object, attr.perm)?;
    }
    set_both_times(object, attr.atime, attr.mtime)
}

/// Gives an object back the times that it had. Those of a directory of somebody else, in which we may change entries, stay
/// what the changes made them: only its owner can set them (utimensat(2)).
///
/// # Errors
/// As `utimensat(2)`.
pub(crate) fn set_both_times(object: &Object, atime: Time, mtime: Time) -> Sys<()> {
    match set_times(object, Some(atime), mtime) {
        Err(Errno::EPERM) if object.attr.kind == Kind::Dir => Ok(()),
        other => other,
    }
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

/// Gives a real object those attributes of the session's that differ: `perm` and `xattrs` are what it is to have.
///
/// # Errors
/// As the calls that set attributes.
pub(crate) fn give(to: &Object, perm: u32, xattrs: &[(Vec<u8>, Vec<u8>)], diff: &MetaDiff) -> Sys<()> {
    if let Some((_, (uid, gid))) = diff.owner {
        set_owner(to, uid, gid)?;
    }
    if !diff.xattrs.is_empty() {
        set_xattrs(to, xattrs)?;
    }
    // An owner clears set-uid bits, an ACL changes the mode.
    if diff.mode.is_some() || diff.owner.is_some() || !diff.xattrs.is_empty() {
        set_mode(to, perm)?;
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

/// Sets the mtime of an object.
///
/// # Errors
/// As `utimensat(2)`.
pub(crate) fn set_mtime(object: &Object, mtime: Time) -> Sys<()> {
    set_times(object, None, mtime)
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
