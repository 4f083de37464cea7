//! One thin wrapper per system call: borrowed descriptors in, owned descriptors out, an [`Errno`] on failure.
//!
//! All `unsafe` of the project is in this module. Names are byte strings without NUL; every wrapper works
//! relative to a directory descriptor and none of them follows a final symlink unless it says so.

#![allow(unsafe_code)]

pub mod clock;
pub mod content;
pub mod data;
pub mod descriptors;
pub mod dir;
pub mod fault;
pub mod file;
pub mod lease;
pub mod map;
pub mod memory;
pub mod mount;
pub mod owner;
pub mod proc;
pub mod process;
pub mod signal;
pub mod socket;
pub mod watch;
pub mod xattr;

use crate::base::{Errno, Sys};
use std::ffi::CString;

/// `Ok` of a call's non-negative result, else `errno`.
fn check(ret: libc::c_int) -> Sys<libc::c_int> {
    if ret < 0 { Err(last()) } else { Ok(ret) }
}

fn check_size(ret: isize) -> Sys<usize> {
    usize::try_from(ret).map_err(|_| last())
}

fn last() -> Errno {
    Errno::from(std::io::Error::last_os_error())
}

/// Calls `f` with `bytes` NUL-terminated, on the stack when short.
fn with_c<T>(bytes: &[u8], f: impl FnOnce(*const libc::c_char) -> Sys<T>) -> Sys<T> {
    const STACK: usize = 320;
    if bytes.contains(&0) {
        return Err(Errno::EINVAL);
    }
    if bytes.len() < STACK {
        let mut buf = [0u8; STACK];
        buf[..bytes.len()].copy_from_slice(bytes);
        return f(buf.as_ptr().cast());
    }
    let owned = CString::new(bytes).map_err(|_| Errno::EINVAL)?;
    f(owned.as_ptr())
}
