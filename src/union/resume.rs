//! Open files go on when their change leaves the session: the number that the kernel knows leads to the real file then,
//! and what is written there is a change anew.

use super::drop::Lost;
use super::node::{Ident, Link, Node, NodeId, Place};
use super::{Root, Union};
use crate::base::{Attr, Errno, Kind, Name, Sys};
use crate::journal::Op;
use crate::layer::index_name;
use smallvec::smallvec;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Union {
    /// Does `verb`, which changes what node `id` is, while the object cannot leave the session.
    pub(crate) fn staying<T>(&self, id: NodeId, verb: impl FnOnce(&Arc<Node>) -> Sys<T>) -> Sys<T> {
        loop {
            let node = self.nodes.get(id)?;
            let left = node.left.read();
            if !*left {
                return verb(&node);
            }
            drop(left);
            // Until it is known what has the number then.
            drop(self.tree.read());
        }
    }

    /// The node `id`, and a descriptor of its content.
    pub(crate) fn open_node(&self, id: NodeId, write: bool) -> Sys<(Arc<Node>, Arc<OwnedFd>)> {
        loop {
            let node = self.nodes.get(id)?;
            match self.content(&node, write) {
                Err(Errno::ESTALE) if *node.left.read() => drop(self.tree.read()),
                found => return found.map(|fd| (node, fd)),
            }
        }
    }

    /// The copy of `node` is in no directory of the upper any more. The real object that shows instead, at one of `names`,
    /// becomes what the kernel knows by this number: the very object that was copied up if one of them has it, else
    /// another of its kind. Whatever was open goes on there.
    pub(super) fn resume(&self, root: &Root, lost: &Lost, names: &[(Arc<Node>, Name)], op: Op) -> Sys<()> {
        let node = &lost.node;
        let mut found = Vec::new();
        for (dir, name) in names {
            found.extend(self.real_at(root, dir, name, node.kind)?.map(|(layer, attr)| {
                (Link { parent: dir.clone(), name: name.clone(), upper: false }, layer, attr)
            }));
        }
        // As a twin it is the same, too.
        let same = |attr: &Attr| Ident { twin: node.ident.twin, ..Ident::of(node.root, attr) } == node.ident;
        found.sort_by_key(|(_, _, attr)| !same(attr));
        let shown = !found.is_empty();
        for (link, layer, attr) in found {
            let place = || Place { links: smallvec![link.clone()], layer, ..Place::default() };
            let mut new = self.nodes.succeed(node, Ident::of(node.root, &attr), place());
            if new.is_none() && same(&attr) {
                new = self.nodes.succeed(node, node.ident, place());
            }
            if let Some(new) = new {
                new.maybe_suid.store(attr.perm & 0o6000 != 0, Ordering::Relaxed);
                self.let_go(lost);
                return Ok(());
            }
        }
        if shown && op == Op::Applied {
            // The kernel knows the real file by another number. Better an error than a write that nobody will see.
            self.nodes.disown(node);
            self.let_go(lost);
        }
        Ok(())
    }

    /// The real object that the view has at `name` of `dir`, if it is a `kind`, and its layer.
    fn real_at(&self, root: &Root, dir: &Arc<Node>, name: &Name, kind: Kind) -> Sys<Option<(u16, Attr)>> {
        let super::lookup::Seen::Lower(k, attr) = self.see_all(dir, name.as_bytes())? else {
            return Ok(None);
        };
        if attr.kind != kind {
            return Ok(None);
        }
        // One that has several names may be in the session under another of them.
        if let Some(writable) =
            root.writable.as_ref().filter(|w| attr.nlink > 1 && w.indexed.load(Ordering::Acquire))
            && super::lookup::stat_index(writable, &index_name(attr.ino, attr.btime))?.is_some()
        {
            return Ok(None);
        }
        let layer = dir.place.read().lowers.get(k).ok_or(Errno::ESTALE)?.layer;
        Ok(Some((layer, attr)))
    }

    /// Nothing of what is kept for the number of `lost` is good for what has it now.
    fn let_go(&self, lost: &Lost) {
        let node = &lost.node;
        self.fds.forget_all(node.id, 0);
        self.unwatch_linked(node);
        self.nodes.lose_copied(node);
        self.owed.told(node);
        if let Some(partial) = self.partial_of(node) {
            self.abandon(&partial);
        }
        self.loosen();
    }
}
