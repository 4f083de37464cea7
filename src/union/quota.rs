//! The quota of a session: no operation begins that could take its uppers over their limits.
//!
//! `used` is never less than what the uppers take: each verb adds the most that it can need before it begins, and what
//! takes room away only says that a look would be worth it. When that bound meets a limit the uppers are walked, with
//! every change held off, and from then on `used` is exact again. So a verb is refused only when a walk agreed.
//!
//! # Lock order
//! `Quota::gate` is outermost: before the tree lock, shared by verbs that change the uppers, exclusive for the walk.

use super::node::{Node, NodeId};
use super::{TOP, Union};
use crate::base::{Attr, Errno, Kind, Sys};
use crate::layer::{Usage, add_usage};
use crate::sys::file::{self, FsStat};
use crate::sys::process::coarse_nanos;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use std::collections::HashSet;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The unit in which file systems give room away, bytes.
const BLOCK: u64 = 4096;

/// How long after a removal the kernel may still be about to let go of what was removed. It says so in a message of its
/// own (FORGET), which another thread may read later than the next verb.
const FORGET_TIME: Duration = Duration::from_millis(500);

/// What a session may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes on the disk, as `du` counts them.
    pub bytes: Option<u64>,
    /// Objects on the disk, whiteouts and directories among them.
    pub inodes: Option<u64>,
}

/// The account of a session that has limits.
pub(crate) struct Quota {
    limits: Limits,
    used: Mutex<Usage>,
    /// Whether a walk might find less than `used`.
    loose: AtomicBool,
    /// When something last lost its name, on the clock of [`coarse_nanos`].
    removed: AtomicU64,
    /// Whether a thread waits for a FORGET. One at a time, so that another is left to read it.
    waits: AtomicBool,
    gate: RwLock<()>,
}

/// Leave for one verb; while it is held no walk runs.
pub(crate) struct Charge<'a> {
    union: &'a Union,
    quota: &'a Quota,
    node: Option<Arc<Node>>,
    /// Bytes of the node's blocks before the verb.
    before: u64,
    /// Bytes that were added for the node's content.
    reserved: u64,
    _gate: RwLockReadGuard<'a, ()>,
}

impl Drop for Charge<'_> {
    /// Gives back what the content did not need.
    fn drop(&mut self) {
        let Some(node) = &self.node else { return };
        let held =
            self.union.content(node, true).and_then(|fd| self.union.held(node, &file::stat(fd.as_fd())?));
        let Ok(after) = held else {
            self.quota.loose.store(true, Ordering::Release);
            return;
        };
        let grown = after.saturating_sub(self.before);
        let mut used = self.quota.used.lock();
        used.bytes = (used.bytes + grown).saturating_sub(self.reserved);
        drop(used);
        if after < self.before {
            self.quota.loose.store(true, Ordering::Release);
        }
    }
}

impl Union {
    /// From now on the session may take no more than `limits`. To be called once, before the first request.
    ///
    /// # Errors
    /// When an upper cannot be walked.
    pub fn limit(&self, limits: Limits) -> Sys<()> {
        if limits == Limits::default() {
            return Ok(());
        }
        let quota = Quota {
            limits,
            used: Mutex::new(self.walk_uppers()?),
            loose: AtomicBool::new(false),
            removed: AtomicU64::new(0),
            waits: AtomicBool::new(false),
            gate: RwLock::new(()),
        };
        if self.quota.set(quota).is_err() {
            tracing::debug!("the union has its limits already");
        }
        Ok(())
    }

    /// What the uppers take now, exactly.
    ///
    /// # Errors
    /// As reading directories.
    pub fn usage(&self) -> Sys<Usage> {
        match self.quota.get() {
            Some(quota) => self.recount(quota),
            None => self.walk_uppers(),
        }
    }

    /// Something of the uppers has gone, so that another walk is worth it.
    pub(crate) fn loosen(&self) {
        if let Some(quota) = self.quota.get() {
            quota.loose.store(true, Ordering::Release);
        }
    }

    fn recount(&self, quota: &Quota) -> Sys<Usage> {
        let _gate = quota.gate.write();
        let usage = self.walk_uppers()?;
        *quota.used.lock() = usage;
        quota.loose.store(false, Ordering::Release);
        Ok(usage)
    }

    /// All uppers, and what programs hold open although its last name is gone.
    fn walk_uppers(&self) -> Sys<Usage> {
        let (mut seen, mut usage) = (HashSet::new(), Usage::default());
        for root in self.roots.iter().filter_map(|r| r.writable.as_ref()) {
            add_usage(root.upper.as_fd(), &mut seen, &mut usage)?;
        }
        for node in self.nodes.all() {
            let Some(pin) = node.place.read().pin.clone() else { continue };
            let attr = file::stat(pin.as_fd())?;
            if seen.insert((attr.dev, attr.ino)) {
                usage.bytes += attr.blocks * 512;
                usage.inodes += 1;
            }
        }
        usage.bytes += self.partials.outstanding();
        Ok(usage)
    }

