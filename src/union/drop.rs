//! A change leaves the session while it is in use: it was applied to the real tree, or discarded.

use super::copy_up::{copy_meta, forced, mark_at, marks_of, open_forced};
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
        let mut stale = Vec::new();
        self.loosen();
        let left = {
            let _tree = self.tree.write();
            self.leave_locked(change, &mut stale)?
        };
        if let (Some(notify), true) = (self.notify(), change.path.is_root())
            && let Some(root) = self.roots.get(usize::from(change.root))
        {
            notify.inode(root.node.id);
        }
        self.tell_stale(stale);
        Ok(left)
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
    /// showed, but names what it hides one by one, each of which may then leave. False when it is no such directory.
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
        let opaque = || Sys::Ok(marks_of(dir.as_fd(), name, &RelPath::root(), root.prefixed)?.opaque);
        if attr.kind != Kind::Dir || !opaque()? {
            return Ok(false);
        }
        let real = match open_deep(lower.dir.as_fd(), real) {
            Ok(real) => real,
            Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(false),
            Err(e) => return Err(e),
        };
        let flags = libc::O_PATH | libc::O_DIRECTORY;
        let upper = forced(dir.as_fd(), || file::openat(dir.as_fd(), name, flags, 0))?;
        let forced = |dir: BorrowedFd<'_>, change: &dyn Fn() -> Sys<()>| forced(dir, change);
        let hidden = layer::expand(upper.as_fd(), real.as_fd(), writable.features, &forced)?;
        for record in Record::of_merged(index, path, &hidden) {
            let Record { op, root, path, kind, base, .. } = record;
            self.record(&Caller::default(), Note::new(op, root, path, kind).base(base));
        }
        self.remerge(root, path)?;
        let parent = self.node_at(root, path.parent().unwrap_or_default());
        if let (Some(parent), Some(node)) = (parent, self.node_at(root, path.clone())) {
            // What others make there from now on is seen, also at names that the kernel knows to be free.
            self.ensure_watched(&node);
            node.touch_entries();
            stale.push((parent, Name::new(name)?, Some(node.id)));
        }
        Ok(true)
    }

    fn leave_locked(&self, change: &Leave, stale: &mut Stale) -> Sys<bool> {
        let root = self.roots.get(usize::from(change.root)).ok_or(Errno::EINVAL)?;
        if !self.leave_at(root, &change.path, change.op, change.seen, stale)? {
            return Ok(false);
        }
        if let Some(from) = &change.from
            && matches!(self.upper_at(root, from)?, Some((_, Found::Whiteout(_))))
        {
            self.leave_at(root, from, change.op, None, stale)?;
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
        stale: &mut Stale,
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
        let parent = self.node_at(root, path.parent().unwrap_or_default());
        let object = match found {
            Found::Nothing => return Ok(true),
            Found::Whiteout(form) => {
                forced(dir.as_fd(), || layer::remove_whiteout(dir.as_fd(), name.as_bytes(), form))?;
                None
            }
            Found::Object(attr) if seen.is_some_and(|seen| self.is_another(&attr, seen)) => {
                return Ok(false);
            }
            Found::Object(attr) => Some(attr),
        };
        let node = match (&parent, object) {
            (Some(parent), Some(attr)) => {
                self.known(parent, &name, Seen::Upper(attr)).or_else(|| self.child_dir(parent, &name))
            }
            _ => None,
        };
        if let Some(attr) = object {
            if attr.kind == Kind::Dir {
                self.leave_dir(root, dir.as_fd(), &name, (path, op), node.as_ref())?;
            } else {
                let known = parent.as_ref().zip(node.as_ref());
                self.leave_file(root, dir.as_fd(), &name, &attr, known, stale)?;
            }
        }
        if let Some(parent) = parent {
            parent.touch_entries();
            stale.push((parent, name, node.map(|n| n.id)));
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
        stale: &mut Stale,
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
                stale.push((link.parent.clone(), link.name.clone(), Some(node.id)));
            }
            place.links.retain(|l| l.upper);
        }
        drop_name(writable, node, parent, name, attr, handle);
        Ok(())
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
        if let Some(node) = node {
            self.fds.forget_all(node.id, node.place.read().lowers.len());
            let mut place = node.place.write();
            place.upper = !empty;
            for link in &mut place.links {
                link.upper = !empty;
            }
        }
        self.remerge(root, path)?;
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

    /// Finds anew what shows through the known directories at and below `path`, from the top.
    fn remerge(&self, root: &Root, path: &RelPath) -> Sys<()> {
        let mut dirs: Vec<(RelPath, Arc<Node>)> = self
            .nodes
            .all()
            .into_iter()
            .filter(|n| n.kind == Kind::Dir && n.root == root.node.root)
            .map(|n| (self.upper_path(&n), n))
            .filter(|(at, n)| !at.is_root() && at.starts_with(path) && !n.place.read().gone)
            .collect();
        dirs.sort_by(|a, b| a.0.cmp(&b.0));
        for (_, node) in dirs {
            let Some(link) = node.place.read().links.first().cloned() else {
                continue;
            };
            let upper = node.place.read().upper;
            let (lowers, _): (Vec<LowerDir>, _) =
                self.merge_lowers(&link.parent, link.name.as_bytes(), upper)?;
            self.fds.forget_all(node.id, node.place.read().lowers.len());
            self.unwatch(&node);
            let gone = lowers.is_empty() && !upper;
            let mut place = node.place.write();
            place.lowers = lowers.into();
            place.gone = gone;
        }
        Ok(())
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
        self.nodes.find(&Ident::of(dir.root, top.as_ref().unwrap_or(&attr)))
    }
}

/// Gives the upper directory `to` the attributes of the real one, and returns these.
fn like_real(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> Sys<Attr> {
    let now = file::stat(from)?;
    // Without write permission not even its owner may set xattrs (xattr(7)).
    file::chmod_fd(to, now.perm | 0o200)?;
    for name in xattr::list(to)?.into_iter().filter(|n| n.starts_with(b"user.") && !layer::is_private(n)) {
        if xattr::get(from, &name)?.is_none() {
            xattr::remove(to, &name)?;
        }
    }
    copy_meta(from, to, &now, |_| Ok(()))?;
    Ok(now)
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
