//! From a name in a directory to a node; and from a node to the object on disk.

use super::copy_up::{forced, mark_at, marks_of};
use super::fds::Slot;
use super::node::{Dir, Ident, Link, LowerDir, Node, NodeId, Place};
use super::{Entry, Root, TOP, Union, Writable, kept, top_attr};
use crate::base::{Access, Attr, Errno, Kind, Name, RelPath, Sys};
use crate::layer::{self, Found, LayerKind, Origin, StatXattr, WhiteoutForm, index_name};
use crate::sys::{file, xattr};
use smallvec::smallvec;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long the kernel may keep what cannot change behind our back.
pub(crate) const LONG: Duration = Duration::from_secs(24 * 3600);
/// How long it may keep what could, where no watch is to be had.
pub(crate) const SHORT: Duration = Duration::from_secs(1);

/// What a merged directory has at a name.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Seen {
    /// Nothing in any layer.
    Nothing,
    /// A whiteout in the upper.
    Whiteout(WhiteoutForm),
    /// An object in the upper.
    Upper(Attr),
    /// An object in the n-th lower directory of the parent.
    Lower(usize, Attr),
}

/// Where an object is: a name in an open directory, or (empty name) the open object itself.
pub(crate) struct At {
    pub dir: Arc<OwnedFd>,
    pub name: Box<[u8]>,
    /// Where its owner and mode are, if not in the object itself.
    pub stat_in: Option<StatXattr>,
}

impl At {
    pub fn stat(&self) -> Sys<Attr> {
        kept::stat(self.stat_in, self.dir.as_fd(), &self.name)
    }

    /// An `O_PATH` handle on the object.
    pub fn handle(&self) -> Sys<OwnedFd> {
        if self.name.is_empty() {
            return self.dir.try_clone().map_err(Errno::from);
        }
        file::openat(self.dir.as_fd(), &self.name, libc::O_PATH, 0)
    }

    /// Opens the object with `flags`.
    pub fn open(&self, flags: i32) -> Sys<OwnedFd> {
        if self.name.is_empty() {
            return file::reopen(self.dir.as_fd(), flags);
        }
        file::openat(self.dir.as_fd(), &self.name, flags, 0)
    }
}

impl Union {
    /// Looks `name` up in directory `parent`. A name that is known not to exist gives an entry with id 0, which the
    /// kernel may keep.
    ///
    /// # Errors
    /// `ENOENT` for a name that may appear behind our back; `ENAMETOOLONG`, `ENOTDIR`, `ESTALE`, or as `statx(2)`.
    pub fn lookup(&self, parent: NodeId, name: &[u8]) -> Sys<Entry> {
        let _tree = self.tree.read();
        let dir = self.nodes.get(parent)?;
        if dir.root == TOP {
            return self.lookup_top(dir.dir()?, name);
        }
        let name = Name::new(name)?;
        if self.root(&dir)?.prefixed && name.as_bytes().starts_with(layer::WH_PREFIX) {
            return Err(Errno::ENOENT); // a mark, whatever lies there
        }
        let seen = self.see(&dir, name.as_bytes())?;
        let ttl = self.ttl(&dir, matches!(seen, Seen::Upper(_)));
        if matches!(seen, Seen::Nothing | Seen::Whiteout(_)) {
            return if ttl == LONG { Ok(negative()) } else { Err(Errno::ENOENT) };
        }
        let (node, attr) = self.instantiate(&dir, &name, seen)?;
        let ttl = if self.changes_unseen(&node) { SHORT } else { ttl };
        if ttl == SHORT {
            self.check_unwatched(&node, &attr);
        }
        Ok(Entry { id: node.id, attr, ttl })
    }

    fn lookup_top(&self, top: &Dir, name: &[u8]) -> Sys<Entry> {
        let Some((_, node)) = top.fixed.iter().find(|(n, _)| n.as_bytes() == name) else {
            return Ok(negative());
        };
        self.nodes.acquire(node);
        Ok(Entry { id: node.id, attr: self.attr_of(node)?, ttl: LONG })
    }

