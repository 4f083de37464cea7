//! Attributes of a file as `statx(2)` gives them, and changes to them.

use serde::{Deserialize, Serialize};

/// The type of a file, as in `st_mode & S_IFMT` (inode(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum Kind {
    /// Regular file.
    File = 1,
    /// Directory.
    Dir = 2,
    /// Symbolic link.
    Symlink = 3,
    /// Named pipe.
    Fifo = 4,
    /// Unix domain socket.
    Socket = 5,
    /// Character device.
    Char = 6,
    /// Block device.
    Block = 7,
}

impl Kind {
    /// From the `S_IFMT` bits of a mode; an unknown type counts as a regular file.
    pub fn from_mode(mode: u32) -> Kind {
        match mode & libc::S_IFMT {
            libc::S_IFDIR => Kind::Dir,
            libc::S_IFLNK => Kind::Symlink,
            libc::S_IFIFO => Kind::Fifo,
            libc::S_IFSOCK => Kind::Socket,
            libc::S_IFCHR => Kind::Char,
            libc::S_IFBLK => Kind::Block,
            _ => Kind::File,
        }
    }

    /// From the number a record holds; `None` for one that no kind has.
    pub fn from_u8(n: u8) -> Option<Kind> {
        [Kind::File, Kind::Dir, Kind::Symlink, Kind::Fifo, Kind::Socket, Kind::Char, Kind::Block]
            .into_iter()
            .find(|k| *k as u8 == n)
    }

    /// The `S_IFMT` bits.
    pub fn mode_bits(self) -> u32 {
        match self {
            Kind::File => libc::S_IFREG,
            Kind::Dir => libc::S_IFDIR,
            Kind::Symlink => libc::S_IFLNK,
            Kind::Fifo => libc::S_IFIFO,
            Kind::Socket => libc::S_IFSOCK,
            Kind::Char => libc::S_IFCHR,
            Kind::Block => libc::S_IFBLK,
        }
    }

    /// The word for it in messages.
    pub fn word(self) -> &'static str {
        match self {
            Kind::File => "file",
            Kind::Dir => "directory",
            Kind::Symlink => "symlink",
            Kind::Fifo => "fifo",
            Kind::Socket => "socket",
            Kind::Char => "character device",
            Kind::Block => "block device",
        }
    }
}

/// A point in time as the kernel stores it: seconds since the epoch and nanoseconds (0 to 999,999,999).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Time {
    /// Seconds since 1970-01-01 UTC, may be negative.
    pub sec: i64,
    /// Nanoseconds within the second.
    pub nsec: u32,
}

impl Time {
    /// As a decimal number of seconds.
    pub fn decimal(self) -> String {
        match (self.sec, self.nsec) {
            (sec, 0) => sec.to_string(),
            (sec @ 0.., nsec) => format!("{sec}.{nsec:09}"),
            (sec, nsec) => format!("-{}.{:09}", (sec + 1).unsigned_abs(), 1_000_000_000 - nsec),
        }
    }
}

/// Attributes of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attr {
    /// Inode number.
    pub ino: u64,
    /// Device the inode lives on, `makedev` form.
    pub dev: u64,
    /// Size in bytes.
    pub size: u64,
    /// Allocated 512-byte blocks.
    pub blocks: u64,
    /// Last access.
    pub atime: Time,
    /// Last change of content.
    pub mtime: Time,
    /// Last change of the inode.
    pub ctime: Time,
    /// Birth, where the file system keeps one (else zero).
    pub btime: Time,
    /// File type.
    pub kind: Kind,
    /// Permission bits with set-uid, set-gid and sticky: `mode & 0o7777`.
    pub perm: u32,
    /// Number of hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node, `makedev` form.
    pub rdev: u64,
    /// Preferred block size.
    pub blksize: u32,
}

impl Attr {
    /// Type and permissions together, as `st_mode`.
    pub fn mode(&self) -> u32 {
        self.kind.mode_bits() | self.perm
    }

    /// Whether this is an overlay whiteout: a character device 0:0 (Documentation/filesystems/overlayfs.rst).
    pub fn is_whiteout(&self) -> bool {
        self.kind == Kind::Char && self.rdev == 0
    }
}

/// A time to set: now, or a given one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// `UTIME_NOW`.
    Now,
    /// This time.
    At(Time),
}

/// A change of attributes; what is `None` stays (`UTIME_OMIT` for times).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// New permission bits (`mode & 0o7777`).
    pub perm: Option<u32>,
    /// New owner.
    pub uid: Option<u32>,
    /// New group.
    pub gid: Option<u32>,
    /// New size in bytes.
    pub size: Option<u64>,
    /// New access time.
    pub atime: Option<SetTime>,
    /// New modification time.
    pub mtime: Option<SetTime>,
}
