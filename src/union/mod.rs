//! The merged view: one writable upper over read-only layers, for one or several roots.
//!
//! # Invariants
//! - The path of an object in the upper is its path in the merged view.
//! - A node's id never changes while the kernel knows it; it is the inode number of the lower object it began as.
//! - A lower-only non-directory is found under the name it has in the merged view, in its parent's lower directory.
//!
//! # Lock order, outermost first
//! `Union::tree` (shared by every verb that uses names, exclusive for those that move them) → `Dir::ops` of one
//! directory → `Node::copying` → `Node::place` → table shards and descriptor caches. No lock but `Node::copying` is
//! held while file content is copied.

mod attr;
mod caller;
mod copy_up;
mod dir;
mod drop;
mod entry;
mod fds;
mod file;
mod invalidate;
mod kept;
mod link;
mod lookup;
mod moved;
mod node;
mod owed;
mod partial;
mod policy;
mod quota;
mod ranges;
mod readdir;
mod record;
mod remove;
mod rename;
mod resume;
mod trash;
mod view;
mod xattr;

pub use caller::Caller;
pub use drop::Leave;
pub use entry::Entry;
pub use file::Range;
pub use invalidate::Notify;
pub use node::NodeId;
pub use partial::{BlockCopy, Unfilled};
pub use quota::Limits;
pub use readdir::DirItem;
pub use view::{IdRange, Ids, Stats, View};

use crate::base::{
    Attr, BaseId, Errno, Error, Kind, Name, RelPath, Relinked, Result, Rules, SetTime, Sys, Time,
};
use crate::journal::Journal;
use crate::layer::{self, Features, LayerKind, StatXattr, WhiteoutForm};
use crate::sys::{self, file as sysfile};
use fds::FdCache;
use invalidate::Watcher;
use node::{Ident, LowerDir, Node, Table};
use parking_lot::{Mutex, RwLock};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// The node id of the mount's own root (`FUSE_ROOT_ID`, linux/fuse.h).
pub const ROOT_ID: NodeId = 1;

/// `Node::root` of the synthetic top directory that holds several roots.
const TOP: u16 = u16::MAX;

/// One read-only layer.
pub struct LayerConfig {
    /// Its root directory (`O_PATH | O_DIRECTORY`).
    pub dir: OwnedFd,
    /// Literal, or with overlay marks.
    pub kind: LayerKind,
}

/// One root of the session.
pub struct RootConfig {
    /// The name of its directory at the top of a mount with several roots.
    pub name: Name,
    /// The real directory it stands for: absolute, canonical.
    pub real_path: Vec<u8>,
    /// Where writes go; without it every verb that changes something is refused (`EROFS`).
    pub upper: Option<UpperConfig>,
    /// The layers below, topmost first; at least one.
    pub lowers: Vec<LayerConfig>,
}

/// The writable layer of a root.
pub struct UpperConfig {
    /// Its root directory (`O_PATH | O_DIRECTORY`).
    pub dir: OwnedFd,
    /// Scratch space on the same file system (`O_PATH | O_DIRECTORY`).
    pub work: OwnedFd,
    /// What that file system can do.
    pub features: Features,
    /// Whether overlayfs, fuse-overlayfs and container tools write and mount it too: then its root's attributes
    /// are its own, whiteouts are read in both forms, and no redirect is written, which they would not follow.
    pub shared: bool,
}

/// What a union is made of.
pub struct Config {
    /// The roots, at least one.
    pub roots: Vec<RootConfig>,
    /// Whether the mount shows root 0 itself, else one directory a root.
    pub single: bool,
    /// `(device, inode)` of lower objects that the view does not have.
    pub hidden: Vec<(u64, u64)>,
    /// Where changes are recorded.
    pub journal: Option<Arc<Journal>>,
    /// Whether callers of any uid are served (we are root): what they make is given to them.
    pub multi_user: bool,
    /// How the view differs from what is on disk.
    pub view: View,
}

