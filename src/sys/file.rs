//! Objects in a directory: open, stat, make, link, rename, remove, set attributes.

use super::fault::point;
use super::owner::or_as_owner;
use super::{check, check_size, with_c};
use crate::base::{Attr, Errno, Kind, SetTime, Sys, Time};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// `openat(2)` of `name` beneath `dir` with `O_CLOEXEC | O_NOFOLLOW | O_NOCTTY` added to `flags`.
///
/// # Errors
/// As `openat(2)`; a final symlink gives `ELOOP` unless `O_PATH` is in `flags`.
pub fn openat(dir: BorrowedFd<'_>, name: &[u8], flags: i32, mode: u32) -> Sys<OwnedFd> {
    point()?;
    with_c(name, |p| {
        // SAFETY: `p` is a NUL-terminated string that outlives the call; a non-negative result is a fresh descriptor.
        unsafe {
            let fd = check(libc::openat(
                dir.as_raw_fd(),
                p,
                flags | libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NOCTTY,
                mode,
            ))?;
            Ok(OwnedFd::from_raw_fd(fd))
        }
    })
}

/// `open(2)` of an absolute or cwd-relative path, following symlinks, with `O_CLOEXEC` added.
///
/// # Errors
/// As `open(2)`.
pub fn open_path(path: &[u8], flags: i32) -> Sys<OwnedFd> {
    point()?;
    with_c(path, |p| {
        // SAFETY: as in `openat`.
        unsafe {
            let fd = check(libc::open(p, flags | libc::O_CLOEXEC, 0))?;
            Ok(OwnedFd::from_raw_fd(fd))
        }
    })
}

/// Opens a new descriptor with other `flags` on what `fd` refers to (also an `O_PATH` one), through `/proc/self/fd`.
///
/// # Errors
/// As `open(2)`: permissions of the object are checked anew.
pub fn reopen(fd: BorrowedFd<'_>, flags: i32) -> Sys<OwnedFd> {
    let path = proc_path(fd);
    let flags = flags & !libc::O_NOFOLLOW;
    or_as_owner(open_path(&path, flags), || open_path(&path, flags))
}

/// The `/proc/self/fd/N` path of a descriptor: a magic link to the object itself.
pub fn proc_path(fd: BorrowedFd<'_>) -> Vec<u8> {
    format!("/proc/self/fd/{}", fd.as_raw_fd()).into_bytes()
}

/// `openat2(2)` of the relative `path` with `RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS`: no
/// component may be a symlink and nothing leaves `dir`. An empty path opens `dir` itself.
///
/// # Errors
/// `EXDEV` on an escape, `ELOOP` on a symlink, else as `openat2(2)`.
pub fn open_beneath(dir: BorrowedFd<'_>, path: &[u8], flags: i32, mode: u32) -> Sys<OwnedFd> {
    point()?;
    or_as_owner(beneath(dir, path, flags, mode), || beneath(dir, path, flags, mode))
}

fn beneath(dir: BorrowedFd<'_>, path: &[u8], flags: i32, mode: u32) -> Sys<OwnedFd> {
    #[repr(C)]
    struct OpenHow {
        flags: u64,
        mode: u64,
        resolve: u64,
    }
    const RESOLVE_NO_MAGICLINKS: u64 = 0x02;
    const RESOLVE_NO_SYMLINKS: u64 = 0x04;
    const RESOLVE_BENEATH: u64 = 0x08;
    let creating = flags & (libc::O_CREAT | libc::O_TMPFILE) != 0 && flags & libc::O_PATH == 0;
    let how = OpenHow {
        flags: (flags | libc::O_CLOEXEC | libc::O_NOFOLLOW) as u32 as u64,
        mode: if creating { u64::from(mode) } else { 0 },
        resolve: RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS,
    };
    let path = if path.is_empty() { b"." } else { path };
    with_c(path, |p| {
        loop {
            // SAFETY: `how` and `p` are valid for the call and of the size given.
            let ret = unsafe {
                libc::syscall(libc::SYS_openat2, dir.as_raw_fd(), p, &raw const how, size_of::<OpenHow>())
            };
            match check(ret as libc::c_int) {
                // RESOLVE_BENEATH may ask for a retry when a rename races with it (openat2(2), EAGAIN).
                Err(Errno::EAGAIN) => continue,
                // SAFETY: a non-negative result is a fresh descriptor.
                Ok(fd) => return Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) }),
                Err(e) => return Err(e),
            }
        }
    })
}

