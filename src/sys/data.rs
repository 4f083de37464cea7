//! Bytes of an open file: read, write, copy, holes, sync.

use super::fault::point;
use super::{check, check_size};
use crate::base::{Errno, Sys};
use std::os::fd::{AsRawFd, BorrowedFd};

/// `pread(2)`, retried on `EINTR`.
///
/// # Errors
/// As `pread(2)`.
pub fn pread(fd: BorrowedFd<'_>, buf: &mut [u8], offset: u64) -> Sys<usize> {
    point()?;
    loop {
        // SAFETY: the buffer is as long as said.
        let n =
            unsafe { libc::pread(fd.as_raw_fd(), buf.as_mut_ptr().cast(), buf.len(), offset as libc::off_t) };
        match check_size(n) {
            Err(Errno::EINTR) => continue,
            other => return other,
        }
    }
}

/// `pread(2)` into the spare capacity of `buf`, at most `len` bytes, so that nothing is zeroed first.
///
/// # Errors
/// As `pread(2)`.
pub fn pread_into(fd: BorrowedFd<'_>, buf: &mut Vec<u8>, len: usize, offset: u64) -> Sys<usize> {
    point()?;
    buf.clear();
    buf.reserve(len);
    loop {
        // SAFETY: `len` bytes are reserved; the length is set to what the kernel wrote.
        let n = unsafe {
            let n = libc::pread(fd.as_raw_fd(), buf.as_mut_ptr().cast(), len, offset as libc::off_t);
            if n > 0 {
                buf.set_len(n as usize);
            }
            n
        };
        match check_size(n) {
            Err(Errno::EINTR) => continue,
            other => return other,
        }
    }
}

/// `pwrite(2)`, retried on `EINTR`; may write less than asked.
///
/// # Errors
/// As `pwrite(2)`.
pub fn pwrite(fd: BorrowedFd<'_>, buf: &[u8], offset: u64) -> Sys<usize> {
    point()?;
    loop {
        // SAFETY: the buffer is as long as said.
        let n =
            unsafe { libc::pwrite(fd.as_raw_fd(), buf.as_ptr().cast(), buf.len(), offset as libc::off_t) };
        match check_size(n) {
            Err(Errno::EINTR) => continue,
            other => return other,
        }
    }
}

/// Writes all of `buf` at `offset`.
///
/// # Errors
/// As `pwrite(2)`; `ENOSPC` when a write makes no progress.
pub fn pwrite_all(fd: BorrowedFd<'_>, mut buf: &[u8], mut offset: u64) -> Sys<()> {
    while !buf.is_empty() {
        let n = pwrite(fd, buf, offset)?;
        if n == 0 {
            return Err(Errno::ENOSPC);
        }
        buf = &buf[n..];
        offset += n as u64;
    }
    Ok(())
}

