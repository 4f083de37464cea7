//! Attributes, errors and callers in the words of the protocol.

use crate::base::{Attr, Errno, Kind, SetTime, Time};
use crate::union::{Caller, Notify};
use fuser::{FileAttr, FileType, INodeNo, Notifier, Request, TimeOrNow};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub(super) fn errno(e: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(e.0)
}

pub(super) fn caller(req: &Request, umask: u32) -> Caller {
    Caller { uid: req.uid(), gid: req.gid(), pid: req.pid(), umask }
}

fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Dir => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Fifo => FileType::NamedPipe,
        Kind::Socket => FileType::Socket,
        Kind::Char => FileType::CharDevice,
        Kind::Block => FileType::BlockDevice,
    }
}

fn system_time(t: Time) -> SystemTime {
    let nsec = Duration::from_nanos(u64::from(t.nsec));
    if t.sec >= 0 {
        UNIX_EPOCH + Duration::from_secs(t.sec.unsigned_abs()) + nsec
    } else {
        UNIX_EPOCH - Duration::from_secs(t.sec.unsigned_abs()) + nsec
    }
}

pub(super) fn set_time(t: TimeOrNow) -> SetTime {
    match t {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(t) => SetTime::At(match t.duration_since(UNIX_EPOCH) {
            Ok(after) => Time { sec: after.as_secs() as i64, nsec: after.subsec_nanos() },
            // Before the epoch, fuser takes seconds and nanoseconds (which count upwards) both backwards (its
            // `system_time_from_time`); so the two are as the kernel sent them.
            Err(before) => {
                let sent = before.duration();
                Time { sec: -(sent.as_secs() as i64), nsec: sent.subsec_nanos() }
            }
        }),
    }
}

pub(super) fn attr(a: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(a.ino),
        size: a.size,
        blocks: a.blocks,
        atime: system_time(a.atime),
        mtime: system_time(a.mtime),
        ctime: system_time(a.ctime),
        crtime: UNIX_EPOCH,
        kind: file_type(a.kind),
        perm: a.perm as u16,
        nlink: a.nlink,
        uid: a.uid,
        gid: a.gid,
        rdev: kernel_dev(a.rdev),
        blksize: a.blksize,
        flags: 0,
    }
}

/// The kernel's 32-bit form of a device number (`new_encode_dev`, linux/kdev_t.h).
fn kernel_dev(dev: u64) -> u32 {
    let (major, minor) = (libc::major(dev), libc::minor(dev));
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

/// The C library's form of what [`kernel_dev`] encodes.
pub(super) fn host_dev(dev: u32) -> u64 {
    let major = (dev >> 8) & 0xfff;
    let minor = (dev & 0xff) | ((dev >> 12) & 0xfff00);
    libc::makedev(major, minor)
}

/// The kernel's caches, behind the union's trait.
pub(super) struct KernelCaches(pub Notifier);

impl Notify for KernelCaches {
    fn entry(&self, parent: u64, name: &[u8]) {
        if let Err(e) = self.0.inval_entry(INodeNo(parent), OsStr::from_bytes(name)) {
            tracing::debug!("the kernel did not drop a name: {e}");
        }
    }

    fn inode(&self, id: u64) {
        if let Err(e) = self.0.inval_inode(INodeNo(id), 0, 0) {
            tracing::debug!("the kernel did not drop an inode: {e}");
        }
    }
}
