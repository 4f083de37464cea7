//! Removing names: unlink and rmdir, and what becomes of a node whose name is gone.

use super::copy_up::{clear, forced};
use super::lookup::{Seen, write_adj};
use super::node::{Ident, Node, NodeId};
use super::record::Note;
use super::{Caller, TOP, Union, Writable};
use crate::base::{Attr, BaseId, Errno, Kind, Name, RelPath, Sys};
use crate::journal::Op;
use crate::layer::{self, WhiteoutForm};
use crate::sys::{dir as sysdir, file};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Union {
    /// Removes the non-directory `name` from `parent`.
    ///
    /// # Errors
    /// `ENOENT`, `EISDIR`, or as `unlink(2)`.
    pub fn unlink(&self, caller: &Caller, parent: NodeId, name: &[u8]) -> Sys<()> {
        if let Some(node) = self.unlink_name(caller, parent, name)? {
            self.keep_named_or_warn(caller, &node);
        }
        Ok(())
    }

    /// Returns the node whose name it was, if it is known.
    fn unlink_name(&self, caller: &Caller, parent: NodeId, name: &[u8]) -> Sys<Option<Arc<Node>>> {
        let _charge = self.charge_entry(parent, name, None)?;
        let _tree = self.tree.read();
        let dir = self.removable_parent(parent)?;
        let name = Name::new(name)?;
        let root = self.writable(&dir)?;
        self.may_change(&dir, name.as_bytes(), Errno::ENOENT)?;
        self.copy_up_dir(&dir)?;
        let _ops = dir.dir()?.ops.lock();
        let seen = self.see(&dir, name.as_bytes())?;
        let attr = match seen {
            Seen::Nothing | Seen::Whiteout(_) => return Err(Errno::ENOENT),
            Seen::Upper(attr) | Seen::Lower(_, attr) if attr.kind == Kind::Dir => return Err(Errno::EISDIR),
            Seen::Upper(attr) | Seen::Lower(_, attr) => attr,
        };
        let node = self.known(&dir, &name, seen);
        let handle = self.handle_to_keep(&dir, &name, node.as_ref(), seen)?;
        let base = match &node {
            Some(node) if matches!(seen, Seen::Upper(_)) => self.untold(&dir, name.as_bytes(), node)?,
            _ => matches!(seen, Seen::Lower(..)).then(|| BaseId::of(&attr)),
        };
        let strange = self.strange_below(&dir, &name, node.as_ref(), seen)?;
        let fewer = fewer_names(root, node.as_ref(), &dir, &name)?;
        if let Err(e) = self.hide(root, &dir, &name, seen) {
            fewer.undo(root);
            return Err(e);
        }
        if let Some(node) = &node {
            drop_name(root, node, &dir, &name, &attr, handle);
        }
        dir.touch_entries();
        let path = self.path_in(&dir, name.as_bytes());
        if let Some(node) = node.as_ref().filter(|n| n.place.read().gone) {
            self.owed.told(node);
        }
        self.record(caller, Note::new(Op::Unlink, dir.root, path.clone(), attr.kind).base(base));
        self.record_hidden(caller, dir.root, path, strange);
        Ok(node)
    }

    /// Removes the directory `name`, empty in the merged view, from `parent`.
    ///
    /// # Errors
    /// `ENOTEMPTY`, `ENOENT`, `ENOTDIR`, or as `rmdir(2)`.
    pub fn rmdir(&self, caller: &Caller, parent: NodeId, name: &[u8]) -> Sys<()> {
        let _charge = self.charge_entry(parent, name, None)?;
        let _tree = self.tree.read();
        let dir = self.removable_parent(parent)?;
        let name = Name::new(name)?;
        let root = self.writable(&dir)?;
        self.may_change(&dir, name.as_bytes(), Errno::ENOENT)?;
        self.copy_up_dir(&dir)?;
        let _ops = dir.dir()?.ops.lock();
        let seen = self.see(&dir, name.as_bytes())?;
        let attr = match seen {
            Seen::Nothing | Seen::Whiteout(_) => return Err(Errno::ENOENT),
            Seen::Upper(attr) | Seen::Lower(_, attr) if attr.kind != Kind::Dir => return Err(Errno::ENOTDIR),
            Seen::Upper(attr) | Seen::Lower(_, attr) => attr,
        };
        let (child, _) = self.instantiate(&dir, &name, seen)?;
        let base = match seen {
            Seen::Upper(_) => self.untold(&dir, name.as_bytes(), &child),
            _ => Ok(Some(BaseId::of(&attr))),
        };
        let removed = base.and_then(|base| {
            let strange = self.strange_below(&dir, &name, Some(&child), seen)?;
            self.remove_empty_dir(root, &dir, &name, &child, seen)?;
            self.owed.told(&child);
            Ok((base, strange))
        });
        self.forget(child.id, 1);
        let (base, strange) = removed?;
        dir.touch_entries();
        let path = self.path_in(&dir, name.as_bytes());
        self.record(caller, Note::new(Op::Rmdir, dir.root, path.clone(), Kind::Dir).base(base));
        self.record_hidden(caller, dir.root, path, strange);
        Ok(())
    }

    /// The lower object at `name` of `dir` that the session's own object there is no copy of: it may have come since that was
    /// made, and then the journal does not know that it is hidden when that goes.
    pub(crate) fn strange_below(
        &self,
        dir: &Arc<Node>,
        name: &Name,
        node: Option<&Arc<Node>>,
        seen: Seen,
    ) -> Sys<Option<Attr>> {
        if self.journal.is_none() || !matches!(seen, Seen::Upper(_)) {
            return Ok(None);
        }
        let below = self.find_lower(dir, name.as_bytes())?.map(|(_, attr)| attr);
        Ok(below.filter(|attr| {
            node.is_none_or(|node| Ident { twin: node.ident.twin, ..Ident::of(dir.root, attr) } != node.ident)
        }))
    }

    /// Tells the journal that `below`, which the lower has at `path`, is not to be seen any more. Where it knows, that says
    /// nothing new. No number goes with it: what the session did was not done to this object, so to apply it is in conflict
    /// with whoever made that.
    pub(crate) fn record_hidden(&self, caller: &Caller, root: u16, path: RelPath, below: Option<Attr>) {
        if let Some(attr) = below {
            let base = BaseId { ino: 0, nlink: 1, ..BaseId::of(&attr) };
            self.record(caller, Note::new(Op::FoundGone, root, path, attr.kind).base(Some(base)));
        }
    }

    /// What the lower object at `name` of `dir` is that `node` of the upper stands for, as far as the journal may not
    /// know: a directory comes up without a record when something changes beneath it. `None` for another object.
    pub(crate) fn untold(&self, dir: &Arc<Node>, name: &[u8], node: &Arc<Node>) -> Sys<Option<BaseId>> {
        if self.journal.is_none() {
            return Ok(None);
        }
        if let Some(base) = self.owed.get(node) {
            return Ok(Some(base));
        }
        let lower = self.find_lower(dir, name)?.map(|(_, attr)| attr);
        let same = lower.filter(|attr| attr.kind == node.kind && Ident::of(dir.root, attr) == node.ident);
        Ok(same.map(|attr| BaseId::of(&attr)))
    }

    fn remove_empty_dir(
        &self,
        root: &Writable,
        dir: &Arc<Node>,
        name: &Name,
        child: &Arc<Node>,
        seen: Seen,
    ) -> Sys<()> {
        let _inner = child.dir()?.ops.lock();
        if !self.is_empty(child)? {
            return Err(Errno::ENOTEMPTY);
        }
        let pin = if child.place.read().upper { Some(self.upper_dir(child)?) } else { None };
        self.hide(root, dir, name, seen)?;
        self.mark_gone(child, pin);
        Ok(())
    }

    /// Notes that a directory lost its name; its upper object, if any, stays reachable through `pin`.
    pub(crate) fn mark_gone(&self, node: &Arc<Node>, pin: Option<Arc<OwnedFd>>) {
        let mut place = node.place.write();
        place.gone = true;
        place.pin = pin;
        if let Some(link) = place.links.pop() {
            place.ghost = Some(link);
        }
        drop(place);
        node.touch_entries();
    }

    fn removable_parent(&self, parent: NodeId) -> Sys<Arc<Node>> {
        let dir = self.nodes.get(parent)?;
        if dir.root == TOP {
            return Err(Errno::EBUSY); // a root is a mount point
        }
        Ok(dir)
    }

    /// Whether the merged directory has no entries, hidden ones included. Needs its `ops` lock.
    pub(crate) fn is_empty(&self, dir: &Arc<Node>) -> Sys<bool> {
        Ok(self.merged_names(dir, true)?.is_empty())
    }

    /// The node that the kernel knows for what was seen at `name`, if it does.
    pub(crate) fn known(&self, dir: &Arc<Node>, name: &Name, seen: Seen) -> Option<Arc<Node>> {
        let node = match seen {
            Seen::Nothing | Seen::Whiteout(_) => None,
            Seen::Upper(attr) => self
                .nodes
                .find_copied(attr.dev, attr.ino)
                .or_else(|| self.nodes.find(&Ident::of(dir.root, &attr))),
            Seen::Lower(_, attr) => {
                let ident = Ident::of(dir.root, &attr);
                let twin = Ident { twin: true, ..ident };
                let named = |n: &Arc<Node>| n.place.read().has(dir.id, name);
                self.nodes.find(&ident).filter(named).or_else(|| self.nodes.find(&twin))
            }
        };
        node.filter(|n| n.place.read().has(dir.id, name))
    }

    /// A handle on an upper object that is about to lose the only name we know of, so that open files go on and its
    /// inode number is not given to another while the kernel knows it.
    pub(crate) fn handle_to_keep(
        &self,
        dir: &Arc<Node>,
        name: &Name,
        node: Option<&Arc<Node>>,
        seen: Seen,
    ) -> Sys<Option<Arc<OwnedFd>>> {
        let (Some(node), Seen::Upper(_)) = (node, seen) else {
            return Ok(None);
        };
        let place = node.place.read();
        let other = place.links.iter().any(|l| l.upper && !(l.parent.id == dir.id && l.name == *name));
        if other || place.pin.is_some() {
            return Ok(None);
        }
        drop(place);
        if let Some(fd) = self.fds.get(node.id, super::fds::Slot::Write) {
            return Ok(Some(fd));
        }
        let fd = file::openat(self.upper_dir(dir)?.as_fd(), name.as_bytes(), libc::O_PATH, 0)?;
        Ok(Some(Arc::new(fd)))
    }

    /// Takes `name` out of the merged view: the upper object goes, and a whiteout comes where a lower one would show.
    pub(crate) fn hide(&self, root: &Writable, dir: &Arc<Node>, name: &Name, seen: Seen) -> Sys<()> {
        let upper = self.upper_dir(dir)?;
        let name_bytes = name.as_bytes();
        let is_dir = matches!(seen, Seen::Upper(attr) if attr.kind == Kind::Dir);
        match seen {
            Seen::Nothing | Seen::Whiteout(_) => Ok(()),
            Seen::Lower(..) => self.whiteout(root, upper.as_fd(), name_bytes),
            Seen::Upper(_) => {
                let lower = self.find_lower(dir, name_bytes)?.is_some();
                match (is_dir, lower) {
                    (false, false) => file::unlinkat(upper.as_fd(), name_bytes),
                    (false, true) => self.whiteout_over(root, upper.as_fd(), name_bytes),
                    (true, false) => self.remove_upper_dir(root, upper.as_fd(), name_bytes),
                    (true, true) => self.whiteout_over_dir(root, upper.as_fd(), name_bytes),
                }
            }
        }
    }

    /// Replaces an upper non-directory by a whiteout in one step.
    pub(crate) fn whiteout_over(&self, root: &Writable, upper: BorrowedFd<'_>, name: &[u8]) -> Sys<()> {
        if root.features.whiteout == WhiteoutForm::Prefix {
            layer::make_whiteout(upper, name, WhiteoutForm::Prefix)?;
            return file::unlinkat(upper, name).inspect_err(|_| no_whiteout(upper, name));
        }
        let (work, temp) = (root.work.as_fd(), self.temp_name());
        layer::make_whiteout(work, &temp, WhiteoutForm::Device)?;
        file::renameat(work, &temp, upper, name, 0).inspect_err(|_| clear(work, &temp))
    }

    /// Replaces an upper directory, empty but for marks, by a whiteout in one step.
    pub(crate) fn whiteout_over_dir(&self, root: &Writable, upper: BorrowedFd<'_>, name: &[u8]) -> Sys<()> {
        let (work, temp) = (root.work.as_fd(), self.temp_name());
        if root.features.whiteout == WhiteoutForm::Prefix {
            layer::make_whiteout(upper, name, WhiteoutForm::Prefix)?;
            file::renameat(upper, name, work, &temp, 0).inspect_err(|_| no_whiteout(upper, name))?;
        } else {
            layer::make_whiteout(work, &temp, WhiteoutForm::Device)?;
            file::renameat(work, &temp, upper, name, libc::RENAME_EXCHANGE)
                .inspect_err(|_| clear(work, &temp))?;
        }
        self.trash.put(&root.work, temp);
        Ok(())
    }

    /// Removes an upper directory, empty but for marks, with no lower one behind it.
    pub(crate) fn remove_upper_dir(&self, root: &Writable, upper: BorrowedFd<'_>, name: &[u8]) -> Sys<()> {
        match file::rmdirat(upper, name) {
            Err(Errno::ENOTEMPTY) => {
                let temp = self.temp_name();
                file::renameat(upper, name, root.work.as_fd(), &temp, 0)?;
                self.trash.put(&root.work, temp);
                Ok(())
            }
            other => other,
        }
    }
}

