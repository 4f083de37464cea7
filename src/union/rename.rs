//! Rename: files, directories of the lower (by redirect, so never `EXDEV`), replacing, and exchanging.
//!
//! The step that a program sees is one `renameat2` in the upper. What must be true before it (the source in the upper,
//! a redirect or opaque mark on a directory, an empty target out of the way) is done first and changes nothing in the
//! merged view; if the server dies in between, the old names still hold.

use super::copy_up::{Content, LONG_PATH, clear, forced, open_forced};
use super::dir::unhide;
use super::lookup::{Seen, write_adj};
use super::node::{Link, Node, NodeId};
use super::record::Note;
use super::remove::{drop_name, fewer_names, no_whiteout};
use super::{Caller, TOP, Union, Writable};
use crate::base::{Attr, BaseId, Errno, Kind, Name, Sys};
use crate::journal::Op;
use crate::layer::{self, WhiteoutForm};
use crate::sys::{self, file};
use std::os::fd::AsFd;
use std::sync::Arc;

/// One end of a rename, as it is under the exclusive tree lock.
struct End {
    dir: Arc<Node>,
    name: Name,
    seen: Seen,
    /// The node there, with one lookup of ours.
    node: Option<Arc<Node>>,
    /// Whether a lower object would show at the name if the upper had nothing.
    lower: bool,
}

impl End {
    fn attr(&self) -> Option<Attr> {
        match self.seen {
            Seen::Upper(attr) | Seen::Lower(_, attr) => Some(attr),
            Seen::Nothing | Seen::Whiteout(_) => None,
        }
    }
}

impl Union {
    /// Renames `name` in `parent` to `to` in `to_parent`; `flags` as in `renameat2(2)`: `RENAME_NOREPLACE`,
    /// `RENAME_EXCHANGE`.
    ///
    /// # Errors
    /// `EXDEV` between roots; `EINVAL` for other flags (`RENAME_WHITEOUT` would make a device 0:0, which the view
    /// cannot show); else as `renameat2(2)`.
    pub fn rename(
        &self,
        caller: &Caller,
        parent: NodeId,
        name: &[u8],
        to_parent: NodeId,
        to: &[u8],
        flags: u32,
    ) -> Sys<()> {
        let exchange = flags & libc::RENAME_EXCHANGE != 0;
        if flags & !(libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE) != 0 {
            return Err(Errno::EINVAL);
        }
        let (dir, to_dir) = (self.nodes.get(parent)?, self.nodes.get(to_parent)?);
        let _charge = self.charge_entry(parent, name, Some(&to_dir))?;
        if dir.root == TOP || to_dir.root == TOP {
            return Err(Errno::EBUSY);
        }
        if dir.root != to_dir.root {
            return Err(Errno::EXDEV);
        }
        let (name, to) = (Name::new(name)?, Name::new(to)?);
        self.may_change(&dir, name.as_bytes(), Errno::ENOENT)?;
        self.may_change(&to_dir, to.as_bytes(), if exchange { Errno::ENOENT } else { Errno::EACCES })?;
        let base = self.bring_up(caller, &dir, &name)?;
        let base2 = if exchange { self.bring_up(caller, &to_dir, &to)? } else { None };
        self.copy_up(&to_dir, Content::Keep)?;
        let mut held = Vec::new();
        let done = {
            let _tree = self.tree.write();
            self.rename_locked(caller, (&dir, &name), (&to_dir, &to), flags, (base, base2), &mut held)
        };
        for id in held {
            if let (Ok(node), Ok(())) = (self.nodes.get(id), &done) {
                self.keep_named_or_warn(caller, &node);
            }
            self.forget(id, 1);
        }
        done
    }

