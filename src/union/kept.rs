//! Owner, mode and type that a layer keeps in an attribute (see [`StatXattr`]): shown instead of the object's own, and
//! written instead of them.

use super::file::without_suid;
use super::lookup::At;
use super::node::Node;
use super::xattr::ACL_PREFIX;
use super::{Caller, LayerConfig, Stats, Union};
use crate::base::{Attr, Errno, Error, Kind, Result, SetAttr, Sys, quote};
use crate::layer::{self, LayerKind, StatXattr};
use crate::sys::file;
use parking_lot::Mutex;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;

/// Held while an attribute is read, changed and written; innermost.
static CHANGING: Mutex<()> = Mutex::new(());

/// The attributes of `name` in `dir` of a layer that keeps them in `stat_in`, if it does.
pub(crate) fn stat(stat_in: Option<StatXattr>, dir: BorrowedFd<'_>, name: &[u8]) -> Sys<Attr> {
    let attr = file::stat_at(dir, name)?;
    match stat_in {
        Some(which) => which.read(dir, name, attr),
        None => Ok(attr),
    }
}

/// Where a lower layer keeps its owners and modes.
pub(super) fn in_layer(layer: &LayerConfig, stats: Stats) -> Sys<Option<StatXattr>> {
    match stats {
        Stats::Own => Ok(None),
        _ if layer.kind == LayerKind::Plain => Ok(None),
        Stats::Marked => StatXattr::of_layer(layer.dir.as_fd()),
        Stats::Kept(which) => Ok(StatXattr::of_layer(layer.dir.as_fd())?.or(Some(which))),
    }
}

/// Marks the root of an upper, so that it is known for what it is when it is a lower layer; that tells at once whether
/// there can be such attributes.
pub(super) fn mark_upper(upper: BorrowedFd<'_>, which: StatXattr) -> Result<()> {
    let marked = stat(Some(which), upper, b"").and_then(|attr| which.write(upper, b"", &attr));
    let name = quote(which.name());
    marked.map_err(|e| {
        let hint = match which {
            StatXattr::Security => "only root may write it; others take xattr_permissions=2",
            StatXattr::User => {
                "put upperdir on a file system with user xattrs, or leave xattr_permissions out"
            }
        };
        Error::sys(&format!("write {name}, where owners and modes are to be, in upperdir"), e).hint(hint)
    })
}

impl At {
    /// The attribute in which this object keeps owner and mode, if it can have one.
    pub fn keeper(&self) -> Sys<Option<StatXattr>> {
        match self.stat_in {
            Some(which) if which.holds(file::stat_at(self.dir.as_fd(), &self.name)?.kind) => Ok(Some(which)),
            _ => Ok(None),
        }
    }
}

impl Union {
    /// Whether the view hides this xattr.
    pub(super) fn is_private(&self, name: &[u8]) -> bool {
        layer::is_private(name) || (self.keeps_stats && layer::is_stat_xattr(name))
    }

    /// As chown(2) and chmod(2).
    pub(super) fn set_kept(
        &self,
        caller: &Caller,
        node: &Node,
        at: &At,
        which: StatXattr,
        set: &SetAttr,
    ) -> Sys<()> {
        if set.perm.is_none() && set.uid.is_none() && set.gid.is_none() {
            return Ok(());
        }
        if set.perm.is_some() && node.kind == Kind::Symlink {
            return Err(Errno::EOPNOTSUPP);
        }
        let (uid, gid) = self.owner_to_store(set.uid, set.gid)?;
        let _changing = CHANGING.lock();
        let mut attr = at.stat()?;
        if set.uid.is_some() {
            attr.uid = uid;
        }
        if set.gid.is_some() {
            attr.gid = gid;
        }
        // As chown(2) does.
        if (set.uid.is_some() || set.gid.is_some()) && node.kind != Kind::Dir {
            attr.perm = without_suid(attr.perm);
        }
        if let Some(perm) = set.perm {
            attr.perm = self.allowed_perm(caller, node, perm, || Ok(attr))?;
        }
        which.write(at.dir.as_fd(), &at.name, &attr)?;
        node.maybe_suid.store(attr.perm & 0o6000 != 0, Ordering::Relaxed);
        Ok(())
    }

    /// After a write to the open file `fd` by somebody who is not root.
    pub(super) fn drop_kept_suid(&self, node: &Node, fd: BorrowedFd<'_>, which: StatXattr) -> Sys<()> {
        let _changing = CHANGING.lock();
        let attr = stat(Some(which), fd, b"")?;
        let perm = without_suid(attr.perm);
        if perm != attr.perm {
            which.write(fd, b"", &Attr { perm, ..attr })?;
        }
        node.maybe_suid.store(perm & 0o6000 != 0, Ordering::Relaxed);
        Ok(())
    }

    /// What `caller` makes in a directory with the attributes `parent`: the object `name` in `at`, new and bare.
    pub(super) fn keep_made(
        &self,
        caller: &Caller,
        parent: &Attr,
        (at, name): (BorrowedFd<'_>, &[u8]),
        made: (Kind, u32, u64),
        which: StatXattr,
    ) -> Sys<Attr> {
        let (kind, mut perm, rdev) = made;
        let (uid, mut gid) = self.ids_of_caller(caller.uid, caller.gid);
        if parent.perm & libc::S_ISGID != 0 {
            gid = parent.gid;
            if kind == Kind::Dir {
                perm |= libc::S_ISGID;
            }
        }
        let attr = Attr { kind, uid, gid, perm, rdev, ..file::stat_at(at, name)? };
        which.write(at, name, &attr)?;
        stat(Some(which), at, name)
    }
}

/// Copies the attributes of `from`, that are to be seen, onto `to`, a new object on the disk; `attr` goes into `which`.
/// `mark` adds marks of ours.
pub(super) fn copy_meta(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    attr: &Attr,
    which: StatXattr,
    mark: impl FnOnce(BorrowedFd<'_>) -> Sys<()>,
) -> Sys<()> {
    let not = |name: &[u8]| layer::is_stat_xattr(name) || name.starts_with(ACL_PREFIX);
    super::copy_up::copy_xattrs(from, to, not)?;
    mark(to)?;
    file::chmod_fd(to, layer::disk_perm(attr.kind, attr.perm))?;
    which.write(to, b"", attr)
}
