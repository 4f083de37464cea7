//! A shared, writable mapping of a file: bytes stored through it survive the death of this process.

use super::last;
use crate::base::Sys;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

/// A `MAP_SHARED` window on a file. The file must be allocated there (`fallocate`), or a store on a full disk raises
/// SIGBUS; the caller sees to it.
pub struct SharedMap {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is plain memory owned by this value; access goes through `&mut self`.
unsafe impl Send for SharedMap {}

impl SharedMap {
    /// Maps `len` bytes of `fd` from `offset` (a multiple of the page size), readable and writable.
    ///
    /// # Errors
    /// As `mmap(2)`.
    pub fn new(fd: BorrowedFd<'_>, offset: u64, len: usize) -> Sys<SharedMap> {
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                offset as libc::off_t,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(last());
        }
        NonNull::new(at.cast()).map(|at| SharedMap { at, len }).ok_or(crate::base::Errno::ENOMEM)
    }

    /// The mapped bytes.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: `at` points to `len` mapped bytes; `&mut self` makes the access unique in this process.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.len) }
    }
}

impl Drop for SharedMap {
    fn drop(&mut self) {
        // SAFETY: unmaps exactly what `new` mapped; nothing borrows it any more.
        unsafe {
            libc::munmap(self.at.as_ptr().cast(), self.len);
        }
    }
}
