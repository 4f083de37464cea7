//! From operations to the journal.

use super::node::Node;
use super::{Caller, Union};
use crate::base::{BaseId, Kind, RelPath};
use crate::journal::{Op, Record};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What a record needs beside the caller: the operation, where, and what the lower had there before.
pub(crate) struct Note {
    pub op: Op,
    pub root: u16,
    pub path: RelPath,
    pub path2: Option<RelPath>,
    pub kind: Kind,
    pub base: Option<BaseId>,
    pub base2: Option<BaseId>,
}

impl Note {
    pub fn new(op: Op, root: u16, path: RelPath, kind: Kind) -> Note {
        Note { op, root, path, path2: None, kind, base: None, base2: None }
    }

    pub fn base(self, base: Option<BaseId>) -> Note {
        Note { base, ..self }
    }
}

impl Union {
    /// From now on only what happens in the first `n` roots is recorded: the rest is nobody's to review. Only the first
    /// call counts.
    pub fn record_first(&self, n: usize) {
        if self.recorded.set(n).is_err() {
            tracing::debug!("the union knows already what to record");
        }
    }

    /// Records an operation that was done. When the journal cannot take it, the session is marked so that a scan
    /// reconciles the two; the operation itself stands.
    pub(crate) fn record(&self, caller: &Caller, note: Note) {
        let Some(journal) = &self.journal else {
            return;
        };
        if self.recorded.get().is_some_and(|n| usize::from(note.root) >= *n) {
            return;
        }
        let Note { op, root, path, path2, kind, base, base2 } = note;
        let proc = journal.process(caller.pid);
        let record = Record { op, root, path, path2, kind, base, base2, proc };
        if let Err(e) = journal.append(&record) {
            tracing::warn!("the journal could not take a record of {}: {e}", record.path);
            self.mark_degraded();
        }
    }

    /// Records an operation on the object itself, under the name it is reached by. An object without a name left
    /// makes no change, so no record. Needs the tree lock.
    pub(crate) fn record_on(&self, caller: &Caller, node: &Arc<Node>, op: Op, base: Option<BaseId>) {
        if self.journal.is_none() || !self.has_name(node) {
            return;
        }
        self.record(caller, Note::new(op, node.root, self.upper_path(node), node.kind).base(base));
        self.owed.told(node);
    }

    /// Whether a name of the merged view leads to the node.
    fn has_name(&self, node: &Arc<Node>) -> bool {
        let place = node.place.read();
        if place.gone {
            return false;
        }
        !place.links.is_empty() || self.root(node).is_ok_and(|r| Arc::ptr_eq(&r.node, node))
    }

    /// Records a write unless the same process made one to this object since somebody last looked.
    pub(crate) fn record_write(&self, caller: &Caller, node: &Arc<Node>, base: Option<BaseId>) {
        let key = u64::from(self.epoch.load(Ordering::Acquire)) << 32 | u64::from(caller.pid);
        if base.is_none() && node.last_write.load(Ordering::Relaxed) == key {
            return;
        }
        node.last_write.store(key, Ordering::Relaxed);
        let _tree = self.tree.read();
        self.record_on(caller, node, Op::Write, base);
    }

    /// The path of the entry `name` in `dir`. Needs the tree lock.
    pub(crate) fn path_in(&self, dir: &Node, name: &[u8]) -> RelPath {
        self.upper_path(dir).join(name)
    }
}