/// `ioctl(FICLONE)`: makes `to` share all blocks of `from` (ioctl_ficlone(2)).
///
/// # Errors
/// `EOPNOTSUPP`, `EXDEV` or `EINVAL` where the file system cannot.
pub fn clone_file(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> Sys<()> {
    point()?;
    // SAFETY: FICLONE takes a descriptor as its argument.
    check(unsafe { libc::ioctl(to.as_raw_fd(), libc::FICLONE as _, from.as_raw_fd()) }).map(drop)
}

/// `copy_file_range(2)` at explicit offsets; returns the bytes copied, 0 at the end of `from`.
///
/// # Errors
/// As `copy_file_range(2)`.
pub fn copy_range(
    from: BorrowedFd<'_>,
    off_in: u64,
    to: BorrowedFd<'_>,
    off_out: u64,
    len: usize,
) -> Sys<usize> {
    point()?;
    let (mut i, mut o) = (off_in as libc::off64_t, off_out as libc::off64_t);
    // SAFETY: both offsets are valid for the call.
    check_size(unsafe {
        libc::copy_file_range(from.as_raw_fd(), &raw mut i, to.as_raw_fd(), &raw mut o, len, 0)
    })
}

/// `lseek(2)`; `whence` is `SEEK_DATA`, `SEEK_HOLE`, `SEEK_SET` or `SEEK_END`.
///
/// # Errors
/// As `lseek(2)`; `ENXIO` past the end for `SEEK_DATA`.
pub fn lseek(fd: BorrowedFd<'_>, offset: i64, whence: i32) -> Sys<u64> {
    point()?;
    // SAFETY: the call has no memory arguments.
    let n = unsafe { libc::lseek64(fd.as_raw_fd(), offset, whence) };
    u64::try_from(n).map_err(|_| super::last())
}

/// `fallocate(2)`.
///
/// # Errors
/// As `fallocate(2)`.
pub fn fallocate(fd: BorrowedFd<'_>, mode: i32, offset: u64, len: u64) -> Sys<()> {
    point()?;
    // SAFETY: the call has no memory arguments.
    check(unsafe { libc::fallocate64(fd.as_raw_fd(), mode, offset as i64, len as i64) }).map(drop)
}

/// `ftruncate(2)`.
///
/// # Errors
/// As `ftruncate(2)`.
pub fn ftruncate(fd: BorrowedFd<'_>, len: u64) -> Sys<()> {
    point()?;
    // SAFETY: the call has no memory arguments.
    check(unsafe { libc::ftruncate64(fd.as_raw_fd(), len as i64) }).map(drop)
}

/// `fsync(2)`, or `fdatasync(2)` when `data_only`.
///
/// # Errors
/// As `fsync(2)`.
pub fn fsync(fd: BorrowedFd<'_>, data_only: bool) -> Sys<()> {
    point()?;
    // SAFETY: the calls have no memory arguments.
    check(unsafe { if data_only { libc::fdatasync(fd.as_raw_fd()) } else { libc::fsync(fd.as_raw_fd()) } })
        .map(drop)
}

/// `syncfs(2)`: writes back the whole file system that holds `fd`.
///
/// # Errors
/// As `syncfs(2)`.
pub fn syncfs(fd: BorrowedFd<'_>) -> Sys<()> {
    point()?;
    // SAFETY: the call has no memory arguments.
    check(unsafe { libc::syncfs(fd.as_raw_fd()) }).map(drop)
}

/// Copies the whole content of `from` to the empty file `to`: by reflink where the file system can, else range by
/// range with holes kept. `seen` is called with the bytes done so far.
///
/// # Errors
/// The first error of a read or write; `to` is then incomplete.
pub fn copy_content(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    size: u64,
    mut seen: impl FnMut(u64),
) -> Sys<()> {
    if size == 0 {
        return Ok(());
    }
    if clone_file(from, to).is_ok() {
        seen(size);
        return Ok(());
    }
    let mut pos = 0u64;
    while pos < size {
        let data = match lseek(from, pos as i64, libc::SEEK_DATA) {
            Ok(data) => data,
            Err(Errno::ENXIO) => break,
            Err(Errno::EINVAL | Errno::EOPNOTSUPP) => pos,
            Err(e) => return Err(e),
        };
        let hole = match lseek(from, data as i64, libc::SEEK_HOLE) {
            Ok(hole) => hole.min(size.max(data)),
            Err(Errno::EINVAL | Errno::EOPNOTSUPP) => size,
            Err(e) => return Err(e),
        };
        if data >= size {
            break;
        }
        if copy_extent(from, to, data, hole, &mut seen)? < hole {
            break; // the source became shorter meanwhile
        }
        pos = hole;
    }
    ftruncate(to, size)?;
    seen(size);
    Ok(())
}

/// Copies the bytes of `start..end`; returns where it stopped, which is before `end` only at the end of the source.
fn copy_extent(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    start: u64,
    end: u64,
    seen: &mut impl FnMut(u64),
) -> Sys<u64> {
    const CHUNK: u64 = 4 << 20;
    let mut pos = start;
    let mut in_kernel = true;
    let mut buf = Vec::new();
    while pos < end {
        let want = (end - pos).min(CHUNK) as usize;
        let n = if in_kernel {
            match copy_range(from, pos, to, pos, want) {
                Ok(n) => n,
                Err(Errno::EXDEV | Errno::EINVAL | Errno::EOPNOTSUPP | Errno::ENOSYS | Errno::EPERM) => {
                    in_kernel = false;
                    continue;
                }
                Err(Errno::EINTR) => continue,
                Err(e) => return Err(e),
            }
        } else {
            let n = pread_into(from, &mut buf, want.min(1 << 20), pos)?;
            pwrite_all(to, &buf[..n], pos)?;
            n
        };
        if n == 0 {
            break;
        }
        pos += n as u64;
        seen(pos);
    }
    Ok(pos)
}
