//! The merged view of one root as far as it was touched: a trie whose nodes know where in the lower they come from.
//!
//! Only paths that records name, and the directories above them, have a node; all else is as in the lower. A *slot* is
//! a name in a directory. What the lower has at a slot may be hidden (`gone`): because it was deleted, or because it
//! lives elsewhere now (`away`). What is present is a node, and its origin is one of:
//!  - `Here`: the lower object of this very slot. Its lower path is that of the directory plus the name.
//!  - `Away`: the lower object of another slot, its *home*; the home's `gone.away` points back to it.
//!  - `Lower`: a lower object whose home slot went with its directory; the path is kept literally.
//!  - `New`: made in the session. There is nothing of the lower beneath a new directory.
//!
//! So a rename of a directory moves one node, and all lower paths beneath follow by themselves. Lower paths get
//! shorter with every step towards the root of the lower, so following origins ends.

use crate::base::{BaseId, Change, ChangeSet, Kind, ProcRef, RelPath, What};
use std::collections::{BTreeMap, HashMap};

pub(super) type Id = u32;
pub(super) const ROOT: Id = 0;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Origin {
    New,
    Here,
    Away { home: Id, name: Box<[u8]> },
    Lower(RelPath),
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) parent: Id,
    pub(super) name: Box<[u8]>,
    pub(super) origin: Origin,
    pub(super) kind: Kind,
    pub(super) content: bool,
    pub(super) meta: bool,
    /// What the lower object was; `None` for a new one or when never told.
    pub(super) base: Option<Box<BaseId>>,
    pub(super) last: ProcRef,
    /// The group of names that share one object, of the real tree or since the session linked them; 0 for none.
    pub(super) group: u32,
    pub(super) slots: BTreeMap<Box<[u8]>, Slot>,
}

#[derive(Debug, Default)]
pub(super) struct Slot {
    pub(super) node: Option<Id>,
    pub(super) gone: Option<Box<Gone>>,
}

/// A lower object that is not to be seen at its slot.
#[derive(Debug)]
pub(super) struct Gone {
    pub(super) kind: Kind,
    pub(super) base: Option<Box<BaseId>>,
    pub(super) last: ProcRef,
    /// The node it is now; `None` when it was deleted.
    pub(super) away: Option<Id>,
}

#[derive(Debug)]
pub(super) struct Tree {
    pub(super) nodes: Vec<Node>,
    free: Vec<Id>,
    /// The names of each group; group `n` is at `n - 1`.
    groups: Vec<Vec<Id>>,
    /// The groups of real files with several names, by device and inode.
    real_groups: HashMap<(u64, u64), u32>,
}

impl Node {
    pub(super) fn new(parent: Id, name: &[u8], origin: Origin, kind: Kind) -> Node {
        Node {
            parent,
            name: name.into(),
            origin,
            kind,
            content: false,
            meta: false,
            base: None,
            last: ProcRef::default(),
            group: 0,
            slots: BTreeMap::new(),
        }
    }

    /// Forgets that it was changed.
    pub(super) fn clear(&mut self) {
        self.content = false;
        self.meta = false;
        self.base = None;
    }
}

impl Tree {
    pub(super) fn new() -> Tree {
        let root = Node::new(ROOT, b"", Origin::Here, Kind::Dir);
        Tree { nodes: vec![root], free: Vec::new(), groups: Vec::new(), real_groups: HashMap::new() }
    }

    pub(super) fn node(&self, id: Id) -> &Node {
        &self.nodes[id as usize]
    }

    pub(super) fn node_mut(&mut self, id: Id) -> &mut Node {
        &mut self.nodes[id as usize]
    }

    pub(super) fn slot(&self, dir: Id, name: &[u8]) -> Option<&Slot> {
        self.node(dir).slots.get(name)
    }

    pub(super) fn slot_mut(&mut self, dir: Id, name: &[u8]) -> &mut Slot {
        self.node_mut(dir).slots.entry(name.into()).or_default()
    }

    /// Makes a node at a slot, in the place of what was there.
    pub(super) fn put(&mut self, dir: Id, name: &[u8], origin: Origin, kind: Kind) -> Id {
        if let Some(old) = self.slot(dir, name).and_then(|s| s.node) {
            self.drop_subtree(old);
        }
        let node = Node::new(dir, name, origin, kind);
        let id = match self.free.pop() {
            Some(id) => {
                self.nodes[id as usize] = node;
                id
            }
            None => {
                self.nodes.push(node);
                (self.nodes.len() - 1) as Id
            }
        };
        self.slot_mut(dir, name).node = Some(id);
        id
    }