    /// Takes `n` lookups of node `id` back; the last one lets go of what we hold for it.
    pub fn forget(&self, id: NodeId, n: u64) {
        let Some(node) = self.nodes.release(id, n) else {
            return;
        };
        let lowers = node.place.read().lowers.len();
        self.fds.forget_all(id, lowers);
        self.unwatch_linked(&node);
        if node.kind == Kind::Dir {
            self.listings.lock().pop(&id);
            self.unwatch(&node);
        }
        if node.place.read().pin.is_some() {
            self.loosen();
        }
        self.forget_partial(&node);
        let copied = node.place.read().copied;
        if let Some((dev, ino)) = copied {
            self.nodes.forget_copied(dev, ino, id);
        }
    }

    /// Attributes of node `id`, and how long the kernel may keep them.
    ///
    /// # Errors
    /// `ESTALE` when the object is gone from the real tree, else as `statx(2)`.
    pub fn getattr(&self, id: NodeId) -> Sys<(Attr, Duration)> {
        let _tree = self.tree.read();
        let node = self.nodes.get(id)?;
        let attr = match self.attr_of(&node) {
            Err(Errno::ESTALE | Errno::ENOENT) => return Ok((self.attr_of_open(&node)?, SHORT)),
            attr => attr?,
        };
        let ttl = self.attr_ttl(&node);
        if ttl == SHORT {
            self.check_unwatched(&node, &attr);
        }
        Ok((attr, ttl))
    }

    pub(crate) fn attr_ttl(&self, node: &Node) -> Duration {
        let place = node.place.read();
        match place.name().cloned() {
            Some(link) if !place.upper => {
                drop(place);
                if self.changes_unseen(node) { SHORT } else { self.ttl(&link.parent, false) }
            }
            _ => LONG,
        }
    }

    /// How long names of `dir` may be kept. Only what the real tree decides can change behind our back.
    pub(crate) fn ttl(&self, dir: &Arc<Node>, upper: bool) -> Duration {
        if upper || dir.place.read().lowers.is_empty() || self.ensure_watched(dir) { LONG } else { SHORT }
    }

    /// What the merged directory `dir` has at `name`, as far as the rules let it be seen.
    pub(crate) fn see(&self, dir: &Arc<Node>, name: &[u8]) -> Sys<Seen> {
        match self.ruled(dir, name) {
            Some(Access::Hide) => Ok(Seen::Nothing),
            Some(Access::Deny) => Err(Errno::EACCES),
            Some(Access::ReadOnly) | None => self.see_all(dir, name),
        }
    }

    /// What the merged directory `dir` has at `name`, whatever the rules say.
    pub(crate) fn see_all(&self, dir: &Arc<Node>, name: &[u8]) -> Sys<Seen> {
        Ok(match self.find_upper(dir, name)? {
            Found::Object(attr) => Seen::Upper(attr),
            Found::Whiteout(form) => Seen::Whiteout(form),
            Found::Nothing => match self.find_lower(dir, name)? {
                Some((k, attr)) => Seen::Lower(k, attr),
                None => Seen::Nothing,
            },
        })
    }

    pub(crate) fn find_upper(&self, dir: &Arc<Node>, name: &[u8]) -> Sys<Found> {
        let root = self.root(dir)?;
        if root.prefixed && name.starts_with(layer::WH_PREFIX) {
            return Err(Errno::EINVAL);
        }
        if !dir.place.read().upper {
            return Ok(Found::Nothing);
        }
        let upper = self.upper_dir(dir)?;
        let found = layer::find(upper.as_fd(), name, LayerKind::Overlay, root.prefixed)?;
        match (root.writable.as_ref().and_then(|w| w.stat_in), found) {
            (Some(which), Found::Object(attr)) => Ok(Found::Object(which.read(upper.as_fd(), name, attr)?)),
            (_, found) => Ok(found),
        }
    }