/// `statx(2)` of `name` in `dir` without following a symlink; an empty name means `dir` itself.
///
/// # Errors
/// As `statx(2)`.
pub fn stat_at(dir: BorrowedFd<'_>, name: &[u8]) -> Sys<Attr> {
    point()?;
    or_as_owner(statx(dir, name), || statx(dir, name))
}

fn statx(dir: BorrowedFd<'_>, name: &[u8]) -> Sys<Attr> {
    with_c(name, |p| {
        let mut st = MaybeUninit::<libc::statx>::uninit();
        let mask = libc::STATX_BASIC_STATS | libc::STATX_BTIME;
        let flags = libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH | libc::AT_NO_AUTOMOUNT;
        // SAFETY: `st` is written by a successful call and read only then.
        let st = unsafe {
            check(libc::statx(dir.as_raw_fd(), p, flags, mask, st.as_mut_ptr()))?;
            st.assume_init()
        };
        Ok(attr_of(&st))
    })
}

/// `statx(2)` of the object behind `fd`.
///
/// # Errors
/// As `statx(2)`.
pub fn stat(fd: BorrowedFd<'_>) -> Sys<Attr> {
    stat_at(fd, b"")
}

fn attr_of(st: &libc::statx) -> Attr {
    let time = |t: &libc::statx_timestamp| Time { sec: t.tv_sec, nsec: t.tv_nsec };
    let mode = u32::from(st.stx_mode);
    Attr {
        ino: st.stx_ino,
        dev: libc::makedev(st.stx_dev_major, st.stx_dev_minor),
        size: st.stx_size,
        blocks: st.stx_blocks,
        atime: time(&st.stx_atime),
        mtime: time(&st.stx_mtime),
        ctime: time(&st.stx_ctime),
        btime: if st.stx_mask & libc::STATX_BTIME != 0 { time(&st.stx_btime) } else { Time::default() },
        kind: Kind::from_mode(mode),
        perm: mode & 0o7777,
        nlink: st.stx_nlink,
        uid: st.stx_uid,
        gid: st.stx_gid,
        rdev: libc::makedev(st.stx_rdev_major, st.stx_rdev_minor),
        blksize: st.stx_blksize,
    }
}