    /// Whether the lower may have something beneath directory `id`.
    pub(super) fn has_lower(&self, id: Id) -> bool {
        self.node(id).origin != Origin::New
    }

    /// The lower path of a node; `None` for a new one.
    pub(super) fn lower(&self, id: Id) -> Option<RelPath> {
        let mut names: Vec<&[u8]> = Vec::new();
        let mut at = id;
        let mut path = loop {
            // Ends as the lower is a tree; the bound is for a log that no sane writer made.
            if names.len() > self.nodes.len() {
                return None;
            }
            match &self.node(at).origin {
                Origin::New => return None,
                Origin::Lower(path) => break path.clone(),
                Origin::Here if at == ROOT => break RelPath::root(),
                Origin::Here => {
                    names.push(&self.node(at).name);
                    at = self.node(at).parent;
                }
                Origin::Away { home, name } => {
                    names.push(name);
                    at = *home;
                }
            }
        };
        for name in names.into_iter().rev() {
            path = path.join(name);
        }
        Some(path)
    }

    /// Whether `id` is `top` or lies beneath it.
    pub(super) fn is_beneath(&self, id: Id, top: Id) -> bool {
        let mut at = id;
        while at != top && at != ROOT {
            at = self.node(at).parent;
        }
        at == top
    }

    /// The node at `name` of `dir`; made when the merged view has there what the lower has. `None` when it is gone.
    pub(super) fn step(&mut self, dir: Id, name: &[u8], kind: Kind) -> Option<Id> {
        match self.slot(dir, name) {
            Some(Slot { node: Some(id), .. }) => Some(*id),
            Some(Slot { gone: Some(_), .. }) => None,
            _ => {
                // In a new directory something that was never made: a fault of the log. Losing it would be worse.
                let origin = if self.has_lower(dir) { Origin::Here } else { Origin::New };
                Some(self.put(dir, name, origin, kind))
            }
        }
    }

    /// The node at `path`; `None` when it is gone.
    pub(super) fn reach(&mut self, path: &RelPath, kind: Kind) -> Option<Id> {
        let mut at = ROOT;
        let mut names = path.components().peekable();
        while let Some(name) = names.next() {
            let kind = if names.peek().is_none() { kind } else { Kind::Dir };
            at = self.step(at, name, kind)?;
        }
        Some(at)
    }

