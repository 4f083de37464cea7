//! Owner, mode and type that are kept in an extended attribute instead of in the object: what container tools write
//! where they may not change owners.
//!
//! The value is `UID:GID:MODE[:TYPE]`, ids decimal, mode octal; TYPE is `file`, `dir`, `symlink`, `pipe`, `socket`,
//! `block-MAJOR-MINOR` or `char-MAJOR-MINOR` (containers/storage, pkg/idtools). What is no file, directory or symlink is
//! on disk an empty regular file, since nothing else can have `user.` attributes (xattr(7)).

use crate::base::{Attr, Errno, Kind, Sys};
use crate::sys::{file, xattr};
use std::os::fd::{AsFd, BorrowedFd};

/// In which extended attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatXattr {
    /// One that the owner of a file or directory may set.
    User,
    /// One that only root may set, then on everything.
    Security,
}

/// What unprivileged tools write, and what fuse-overlayfs before 1.14 wrote.
const USER: &[&[u8]] = &[b"user.containers.override_stat", b"user.fuseoverlayfs.override_stat"];
const SECURITY: &[&[u8]] = &[b"security.fuseoverlayfs.override_stat"];

/// Whether `name` is one of these attributes.
pub fn is_stat_xattr(name: &[u8]) -> bool {
    USER.contains(&name) || SECURITY.contains(&name)
}

impl StatXattr {
    /// The names to read, the one that counts first; that one is written.
    fn names(self) -> &'static [&'static [u8]] {
        match self {
            StatXattr::User => USER,
            StatXattr::Security => SECURITY,
        }
    }

    /// The name that is written.
    pub fn name(self) -> &'static [u8] {
        self.names()[0]
    }

    /// Which one the root directory of a layer has, as far as we may read it: what wrote the layer marked all of it so.
    ///
    /// # Errors
    /// As `getxattr(2)`.
    pub fn of_layer(root: BorrowedFd<'_>) -> Sys<Option<StatXattr>> {
        for which in [StatXattr::User, StatXattr::Security] {
            for name in which.names() {
                match xattr::get(root, name) {
                    Ok(Some(_)) => return Ok(Some(which)),
                    Ok(None) | Err(Errno::EACCES) => {}
                    Err(e) => return Err(e),
                }
            }
        }
        Ok(None)
    }

    /// Whether an object that is of this kind on disk can have it.
    pub fn holds(self, on_disk: Kind) -> bool {
        self == StatXattr::Security || matches!(on_disk, Kind::File | Kind::Dir)
    }

    /// What an object of this kind is on disk.
    pub fn disk_kind(self, kind: Kind) -> Kind {
        match kind {
            Kind::Fifo | Kind::Socket | Kind::Char | Kind::Block if self == StatXattr::User => Kind::File,
            kind => kind,
        }
    }

    /// `attr`, which is that of `name` in `dir` (or, with an empty name, of `dir`), as the attribute says. An object
    /// without one, or with one that makes no sense or may not be read, is what it is.
    ///
    /// # Errors
    /// As `getxattr(2)`.
    pub fn read(self, dir: BorrowedFd<'_>, name: &[u8], attr: Attr) -> Sys<Attr> {
        if !self.holds(attr.kind) {
            return Ok(attr);
        }
        for which in self.names() {
            let value =
                if name.is_empty() { xattr::get(dir, which) } else { xattr::get_at(dir, name, which) };
            match value {
                Ok(Some(value)) => return Ok(decode(&value, &attr).unwrap_or(attr)),
                Ok(None) => {}
                Err(Errno::EACCES) => return Ok(attr),
                Err(e) => return Err(e),
            }
        }
        Ok(attr)
    }

    /// Notes owner, mode and type of `attr` on the object `name` in `dir` (or, with an empty name, on `dir`). What its
    /// mode on disk keeps its owner from is granted for good.
    ///
    /// # Errors
    /// As `setxattr(2)` and `chmod(2)`.
    pub fn write(self, dir: BorrowedFd<'_>, name: &[u8], attr: &Attr) -> Sys<()> {
        let own;
        let fd = if name.is_empty() {
            dir
        } else {
            own = file::openat(dir, name, libc::O_PATH, 0)?;
            own.as_fd()
        };
        let disk = file::stat(fd)?;
        let value = encode(attr, self.disk_kind(attr.kind) != attr.kind);
        let granted = disk.perm | disk_perm(disk.kind, 0);
        if self == StatXattr::User && granted != disk.perm {
            file::chmod_fd(fd, granted)?;
        }
        xattr::set(fd, self.name(), &value, 0)?;
        for other in &self.names()[1..] {
            if xattr::get(fd, other)?.is_some() {
                xattr::remove(fd, other)?;
            }
        }
        Ok(())
    }
}