    /// What an upper file takes, with what it is still going to take to be whole.
    fn held(&self, node: &Node, attr: &Attr) -> Sys<u64> {
        Ok(attr.blocks * 512 + self.partial_of(node).map_or(0, |p| p.outstanding()))
    }

    /// Leave to change `len` bytes at `offset` of a file's content; `None` where nothing is limited.
    ///
    /// # Errors
    /// `EDQUOT`.
    pub(crate) fn charge_content(&self, node: &Arc<Node>, offset: u64, len: u64) -> Sys<Option<Charge<'_>>> {
        let Some(quota) = self.quota.get() else { return Ok(None) };
        if node.kind != Kind::File {
            return self.charge(&[node], 0);
        }
        let attr = file::stat(self.content(node, false)?.as_fd())?;
        let in_upper = node.place.read().upper;
        let held = if in_upper { self.held(node, &attr)? } else { 0 };
        let need = content_need(&attr, offset, len) + if in_upper { 0 } else { copy_need(&attr) };
        let mut charge = self.take(quota, self.need_of_parents(node), need)?;
        charge.node = Some(node.clone());
        charge.before = held;
        Ok(Some(charge))
    }

    /// Leave for a verb that changes these nodes in the upper and makes `inodes` new objects.
    ///
    /// # Errors
    /// `EDQUOT`.
    pub(crate) fn charge(&self, nodes: &[&Arc<Node>], inodes: u64) -> Sys<Option<Charge<'_>>> {
        let Some(quota) = self.quota.get() else { return Ok(None) };
        let mut need = Usage { bytes: inodes * BLOCK, inodes };
        let tree = self.tree.read();
        for node in nodes {
            let more = self.need_of_parents(node);
            need.bytes += more.bytes;
            need.inodes += more.inodes;
            if node.kind == Kind::File && !node.place.read().upper {
                need.bytes += copy_need(&self.attr_of(node)?);
            }
        }
        drop(tree);
        self.take(quota, need, 0).map(Some)
    }

    /// Leave to empty a file: none of its content is copied up.
    ///
    /// # Errors
    /// `EDQUOT`.
    pub(crate) fn charge_emptying(&self, node: &Arc<Node>) -> Sys<Option<Charge<'_>>> {
        let Some(quota) = self.quota.get() else { return Ok(None) };
        quota.loose.store(true, Ordering::Release);
        self.take(quota, self.need_of_parents(node), 0).map(Some)
    }

    /// Leave to set an xattr, which may take a block of its own.
    ///
    /// # Errors
    /// `EDQUOT`.
    pub(crate) fn charge_xattr(&self, node: &Arc<Node>) -> Sys<Option<Charge<'_>>> {
        let charge = self.charge(&[node], 0)?;
        let Some(quota) = self.quota.get() else { return Ok(charge) };
        drop(charge);
        self.take(quota, Usage { bytes: BLOCK, inodes: 0 }, 0).map(Some)
    }

    /// Leave to change the entry `name` of `dir`: what is there may have to be copied up, when it moves to another
    /// place, or hidden by a whiteout.
    ///
    /// # Errors
    /// `EDQUOT`.
    pub(crate) fn charge_entry(
        &self,
        dir: NodeId,
        name: &[u8],
        moves_to: Option<&Arc<Node>>,
    ) -> Sys<Option<Charge<'_>>> {
        let moves = moves_to.is_some();
        let Some(quota) = self.quota.get() else { return Ok(None) };
        let dir = self.nodes.get(dir)?;
        if dir.root == TOP {
            return Ok(None);
        }
        let (seen, lower) = {
            let _tree = self.tree.read();
            (self.see(&dir, name)?, self.find_lower(&dir, name)?.is_some())
        };
        let mut need = self.need_of_parents(&dir);
        if let Some(to) = moves_to.filter(|to| to.id != dir.id) {
            let more = self.need_of_parents(to);
            need = Usage { bytes: need.bytes + more.bytes, inodes: need.inodes + more.inodes };
        }
        if let super::lookup::Seen::Lower(_, attr) = seen {
            // A whiteout, and the copy if the object moves.
            need.inodes += if moves { 2 } else { 1 };
            need.bytes += BLOCK + if moves { copy_need(&attr) } else { 0 };
        } else {
            quota.loose.store(true, Ordering::Release);
            quota.removed.store(coarse_nanos(), Ordering::Release);
            // The whiteout is one more object where the upper one goes on living elsewhere.
            let lives = matches!(seen, super::lookup::Seen::Upper(attr) if attr.nlink > 1);
            need.inodes += u64::from(lower && (moves || lives));
        }
        self.take(quota, need, 0).map(Some)
    }

    /// What copying up takes for a node without its content: itself and the directories above it.
    fn need_of_parents(&self, node: &Arc<Node>) -> Usage {
        let mut need = Usage::default();
        let mut at = Some(node.clone());
        while let Some(node) = at.filter(|n| n.root != TOP && !n.place.read().upper) {
            let parent = node.place.read().links.first().map(|l| l.parent.clone());
            // A root's own directory is in the upper from the beginning.
            if parent.is_some() {
                need.inodes += 1;
                need.bytes += BLOCK;
            }
            at = parent;
        }
        need
    }

    fn take<'a>(&'a self, quota: &'a Quota, need: Usage, content: u64) -> Sys<Charge<'a>> {
        loop {
            // Recursive, as one verb may be part of another.
            let gate = quota.gate.read_recursive();
            if quota.add(need.bytes + content, need.inodes) {
                if need != Usage::default() {
                    quota.loose.store(true, Ordering::Release);
                }
                let (node, before) = (None, 0);
                return Ok(Charge { union: self, quota, node, before, reserved: content, _gate: gate });
            }
            drop(gate);
            if !quota.loose.load(Ordering::Acquire) && !self.await_forget(quota) {
                return Err(Errno::EDQUOT);
            }
            self.recount(quota)?;
        }
    }

    /// Waits, after a removal, for the kernel to let go of what was removed; false when there is nothing to wait for.
    fn await_forget(&self, quota: &Quota) -> bool {
        let recent = || {
            let since = coarse_nanos().saturating_sub(quota.removed.load(Ordering::Acquire));
            Duration::from_nanos(since) < FORGET_TIME
        };
        let held = || self.nodes.all().iter().any(|n| n.place.read().pin.is_some());
        if !recent() || quota.waits.swap(true, Ordering::AcqRel) {
            return quota.loose.load(Ordering::Acquire);
        }
        if held() {
            while !quota.loose.load(Ordering::Acquire) && recent() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        quota.waits.store(false, Ordering::Release);
        quota.loose.load(Ordering::Acquire)
    }

    /// The file system's figures as the limits let them appear.
    pub(crate) fn limited(&self, mut s: FsStat) -> Sys<FsStat> {
        let Some(quota) = self.quota.get() else { return Ok(s) };
        self.await_forget(quota);
        let used = self.recount(quota)?;
        let unit = u64::from(s.frsize).max(1);
        if let Some(limit) = quota.limits.bytes {
            s.blocks = s.blocks.min(limit / unit);
            s.bavail = s.bavail.min(limit.saturating_sub(used.bytes) / unit);
            s.bfree = s.bavail;
        }
        if let Some(limit) = quota.limits.inodes {
            s.files = limit;
            s.ffree = s.ffree.min(limit.saturating_sub(used.inodes));
        }
        Ok(s)
    }
}