    /// Copies up what is at `name`, so that it can be moved.
    fn bring_up(&self, caller: &Caller, dir: &Arc<Node>, name: &Name) -> Sys<Option<BaseId>> {
        let node = {
            let _tree = self.tree.read();
            let seen = self.see(dir, name.as_bytes())?;
            self.instantiate(dir, name, seen)?.0
        };
        let base = self.copy_up(&node, Content::Keep);
        self.forget(node.id, 1);
        let mut base = base?;
        let _tree = self.tree.read();
        // A directory may be in the upper for what is in it, of which no record tells; an exchange has to tell what it is.
        if node.kind == Kind::Dir && base.is_none() && !node.place.read().lowers.is_empty() {
            let lower = self.lower_dir(&node, 0)?;
            base = Some(BaseId::of(&file::stat(lower.as_fd())?));
        }
        // A second name of a hard link may still be lower-only although the object is in the upper.
        if node.kind != Kind::Dir
            && let Seen::Lower(k, attr) = self.see(dir, name.as_bytes())?
        {
            if base.is_none() {
                let lower = self.lower_dir(dir, k)?;
                base = Some(self.base_of(lower.as_fd(), name.as_bytes(), &attr));
            }
            self.link_up(caller, &node, dir, name, &base)?;
        }
        Ok(base)
    }

    /// Makes `name`, which only the lower has, a name of the object in the upper that it leads to, and tells the journal so:
    /// `base` is what the lower has there. The tree lock is held.
    fn link_up(
        &self,
        caller: &Caller,
        node: &Arc<Node>,
        dir: &Arc<Node>,
        name: &Name,
        base: &Option<BaseId>,
    ) -> Sys<()> {
        self.copy_up_dir(dir)?;
        let from = self.locate(node)?;
        let upper = self.upper_dir(dir)?;
        forced(upper.as_fd(), || file::linkat(from.dir.as_fd(), &from.name, upper.as_fd(), name.as_bytes()))?;
        let mut place = node.place.write();
        if let Some(index) = &place.index {
            write_adj(self.writable(node)?, index, place.nlink_adj - 1)
                .inspect_err(|_| clear(upper.as_fd(), name.as_bytes()))?;
        }
        place.nlink_adj -= 1;
        if let Some(link) = place.links.iter_mut().find(|l| l.parent.id == dir.id && l.name == *name) {
            link.upper = true;
        }
        drop(place);
        // The upper has the changed object under this name as well now, whatever comes next.
        let path = self.path_in(dir, name.as_bytes());
        self.record(caller, Note::new(Op::Write, node.root, path, node.kind).base(base.clone()));
        Ok(())
    }

    /// An object of the upper that only names of the lower lead to gets one of them in the upper: what the session did to it
    /// would not be told by any name otherwise. The tree lock must not be held.
    ///
    /// # Errors
    /// As `linkat(2)`.
    pub(super) fn keep_named(&self, caller: &Caller, node: &Arc<Node>) -> Sys<()> {
        let known = |node: &Arc<Node>| {
            let place = node.place.read();
            let lost =
                place.upper && place.index.is_some() && !place.gone && place.links.iter().all(|l| !l.upper);
            place.links.first().filter(|_| lost).cloned()
        };
        if known(node).is_none() {
            return Ok(());
        }
        let _tree = self.tree.read();
        let Some(link) = known(node) else { return Ok(()) };
        self.copy_up_dir(&link.parent)?;
        let _ops = link.parent.dir()?.ops.lock();
        let Seen::Lower(k, attr) = self.see(&link.parent, link.name.as_bytes())? else { return Ok(()) };
        let lower = self.lower_dir(&link.parent, k)?;
        let base = Some(self.base_of(lower.as_fd(), link.name.as_bytes(), &attr));
        self.link_up(caller, node, &link.parent, &link.name, &base)
    }

    /// As [`Union::keep_named`], after an operation that stands.
    pub(super) fn keep_named_or_warn(&self, caller: &Caller, node: &Arc<Node>) {
        if let Err(e) = self.keep_named(caller, node) {
            tracing::warn!("a changed file keeps no name of its own, `apply` will not know of it: {e}");
        }
    }

