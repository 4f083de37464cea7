//! A mapping of a file, of either kind.

#![allow(unsafe_code)] // what is tested is the mapping itself

use nix::sys::mman::{MapFlags, MsFlags, ProtFlags, mmap, msync, munmap};
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
        Mapping::new(file, len, flags, ProtFlags::PROT_READ)
    }

    /// One to write through; every byte set is written back.
    pub fn to_write(file: &File, len: usize) -> Mapping {
        Mapping::new(file, len, MapFlags::MAP_SHARED, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE)
    }

    fn new(file: &File, len: usize, flags: MapFlags, protection: ProtFlags) -> Mapping {
        let size = NonZeroUsize::new(len).unwrap();
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let at = unsafe { mmap(None, size, protection, flags, file, 0) }.unwrap();
        Mapping { at, len }
    }

    /// Only in one that is [to be written](Mapping::to_write).
    pub fn set(&mut self, at: usize, byte: u8) {
        assert!(at < self.len);
        // SAFETY: `len` bytes are mapped, writable, for as long as `self` lives.
        unsafe {
            self.at.cast::<u8>().add(at).write_volatile(byte);
            msync(self.at, self.len, MsFlags::MS_SYNC).unwrap();
        }
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
