//! From what happened to what differs: the net changes that a log of operations amounts to.
//!
//! Memory goes with the number of changes, not of entries. The result is a set of candidates: whether a file that
//! was written really differs, only a comparison with the real tree can say.

use super::reader::Reader;
use super::record::{Command, Entry, Op, Process, Record};
use super::tree::{Gone, Id, Origin, ROOT, Slot, Tree};
use crate::base::{BaseId, Change, ChangeSet, Kind, ProcRef, RelPath, Result, What};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// What a journal amounts to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Folded {
    /// The net changes, ordered by root, then path; at most one per path.
    pub set: ChangeSet,
    /// The processes that records name, by id.
    pub processes: BTreeMap<u32, Process>,
    /// The commands that processes name, by id.
    pub commands: BTreeMap<u32, Command>,
    /// What deleted lower objects were whose place a renamed one has taken: by root and path of that `Renamed`.
    pub replaced: BTreeMap<(u16, RelPath), BaseId>,
    /// Whether the last entry is `Closed`, or there is none.
    pub clean: bool,
    /// The sequence number of the last record; 0 when there is none.
    pub last_seq: u64,
}

impl Folded {
    /// The change at exactly this path.
    pub fn get(&self, root: u16, path: &RelPath) -> Option<&Change> {
        let at = self.set.changes.binary_search_by(|c| (c.root, &c.path).cmp(&(root, path))).ok()?;
        self.set.changes.get(at)
    }

    /// The changes at `dir` and beneath it, in order.
    pub fn under<'a>(&'a self, root: u16, dir: &'a RelPath) -> impl Iterator<Item = &'a Change> + 'a {
        let all = &self.set.changes;
        let from = all.partition_point(|c| (c.root, &c.path) < (root, dir));
        // Names like `dir-x` sort between `dir` and `dir/x`: they share its bytes, but do not lie beneath.
        all[from..]
            .iter()
            .take_while(move |c| c.root == root && c.path.as_bytes().starts_with(dir.as_bytes()))
            .filter(move |c| c.path.starts_with(dir))
    }

    /// The process that last touched a change; `None` when unknown.
    pub fn process(&self, change: &Change) -> Option<&Process> {
        self.processes.get(&change.last.proc)
    }

    /// The command that the process which last touched a change belongs to; `None` when unknown.
    pub fn command(&self, change: &Change) -> Option<&Command> {
        self.commands.get(&self.process(change)?.command)
    }

    /// The path in the real tree of what the merged view has at `path` (for a deletion: had there), following renames of
    /// directories above it; `None` when it, or a directory above it, was made in the session. Whether the real tree has an
    /// object there is not known here.
    pub fn lower_path(&self, root: u16, path: &RelPath) -> Option<RelPath> {
        let mut dir = Some(path.clone());
        while let Some(at) = dir {
            let found = self.get(root, &at);
            let made = |c: &Change| {
                c.what == What::Added
                    || c.opaque
                    || (at != *path && matches!(c.what, What::Deleted | What::Typed))
            };
            if found.is_some_and(made) {
                return None;
            }
            if let Some(from) = found.and_then(|c| c.from.as_ref()) {
                let rest = path.strip_prefix(&at)?;
                return Some(rest.components().fold(from.clone(), |p, name| p.join(name)));
            }
            dir = at.parent();
        }
        Some(path.clone())
    }
}

/// The net changes of `entries`, the whole log from its start.
pub fn fold(entries: impl IntoIterator<Item = Entry>) -> Folded {
    let mut folder = Folder::new();
    for entry in entries {
        folder.push(entry);
    }
    folder.finish()
}

/// The net changes of the log in `dir`, without holding its entries in memory.
///
/// # Errors
/// As [`Reader`].
pub fn fold_dir(dir: &Path) -> Result<Folded> {
    let mut folder = Folder::new();
    for entry in Reader::open(dir)? {
        folder.push(entry?);
    }
    Ok(folder.finish())
}

/// A fold in progress: entries go in one by one, and the changes so far can be had at any time.
#[derive(Debug, Default)]
pub struct Folder {
    trees: HashMap<u16, Tree>,
    processes: BTreeMap<u32, Process>,
    commands: BTreeMap<u32, Command>,
    open: bool,
    last_seq: u64,
}

