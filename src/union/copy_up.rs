//! Copy-up: a lower object gets its place in the upper before it is changed.
//!
//! Gather, stage in the work directory, then one rename. Killed before the rename, the work directory holds a
//! leftover that recovery removes; after it, the upper holds a complete object. Content is copied under no lock but
//! the node's own `copying`, so nothing else waits for it.

use super::fds::Slot;
use super::lookup::{At, write_adj};
use super::node::{Link, Node};
use super::partial::Partial;
use super::{Caller, Union, Writable, kept};
use crate::base::{Attr, BaseId, Errno, Kind, RelPath, SetTime, Sys};
use crate::journal::Op;
use crate::layer::{self, Origin, StatXattr, index_name};
use crate::sys::{data, file, xattr};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How much of a file's content the copy needs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    /// All of it.
    Keep,
    /// None: it is truncated to nothing by this, now.
    Empty,
}

/// Files up to this size are hashed at copy-up, and their bytes kept when they are text (for a later merge).
const SMALL: u64 = 128 << 10;

/// An xattr with a path shorter than this fits anywhere, so that `ENOSPC` means a full disk.
pub(crate) const LONG_PATH: usize = 1000;

impl Union {
    /// Brings `node` into the upper if it is not there yet; returns what the lower object was if no record has told it
    /// yet. The tree lock must not be held.
    pub(crate) fn copy_up(&self, node: &Arc<Node>, content: Content) -> Sys<Option<BaseId>> {
        self.may_write(node)?;
        if node.place.read().upper {
            self.keep_named(&Caller::default(), node)?;
            return Ok(self.owed.get(node));
        }
        self.bring(node, content)
    }

    /// As [`Union::copy_up`], but returns what the lower object was only if it is this call that brought it up.
    pub(crate) fn bring(&self, node: &Arc<Node>, content: Content) -> Sys<Option<BaseId>> {
        self.may_write(node)?;
        let base = self.bring_once(node, content)?;
        if let (Some(base), Some(_)) = (&base, &self.journal) {
            self.owed.note(node, base.clone());
            // What changes it later may know it by another name only: the journal is to know of this one from the start.
            if node.place.read().index.is_some() {
                let _tree = self.tree.read();
                self.record_on(&Caller::default(), node, Op::Write, Some(base.clone()));
            }
        }
        Ok(base)
    }

    fn bring_once(&self, node: &Arc<Node>, content: Content) -> Sys<Option<BaseId>> {
        let root = self.writable(node)?;
        if node.kind == Kind::Dir {
            let _tree = self.tree.read();
            return self.copy_up_dir(node);
        }
        let _copying = node.copying.lock();
        if node.place.read().upper {
            return Ok(None);
        }
        let (at, attr) = {
            let _tree = self.tree.read();
            let at = self.locate(node)?;
            let attr = at.stat()?;
            (at, attr)
        };
        if attr.ino != node.ident.ino || attr.kind != node.kind {
            return Err(Errno::ESTALE);
        }
        let temp = self.temp_name();
        let mut partial = None;
        let placed = self.stage(root, node, (&at, &attr), content, &temp, &mut partial).and_then(|base| {
            let _tree = self.tree.read();
            self.place_copy(root, node, &attr, &temp).map(|()| base)
        });
        if placed.is_err() {
            if let Some(partial) = partial {
                self.abandon(&partial);
            }
            clear(root.work.as_fd(), &temp);
        }
        placed.map(Some)
    }

