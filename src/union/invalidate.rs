//! The lower may change while a session lives: directories that were looked into are watched, and what changes there is
//! dropped from the kernel's caches. Where no watch can be had, those caches get a short life instead.

use super::Union;
use super::lookup::Seen;
use super::node::{Ident, Node, NodeId};
use crate::base::{Attr, Errno, Error, Kind, Name, Result, Sys};
use crate::layer::LayerKind;
use crate::sys::file;
use crate::sys::watch::{Event, Inotify};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// The way to the kernel's caches; the FUSE adapter implements it.
pub trait Notify: Send + Sync {
    /// Drops the name `name` of directory `parent`.
    fn entry(&self, parent: NodeId, name: &[u8]);
    /// Drops attributes and content of `id`.
    fn inode(&self, id: NodeId);
}

const MASK: u32 = libc::IN_CREATE
    | libc::IN_DELETE
    | libc::IN_MOVED_FROM
    | libc::IN_MOVED_TO
    | libc::IN_DELETE_SELF
    | libc::IN_ONLYDIR
    | CONTENT;

/// What says that a file changed. Writing through a mapping does not; letting go of it does.
const CONTENT: u32 = libc::IN_MODIFY | libc::IN_ATTRIB | libc::IN_CLOSE_WRITE;

/// So many files with several names have a watch of their own; more would leave too few for the user's other programs.
const LINKED: usize = 4096;

/// [`Node::linked`] of a file that can have no watch.
const UNWATCHED: i32 = -1;

/// How long after a change its invalidation is repeated: a reply that was under way when it happened may reach the
/// kernel's cache after the first.
const AGAIN: Duration = Duration::from_millis(50);

/// A watched directory.
#[derive(Clone)]
struct Watch {
    /// Its device and inode: the watch follows it wherever others move it, the paths of nodes do not.
    real: (u64, u64),
    /// The nodes whose directory it is, or was.
    nodes: Vec<NodeId>,
}

/// Watches on lower directories.
pub(crate) struct Watcher {
    inotify: Inotify,
    watches: Mutex<HashMap<i32, Watch>>,
    /// How many of them are of files.
    linked: AtomicUsize,
    notify: OnceLock<Box<dyn Notify>>,
    /// Nodes found changed in directories without a watch; the thread drops their pages.
    found_changed: Mutex<Vec<NodeId>>,
    /// Closed with the union, which ends the thread at once.
    alive: OnceLock<std::io::PipeWriter>,
}

impl Watcher {
    pub fn new() -> Sys<Watcher> {
        Ok(Watcher {
            inotify: Inotify::new()?,
            watches: Mutex::default(),
            linked: AtomicUsize::new(0),
            notify: OnceLock::new(),
            found_changed: Mutex::default(),
            alive: OnceLock::new(),
        })
    }

    fn watch(&self, event: &Event) -> Option<Watch> {
        self.watches.lock().get(&event.wd).cloned()
    }

    /// The watch is not for node `id` any more.
    fn forget(&self, wd: i32, id: NodeId) {
        let mut watches = self.watches.lock();
        let Some(watch) = watches.get_mut(&wd) else {
            return;
        };
        watch.nodes.retain(|node| *node != id);
        if watch.nodes.is_empty() {
            watches.remove(&wd);
            if let Err(e) = self.inotify.remove(wd) {
                tracing::debug!("watch {wd} was gone already: {e}");
            }
        }
    }
}

/// Starts the thread that turns events into invalidations; it ends with the union.
pub(crate) fn start(union: &Arc<Union>) -> Result<()> {
    let weak = Arc::downgrade(union);
    let Some(watcher) = &union.watcher else {
        return Ok(());
    };
    let fd = watcher
        .inotify
        .as_fd()
        .try_clone_to_owned()
        .map_err(|e| Error::sys("share the inotify descriptor", e))?;
    let (ends, alive) =
        std::io::pipe().map_err(|e| Error::sys("make a pipe for the invalidation thread", Errno::from(e)))?;
    watcher.alive.get_or_init(|| alive);
    std::thread::Builder::new()
        .name("invalidate".into())
        .spawn(move || watch_loop(&weak, &fd, &ends))
        .map(drop)
        .map_err(|e| Error::sys("start the invalidation thread", e))
}