impl Folder {
    /// A fold of nothing.
    pub fn new() -> Folder {
        Folder::default()
    }

    /// Takes the next entry. A record that contradicts those before it is taken as far as it makes sense.
    pub fn push(&mut self, entry: Entry) {
        self.open = !matches!(entry, Entry::Closed);
        match entry {
            Entry::Record { seq, time, record } => {
                self.last_seq = seq;
                let last = ProcRef { seq, time, proc: record.proc };
                self.trees.entry(record.root).or_insert_with(Tree::new).apply(&record, last);
            }
            Entry::Process(process) => {
                self.processes.insert(process.id, process);
            }
            Entry::Command(command) => {
                self.commands.insert(command.id, command);
            }
            Entry::Opened { .. } | Entry::Closed => {}
        }
    }

    #[cfg(test)]
    pub(super) fn tree(&self, root: u16) -> Option<&Tree> {
        self.trees.get(&root)
    }

    /// The net changes of the entries so far.
    pub fn finish(&self) -> Folded {
        let (mut changes, mut replaced) = (Vec::new(), BTreeMap::new());
        for (&root, tree) in &self.trees {
            let (mut of_root, bases) = tree.changes(root);
            changes.append(&mut of_root);
            replaced.extend(bases.into_iter().map(|(path, base)| ((root, path), base)));
        }
        // Stable: it is made for what is nearly in order.
        changes.sort_by(|a, b| (a.root, &a.path).cmp(&(b.root, &b.path)));
        Folded {
            set: ChangeSet { changes },
            processes: self.processes.clone(),
            commands: self.commands.clone(),
            replaced,
            clean: !self.open,
            last_seq: self.last_seq,
        }
    }
}

impl Tree {
    fn apply(&mut self, r: &Record, last: ProcRef) {
        match r.op {
            Op::Create | Op::Mkdir | Op::Symlink | Op::Link => self.create(r, last),
            Op::Unlink | Op::Rmdir => self.remove(r, last),
            Op::Rename => self.rename(r, last),
            Op::Exchange => self.exchange(r, last),
            Op::Write | Op::Truncate => self.touch(r, last, true, false),
            Op::SetAttr | Op::SetXattr => self.touch(r, last, false, true),
            Op::Applied => self.settle(&r.path, true),
            Op::Discarded | Op::FoundSame => self.settle(&r.path, false),
            Op::FoundPresent => self.found_present(r, last),
            Op::FoundGone => self.found_gone(r, last),
            Op::Restated => *self = Tree::new(),
            Op::Merged => self.merge(&r.path),
            Op::Hidden => self.hide(r, last),
        }
    }

    fn create(&mut self, r: &Record, last: ProcRef) {
        let Some((dir, name)) = self.place(&r.path) else { return };
        // Something there would be a fault of the log, or an object that was discarded: `put` drops it, without a trace.
        let id = self.put(dir, name, Origin::New, r.kind);
        self.node_mut(id).last = last;
        // What is written through one name is to be seen under the other.
        if let (Op::Link, Some(old)) = (r.op, &r.path2)
            && let Some(old) = self.reach(old, r.kind)
        {
            self.learn(old, &r.base2);
            self.link(id, old);
        }
    }

    fn touch(&mut self, r: &Record, last: ProcRef, content: bool, meta: bool) {
        let Some(id) = self.reach(&r.path, r.kind) else { return };
        self.learn(id, &r.base);
        let node = self.node_mut(id);
        node.kind = if id == ROOT { Kind::Dir } else { r.kind };
        node.content |= content;
        node.meta |= meta;
        node.last = last;
        for other in self.other_names(id) {
            let node = self.node_mut(other);
            node.content |= content;
            node.meta |= meta;
            node.last = last;
        }
    }

    fn remove(&mut self, r: &Record, last: ProcRef) {
        let Some(id) = self.reach(&r.path, r.kind).filter(|&id| id != ROOT) else { return };
        self.learn(id, &r.base);
        let node = self.node_mut(id);
        node.kind = r.kind;
        let dir = node.parent;
        self.delete(id, last);
        self.prune(dir);
    }