    /// Makes a copy of the object at `at` in the work directory under the name `temp`; one that borrows from the lower
    /// is put into `partial`.
    fn stage(
        &self,
        root: &Writable,
        node: &Arc<Node>,
        (at, attr): (&At, &Attr),
        content: Content,
        temp: &[u8],
        partial: &mut Option<Arc<Partial>>,
    ) -> Sys<BaseId> {
        let mut base = BaseId::of(attr);
        let work = root.work.as_fd();
        match attr.kind {
            Kind::File => {
                let to = file::openat(work, temp, libc::O_CREAT | libc::O_EXCL | libc::O_RDWR, 0o600)?;
                *partial = self.stage_file(root, node, (at, attr), content, to.as_fd(), &mut base)?;
            }
            Kind::Symlink => {
                let target = file::readlinkat(at.dir.as_fd(), &at.name)?;
                base.hash = Some(*blake3::hash(&target).as_bytes());
                file::symlinkat(&target, work, temp)?;
                keep_owner(root.stat_in, work, temp, attr)?;
                file::utimens_at(work, temp, Some(SetTime::At(attr.atime)), Some(SetTime::At(attr.mtime)))?;
            }
            Kind::Dir => return Err(Errno::EISDIR),
            Kind::Fifo | Kind::Socket | Kind::Char | Kind::Block => {
                if root.stat_in.is_some_and(|which| which.disk_kind(attr.kind) == Kind::File) {
                    file::mknodat(work, temp, libc::S_IFREG | 0o600, 0)?;
                } else {
                    file::mknodat(work, temp, attr.mode(), attr.rdev)?;
                }
                keep_owner(root.stat_in, work, temp, attr)?;
                if root.stat_in.is_none() {
                    file::chmodat(work, temp, attr.perm)?;
                }
                file::utimens_at(work, temp, Some(SetTime::At(attr.atime)), Some(SetTime::At(attr.mtime)))?;
            }
        }
        Ok(base)
    }