fn watch_loop(union: &Weak<Union>, fd: &std::os::fd::OwnedFd, ends: &std::io::PipeReader) {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let mut again: Vec<Event> = Vec::new();
    loop {
        let wait = if again.is_empty() { Duration::from_millis(500) } else { AGAIN };
        let timeout = PollTimeout::try_from(wait).unwrap_or(PollTimeout::NONE);
        let mut fds =
            [PollFd::new(fd.as_fd(), PollFlags::POLLIN), PollFd::new(ends.as_fd(), PollFlags::empty())];
        let ready = poll(&mut fds, timeout).is_ok() && fds[0].any().unwrap_or(false);
        let Some(union) = union.upgrade() else {
            return;
        };
        let repeat = std::mem::take(&mut again);
        if ready {
            match union.watcher.as_ref().map(|w| w.inotify.read()) {
                Some(Ok(events)) => {
                    union.apply_events(&events);
                    again = events;
                }
                Some(Err(Errno::EINTR | Errno::EAGAIN)) => {}
                _ => return,
            }
        }
        union.apply_events(&repeat);
        union.drop_found_changed();
    }
}

impl Union {
    /// Connects the union with the kernel's caches. Only the first call counts.
    pub fn set_notify(&self, notify: Box<dyn Notify>) {
        if let Some(watcher) = &self.watcher
            && watcher.notify.set(notify).is_err()
        {
            tracing::debug!("the union has its way to the kernel already");
        }
    }

    pub(crate) fn notify(&self) -> Option<&dyn Notify> {
        self.watcher.as_ref()?.notify.get().map(|n| &**n)
    }

    /// Whether changes of the real tree in `dir` will be noticed.
    pub(crate) fn ensure_watched(&self, dir: &Arc<Node>) -> bool {
        let Some(state) = &dir.dir else {
            return false;
        };
        match state.watched.load(Ordering::Acquire) {
            1 => return true,
            2 => return false,
            _ => {}
        }
        let watched = self.watch(dir).is_ok();
        state.watched.store(if watched { 1 } else { 2 }, Ordering::Release);
        watched
    }

    fn watch(&self, dir: &Arc<Node>) -> Sys<()> {
        let watcher = self.watcher.as_ref().ok_or(Errno::ENOSYS)?;
        let root = self.root(dir)?;
        let lowers = dir.place.read().lowers.clone();
        for (k, lower) in lowers.iter().enumerate() {
            if root.lowers[usize::from(lower.layer)].kind != LayerKind::Plain {
                continue;
            }
            let fd = self.lower_dir(dir, k)?;
            let attr = file::stat(fd.as_fd())?;
            let mut watches = watcher.watches.lock();
            let wd = watcher.inotify.add(fd.as_fd(), MASK)?;
            let new = || Watch { real: (attr.dev, attr.ino), nodes: Vec::new() };
            let nodes = &mut watches.entry(wd).or_insert_with(new).nodes;
            if !nodes.contains(&dir.id) {
                nodes.push(dir.id);
            }
            drop(watches);
            dir.dir()?.wds.lock().push(wd);
        }
        Ok(())
    }

    /// Watches a real file that has several names: who changes it under another one is not heard in this one's directory.
    /// Returns its attributes as they are from then on, if it was not watched before.
    pub(super) fn watch_linked(&self, node: &Arc<Node>) -> Sys<Option<Attr>> {
        let Some(watcher) = self.watcher.as_ref().filter(|_| node.linked.load(Ordering::Acquire) == 0) else {
            return Ok(None);
        };
        let at = self.locate(node)?;
        let fd = at.handle()?;
        let mut watches = watcher.watches.lock();
        if node.linked.load(Ordering::Acquire) != 0 {
            return Ok(None);
        }
        let room = watcher.linked.load(Ordering::Relaxed) < LINKED;
        let wd = if room { watcher.inotify.add(fd.as_fd(), CONTENT).ok() } else { None };
        if let Some(wd) = wd {
            let new = || Watch { real: (node.ident.dev, node.ident.ino), nodes: Vec::new() };
            watches.entry(wd).or_insert_with(new).nodes.push(node.id);
            watcher.linked.fetch_add(1, Ordering::Relaxed);
        }
        node.linked.store(wd.unwrap_or(UNWATCHED), Ordering::Release);
        drop(watches);
        at.stat().map(Some)
    }

    /// Whether `node` is a real file that may change unseen.
    pub(super) fn changes_unseen(&self, node: &Node) -> bool {
        node.linked.load(Ordering::Acquire) == UNWATCHED && !node.place.read().upper
    }

    /// Stops watching a file.
    pub(super) fn unwatch_linked(&self, node: &Node) {
        let wd = node.linked.swap(0, Ordering::AcqRel);
        if let Some(watcher) = self.watcher.as_ref().filter(|_| wd > 0) {
            watcher.linked.fetch_sub(1, Ordering::Relaxed);
            watcher.forget(wd, node.id);
        }
    }