    /// The directory that holds `path`, and the name there; `None` for the root, and when the directory is gone.
    pub(super) fn place<'a>(&mut self, path: &'a RelPath) -> Option<(Id, &'a [u8])> {
        let name = path.file_name()?;
        Some((self.reach(&path.parent()?, Kind::Dir)?, name))
    }

    /// The slot of `path`, without making anything.
    pub(super) fn find<'a>(&self, path: &'a RelPath) -> Option<(Id, &'a [u8])> {
        let mut at = ROOT;
        let mut names = path.components();
        let last = names.next_back()?;
        for name in names {
            at = self.slot(at, name)?.node?;
        }
        Some((at, last))
    }

    /// The slot where the lower object `path` is at home, unless its directory was deleted.
    pub(super) fn find_home<'a>(&mut self, path: &'a RelPath) -> Option<(Id, &'a [u8])> {
        let mut at = ROOT;
        let mut names = path.components();
        let last = names.next_back()?;
        for name in names {
            let slot = self.slot(at, name);
            at = match (slot.and_then(|s| s.gone.as_ref()), slot.and_then(|s| s.node)) {
                (Some(gone), _) => gone.away?,
                (None, Some(id)) if self.has_lower(id) => id,
                (None, Some(_)) => return None,
                (None, None) => self.put(at, name, Origin::Here, Kind::Dir),
            };
        }
        Some((at, last))
    }

    /// Takes a node out of its slot. The lower object of that slot leaves a mark there.
    pub(super) fn leave(&mut self, id: Id) {
        let node = self.node(id);
        let (dir, name) = (node.parent, node.name.clone());
        let gone = (node.origin == Origin::Here).then(|| {
            Box::new(Gone { kind: node.kind, base: node.base.clone(), last: node.last, away: Some(id) })
        });
        let slot = self.slot_mut(dir, &name);
        slot.node = None;
        if gone.is_some() {
            slot.gone = gone;
            self.node_mut(id).origin = Origin::Away { home: dir, name };
        } else {
            self.tidy(dir, &name);
        }
    }

    /// Puts a node that [`Tree::leave`] took out into a slot.
    pub(super) fn enter(&mut self, id: Id, dir: Id, name: &[u8]) {
        let node = self.node_mut(id);
        node.parent = dir;
        node.name = name.into();
        let at_home = matches!(&node.origin, Origin::Away { home, name: n } if *home == dir && **n == *name);
        if at_home {
            node.origin = Origin::Here;
        }
        let slot = self.slot_mut(dir, name);
        slot.node = Some(id);
        if at_home {
            slot.gone = None;
        }
    }

    /// Deletes a node: a lower object leaves a tombstone at its home. The directory stays, also when it says nothing
    /// then: [`Tree::prune`] it unless something else takes the slot.
    pub(super) fn delete(&mut self, id: Id, last: ProcRef) {
        let node = self.node(id);
        let (dir, name) = (node.parent, node.name.clone());
        if node.origin == Origin::Here {
            let gone = Gone { kind: node.kind, base: node.base.clone(), last, away: None };
            self.slot_mut(dir, &name).gone = Some(Box::new(gone));
        }
        self.node_mut(id).last = last;
        // The tombstone that shows again was touched by this too.
        if let Some(gone) = self.slot_mut(dir, &name).gone.as_mut().filter(|g| g.away.is_none()) {
            gone.last = last;
        }
        self.drop_subtree(id);
        self.tidy(dir, &name);
    }

    /// What is at home at a slot no longer lives elsewhere: it is deleted.
    fn strand(&mut self, home: Id, name: &[u8], last: ProcRef) {
        if let Some(gone) = self.node_mut(home).slots.get_mut(name).and_then(|s| s.gone.as_mut()) {
            gone.away = None;
            gone.last = last;
        }
    }

    /// Frees a node and all beneath it, and takes it out of its slot. Objects that had their home there keep their
    /// lower paths literally; the homes of those that go become tombstones.
    pub(super) fn drop_subtree(&mut self, top: Id) {
        let mut all = vec![top];
        let mut i = 0;
        while i < all.len() {
            let slots = self.node(all[i]).slots.values();
            all.extend(slots.filter_map(|s| s.node));
            i += 1;
        }
        for &id in &all {
            self.orphan_guests(id);
        }
        for &id in &all {
            if let Origin::Away { home, name } = self.node(id).origin.clone() {
                let last = self.node(id).last;
                self.strand(home, &name, last);
            }
        }
        let (dir, name) = (self.node(top).parent, self.node(top).name.clone());
        self.slot_mut(dir, &name).node = None;
        for id in all {
            self.release(id);
        }
    }

    /// Gives literal lower paths to the objects whose home is in directory `dir`, which goes away.
    fn orphan_guests(&mut self, dir: Id) {
        let guests: Vec<(Box<[u8]>, Id)> = self
            .node(dir)
            .slots
            .iter()
            .filter_map(|(name, slot)| Some((name.clone(), slot.gone.as_ref()?.away?)))
            .collect();
        if guests.is_empty() {
            return;
        }
        let lower = self.lower(dir);
        for (name, guest) in guests {
            self.node_mut(guest).origin =
                lower.as_ref().map_or(Origin::New, |lower| Origin::Lower(lower.join(&name)));
        }
    }

    /// Takes `base` unless the node is new or the first change told it already. Names of one real file are one file in
    /// the session too: what is written through one is to be seen under the others.
    pub(super) fn learn(&mut self, id: Id, base: &Option<BaseId>) {
        let node = self.node_mut(id);
        let Some(base) = base.as_ref().filter(|_| node.base.is_none() && node.origin != Origin::New) else {
            return;
        };
        node.base = Some(Box::new(base.clone()));
        if base.kind != Kind::File || base.nlink < 2 {
            return;
        }
        let key = (base.dev, base.ino);
        match self.real_groups.get(&key) {
            Some(&group) => self.join(id, group),
            None => {
                let group = self.group_of(id);
                self.real_groups.insert(key, group);
            }
        }
    }

    /// Gives the objects with literal lower paths in the directory that `dir` stands for their home in it.
    pub(super) fn bring_home(&mut self, dir: Id) {
        let Some(lower) = self.lower(dir) else { return };
        let name_in = |path: &RelPath| {
            path.file_name().filter(|_| path.parent().as_ref() == Some(&lower)).map(Box::from)
        };
        let guests: Vec<(Id, Box<[u8]>)> = (0..)
            .zip(&self.nodes)
            .filter_map(|(id, node)| match &node.origin {
                Origin::Lower(path) => Some((id, name_in(path)?)),
                _ => None,
            })
            .collect();
        for (guest, name) in guests {
            if self.slot(dir, &name).is_some_and(|s| s.gone.is_some()) {
                continue;
            }
            let node = self.node_mut(guest);
            if node.parent == dir && node.name == name {
                node.origin = Origin::Here;
                continue;
            }
            let gone = Gone { kind: node.kind, base: node.base.clone(), last: node.last, away: Some(guest) };
            node.origin = Origin::Away { home: dir, name: name.clone() };
            self.slot_mut(dir, &name).gone = Some(Box::new(gone));
        }
    }

    /// From now on two nodes are names of one object.
    pub(super) fn link(&mut self, a: Id, b: Id) {
        if a == b || self.node(a).kind == Kind::Dir {
            return;
        }
        let group = self.group_of(b);
        self.join(a, group);
    }

    /// The group of a node, made if it has none.
    fn group_of(&mut self, id: Id) -> u32 {
        if self.node(id).group == 0 {
            self.groups.push(vec![id]);
            self.node_mut(id).group = self.groups.len() as u32;
        }
        self.node(id).group
    }

    fn join(&mut self, id: Id, group: u32) {
        if self.node(id).group == group {
            return;
        }
        self.unlink(id);
        self.groups[group as usize - 1].push(id);
        self.node_mut(id).group = group;
    }

    fn unlink(&mut self, id: Id) {
        let group = std::mem::take(&mut self.node_mut(id).group);
        if let Some(names) = (group as usize).checked_sub(1).and_then(|i| self.groups.get_mut(i)) {
            names.retain(|n| *n != id);
        }
    }

    /// The other names of a node's object.
    pub(super) fn other_names(&self, id: Id) -> Vec<Id> {
        let group = (self.node(id).group as usize).checked_sub(1).and_then(|i| self.groups.get(i));
        group.map_or_else(Vec::new, |names| names.iter().copied().filter(|n| *n != id).collect())
    }

    fn release(&mut self, id: Id) {
        self.unlink(id);
        *self.node_mut(id) = Node::new(ROOT, b"", Origin::New, Kind::File);
        self.free.push(id);
    }

    /// Removes a slot that says nothing.
    pub(super) fn tidy(&mut self, dir: Id, name: &[u8]) {
        let slots = &mut self.node_mut(dir).slots;
        if slots.get(name).is_some_and(|s| s.node.is_none() && s.gone.is_none()) {
            slots.remove(name);
        }
    }

    /// Removes a node that says nothing, and those above it that then say nothing. A base stays known: the writer
    /// gives it only once.
    pub(super) fn prune(&mut self, id: Id) {
        let mut at = id;
        while at != ROOT {
            let node = self.node(at);
            let says =
                node.content || node.meta || node.base.is_some() || node.group != 0 || !node.slots.is_empty();
            if says || node.origin != Origin::Here {
                return;
            }
            let (dir, name) = (node.parent, node.name.clone());
            self.slot_mut(dir, &name).node = None;
            self.tidy(dir, &name);
            self.release(at);
            at = dir;
        }
    }

    /// Gives other literal lower paths to what came from beneath `from`, a directory that the real tree now has at `to`. What
    /// was applied before has its new path already: that at which it is seen.
    pub(super) fn rebase(&mut self, from: &RelPath, to: &RelPath) {
        for id in 0..self.nodes.len() as Id {
            if let Origin::Lower(path) = &self.node(id).origin
                && let Some(rest) = path.strip_prefix(from)
                && self.path(id) != *path
            {
                let path = rest.components().fold(to.clone(), |p, name| p.join(name));
                self.node_mut(id).origin = Origin::Lower(path);
            }
        }
    }

    /// The net changes, in no order, and the bases of lower objects that a renamed one replaced.
    pub(super) fn changes(&self, root: u16) -> (Vec<Change>, Vec<(RelPath, BaseId)>) {
        let (mut out, mut replaced) = (Vec::new(), Vec::new());
        // What is at its real path again: where its change is, and that of its home.
        let (mut back, mut homes) = (Vec::new(), Vec::new());
        let top = self.node(ROOT);
        if top.content || top.meta {
            out.push(change(root, RelPath::root(), What::Meta, top));
        }
        // Depth first, in the order of names: all but sorted already.
        let mut open = vec![(ROOT, RelPath::root(), self.node(ROOT).slots.iter())];
        while let Some((dir, at, slots)) = open.last_mut() {
            let Some((name, slot)) = slots.next() else {
                open.pop();
                continue;
            };
            let (dir, path) = (*dir, at.join(name));
            if let Some(id) = slot.node {
                if !self.node(id).slots.is_empty() {
                    open.push((id, path.clone(), self.node(id).slots.iter()));
                }
                let deleted = slot.gone.as_ref().filter(|g| g.away.is_none());
                if let Some(change) = self.present(root, path, dir, slot, id) {
                    let hidden = deleted.and_then(|g| g.base.as_deref());
                    if let (What::Renamed, Some(base)) = (change.what, hidden) {
                        replaced.push((change.path.clone(), base.clone()));
                    }
                    if self.is_back(id) {
                        back.extend(self.lower(id).map(|real| (out.len(), real)));
                    }
                    out.push(change);
                }
            } else if let Some(gone) = slot.gone.as_ref().filter(|g| g.away.is_none_or(|id| self.is_back(id)))
            {
                homes.extend(gone.away.map(|id| (out.len(), self.path(id))));
                out.push(Change {
                    root,
                    path,
                    what: What::Deleted,
                    from: None,
                    kind: gone.kind,
                    base: gone.base.as_deref().cloned(),
                    content: false,
                    meta: false,
                    opaque: false,
                    last: gone.last,
                });
            }
        }
        let renamed = ChangeSet::rename_left_behind(&mut out, back);
        // The rename tells that its home has lost it.
        for (i, _) in homes.iter().rev().filter(|(_, guest)| renamed.contains(guest)) {
            out.swap_remove(*i);
        }
        (out, replaced)
    }

    /// Whether what lives elsewhere is not a rename there: in the end it is where the real tree has it, in a directory that was
    /// made in the session. Then its home has lost it. (A directory of the real tree that was renamed to there is another
    /// matter: both move, and one comes into the other.)
    fn is_back(&self, id: Id) -> bool {
        let node = self.node(id);
        matches!(node.origin, Origin::Away { .. } | Origin::Lower(_))
            && !self.has_lower(node.parent)
            && self.lower(id).is_some_and(|lower| {
                self.place_below(node.parent).is_some_and(|p| p.join(&node.name) == lower)
            })
    }

    /// Where the real tree would have directory `id`, were it not made in the session: beneath the nearest one that was not.
    fn place_below(&self, id: Id) -> Option<RelPath> {
        let mut names: Vec<&[u8]> = Vec::new();
        let mut at = id;
        while !self.has_lower(at) {
            if at == ROOT || names.len() > self.nodes.len() {
                return None;
            }
            names.push(&self.node(at).name);
            at = self.node(at).parent;
        }
        Some(names.into_iter().rev().fold(self.lower(at)?, |path, name| path.join(name)))
    }

    /// Where a node is in the merged view.
    fn path(&self, id: Id) -> RelPath {
        let mut names: Vec<&[u8]> = Vec::new();
        let mut at = id;
        while at != ROOT && names.len() <= self.nodes.len() {
            names.push(&self.node(at).name);
            at = self.node(at).parent;
        }
        names.into_iter().rev().fold(RelPath::root(), |path, name| path.join(name))
    }

    /// The change that a present node is, if it is one.
    fn present(&self, root: u16, path: RelPath, dir: Id, slot: &Slot, id: Id) -> Option<Change> {
        let node = self.node(id);
        match &node.origin {
            Origin::New => Some(made(root, path, slot, node)),
            Origin::Here => touched(root, path, node),
            Origin::Away { .. } | Origin::Lower(_) => {
                // Its home may lie in a directory that has lost its real counterpart.
                let Some(from) = self.lower(id) else { return Some(made(root, path, slot, node)) };
                let beneath = self.lower(dir).map(|d| d.join(&node.name));
                if beneath.as_ref() == Some(&from) {
                    return touched(root, path, node);
                }
                if self.is_back(id) {
                    // Back where the real tree has it, but in a directory that the session made there: what the real tree has
                    // there stays, unless a comparison finds otherwise, or it has to move for that.
                    let back = change(root, path, What::Modified, node);
                    let file = node.kind != Kind::Dir;
                    return Some(Change { content: file || node.content, meta: file || node.meta, ..back });
                }
                Some(Change { from: Some(from), ..change(root, path, What::Renamed, node) })
            }
        }
    }
}