    fn rename(&mut self, r: &Record, last: ProcRef) {
        let Some(to) = &r.path2 else { return };
        if to.starts_with(&r.path) || r.path.starts_with(to) {
            return;
        }
        let Some(id) = self.reach(&r.path, r.kind) else { return };
        self.note(id, &r.base, r.kind, last);
        let Some((dir, name)) = self.place(to) else { return };
        self.move_to(id, dir, name, &r.base2, last);
    }

    fn exchange(&mut self, r: &Record, last: ProcRef) {
        let Some(to) = &r.path2 else { return };
        if to.starts_with(&r.path) || r.path.starts_with(to) {
            return;
        }
        let Some(a) = self.reach(&r.path, r.kind) else { return };
        // The record tells the type of the first only; the base tells that of the second, or earlier records did.
        let Some(b) = self.reach(to, r.base2.as_ref().map_or(r.kind, |b| b.kind)) else { return };
        self.note(a, &r.base, r.kind, last);
        let kind = self.node(b).kind;
        self.note(b, &r.base2, kind, last);
        let (a_dir, a_name) = (self.node(a).parent, self.node(a).name.clone());
        let (b_dir, b_name) = (self.node(b).parent, self.node(b).name.clone());
        self.leave(a);
        self.leave(b);
        self.enter(a, b_dir, &b_name);
        self.enter(b, a_dir, &a_name);
        self.prune(a);
        self.prune(b);
    }

    fn note(&mut self, id: Id, base: &Option<BaseId>, kind: Kind, last: ProcRef) {
        self.learn(id, base);
        let node = self.node_mut(id);
        node.kind = kind;
        node.last = last;
    }

    /// Moves a node to another slot, over what is there.
    fn move_to(&mut self, id: Id, dir: Id, name: &[u8], base2: &Option<BaseId>, last: ProcRef) {
        let from = self.node(id).parent;
        self.vacate(dir, name, base2, last);
        self.leave(id);
        self.enter(id, dir, name);
        self.prune(from);
        self.prune(id);
    }

    /// Deletes what is at a slot; an untouched lower object is known there by its base only.
    fn vacate(&mut self, dir: Id, name: &[u8], base: &Option<BaseId>, last: ProcRef) {
        let slot = self.slot(dir, name);
        if let Some(old) = slot.and_then(|s| s.node) {
            self.learn(old, base);
            self.delete(old, last);
        } else if let (None, Some(base)) = (slot.and_then(|s| s.gone.as_ref()), base)
            && self.has_lower(dir)
        {
            let gone = Gone { kind: base.kind, base: Some(Box::new(base.clone())), last, away: None };
            self.slot_mut(dir, name).gone = Some(Box::new(gone));
        }
    }

    /// The change at `path` leaves the session: the real tree has it now (`applied`), or has its own back.
    fn settle(&mut self, path: &RelPath, applied: bool) {
        if path.is_root() {
            self.node_mut(ROOT).clear();
            return;
        }
        let Some((dir, name)) = self.find(path) else { return };
        let Some(slot) = self.slot(dir, name) else { return };
        let Some(id) = slot.node else {
            if slot.gone.as_ref().is_some_and(|g| g.away.is_none()) {
                self.slot_mut(dir, name).gone = None;
                self.tidy(dir, name);
                self.prune(dir);
            }
            return;
        };
        match (self.node(id).origin.clone(), applied) {
            (Origin::Here, _) => self.node_mut(id).clear(),
            (Origin::New, false) if self.node(id).slots.is_empty() => {
                self.unhide(dir, name, false);
                self.drop_subtree(id);
                self.tidy(dir, name);
                self.prune(dir);
                return;
            }
            (Origin::New, _) => self.adopt(id, path, applied),
            (origin, true) => {
                let from = self.lower(id);
                if let Origin::Away { home, name } = &origin {
                    self.slot_mut(*home, name).gone = None;
                    self.tidy(*home, name);
                }
                self.adopt(id, path, true);
                if let (Kind::Dir, Some(from)) = (self.node(id).kind, from) {
                    self.rebase(&from, path);
                }
                if let Origin::Away { home, .. } = origin {
                    self.prune(home);
                }
            }
            (origin, false) => return self.send_back(id, origin),
        }
        self.prune(id);
    }