/// What [`fewer_names`] changed on the disk, to undo it.
#[must_use]
pub(crate) struct Fewer(Option<(Box<[u8]>, i32)>);

impl Fewer {
    /// The name stays after all.
    pub fn undo(self, root: &Writable) {
        if let Some((index, adj)) = self.0
            && let Err(e) = write_adj(root, &index, adj)
        {
            tracing::warn!("a link count could not be put back: {e}");
        }
    }
}

/// Notes on an object of the index that it is about to lose the name `name` in `dir`, when that is one which only the
/// lower has: the host's count stays, the merged view has one name less.
pub(crate) fn fewer_names(
    root: &Writable,
    node: Option<&Arc<Node>>,
    dir: &Arc<Node>,
    name: &Name,
) -> Sys<Fewer> {
    let Some(node) = node else { return Ok(Fewer(None)) };
    let place = node.place.read();
    let lower = place.links.iter().any(|l| l.parent.id == dir.id && l.name == *name && !l.upper);
    match &place.index {
        Some(index) if lower && place.upper => {
            write_adj(root, index, place.nlink_adj - 1)?;
            Ok(Fewer(Some((index.clone(), place.nlink_adj))))
        }
        _ => Ok(Fewer(None)),
    }
}

/// Notes that `name` in `dir` no longer leads to `node`, whose attributes were `attr` before; see [`fewer_names`] for
/// what is on the disk.
pub(crate) fn drop_name(
    root: &Writable,
    node: &Arc<Node>,
    dir: &Arc<Node>,
    name: &Name,
    attr: &Attr,
    handle: Option<Arc<OwnedFd>>,
) {
    let mut place = node.place.write();
    let Some(at) = place.links.iter().position(|l| l.parent.id == dir.id && l.name == *name) else {
        return;
    };
    let reported = i64::from(attr.nlink) + i64::from(place.nlink_adj);
    let link = place.links.remove(at);
    place.gone = reported <= 1 && place.links.is_empty();
    if !link.upper {
        place.nlink_adj -= 1;
    }
    if place.upper {
        if place.pin.is_none()
            && !place.links.iter().any(|l| l.upper)
            && (place.index.is_none() || place.gone)
        {
            place.pin = handle;
        }
        if place.gone {
            node.nameless.store(true, Ordering::Release);
        }
        if place.gone
            && let Some(index) = place.index.take()
        {
            clear(root.index.as_fd(), &index);
            place.nlink_adj = 0;
        }
    } else if place.links.is_empty() {
        place.ghost = Some(link);
    }
}