    fn end(&self, dir: &Arc<Node>, name: &Name, held: &mut Vec<NodeId>) -> Sys<End> {
        let seen = self.see(dir, name.as_bytes())?;
        let node = match seen {
            Seen::Nothing | Seen::Whiteout(_) => None,
            _ => {
                let node = self.instantiate(dir, name, seen)?.0;
                held.push(node.id);
                Some(node)
            }
        };
        let lower = self.find_lower(dir, name.as_bytes())?.is_some();
        Ok(End { dir: dir.clone(), name: name.clone(), seen, node, lower })
    }

    fn rename_locked(
        &self,
        caller: &Caller,
        from: (&Arc<Node>, &Name),
        to: (&Arc<Node>, &Name),
        flags: u32,
        (base, mut base2): (Option<BaseId>, Option<BaseId>),
        held: &mut Vec<NodeId>,
    ) -> Sys<()> {
        if from.0.place.read().gone || to.0.place.read().gone {
            return Err(Errno::ENOENT);
        }
        let source = self.end(from.0, from.1, held)?;
        let target = self.end(to.0, to.1, held)?;
        let (Some(node), Seen::Upper(attr)) = (source.node.clone(), source.seen) else {
            return Err(if source.node.is_none() { Errno::ENOENT } else { Errno::EAGAIN });
        };
        self.may_move(&node, (from.0, from.1.as_bytes()), (to.0, to.1.as_bytes()))?;
        let root = self.writable(&node)?;
        let (from_path, to_path) =
            (self.path_in(from.0, from.1.as_bytes()), self.path_in(to.0, to.1.as_bytes()));
        let exchange = flags & libc::RENAME_EXCHANGE != 0;
        let mut strange = None;
        if exchange {
            self.exchange(root, &source, &target, &node)?;
        } else {
            if target.node.as_ref().is_some_and(|t| t.id == node.id) {
                return if flags & libc::RENAME_NOREPLACE != 0 { Err(Errno::EEXIST) } else { Ok(()) };
            }
            self.check_target(&target, &attr, flags)?;
            base2 = self.base_of_target(&target)?;
            // A directory that is merged with it takes it along.
            if node.place.read().lowers.is_empty() {
                strange = self.strange_below(&source.dir, &source.name, Some(&node), source.seen)?;
            }
            self.replace(root, &source, &target, &node).inspect_err(|_| {
                if let (Seen::Upper(attr), Some(base)) = (target.seen, &base2) {
                    self.owed.note_opaque(attr.dev, attr.ino, base.clone());
                }
            })?;
        }
        from.0.touch_entries();
        to.0.touch_entries();
        let other = target.node.as_ref().filter(|n| exchange || n.place.read().gone);
        let op = if exchange { Op::Exchange } else { Op::Rename };
        let mut note = Note::new(op, node.root, from_path.clone(), node.kind).base(base);
        (note.path2, note.base2) = (Some(to_path), base2);
        self.record(caller, note);
        self.record_hidden(caller, node.root, from_path, strange);
        for node in std::iter::once(&node).chain(other) {
            self.owed.told(node);
        }
        Ok(())
    }

    /// The rules of rename(2) for what is replaced.
    fn check_target(&self, target: &End, source: &Attr, flags: u32) -> Sys<()> {
        let (Some(node), Some(attr)) = (&target.node, target.attr()) else {
            return Ok(());
        };
        if flags & libc::RENAME_NOREPLACE != 0 {
            return Err(Errno::EEXIST);
        }
        match (source.kind == Kind::Dir, attr.kind == Kind::Dir) {
            (false, true) => Err(Errno::EISDIR),
            (true, false) => Err(Errno::ENOTDIR),
            (true, true) if !self.is_empty(node)? => Err(Errno::ENOTEMPTY),
            _ => Ok(()),
        }
    }