    /// The content and attributes of a regular file, for the empty file `to`.
    fn stage_file(
        &self,
        root: &Writable,
        node: &Arc<Node>,
        (at, attr): (&At, &Attr),
        content: Content,
        to: BorrowedFd<'_>,
        base: &mut BaseId,
    ) -> Sys<Option<Arc<Partial>>> {
        let keep = content == Content::Keep;
        let (from, readable) = match at.open(libc::O_RDONLY) {
            // A file that may be written but not read can still be replaced whole.
            Err(Errno::EACCES) if !keep => (at.handle()?, false),
            other => (other?, true),
        };
        let small = attr.size <= SMALL && readable;
        if small {
            let bytes = read_small(from.as_fd(), attr.size)?;
            base.hash = Some(self.keep_base(&bytes));
            if keep {
                data::pwrite_all(to, &bytes, 0)?;
            }
        }
        let meta = |from: BorrowedFd<'_>, mark: &dyn Fn(BorrowedFd<'_>) -> Sys<()>| {
            self.give_meta(root, from, to, attr, |to| {
                self.note_origin(node, to, base, attr)?;
                mark(to)
            })
        };
        let there = small || !keep || (root.features.reflink && data::clone_file(from.as_fd(), to).is_ok());
        let begun = if there { Err(from) } else { self.borrow(root, node, (from, attr), to, meta)? };
        let partial = match begun {
            Ok(partial) => Some(partial),
            Err(from) => {
                if !there {
                    data::copy_content(from.as_fd(), to, attr.size, |_| {})?;
                }
                meta(from.as_fd(), &|_| Ok(()))?;
                None
            }
        };
        let done = || {
            if keep {
                file::utimens_at(to, b"", Some(SetTime::At(attr.atime)), Some(SetTime::At(attr.mtime)))?;
            }
            if self.view.volatile { Ok(()) } else { data::fsync(to, partial.is_none()) }
        };
        // Whoever called cannot let go of what it was not given.
        done().inspect_err(|_| partial.iter().for_each(|p| self.abandon(p)))?;
        Ok(partial)
    }

    /// Notes on a copy where it came from and what it was. Where that path is too long for the file system's xattrs
    /// it is left out; the identity, which keeps `st_ino` and hard links, is not.
    fn note_origin(&self, node: &Node, copy: BorrowedFd<'_>, base: &BaseId, attr: &Attr) -> Sys<()> {
        let path = {
            let _tree = self.tree.read();
            lower_path(node).unwrap_or_default()
        };
        let mut origin = Origin { path, base: base.clone(), btime: attr.btime };
        match layer::write_origin(copy, &origin) {
            Err(Errno::ENOSPC | Errno::E2BIG | Errno::ERANGE) if origin.path.as_bytes().len() > LONG_PATH => {
                origin.path = RelPath::root();
                layer::write_origin(copy, &origin).map(drop)
            }
            other => other.map(drop),
        }
    }

    /// Gives the staged copy its name in the upper. Needs the tree lock.
    fn place_copy(&self, root: &Writable, node: &Arc<Node>, attr: &Attr, temp: &[u8]) -> Sys<()> {
        let work = root.work.as_fd();
        let copy = file::stat_at(work, temp)?;
        let first = node.place.read().links.first().cloned();
        if let Some(link) = &first {
            self.copy_up_dir(&link.parent)?;
        }
        let _ops = first.as_ref().map(|l| l.parent.dir().map(|d| d.ops.lock())).transpose()?;
        let index = (attr.nlink > 1 && attr.kind == Kind::File).then(|| index_name(attr.ino, attr.btime));
        let named = first.clone().filter(|l| node.place.read().has(l.parent.id, &l.name));
        // The host's count will be the index's link and, if there is one, the name's.
        let adj = attr.nlink as i32 + node.place.read().nlink_adj - if named.is_some() { 2 } else { 1 };
        if let Some(index) = &index {
            self.add_index(root, temp, index, adj)?;
        }
        // Before it can be seen, so that whoever sees it finds this node.
        self.nodes.note_copied(copy.dev, copy.ino, node);
        let pin = match &named {
            Some(link) => self.rename_into(root, temp, link).map(|()| None),
            None => unname(root, node, temp).map(Some),
        };
        let pin = pin.inspect_err(|_| {
            self.nodes.not_copied(copy.dev, copy.ino, node);
            if let Some(index) = &index {
                clear(root.index.as_fd(), index);
            }
        })?;
        let mut place = node.place.write();
        place.upper = true;
        if let Some(index) = &index {
            place.index = Some(index.as_slice().into());
            place.nlink_adj = adj;
        }
        self.fds.forget(node.id, Slot::Read);
        let Some(link) = named else {
            place.pin = pin;
            return Ok(());
        };
        if index.is_none() {
            // Without an index, other names of a lower object with several stay what they were.
            place.links.retain(|l| l.parent.id == link.parent.id && l.name == link.name);
            place.nlink_adj = 0;
        }
        if let Some(known) =
            place.links.iter_mut().find(|l| l.parent.id == link.parent.id && l.name == link.name)
        {
            known.upper = true;
        }
        Ok(())
    }

    /// Enters the staged copy of an object with several lower names into the index, so that they all lead to it.
    fn add_index(&self, root: &Writable, temp: &[u8], index: &[u8], adj: i32) -> Sys<()> {
        match file::linkat(root.work.as_fd(), temp, root.index.as_fd(), index) {
            Ok(()) => {}
            Err(Errno::EEXIST) => {
                // A leftover of an object that is gone from the lower.
                file::unlinkat(root.index.as_fd(), index)?;
                file::linkat(root.work.as_fd(), temp, root.index.as_fd(), index)?;
            }
            Err(e) => return Err(e),
        }
        root.indexed.store(true, Ordering::Release);
        write_adj(root, index, adj).inspect_err(|_| clear(root.index.as_fd(), index))
    }

    /// Moves a staged object to its name in the upper; the directory's times stay what they were, since nothing
    /// changed in the merged view.
    fn rename_into(&self, root: &Writable, temp: &[u8], link: &Link) -> Sys<()> {
        let dir = self.upper_dir(&link.parent)?;
        let before = file::stat(dir.as_fd())?;
        let rename = || {
            let flags = libc::RENAME_NOREPLACE;
            file::renameat(root.work.as_fd(), temp, dir.as_fd(), link.name.as_bytes(), flags)
        };
        let attr = file::stat_at(root.work.as_fd(), temp)?;
        if attr.kind == Kind::Dir && attr.perm & 0o200 == 0 {
            // A directory that changes its parent is written to: its `..` (rename(2)).
            let copy = file::openat(root.work.as_fd(), temp, libc::O_PATH | libc::O_DIRECTORY, 0)?;
            lifted(&[(copy.as_fd(), 0o200), (dir.as_fd(), 0o700)], rename)?;
        } else {
            forced(dir.as_fd(), rename)?;
        }
        // The object is there now: what goes wrong from here on is not the caller's.
        put_back_times(dir.as_fd(), &before);
        Ok(())
    }

    /// Makes sure that a directory exists in the upper, and those above it. Needs the tree lock; no `ops` lock may be
    /// held.
    pub(crate) fn copy_up_dir(&self, node: &Arc<Node>) -> Sys<Option<BaseId>> {
        if node.place.read().upper {
            return Ok(None);
        }
        let root = self.writable(node)?;
        let Some(link) = node.place.read().links.first().cloned() else {
            return Err(Errno::ENOENT);
        };
        self.copy_up_dir(&link.parent)?;
        let _copying = node.copying.lock();
        if node.place.read().upper {
            return Ok(None);
        }
        let _ops = link.parent.dir()?.ops.lock();
        if node.place.read().gone {
            return Err(Errno::ENOENT);
        }
        let lower = self.lower_dir(node, 0)?;
        let attr = self.locate(node)?.stat()?;
        let temp = self.temp_name();
        let made = self
            .stage_dir(root, lower.as_fd(), &attr, &temp)
            .and_then(|()| self.rename_into(root, &temp, &link));
        if let Err(e) = made {
            clear(root.work.as_fd(), &temp);
            return Err(e);
        }
        let mut place = node.place.write();
        place.upper = true;
        place.owner = self.owner_of_others(&attr);
        if let Some(known) = place.links.first_mut() {
            known.upper = true;
        }
        Ok(Some(BaseId::of(&attr)))
    }

    fn stage_dir(&self, root: &Writable, lower: BorrowedFd<'_>, attr: &Attr, temp: &[u8]) -> Sys<()> {
        file::mkdirat(root.work.as_fd(), temp, 0o700)?;
        let dir = file::openat(root.work.as_fd(), temp, libc::O_PATH | libc::O_DIRECTORY, 0)?;
        self.give_meta(root, lower, dir.as_fd(), attr, |_| Ok(()))?;
        file::utimens_at(dir.as_fd(), b"", Some(SetTime::At(attr.atime)), Some(SetTime::At(attr.mtime)))
    }

    /// As [`copy_meta`], to where the upper has owners and modes.
    fn give_meta(
        &self,
        root: &Writable,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        attr: &Attr,
        mark: impl FnOnce(BorrowedFd<'_>) -> Sys<()>,
    ) -> Sys<()> {
        if let Some(which) = root.stat_in {
            return kept::copy_meta(from, to, attr, which, mark);
        }
        copy_owned(from, to, attr, self.keeps_stats, mark)
    }

    /// The hash of a small file's content; the bytes are kept when they are text.
    pub(crate) fn keep_base(&self, bytes: &[u8]) -> [u8; 32] {
        let hash = *blake3::hash(bytes).as_bytes();
        let text = !bytes[..bytes.len().min(8000)].contains(&0);
        if let (true, Some(journal)) = (text, &self.journal)
            && let Err(e) = journal.put_base(bytes, hash)
        {
            tracing::warn!("base bytes could not be kept, a later merge will not have them: {e}");
        }
        hash
    }

    /// What a lower object is, with its small text kept, before it is replaced.
    pub(crate) fn base_of(&self, dir: BorrowedFd<'_>, name: &[u8], attr: &Attr) -> BaseId {
        let mut base = BaseId::of(attr);
        if attr.kind == Kind::File && attr.size <= SMALL {
            let read =
                file::openat(dir, name, libc::O_RDONLY, 0).and_then(|fd| read_small(fd.as_fd(), attr.size));
            // Unreadable for us: then its identity has to do.
            base.hash = read.ok().map(|bytes| self.keep_base(&bytes));
        }
        base
    }
}