fn change(root: u16, path: RelPath, what: What, node: &Node) -> Change {
    Change {
        root,
        path,
        what,
        from: None,
        kind: node.kind,
        base: node.base.as_deref().cloned(),
        content: node.content,
        meta: node.meta,
        opaque: false,
        last: node.last,
    }
}

/// A lower object at its place.
fn touched(root: u16, path: RelPath, node: &Node) -> Option<Change> {
    let what = match (node.content, node.meta) {
        (false, false) => return None,
        (true, _) if node.kind != Kind::Dir => What::Modified,
        _ => What::Meta,
    };
    Some(change(root, path, what, node))
}

/// An object made in the session, over what the lower may have had.
fn made(root: u16, path: RelPath, slot: &Slot, node: &Node) -> Change {
    let mut change = Change { content: true, ..change(root, path, What::Added, node) };
    if let Some(gone) = &slot.gone {
        change.what = if gone.kind == node.kind { What::Modified } else { What::Typed };
        change.base = gone.base.as_deref().cloned();
        change.meta = true;
        change.opaque = node.kind == Kind::Dir;
    }
    change
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::{Entry, Folder, Op, Record};
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// Every node is in one slot or free, and homes and guests point at each other.
    fn audit(tree: &Tree) {
        let mut seen = BTreeSet::new();
        let mut todo = vec![ROOT];
        while let Some(id) = todo.pop() {
            assert!(seen.insert(id), "a node in two slots");
            for (name, slot) in &tree.node(id).slots {
                assert!(slot.node.is_some() || slot.gone.is_some(), "a slot that says nothing");
                if let Some(child) = slot.node {
                    assert_eq!((tree.node(child).parent, &tree.node(child).name), (id, name));
                    todo.push(child);
                }
                if let Some(guest) = slot.gone.as_ref().and_then(|g| g.away) {
                    let home = Origin::Away { home: id, name: name.clone() };
                    assert_eq!(tree.node(guest).origin, home);
                }
            }
        }
        for &id in &seen {
            if let Origin::Away { home, name } = &tree.node(id).origin {
                let mark = tree.slot(*home, name).and_then(|s| s.gone.as_ref()).and_then(|g| g.away);
                assert!(seen.contains(home) && mark == Some(id), "a guest without a home");
            }
        }
        assert!(tree.free.iter().all(|id| !seen.contains(id)));
        assert_eq!(seen.len() + tree.free.len(), tree.nodes.len(), "a node that is nowhere");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

        #[test]
        fn any_records_leave_a_sound_tree(
            records in proptest::collection::vec(
                (1u8..=20, "[abc](/[abc]){0,3}", "[abc](/[abc]){0,3}", 1u8..4, any::<(bool, bool, bool)>()),
                0..60,
            ),
        ) {
            let base = |kind| BaseId {
                kind, perm: 0, uid: 0, gid: 0, size: 0, dev: 0, ino: 0, nlink: 1,
                mtime: Default::default(), ctime: Default::default(), hash: None,
            };
            let mut folder = Folder::new();
            for (seq, (op, at, to, kind, (two, b1, b2))) in (1..).zip(records) {
                let kind = Kind::from_u8(kind).unwrap();
                let record = Record {
                    op: Op::from_u8(op).unwrap(),
                    root: 0,
                    path: RelPath::new(at.as_bytes()).unwrap(),
                    path2: two.then(|| RelPath::new(to.as_bytes()).unwrap()),
                    kind,
                    base: b1.then(|| base(kind)),
                    base2: b2.then(|| base(kind)),
                    proc: 0,
                };
                folder.push(Entry::Record { seq, time: 0, record });
                audit(folder.tree(0).unwrap());
            }
        }
    }
}