    fn base_of_target(&self, target: &End) -> Sys<Option<BaseId>> {
        let Seen::Lower(k, attr) = target.seen else {
            let node = target.node.as_ref().filter(|_| target.lower);
            return node.map_or(Ok(None), |node| self.untold(&target.dir, target.name.as_bytes(), node));
        };
        let dir = self.lower_dir(&target.dir, k)?;
        Ok(Some(self.base_of(dir.as_fd(), target.name.as_bytes(), &attr)))
    }

    /// Prepares a directory in the upper for a new place: what shows through it must not change.
    fn mark_moved(&self, root: &Writable, end: &End, node: &Arc<Node>, lower_there: bool) -> Sys<()> {
        if node.kind != Kind::Dir {
            return Ok(());
        }
        let dir = self.upper_dir(&end.dir)?;
        let handle = file::openat(dir.as_fd(), end.name.as_bytes(), libc::O_PATH | libc::O_DIRECTORY, 0)?;
        let lowers = node.place.read().lowers.clone();
        match lowers.first() {
            Some(_) if !root.redirects => Err(Errno::EXDEV),
            Some(top) => {
                self.redirected.store(true, std::sync::atomic::Ordering::Release);
                let marked = forced(handle.as_fd(), || layer::write_redirect(handle.as_fd(), &top.path));
                match marked {
                    // A path too long for the file system's xattrs: the program copies instead.
                    Err(Errno::ENOSPC | Errno::E2BIG | Errno::ERANGE)
                        if top.path.as_bytes().len() > LONG_PATH =>
                    {
                        Err(Errno::EXDEV)
                    }
                    other => other,
                }
            }
            None if lower_there => forced(handle.as_fd(), || layer::set_opaque(handle.as_fd())),
            None => Ok(()),
        }
    }

    fn replace(&self, root: &Writable, source: &End, target: &End, node: &Arc<Node>) -> Sys<()> {
        self.mark_moved(root, source, node, target.lower)?;
        let kept = self.handle_to_keep(&target.dir, &target.name, target.node.as_ref(), target.seen)?;
        let in_the_way = node.kind == Kind::Dir && matches!(target.seen, Seen::Upper(_));
        let aside = match &target.node {
            Some(old) if in_the_way => !self.empty_of_marks(root, target, old)?,
            _ => false,
        };
        let fewer = fewer_names(root, target.node.as_ref(), &target.dir, &target.name)?;
        let moved =
            if aside { self.swap_out(root, source, target) } else { self.step(root, source, target, node) };
        if let Err(e) = moved {
            fewer.undo(root);
            return Err(e);
        }
        if let (Some(old), Some(attr)) = (&target.node, target.attr()) {
            if old.kind == Kind::Dir {
                let upper = old.place.read().upper;
                self.mark_gone(old, if upper { kept } else { None });
            } else {
                drop_name(root, old, &target.dir, &target.name, &attr, kept);
            }
        }
        move_link(node, source, target);
        Ok(())
    }

    /// The one step that programs see, when nothing is in the way of it.
    fn step(&self, root: &Writable, source: &End, target: &End, node: &Arc<Node>) -> Sys<()> {
        let (dir, to_dir) = (self.upper_dir(&source.dir)?, self.upper_dir(&target.dir)?);
        let (name, to) = (source.name.as_bytes(), target.name.as_bytes());
        let prefixed = root.features.whiteout == WhiteoutForm::Prefix;
        let rename = |flags| file::renameat(dir.as_fd(), name, to_dir.as_fd(), to, flags);
        if node.kind == Kind::Dir && matches!(target.seen, Seen::Whiteout(WhiteoutForm::Device)) {
            // rename(2) does not put a directory over a device: let them change places.
            rename(libc::RENAME_EXCHANGE)?;
            if !source.lower
                && let Err(e) = file::unlinkat(dir.as_fd(), name)
            {
                tracing::warn!("a whiteout that hides nothing could not be removed: {e}");
            }
            return Ok(());
        }
        if !prefixed {
            return rename(if source.lower { libc::RENAME_WHITEOUT } else { 0 });
        }
        if source.lower {
            layer::make_whiteout(dir.as_fd(), name, WhiteoutForm::Prefix)?;
        }
        let undo = || {
            if source.lower {
                no_whiteout(dir.as_fd(), name);
            }
        };
        rename(0).inspect_err(|_| undo())?;
        if matches!(target.seen, Seen::Whiteout(WhiteoutForm::Prefix)) {
            let back = || file::renameat(to_dir.as_fd(), to, dir.as_fd(), name, 0).inspect(|()| undo());
            return unhide(to_dir.as_fd(), to, back);
        }
        Ok(())
    }

