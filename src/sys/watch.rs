//! `inotify(7)`.

use super::fault::point;
use super::{check, check_size, with_c};
use crate::base::Sys;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// An inotify instance.
pub struct Inotify(OwnedFd);

/// One event: what happened to which watch, and to which entry of it.
#[derive(Clone, Debug)]
pub struct Event {
    /// Watch descriptor; -1 for a queue overflow.
    pub wd: i32,
    /// `IN_*` bits.
    pub mask: u32,
    /// Joins the two events of a rename; else 0.
    pub cookie: u32,
    /// The entry's name; empty when the watched object itself is meant.
    pub name: Vec<u8>,
}

impl Inotify {
    /// `inotify_init1(2)`.
    ///
    /// # Errors
    /// `EMFILE` when the user has too many instances.
    pub fn new() -> Sys<Inotify> {
        point()?;
        // SAFETY: a non-negative result is a fresh descriptor.
        unsafe {
            let fd = check(libc::inotify_init1(libc::IN_CLOEXEC))?;
            Ok(Inotify(OwnedFd::from_raw_fd(fd)))
        }
    }

    /// `inotify_add_watch(2)` on the object behind `fd`; returns the watch descriptor.
    ///
    /// # Errors
    /// `ENOSPC` when the user has no watches left.
    pub fn add(&self, fd: BorrowedFd<'_>, mask: u32) -> Sys<i32> {
        point()?;
        with_c(&super::file::proc_path(fd), |p| {
            // SAFETY: the string is NUL-terminated.
            check(unsafe { libc::inotify_add_watch(self.0.as_raw_fd(), p, mask) })
        })
    }

    /// `inotify_rm_watch(2)`.
    ///
    /// # Errors
    /// `EINVAL` when the watch is gone already.
    pub fn remove(&self, wd: i32) -> Sys<()> {
        point()?;
        // SAFETY: the call has no memory arguments.
        check(unsafe { libc::inotify_rm_watch(self.0.as_raw_fd(), wd) }).map(drop)
    }

    /// Blocks until there are events and returns them.
    ///
    /// # Errors
    /// As `read(2)`.
    pub fn read(&self) -> Sys<Vec<Event>> {
        point()?;
        let mut buf = vec![0u8; 64 << 10];
        // SAFETY: the buffer is as long as said.
        let n = check_size(unsafe { libc::read(self.0.as_raw_fd(), buf.as_mut_ptr().cast(), buf.len()) })?;
        let mut events = Vec::new();
        let mut rest = &buf[..n];
        // struct inotify_event (inotify(7)): wd i32, mask u32, cookie u32, len u32, name.
        while rest.len() >= 16 {
            let word = |i: usize| u32::from_ne_bytes(rest[i..i + 4].try_into().unwrap_or_default());
            let len = word(12) as usize;
            let name = rest[16..16 + len].split(|&b| b == 0).next().unwrap_or_default().to_vec();
            events.push(Event { wd: word(0) as i32, mask: word(4), cookie: word(8), name });
            rest = &rest[16 + len..];
        }
        Ok(events)
    }
}

impl AsFd for Inotify {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
