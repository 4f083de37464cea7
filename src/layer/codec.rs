//! The xattrs of a layer, encoded and decoded.

use crate::base::{BaseId, Errno, Kind, RelPath, Sys, Time};
use crate::sys::{file, xattr};
use std::os::fd::BorrowedFd;

/// Every xattr of the union's own begins so; hidden from the merged view.
pub const X_PREFIX: &[u8] = b"user.overlay.";
/// The privileged twin that the kernel's overlay uses; hidden too.
pub const X_TRUSTED: &[u8] = b"trusted.overlay.";
/// fuse-overlayfs's own.
pub const X_FUSE: &[u8] = b"user.fuseoverlayfs.";
/// `y` on a directory that hides what lies below it.
pub const X_OPAQUE: &[u8] = b"user.overlay.opaque";
const X_TRUSTED_OPAQUE: &[u8] = b"trusted.overlay.opaque";
/// In each form that somebody writes: ours and unprivileged overlayfs's, root's overlayfs, fuse-overlayfs.
const OPAQUE_MARKS: &[&[u8]] = &[X_OPAQUE, X_TRUSTED_OPAQUE, b"user.fuseoverlayfs.opaque"];
const REDIRECT_MARKS: &[&[u8]] = &[X_REDIRECT, b"trusted.overlay.redirect"];
/// Where below a renamed directory's content lies: `/path/from/the/layer's/root`, or a bare name beside it.
pub const X_REDIRECT: &[u8] = b"user.overlay.redirect";
/// overlayfs's own origin mark (a file handle). We do not write it, only hide it.
pub const X_ORIGIN: &[u8] = b"user.overlay.origin";
/// Ours: an encoded [`Origin`].
pub const X_BASE: &[u8] = b"user.overlay.sbx.base";
/// Prefix of a whiteout in its file form, as image layers and fuse-overlayfs use it.
pub const WH_PREFIX: &[u8] = b".wh.";
/// The file that marks its directory opaque in that form.
pub const WH_OPAQUE: &[u8] = b".wh..wh..opq";

/// Where a copied-up object came from and what it was then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Its path below the top lower's root.
    pub path: RelPath,
    /// Its identity at copy-up.
    pub base: BaseId,
    /// Birth time of the lower inode; tells a reused inode number apart.
    pub btime: Time,
}

const VERSION: u8 = 1;

impl Origin {
    /// The xattr's value. Layout, little endian: version u8, kind u8, perm u16, uid u32, gid u32, size u64, dev u64,
    /// ino u64, nlink u32, mtime, ctime, btime (i64 + u32 each), has-hash u8, hash 32 bytes if so, then the path.
    pub fn encode(&self) -> Vec<u8> {
        let b = &self.base;
        let mut out = Vec::with_capacity(112 + self.path.as_bytes().len());
        out.extend([VERSION, b.kind as u8]);
        out.extend((b.perm as u16).to_le_bytes());
        out.extend(b.uid.to_le_bytes());
        out.extend(b.gid.to_le_bytes());
        for n in [b.size, b.dev, b.ino] {
            out.extend(n.to_le_bytes());
        }
        out.extend(b.nlink.to_le_bytes());
        for t in [b.mtime, b.ctime, self.btime] {
            out.extend(t.sec.to_le_bytes());
            out.extend(t.nsec.to_le_bytes());
        }
        out.push(u8::from(b.hash.is_some()));
        out.extend(b.hash.iter().flatten());
        out.extend(self.path.as_bytes());
        out
    }

    /// The inverse of [`Origin::encode`]; `None` for bytes that it did not write.
    pub fn decode(bytes: &[u8]) -> Option<Origin> {
        let mut at = Cursor(bytes);
        if at.u8()? != VERSION {
            return None;
        }
        let kind = Kind::from_u8(at.u8()?)?;
        let perm = u32::from(u16::from_le_bytes(at.take()?));
        let (uid, gid) = (at.u32()?, at.u32()?);
        let (size, dev, ino) = (at.u64()?, at.u64()?, at.u64()?);
        let nlink = at.u32()?;
        let (mtime, ctime, btime) = (at.time()?, at.time()?, at.time()?);
        let hash = match at.u8()? {
            0 => None,
            1 => Some(at.take()?),
            _ => return None,
        };
        let path = RelPath::new(at.0).ok()?;
        let base = BaseId { kind, perm, uid, gid, size, dev, ino, nlink, mtime, ctime, hash };
        Some(Origin { path, base, btime })
    }
}

struct Cursor<'a>(&'a [u8]);

impl Cursor<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }
    fn u8(&mut self) -> Option<u8> {
        self.take::<1>().map(|b| b[0])
    }
    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }
    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }
    fn time(&mut self) -> Option<Time> {
        Some(Time { sec: self.u64()? as i64, nsec: self.u32()? })
    }
}

/// Whether the merged view hides this xattr.
pub fn is_private(name: &[u8]) -> bool {
    name.starts_with(X_PREFIX) || name.starts_with(X_TRUSTED) || name.starts_with(X_FUSE)
}

/// What the marks on a directory say about the layers below it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// Nothing of them shows through.
    pub opaque: bool,
    /// Where in them its content lies, when that is not its own path.
    pub redirect: Option<RelPath>,
}

