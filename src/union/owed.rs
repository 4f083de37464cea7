//! What copy-ups found in the lower, until a record has told the journal: the verb that needed the copy may fail after
//! it, and then the next one that changes the object tells.

use super::node::{Node, NodeId};
use crate::base::BaseId;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The identities that the journal was not told yet. Taken alone, and within any other lock.
#[derive(Default)]
pub(crate) struct Owed {
    bases: Mutex<HashMap<NodeId, BaseId>>,
    /// So that the usual question, when nothing is owed, takes no lock.
    count: AtomicUsize,
}

impl Owed {
    /// Notes what a copy-up of `node` found.
    pub fn note(&self, node: &Node, base: BaseId) {
        let mut bases = self.bases.lock();
        bases.insert(node.id, base);
        self.count.store(bases.len(), Ordering::Release);
    }

    /// What is to be told of `node`. A number that was given to another object since does not count.
    pub fn get(&self, node: &Node) -> Option<BaseId> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let base = self.bases.lock().get(&node.id).cloned();
        base.filter(|b| b.kind == node.kind && b.ino == node.ident.ino)
    }

    /// A record has told it, or the object is gone.
    pub fn told(&self, node: &Node) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut bases = self.bases.lock();
        bases.remove(&node.id);
        self.count.store(bases.len(), Ordering::Release);
    }
}
