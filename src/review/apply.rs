//! Carries a plan out on the real tree, whole or not at all.
//!
//! Order, and what is true if a step fails: (1) everything is staged under temporary names, nothing of the real tree
//! is touched but the mode of directories that could not be written to; (2) the steps, each of which notes its inverse before the next begins; what they replace is moved
//! aside, never overwritten; (3) what was done is synced; (4) commit: what was set aside is removed, and the changes
//! leave the session. A failure up to (3) takes the noted inverses in reverse order.

use super::discard::{Dropper, drop_order, seen_of};
use super::objects::{self, Object};
use super::plan::{Plan, Step};
use super::settle::Settled;
use super::undo::Undo;
use super::{RootDirs, attrs, root_of};
use crate::base::{Attr, Errno, Error, Kind, RelPath, Result, Sys, Time, What};
use crate::sys::{data, file};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, Hasher};
use std::os::fd::{AsFd, BorrowedFd};

/// How far an application is.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// Steps done, of `total`.
    pub done: usize,
    /// Steps in all; staging a file counts as one.
    pub total: usize,
    /// Bytes of the present file copied so far.
    pub bytes: u64,
    /// The path at work.
    pub path: &'a RelPath,
}

/// What an application came to.
#[derive(Debug, Default)]
pub struct Report {
    /// Changes that the real tree has now, by root and path.
    pub applied: Vec<(u16, RelPath)>,
    /// Those of them that stay in the session, because it changed them again since they were compared.
    pub kept: Vec<(u16, RelPath)>,
    /// What did not work after the real tree was changed: the session's files to be tidied, leftovers to be removed.
    pub warnings: Vec<Error>,
}

/// Applies `plan` to the real trees and takes the changes out of the session through `dropper`.
///
/// # Errors
/// When a change cannot be applied at all (a socket, an object changed since it was compared), or when a step fails;
/// the real trees are then as they were.
pub fn apply(
    roots: &[RootDirs],
    plan: &Plan,
    dropper: &mut dyn Dropper,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Report> {
    preflight(roots, plan)?;
    let staging = plan.steps.iter().filter(|s| matches!(s, Step::Put { .. } | Step::Rewrite { .. })).count();
    let mut run = Run {
        roots,
        plan,
        undo: Vec::new(),
        staged: BTreeMap::new(),
        moved: Vec::new(),
        asides: Vec::new(),
        saves: Vec::new(),
        touched: BTreeSet::new(),
        dir_times: Vec::new(),
        unsynced: Vec::new(),
        progress,
        done: 0,
        total: plan.steps.len() + staging,
        salt: std::hash::RandomState::new().build_hasher().finish(),
    };
    match run.all() {
        Ok(()) => Ok(run.commit(dropper)),
        Err(e) => Err(run.roll_back(e)),
    }
}

/// Refuses what cannot be applied, before anything is touched.
fn preflight(roots: &[RootDirs], plan: &Plan) -> Result<()> {
    let is_root = crate::sys::process::effective_ids().0 == 0;
    for s in &plan.changes {
        let c = &s.change;
        let dirs = root_of(roots, c.root)?;
        let makes = matches!(c.what, What::Added | What::Modified | What::Typed) && s.content;
        match c.kind {
            Kind::Socket if makes => {
                return Err(Error::failure(format!("cannot apply the socket {}", c.path)).hint(
                    "a socket belongs to the process that listens on it: discard it, or leave it out",
                ));
            }
            Kind::Char | Kind::Block if makes && !is_root => {
                return Err(Error::failure(format!("cannot apply the {} {}", c.kind.word(), c.path))
                    .hint("only root may make a device: discard it, or leave it out"));
            }
            _ => {}
        }
        let now = objects::stat(dirs.upper.as_fd(), &c.path)
            .map_err(|e| Error::on_path("look at", c.path.as_bytes(), e))?;
        let changed =
            s.upper.is_some_and(|was| now.is_none_or(|now| (now.ino, now.ctime) != (was.ino, was.ctime)));
        if changed {
            return Err(Error::failure(format!("{} changed in the session since it was compared", c.path))
                .hint("look at the changes again"));
        }
    }
    Ok(())
}

/// A temporary name in a directory of the real tree, by the path it has when nothing is moved yet.
struct Staged {
    dir: RelPath,
    name: Vec<u8>,
}

/// More files than this are synced with their whole file system at once.
const SYNC_EACH: usize = 64;

struct Run<'a, 'p> {
    roots: &'a [RootDirs],
    plan: &'a Plan,
    undo: Vec<Undo>,
    staged: BTreeMap<usize, Staged>,
    /// Directories moved so far: (root, from, to).
    moved: Vec<(u16, RelPath, RelPath)>,
    /// To be removed at commit.
    asides: Vec<(u16, RelPath)>,
    /// Copies in work directories, to be removed at the end.
    saves: Vec<(u16, Vec<u8>)>,
    /// Directories whose entries changed.
    touched: BTreeSet<(u16, RelPath)>,
    /// Times of directories, set when nothing changes in them any more.
    dir_times: Vec<(u16, RelPath, Time)>,
    /// Directories in which files were staged without a sync of their own.
    unsynced: Vec<(u16, RelPath)>,
    progress: &'p mut dyn FnMut(Progress<'_>),
    done: usize,
    total: usize,
    salt: u64,
}