/// Takes the whiteout file of a name away whose object could not be removed: the object counts, whether it goes or not.
pub(crate) fn no_whiteout(upper: BorrowedFd<'_>, name: &[u8]) {
    if let Err(e) = layer::remove_whiteout(upper, name, WhiteoutForm::Prefix) {
        tracing::warn!("a whiteout that came to nothing could not be removed: {e}");
    }
}

/// Removes a tree of our own making in a work directory.
pub(crate) fn remove_tree(dir: BorrowedFd<'_>, name: &[u8]) -> Sys<()> {
    match file::unlinkat(dir, name) {
        Err(Errno::EISDIR | Errno::EPERM) => {}
        other => return other,
    }
    let fd = match file::openat(dir, name, libc::O_RDONLY | libc::O_DIRECTORY, 0) {
        Err(Errno::EACCES) => {
            file::chmodat(dir, name, 0o700)?;
            file::openat(dir, name, libc::O_RDONLY | libc::O_DIRECTORY, 0)?
        }
        other => other?,
    };
    for entry in sysdir::entries(fd.as_fd())? {
        if entry.kind == Some(Kind::Dir) {
            remove_tree(fd.as_fd(), &entry.name)?;
        } else {
            forced(fd.as_fd(), || file::unlinkat(fd.as_fd(), &entry.name))?;
        }
    }
    file::rmdirat(dir, name)
}