/// The permission bits on disk of an object whose own are in the attribute: all that its owner needs, nothing for
/// others, and no set-uid.
pub fn disk_perm(on_disk: Kind, perm: u32) -> u32 {
    perm & 0o700 | if on_disk == Kind::Dir { 0o700 } else { 0o600 }
}

fn encode(attr: &Attr, with_type: bool) -> Vec<u8> {
    let mut value = format!("{}:{}:{:04o}", attr.uid, attr.gid, attr.perm);
    if with_type {
        let device = |kind| format!(":{kind}-{}-{}", libc::major(attr.rdev), libc::minor(attr.rdev));
        value += &match attr.kind {
            Kind::Fifo => ":pipe".to_owned(),
            Kind::Socket => ":socket".to_owned(),
            Kind::Char => device("char"),
            Kind::Block => device("block"),
            Kind::File => ":file".to_owned(),
            Kind::Dir => ":dir".to_owned(),
            Kind::Symlink => ":symlink".to_owned(),
        };
    }
    value.into_bytes()
}

/// `disk` with what `value` says; `None` for a value that nobody wrote so.
fn decode(value: &[u8], disk: &Attr) -> Option<Attr> {
    let mut parts = std::str::from_utf8(value).ok()?.split(':');
    let (uid, gid) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let mode = u32::from_str_radix(parts.next()?, 8).ok()?;
    let mut attr = Attr { uid, gid, perm: mode & 0o7777, ..*disk };
    if disk.kind == Kind::File
        && let Some((kind, rdev)) = parts.next().and_then(special)
    {
        (attr.kind, attr.rdev, attr.size) = (kind, rdev, 0);
    }
    Some(attr)
}

/// The kind and device number of what is a regular file on disk only.
fn special(text: &str) -> Option<(Kind, u64)> {
    let mut words = text.split('-');
    let kind = match words.next()? {
        "pipe" => return Some((Kind::Fifo, 0)),
        "socket" => return Some((Kind::Socket, 0)),
        "char" => Kind::Char,
        "block" => Kind::Block,
        _ => return None,
    };
    Some((kind, libc::makedev(words.next()?.parse().ok()?, words.next()?.parse().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Time;
    use proptest::prelude::*;

    fn disk(kind: Kind) -> Attr {
        let t = Time::default();
        Attr {
            ino: 7,
            dev: 8,
            size: 9,
            blocks: 1,
            atime: t,
            mtime: t,
            ctime: t,
            btime: t,
            kind,
            perm: 0o600,
            nlink: 1,
            uid: 1000,
            gid: 1001,
            rdev: 0,
            blksize: 4096,
        }
    }

    #[test]
    fn what_container_tools_write_is_understood() {
        let told = |value: &[u8]| {
            let attr = decode(value, &disk(Kind::File))?;
            Some((attr.uid, attr.gid, attr.mode(), attr.rdev))
        };
        assert_eq!(told(b"0:5:0640"), Some((0, 5, 0o100_640, 0)));
        assert_eq!(told(b"0:5:104711"), Some((0, 5, 0o104_711, 0)));
        assert_eq!(told(b"1:2:0600:file"), Some((1, 2, 0o100_600, 0)));
        assert_eq!(told(b"1:2:0600:pipe"), Some((1, 2, 0o010_600, 0)));
        assert_eq!(told(b"1:2:0600:char-1-3"), Some((1, 2, 0o020_600, libc::makedev(1, 3))));
        assert_eq!(told(b"1:2:0600:block-8-17-more:more"), Some((1, 2, 0o060_600, libc::makedev(8, 17))));
        // Nothing on disk becomes a directory or a symlink by an attribute.
        assert_eq!(told(b"1:2:0700:dir"), Some((1, 2, 0o100_700, 0)));
        assert_eq!(told(b"1:2:0777:symlink"), Some((1, 2, 0o100_777, 0)));
        for bad in ["", "1:2", "1:2:9", "a:2:644", "1:-2:644", "4294967296:0:644"] {
            assert_eq!(told(bad.as_bytes()), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(uid: u32, gid: u32, perm in 0u32..0o10000, n in 1u8..8, major in 0u32..4096, minor in 0u32..1 << 20) {
            let kind = Kind::from_u8(n).unwrap();
            let rdev = if matches!(kind, Kind::Char | Kind::Block) { libc::makedev(major, minor) } else { 0 };
            for which in [StatXattr::User, StatXattr::Security] {
                let on_disk = disk(which.disk_kind(kind));
                let typed = on_disk.kind != kind;
                let attr = Attr { uid, gid, perm, kind, rdev, size: if typed { 0 } else { 9 }, ..on_disk };
                let on_disk = if typed { on_disk } else { Attr { rdev, ..on_disk } };
                prop_assert_eq!(decode(&encode(&attr, typed), &on_disk), Some(attr));
            }
        }

        #[test]
        fn hostile_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            decode(&bytes, &disk(Kind::File));
        }
    }
}
