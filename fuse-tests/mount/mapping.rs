//! A read-only mapping of a file, of either kind.

#![allow(unsafe_code)] // what is tested is the mapping itself

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::File;
use std::num::NonZeroUsize;
use std::ptr::NonNull;

pub struct Mapping {
    at: NonNull<std::ffi::c_void>,
    len: usize,
}

impl Mapping {
    pub fn of(file: &File, len: usize, shared: bool) -> Mapping {
        let flags = if shared { MapFlags::MAP_SHARED } else { MapFlags::MAP_PRIVATE };
        let size = NonZeroUsize::new(len).unwrap();
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let at = unsafe { mmap(None, size, ProtFlags::PROT_READ, flags, file, 0) }.unwrap();
        Mapping { at, len }
    }

    /// What is there now: read anew, byte by byte, since others write there.
    pub fn bytes(&self) -> Vec<u8> {
        // SAFETY: `len` bytes are mapped for as long as `self` lives.
        (0..self.len).map(|i| unsafe { self.at.cast::<u8>().add(i).read_volatile() }).collect()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: unmaps exactly what `of` mapped.
        unsafe { munmap(self.at, self.len) }.unwrap();
    }
}
