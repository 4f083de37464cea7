//! Nodes: what the kernel knows by a number; and the table of them.

use crate::base::{Attr, Errno, Kind, Name, RelPath, Spot, Sys, Time};
use dashmap::DashMap;
use dashmap::mapref::entry::Entry as Slot;
use parking_lot::{Mutex, RwLock};
use smallvec::SmallVec;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// A node's number, which is also the inode number that programs see.
pub type NodeId = u64;

/// What makes an object itself, across names: device, inode, and birth time against reuse of the number; and the root,
/// since roots may overlap and each has its own version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Ident {
    pub root: u16,
    pub dev: u64,
    pub ino: u64,
    pub btime: Time,
    /// Set for a lower object that shares its inode with one that was copied up, without being a name of it.
    pub twin: bool,
}

impl Ident {
    pub fn of(root: u16, attr: &Attr) -> Ident {
        Ident { root, dev: attr.dev, ino: attr.ino, btime: attr.btime, twin: false }
    }
}

/// A directory of a layer that shows through a merged directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LowerDir {
    pub layer: u16,
    pub path: RelPath,
}

/// One name of an object in the merged view.
#[derive(Clone)]
pub(crate) struct Link {
    pub parent: Arc<Node>,
    pub name: Name,
    /// Whether the upper has this name (a second name of a copied-up hard link may still be lower-only).
    pub upper: bool,
}

impl Link {
    /// Whether it is the same name in the same directory.
    pub fn is_at(&self, other: &Link) -> bool {
        self.parent.id == other.parent.id && self.name == other.name
    }
}

/// Where a node's bytes are. Changes under its lock; the node's identity never does.
#[derive(Default)]
pub(crate) struct Place {
    /// Known names, the one that messages and records use first. Empty for roots.
    pub links: SmallVec<[Link; 1]>,
    /// The last name of a lower-only object that no name of the merged view leads to: its bytes are still there.
    pub ghost: Option<Link>,
    /// Whether the object lives in the upper.
    pub upper: bool,
    /// Which of the parent's layers holds a lower-only non-directory.
    pub layer: u16,
    /// The object lost its last name in the merged view.
    pub gone: bool,
    /// Handle of an upper object that no name leads to any more.
    pub pin: Option<Arc<OwnedFd>>,
    /// Directories: the lower directories that show through, topmost first.
    pub lowers: Arc<[LowerDir]>,
    /// Owner and group of a real directory of somebody else, which its copy cannot be given: nobody here can change them.
    pub owner: Option<(u32, u32)>,
    /// Name in the index directory, for an object that had several names in the lower.
    pub index: Option<Box<[u8]>>,
    /// Device and inode of the upper object, when the node's number is not from there.
    pub copied: Option<(u64, u64)>,
    /// Reported link count minus the host's.
    pub nlink_adj: i32,
}

impl Place {
    /// The name to reach the object by: one that the upper has, else any, else the ghost of one.
    pub fn name(&self) -> Option<&Link> {
        let upper = if self.upper { self.links.iter().find(|l| l.upper) } else { None };
        upper.or(self.links.first()).or(self.ghost.as_ref())
    }

    /// Whether `name` in `parent` is known to lead here.
    pub fn has(&self, parent: NodeId, name: &Name) -> bool {
        self.links.iter().any(|l| l.parent.id == parent && l.name == *name)
    }
}

/// What only directories have.
pub(crate) struct Dir {
    /// Serialises changes of this directory's entries.
    pub ops: Mutex<()>,
    /// Bumped by every change of the entries.
    pub version: AtomicU64,
    /// 0 not tried, 1 the lower directories are watched, 2 they cannot be.
    pub watched: AtomicU8,
    /// Watch descriptors of the lower directories.
    pub wds: Mutex<SmallVec<[i32; 2]>>,
    /// Whether a default ACL rules what is made here: 0 not looked, 1 no, 2 yes.
    pub default_acl: AtomicU8,
    /// What the rules have still to say beneath.
    pub spot: RwLock<Option<Spot>>,
    /// Children of the synthetic top; empty elsewhere.
    pub fixed: Vec<(Name, Arc<Node>)>,
}