    /// The topmost lower object at `name`, whatever the upper has there.
    pub(crate) fn find_lower(&self, dir: &Arc<Node>, name: &[u8]) -> Sys<Option<(usize, Attr)>> {
        let root = self.root(dir)?;
        let lowers = dir.place.read().lowers.clone();
        if lowers.is_empty() {
            return Ok(None);
        }
        self.ensure_watched(dir);
        for (k, lower) in lowers.iter().enumerate() {
            let kind = root.lowers[usize::from(lower.layer)].kind;
            let fd = match self.lower_dir(dir, k) {
                Ok(fd) => fd,
                Err(Errno::ENOENT | Errno::ENOTDIR) => continue,
                Err(e) => return Err(e),
            };
            match layer::find(fd.as_fd(), name, kind, kind == LayerKind::Overlay)? {
                Found::Nothing => {}
                Found::Whiteout(_) => return Ok(None),
                Found::Object(attr) if self.hidden.contains(&(attr.dev, attr.ino)) => return Ok(None),
                Found::Object(attr) => {
                    let attr = match root.lowers[usize::from(lower.layer)].stat_in {
                        Some(which) => which.read(fd.as_fd(), name, attr)?,
                        None => attr,
                    };
                    return Ok(Some((k, attr)));
                }
            }
        }
        Ok(None)
    }

    /// The node of what was seen at `name`, with one lookup more, and its attributes.
    pub(crate) fn instantiate(&self, dir: &Arc<Node>, name: &Name, seen: Seen) -> Sys<(Arc<Node>, Attr)> {
        let (node, attr) = match seen {
            Seen::Nothing | Seen::Whiteout(_) => return Err(Errno::ENOENT),
            Seen::Upper(attr) if attr.kind == Kind::Dir => {
                self.instantiate_dir(dir, name, Some(attr), attr)?
            }
            Seen::Lower(_, attr) if attr.kind == Kind::Dir => self.instantiate_dir(dir, name, None, attr)?,
            Seen::Upper(attr) => (self.instantiate_upper(dir, name, &attr)?, attr),
            Seen::Lower(k, attr) => self.instantiate_lower(dir, name, k, attr)?,
        };
        self.note_rules(dir, name.as_bytes(), &node);
        let shown = self.show(&node, attr);
        Ok((node, shown))
    }

    fn instantiate_dir(
        &self,
        dir: &Arc<Node>,
        name: &Name,
        upper: Option<Attr>,
        attr: Attr,
    ) -> Sys<(Arc<Node>, Attr)> {
        let (lowers, top) = match (upper, self.only_lower(dir)) {
            (None, Some(lower)) => {
                (vec![LowerDir { layer: lower.layer, path: lower.path.join(name.as_bytes()) }], None)
            }
            _ => self.merge_lowers(dir, name.as_bytes(), upper.is_some())?,
        };
        let lowers: Arc<[LowerDir]> = lowers.into();
        if let (Some(_), Some(own)) = (&top, upper)
            && let Some(node) = self.known(dir, name, Seen::Upper(own)).filter(|n| n.kind == Kind::Dir)
        {
            // Made in the session, and merged with a real directory since.
            self.nodes.acquire(&node);
            let link = Link { parent: dir.clone(), name: name.clone(), upper: true };
            self.note_dir_link(&node, link, lowers)?;
            return Ok((node, attr));
        }
        let mut ident = Ident::of(dir.root, top.as_ref().unwrap_or(&attr));
        let link = Link { parent: dir.clone(), name: name.clone(), upper: upper.is_some() };
        // What the session has in a directory stays at its path, whatever became of the real one.
        ident.twin = self.nodes.find(&ident).is_some_and(|node| {
            let place = node.place.read();
            place.upper && (place.gone || place.links.first().is_some_and(|l| !l.is_at(&link)))
        });
        let place = Place {
            links: smallvec![link.clone()],
            upper: upper.is_some(),
            lowers: lowers.clone(),
            owner: top.as_ref().and_then(|real| self.owner_of_others(real)),
            ..Place::default()
        };
        let (node, fresh) = self.nodes.intern(ident, |id| Node::new(id, dir.root, Kind::Dir, ident, place));
        if !fresh {
            self.revive(&node, &link, top.as_ref().unwrap_or(&attr))?;
            self.note_dir_link(&node, link, lowers)?;
        }
        Ok((node, attr))
    }

    /// The one lower directory of `dir`, when it is one of a plain layer: then nothing needs merging below it.
    fn only_lower(&self, dir: &Arc<Node>) -> Option<LowerDir> {
        let place = dir.place.read();
        let [lower] = &*place.lowers else {
            return None;
        };
        let plain = self.root(dir).ok()?.lowers[usize::from(lower.layer)].kind == LayerKind::Plain;
        plain.then(|| lower.clone())
    }