/// The marks on the directory `name` in `dir`, whose own content below lies at `parent`; with `prefixed`, an opaque
/// mark in the file form counts too.
///
/// # Errors
/// `EIO` for a redirect that is no path, else as `llistxattr(2)` and `statx(2)`.
pub fn marks_at(dir: BorrowedFd<'_>, name: &[u8], parent: &RelPath, prefixed: bool) -> Sys<Marks> {
    let mut marks = Marks::default();
    // Most directories carry none: one call tells.
    for found in xattr::list_at(dir, name)? {
        if OPAQUE_MARKS.contains(&found.as_slice()) {
            marks.opaque |= xattr::get_at(dir, name, &found)?.is_some_and(|v| v == b"y");
        } else if REDIRECT_MARKS.contains(&found.as_slice()) && marks.redirect.is_none() {
            marks.redirect = resolve_redirect(xattr::get_at(dir, name, &found)?, parent)?;
        }
    }
    if prefixed && !marks.opaque {
        marks.opaque = has(dir, &[name, b"/", WH_OPAQUE].concat())?;
    }
    Ok(marks)
}

/// Whether an xattr marks the directory behind `fd` as opaque.
///
/// # Errors
/// As `getxattr(2)` other than `ENODATA` and `EOPNOTSUPP`.
pub fn is_opaque(fd: BorrowedFd<'_>) -> Sys<bool> {
    for mark in OPAQUE_MARKS {
        if xattr::get(fd, mark)?.is_some_and(|v| v == b"y") {
            return Ok(true);
        }
    }
    Ok(false)
}

fn has(dir: BorrowedFd<'_>, name: &[u8]) -> Sys<bool> {
    match file::stat_at(dir, name) {
        Ok(_) => Ok(true),
        Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ENAMETOOLONG) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Marks the directory behind `fd` opaque: for overlayfs in its unprivileged form and fuse-overlayfs, and where we
/// have the privilege for overlayfs as root mounts it; by a file where the file system knows no xattrs.
///
/// # Errors
/// As `setxattr(2)`, or as making the file.
pub fn set_opaque(fd: BorrowedFd<'_>) -> Sys<()> {
    match xattr::set(fd, X_OPAQUE, b"y", 0) {
        Ok(()) => {}
        Err(Errno::EOPNOTSUPP) => {
            return file::openat(fd, WH_OPAQUE, libc::O_CREAT | libc::O_WRONLY, 0o600).map(drop);
        }
        Err(e) => return Err(e),
    }
    match xattr::set(fd, X_TRUSTED_OPAQUE, b"y", 0) {
        Ok(()) | Err(Errno::EPERM | Errno::EOPNOTSUPP) => Ok(()),
        Err(e) => Err(e),
    }
}

/// Takes every xattr that marks the directory behind `fd` as opaque away.
///
/// # Errors
/// As `removexattr(2)` on one that is there.
pub fn clear_opaque(fd: BorrowedFd<'_>) -> Sys<()> {
    for mark in OPAQUE_MARKS {
        if xattr::get(fd, mark)?.is_some() {
            xattr::remove(fd, mark)?;
        }
    }
    Ok(())
}

/// Where the content below the directory `fd`, whose parent's content lies at `parent`, is to be found: the redirect
/// it carries, resolved; `None` when it carries none.
///
/// # Errors
/// `EIO` for a redirect that is no path, else as `getxattr(2)`.
pub fn read_redirect(fd: BorrowedFd<'_>, parent: &RelPath) -> Sys<Option<RelPath>> {
    resolve_redirect(xattr::get(fd, X_REDIRECT)?, parent)
}

/// What the `value` of a redirect, on a directory whose parent's content lies at `parent`, leads to.
///
/// # Errors
/// `EIO` for a redirect that is no path.
pub fn resolve_redirect(value: Option<Vec<u8>>, parent: &RelPath) -> Sys<Option<RelPath>> {
    let Some(value) = value else {
        return Ok(None);
    };
    let path = match value.strip_prefix(b"/") {
        Some(absolute) => RelPath::new(absolute),
        None if value.contains(&b'/') => Err(Errno::EIO),
        None => RelPath::new(&value).map(|name| parent.join(name.as_bytes())),
    };
    path.map(Some).map_err(|_| Errno::EIO)
}

/// Notes on the directory behind `fd` that its content below lies at `path` from the layer's root.
///
/// # Errors
/// As `setxattr(2)`.
pub fn write_redirect(fd: BorrowedFd<'_>, path: &RelPath) -> Sys<()> {
    xattr::set(fd, X_REDIRECT, &[b"/", path.as_bytes()].concat(), 0)
}

/// The origin noted on the object behind `fd`, if any.
///
/// # Errors
/// As `getxattr(2)` other than `ENODATA` and `EOPNOTSUPP`.
pub fn read_origin(fd: BorrowedFd<'_>) -> Sys<Option<Origin>> {
    Ok(xattr::get(fd, X_BASE)?.as_deref().and_then(Origin::decode))
}

/// Notes `origin` on the object behind `fd`; false where the object cannot hold user xattrs (a symlink, fifo or
/// device, or a file system without them; xattr(7)).
///
/// # Errors
/// As `setxattr(2)` otherwise.
pub fn write_origin(fd: BorrowedFd<'_>, origin: &Origin) -> Sys<bool> {
    match xattr::set(fd, X_BASE, &origin.encode(), 0) {
        Ok(()) => Ok(true),
        Err(Errno::EPERM | Errno::EOPNOTSUPP) => Ok(false),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn decoding_hostile_bytes_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            Origin::decode(&bytes);
        }

        #[test]
        fn an_origin_survives_its_encoding(ino: u64, size: u64, sec: i64, nsec in 0u32..1_000_000_000, hashed: bool) {
            let t = Time { sec, nsec };
            let base = BaseId {
                kind: Kind::File, perm: 0o4755, uid: 7, gid: 8, size, dev: 2049, ino, nlink: 3,
                mtime: t, ctime: t, hash: hashed.then_some([7; 32]),
            };
            let origin = Origin { path: RelPath::new(b"a/\xff/b").unwrap(), base, btime: t };
            prop_assert_eq!(Origin::decode(&origin.encode()), Some(origin));
        }
    }
}
