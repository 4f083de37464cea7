//! The descriptors that this process was started with.

use super::check;
use super::fault::point;
use crate::base::{Errno, Sys};
use std::os::fd::BorrowedFd;

/// The first that is no standard stream.
const FIRST: i32 = 3;

/// What a descriptor leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct What {
    /// The type of its file: the `S_IFMT` bits of `st_mode` (inode(7)).
    pub kind: u32,
    /// Whether it was opened to read only, or as a mere place (`O_PATH`).
    pub read_only: bool,
}

/// What the open descriptor `fd` leads to.
///
/// # Errors
/// As `fstat(2)` and `fcntl(2)`.
pub fn what(fd: BorrowedFd<'_>) -> Sys<What> {
    point()?;
    let told = |e| Errno(e as i32);
    let flags = nix::fcntl::fcntl(fd, nix::fcntl::FcntlArg::F_GETFL).map_err(told)?;
    let stat = nix::sys::stat::fstat(fd).map_err(told)?;
    let read_only = flags & libc::O_ACCMODE == libc::O_RDONLY || flags & libc::O_PATH != 0;
    Ok(What { kind: stat.st_mode & libc::S_IFMT, read_only })
}

/// Has every descriptor but the standard streams and pipes closed when this process, or a child of it, executes a program.
///
/// # Errors
/// When they cannot be listed; as `fcntl(2)`.
pub fn pass_on_pipes_only() -> Sys<()> {
    pass_on(|what| what.kind == libc::S_IFIFO)
}

/// As [`pass_on_pipes_only`], without the pipes: whoever waits for the end of one would wait for that program.
///
/// # Errors
/// As [`pass_on_pipes_only`].
pub fn pass_on_nothing() -> Sys<()> {
    pass_on(|_| false)
}

fn pass_on(keeps: impl Fn(What) -> bool) -> Sys<()> {
    point()?;
    let list = std::fs::read_dir("/proc/self/fd").map_err(Errno::from)?;
    let all = list.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    for fd in all.filter(|&fd| fd >= FIRST).collect::<Vec<_>>() {
        // SAFETY: only borrowed for the calls in it, which fail for a descriptor that is not open.
        match what(unsafe { BorrowedFd::borrow_raw(fd) }) {
            // It was that of the list.
            Err(Errno::EBADF) => {}
            Ok(what) if keeps(what) => {}
            Ok(_) => set_close_on_exec(fd)?,
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn set_close_on_exec(fd: i32) -> Sys<()> {
    point()?;
    // SAFETY: the call has no memory arguments.
    check(unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) }).map(drop)
}
