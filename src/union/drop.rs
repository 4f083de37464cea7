//! A change leaves the session while it is in use: it was applied to the real tree, or discarded.

use super::copy_up::{forced, like_real, mark_at, marks_of, open_forced, own_xattrs, put_back_times};
use super::lookup::{Seen, open_deep};
use super::node::{Ident, LowerDir, Node};
use super::record::Note;
use super::remove::drop_name;
use super::{Caller, Root, Union};
use crate::base::{Attr, BaseId, Errno, Kind, Name, RelPath, Sys, Time};
use crate::journal::{Op, Record};
use crate::layer::{self, Found, LayerKind, index_name};
use crate::sys::{data, dir as sysdir, file, xattr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Largest real file whose bytes are kept for a later merge.
const KEPT: u64 = 128 << 10;

/// One change that is to leave the session.
#[derive(Clone, Debug)]
pub struct Leave {
    /// `Op::Applied` or `Op::Discarded`.
    pub op: Op,
    /// Which root.
    pub root: u16,
    /// Where the change is in the merged view.
    pub path: RelPath,
    /// For a rename: where the object was, so that the whiteout there goes too.
    pub from: Option<RelPath>,
    /// Inode and ctime of the upper object when it was applied; if it is not that any more, it stays.
    pub seen: Option<(u64, Time)>,
    /// Directories above it, or above where it was, that are no change themselves, each before the one above it: those in
    /// which nothing of the session is left go with it.
    pub silent: Vec<RelPath>,
}

/// How long a write that is under way is waited for.
const PATIENCE: Duration = Duration::from_millis(100);

/// What was done on the disk that the nodes and the kernel have yet to learn.
#[derive(Default)]
struct Done {
    /// Names that lead elsewhere now, and the nodes that they led to.
    stale: Stale,
    /// Non-directories that were kept from changing.
    lost: Vec<Lost>,
}

/// A non-directory that leaves, under one of its names.
pub(super) struct Lost {
    pub node: Arc<Node>,
    dir: Arc<Node>,
    name: Name,
    /// Whether that was its last name in the upper.
    last: bool,
}

/// Names that the kernel must look up again, with their directories, and what they led to.
type Stale = Vec<(Arc<Node>, Name, Option<u64>)>;

impl Union {
    /// Takes a change out of the upper; the view shows the real tree there again. False when the object was changed
    /// since `seen`, and so stays.
    ///
    /// # Errors
    /// As `unlink(2)` and `rmdir(2)`.
    pub fn leave(&self, change: &Leave) -> Sys<bool> {
        self.loosen();
        let begun = Instant::now();
        let (left, done) = loop {
            let mut done = Done::default();
            let tree = self.tree.write();
            let left = self.leave_locked(change, &mut done);
            self.let_change(&done.lost);
            drop(tree);
            match left {
                Err(Errno::EBUSY) if begun.elapsed() < PATIENCE => std::thread::sleep(PATIENCE / 100),
                // It is just being changed.
                Err(Errno::EBUSY) => return Ok(false),
                left => break (left, done),
            }
        };
        if let (Some(notify), true) = (self.notify(), change.path.is_root())
            && let Some(root) = self.roots.get(usize::from(change.root))
        {
            notify.inode(root.node.id);
        }
        self.tell_stale(done.stale);
        left
    }

    /// Drops names, and what is known of their directories and objects, from the kernel's caches. Outside of every lock: the
    /// kernel may wait for a request of ours meanwhile.
    fn tell_stale(&self, stale: Stale) {
        let Some(notify) = self.notify() else { return };
        for (parent, name, id) in stale {
            notify.entry(parent.id, name.as_bytes());
            notify.inode(parent.id);
            if let Some(id) = id {
                notify.inode(id);
            }
        }
    }

    /// Merges the directory `path`, which the session made anew over the real one at `real`, with that: it shows what it
    /// showed, but names what it hides one by one, each of which may then leave. One that the session renamed goes on with
    /// the real one at `real`, to where that was renamed as well. False when it is no such directory.
    ///
    /// # Errors
    /// As the file operations on the upper.
    pub fn merge(&self, root: u16, path: &RelPath, real: &RelPath) -> Sys<bool> {
        let mut stale = Vec::new();
        let merged = {
            let _tree = self.tree.write();
            self.merge_locked(root, path, real, &mut stale)?
        };
        self.tell_stale(stale);
        Ok(merged)
    }

    fn merge_locked(&self, index: u16, path: &RelPath, real: &RelPath, stale: &mut Stale) -> Sys<bool> {
        let root = self.roots.get(usize::from(index)).ok_or(Errno::EINVAL)?;
        let writable = root.writable.as_ref().ok_or(Errno::EROFS)?;
        let (Some((dir, Found::Object(attr))), Some(name)) = (self.upper_at(root, path)?, path.file_name())
        else {
            return Ok(false);
        };
        // Only of a session's own root is there a real tree that something is applied to.
        let [lower] = &root.lowers[..] else { return Ok(false) };
        if attr.kind != Kind::Dir {
            return Ok(false);
        }
        let marks = marks_of(dir.as_fd(), name, &RelPath::root(), root.prefixed)?;
        if !marks.opaque && marks.redirect.is_none() {
            return Ok(false);
        }
        let real_dir = match open_deep(lower.dir.as_fd(), real) {
            Ok(dir) => dir,
            Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(false),
            Err(e) => return Err(e),
        };
        let flags = libc::O_PATH | libc::O_DIRECTORY;
        let upper = forced(dir.as_fd(), || file::openat(dir.as_fd(), name, flags, 0))?;
        if marks.opaque {
            let forced = |dir: BorrowedFd<'_>, change: &dyn Fn() -> Sys<()>| forced(dir, change);
            let hidden = layer::expand(upper.as_fd(), real_dir.as_fd(), writable.features, &forced)?;
            for record in Record::of_merged(index, path, &hidden) {
                let Record { op, root, path, kind, base, .. } = record;
                self.record(&Caller::default(), Note::new(op, root, path, kind).base(base));
            }
        } else {
            forced(upper.as_fd(), || layer::write_redirect(upper.as_fd(), real))?;
        }
        self.remerge(&self.dirs_beneath(root, path))?;
        let parent = self.node_at(root, path.parent().unwrap_or_default());
        if let (Some(parent), Some(node)) = (parent, self.node_at(root, path.clone())) {
            // What others make there from now on is seen, also at names that the kernel knows to be free.
            self.ensure_watched(&node);
            node.touch_entries();
            stale.push((parent, Name::new(name)?, Some(node.id)));
        }
        Ok(true)
    }

    fn leave_locked(&self, change: &Leave, done: &mut Done) -> Sys<bool> {
        let root = self.roots.get(usize::from(change.root)).ok_or(Errno::EINVAL)?;
        if change.op == Op::Applied {
            self.follow_moved(root, &change.path)?;
        }
        if !self.leave_at(root, &change.path, change.op, change.seen, done)? {
            return Ok(false);
        }
        if let Some(from) = &change.from
            && matches!(self.upper_at(root, from)?, Some((_, Found::Whiteout(_))))
        {
            self.leave_at(root, from, change.op, None, done)?;
        }
        self.resume_lost(root, change, &done.lost)?;
        for dir in &change.silent {
            self.leave_silent(root, dir, done)?;
        }
        let note = Note::new(change.op, change.root, change.path.clone(), Kind::File);
        self.record(&Caller::default(), note);
        Ok(true)
    }

    /// Of a changed file a part was applied: from now on it is a change of the real file as that is now, whose path and
    /// identity these are. False when another object than `ino` is at the path; then nothing is noted.
    ///
    /// # Errors
    /// As `openat2(2)`.
    pub fn based_on(&self, root: u16, path: &RelPath, ino: u64, real: (&RelPath, BaseId)) -> Sys<bool> {
        let _tree = self.tree.write();
        let dirs = self.roots.get(usize::from(root)).ok_or(Errno::EINVAL)?;
        match self.upper_at(dirs, path)? {
            Some((_, Found::Object(attr))) if attr.ino == ino && attr.kind == Kind::File => {}
            _ => return Ok(false),
        }
        let (real, base) = real;
        if let (Some(lower), Some(hash)) = (dirs.lowers.first(), base.hash.filter(|_| base.size <= KEPT)) {
            let fd = file::open_beneath(lower.dir.as_fd(), real.as_bytes(), libc::O_RDONLY, 0)?;
            let mut bytes = Vec::new();
            data::pread_into(fd.as_fd(), &mut bytes, base.size as usize + 1, 0)?;
            // Otherwise it changed again already, and what it was is of no use.
            if *blake3::hash(&bytes).as_bytes() == hash {
                self.keep_base(&bytes);
            }
        }
        // The journal learns of a base only with the first change of a path: so this one leaves, and comes anew.
        let note = |op| Note::new(op, root, path.clone(), Kind::File);
        self.record(&Caller::default(), note(Op::Applied));
        self.record(&Caller::default(), note(Op::Write).base(Some(base)));
        Ok(true)
    }

    /// What the upper has at `path`, and the directory that holds it.
    fn upper_at(&self, root: &Root, path: &RelPath) -> Sys<Option<(OwnedFd, Found)>> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Errno::EINVAL);
        };
        let upper = &root.writable.as_ref().ok_or(Errno::EROFS)?.upper;
        let dir = match open_deep(upper.as_fd(), &parent) {
            Ok(dir) => dir,
            Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(None),
            Err(e) => return Err(e),
        };
        let found =
            forced(dir.as_fd(), || layer::find(dir.as_fd(), name, LayerKind::Overlay, root.prefixed))?;
        Ok(Some((dir, found)))
    }

    fn leave_at(
        &self,
        root: &Root,
        path: &RelPath,
        op: Op,
        seen: Option<(u64, Time)>,
        done: &mut Done,
    ) -> Sys<bool> {
        if path.is_root() {
            // The root's own mode and xattrs: the real directory has them now, or has them again.
            let writable = root.writable.as_ref().ok_or(Errno::EROFS)?;
            let lower = root.lowers.first().ok_or(Errno::EIO)?.dir.as_fd();
            let upper = writable.upper.as_fd();
            let now = like_real(lower, upper)?;
            // What it is a change of from now on.
            if let Some(origin) = layer::read_origin(upper)? {
                let origin = layer::Origin { base: BaseId::of(&now), ..origin };
                forced(upper, || layer::write_origin(upper, &origin))?;
            }
            return Ok(true);
        }
        let (Some((dir, found)), Some(name)) = (self.upper_at(root, path)?, path.file_name()) else {
            return Ok(true);
        };
        let name = Name::new(name)?;
        let above = file::stat(dir.as_fd())?;
        let parent = self.node_at(root, path.parent().unwrap_or_default());
        let object = match found {
            Found::Nothing => return Ok(true),
            Found::Whiteout(form) => {
                forced(dir.as_fd(), || layer::remove_whiteout(dir.as_fd(), name.as_bytes(), form))?;
                None
            }
            Found::Object(attr) => Some(attr),
        };
        let node = match (&parent, object) {
            (Some(parent), Some(attr)) => {
                self.known(parent, &name, Seen::Upper(attr)).or_else(|| self.child_dir(parent, &name))
            }
            _ => None,
        };
        match object {
            Some(attr) if attr.kind == Kind::Dir => {
                self.leave_dir(root, dir.as_fd(), &name, (path, op), node.as_ref())?;
            }
            Some(attr) => {
                let named = parent.clone().zip(node.clone()).or_else(|| self.named_at(root, path, &attr));
                let known = named.as_ref().map(|(dir, node)| (dir, node));
                if let Some((_, node)) = known {
                    self.keep_from_changing(node)?;
                }
                done.lost.extend(known.map(|(dir, node)| Lost {
                    node: node.clone(),
                    dir: dir.clone(),
                    name: name.clone(),
                    last: false,
                }));
                // Only now nobody writes to it.
                let attr = file::stat_at(dir.as_fd(), name.as_bytes())?;
                if seen.is_some_and(|seen| self.is_another(&attr, seen)) {
                    return Ok(false);
                }
                self.leave_file(root, dir.as_fd(), &name, &attr, known, done)?;
            }
            None => {}
        }
        if op == Op::Applied {
            put_back_times(dir.as_fd(), &above);
        }
        if let Some(parent) = parent {
            parent.touch_entries();
            done.stale.push((parent, name, node.map(|n| n.id)));
        }
        Ok(true)
    }

    /// Whether a non-directory is not what was seen any more.
    fn is_another(&self, attr: &Attr, (ino, ctime): (u64, Time)) -> bool {
        let same = ino == attr.ino && (ctime == attr.ctime || self.relinked.lock().explains(attr, ctime));
        attr.kind != Kind::Dir && !same
    }

    /// A non-directory leaves the upper; `known` is its parent's node and its own.
    fn leave_file(
        &self,
        root: &Root,
        dir: BorrowedFd<'_>,
        name: &Name,
        attr: &Attr,
        known: Option<(&Arc<Node>, &Arc<Node>)>,
        done: &mut Done,
    ) -> Sys<()> {
        let writable = root.writable.as_ref().ok_or(Errno::EROFS)?;
        let handle = match known {
            Some((parent, node)) => self.handle_to_keep(parent, name, Some(node), Seen::Upper(*attr))?,
            None => None,
        };
        let index = origin_index(dir, name, attr)?;
        let others =
            if attr.nlink > 1 { Some(file::openat(dir, name.as_bytes(), libc::O_PATH, 0)?) } else { None };
        forced(dir, || file::unlinkat(dir, name.as_bytes()))?;
        // Names that only the lower has led here by the index. With the last name of the upper gone they lead to the
        // real object again.
        let alone = |copy: Attr| (copy.dev, copy.ino, copy.nlink) == (attr.dev, attr.ino, 1);
        let index = index.filter(|index| file::stat_at(writable.index.as_fd(), index).is_ok_and(alone));
        if let Some(index) = &index {
            file::unlinkat(writable.index.as_fd(), index)?;
        }
        if let Some(fd) = others {
            let now = file::stat(fd.as_fd())?.ctime;
            self.relinked.lock().note(attr, now);
        }
        let Some((parent, node)) = known else {
            return Ok(());
        };
        if index.is_some() {
            let mut place = node.place.write();
            place.index = None;
            place.nlink_adj = 1 - attr.nlink as i32;
            for link in place.links.iter().filter(|l| !l.upper) {
                done.stale.push((link.parent.clone(), link.name.clone(), Some(node.id)));
            }
            place.links.retain(|l| l.upper);
        }
        drop_name(writable, node, parent, name, attr, handle);
        if let Some(lost) = done.lost.last_mut() {
            lost.last = attr.nlink == 1 + u32::from(index.is_some());
        }
        Ok(())
    }

    /// Keeps whoever would change `node` waiting for the tree lock.
    fn keep_from_changing(&self, node: &Node) -> Sys<()> {
        *node.left.try_write().ok_or(Errno::EBUSY)? = true;
        Ok(())
    }

    /// Takes [`Union::keep_from_changing`] back for those nodes that still are what they were.
    fn let_change(&self, lost: &[Lost]) {
        for Lost { node, .. } in lost {
            if self.nodes.get(node.id).is_ok_and(|known| Arc::ptr_eq(&known, node)) {
                *node.left.write() = false;
            }
        }
    }

    /// What was open goes on with what the view has instead.
    fn resume_lost(&self, root: &Root, change: &Leave, lost: &[Lost]) -> Sys<()> {
        for lost in lost.iter().filter(|l| l.last) {
            if change.op == Op::Applied {
                self.show_new_dirs(&lost.dir)?;
            }
            let mut names = vec![(lost.dir.clone(), lost.name.clone())];
            if let Some((parent, name)) = change.from.as_ref().and_then(|f| f.parent().zip(f.file_name())) {
                names.extend(
                    self.node_at(root, parent).map(|dir| Name::new(name).map(|n| (dir, n))).transpose()?,
                );
            }
            self.resume(root, lost, &names, change.op)?;
        }
        Ok(())
    }

    /// Lets the directories from `dir` up that the session made show the real ones, which were made of them by now.
    fn show_new_dirs(&self, dir: &Arc<Node>) -> Sys<()> {
        let (mut at, mut new) = (Some(dir.clone()), Vec::new());
        while let Some(dir) = at {
            let place = dir.place.read();
            at = place.links.first().map(|l| l.parent.clone());
            if place.upper && place.lowers.is_empty() {
                new.extend(place.links.first().cloned().map(|link| (dir.clone(), link)));
            }
        }
        for (dir, link) in new.iter().rev() {
            let (lowers, _) = self.merge_lowers(&link.parent, link.name.as_bytes(), true)?;
            dir.place.write().lowers = lowers.into();
            dir.touch_entries();
        }
        Ok(())
    }

    /// Directories at and above `path` that the session renamed, and the application the real ones with them, are merged
    /// with these at once, though their own change leaves last: what is open beneath them is to go on there. That is, where
    /// the real tree has nothing at the old place: else only who knows what was renamed can tell (see [`Union::merge`]).
    fn follow_moved(&self, root: &Root, path: &RelPath) -> Sys<()> {
        let writable = root.writable.as_ref().ok_or(Errno::EROFS)?;
        // Only of a session's own root is there a real tree that something is applied to.
        let [lower] = &root.lowers[..] else { return Ok(()) };
        let is_there = |real: &RelPath| match open_deep(lower.dir.as_fd(), real) {
            Ok(_) => Ok(true),
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => Ok(false),
            Err(e) => Err(e),
        };
        let (mut at, mut real, mut moved) = (RelPath::root(), RelPath::root(), None);
        for name in path.components() {
            at = at.join(name);
            let dir = match open_deep(writable.upper.as_fd(), &at) {
                Ok(dir) => dir,
                Err(Errno::ENOENT | Errno::ENOTDIR) => break,
                Err(e) => return Err(e),
            };
            if layer::is_opaque(dir.as_fd())? {
                break;
            }
            let own = real.join(name);
            real = match layer::read_redirect(dir.as_fd(), &real)? {
                Some(from) if from != own && !is_there(&from)? && is_there(&own)? => {
                    forced(dir.as_fd(), || xattr::remove(dir.as_fd(), layer::X_REDIRECT))?;
                    moved.get_or_insert_with(|| at.clone());
                    own
                }
                Some(from) => from,
                None => own,
            };
        }
        moved.map_or(Ok(()), |top| self.remerge(&self.dirs_beneath(root, &top)))
    }

    /// The directory `path` leaves the upper if it is there only for what was in it, and nothing is.
    fn leave_silent(&self, root: &Root, path: &RelPath, done: &mut Done) -> Sys<()> {
        let (Some((above, Found::Object(attr))), Some(name)) = (self.upper_at(root, path)?, path.file_name())
        else {
            return Ok(());
        };
        if attr.kind != Kind::Dir {
            return Ok(());
        }
        let dir = open_forced(above.as_fd(), name, libc::O_RDONLY | libc::O_DIRECTORY)?;
        let marks = marks_of(above.as_fd(), name, &RelPath::root(), root.prefixed)?;
        if !sysdir::entries(dir.as_fd())?.is_empty() || marks.opaque || marks.redirect.is_some() {
            return Ok(());
        }
        let mut held = Vec::new();
        let left = self.dir_at(root, path, &mut held).and_then(|found| match found {
            Some((parent, node)) if self.is_unchanged(&parent, name, dir.as_fd())? => {
                let before = file::stat(above.as_fd())?;
                forced(above.as_fd(), || file::rmdirat(above.as_fd(), name))?;
                put_back_times(above.as_fd(), &before);
                self.fds.forget_all(node.id, node.place.read().lowers.len());
                let mut place = node.place.write();
                place.upper = false;
                place.links.iter_mut().for_each(|link| link.upper = false);
                drop(place);
                node.touch_entries();
                parent.touch_entries();
                done.stale.push((parent, Name::new(name)?, Some(node.id)));
                Ok(())
            }
            _ => Ok(()),
        });
        held.into_iter().for_each(|id| self.forget(id, 1));
        left
    }

    /// Whether the directory `name` of `parent`, of which `upper` is what the upper has, has the attributes of the real one.
    fn is_unchanged(&self, parent: &Arc<Node>, name: &[u8], upper: BorrowedFd<'_>) -> Sys<bool> {
        let Some((k, real)) = self.find_lower(parent, name)? else { return Ok(false) };
        let now = file::stat(upper)?;
        if (real.kind, real.perm, real.uid, real.gid) != (Kind::Dir, now.perm, now.uid, now.gid) {
            return Ok(false);
        }
        let real =
            file::openat(self.lower_dir(parent, k)?.as_fd(), name, libc::O_PATH | libc::O_DIRECTORY, 0)?;
        Ok(own_xattrs(real.as_fd())? == own_xattrs(upper)?)
    }

    /// The nodes of the directory `path` and of the one above it, whether the kernel knows them or not; `held` are the
    /// lookups that this takes.
    fn dir_at(
        &self,
        root: &Root,
        path: &RelPath,
        held: &mut Vec<u64>,
    ) -> Sys<Option<(Arc<Node>, Arc<Node>)>> {
        let (mut above, mut at) = (root.node.clone(), root.node.clone());
        for part in path.components() {
            let name = Name::new(part)?;
            let seen = self.see_all(&at, part)?;
            if !matches!(seen, Seen::Upper(attr) | Seen::Lower(_, attr) if attr.kind == Kind::Dir) {
                return Ok(None);
            }
            let (node, _) = self.instantiate(&at, &name, seen)?;
            held.push(node.id);
            above = std::mem::replace(&mut at, node);
        }
        Ok(Some((above, at)))
    }

    /// A directory leaves the upper when nothing else of the session is in it; else it stays as a merged one.
    fn leave_dir(
        &self,
        root: &Root,
        dir: BorrowedFd<'_>,
        name: &Name,
        (path, op): (&RelPath, Op),
        node: Option<&Arc<Node>>,
    ) -> Sys<()> {
        let writable = root.writable.as_ref().ok_or(Errno::EROFS)?;
        let handle = open_forced(dir, name.as_bytes(), libc::O_RDONLY | libc::O_DIRECTORY)?;
        let empty = sysdir::entries(handle.as_fd())?.is_empty();
        if empty {
            forced(dir, || file::rmdirat(dir, name.as_bytes()))?;
        } else {
            layer::clear_opaque(handle.as_fd(), writable.features, &|dir, change| forced(dir, change))?;
            match forced(handle.as_fd(), || xattr::remove(handle.as_fd(), layer::X_REDIRECT)) {
                Ok(()) | Err(Errno::ENODATA | Errno::EOPNOTSUPP) => {}
                Err(e) => return Err(e),
            }
        }
        let dirs = self.dirs_beneath(root, path);
        for (_, node) in dirs.iter().filter(|(at, _)| at == path) {
            self.fds.forget_all(node.id, node.place.read().lowers.len());
            let mut place = node.place.write();
            place.upper = !empty;
            for link in &mut place.links {
                link.upper = !empty;
            }
        }
        self.remerge(&dirs)?;
        // What was applied is like the real one already, unless somebody has just changed it again.
        if empty || op == Op::Applied {
            return Ok(());
        }
        match node {
            Some(node) if node.place.read().lowers.is_empty() => Ok(()),
            Some(node) => like_real(self.lower_dir(node, 0)?.as_fd(), handle.as_fd()).map(drop),
            None => match self.lower_of(root, path)? {
                Some(lower) => like_real(lower.as_fd(), handle.as_fd()).map(drop),
                None => Ok(()),
            },
        }
    }

    /// The real directory that is merged with the upper directory `path`, which has no node.
    fn lower_of(&self, root: &Root, path: &RelPath) -> Sys<Option<OwnedFd>> {
        let upper = &root.writable.as_ref().ok_or(Errno::EROFS)?.upper;
        let Some(lower) = root.lowers.first() else { return Ok(None) };
        let (mut at, mut real) = (RelPath::root(), RelPath::root());
        for name in path.components() {
            at = at.join(name);
            let dir = open_deep(upper.as_fd(), &at)?;
            if layer::is_opaque(dir.as_fd())? {
                return Ok(None);
            }
            real = layer::read_redirect(dir.as_fd(), &real)?.unwrap_or_else(|| real.join(name));
        }
        match open_deep(lower.dir.as_fd(), &real) {
            Ok(dir) => Ok(Some(dir)),
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// The known directories at and below `path`, from the top. There may be more than one of a path: who is in a directory
    /// goes on with the old one where others changed what it is.
    fn dirs_beneath(&self, root: &Root, path: &RelPath) -> Vec<(RelPath, Arc<Node>)> {
        let mut dirs: Vec<(RelPath, Arc<Node>)> = self
            .nodes
            .all()
            .into_iter()
            .filter(|n| n.kind == Kind::Dir && n.root == root.node.root)
            .map(|n| (self.upper_path(&n), n))
            .filter(|(at, n)| !at.is_root() && at.starts_with(path) && !n.place.read().gone)
            .collect();
        dirs.sort_by(|a, b| a.0.cmp(&b.0));
        dirs
    }

    /// Finds anew what shows through `dirs`, which are in order from the top.
    fn remerge(&self, dirs: &[(RelPath, Arc<Node>)]) -> Sys<()> {
        for (_, node) in dirs {
            let Some(link) = node.place.read().links.first().cloned() else {
                continue;
            };
            let mut upper = node.place.read().upper;
            let merged = match self.merge_lowers(&link.parent, link.name.as_bytes(), upper) {
                // It left as another node, which was there to be found when it did.
                Err(Errno::ENOENT) if upper => {
                    upper = false;
                    self.merge_lowers(&link.parent, link.name.as_bytes(), upper)
                }
                merged => merged,
            };
            let (lowers, _): (Vec<LowerDir>, _) = merged?;
            self.fds.forget_all(node.id, node.place.read().lowers.len());
            let watched = node.dir()?.watched.load(Ordering::Acquire) != 0;
            self.unwatch(node);
            let gone = lowers.is_empty() && !upper;
            let mut place = node.place.write();
            if !upper {
                place.upper = false;
                place.links.iter_mut().for_each(|link| link.upper = false);
            }
            place.lowers = lowers.into();
            place.gone = gone;
            drop(place);
            // The kernel goes on using what it knows of the names in it.
            if watched {
                self.ensure_watched(node);
            }
        }
        Ok(())
    }

    /// The known non-directory of the upper `attr` at `path`, and its directory as it knows that, which may be another node
    /// than the one that leads there by now.
    fn named_at(&self, root: &Root, path: &RelPath, attr: &Attr) -> Option<(Arc<Node>, Arc<Node>)> {
        let (above, name) = (path.parent()?, path.file_name()?);
        let found = self.nodes.find_copied(attr.dev, attr.ino);
        let node = found.or_else(|| self.nodes.find(&Ident::of(root.node.root, attr)))?;
        let links = node.place.read().links.clone();
        let mut there = links.into_iter().filter(|l| l.upper && l.name.as_bytes() == name);
        there.find(|l| self.upper_path(&l.parent) == above).map(|link| (link.parent, node))
    }

    fn node_at(&self, root: &Root, path: RelPath) -> Option<Arc<Node>> {
        let mut at = root.node.clone();
        for part in path.components() {
            let name = Name::new(part).ok()?;
            at = self.child_dir(&at, &name)?;
        }
        Some(at)
    }

    /// The known directory node at `name` of `dir`.
    fn child_dir(&self, dir: &Arc<Node>, name: &Name) -> Option<Arc<Node>> {
        let seen = self.see_all(dir, name.as_bytes()).ok()?;
        let attr = match seen {
            Seen::Upper(attr) | Seen::Lower(_, attr) if attr.kind == Kind::Dir => attr,
            _ => return None,
        };
        if let Some(node) = self.known(dir, name, seen).filter(|n| n.kind == Kind::Dir) {
            return Some(node);
        }
        let in_upper = matches!(seen, Seen::Upper(_));
        let (_, top) = self.merge_lowers(dir, name.as_bytes(), in_upper).ok()?;
        let of = |attr: &Attr| self.nodes.find(&Ident::of(dir.root, attr));
        // One that the session made is known by its own number until somebody looks for what the real tree has by now.
        of(top.as_ref().unwrap_or(&attr)).or_else(|| of(&attr))
    }
}

/// The name that the object `name` of an upper directory would have in the index: it was copied up from one with
/// several names.
fn origin_index(dir: BorrowedFd<'_>, name: &Name, attr: &Attr) -> Sys<Option<Vec<u8>>> {
    if attr.kind != Kind::File || attr.nlink < 2 {
        return Ok(None);
    }
    let origin = mark_at(dir, name.as_bytes(), layer::X_BASE)?.as_deref().and_then(layer::Origin::decode);
    Ok(origin.filter(|o| o.base.nlink > 1).map(|o| index_name(o.base.ino, o.btime)))
}
