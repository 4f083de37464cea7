//! A shared, writable mapping of a file: bytes stored through it survive the death of this process.

use super::fault::point;
use super::last;
use crate::base::Sys;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

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
        point()?;
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

    /// Stores `value` in little-endian order at byte `at` after all earlier stores: another process that sees it sees
    /// those too.
    ///
    /// # Errors
    /// `EINVAL` when `at` is no multiple of 4 or the four bytes are not inside the window.
    pub fn publish_u32(&mut self, at: usize, value: u32) -> Sys<()> {
        point()?;
        if !at.is_multiple_of(4) || at.checked_add(4).is_none_or(|end| end > self.len) {
            return Err(crate::base::Errno::EINVAL);
        }
        // SAFETY: inside the mapping as checked; a mapping starts on a page, so a multiple of 4 is aligned; every
        // bit pattern is a u32, and `&mut self` keeps plain accesses of this process away.
        let cell = unsafe { AtomicU32::from_ptr(self.at.as_ptr().add(at).cast()) };
        cell.store(value.to_le(), Ordering::Release);
        Ok(())
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
