//! What a layer looks like on disk.
//!
//! The upper is an ordinary overlayfs upper in its `userxattr` form (Documentation/filesystems/overlayfs.rst):
//! a deleted name is a *whiteout* (character device 0:0, or `.wh.NAME` where that device cannot be made), a directory
//! that hides what lies below it is *opaque*, and a directory that was renamed carries a *redirect*. What we add is a
//! `user.overlay.sbx.base` xattr on what was copied up: where it came from and what it was then.

mod codec;
mod expand;
pub mod partial;
mod probe;
mod stat_xattr;
mod usage;

pub use codec::{
    Marks, Origin, WH_OPAQUE, WH_PREFIX, X_BASE, X_OPAQUE, X_ORIGIN, X_PREFIX, X_REDIRECT, X_TRUSTED,
    is_opaque, is_private, marks_at, read_origin, read_redirect, set_opaque, write_origin, write_redirect,
};
pub use expand::{Forced, clear_opaque, expand};
pub use probe::{Features, WhiteoutForm, probe};
pub use stat_xattr::{StatXattr, X_CONTAINERS, disk_perm, is_stat_xattr};
pub use usage::{Usage, add_usage};

use crate::base::{Attr, Errno, Sys, Time};
use crate::sys::file;
use std::os::fd::BorrowedFd;

/// Whether a directory tree is to be read literally or as overlayfs wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerKind {
    /// The real tree: a device 0:0 in it is a device, an xattr is an xattr.
    Plain,
    /// A layer that overlayfs, fuse-overlayfs or we wrote.
    Overlay,
}

/// What a layer holds at one name.
#[derive(Clone, Copy, Debug)]
pub enum Found {
    /// Nothing: look further down.
    Nothing,
    /// A whiteout in this form: look no further.
    Whiteout(WhiteoutForm),
    /// An object.
    Object(Attr),
}

/// What `dir` of a layer of `kind` holds at `name`; with `prefixed`, the `.wh.` form of a whiteout counts too.
///
/// # Errors
/// As `statx(2)` other than `ENOENT`.
pub fn find(dir: BorrowedFd<'_>, name: &[u8], kind: LayerKind, prefixed: bool) -> Sys<Found> {
    match file::stat_at(dir, name) {
        Ok(attr) if kind == LayerKind::Overlay && attr.is_whiteout() => {
            Ok(Found::Whiteout(WhiteoutForm::Device))
        }
        Ok(attr) => Ok(Found::Object(attr)),
        Err(Errno::ENOENT | Errno::ENOTDIR) => {
            if kind == LayerKind::Overlay && prefixed && has_prefixed(dir, name)? {
                return Ok(Found::Whiteout(WhiteoutForm::Prefix));
            }
            Ok(Found::Nothing)
        }
        Err(e) => Err(e),
    }
}

fn has_prefixed(dir: BorrowedFd<'_>, name: &[u8]) -> Sys<bool> {
    match file::stat_at(dir, &prefixed_name(name)) {
        Ok(_) => Ok(true),
        Err(Errno::ENOENT | Errno::ENAMETOOLONG) => Ok(false),
        Err(e) => Err(e),
    }
}

/// The `.wh.` name that marks `name` as deleted.
pub fn prefixed_name(name: &[u8]) -> Vec<u8> {
    [WH_PREFIX, name].concat()
}

/// Puts a whiteout at `name` in the upper directory `dir`, where nothing is.
///
/// # Errors
/// As `mknodat(2)`; `ENAMETOOLONG` for the prefixed form of a name over 251 bytes.
pub fn make_whiteout(dir: BorrowedFd<'_>, name: &[u8], form: WhiteoutForm) -> Sys<()> {
    match form {
        WhiteoutForm::Device => file::mknodat(dir, name, libc::S_IFCHR, 0),
        WhiteoutForm::Prefix => {
            file::openat(dir, &prefixed_name(name), libc::O_CREAT | libc::O_WRONLY, 0o600).map(drop)
        }
    }
}

/// Takes the whiteout at `name` away, if there is one.
///
/// # Errors
/// As `unlinkat(2)` other than `ENOENT`.
pub fn remove_whiteout(dir: BorrowedFd<'_>, name: &[u8], form: WhiteoutForm) -> Sys<()> {
    let gone = match form {
        WhiteoutForm::Device => match file::stat_at(dir, name) {
            Ok(attr) if attr.is_whiteout() => file::unlinkat(dir, name),
            Ok(_) => Ok(()),
            Err(e) => Err(e),
        },
        WhiteoutForm::Prefix => file::unlinkat(dir, &prefixed_name(name)),
    };
    match gone {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(e) => Err(e),
    }
}

/// The name in the index directory for a lower object: its inode number, and its birth time against reuse.
pub fn index_name(ino: u64, btime: Time) -> Vec<u8> {
    format!("{ino:x}-{:x}.{:x}", btime.sec, btime.nsec).into_bytes()
}