    /// Makes a directory that is empty in the view empty on the disk, so that another can be renamed over it; the view
    /// does not change. False where a directory cannot be opaque and empty.
    fn empty_of_marks(&self, root: &Writable, end: &End, old: &Arc<Node>) -> Sys<bool> {
        let dir = self.upper_dir(&end.dir)?;
        let handle = open_forced(dir.as_fd(), end.name.as_bytes(), libc::O_RDONLY | libc::O_DIRECTORY)?;
        let marks = sys::dir::entries(handle.as_fd())?;
        if marks.is_empty() {
            return Ok(true);
        }
        if !root.features.xattr {
            return Ok(false);
        }
        forced(handle.as_fd(), || layer::set_opaque(handle.as_fd()))?;
        // What lies below is hidden as a whole now, and stays so should the rename fail.
        self.fds.forget_all(old.id, old.place.read().lowers.len());
        old.place.write().lowers = Arc::default();
        for mark in marks {
            forced(handle.as_fd(), || file::unlinkat(handle.as_fd(), &mark.name))?;
        }
        Ok(true)
    }

    /// For an empty directory that is in the way with its marks: the two change places, and it goes from there. Killed
    /// in between, both are there still, exchanged.
    fn swap_out(&self, root: &Writable, source: &End, target: &End) -> Sys<()> {
        let (dir, to_dir) = (self.upper_dir(&source.dir)?, self.upper_dir(&target.dir)?);
        let (name, to) = (source.name.as_bytes(), target.name.as_bytes());
        let swap = || file::renameat(dir.as_fd(), name, to_dir.as_fd(), to, libc::RENAME_EXCHANGE);
        swap()?;
        let gone = match source.lower {
            true => self.whiteout_over_dir(root, dir.as_fd(), name),
            false => self.remove_upper_dir(root, dir.as_fd(), name),
        };
        gone.or_else(|e| swap().and(Err(e)))
    }

    fn exchange(&self, root: &Writable, source: &End, target: &End, node: &Arc<Node>) -> Sys<()> {
        let (Some(other), Seen::Upper(_)) = (target.node.clone(), target.seen) else {
            return Err(if target.node.is_none() { Errno::ENOENT } else { Errno::EAGAIN });
        };
        if other.id == node.id {
            return Ok(());
        }
        self.may_move(&other, (&target.dir, target.name.as_bytes()), (&source.dir, source.name.as_bytes()))?;
        self.mark_moved(root, source, node, target.lower)?;
        self.mark_moved(root, target, &other, source.lower)?;
        let (dir, to_dir) = (self.upper_dir(&source.dir)?, self.upper_dir(&target.dir)?);
        let flags = libc::RENAME_EXCHANGE;
        file::renameat(dir.as_fd(), source.name.as_bytes(), to_dir.as_fd(), target.name.as_bytes(), flags)?;
        move_link(node, source, target);
        move_link(&other, target, source);
        Ok(())
    }
}

/// The name of `node` that was at `from` is now at `to`.
fn move_link(node: &Arc<Node>, from: &End, to: &End) {
    let mut place = node.place.write();
    let link = Link { parent: to.dir.clone(), name: to.name.clone(), upper: true };
    match place.links.iter_mut().find(|l| l.parent.id == from.dir.id && l.name == from.name) {
        Some(old) => *old = link,
        None => place.links.push(link),
    }
}