    /// The identity that an object had in the lower. Device numbers may change over a reboot; a lower has mostly one.
    fn origin_ident(&self, dir: &Node, root: &Root, origin: &Origin) -> Ident {
        let dev = if self.nodes.knows_device(origin.base.dev) { origin.base.dev } else { root.lower_dev };
        Ident { root: dir.root, dev, ino: origin.base.ino, btime: origin.btime, twin: false }
    }

    fn instantiate_upper(&self, dir: &Arc<Node>, name: &Name, attr: &Attr) -> Sys<Arc<Node>> {
        let link = Link { parent: dir.clone(), name: name.clone(), upper: true };
        if let Some(node) = self.nodes.find_copied(attr.dev, attr.ino) {
            self.nodes.acquire(&node);
            self.note_link(&node, link, attr);
            return Ok(node);
        }
        let own = Ident::of(dir.root, attr);
        if let Some(node) = self.nodes.find(&own)
            && node.place.read().upper
        {
            self.nodes.acquire(&node);
            self.note_link(&node, link, attr);
            return Ok(node);
        }
        let root = self.root(dir)?;
        let value = if attr.kind == Kind::File {
            mark_at(self.upper_dir(dir)?.as_fd(), name.as_bytes(), layer::X_BASE)?
        } else {
            None
        };
        let origin = value.as_deref().and_then(Origin::decode);
        let mut place = Place { links: smallvec![link], upper: true, ..Place::default() };
        let ident = match origin {
            Some(origin) => {
                self.read_index(self.writable(dir)?, &origin, &mut place)?;
                let from = self.origin_ident(dir, root, &origin);
                // A lower object that moved behind our back may hold the number; then this one keeps its own.
                if self.nodes.find(&from).is_some() { own } else { from }
            }
            None => own,
        };
        let (node, _) = self.nodes.intern(ident, |id| Node::new(id, dir.root, attr.kind, ident, place));
        if ident != own {
            self.nodes.note_copied(attr.dev, attr.ino, &node);
        }
        Ok(node)
    }

    /// Fills in what the index knows of an object that had several names in the lower.
    fn read_index(&self, root: &Writable, origin: &Origin, place: &mut Place) -> Sys<()> {
        if origin.base.nlink < 2 {
            return Ok(());
        }
        let name = index_name(origin.base.ino, origin.btime);
        if stat_index(root, &name)?.is_some() {
            place.nlink_adj = read_adj(root, &name)?;
            place.index = Some(name.into());
        }
        Ok(())
    }

    fn instantiate_lower(
        &self,
        dir: &Arc<Node>,
        name: &Name,
        k: usize,
        attr: Attr,
    ) -> Sys<(Arc<Node>, Attr)> {
        let root = self.root(dir)?.writable.as_ref();
        let layer = dir.place.read().lowers[k].layer;
        let link = Link { parent: dir.clone(), name: name.clone(), upper: false };
        let mut ident = Ident::of(dir.root, &attr);
        if let Some(root) = root.filter(|r| attr.nlink > 1 && r.indexed.load(Ordering::Acquire)) {
            let index = index_name(attr.ino, attr.btime);
            if let Some(copied) = stat_index(root, &index)? {
                let node = self.instantiate_indexed(dir, link, ident, index, &copied)?;
                return Ok((node, copied));
            }
        }
        if self.nodes.find(&ident).is_some_and(|n| n.place.read().upper) {
            ident.twin = true;
        }
        let place = Place { links: smallvec![link.clone()], layer, ..Place::default() };
        let (node, fresh) = self.nodes.intern(ident, |id| Node::new(id, dir.root, attr.kind, ident, place));
        if !fresh {
            self.revive(&node, &link, &attr)?;
            self.note_link(&node, link, &attr);
        }
        let now = if attr.kind == Kind::File && attr.nlink > 1 { self.watch_linked(&node)? } else { None };
        Ok((node, now.filter(|now| now.ino == attr.ino).unwrap_or(attr)))
    }

