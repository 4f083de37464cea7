//! Open descriptors of nodes, a bounded number of them.

use super::node::NodeId;
use lru::LruCache;
use parking_lot::Mutex;
use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Which descriptor of a node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Slot {
    /// `O_PATH` on its upper directory.
    UpperDir,
    /// `O_PATH` on its n-th lower directory.
    LowerDir(u16),
    /// Content, readable.
    Read,
    /// Content of an upper file, readable and writable.
    Write,
}

const SHARDS: usize = 16;

/// One shard: the descriptors of some nodes, least recently used first out.
type Shard = Mutex<LruCache<(NodeId, Slot), Arc<OwnedFd>>>;

/// A least-recently-used cache; a descriptor in use stays open until its last user is done.
pub(crate) struct FdCache {
    shards: [Shard; SHARDS],
}

impl FdCache {
    pub fn new(capacity: usize) -> FdCache {
        let each = NonZeroUsize::new(capacity / SHARDS).unwrap_or(NonZeroUsize::MIN);
        FdCache { shards: std::array::from_fn(|_| Mutex::new(LruCache::new(each))) }
    }

    fn shard(&self, id: NodeId) -> &Shard {
        &self.shards[(id as usize).wrapping_mul(0x9e37_79b1) >> 7 & (SHARDS - 1)]
    }

    pub fn get(&self, id: NodeId, slot: Slot) -> Option<Arc<OwnedFd>> {
        self.shard(id).lock().get(&(id, slot)).cloned()
    }

    pub fn put(&self, id: NodeId, slot: Slot, fd: OwnedFd) -> Arc<OwnedFd> {
        let fd = Arc::new(fd);
        // The evicted descriptor is closed after the lock is released.
        let evicted = self.shard(id).lock().push((id, slot), fd.clone());
        drop(evicted);
        fd
    }

    pub fn forget(&self, id: NodeId, slot: Slot) {
        let gone = self.shard(id).lock().pop(&(id, slot));
        drop(gone);
    }

    /// Takes all descriptors of a node out.
    pub fn forget_all(&self, id: NodeId, lowers: usize) {
        let mut shard = self.shard(id).lock();
        for slot in [Slot::UpperDir, Slot::Read, Slot::Write] {
            shard.pop(&(id, slot));
        }
        for k in 0..lowers {
            shard.pop(&(id, Slot::LowerDir(k as u16)));
        }
    }
}
