//! Extended attributes, also through `O_PATH` descriptors (by `/proc/self/fd`).

use super::fault::point;
use super::file::proc_path;
use super::owner::or_as_owner;
use super::{check, check_size, with_c};
use crate::base::{Errno, Sys};
use std::os::fd::BorrowedFd;

/// The value of `name` on the object behind `fd`; `None` when it has none or the file system knows no xattrs.
///
/// # Errors
/// As `getxattr(2)` otherwise.
pub fn get(fd: BorrowedFd<'_>, name: &[u8]) -> Sys<Option<Vec<u8>>> {
    get_path(&proc_path(fd), name)
}

fn get_path(path: &[u8], name: &[u8]) -> Sys<Option<Vec<u8>>> {
    or_as_owner(value(path, name), || value(path, name))
}

fn value(path: &[u8], name: &[u8]) -> Sys<Option<Vec<u8>>> {
    point()?;
    with_c(path, |p| {
        with_c(name, |n| {
            let mut buf = vec![0u8; 256];
            loop {
                // SAFETY: the buffer is as long as said; the strings are NUL-terminated.
                let ret = unsafe { libc::getxattr(p, n, buf.as_mut_ptr().cast(), buf.len()) };
                match check_size(ret) {
                    Ok(len) => {
                        buf.truncate(len);
                        return Ok(Some(buf));
                    }
                    Err(Errno::ERANGE) => buf = vec![0u8; 65536],
                    Err(Errno::ENODATA | Errno::EOPNOTSUPP) => return Ok(None),
                    Err(e) => return Err(e),
                }
            }
        })
    })
}

/// As [`get`], but errors are those of `getxattr(2)` without exception: for passing them to a caller.
///
/// # Errors
/// As `getxattr(2)`.
pub fn get_strict(fd: BorrowedFd<'_>, name: &[u8]) -> Sys<Vec<u8>> {
    point()?;
    with_c(&proc_path(fd), |p| {
        with_c(name, |n| {
            let mut buf = vec![0u8; 256];
            loop {
                // SAFETY: as in `value`.
                match check_size(unsafe { libc::getxattr(p, n, buf.as_mut_ptr().cast(), buf.len()) }) {
                    Ok(len) => {
                        buf.truncate(len);
                        return Ok(buf);
                    }
                    Err(Errno::ERANGE) if buf.len() < 65536 => buf = vec![0u8; 65536],
                    Err(e) => return Err(e),
                }
            }
        })
    })
}

/// `setxattr(2)`; `flags` may be `XATTR_CREATE` or `XATTR_REPLACE`.
///
/// # Errors
/// As `setxattr(2)`.
pub fn set(fd: BorrowedFd<'_>, name: &[u8], value: &[u8], flags: i32) -> Sys<()> {
    point()?;
    with_c(&proc_path(fd), |p| {
        with_c(name, |n| {
            // SAFETY: the value is as long as said; the strings are NUL-terminated.
            check(unsafe { libc::setxattr(p, n, value.as_ptr().cast(), value.len(), flags) }).map(drop)
        })
    })
}

/// `removexattr(2)`.
///
/// # Errors
/// As `removexattr(2)`; `ENODATA` when it is not there.
pub fn remove(fd: BorrowedFd<'_>, name: &[u8]) -> Sys<()> {
    point()?;
    with_c(&proc_path(fd), |p| {
        with_c(name, |n| {
            // SAFETY: the strings are NUL-terminated.
            check(unsafe { libc::removexattr(p, n) }).map(drop)
        })
    })
}

/// The names of all xattrs that we may see, in the kernel's order; empty where the file system knows none.
///
/// # Errors
/// As `listxattr(2)`.
pub fn list(fd: BorrowedFd<'_>) -> Sys<Vec<Vec<u8>>> {
    point()?;
    // SAFETY: the string is NUL-terminated and the buffer as long as said.
    list_with(&proc_path(fd), |p, buf| unsafe { libc::listxattr(p, buf.as_mut_ptr().cast(), buf.len()) })
}

/// As [`list`], for `entry` in `dir`, not following a final symlink (`llistxattr(2)` through `/proc/self/fd`).
///
/// # Errors
/// As `llistxattr(2)`.
pub fn list_at(dir: BorrowedFd<'_>, entry: &[u8]) -> Sys<Vec<Vec<u8>>> {
    point()?;
    let path = [&proc_path(dir), b"/".as_slice(), entry].concat();
    // SAFETY: as in `list`.
    list_with(&path, |p, buf| unsafe { libc::llistxattr(p, buf.as_mut_ptr().cast(), buf.len()) })
}

fn list_with(path: &[u8], call: impl Fn(*const libc::c_char, &mut [u8]) -> isize) -> Sys<Vec<Vec<u8>>> {
    with_c(path, |p| {
        let mut buf = vec![0u8; 1024];
        loop {
            match check_size(call(p, &mut buf)) {
                Ok(len) => {
                    buf.truncate(len);
                    break;
                }
                Err(Errno::ERANGE) if buf.len() < 65536 => buf = vec![0u8; 65536],
                Err(Errno::EOPNOTSUPP) => return Ok(Vec::new()),
                Err(e) => return Err(e),
            }
        }
        Ok(buf.split(|&b| b == 0).filter(|n| !n.is_empty()).map(<[u8]>::to_vec).collect())
    })
}

/// As [`get`], for `name` in `dir`, not following a final symlink (`lgetxattr(2)` through `/proc/self/fd`).
///
/// # Errors
/// As `lgetxattr(2)` other than `ENODATA` and `EOPNOTSUPP`.
pub fn get_at(dir: BorrowedFd<'_>, entry: &[u8], name: &[u8]) -> Sys<Option<Vec<u8>>> {
    point()?;
    let path = [&proc_path(dir), b"/".as_slice(), entry].concat();
    with_c(&path, |p| {
        with_c(name, |n| {
            let mut buf = vec![0u8; 512];
            loop {
                // SAFETY: the buffer is as long as said; the strings are NUL-terminated.
                match check_size(unsafe { libc::lgetxattr(p, n, buf.as_mut_ptr().cast(), buf.len()) }) {
                    Ok(len) => {
                        buf.truncate(len);
                        return Ok(Some(buf));
                    }
                    Err(Errno::ERANGE) if buf.len() < 65536 => buf = vec![0u8; 65536],
                    Err(Errno::ENODATA | Errno::EOPNOTSUPP) => return Ok(None),
                    Err(e) => return Err(e),
                }
            }
        })
    })
}
