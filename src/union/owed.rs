//! What copy-ups found in the lower, until a record has told the journal: the verb that needed the copy may fail after
//! it, and then the next one that changes the object tells.

use super::node::{Node, NodeId};
use crate::base::{BaseId, Kind};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How a copy is found again: as the node, or, where an object has no xattrs to say where it is from and so becomes
/// another node once the kernel forgot it, by device and inode number in the upper.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Key {
    Node(NodeId),
    Upper(u64, u64),
}

/// The identities that the journal was not told yet. Taken alone, and within any other lock but that of a node's place.
#[derive(Default)]
pub(crate) struct Owed {
    bases: Mutex<HashMap<Key, BaseId>>,
    /// So that the usual question, when nothing is owed, takes no lock.
    count: AtomicUsize,
}

fn upper_key(node: &Node) -> Option<Key> {
    if matches!(node.kind, Kind::File | Kind::Dir) {
        return None;
    }
    let (dev, ino) = node.place.read().copied.unwrap_or((node.ident.dev, node.ident.ino));
    Some(Key::Upper(dev, ino))
}

impl Owed {
    /// Notes what a copy-up of `node` found.
    pub fn note(&self, node: &Node, base: BaseId) {
        let upper = upper_key(node);
        let mut bases = self.bases.lock();
        if let Some(key) = upper {
            bases.insert(key, base.clone());
        }
        bases.insert(Key::Node(node.id), base);
        self.count.store(bases.len(), Ordering::Release);
    }

    /// What is to be told of `node`. A number that was given to another object since does not count.
    pub fn get(&self, node: &Node) -> Option<BaseId> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let upper = upper_key(node);
        let bases = self.bases.lock();
        let known = bases.get(&Key::Node(node.id)).filter(|b| b.kind == node.kind && b.ino == node.ident.ino);
        let again = || bases.get(&upper?).filter(|b| b.kind == node.kind);
        known.or_else(again).cloned()
    }

    /// A record has told it, or the object is gone.
    pub fn told(&self, node: &Node) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let upper = upper_key(node);
        let mut bases = self.bases.lock();
        bases.remove(&Key::Node(node.id));
        if let Some(key) = upper {
            bases.remove(&key);
        }
        self.count.store(bases.len(), Ordering::Release);
    }
}