macro_rules! named {
    ($(#[$doc:meta])* $name:ident($($arg:ident: $ty:ty),*) = $call:ident($($value:expr),*)) => {
        $(#[$doc])*
        ///
        /// # Errors
        /// As the system call of that name.
        pub fn $name(dir: BorrowedFd<'_>, name: &[u8] $(, $arg: $ty)*) -> Sys<()> {
            point()?;
            with_c(name, |p| {
                // SAFETY: `p` is a NUL-terminated string that outlives the call.
                check(unsafe { libc::$call(dir.as_raw_fd(), p, $($value),*) }).map(drop)
            })
        }
    };
}

named!(
    /// `mkdirat(2)`. The umask applies.
    mkdirat(mode: u32) = mkdirat(mode)
);
named!(
    /// `mknodat(2)`; `mode` includes the type. The umask applies.
    mknodat(mode: u32, rdev: u64) = mknodat(mode, rdev)
);
named!(
    /// `unlinkat(2)` of a non-directory.
    unlinkat() = unlinkat(0)
);
named!(
    /// `unlinkat(2)` with `AT_REMOVEDIR`.
    rmdirat() = unlinkat(libc::AT_REMOVEDIR)
);
named!(
    /// `fchmodat(2)`; follows a symlink, so the name must not be one.
    chmodat(mode: u32) = fchmodat(mode, 0)
);
named!(
    /// `fchownat(2)` without following a symlink; `u32::MAX` leaves an id.
    chownat(uid: u32, gid: u32) = fchownat(uid, gid, libc::AT_SYMLINK_NOFOLLOW)
);

/// `fchmod(2)`; works on `O_PATH` descriptors too (through `/proc/self/fd`).
///
/// # Errors
/// As `fchmod(2)`; `EOPNOTSUPP` for a symlink.
pub fn chmod_fd(fd: BorrowedFd<'_>, mode: u32) -> Sys<()> {
    point()?;
    with_c(&proc_path(fd), |p| {
        // SAFETY: `p` is a NUL-terminated string that outlives the call.
        check(unsafe { libc::chmod(p, mode) }).map(drop)
    })
}

/// `fchownat(2)` with `AT_EMPTY_PATH`; `u32::MAX` leaves an id. Works on `O_PATH` descriptors.
///
/// # Errors
/// As `fchown(2)`.
pub fn chown_fd(fd: BorrowedFd<'_>, uid: u32, gid: u32) -> Sys<()> {
    point()?;
    // SAFETY: the empty string is static.
    check(unsafe { libc::fchownat(fd.as_raw_fd(), c"".as_ptr(), uid, gid, libc::AT_EMPTY_PATH) }).map(drop)
}

/// `utimensat(2)` of `name` in `dir` (empty: `dir` itself) without following a symlink; `None` leaves a time.
///
/// # Errors
/// As `utimensat(2)`.
pub fn utimens_at(
    dir: BorrowedFd<'_>,
    name: &[u8],
    atime: Option<SetTime>,
    mtime: Option<SetTime>,
) -> Sys<()> {
    point()?;
    let spec = |t: Option<SetTime>| match t {
        None => libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_OMIT },
        Some(SetTime::Now) => libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_NOW },
        Some(SetTime::At(t)) => libc::timespec { tv_sec: t.sec, tv_nsec: i64::from(t.nsec) },
    };
    let times = [spec(atime), spec(mtime)];
    let flags = libc::AT_SYMLINK_NOFOLLOW | if name.is_empty() { libc::AT_EMPTY_PATH } else { 0 };
    with_c(name, |p| {
        // SAFETY: `times` holds two timespecs; `p` is NUL-terminated.
        check(unsafe { libc::utimensat(dir.as_raw_fd(), p, times.as_ptr(), flags) }).map(drop)
    })
}

/// `symlinkat(2)`: makes `name` in `dir` point to `target`.
///
/// # Errors
/// As `symlinkat(2)`.
pub fn symlinkat(target: &[u8], dir: BorrowedFd<'_>, name: &[u8]) -> Sys<()> {
    point()?;
    with_c(target, |t| {
        with_c(name, |p| {
            // SAFETY: both strings are NUL-terminated and outlive the call.
            check(unsafe { libc::symlinkat(t, dir.as_raw_fd(), p) }).map(drop)
        })
    })
}

/// `readlinkat(2)`: the target of the symlink `name` in `dir` (empty: of the `O_PATH` descriptor itself).
///
/// # Errors
/// As `readlinkat(2)`; `EINVAL` when it is no symlink.
pub fn readlinkat(dir: BorrowedFd<'_>, name: &[u8]) -> Sys<Vec<u8>> {
    point()?;
    with_c(name, |p| {
        let mut buf = vec![0u8; libc::PATH_MAX as usize];
        // SAFETY: the buffer is as long as said.
        let n =
            check_size(unsafe { libc::readlinkat(dir.as_raw_fd(), p, buf.as_mut_ptr().cast(), buf.len()) })?;
        buf.truncate(n);
        buf.shrink_to_fit();
        Ok(buf)
    })
}

/// `linkat(2)` from `name` in `dir` to `to` in `to_dir`, without following a symlink.
///
/// # Errors
/// As `linkat(2)`.
pub fn linkat(dir: BorrowedFd<'_>, name: &[u8], to_dir: BorrowedFd<'_>, to: &[u8]) -> Sys<()> {
    point()?;
    with_c(name, |p| {
        with_c(to, |q| {
            // SAFETY: both strings are NUL-terminated and outlive the call.
            check(unsafe { libc::linkat(dir.as_raw_fd(), p, to_dir.as_raw_fd(), q, 0) }).map(drop)
        })
    })
}

