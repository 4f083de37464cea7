//! Which threads make many small files one after another (tar, git, npm), so that those can be written in another way.
//!
//! What a program writes goes through the kernel's pages by default: that keeps the content for whoever reads it next,
//! but a block that does not end with a page is sent in pieces, and before the first of them the kernel asks for the
//! file's capabilities (`file_remove_privs`). A descriptor with `FOPEN_DIRECT_IO` hands each write over as it is. A
//! large file is better off with the former, many small ones with the latter; which of them a new file will be, only
//! the files before it can tell.

use fuser::FopenFlags;
use std::sync::atomic::{AtomicU64, Ordering};

/// So many files in a row are many.
const MANY: u64 = 3;
/// A file with a byte from here on is not small.
const SMALL: u64 = 1 << 20;
/// Threads that are told apart; two with the same remainder only spoil each other's count.
const SLOTS: usize = 64;

/// How many small files each thread has made in a row.
pub(super) struct Makers {
    /// Whether the kernel drops what it has of a file's pages where they are written past; it does from Linux 6.6 on.
    /// Else others who read the file meanwhile would go on reading what was there before.
    coherent: bool,
    /// The thread in the upper half, the number in the lower one.
    rows: [AtomicU64; SLOTS],
}

impl Makers {
    /// For a kernel that drops pages which are written past, if `coherent`.
    pub fn new(coherent: bool) -> Makers {
        Makers { coherent, rows: [const { AtomicU64::new(0) }; SLOTS] }
    }

    /// To be called when `thread` has made a file with `flags` of open(2): how the kernel is to treat its descriptor.
    pub fn made(&self, thread: u32, flags: i32) -> FopenFlags {
        let slot = self.slot(thread);
        let before = slot.load(Ordering::Relaxed);
        let count = if before >> 32 == u64::from(thread) { before & u64::from(u32::MAX) } else { 0 };
        slot.store(u64::from(thread) << 32 | (count + 1).min(MANY), Ordering::Relaxed);
        // A write that must be durable when it returns is seen to on the way through the pages only; whoever may read
        // through the same descriptor is helped by them.
        let through = libc::O_SYNC | libc::O_DSYNC | libc::O_APPEND;
        if self.coherent && count >= MANY && flags & libc::O_ACCMODE == libc::O_WRONLY && flags & through == 0
        {
            FopenFlags::FOPEN_DIRECT_IO
        } else {
            FopenFlags::FOPEN_KEEP_CACHE
        }
    }

    /// To be called when `thread` writes, up to byte `end` of a file.
    pub fn wrote(&self, thread: u32, end: u64) {
        if end > SMALL {
            self.slot(thread).store(0, Ordering::Relaxed);
        }
    }

    fn slot(&self, thread: u32) -> &AtomicU64 {
        &self.rows[thread as usize % SLOTS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITES: i32 = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL;

    fn direct(makers: &Makers, thread: u32, flags: i32) -> bool {
        makers.made(thread, flags) == FopenFlags::FOPEN_DIRECT_IO
    }

    fn row(makers: &Makers, thread: u32) {
        for _ in 0..MANY {
            assert!(!direct(makers, thread, WRITES));
        }
    }

    #[test]
    fn many_small_files_in_a_row_are_handed_over_as_they_are_written() {
        let makers = Makers::new(true);
        row(&makers, 7);
        assert!(direct(&makers, 7, WRITES));
        row(&makers, 8);
        assert!(direct(&makers, 8, WRITES));
        assert!(direct(&makers, 7, WRITES), "another thread does not matter");
    }

    #[test]
    fn never_where_others_would_read_old_pages() {
        let makers = Makers::new(false);
        row(&makers, 7);
        row(&makers, 7);
    }

    #[test]
    fn a_large_one_ends_the_row() {
        let makers = Makers::new(true);
        row(&makers, 7);
        makers.wrote(7, SMALL);
        assert!(direct(&makers, 7, WRITES));
        makers.wrote(7, SMALL + 1);
        row(&makers, 7);
    }

    #[test]
    fn descriptors_that_read_or_promise_more_are_as_ever() {
        let makers = Makers::new(true);
        row(&makers, 7);
        for flags in [libc::O_RDWR, libc::O_RDONLY, WRITES | libc::O_SYNC, WRITES | libc::O_DSYNC] {
            assert!(!direct(&makers, 7, flags));
        }
        assert!(!direct(&makers, 7, WRITES | libc::O_APPEND));
        assert!(direct(&makers, 7, WRITES));
    }
}