/// An object of the merged view.
pub(crate) struct Node {
    pub id: NodeId,
    pub root: u16,
    pub kind: Kind,
    pub ident: Ident,
    lookups: AtomicU64,
    pub place: RwLock<Place>,
    /// Held while this object is copied up.
    pub copying: Mutex<()>,
    /// Epoch and process of the last write that made a record.
    pub last_write: AtomicU64,
    /// A digest of mtime and size of a lower file in a directory that cannot be watched; 0 before the first look.
    pub unwatched_state: AtomicU64,
    /// The watch of a real file that has several names; 0 before one was tried, -1 where there is none.
    pub linked: AtomicI32,
    /// The set-uid or set-gid bit may be set, so that a write must look.
    pub maybe_suid: AtomicBool,
    /// A regular file made here and given no capability since, so that nobody needs to look for one.
    pub no_capability: AtomicBool,
    /// Whether its file left the session, and another node has its number. Held to read by whoever changes the file, to
    /// write (by trying only) where it leaves; within no other lock then.
    pub left: RwLock<bool>,
    /// A non-directory of the upper without any name left: whoever has it open goes on with it, but the real object that it
    /// was copied from, when that is seen again, is another. Never becomes false again.
    pub nameless: AtomicBool,
    /// A rule says so; it never becomes false again.
    pub read_only: AtomicBool,
    pub dir: Option<Box<Dir>>,
}

impl Node {
    pub fn new(id: NodeId, root: u16, kind: Kind, ident: Ident, place: Place) -> Node {
        Node {
            id,
            root,
            kind,
            ident,
            lookups: AtomicU64::new(0),
            place: RwLock::new(place),
            copying: Mutex::new(()),
            last_write: AtomicU64::new(0),
            unwatched_state: AtomicU64::new(0),
            linked: AtomicI32::new(0),
            maybe_suid: AtomicBool::new(false),
            no_capability: AtomicBool::new(false),
            left: RwLock::new(false),
            nameless: AtomicBool::new(false),
            read_only: AtomicBool::new(false),
            dir: (kind == Kind::Dir).then(Box::default),
        }
    }

    /// The node of a root directory: in the upper from the start, if there is one, and never forgotten.
    pub fn root_dir(id: NodeId, root: u16, ident: Ident, lowers: Vec<LowerDir>, upper: bool) -> Node {
        let place = Place { upper, lowers: lowers.into(), ..Place::default() };
        Node::new(id, root, Kind::Dir, ident, place)
    }

    /// The synthetic directory above several roots.
    pub fn top(children: Vec<(Name, Arc<Node>)>) -> Node {
        let ident = Ident { root: super::TOP, dev: 0, ino: 0, btime: Time::default(), twin: false };
        let mut node = Node::new(super::ROOT_ID, super::TOP, Kind::Dir, ident, Place::default());
        node.dir = Some(Box::new(Dir { fixed: children, ..Dir::default() }));
        node
    }

    /// Whether it is what the object `ident` is known as.
    fn is(&self, ident: &Ident) -> bool {
        self.ident == *ident && !self.nameless.load(Ordering::Acquire)
    }

    pub fn dir(&self) -> Sys<&Dir> {
        self.dir.as_deref().ok_or(Errno::ENOTDIR)
    }

    /// Notes that the entries of this directory changed.
    pub fn touch_entries(&self) {
        if let Some(dir) = &self.dir {
            dir.version.fetch_add(1, Ordering::AcqRel);
        }
    }
}

impl Default for Dir {
    fn default() -> Self {
        Dir {
            ops: Mutex::new(()),
            version: AtomicU64::new(1),
            watched: AtomicU8::new(0),
            wds: Mutex::default(),
            default_acl: AtomicU8::new(0),
            spot: RwLock::default(),
            fixed: Vec::new(),
        }
    }
}

/// All nodes that the kernel knows, by number.
pub(crate) struct Table {
    nodes: DashMap<NodeId, Arc<Node>>,
    /// Upper inode of a copied-up object to its node, whose number is the lower's.
    copied: DashMap<(u64, u64), NodeId>,
    /// Objects whose preferred number was taken.
    private: DashMap<Ident, NodeId>,
    /// Directories that the kernel forgot while other nodes still name them as their parent.
    parents: DashMap<NodeId, Weak<Node>>,
    next_private: AtomicU64,
    devices: RwLock<Vec<u64>>,
}