/// Gives the object behind `fd` the name `to` in `to_dir` (`linkat(2)` through `/proc/self/fd`).
///
/// # Errors
/// As `linkat(2)`; `ENOENT` when its last name is gone (unless it was made with `O_TMPFILE`).
pub fn link_fd(fd: BorrowedFd<'_>, to_dir: BorrowedFd<'_>, to: &[u8]) -> Sys<()> {
    point()?;
    with_c(&proc_path(fd), |p| {
        with_c(to, |q| {
            // SAFETY: both strings are NUL-terminated and outlive the call.
            check(unsafe { libc::linkat(libc::AT_FDCWD, p, to_dir.as_raw_fd(), q, libc::AT_SYMLINK_FOLLOW) })
                .map(drop)
        })
    })
}

/// `renameat2(2)`; `flags` are `RENAME_NOREPLACE`, `RENAME_EXCHANGE` or `RENAME_WHITEOUT`.
///
/// # Errors
/// As `renameat2(2)`.
pub fn renameat(dir: BorrowedFd<'_>, name: &[u8], to_dir: BorrowedFd<'_>, to: &[u8], flags: u32) -> Sys<()> {
    point()?;
    with_c(name, |p| {
        with_c(to, |q| {
            // SAFETY: both strings are NUL-terminated and outlive the call.
            check(unsafe { libc::renameat2(dir.as_raw_fd(), p, to_dir.as_raw_fd(), q, flags) }).map(drop)
        })
    })
}

/// `faccessat(2)` with the effective ids: whether we may do `mode` (`R_OK | W_OK | X_OK`) to `name` in `dir`.
///
/// # Errors
/// `EACCES` when not, else as `faccessat2(2)`.
pub fn access_at(dir: BorrowedFd<'_>, name: &[u8], mode: i32) -> Sys<()> {
    point()?;
    with_c(name, |p| {
        let flags = libc::AT_EACCESS | libc::AT_SYMLINK_NOFOLLOW;
        // SAFETY: `p` is NUL-terminated.
        check(unsafe { libc::faccessat(dir.as_raw_fd(), p, mode, flags) }).map(drop)
    })
}

/// `fstatvfs`-like figures of the file system that holds `fd`.
#[derive(Clone, Copy, Debug)]
pub struct FsStat {
    /// Blocks of `frsize` bytes in all.
    pub blocks: u64,
    /// Free blocks.
    pub bfree: u64,
    /// Free blocks for an unprivileged user.
    pub bavail: u64,
    /// Inodes in all.
    pub files: u64,
    /// Free inodes.
    pub ffree: u64,
    /// Block size for I/O, bytes.
    pub bsize: u32,
    /// Fragment size, bytes.
    pub frsize: u32,
    /// Longest name, bytes.
    pub namelen: u32,
    /// `f_type` magic (statfs(2)).
    pub magic: i64,
}

/// `fstatfs(2)`.
///
/// # Errors
/// As `fstatfs(2)`.
pub fn statfs(fd: BorrowedFd<'_>) -> Sys<FsStat> {
    point()?;
    let mut st = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: `st` is written by a successful call and read only then.
    let st = unsafe {
        check(libc::fstatfs(fd.as_raw_fd(), st.as_mut_ptr()))?;
        st.assume_init()
    };
    let bsize = u32::try_from(st.f_bsize).unwrap_or(4096);
    let frsize = u32::try_from(st.f_frsize).unwrap_or(bsize);
    Ok(FsStat {
        blocks: st.f_blocks,
        bfree: st.f_bfree,
        bavail: st.f_bavail,
        files: st.f_files,
        ffree: st.f_ffree,
        bsize,
        frsize: if frsize == 0 { bsize } else { frsize },
        namelen: u32::try_from(st.f_namelen).unwrap_or(255),
        magic: st.f_type as i64,
    })
}

/// `umask(2)`: sets the process's mask and returns the former.
pub fn umask(mask: u32) -> u32 {
    // SAFETY: the call has no preconditions.
    unsafe { libc::umask(mask) }
}