impl Quota {
    /// Adds to what is used unless that would go over a limit. A verb that needs nothing is always let through.
    fn add(&self, bytes: u64, inodes: u64) -> bool {
        let mut used = self.used.lock();
        let over = |limit: Option<u64>, used: u64, more: u64| {
            more > 0 && limit.is_some_and(|limit| used.saturating_add(more) > limit)
        };
        if over(self.limits.bytes, used.bytes, bytes) || over(self.limits.inodes, used.inodes, inodes) {
            return false;
        }
        used.bytes += bytes;
        used.inodes += inodes;
        true
    }
}

/// The most that the blocks of a file can grow by a write of `len` bytes at `offset`.
fn content_need(attr: &Attr, offset: u64, len: u64) -> u64 {
    let end = offset.saturating_add(len);
    let held = attr.blocks * 512;
    if held < attr.size {
        // With holes anything may be new, and so may a block at either end.
        return len.next_multiple_of(BLOCK) + if len == 0 { 0 } else { BLOCK };
    }
    // Without holes: the part behind what it holds, and no hole before `offset` is filled.
    let new = end.next_multiple_of(BLOCK).saturating_sub(held);
    new.min(len.next_multiple_of(BLOCK) + if len == 0 { 0 } else { BLOCK })
}

/// The most that a copy of the content takes.
fn copy_need(attr: &Attr) -> u64 {
    if attr.kind == Kind::File { (attr.blocks * 512).max(attr.size.next_multiple_of(BLOCK)) } else { 0 }
}