impl<'a> Run<'a, '_> {
    fn all(&mut self) -> Result<()> {
        let many = self.plan.steps.iter().filter(|s| matches!(s, Step::Put { .. })).count() > SYNC_EACH;
        // A directory that is to become writable must be so before anything can be staged in it.
        let (unlocks, steps): (Vec<&Step>, Vec<&Step>) =
            self.plan.steps.iter().partition(|s| matches!(s, Step::Unlock { .. }));
        self.take_all(&unlocks)?;
        for step in &self.plan.steps {
            let (Step::Put { path, .. } | Step::Rewrite { path, .. }) = step else { continue };
            self.tell(path, 0);
            self.stage(step, many).map_err(|e| failed(e, step))?;
            self.done += 1;
        }
        self.sync_staged()?;
        self.take_all(&steps)?;
        self.sync_touched()
    }

    fn take_all(&mut self, steps: &[&Step]) -> Result<()> {
        for step in steps {
            self.tell(path_of(step), 0);
            self.take(step).map_err(|e| failed(e, step))?;
            self.done += 1;
        }
        Ok(())
    }

    fn tell(&mut self, path: &RelPath, bytes: u64) {
        (self.progress)(Progress { done: self.done, total: self.total, bytes, path });
    }

    fn dirs(&self, root: u16) -> Sys<&'a RootDirs> {
        self.roots.iter().find(|r| r.root == root).ok_or(Errno::EINVAL)
    }

    fn real(&self, root: u16) -> Sys<BorrowedFd<'a>> {
        Ok(self.dirs(root)?.real.as_fd())
    }

    fn temp_name(&mut self) -> Vec<u8> {
        self.salt = self.salt.wrapping_add(0x9e37_79b9_7f4a_7c15);
        format!(".sbx-fuse.{:010x}.tmp", self.salt >> 24).into_bytes()
    }

    fn change(&self, index: usize) -> Sys<&'a Settled> {
        self.plan.changes.get(index).ok_or(Errno::EINVAL)
    }

    /// The session's object of a change, still the one that was compared.
    fn upper(&self, s: &Settled) -> Sys<Object> {
        let object = Object::find(self.dirs(s.change.root)?.upper.as_fd(), &s.change.path)?;
        let object = object.ok_or(Errno::ESTALE)?;
        let same = s.upper.is_none_or(|was| (was.ino, was.ctime) == (object.attr.ino, object.attr.ctime));
        if same { Ok(object) } else { Err(Errno::ESTALE) }
    }

    fn stage(&mut self, step: &Step, many: bool) -> Sys<()> {
        match step {
            Step::Put { root, stage, change, path } => self.stage_put(*root, stage, *change, path, many),
            Step::Rewrite { root, change, path } => self.stage_save(*root, *change, path),
            _ => Ok(()),
        }
    }

    fn stage_put(&mut self, root: u16, dir: &RelPath, index: usize, path: &RelPath, many: bool) -> Sys<()> {
        let s = self.change(index)?;
        let object = self.upper(s)?;
        let fd = objects::open_dir(self.real(root)?, dir)?;
        let name = self.temp_name();
        let attr = object.attr;
        let made = match attr.kind {
            Kind::File => {
                let flags = libc::O_CREAT | libc::O_EXCL | libc::O_RDWR;
                Some(file::openat(fd.as_fd(), &name, flags, 0o600)?)
            }
            Kind::Symlink => file::symlinkat(&object.target()?, fd.as_fd(), &name).map(|()| None)?,
            Kind::Fifo | Kind::Char | Kind::Block => {
                let mode = attr.kind.mode_bits() | 0o600;
                file::mknodat(fd.as_fd(), &name, mode, attr.rdev).map(|()| None)?
            }
            Kind::Dir | Kind::Socket => return Err(Errno::EINVAL),
        };
        self.undo.push(Undo::Unlink { root, path: dir.join(&name) });
        if let Some(to) = made {
            let (done, total) = (self.done, self.total);
            let progress = &mut *self.progress;
            data::copy_content(object.readable()?.as_fd(), to.as_fd(), attr.size, |bytes| {
                progress(Progress { done, total, bytes, path });
            })?;
        }
        let to = Object::find(fd.as_fd(), &RelPath::new(&name)?)?.ok_or(Errno::ESTALE)?;
        let dirs = self.dirs(root)?;
        let xattrs = match (&s.real_path, dirs.features.xattr) {
            // An upper without xattrs says nothing about them: the real file's stay.
            (Some(real), false) => match Object::find(dirs.real.as_fd(), real)? {
                Some(real) => objects::xattrs(&real)?,
                None => Vec::new(),
            },
            _ => objects::xattrs(&object)?,
        };
        attrs::give_all(&to, &attr, &xattrs)?;
        if attr.kind == Kind::File && !many {
            data::fsync(file::reopen(to.fd.as_fd(), libc::O_RDONLY)?.as_fd(), false)?;
        } else {
            self.unsynced.push((root, dir.clone()));
        }
        self.staged.insert(index, Staged { dir: dir.clone(), name });
        Ok(())
    }

    /// Saves the bytes of a real file that is to be written in place.
    fn stage_save(&mut self, root: u16, index: usize, path: &RelPath) -> Sys<()> {
        let s = self.change(index)?;
        self.upper(s)?;
        let real_path = s.real_path.as_ref().unwrap_or(path);
        let real = Object::find(self.real(root)?, real_path)?.ok_or(Errno::ENOENT)?;
        expect(&real.attr, s.real.as_ref())?;
        let name = self.temp_name();
        let work = self.dirs(root)?.work.as_fd();
        let save = file::openat(work, &name, libc::O_CREAT | libc::O_EXCL | libc::O_RDWR, 0o600)?;
        self.saves.push((root, name.clone()));
        data::copy_content(real.readable()?.as_fd(), save.as_fd(), real.attr.size, |_| {})?;
        data::fsync(save.as_fd(), false)?;
        self.staged.insert(index, Staged { dir: RelPath::root(), name });
        Ok(())
    }

    fn take(&mut self, step: &Step) -> Sys<()> {
        match step {
            Step::Move { root, from, to, change } => self.step_move(*root, from, to, *change),
            Step::Mkdir { root, path, .. } => self.step_mkdir(*root, path),
            Step::Put { root, path, change, .. } => self.step_put(*root, path, *change),
            Step::Rewrite { root, path, change } => self.step_rewrite(*root, path, *change),
            Step::Link { root, path, to, change } => self.step_link(*root, path, to, *change),
            Step::Unlock { root, path, .. } => {
                let object = Object::find(self.real(*root)?, path)?.ok_or(Errno::ENOENT)?;
                self.undo.push(Undo::Attrs(attrs::save(*root, path, &object)?));
                file::chmod_fd(object.fd.as_fd(), object.attr.perm | 0o700)
            }
            Step::Attr { root, path, change } => self.step_attr(*root, path, *change),
            Step::Remove { root, path, change } => {
                let expected = self.change(*change)?.real;
                self.set_aside(*root, path, expected.as_ref())
            }
        }
    }

    fn step_move(&mut self, root: u16, from: &RelPath, to: &RelPath, change: Option<usize>) -> Sys<()> {
        let real = self.real(root)?;
        let (from_dir, from_name) = objects::open_parent(real, from)?;
        let attr = file::stat_at(from_dir.as_fd(), from_name)?;
        if let Some(index) = change {
            expect(&attr, self.change(index)?.real.as_ref())?;
            if objects::stat(real, to)?.is_some() {
                self.set_aside(root, to, None)?;
            }
        }
        let (to_dir, to_name) = objects::open_parent(real, to)?;
        rename_new(from_dir.as_fd(), from_name, to_dir.as_fd(), to_name)?;
        self.undo.push(Undo::Move { root, from: to.clone(), to: from.clone() });
        if attr.kind == Kind::Dir {
            self.moved.push((root, from.clone(), to.clone()));
        }
        self.touch(root, from);
        self.touch(root, to);
        Ok(())
    }

    fn step_mkdir(&mut self, root: u16, path: &RelPath) -> Sys<()> {
        let real = self.real(root)?;
        match objects::stat(real, path)? {
            Some(attr) if attr.kind == Kind::Dir => return Ok(()),
            Some(_) => self.set_aside(root, path, None)?,
            None => {}
        }
        let (dir, name) = objects::open_parent(real, path)?;
        file::mkdirat(dir.as_fd(), name, 0o700)?;
        self.undo.push(Undo::Rmdir { root, path: path.clone() });
        self.touch(root, path);
        Ok(())
    }

    fn step_put(&mut self, root: u16, path: &RelPath, index: usize) -> Sys<()> {
        let staged = self.staged.get(&index).ok_or(Errno::EINVAL)?;
        let (dir, name) = (self.moved_path(root, &staged.dir), staged.name.clone());
        let expected = self.change(index)?.real;
        self.place(root, &dir.join(&name), path, expected.as_ref())
    }

    fn step_link(&mut self, root: u16, path: &RelPath, to: &RelPath, index: usize) -> Sys<()> {
        let real = self.real(root)?;
        let source = Object::find(real, to)?.ok_or(Errno::ENOENT)?;
        let there = objects::stat(real, path)?;
        if there.is_some_and(|a| (a.dev, a.ino) == (source.attr.dev, source.attr.ino)) {
            return Ok(());
        }
        let (from_dir, from_name) = objects::open_parent(real, to)?;
        let parent = path.parent().ok_or(Errno::EINVAL)?;
        let dir = objects::open_dir(real, &parent)?;
        let name = self.temp_name();
        file::linkat(from_dir.as_fd(), from_name, dir.as_fd(), &name)?;
        let temp = parent.join(&name);
        self.undo.push(Undo::Unlink { root, path: temp.clone() });
        let expected = self.change(index)?.real;
        self.place(root, &temp, path, expected.as_ref())
    }

    /// Gives the temporary object `temp` the name `path`. What is there changes places with it in one atomic rename,
    /// and is looked at only then: nobody can slip something in between.
    fn place(&mut self, root: u16, temp: &RelPath, path: &RelPath, expected: Option<&Attr>) -> Sys<()> {
        let real = self.real(root)?;
        let (temp_dir, temp_name) = objects::open_parent(real, temp)?;
        let (dir, name) = objects::open_parent(real, path)?;
        self.touch(root, path);
        if expected.is_none() {
            rename_new(temp_dir.as_fd(), temp_name, dir.as_fd(), name)?;
            self.undo.push(Undo::Move { root, from: path.clone(), to: temp.clone() });
            return Ok(());
        }
        match file::renameat(temp_dir.as_fd(), temp_name, dir.as_fd(), name, libc::RENAME_EXCHANGE) {
            Ok(()) => {
                self.undo.push(Undo::Exchange { root, one: path.clone(), other: temp.clone() });
                expect(&file::stat_at(temp_dir.as_fd(), temp_name)?, expected)?;
                self.asides.push((root, temp.clone()));
                Ok(())
            }
            Err(Errno::EINVAL | Errno::ENOSYS | Errno::EOPNOTSUPP) => {
                self.set_aside(root, path, expected)?;
                rename_new(temp_dir.as_fd(), temp_name, dir.as_fd(), name)?;
                self.undo.push(Undo::Move { root, from: path.clone(), to: temp.clone() });
                Ok(())
            }
            Err(e) => Err(e),
        }
    }

    /// Moves what is at `path` to a temporary name beside it, to be removed at commit.
    fn set_aside(&mut self, root: u16, path: &RelPath, expected: Option<&Attr>) -> Sys<()> {
        let name = self.temp_name();
        let aside = path.parent().ok_or(Errno::EINVAL)?.join(&name);
        let (dir, old) = objects::open_parent(self.real(root)?, path)?;
        rename_new(dir.as_fd(), old, dir.as_fd(), &name)?;
        self.undo.push(Undo::Move { root, from: aside.clone(), to: path.clone() });
        if expected.is_some() {
            expect(&file::stat_at(dir.as_fd(), &name)?, expected)?;
        }
        self.asides.push((root, aside));
        self.touch(root, path);
        Ok(())
    }

    fn step_rewrite(&mut self, root: u16, path: &RelPath, index: usize) -> Sys<()> {
        let s = self.change(index)?;
        let save = self.staged.get(&index).ok_or(Errno::EINVAL)?.name.clone();
        let from = self.upper(s)?;
        let object = Object::find(self.real(root)?, path)?.ok_or(Errno::ENOENT)?;
        expect(&object.attr, s.real.as_ref())?;
        let to = file::reopen(object.fd.as_fd(), libc::O_WRONLY)?;
        self.undo.push(Undo::Attrs(attrs::save(root, path, &object)?));
        self.undo.push(Undo::Bytes { root, path: path.clone(), save });
        data::ftruncate(to.as_fd(), 0)?;
        data::copy_content(from.readable()?.as_fd(), to.as_fd(), from.attr.size, |_| {})?;
        data::fsync(to.as_fd(), false)?;
        attrs::give(&object, &from, &s.meta)
    }

    fn step_attr(&mut self, root: u16, path: &RelPath, index: usize) -> Sys<()> {
        let s = self.change(index)?;
        let from = self.upper(s)?;
        let object = Object::find(self.real(root)?, path)?.ok_or(Errno::ENOENT)?;
        self.undo.push(Undo::Attrs(attrs::save(root, path, &object)?));
        if matches!(s.change.what, What::Added | What::Typed) {
            let xattrs = objects::xattrs(&from)?;
            attrs::give_all(&object, &from.attr, &xattrs)?;
            self.dir_times.push((root, path.clone(), from.attr.mtime));
            return Ok(());
        }
        if s.change.kind == Kind::Dir
            && let Some((_, new)) = s.meta.mtime
        {
            self.dir_times.push((root, path.clone(), new));
        }
        attrs::give(&object, &from, &s.meta)
    }

    /// Where the directory that was at `path` before the first step is now.
    fn moved_path(&self, root: u16, path: &RelPath) -> RelPath {
        let moves = self.moved.iter().filter(|(r, ..)| *r == root);
        moves.fold(path.clone(), |at, (_, from, to)| match at.strip_prefix(from) {
            Some(rest) => super::paths::under(to, &rest),
            None => at,
        })
    }

    fn touch(&mut self, root: u16, path: &RelPath) {
        self.touched.extend(path.parent().map(|dir| (root, dir)));
    }

    fn sync_staged(&mut self) -> Result<()> {
        let mut seen = BTreeSet::new();
        for (root, dir) in std::mem::take(&mut self.unsynced) {
            let sync = || -> Sys<()> {
                let fd = objects::open(self.real(root)?, &dir, libc::O_RDONLY | libc::O_DIRECTORY)?;
                if seen.insert(file::stat(fd.as_fd())?.dev) { data::syncfs(fd.as_fd()) } else { Ok(()) }
            };
            let mut sync = sync;
            sync().map_err(|e| Error::on_path("sync", dir.as_bytes(), e))?;
        }
        Ok(())
    }

    fn sync_touched(&mut self) -> Result<()> {
        if self.touched.len() > SYNC_EACH {
            self.unsynced = self.roots.iter().map(|r| (r.root, RelPath::root())).collect();
            return self.sync_staged();
        }
        for (root, dir) in &self.touched {
            let fd = self
                .real(*root)
                .and_then(|real| objects::open(real, dir, libc::O_RDONLY | libc::O_DIRECTORY));
            match fd {
                Ok(fd) => {
                    data::fsync(fd.as_fd(), false).map_err(|e| Error::on_path("sync", dir.as_bytes(), e))?
                }
                // Removed or moved since, or a directory that we may not read: its file system syncs it in its time.
                Err(Errno::ENOENT | Errno::EACCES | Errno::ENOTDIR) => {}
                Err(e) => return Err(Error::on_path("sync", dir.as_bytes(), e)),
            }
        }
        Ok(())
    }

    fn commit(mut self, dropper: &mut dyn Dropper) -> Report {
        let mut report = Report::default();
        self.undo.clear();
        for (root, path) in std::mem::take(&mut self.asides) {
            if let Err(e) = self.real(root).and_then(|real| super::undo::remove_all(real, &path)) {
                report.warnings.push(Error::on_path("remove the leftover", path.as_bytes(), e));
            }
        }
        self.remove_saves(&mut report.warnings);
        for (root, path, time) in std::mem::take(&mut self.dir_times) {
            let set = self.real(root).and_then(|real| attrs::set_mtime(real, &path, time));
            if let Err(e) = set {
                report.warnings.push(Error::on_path("set the times of", path.as_bytes(), e));
            }
        }
        report.applied = self.plan.changes.iter().map(|s| (s.change.root, s.change.path.clone())).collect();
        for s in drop_order(&self.plan.changes) {
            let c = &s.change;
            match dropper.drop(c.root, &c.path, seen_of(s)) {
                Ok(true) => {}
                Ok(false) => report.kept.push((c.root, c.path.clone())),
                Err(e) => report.warnings.push(e),
            }
        }
        report
    }

    fn roll_back(mut self, mut error: Error) -> Error {
        while let Some(undo) = self.undo.pop() {
            let root = undo.root();
            if let Err(e) = self.dirs(root).and_then(|dirs| undo.take(dirs)) {
                error.causes.push(format!("and {} could not be put back: {e}", undo.path()));
            }
        }
        let mut warnings = Vec::new();
        self.remove_saves(&mut warnings);
        error.causes.extend(warnings.into_iter().map(|w| w.message));
        error
    }

    fn remove_saves(&mut self, warnings: &mut Vec<Error>) {
        for (root, name) in std::mem::take(&mut self.saves) {
            if let Err(e) = self.dirs(root).and_then(|d| file::unlinkat(d.work.as_fd(), &name)) {
                warnings.push(Error::on_path("remove", &name, e));
            }
        }
    }
}

