//! Read leases (fcntl(2), `F_SETLEASE`): whoever opens a file for writing, or truncates it, waits until the holder of a
//! lease on it has let go.

use super::check;
use super::fault::point;
use crate::base::Sys;
use std::os::fd::{AsRawFd, BorrowedFd};

/// fcntl_setsig; the `libc` crate does not have it for every target.
const F_SETSIG: libc::c_int = 10;

/// Takes a read lease on the file behind `fd`, which must be open for reading only. Nobody is killed by the break: it
/// is told by `SIGURG`, which is ignored by default; ask [`is_breaking`].
///
/// # Errors
/// `EAGAIN` while somebody has the file open for writing, `EACCES` for another user's file, `EINVAL` where the file
/// system has no leases.
pub fn take(fd: BorrowedFd<'_>) -> Sys<()> {
    point()?;
    // SAFETY: the calls have no memory arguments.
    unsafe {
        check(libc::fcntl(fd.as_raw_fd(), F_SETSIG, libc::SIGURG))?;
        check(libc::fcntl(fd.as_raw_fd(), libc::F_SETLEASE, libc::F_RDLCK)).map(drop)
    }
}

/// Whether the lease on `fd` is lost or asked back. Its holder has `/proc/sys/fs/lease-break-time` seconds (45) to
/// let go.
///
/// # Errors
/// As `fcntl(2)`.
pub fn is_breaking(fd: BorrowedFd<'_>) -> Sys<bool> {
    point()?;
    // SAFETY: the call has no memory arguments.
    let held = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETLEASE) })?;
    Ok(held != libc::F_RDLCK)
}

/// Lets go of the lease on `fd`. Closing the last descriptor does the same.
///
/// # Errors
/// `EAGAIN` when there is none.
pub fn release(fd: BorrowedFd<'_>) -> Sys<()> {
    point()?;
    // SAFETY: the call has no memory arguments.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Errno;
    use std::fs::{File, OpenOptions};
    use std::os::fd::AsFd;

    /// Where the file system of the temporary directory has no leases, that is told at once.
    #[test]
    fn a_writer_waits_for_the_holder() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, "x").unwrap();
        let writer = OpenOptions::new().write(true).open(&path).unwrap();
        let held = File::open(&path).unwrap();
        assert!(take(held.as_fd()).is_err(), "somebody writes");
        drop(writer);
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        loop {
            match take(held.as_fd()) {
                Ok(()) => break,
                // A child that another test is just starting has our descriptors for a moment.
                Err(Errno::EAGAIN) if std::time::Instant::now() < end => std::thread::yield_now(),
                Err(e) => {
                    assert!([Errno::EINVAL, Errno::EOPNOTSUPP].contains(&e), "{e}");
                    return;
                }
            }
        }
        assert!(!is_breaking(held.as_fd()).unwrap());
        let opening = std::thread::spawn(move || OpenOptions::new().write(true).open(&path).map(drop));
        while !is_breaking(held.as_fd()).unwrap() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert!(!opening.is_finished());
        release(held.as_fd()).unwrap();
        opening.join().unwrap().unwrap();
    }
}