pub(crate) struct Layer {
    dir: Arc<OwnedFd>,
    kind: LayerKind,
    /// Where owner and mode are, if not in the objects themselves.
    stat_in: Option<StatXattr>,
}

pub(crate) struct Root {
    name: Name,
    /// The real directory it stands for.
    real_path: Vec<u8>,
    lowers: Vec<Layer>,
    /// Device of the topmost lower's root.
    lower_dev: u64,
    /// Whether names that begin with `.wh.` are marks in every layer with marks, so that no object has one.
    prefixed: bool,
    node: Arc<Node>,
    writable: Option<Writable>,
}

/// What a root has beside its lowers when it can be changed.
pub(crate) struct Writable {
    upper: Arc<OwnedFd>,
    work: Arc<OwnedFd>,
    index: Arc<OwnedFd>,
    features: Features,
    /// As in [`Layer`].
    stat_in: Option<StatXattr>,
    /// Whether a large file may borrow bytes of the lower for a while.
    borrows: bool,
    /// Whether a directory of the lower may be renamed by noting where it was.
    redirects: bool,
    /// Whether the index directory may hold anything.
    indexed: AtomicBool,
}

/// The merged view of a session. Every verb is safe to call from any thread.
pub struct Union {
    roots: Vec<Root>,
    nodes: Table,
    fds: FdCache,
    listings: Mutex<lru::LruCache<NodeId, Arc<readdir::Listing>>>,
    /// See the lock order above.
    tree: RwLock<()>,
    journal: Option<Arc<Journal>>,
    /// Bumped when somebody looks at the changes: a write after that makes a record again.
    epoch: AtomicU32,
    watcher: Option<Watcher>,
    /// Whether a directory of the view may show a real one that has another path.
    redirected: AtomicBool,
    hidden: Vec<(u64, u64)>,
    multi_user: bool,
    view: View,
    /// Whether objects may have ACLs.
    has_acls: bool,
    /// Whether a layer keeps owner and mode in an attribute, which is then not shown.
    keeps_stats: bool,
    quota: OnceLock<quota::Quota>,
    owed: owed::Owed,
    /// Upper files of which names left.
    relinked: Mutex<Relinked>,
    partials: partial::Partials,
    trash: trash::Trash,
    /// For threads of ours, which must not keep it alive.
    own: Weak<Union>,
    rules: OnceLock<Rules>,
    /// How many roots, from the first, have their changes recorded; all of them before this is set.
    recorded: OnceLock<usize>,
    temp_seq: AtomicU64,
    /// Set when upper and journal may disagree; the journal is then not closed as clean.
    degraded: AtomicBool,
}