/// Bits from here up tell the device; below them is the host's inode number.
const DEV_SHIFT: u32 = 56;
/// So many forgotten parents are kept before those that nobody names any more are dropped.
const PARENTS: usize = 1024;
/// First number for objects that cannot have their preferred one.
const PRIVATE: u64 = 0xff << DEV_SHIFT;

impl Table {
    pub fn new() -> Table {
        Table {
            nodes: DashMap::new(),
            copied: DashMap::new(),
            private: DashMap::new(),
            parents: DashMap::new(),
            next_private: AtomicU64::new(PRIVATE),
            devices: RwLock::new(Vec::new()),
        }
    }

    /// Gives `dev` its place among the devices; the first one's inode numbers are shown as they are.
    pub fn note_device(&self, dev: u64) -> u64 {
        if let Some(i) = self.devices.read().iter().position(|d| *d == dev) {
            return i as u64;
        }
        let mut devices = self.devices.write();
        match devices.iter().position(|d| *d == dev) {
            Some(i) => i as u64,
            None => {
                devices.push(dev);
                devices.len() as u64 - 1
            }
        }
    }

    /// The number an object should have: stable across forget and remount, unique within the mount.
    pub fn preferred_id(&self, ident: &Ident) -> NodeId {
        let device = self.note_device(ident.dev);
        let usable =
            ident.ino > super::ROOT_ID && ident.ino >> DEV_SHIFT == 0 && device < 0xff && !ident.twin;
        if usable { ident.ino | device << DEV_SHIFT } else { 0 }
    }

    /// A number that no node has or will have.
    pub fn unused_id(&self) -> NodeId {
        self.next_private.fetch_add(1, Ordering::Relaxed)
    }

    pub fn get(&self, id: NodeId) -> Sys<Arc<Node>> {
        self.nodes.get(&id).map(|n| n.clone()).ok_or(Errno::ESTALE)
    }

    /// The node of a lower or upper object that the kernel knows by its own inode number.
    pub fn find(&self, ident: &Ident) -> Option<Arc<Node>> {
        let id = match self.private.get(ident) {
            Some(id) => *id,
            None => self.preferred_id(ident),
        };
        self.nodes.get(&id).filter(|n| n.is(ident)).map(|n| n.clone())
    }

    /// The node whose upper object has this inode, if it was copied up.
    pub fn find_copied(&self, dev: u64, ino: u64) -> Option<Arc<Node>> {
        let id = *self.copied.get(&(dev, ino))?;
        self.get(id).ok()
    }

    pub fn note_copied(&self, dev: u64, ino: u64, node: &Node) {
        node.place.write().copied = Some((dev, ino));
        self.copied.insert((dev, ino), node.id);
    }

    /// Takes back [`Table::note_copied`]: the copy did not get its place.
    pub fn not_copied(&self, dev: u64, ino: u64, node: &Node) {
        node.place.write().copied = None;
        self.copied.remove_if(&(dev, ino), |_, v| *v == node.id);
    }

    /// Takes the mapping of an upper inode away unless a node of that number came back meanwhile.
    pub fn forget_copied(&self, dev: u64, ino: u64, id: NodeId) {
        self.copied.remove_if(&(dev, ino), |_, v| *v == id && !self.nodes.contains_key(&id));
    }

    /// Takes the mapping of an upper inode away that left the upper.
    pub fn lose_copied(&self, node: &Node) {
        if let Some(copied) = node.place.read().copied {
            self.copied.remove_if(&copied, |_, v| *v == node.id);
        }
    }

    pub fn knows_device(&self, dev: u64) -> bool {
        self.devices.read().contains(&dev)
    }