    /// Whether the real tree is watched at all.
    pub fn watches(&self) -> bool {
        self.watcher.is_some()
    }

    /// Compares a lower file without a watch with what it was at the last look; when it changed, the kernel's pages
    /// of it are dropped soon (not from here: the kernel may hold what the drop needs).
    pub(crate) fn check_unwatched(&self, node: &Node, attr: &Attr) {
        if self.watcher.is_none() {
            return;
        }
        let time = (attr.mtime.sec as u64).wrapping_mul(1_000_000_007) ^ u64::from(attr.mtime.nsec);
        let state = (time ^ attr.size.rotate_left(40)) | 1;
        let before = node.unwatched_state.swap(state, Ordering::AcqRel);
        if before != 0 && before != state {
            self.found_changed(node);
        }
    }

    /// Has the kernel's pages of `node` dropped soon.
    pub(crate) fn found_changed(&self, node: &Node) {
        if let Some(watcher) = &self.watcher {
            watcher.found_changed.lock().push(node.id);
        }
    }

    fn drop_found_changed(&self) {
        let (Some(watcher), Some(notify)) = (&self.watcher, self.notify()) else {
            return;
        };
        let found = std::mem::take(&mut *watcher.found_changed.lock());
        found.into_iter().for_each(|id| notify.inode(id));
    }

    /// Stops watching for a directory that the kernel forgot.
    pub(crate) fn unwatch(&self, dir: &Node) {
        let Some(state) = &dir.dir else {
            return;
        };
        if state.watched.swap(0, Ordering::AcqRel) == 0 {
            return;
        }
        let Some(watcher) = &self.watcher else {
            return;
        };
        let wds = std::mem::take(&mut *state.wds.lock());
        wds.into_iter().for_each(|wd| watcher.forget(wd, dir.id));
    }

    fn apply_events(&self, events: &[Event]) {
        let (Some(watcher), Some(notify)) = (&self.watcher, self.notify()) else {
            return;
        };
        let mut last = None;
        let mut dropped = HashSet::new();
        for (i, event) in events.iter().enumerate() {
            if event.mask & libc::IN_Q_OVERFLOW != 0 {
                self.invalidate_all(notify);
                continue;
            }
            let key = (event.wd, event.mask, event.name.as_slice());
            if last == Some(key) {
                continue; // a burst of writes to one file
            }
            last = Some(key);
            let Some(watch) = watcher.watch(event) else {
                continue;
            };
            for id in &watch.nodes {
                self.apply_event(notify, *id, event);
            }
            if self.loses_sight(watcher, event, events.get(i + 1)) {
                // The events are older than the first drop, so it is enough for all of them.
                let nodes: Vec<_> = watch.nodes.into_iter().filter(|id| dropped.insert(*id)).collect();
                self.drop_children(notify, &nodes);
            }
        }
    }

    fn apply_event(&self, notify: &dyn Notify, id: NodeId, event: &Event) {
        let Ok(dir) = self.nodes.get(id) else {
            return;
        };
        let names =
            event.mask & (libc::IN_CREATE | libc::IN_DELETE | libc::IN_MOVED_FROM | libc::IN_MOVED_TO) != 0;
        let is_dir = event.mask & libc::IN_ISDIR != 0;
        if names {
            dir.touch_entries();
        }
        if event.mask & libc::IN_MOVED_TO != 0
            && let Err(e) = self.follow_renamed(&dir, &event.name)
        {
            tracing::debug!("what was renamed outside could not be followed: {e}");
        }
        if event.name.is_empty() {
            // The session's own copy of a file does not move under it.
            if dir.kind == Kind::Dir || !dir.place.read().upper {
                notify.inode(id);
            }
            return;
        }
        for child in self.lower_children(&dir, &event.name) {
            let place = child.place.read();
            let own = place.upper
                && place.links.iter().any(|l| l.parent.id == id && l.name.as_bytes() == event.name);
            drop(place);
            if own && !is_dir {
                return; // the session has its own copy, which does not move under it
            }
            notify.inode(child.id);
        }
        if names && is_dir {
            self.lose_redirects(notify, &dir, &event.name);
            // One that the session has at that name is merged with it from now on, or no longer.
            if let Some(own) = self.own_dir(&dir, &event.name) {
                own.touch_entries();
                notify.inode(own.id);
            }
        }
        if names {
            notify.entry(id, &event.name);
            notify.inode(id);
        }
    }

