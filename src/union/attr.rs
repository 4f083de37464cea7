//! Setting attributes; symlink targets.

use super::copy_up::{Content, MODES};
use super::lookup::At;
use super::node::{Node, NodeId};
use super::{Caller, TOP, Union};
use crate::base::{Attr, Errno, Kind, SetAttr, SetTime, Sys, Time};
use crate::journal::Op;
use crate::sys::{file, proc};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

impl Union {
    /// Changes attributes of node `id` and returns the new ones.
    ///
    /// # Errors
    /// As `chmod(2)`, `chown(2)`, `truncate(2)`, `utimensat(2)`.
    pub fn setattr(&self, caller: &Caller, id: NodeId, set: &SetAttr) -> Sys<(Attr, Duration)> {
        self.staying(id, |node| self.setattr_node(caller, node, set))
    }

    fn setattr_node(&self, caller: &Caller, node: &Arc<Node>, set: &SetAttr) -> Sys<(Attr, Duration)> {
        if node.root == TOP {
            return Err(Errno::EPERM);
        }
        let before = {
            let _tree = self.tree.read();
            self.attr_of(node)?
        };
        if let Some(size) = set.size {
            self.truncate(caller, node, size)?;
        }
        if set.perm.is_some()
            || set.uid.is_some()
            || set.gid.is_some()
            || set.atime.is_some()
            || set.mtime.is_some()
        {
            let _charge = self.charge(&[node], 0)?;
            let base = self.copy_up(node, Content::Keep)?;
            let _tree = self.tree.read();
            let at = self.locate_upper(node)?;
            self.change_still(node, || {
                let stored = at.stat()?;
                self.set_all(caller, node, &at, set).inspect_err(|_| put_back(node, &at, &stored))
            })?;
            // A size change sets the times itself and has its own record.
            if set.size.is_none() || set.perm.is_some() || set.uid.is_some() || set.gid.is_some() {
                self.record_on(caller, node, Op::SetAttr, base);
            }
        }
        let _tree = self.tree.read();
        match self.attr_of(node) {
            Ok(attr) => Ok((attr, self.attr_ttl(node))),
            // It is done, and nearly all is known; the kernel asks again.
            Err(_) => Ok((as_set(before, set), Duration::ZERO)),
        }
    }

    fn set_all(&self, caller: &Caller, node: &Node, at: &At, set: &SetAttr) -> Sys<()> {
        match at.keeper()? {
            Some(which) => self.set_kept(caller, node, at, which, set)?,
            None => {
                self.set_owner(at, set)?;
                self.set_perm(caller, node, at, set)?;
            }
        }
        if set.atime.is_some() || set.mtime.is_some() {
            file::utimens_at(at.dir.as_fd(), &at.name, set.atime, set.mtime)?;
        }
        Ok(())
    }

    /// As `locate`, for an object in the upper that is about to be changed; a directory is meant itself.
    pub(crate) fn locate_upper(&self, node: &Arc<Node>) -> Sys<At> {
        if node.kind == Kind::Dir {
            let stat_in = self.writable(node)?.stat_in;
            return Ok(At { dir: self.upper_dir(node)?, name: Box::default(), stat_in });
        }
        self.locate(node)
    }

    fn set_perm(&self, caller: &Caller, node: &Node, at: &At, set: &SetAttr) -> Sys<()> {
        let Some(perm) = set.perm else {
            return Ok(());
        };
        if node.kind == Kind::Symlink {
            return Err(Errno::EOPNOTSUPP);
        }
        let perm = self.allowed_perm(caller, node, perm, || at.stat())?;
        chmod(at, perm)?;
        node.maybe_suid.store(perm & 0o6000 != 0, std::sync::atomic::Ordering::Relaxed);
        Ok(())
    }

    /// `perm` as far as the caller may set it on `node`, whose attributes are `now`.
    pub(super) fn allowed_perm(
        &self,
        caller: &Caller,
        node: &Node,
        perm: u32,
        now: impl FnOnce() -> Sys<Attr>,
    ) -> Sys<u32> {
        // Only a member of the file's group may set set-gid (chmod(2)); the kernel asks us as root, so we check.
        if self.multi_user && caller.uid != 0 && perm & libc::S_ISGID != 0 && node.kind != Kind::Dir {
            let attr = now()?;
            if self.view.gids.store(caller.gid) != Some(attr.gid) && !self.is_member(caller, attr.gid) {
                return Ok(perm & !libc::S_ISGID);
            }
        }
        Ok(perm)
    }

    /// Whether the calling process has `gid` among its supplementary groups (proc(5), status).
    fn is_member(&self, caller: &Caller, gid: u32) -> bool {
        let groups = i32::try_from(caller.pid).ok().and_then(|pid| proc::status(pid, "Groups"));
        groups.is_some_and(|groups| groups.contains(&gid))
    }

    /// The target of a symlink.
    ///
    /// # Errors
    /// `EINVAL` when it is none.
    pub fn readlink(&self, id: NodeId) -> Sys<Vec<u8>> {
        let _tree = self.tree.read();
        let node = self.nodes.get(id)?;
        if node.kind != Kind::Symlink {
            return Err(Errno::EINVAL);
        }
        let at = self.locate(&node)?;
        file::readlinkat(at.dir.as_fd(), &at.name)
    }

    fn set_owner(&self, at: &At, set: &SetAttr) -> Sys<()> {
        if set.uid.is_none() && set.gid.is_none() {
            return Ok(());
        }
        let (uid, gid) = self.owner_to_store(set.uid, set.gid)?;
        chown(at, uid, gid)
    }
}

/// What the attributes `attr` should be after `set`.
fn as_set(attr: Attr, set: &SetAttr) -> Attr {
    let time = |new: Option<SetTime>, old: Time| match new {
        Some(SetTime::At(time)) => time,
        Some(SetTime::Now) | None => old,
    };
    Attr {
        size: set.size.unwrap_or(attr.size),
        perm: set.perm.unwrap_or(attr.perm),
        uid: set.uid.unwrap_or(attr.uid),
        gid: set.gid.unwrap_or(attr.gid),
        atime: time(set.atime, attr.atime),
        mtime: time(set.mtime, attr.mtime),
        ..attr
    }
}

fn chmod(at: &At, perm: u32) -> Sys<()> {
    let _modes = MODES.lock();
    if at.name.is_empty() {
        file::chmod_fd(at.dir.as_fd(), perm)
    } else {
        file::chmodat(at.dir.as_fd(), &at.name, perm)
    }
}

fn chown(at: &At, uid: u32, gid: u32) -> Sys<()> {
    if at.name.is_empty() {
        file::chown_fd(at.dir.as_fd(), uid, gid)
    } else {
        file::chownat(at.dir.as_fd(), &at.name, uid, gid)
    }
}

/// After one of several attributes could not be set: owner and mode become what they were.
fn put_back(node: &Node, at: &At, before: &Attr) {
    let done = at.stat().and_then(|now| {
        if let Some(which) = at.keeper()? {
            return which.write(at.dir.as_fd(), &at.name, before);
        }
        if (now.uid, now.gid) != (before.uid, before.gid) {
            chown(at, before.uid, before.gid)?;
        }
        // chown(2) takes set-uid and set-gid away.
        if node.kind != Kind::Symlink && at.stat()?.perm != before.perm {
            chmod(at, before.perm)?;
        }
        Ok(())
    });
    if let Err(e) = done {
        tracing::warn!("attributes could not be put back after a failure: {e}");
    }
}