    /// A lower name of an object that was copied up under another of its names.
    fn instantiate_indexed(
        &self,
        dir: &Arc<Node>,
        link: Link,
        ident: Ident,
        index: Vec<u8>,
        copied: &Attr,
    ) -> Sys<Arc<Node>> {
        let nlink_adj = read_adj(self.writable(dir)?, &index)?;
        let place = Place {
            links: smallvec![link.clone()],
            upper: true,
            index: Some(index.into()),
            nlink_adj,
            ..Place::default()
        };
        let (node, fresh) = self.nodes.intern(ident, |id| Node::new(id, dir.root, copied.kind, ident, place));
        self.nodes.note_copied(copied.dev, copied.ino, &node);
        if !fresh {
            self.note_link(&node, link, copied);
        }
        Ok(node)
    }

    /// The lower directories that show through the directory `name` of `dir`, and the attributes of the topmost.
    pub(crate) fn merge_lowers(
        &self,
        dir: &Arc<Node>,
        name: &[u8],
        in_upper: bool,
    ) -> Sys<(Vec<LowerDir>, Option<Attr>)> {
        let root = self.root(dir)?;
        let parents = dir.place.read().lowers.clone();
        let mut redirect = None;
        if in_upper {
            let upper = self.upper_dir(dir)?;
            let at = parents.first().map(|l| l.path.clone()).unwrap_or_default();
            let marks = marks_of(upper.as_fd(), name, &at, root.prefixed)?;
            if marks.opaque {
                return Ok((Vec::new(), None));
            }
            redirect = marks.redirect;
        }
        if !parents.is_empty() {
            self.ensure_watched(dir);
        }
        let mut merge = Merge { union: self, root, merged: Vec::new(), top: None };
        if redirect.is_some() {
            self.redirected.store(true, Ordering::Release);
        }
        let mut done = match redirect {
            Some(path) => return merge.below(0, &path).map(|()| (merge.merged, merge.top)),
            None => false,
        };
        for (k, parent) in parents.iter().enumerate() {
            if done {
                break;
            }
            let fd = match self.lower_dir(dir, k) {
                Ok(fd) => fd,
                Err(Errno::ENOENT | Errno::ENOTDIR) => continue,
                Err(e) => return Err(e),
            };
            done = merge.step(parent.layer, fd.as_fd(), &parent.path, name)?;
        }
        Ok((merge.merged, merge.top))
    }

    /// The descriptor of a directory in the upper. It must be there (see `copy_up_dir`).
    pub(crate) fn upper_dir(&self, node: &Arc<Node>) -> Sys<Arc<OwnedFd>> {
        if let Some(fd) = self.fds.get(node.id, Slot::UpperDir) {
            return Ok(fd);
        }
        let place = node.place.read();
        if let Some(pin) = &place.pin {
            return Ok(pin.clone());
        }
        let Some(link) = place.name().cloned() else {
            return Ok(self.writable(node)?.upper.clone());
        };
        drop(place);
        let parent = self.upper_dir(&link.parent)?;
        let fd = file::openat(parent.as_fd(), link.name.as_bytes(), libc::O_PATH | libc::O_DIRECTORY, 0)?;
        Ok(self.fds.put(node.id, Slot::UpperDir, fd))
    }

    /// The descriptor of the `k`-th lower directory of a node.
    pub(crate) fn lower_dir(&self, node: &Arc<Node>, k: usize) -> Sys<Arc<OwnedFd>> {
        match self.fds.get(node.id, Slot::LowerDir(k as u16)) {
            Some(fd) => Ok(fd),
            None => self.lower_dir_in(node, &node.place.read(), k),
        }
    }

    fn lower_dir_in(&self, node: &Arc<Node>, place: &Place, k: usize) -> Sys<Arc<OwnedFd>> {
        let slot = Slot::LowerDir(k as u16);
        if let Some(fd) = self.fds.get(node.id, slot) {
            return Ok(fd);
        }
        let lower = place.lowers.get(k).ok_or(Errno::ESTALE)?;
        let layer = &self.root(node)?.lowers[usize::from(lower.layer)];
        if lower.path.is_root() {
            return Ok(layer.dir.clone());
        }
        let fd = open_deep(layer.dir.as_fd(), &lower.path)?;
        Ok(self.fds.put(node.id, slot, fd))
    }