    /// The real tree now has at `path` what this node is.
    fn adopt(&mut self, id: Id, path: &RelPath, applied: bool) {
        let (dir, name) = (self.node(id).parent, self.node(id).name.clone());
        self.unhide(dir, &name, applied);
        let at_place = path.parent().is_some_and(|above| self.lower(dir) == Some(above));
        // A directory made where a renamed one was: the real one is not back as long as that is elsewhere.
        let taken = self.slot(dir, &name).is_some_and(|s| s.gone.is_some());
        let node = self.node_mut(id);
        if taken {
            return node.clear();
        }
        node.origin = if at_place { Origin::Here } else { Origin::Lower(path.clone()) };
        node.clear();
        self.come_home(id);
    }

    /// The real tree has directory `dir` now. What it already had beneath was known by its path there only: it is at its
    /// place now.
    fn come_home(&mut self, dir: Id) {
        let Some(real) = self.lower(dir) else { return };
        let slots = self.node(dir).slots.iter().filter(|(_, slot)| slot.gone.is_none());
        let there: Vec<(Id, RelPath)> =
            slots.filter_map(|(name, slot)| Some((slot.node?, real.join(name)))).collect();
        for (id, at) in there {
            let literal = self.node(id).origin == Origin::Lower(at);
            // Also in a real directory that came with this one.
            if literal || self.node(id).origin == Origin::Here && self.node(id).kind == Kind::Dir {
                self.node_mut(id).origin = Origin::Here;
                self.come_home(id);
                self.prune(id);
            }
        }
    }

    /// Nothing is hidden at a slot any more. An object that had its home there and lives elsewhere has lost its real
    /// counterpart when `applied` overwrote that; else it stays away.
    fn unhide(&mut self, dir: Id, name: &[u8], applied: bool) {
        let Some(gone) = self.slot(dir, name).and_then(|s| s.gone.as_ref()) else { return };
        match gone.away {
            Some(guest) if applied => {
                let guest = self.node_mut(guest);
                guest.origin = Origin::New;
                guest.base = None;
            }
            Some(_) => return,
            None => {}
        }
        self.slot_mut(dir, name).gone = None;
    }

    /// A renamed object goes back to where the real tree has it.
    fn send_back(&mut self, id: Id, origin: Origin) {
        let (dir, name) = (self.node(id).parent, self.node(id).name.clone());
        self.unhide(dir, &name, false);
        self.node_mut(id).clear();
        match origin {
            Origin::Away { home, name: at }
                if self.slot(home, &at).is_none_or(|s| s.node.is_none()) && !self.is_beneath(home, id) =>
            {
                self.leave(id);
                self.enter(id, home, &at);
                self.prune(id);
            }
            Origin::Away { home, name: at } => {
                // Another object has its place: the real one is hidden beneath that.
                if let Some(gone) = self.slot_mut(home, &at).gone.as_mut() {
                    gone.away = None;
                }
                self.drop_subtree(id);
                self.tidy(dir, &name);
            }
            _ => {
                self.drop_subtree(id);
                self.tidy(dir, &name);
            }
        }
        self.prune(dir);
    }

    /// A directory that was made over a real one is that one with changes from now on. What came from beneath it has its
    /// home there again.
    fn merge(&mut self, path: &RelPath) {
        let Some((dir, name)) = self.find(path) else { return };
        let Some(Slot { node: Some(id), gone }) = self.slot(dir, name) else { return };
        let (id, away) = (*id, gone.as_ref().is_some_and(|g| g.away.is_some()));
        let made = (self.node(id).origin == Origin::New) && self.node(id).kind == Kind::Dir;
        if !made || away || !self.has_lower(dir) {
            return;
        }
        let gone = self.slot_mut(dir, name).gone.take();
        let node = self.node_mut(id);
        node.origin = Origin::Here;
        (node.content, node.meta) = (false, true);
        node.base = gone.filter(|g| g.kind == Kind::Dir).and_then(|g| g.base);
        self.bring_home(id);
    }

