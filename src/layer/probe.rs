//! What the file system under an upper can do, found out by trying in the work directory.

use crate::base::{Errno, Sys};
use crate::sys::{data, file, xattr};
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, BorrowedFd};

/// How a whiteout is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WhiteoutForm {
    /// Character device 0:0.
    Device,
    /// An empty file `.wh.NAME`.
    Prefix,
}

/// What an upper's file system can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Features {
    /// Whiteouts as devices, or as prefixed files.
    pub whiteout: WhiteoutForm,
    /// `user.` xattrs on files and directories.
    pub xattr: bool,
    /// `FICLONE`.
    pub reflink: bool,
}

/// Tries each feature in `work`, a directory of our own on the upper's file system, and leaves nothing behind.
///
/// # Errors
/// `EACCES`, `EROFS`, `ENOSPC` and the like when nothing can be made there.
pub fn probe(work: BorrowedFd<'_>) -> Sys<Features> {
    const A: &[u8] = b"probe.a";
    const B: &[u8] = b"probe.b";
    for name in [A, B] {
        match file::unlinkat(work, name) {
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(e) => return Err(e),
        }
    }
    let whiteout = match file::mknodat(work, A, libc::S_IFCHR, 0) {
        Ok(()) => {
            file::unlinkat(work, A)?;
            WhiteoutForm::Device
        }
        Err(Errno::EPERM | Errno::EOPNOTSUPP | Errno::EINVAL) => WhiteoutForm::Prefix,
        Err(e) => return Err(e),
    };
    let flags = libc::O_CREAT | libc::O_EXCL | libc::O_RDWR;
    let a = file::openat(work, A, flags, 0o600)?;
    let b = file::openat(work, B, flags, 0o600)?;
    data::pwrite_all(a.as_fd(), b"x", 0)?;
    let reflink = data::clone_file(a.as_fd(), b.as_fd()).is_ok();
    let xattr = xattr::set(a.as_fd(), super::X_BASE, b"x", 0).is_ok();
    file::unlinkat(work, A)?;
    file::unlinkat(work, B)?;
    Ok(Features { whiteout, xattr, reflink })
}