    /// Where the node's object is now.
    pub(crate) fn locate(&self, node: &Arc<Node>) -> Sys<At> {
        self.locate_in(node, &node.place.read())
    }

    /// As `locate`, for a caller that holds the node's place.
    pub(crate) fn locate_in(&self, node: &Arc<Node>, place: &Place) -> Sys<At> {
        let root = self.root(node)?;
        let upper = root.writable.as_ref().and_then(|w| w.stat_in);
        let below = |layer: u16| root.lowers[usize::from(layer)].stat_in;
        let here = |dir: Arc<OwnedFd>, stat_in| At { dir, name: Box::default(), stat_in };
        let within = |dir: Arc<OwnedFd>, name: &[u8], stat_in| At { dir, name: name.into(), stat_in };
        if let Some(pin) = &place.pin {
            return Ok(here(pin.clone(), upper));
        }
        let Some(link) = place.name() else {
            if let Some(index) = &place.index {
                // Its known names are gone, but it has others.
                return Ok(within(self.writable(node)?.index.clone(), index, upper));
            }
            return match &root.writable {
                Some(root) => Ok(here(root.upper.clone(), upper)),
                None => self.lower_dir_in(node, place, 0).map(|dir| here(dir, below(0))),
            };
        };
        if place.upper {
            if let Some(link) = place.links.iter().find(|l| l.upper) {
                return Ok(within(self.upper_dir(&link.parent)?, link.name.as_bytes(), upper));
            }
            let index = place.index.clone().ok_or(Errno::ESTALE)?;
            return Ok(within(self.writable(node)?.index.clone(), &index, upper));
        }
        if node.kind == Kind::Dir {
            let layer = place.lowers.first().ok_or(Errno::ESTALE)?.layer;
            return self.lower_dir_in(node, place, 0).map(|dir| here(dir, below(layer)));
        }
        let lowers = link.parent.place.read().lowers.clone();
        let k = lowers.iter().position(|l| l.layer == place.layer).ok_or(Errno::ESTALE)?;
        Ok(within(self.lower_dir(&link.parent, k)?, link.name.as_bytes(), below(place.layer)))
    }

    /// Attributes of the node as the merged view shows them.
    pub(crate) fn attr_of(&self, node: &Arc<Node>) -> Sys<Attr> {
        if node.root == TOP {
            return Ok(top_attr(node.dir()?.fixed.len()));
        }
        let attr =
            self.locate(node)?.stat().map_err(|e| if e == Errno::ENOENT { Errno::ESTALE } else { e })?;
        let place = node.place.read();
        if attr.kind != node.kind || (!place.upper && attr.ino != node.ident.ino) {
            return Err(Errno::ESTALE); // another object took the name in the real tree
        }
        drop(place);
        Ok(self.show(node, attr))
    }

    /// Attributes of a real file that others removed, or put another in the place of, while its content is still open here.
    fn attr_of_open(&self, node: &Arc<Node>) -> Sys<Attr> {
        let fd = self.fds.get(node.id, Slot::Read).ok_or(Errno::ESTALE)?;
        let attr = file::stat(fd.as_fd())?;
        if node.place.read().upper || attr.ino != node.ident.ino {
            return Err(Errno::ESTALE);
        }
        Ok(self.show(node, attr))
    }

    /// The path of a node in the merged view, from its root. Also its path in the upper.
    pub(crate) fn upper_path(&self, node: &Node) -> RelPath {
        let mut names: Vec<Name> = Vec::new();
        let mut at = node.place.read().name().cloned();
        while let Some(link) = at {
            names.push(link.name);
            at = link.parent.place.read().name().cloned();
        }
        let mut path = RelPath::root();
        for name in names.iter().rev() {
            path = path.join(name.as_bytes());
        }
        path
    }
}

fn negative() -> Entry {
    let mut attr = top_attr(0);
    attr.ino = 0;
    Entry { id: 0, attr, ttl: LONG }
}

/// Collects the lower directories of one merged directory, from the top.
struct Merge<'a> {
    union: &'a Union,
    root: &'a Root,
    merged: Vec<LowerDir>,
    top: Option<Attr>,
}