    /// What the lower has at a slot is hidden there, and nobody but who made the directory anew has hidden it.
    fn hide(&mut self, r: &Record, last: ProcRef) {
        let Some((dir, name)) = self.find(&r.path) else { return };
        let Some(below) = self.lower(dir).map(|d| d.join(name)) else { return };
        let slot = self.slot(dir, name);
        let shown = slot.and_then(|s| s.node).is_some_and(|id| self.lower(id).as_ref() == Some(&below));
        if shown || slot.is_some_and(|s| s.gone.is_some()) {
            return;
        }
        let maker = self.node(dir).last;
        let last = if maker.seq == 0 { last } else { maker };
        let gone = Gone { kind: r.kind, base: r.base.clone().map(Box::new), last, away: None };
        self.slot_mut(dir, name).gone = Some(Box::new(gone));
    }

    fn found_present(&mut self, r: &Record, last: ProcRef) {
        let Some((dir, name)) = self.place(&r.path) else {
            return self.touch(r, last, true, true);
        };
        let here = self.slot(dir, name).and_then(|s| s.node);
        let gone = self.slot(dir, name).is_some_and(|s| s.gone.is_some());
        let now = match here {
            Some(id) => self.lower(id),
            None if gone => None,
            None => self.lower(dir).map(|d| d.join(name)),
        };
        let id = match &r.path2 {
            Some(_) if now == r.path2 => self.step(dir, name, r.kind),
            Some(from) => Some(self.bring(from, dir, name, r, last)),
            None => {
                match here.filter(|&id| self.node(id).origin == Origin::New && self.node(id).kind == r.kind) {
                    Some(id) => Some(id),
                    None => {
                        self.vacate(dir, name, &r.base, last);
                        Some(self.put(dir, name, Origin::New, r.kind))
                    }
                }
            }
        };
        let Some(id) = id else { return };
        self.learn(id, &r.base);
        let node = self.node_mut(id);
        node.kind = r.kind;
        node.content = true;
        node.meta = true;
        node.last = last;
    }

    /// Puts the lower object `from` at a slot, wherever it is now.
    fn bring(&mut self, from: &RelPath, dir: Id, name: &[u8], r: &Record, last: ProcRef) -> Id {
        let alive = self.find_home(from).and_then(|(home, at)| {
            match self.slot(home, at).and_then(|s| s.gone.as_ref()) {
                Some(gone) => gone.away,
                None => self.step(home, at, r.kind).filter(|&id| self.node(id).origin == Origin::Here),
            }
        });
        if let Some(id) = alive
            && !self.is_beneath(dir, id)
            && !self.is_beneath_slot(id, dir, name)
        {
            self.note(id, &r.base, r.kind, last);
            // What is about to be marked as changed must not be dropped for saying nothing on its way.
            self.node_mut(id).content = true;
            self.move_to(id, dir, name, &r.base2, last);
            return id;
        }
        self.vacate(dir, name, &r.base2, last);
        // Only now: what had to go may have held the home.
        let home = self.find_home(from).filter(|&(home, at)| {
            let gone = self.slot(home, at).and_then(|s| s.gone.as_ref());
            gone.is_some_and(|g| g.away.is_none()) && (home, at) != (dir, name)
        });
        let Some((home, at)) = home else {
            return self.put(dir, name, Origin::Lower(from.clone()), r.kind);
        };
        let id = self.put(dir, name, Origin::Away { home, name: at.into() }, r.kind);
        if let Some(gone) = self.slot_mut(home, at).gone.as_mut() {
            gone.away = Some(id);
            self.node_mut(id).base = gone.base.clone();
        }
        id
    }

    /// Whether a node lies beneath what is at a slot, so goes when that is replaced.
    fn is_beneath_slot(&self, id: Id, dir: Id, name: &[u8]) -> bool {
        self.slot(dir, name).and_then(|s| s.node).is_some_and(|top| self.is_beneath(id, top))
    }

    fn found_gone(&mut self, r: &Record, last: ProcRef) {
        let Some((dir, name)) = self.place(&r.path) else { return };
        if let Some(old) = self.slot(dir, name).and_then(|s| s.node) {
            self.learn(old, &r.base);
            self.delete(old, last);
        }
        if self.slot(dir, name).is_none_or(|s| s.gone.is_none()) && self.has_lower(dir) {
            let gone = Gone { kind: r.kind, base: r.base.clone().map(Box::new), last, away: None };
            self.slot_mut(dir, name).gone = Some(Box::new(gone));
        }
        self.prune(dir);
    }
}