    /// A directory came to or went from `name` in the real directories of `dir`: what shows it, or something in it, at
    /// another path must look again.
    fn lose_redirects(&self, notify: &dyn Notify, dir: &Node, name: &[u8]) {
        if !self.redirected.load(Ordering::Acquire) {
            return;
        }
        let lowers = dir.place.read().lowers.clone();
        let changed: Vec<_> = lowers.iter().map(|l| (l.layer, l.path.join(name))).collect();
        let shows = |node: &Node| {
            let place = node.place.read();
            let mut pairs = place.lowers.iter().flat_map(|l| changed.iter().map(move |c| (l, c)));
            node.root == dir.root
                && pairs.any(|(l, (layer, path))| l.layer == *layer && l.path.starts_with(path))
        };
        for node in self.nodes.all().iter().filter(|n| n.kind == Kind::Dir && shows(n)) {
            let (links, lowers) = {
                let place = node.place.read();
                (place.links.clone(), place.lowers.len())
            };
            self.fds.forget_all(node.id, lowers);
            node.touch_entries();
            for link in &links {
                link.parent.touch_entries();
                notify.entry(link.parent.id, link.name.as_bytes());
                notify.inode(link.parent.id);
            }
            notify.inode(node.id);
        }
    }

    /// The directory that the upper has at `name`, if it is known.
    fn own_dir(&self, dir: &Arc<Node>, name: &[u8]) -> Option<Arc<Node>> {
        let _tree = self.tree.read();
        let name = Name::new(name).ok()?;
        let seen = self.see(dir, name.as_bytes()).ok()?;
        let own = matches!(seen, Seen::Upper(_)).then(|| self.known(dir, &name, seen)).flatten();
        own.filter(|node| node.kind == Kind::Dir)
    }

    /// The nodes that may be the lower object at `name`.
    fn lower_children(&self, dir: &Arc<Node>, name: &[u8]) -> Vec<Arc<Node>> {
        let _tree = self.tree.read();
        let Ok(Some((_, attr))) = self.find_lower(dir, name) else {
            return Vec::new();
        };
        let ident = Ident::of(dir.root, &attr);
        [ident, Ident { twin: true, ..ident }].iter().filter_map(|i| self.nodes.find(i)).collect()
    }

    /// Whether the object that `event` names is one that no node leads to now, though it may be known: its directory was
    /// moved, or it was moved itself, to where nobody has looked yet. The two events of a rename follow each other.
    fn loses_sight(&self, watcher: &Watcher, event: &Event, next: Option<&Event>) -> bool {
        let found = |event: &Event| watcher.watch(event).is_some_and(|watch| self.leads_to(&watch));
        if event.name.is_empty() || event.mask & libc::IN_DELETE != 0 {
            return false;
        }
        if event.mask & libc::IN_MOVED_FROM == 0 {
            return !found(event);
        }
        !next.is_some_and(|to| to.cookie == event.cookie && found(to))
    }

    /// Whether any node's path still leads to the watched directory; else others have moved it.
    fn leads_to(&self, watch: &Watch) -> bool {
        let leads = |dir: &Arc<Node>, k| {
            let fd = self.lower_dir(dir, k)?;
            file::stat(fd.as_fd()).map(|attr| (attr.dev, attr.ino) == watch.real)
        };
        let _tree = self.tree.read();
        watch.nodes.iter().filter_map(|id| self.nodes.get(*id).ok()).any(|dir| {
            let lowers = dir.place.read().lowers.len();
            (0..lowers).any(|k| leads(&dir, k).unwrap_or(false))
        })
    }

    /// Drops all that is known of the real objects in `dirs`: one of them changed, and any may be shown elsewhere now.
    fn drop_children(&self, notify: &dyn Notify, dirs: &[NodeId]) {
        if dirs.is_empty() {
            return;
        }
        let in_dirs = |node: &Node| {
            let place = node.place.read();
            !place.upper && place.links.iter().any(|l| dirs.contains(&l.parent.id))
        };
        self.nodes.all().iter().filter(|n| in_dirs(n)).for_each(|n| notify.inode(n.id));
    }

    /// Events were lost: everything that the real tree decides may be stale.
    fn invalidate_all(&self, notify: &dyn Notify) {
        for node in self.nodes.all() {
            node.touch_entries();
            let links = node.place.read().links.clone();
            for link in &links {
                notify.entry(link.parent.id, link.name.as_bytes());
            }
            notify.inode(node.id);
        }
    }
}