impl Union {
    /// Builds the view.
    ///
    /// # Errors
    /// When a directory given cannot be read or the work directory cannot be prepared.
    pub fn new(config: Config) -> Result<Arc<Union>> {
        let limit =
            sys::process::raise_fd_limit().map_err(|e| Error::sys("raise the limit of open files", e))?;
        // Half of the budget for cached descriptors; the rest for pins of unlinked files and for the process.
        let fds = FdCache::new(usize::try_from(limit / 2).unwrap_or(1 << 16).min(1 << 16));
        let nodes = Table::new();
        let single = config.single && config.roots.len() == 1;
        let mut roots = Vec::with_capacity(config.roots.len());
        for (i, root) in config.roots.into_iter().enumerate() {
            let index = u16::try_from(i).unwrap_or(TOP - 1);
            roots.push(open_root(root, index, single, &nodes, config.view.stats)?);
        }
        if !single {
            let top = Node::top(roots.iter().map(|r| (r.name.clone(), r.node.clone())).collect());
            nodes.insert_fixed(Arc::new(top));
        }
        let upper_keeps = roots.iter().filter_map(|r| r.writable.as_ref()).any(|w| w.stat_in.is_some());
        let has_acls = !config.view.no_acl && !upper_keeps;
        let mut lowers = roots.iter().flat_map(|r| &r.lowers);
        let keeps_stats = upper_keeps || lowers.any(|l| l.stat_in.is_some());
        let listings =
            lru::LruCache::new(std::num::NonZeroUsize::new(64).unwrap_or(std::num::NonZeroUsize::MIN));
        let trash = trash::Trash::new()?;
        let union = Arc::new_cyclic(|own| Union {
            roots,
            nodes,
            fds,
            listings: Mutex::new(listings),
            tree: RwLock::new(()),
            journal: config.journal,
            epoch: AtomicU32::new(1),
            watcher: Watcher::new().ok(),
            redirected: AtomicBool::new(false),
            hidden: config.hidden,
            multi_user: config.multi_user,
            view: config.view,
            has_acls,
            keeps_stats,
            quota: OnceLock::new(),
            relinked: Mutex::default(),
            owed: owed::Owed::default(),
            partials: partial::Partials::new(),
            trash,
            own: own.clone(),
            rules: OnceLock::new(),
            recorded: OnceLock::new(),
            temp_seq: AtomicU64::new(1),
            degraded: AtomicBool::new(false),
        });
        for root in &union.roots {
            let top = root.lowers.first().map(|layer| sysfile::stat(layer.dir.as_fd())).transpose();
            let top = top.map_err(|e| Error::on_path("stat", &root.real_path[..], e))?;
            root.node.place.write().owner = top.and_then(|real| union.owner_of_others(&real));
        }
        invalidate::start(&union)?;
        Ok(union)
    }