    /// Adds one lookup to the node of `ident`, which `make` builds (for the number given) if the kernel does not know
    /// it. The flag says whether it was built.
    pub fn intern(&self, ident: Ident, make: impl FnOnce(NodeId) -> Node) -> (Arc<Node>, bool) {
        let mut id = match self.private.get(&ident) {
            Some(id) => *id,
            None => self.preferred_id(&ident),
        };
        loop {
            if id == 0 {
                id = self.unused_id();
                self.private.insert(ident, id);
            }
            match self.nodes.entry(id) {
                Slot::Occupied(slot) if slot.get().is(&ident) => {
                    slot.get().lookups.fetch_add(1, Ordering::Relaxed);
                    return (slot.get().clone(), false);
                }
                Slot::Occupied(_) => id = 0,
                Slot::Vacant(slot) => {
                    // One object is one node: what a child's link leads to must not be another.
                    let kept = self.parents.remove(&id).and_then(|(_, weak)| weak.upgrade());
                    let kept = kept.filter(|node| node.ident == ident);
                    let fresh = kept.is_none();
                    let node = kept.unwrap_or_else(|| Arc::new(make(id)));
                    node.lookups.store(1, Ordering::Relaxed);
                    slot.insert(node.clone());
                    return (node, fresh);
                }
            }
        }
    }

    /// Adds one lookup to a node that is in the table or was there a moment ago.
    pub fn acquire(&self, node: &Arc<Node>) {
        match self.nodes.entry(node.id) {
            Slot::Occupied(slot) => slot.get().lookups.fetch_add(1, Ordering::Relaxed),
            Slot::Vacant(slot) => slot.insert(node.clone()).lookups.fetch_add(1, Ordering::Relaxed),
        };
    }

    /// Another object goes on under the number of `old`, a non-directory, and with the lookups that it has. `None` where
    /// that object has another number already, or the kernel forgot `old`.
    pub fn succeed(&self, old: &Arc<Node>, ident: Ident, place: Place) -> Option<Arc<Node>> {
        if self.find(&ident).is_some_and(|node| !Arc::ptr_eq(&node, old)) {
            return None;
        }
        let Slot::Occupied(mut slot) = self.nodes.entry(old.id) else {
            return None;
        };
        if !Arc::ptr_eq(slot.get(), old) {
            return None;
        }
        let new = Arc::new(Node::new(old.id, old.root, old.kind, ident, place));
        new.lookups.store(old.lookups.load(Ordering::Relaxed), Ordering::Relaxed);
        new.read_only.store(old.read_only.load(Ordering::Relaxed), Ordering::Relaxed);
        slot.insert(new.clone());
        self.private.remove_if(&old.ident, |_, v| *v == old.id);
        if self.preferred_id(&ident) != old.id {
            self.private.insert(ident, old.id);
        }
        Some(new)
    }

    /// Takes a node out although the kernel knows it: whatever it asks of it is stale.
    pub fn disown(&self, node: &Arc<Node>) {
        self.nodes.remove_if(&node.id, |_, known| Arc::ptr_eq(known, node));
        self.private.remove_if(&node.ident, |_, v| *v == node.id);
    }

    /// Puts a node in that stays for good.
    pub fn insert_fixed(&self, node: Arc<Node>) {
        node.lookups.store(u64::MAX / 2, Ordering::Relaxed);
        self.nodes.insert(node.id, node);
    }

    /// Takes `n` lookups away; returns the node when that was the last.
    pub fn release(&self, id: NodeId, n: u64) -> Option<Arc<Node>> {
        let Slot::Occupied(slot) = self.nodes.entry(id) else {
            return None;
        };
        let before = slot.get().lookups.load(Ordering::Relaxed);
        if before > n {
            slot.get().lookups.store(before - n, Ordering::Relaxed);
            return None;
        }
        let node = slot.get().clone();
        // Ours and the table's are two.
        if node.kind == Kind::Dir && Arc::strong_count(&node) > 2 {
            if self.parents.len() >= PARENTS {
                self.parents.retain(|_, weak| weak.strong_count() > 0);
            }
            self.parents.insert(id, Arc::downgrade(&node));
        }
        slot.remove();
        self.private.remove_if(&node.ident, |_, v| *v == id);
        Some(node)
    }

    /// Every node known now.
    pub fn all(&self) -> Vec<Arc<Node>> {
        self.nodes.iter().map(|n| n.clone()).collect()
    }
}