/// Where a lower-only non-directory is in its layer, which is not its path in the merged view when a directory above
/// it was renamed. Needs the tree lock.
pub(super) fn lower_path(node: &Node) -> Option<RelPath> {
    let place = node.place.read();
    let (link, layer) = (place.name()?.clone(), place.layer);
    drop(place);
    let parent = link.parent.place.read();
    let dir = parent.lowers.iter().find(|l| l.layer == layer)?;
    Some(dir.path.join(link.name.as_bytes()))
}

/// An object without a name in the merged view keeps its bytes behind a handle.
fn unname(root: &Writable, node: &Arc<Node>, temp: &[u8]) -> Sys<Arc<OwnedFd>> {
    let flags = if node.kind == Kind::File { libc::O_RDWR } else { libc::O_PATH };
    let pin = open_forced(root.work.as_fd(), temp, flags)?;
    file::unlinkat(root.work.as_fd(), temp)?;
    Ok(Arc::new(pin))
}

fn read_small(fd: BorrowedFd<'_>, size: u64) -> Sys<Vec<u8>> {
    let mut bytes = Vec::with_capacity(size as usize);
    let mut chunk = Vec::new();
    while (bytes.len() as u64) < size {
        let n = data::pread_into(fd, &mut chunk, (size as usize) - bytes.len(), bytes.len() as u64)?;
        if n == 0 {
            break;
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

/// Owner (where permitted), xattrs and mode of `from` onto `to`; `mark` adds marks of ours. The mode comes last: one
/// without write permission keeps even the owner from setting xattrs (xattr(7)).
pub(super) fn copy_meta(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    attr: &Attr,
    mark: impl FnOnce(BorrowedFd<'_>) -> Sys<()>,
) -> Sys<()> {
    copy_owned(from, to, attr, false, mark)
}

/// As [`copy_meta`]; with `stats_apart`, the attributes that tell owner and mode are not among the xattrs.
fn copy_owned(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    attr: &Attr,
    stats_apart: bool,
    mark: impl FnOnce(BorrowedFd<'_>) -> Sys<()>,
) -> Sys<()> {
    let now = file::stat(to)?;
    if (now.uid, now.gid) != (attr.uid, attr.gid) {
        match file::chown_fd(to, attr.uid, attr.gid) {
            Ok(()) | Err(Errno::EPERM | Errno::EINVAL) => {}
            Err(e) => return Err(e),
        }
    }
    copy_xattrs(from, to, |name| stats_apart && layer::is_stat_xattr(name))?;
    mark(to)?;
    file::chmod_fd(to, attr.perm)
}

/// The xattrs that are the object's own, but for those that `not` names.
pub(super) fn copy_xattrs(from: BorrowedFd<'_>, to: BorrowedFd<'_>, not: impl Fn(&[u8]) -> bool) -> Sys<()> {
    for name in xattr::list(from)? {
        if layer::is_private(&name) || not(&name) {
            continue;
        }
        let Some(value) = xattr::get(from, &name)? else {
            continue;
        };
        match xattr::set(to, &name, &value, 0) {
            Ok(()) => {}
            // Only `user.` is ours to promise; labels and capabilities need privileges we may not have.
            Err(Errno::EPERM | Errno::EOPNOTSUPP) if !name.starts_with(b"user.") => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Gives the upper directory `to` the attributes of the real one, and returns these.
pub(super) fn like_real(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> Sys<Attr> {
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

/// The xattrs of an object that are its own.
pub(super) fn own_xattrs(object: BorrowedFd<'_>) -> Sys<BTreeMap<Vec<u8>, Option<Vec<u8>>>> {
    let names = xattr::list(object)?.into_iter().filter(|name| !layer::is_private(name));
    names.map(|name| Ok((name.clone(), xattr::get(object, &name)?))).collect()
}

/// Gives the directory `dir` of the upper its times back after a change of it that is none of the merged view's. What was done is
/// done, so that this failed is only told.
pub(super) fn put_back_times(dir: BorrowedFd<'_>, before: &Attr) {
    let (atime, mtime) = (Some(SetTime::At(before.atime)), Some(SetTime::At(before.mtime)));
    let put_back = || file::utimens_at(dir, b"", atime, mtime);
    if let Err(e) = put_back().or_else(|_| put_back()) {
        tracing::warn!("the times of a directory could not be put back: {e}");
    }
}

/// The owner of a copy that is no file or directory: in the attribute where it can have one, else where permitted.
fn keep_owner(stat_in: Option<StatXattr>, dir: BorrowedFd<'_>, name: &[u8], attr: &Attr) -> Sys<()> {
    if let Some(which) = stat_in.filter(|which| which.holds(which.disk_kind(attr.kind))) {
        return which.write(dir, name, attr);
    }
    match file::chownat(dir, name, attr.uid, attr.gid) {
        Ok(()) | Err(Errno::EPERM | Errno::EINVAL) => Ok(()),
        Err(e) => Err(e),
    }
}

/// Does `f`, which changes the object (mostly a directory) `dir` of our own; a mode that keeps even its owner out is lifted meanwhile.
/// The merged view may need an entry there (a copy, a whiteout) although no program could make one.
pub(crate) fn forced<T>(dir: BorrowedFd<'_>, f: impl Fn() -> Sys<T>) -> Sys<T> {
    match f() {
        Err(Errno::EACCES) => {}
        other => return other,
    }
    lifted(&[(dir, 0o700)], f)
}

/// Held while a mode is lifted, and while one is set, so that what is put back is what was set last.
pub(crate) static MODES: Mutex<()> = Mutex::new(());

/// Does `f` while the objects of our own behind these descriptors have these permission bits as well.
fn lifted<T>(objects: &[(BorrowedFd<'_>, u32)], f: impl FnOnce() -> Sys<T>) -> Sys<T> {
    let _modes = MODES.lock();
    let perms = objects.iter().map(|(fd, _)| Ok(file::stat(*fd)?.perm)).collect::<Sys<Vec<u32>>>()?;
    let raised = objects.iter().zip(&perms).try_for_each(|((fd, add), perm)| file::chmod_fd(*fd, perm | add));
    let done = raised.and_then(|()| f());
    let back = objects.iter().zip(&perms).map(|((fd, _), perm)| file::chmod_fd(*fd, *perm));
    // Each of them, whatever becomes of the others.
    let back: Vec<Sys<()>> = back.collect();
    back.into_iter().collect::<Sys<()>>()?;
    done
}

/// The mark `mark` on the object `name` of a directory in the upper, even when its mode keeps its owner from reading
/// it, which goes for marks as well (xattr(7)).
pub(crate) fn mark_at(dir: BorrowedFd<'_>, name: &[u8], mark: &[u8]) -> Sys<Option<Vec<u8>>> {
    match xattr::get_at(dir, name, mark) {
        Err(Errno::EACCES) => {}
        other => return other,
    }
    let handle = file::openat(dir, name, libc::O_PATH, 0)?;
    lifted(&[(handle.as_fd(), 0o400)], || xattr::get(handle.as_fd(), mark))
}

/// As [`layer::marks_at`] on a directory of the upper, even when its mode keeps its owner out.
pub(crate) fn marks_of(
    dir: BorrowedFd<'_>,
    name: &[u8],
    parent: &RelPath,
    prefixed: bool,
) -> Sys<layer::Marks> {
    match layer::marks_at(dir, name, parent, prefixed) {
        Err(Errno::EACCES) => {}
        other => return other,
    }
    let handle = file::openat(dir, name, libc::O_PATH | libc::O_DIRECTORY, 0)?;
    lifted(&[(handle.as_fd(), 0o500)], || layer::marks_at(dir, name, parent, prefixed))
}

/// Opens an upper file of our own even when its mode keeps its owner out: whoever asks was let in by the kernel,
/// maybe through a descriptor older than the mode.
pub(crate) fn open_forced(dir: BorrowedFd<'_>, name: &[u8], flags: i32) -> Sys<OwnedFd> {
    let open =
        |flags| if name.is_empty() { file::reopen(dir, flags) } else { file::openat(dir, name, flags, 0) };
    match open(flags) {
        Err(Errno::EACCES) => {}
        other => return other,
    }
    let handle = if name.is_empty() {
        file::reopen(dir, libc::O_PATH)?
    } else {
        file::openat(dir, name, libc::O_PATH, 0)?
    };
    lifted(&[(handle.as_fd(), 0o600)], || file::reopen(handle.as_fd(), flags))
}

/// Takes away what a failed verb staged, or what is left of a removed directory, if it is there. It is in no view, so
/// that it cannot be removed is no failure of the verb: the next start clears the work directory.
pub(crate) fn clear(dir: BorrowedFd<'_>, name: &[u8]) {
    match super::remove::remove_tree(dir, name) {
        Ok(()) | Err(Errno::ENOENT) => {}
        Err(e) => tracing::warn!("a temporary object of the session could not be removed: {e}"),
    }
}
