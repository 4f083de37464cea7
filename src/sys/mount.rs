//! Namespaces and mounts.

use super::fault::point;
use super::{check, with_c};
use crate::base::Sys;
use std::ptr::null;

/// `unshare(2)` with `CLONE_NEW*` flags.
///
/// # Errors
/// As `unshare(2)`; `EINVAL` for a user namespace from a process with threads, `EPERM` or `ENOSPC` where forbidden.
pub fn unshare(flags: i32) -> Sys<()> {
    point()?;
    // SAFETY: the call has no memory arguments.
    check(unsafe { libc::unshare(flags) }).map(drop)
}

/// `mount(2)` of a new file system of type `fstype` at `target`.
///
/// # Errors
/// As `mount(2)`.
pub fn mount(source: &[u8], target: &[u8], fstype: &[u8], flags: u64, data: &[u8]) -> Sys<()> {
    point()?;
    with_c(source, |s| {
        with_c(target, |t| {
            with_c(fstype, |f| {
                with_c(data, |d| {
                    // SAFETY: all strings are NUL-terminated and outlive the call.
                    check(unsafe { libc::mount(s, t, f, flags, d.cast()) }).map(drop)
                })
            })
        })
    })
}

/// Makes every mount of this namespace a slave, so that nothing we mount reaches the parent namespace.
///
/// # Errors
/// As `mount(2)`.
pub fn make_slave() -> Sys<()> {
    point()?;
    // SAFETY: constant strings.
    check(unsafe { libc::mount(null(), c"/".as_ptr(), null(), libc::MS_REC | libc::MS_SLAVE, null()) })
        .map(drop)
}

/// Recursive bind mount of `source` at `target`.
///
/// # Errors
/// As `mount(2)`.
pub fn bind(source: &[u8], target: &[u8]) -> Sys<()> {
    point()?;
    with_c(source, |s| {
        with_c(target, |t| {
            // SAFETY: both strings are NUL-terminated.
            check(unsafe { libc::mount(s, t, null(), libc::MS_BIND | libc::MS_REC, null()) }).map(drop)
        })
    })
}

/// `umount2(2)`; `lazy` adds `MNT_DETACH`.
///
/// # Errors
/// As `umount2(2)`.
pub fn umount(target: &[u8], lazy: bool) -> Sys<()> {
    point()?;
    with_c(target, |t| {
        let flags = libc::UMOUNT_NOFOLLOW | if lazy { libc::MNT_DETACH } else { 0 };
        // SAFETY: the string is NUL-terminated.
        check(unsafe { libc::umount2(t, flags) }).map(drop)
    })
}