impl Merge<'_> {
    /// Looks at `name` in the directory `dir`, which is `parent` of `layer`; true when nothing further down shows.
    fn step(
        &mut self,
        layer: u16,
        dir: std::os::fd::BorrowedFd<'_>,
        parent: &RelPath,
        name: &[u8],
    ) -> Sys<bool> {
        let kind = self.root.lowers[usize::from(layer)].kind;
        match layer::find(dir, name, kind, kind == LayerKind::Overlay)? {
            Found::Nothing => return Ok(false),
            Found::Object(attr)
                if attr.kind == Kind::Dir && !self.union.hidden.contains(&(attr.dev, attr.ino)) =>
            {
                self.top.get_or_insert(attr);
            }
            Found::Object(_) | Found::Whiteout(_) => return Ok(true),
        }
        self.merged.push(LowerDir { layer, path: parent.join(name) });
        if kind == LayerKind::Plain {
            return Ok(false);
        }
        let marks = layer::marks_at(dir, name, parent, true)?;
        if marks.opaque {
            return Ok(true);
        }
        match marks.redirect {
            Some(path) => self.below(usize::from(layer) + 1, &path).map(|()| true),
            None => Ok(false),
        }
    }

    /// Goes on at `path` in the layers from `first` down.
    fn below(&mut self, first: usize, path: &RelPath) -> Sys<()> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Errno::EIO);
        };
        for layer in first..self.root.lowers.len() {
            let dir = match open_deep(self.root.lowers[layer].dir.as_fd(), &parent) {
                Ok(dir) => dir,
                Err(Errno::ENOENT | Errno::ENOTDIR) => continue,
                Err(e) => return Err(e),
            };
            if self.step(layer as u16, dir.as_fd(), &parent, name)? {
                break;
            }
        }
        Ok(())
    }
}

/// What the index has under `name`.
pub(crate) fn stat_index(root: &Writable, name: &[u8]) -> Sys<Option<Attr>> {
    match kept::stat(root.stat_in, root.index.as_fd(), name) {
        Ok(attr) => Ok(Some(attr)),
        Err(Errno::ENOENT) => Ok(None),
        Err(e) => Err(e),
    }
}

const X_NLINK: &[u8] = b"user.overlay.sbx.nlink";

fn read_adj(root: &Writable, index: &[u8]) -> Sys<i32> {
    let value = mark_at(root.index.as_fd(), index, X_NLINK)?;
    let text = value.as_deref().and_then(|v| std::str::from_utf8(v).ok());
    text.map_or(Ok(-1), |t| t.parse().map_err(|_| Errno::EIO))
}

/// Notes the difference between reported and real link count on an indexed object.
pub(crate) fn write_adj(root: &Writable, index: &[u8], adj: i32) -> Sys<()> {
    let fd = file::openat(root.index.as_fd(), index, libc::O_PATH, 0)?;
    match forced(fd.as_fd(), || xattr::set(fd.as_fd(), X_NLINK, adj.to_string().as_bytes(), 0)) {
        Ok(()) | Err(Errno::EPERM | Errno::EOPNOTSUPP) => Ok(()),
        Err(e) => Err(e),
    }
}

/// Opens a directory beneath `dir` whose path may be longer than `PATH_MAX`.
pub(crate) fn open_deep(dir: std::os::fd::BorrowedFd<'_>, path: &RelPath) -> Sys<OwnedFd> {
    const PIECE: usize = 3500;
    let flags = libc::O_PATH | libc::O_DIRECTORY;
    let mut rest = path.as_bytes();
    let mut at: Option<OwnedFd> = None;
    while rest.len() > PIECE {
        let cut = rest[..PIECE].iter().rposition(|&b| b == b'/').ok_or(Errno::ENAMETOOLONG)?;
        let fd = file::open_beneath(at.as_ref().map_or(dir, |f| f.as_fd()), &rest[..cut], flags, 0)?;
        rest = &rest[cut + 1..];
        at = Some(fd);
    }
    file::open_beneath(at.as_ref().map_or(dir, |f| f.as_fd()), rest, flags, 0)
}
