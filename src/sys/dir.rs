//! Listing a directory with `getdents64(2)`.

use super::check_size;
use super::fault::point;
use crate::base::{Kind, Sys};
use std::os::fd::{AsRawFd, BorrowedFd};

/// One entry of a directory.
#[derive(Clone, Debug)]
pub struct DirEntry {
    /// The name; never `.` or `..`.
    pub name: Box<[u8]>,
    /// Inode number as the directory holds it.
    pub ino: u64,
    /// Type, where the file system tells it here.
    pub kind: Option<Kind>,
}

/// Calls `each` for every entry of the directory `fd` (open for reading) but `.` and `..`, from the start.
///
/// # Errors
/// As `getdents64(2)`, or what `each` returns.
pub fn list(fd: BorrowedFd<'_>, mut each: impl FnMut(&[u8], u64, Option<Kind>) -> Sys<()>) -> Sys<()> {
    super::data::lseek(fd, 0, libc::SEEK_SET)?;
    let mut buf = vec![0u8; 64 << 10];
    loop {
        point()?;
        // SAFETY: the buffer is as long as said.
        let ret = unsafe { libc::syscall(libc::SYS_getdents64, fd.as_raw_fd(), buf.as_mut_ptr(), buf.len()) };
        let n = check_size(ret as isize)?;
        if n == 0 {
            return Ok(());
        }
        let mut rest = &buf[..n];
        // struct linux_dirent64 (getdents64(2)): ino u64, off i64, reclen u16, type u8, name.
        while rest.len() > 19 {
            let ino = u64::from_ne_bytes(rest[0..8].try_into().unwrap_or_default());
            let len = usize::from(u16::from_ne_bytes(rest[16..18].try_into().unwrap_or_default()));
            let kind = kind_of(rest[18]);
            let name = rest[19..len].split(|&b| b == 0).next().unwrap_or_default();
            if name != b"." && name != b".." {
                each(name, ino, kind)?;
            }
            rest = &rest[len..];
        }
    }
}

/// All entries of the directory `fd` (open for reading), in the file system's order.
///
/// # Errors
/// As `getdents64(2)`.
pub fn entries(fd: BorrowedFd<'_>) -> Sys<Vec<DirEntry>> {
    let mut all = Vec::new();
    list(fd, |name, ino, kind| {
        all.push(DirEntry { name: name.into(), ino, kind });
        Ok(())
    })?;
    Ok(all)
}

fn kind_of(d_type: u8) -> Option<Kind> {
    Some(match d_type {
        libc::DT_REG => Kind::File,
        libc::DT_DIR => Kind::Dir,
        libc::DT_LNK => Kind::Symlink,
        libc::DT_FIFO => Kind::Fifo,
        libc::DT_SOCK => Kind::Socket,
        libc::DT_CHR => Kind::Char,
        libc::DT_BLK => Kind::Block,
        _ => return None,
    })
}