/// `ESTALE` unless the object is the one that was compared. Its ctime may differ: a rename changes it.
fn expect(now: &Attr, was: Option<&Attr>) -> Sys<()> {
    let same = match was {
        Some(was) if was.kind == Kind::Dir => (was.kind, was.ino) == (now.kind, now.ino),
        Some(was) => (was.kind, was.ino, was.size, was.mtime) == (now.kind, now.ino, now.size, now.mtime),
        None => true,
    };
    if same { Ok(()) } else { Err(Errno::ESTALE) }
}

/// Renames to a name that must be free.
fn rename_new(dir: BorrowedFd<'_>, name: &[u8], to_dir: BorrowedFd<'_>, to: &[u8]) -> Sys<()> {
    match file::renameat(dir, name, to_dir, to, libc::RENAME_NOREPLACE) {
        Err(Errno::EINVAL | Errno::ENOSYS) => match file::stat_at(to_dir, to) {
            Err(Errno::ENOENT) => file::renameat(dir, name, to_dir, to, 0),
            Ok(_) => Err(Errno::EEXIST),
            Err(e) => Err(e),
        },
        other => other,
    }
}

fn path_of(step: &Step) -> &RelPath {
    match step {
        Step::Move { to: path, .. }
        | Step::Mkdir { path, .. }
        | Step::Put { path, .. }
        | Step::Rewrite { path, .. }
        | Step::Link { path, .. }
        | Step::Unlock { path, .. }
        | Step::Attr { path, .. }
        | Step::Remove { path, .. } => path,
    }
}

fn failed(e: Errno, step: &Step) -> Error {
    let verb = match step {
        Step::Move { .. } => "move to",
        Step::Mkdir { .. } => "make the directory",
        Step::Put { .. } | Step::Rewrite { .. } => "write",
        Step::Link { .. } => "link",
        Step::Unlock { .. } | Step::Attr { .. } => "set the attributes of",
        Step::Remove { .. } => "remove",
    };
    let error = Error::on_path(verb, path_of(step).as_bytes(), e);
    match e {
        Errno::ESTALE | Errno::EEXIST => error
            .hint("the real tree changed while the changes were applied; it was left as it is. Try again"),
        _ => error,
    }
}