    /// From now on the next write to any file makes a record again: somebody is looking at the changes.
    pub fn new_epoch(&self) {
        self.epoch.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether an operation was done that the journal could not be told, so that a scan must reconcile them.
    pub fn is_degraded(&self) -> bool {
        self.degraded.load(Ordering::Acquire)
    }

    /// Marks the session so that the next opening of the journal reconciles it with the upper.
    pub fn mark_degraded(&self) {
        self.degraded.store(true, Ordering::Release);
    }

    /// Clears what waits in the work directories to be removed.
    pub fn sweep(&self) {
        self.trash.empty();
    }

    /// Writes back everything that the uppers and the journal hold.
    ///
    /// # Errors
    /// As `syncfs(2)` and `fdatasync(2)`.
    pub fn sync(&self) -> Sys<()> {
        for root in self.roots.iter().filter_map(|r| r.writable.as_ref()) {
            let dir = sysfile::reopen(root.upper.as_fd(), libc::O_RDONLY | libc::O_DIRECTORY)?;
            sys::data::syncfs(dir.as_fd())?;
        }
        self.journal.as_ref().map_or(Ok(()), |j| j.sync())
    }

    fn root(&self, node: &Node) -> Sys<&Root> {
        self.roots.get(usize::from(node.root)).ok_or(Errno::EPERM)
    }

    /// The part of the node's root that can be changed.
    fn writable(&self, node: &Node) -> Sys<&Writable> {
        self.root(node)?.writable.as_ref().ok_or(Errno::EROFS)
    }

    /// A name for a temporary object in a work directory, never used before by this process.
    fn temp_name(&self) -> Vec<u8> {
        format!("#{:x}.{:x}", std::process::id(), self.temp_seq.fetch_add(1, Ordering::Relaxed)).into_bytes()
    }
}

fn open_root(root: RootConfig, index: u16, single: bool, nodes: &Table, stats: Stats) -> Result<Root> {
    let fail = |what: &str, e: Errno| Error::on_path(what, &root.real_path, e);
    let top =
        root.lowers.first().ok_or_else(|| Error::failure("a root needs at least one layer below it"))?;
    let attr = sysfile::stat(top.dir.as_fd()).map_err(|e| fail("stat root", e))?;
    nodes.note_device(attr.dev);
    let prefixed = root
        .upper
        .as_ref()
        .is_none_or(|u| u.shared || !u.features.xattr || u.features.whiteout == WhiteoutForm::Prefix);
    let writable = match root.upper {
        Some(upper) => {
            let upper_attr = sysfile::stat(upper.dir.as_fd()).map_err(|e| fail("stat the upper of", e))?;
            nodes.note_device(upper_attr.dev);
            if !upper.shared {
                prepare_upper_root(&upper, top.dir.as_fd(), &attr)
                    .map_err(|e| fail("prepare the upper of", e))?;
            }
            let mut writable = open_upper(upper).map_err(|e| fail("prepare the work directory of", e))?;
            writable.stat_in = kept::in_upper(writable.upper.as_fd(), stats)?;
            writable.borrows &= writable.stat_in.is_none();
            Some(writable)
        }
        None => None,
    };
    let lowers: Vec<LowerDir> =
        (0..root.lowers.len()).map(|layer| LowerDir { layer: layer as u16, path: RelPath::root() }).collect();
    let layers = root.lowers.into_iter().map(|l| {
        let stat_in = kept::in_layer(&l, stats).map_err(|e| fail("read the attributes of a layer of", e))?;
        Ok(Layer { dir: Arc::new(l.dir), kind: l.kind, stat_in })
    });
    let layers = layers.collect::<Result<Vec<Layer>>>()?;
    let ident = Ident::of(index, &attr);
    let id = if single { ROOT_ID } else { nodes.preferred_id(&ident) };
    let node = Arc::new(Node::root_dir(id, index, ident, lowers, writable.is_some()));
    nodes.insert_fixed(node.clone());
    Ok(Root {
        name: root.name,
        real_path: root.real_path,
        lowers: layers,
        lower_dev: attr.dev,
        prefixed,
        node,
        writable,
    })
}

fn open_upper(upper: UpperConfig) -> Sys<Writable> {
    match sysfile::mkdirat(upper.work.as_fd(), b"index", 0o700) {
        Ok(()) | Err(Errno::EEXIST) => {}
        Err(e) => return Err(e),
    }
    let index = sysfile::openat(upper.work.as_fd(), b"index", libc::O_PATH | libc::O_DIRECTORY, 0)?;
    let listable = sysfile::reopen(index.as_fd(), libc::O_RDONLY | libc::O_DIRECTORY)?;
    let work = Arc::new(upper.work);
    let indexed = !sys::dir::entries(listable.as_fd())?.is_empty();
    Ok(Writable {
        upper: Arc::new(upper.dir),
        borrows: upper.features.xattr && !upper.shared && layer::partial::supported(work.as_fd()),
        work,
        index: Arc::new(index),
        features: upper.features,
        stat_in: None,
        redirects: upper.features.xattr && !upper.shared,
        indexed: AtomicBool::new(indexed),
    })
}

/// Gives a fresh upper its real directory's mode, owner (where permitted) and times, once.
fn prepare_upper_root(upper: &UpperConfig, top: BorrowedFd<'_>, lower: &Attr) -> Sys<()> {
    let dir = upper.dir.as_fd();
    if upper.features.xattr && layer::read_origin(dir)?.is_some() {
        return Ok(());
    }
    let origin = layer::Origin { path: RelPath::root(), base: BaseId::of(lower), btime: lower.btime };
    copy_up::copy_meta(top, dir, lower, |dir| layer::write_origin(dir, &origin).map(drop))?;
    sysfile::utimens_at(dir, b"", Some(SetTime::At(lower.atime)), Some(SetTime::At(lower.mtime)))
}

/// Attributes of the synthetic top directory.
fn top_attr(children: usize) -> Attr {
    let (uid, gid) = sys::process::effective_ids();
    Attr {
        ino: ROOT_ID,
        dev: 0,
        size: 0,
        blocks: 0,
        atime: Time::default(),
        mtime: Time::default(),
        ctime: Time::default(),
        btime: Time::default(),
        kind: Kind::Dir,
        perm: 0o755,
        nlink: 2 + children as u32,
        uid,
        gid,
        rdev: 0,
        blksize: 4096,
    }
}
