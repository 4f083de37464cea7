//! Carries a plan out on the real tree, whole or not at all.
//!
//! Order: (1) everything is staged under temporary names, nothing of the real tree is touched but the mode of
//! directories that could not be written to, for as long as they change; (2) the steps; what they replace is set aside,
//! never overwritten; (3) what was set aside goes to the session, so that the application can be undone; (4) directories
//! get their modes and times, what was done is synced, and the commit is marked in the intent log; (5) the changes leave
//! the session. Whatever fails up to (4) is taken back, at once or, after a crash, by the next command; what comes after
//! it is finished by the next command.

use super::discard::{Dropper, Seen, drop_order, seen_of};
use super::intent::{APPLY_LOG, After, Entry, Leaver, LogWriter, Op, Place, Space};
use super::objects::{self, Object};
use super::plan::{Plan, Step};
use super::preflight::{changed_in_session, preflight};
use super::recover::{end_of_roll_back, remove_copied};
use super::settle::Settled;
use super::touched::{self, Fate};
use super::transaction::{Backwards, Begun, Fault, NoFault, Spaces, Txn, expect, failed_at};
use super::vault::Vault;
use super::{RootDirs, attrs, copy};
use crate::base::{Attr, Errno, Error, Kind, RelPath, Result, Sys, Time, What};
use crate::sys::{data, file};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{SystemTime, UNIX_EPOCH};

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
    /// Those of them that were applied without their set-uid and set-gid bits or capabilities.
    pub stripped: Vec<(u16, RelPath)>,
    /// What did not work after the real tree was changed: the session's files to be tidied, leftovers to be removed.
    pub warnings: Vec<Error>,
}

/// Whether changes of permission bits are carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Perms {
    /// As the session has them.
    #[default]
    Apply,
    /// A real object keeps its own; what is new has those of the session.
    Skip,
}

/// What to do about permissions.
#[derive(Clone, Copy, Debug, Default)]
pub struct Policy {
    /// Whether changes of permission bits are carried out.
    pub perms: Perms,
    /// Whether set-uid and set-gid bits and capabilities may come from the session.
    pub privileged: bool,
}

/// Applies `plan` to the real trees and takes the changes out of the session through `dropper`. Set-uid and set-gid
/// bits and capabilities that the real files do not have are left out.
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
    apply_with(roots, plan, Policy::default(), dropper, progress, &mut NoFault)
}

/// [`apply`] by another policy; `fault` is for tests.
///
/// # Errors
/// As [`apply`].
pub fn apply_with(
    roots: &[RootDirs],
    plan: &Plan,
    policy: Policy,
    dropper: &mut dyn Dropper,
    progress: &mut dyn FnMut(Progress<'_>),
    fault: &mut dyn Fault,
) -> Result<Report> {
    preflight(roots, plan)?;
    let Some(first) = roots.first() else { return Ok(Report::default()) };
    let vault = Vault::take(&first.kept)?;
    let (number, kept) = vault.add()?;
    let staging = plan.steps.iter().filter(|s| matches!(s, Step::Put { .. } | Step::Rewrite { .. })).count();
    let total = plan.steps.len() + staging;
    let done = std::cell::Cell::new(0);
    let progress = std::cell::RefCell::new(progress);
    let tell = |path: &RelPath, bytes: u64| {
        (progress.borrow_mut())(Progress { done: done.get(), total, bytes, path });
    };
    let mut tick = |path: &RelPath| {
        done.set((done.get() + 1).min(total));
        tell(path, 0);
    };
    let spaces = Spaces { roots, kept };
    let log = match LogWriter::create(spaces.kept.as_fd(), APPLY_LOG) {
        Ok(log) => log,
        Err(e) => {
            vault.remove(number).map_err(|also| Error::sys("remove an empty log", also))?;
            return Err(Error::sys("write the intent log", e));
        }
    };
    let mut run = Run {
        roots,
        plan,
        policy,
        txn: Txn::new(spaces, log, fault, &mut tick, "k"),
        staged: BTreeMap::new(),
        moved: Vec::new(),
        asides: Vec::new(),
        dir_times: Vec::new(),
        unsynced: Vec::new(),
        stripped: Vec::new(),
        tell: &tell,
    };
    match run.all() {
        Ok(()) => Ok(run.finish(dropper)),
        Err(e) => {
            let e = run.blamed(e);
            Err(run.roll_back(&vault, number, e))
        }
    }
}

/// A temporary name in a directory of the real tree, by the path it has when nothing is moved yet.
#[derive(Clone)]
struct Staged {
    dir: RelPath,
    name: Vec<u8>,
}

/// More files than this are synced with their whole file system at once.
const SYNC_EACH: usize = 64;

struct Run<'a, 'p> {
    roots: &'a [RootDirs],
    plan: &'a Plan,
    policy: Policy,
    txn: Txn<'a, 'p>,
    staged: BTreeMap<usize, Staged>,
    /// Directories moved so far: (root, from, to).
    moved: Vec<(u16, RelPath, RelPath)>,
    /// What was replaced or removed, to be kept.
    asides: Vec<Place>,
    /// Times of directories, set when nothing changes in them any more.
    dir_times: Vec<(u16, RelPath, Time)>,
    /// Directories in which files were staged without a sync of their own.
    unsynced: Vec<(u16, RelPath)>,
    stripped: Vec<(u16, RelPath)>,
    tell: &'p dyn Fn(&RelPath, u64),
}

impl<'a> Run<'a, '_> {
    fn all(&mut self) -> Result<()> {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
        let begin = Entry::Begin { time, changes: self.plan.changes.len() };
        self.txn.log.push(&begin).map_err(|e| Error::sys("write the intent log", e))?;
        self.stage_all()?;
        // A directory may get a mode that forbids to change its entries, so that comes when none changes any more.
        let (shape, last): (Vec<_>, Vec<_>) = self.plan.steps.iter().partition(|step| !self.is_of_dir(step));
        shape.into_iter().try_for_each(|step| self.take(step))?;
        self.txn.flush()?;
        for aside in std::mem::take(&mut self.asides) {
            self.txn.keep(&aside)?;
        }
        self.txn.flush()?;
        last.into_iter().try_for_each(|step| self.take(step))?;
        for dirs in self.roots {
            self.txn.lock_again(&Place::real(dirs.root, &RelPath::root()))?;
        }
        self.txn.flush()?;
        for (root, path, time) in std::mem::take(&mut self.dir_times) {
            let set = move |_: &Spaces<'_>, object: &Object| attrs::set_mtime(object, time);
            self.txn.attrs(&Place::real(root, &path), None, Box::new(set))?;
        }
        self.txn.flush()?;
        self.commit()
    }

    fn dirs(&self, root: u16) -> Sys<&'a RootDirs> {
        self.roots.iter().find(|r| r.root == root).ok_or(Errno::EINVAL)
    }

    fn real(&self, root: u16) -> Sys<BorrowedFd<'a>> {
        Ok(self.dirs(root)?.real.as_fd())
    }

    fn change(&self, index: usize) -> Result<&'a Settled> {
        self.plan.changes.get(index).ok_or_else(|| Error::failure("a step without a change"))
    }

    /// Whether the step sets attributes of a directory.
    fn is_of_dir(&self, step: &Step) -> bool {
        let Step::Attr { change, .. } = step else { return false };
        self.plan.changes.get(*change).is_some_and(|s| s.change.kind == Kind::Dir)
    }

    /// Names for all that is to be staged, then the objects themselves.
    fn stage_all(&mut self) -> Result<()> {
        let plan = self.plan;
        let mut first: BTreeMap<(u16, &RelPath), (usize, &RelPath)> = BTreeMap::new();
        let mut work: Vec<(&Step, usize)> = Vec::new();
        for step in &plan.steps {
            let (root, dir, index) = match step {
                Step::Put { root, stage, change, path } => {
                    first.insert((*root, path), (*change, stage));
                    (*root, stage, *change)
                }
                // The other names of a staged file are staged beside it; those of one that is written in place follow.
                Step::Link { root, to, change, .. } => match first.get(&(*root, to)) {
                    Some((_, stage)) => (*root, *stage, *change),
                    None => continue,
                },
                Step::Rewrite { change, .. } => {
                    work.push((step, *change));
                    continue;
                }
                _ => continue,
            };
            let name = self.txn.temp_name();
            self.txn.make(&Place::real(root, &dir.join(&name)), false)?;
            self.staged.insert(index, Staged { dir: dir.clone(), name });
            work.push((step, index));
        }
        self.txn.flush()?;
        let many = work.len() > SYNC_EACH;
        for (step, index) in work {
            let path = path_of(step);
            (self.tell)(path, 0);
            let staged = match step {
                Step::Link { root, to, .. } => {
                    let first = first.get(&(*root, to)).map(|(first, _)| *first).unwrap_or(index);
                    self.stage_link(*root, first, index)
                }
                Step::Rewrite { root, .. } => self.stage_save(*root, index, path),
                _ => self.stage_put(index, path, many),
            };
            staged.map_err(|e| stage_failed(e, path))?;
        }
        self.sync_staged()
    }

    /// The session's object of a change, still the one that was compared.
    fn upper(&self, s: &Settled) -> Sys<Object> {
        upper_of(self.dirs(s.change.root)?, s)
    }

    fn stage_put(&mut self, index: usize, path: &RelPath, many: bool) -> Sys<()> {
        self.txn.fault.at("stage")?;
        let s = self.plan.changes.get(index).ok_or(Errno::EINVAL)?;
        let root = s.change.root;
        let Staged { dir, name } = self.staged.get(&index).cloned().ok_or(Errno::EINVAL)?;
        let object = self.upper(s)?;
        let fd = objects::open_dir(self.real(root)?, &dir)?;
        let attr = object.attr;
        match attr.kind {
            Kind::File => {
                let flags = libc::O_CREAT | libc::O_EXCL | libc::O_RDWR;
                let to = file::openat(fd.as_fd(), &name, flags, 0o600)?;
                self.txn.fault.at("copy")?;
                let tell = self.tell;
                data::copy_content(object.readable()?.as_fd(), to.as_fd(), attr.size, |n| tell(path, n))?;
            }
            Kind::Symlink => file::symlinkat(&object.target()?, fd.as_fd(), &name)?,
            Kind::Fifo | Kind::Char | Kind::Block => {
                file::mknodat(fd.as_fd(), &name, attr.kind.mode_bits() | 0o600, attr.rdev)?;
            }
            Kind::Dir | Kind::Socket => return Err(Errno::EINVAL),
        }
        let to = Object::find(fd.as_fd(), &RelPath::new(&name)?)?.ok_or(Errno::ESTALE)?;
        self.txn.fault.at("give attributes")?;
        let real = match &s.real_path {
            Some(real) => Object::find(self.real(root)?, real)?,
            None => None,
        };
        let real = real.filter(|r| r.attr.kind == attr.kind);
        let (perm, xattrs) = self.wanted(s, &object, real.as_ref())?;
        attrs::give_all(&to, &Attr { perm, ..attr }, &xattrs)?;
        self.txn.fault.at("sync")?;
        if attr.kind == Kind::File && !many {
            data::fsync(file::reopen(to.fd.as_fd(), libc::O_RDONLY)?.as_fd(), false)?;
        } else {
            self.unsynced.push((root, dir));
        }
        Ok(())
    }

    /// Mode and xattrs that a change is to have by the policy.
    fn wanted(&mut self, s: &Settled, object: &Object, real: Option<&Object>) -> Sys<(u32, Xattrs)> {
        let before = real.map_or(0, |r| r.attr.perm);
        let mut perm = object.attr.perm;
        if let (Perms::Skip, Some(real)) = (self.policy.perms, real) {
            perm = real.attr.perm;
        }
        // An upper without xattrs says nothing about them: the real file's stay.
        let theirs = real.map(objects::xattrs).transpose()?.unwrap_or_default();
        let has_xattrs = self.dirs(s.change.root)?.features.xattr;
        let mut xattrs = if has_xattrs { objects::xattrs(object)? } else { theirs.clone() };
        if !self.policy.privileged {
            // On a directory set-gid only hands the group down; no program gains by it.
            let bits = if object.attr.kind == Kind::Dir { 0 } else { 0o6000 };
            let gained = perm & bits & !before;
            perm &= !gained;
            let count = xattrs.len();
            xattrs.retain(|pair| pair.0 != objects::CAPABILITY || theirs.contains(pair));
            if gained != 0 || xattrs.len() != count {
                self.stripped.push((s.change.root, s.change.path.clone()));
            }
        }
        Ok((perm, xattrs))
    }

    /// One more name for a file that is staged already.
    fn stage_link(&mut self, root: u16, first: usize, index: usize) -> Sys<()> {
        self.txn.fault.at("stage")?;
        let first = self.staged.get(&first).ok_or(Errno::EINVAL)?;
        let this = self.staged.get(&index).ok_or(Errno::EINVAL)?;
        let from = objects::open_dir(self.real(root)?, &first.dir)?;
        let to = objects::open_dir(self.real(root)?, &this.dir)?;
        file::linkat(from.as_fd(), &first.name, to.as_fd(), &this.name)
    }

    /// Saves the bytes of a real file that is to be written in place.
    fn stage_save(&mut self, root: u16, index: usize, path: &RelPath) -> Sys<()> {
        self.txn.fault.at("stage")?;
        let s = self.plan.changes.get(index).ok_or(Errno::EINVAL)?;
        self.upper(s)?;
        let real_path = s.real_path.as_ref().unwrap_or(path);
        let real = Object::find(self.real(root)?, real_path)?.ok_or(Errno::ENOENT)?;
        expect(&real.attr, s.real.as_ref())?;
        let save = self.txn.kept_place().map_err(|_| Errno::EINVAL)?;
        copy::bytes(&self.txn.spaces, &real, &save)?;
        let name = save.path.as_bytes().to_vec();
        self.staged.insert(index, Staged { dir: RelPath::root(), name });
        Ok(())
    }

    fn take(&mut self, step: &Step) -> Result<()> {
        match step {
            Step::Move { root, from, to, change } => self.step_move(*root, from, to, *change),
            Step::Mkdir { root, path, .. } => {
                let at = Place::real(*root, path);
                match self.txn.look(&at)? {
                    Some(attr) if attr.kind == Kind::Dir => return Ok(()),
                    Some(_) => self.set_aside(&at, None)?,
                    None => {}
                }
                self.txn.mkdir(&at)
            }
            Step::Put { root, path, change, .. } => {
                let staged = self.staged.get(change).cloned();
                let Staged { dir, name } = staged.ok_or_else(|| stage_failed(Errno::EINVAL, path))?;
                let temp = Place::real(*root, &self.moved_path(*root, &dir).join(&name));
                let expected = self.change(*change)?.real;
                self.place(&temp, &Place::real(*root, path), expected.as_ref())
            }
            Step::Rewrite { root, path, change } => self.step_rewrite(*root, path, *change),
            Step::Link { root, path, to, change } => self.step_link(*root, path, to, *change),
            Step::Attr { root, path, change } => self.step_attr(*root, path, *change),
            Step::Remove { root, path, change } => {
                let expected = self.change(*change)?.real;
                self.set_aside(&Place::real(*root, path), expected.as_ref())
            }
        }
    }

    fn step_move(&mut self, root: u16, from: &RelPath, to: &RelPath, change: Option<usize>) -> Result<()> {
        let (from, to) = (Place::real(root, from), Place::real(root, to));
        let mut expected = None;
        if let Some(index) = change {
            expected = self.change(index)?.real;
            if self.txn.look(&to)?.is_some() {
                self.set_aside(&to, None)?;
            }
        }
        let is_dir = self.txn.look(&from)?.is_some_and(|a| a.kind == Kind::Dir);
        self.txn.rename(&from, &to, expected.as_ref())?;
        if is_dir {
            self.moved.push((root, from.path, to.path));
        }
        Ok(())
    }

    fn step_link(&mut self, root: u16, path: &RelPath, to: &RelPath, index: usize) -> Result<()> {
        let at = Place::real(root, path);
        let s = self.change(index)?;
        let (expected, twin) = (s.real, s.twin.as_ref().filter(|twin| twin.path == *to));
        if let Some(Staged { dir, name }) = self.staged.get(&index).cloned() {
            let temp = Place::real(root, &self.moved_path(root, &dir).join(&name));
            return self.place(&temp, &at, expected.as_ref());
        }
        let source = Place::real(root, to);
        let there = self.txn.look(&at)?;
        let linked = self.txn.look(&source)?;
        if there.zip(linked).is_some_and(|(a, b)| (a.dev, a.ino) == (b.dev, b.ino)) {
            return Ok(());
        }
        if let (Some(twin), Some(now)) = (twin, &linked) {
            // An earlier step may have set its times.
            let was =
                if twin.changed { Attr { size: now.size, mtime: now.mtime, ..twin.real } } else { twin.real };
            expect(now, Some(&was)).map_err(|e| failed_at("link to", &source, e))?;
        }
        let parent = path.parent().unwrap_or_default();
        let name = self.txn.temp_name();
        let temp = Place::real(root, &parent.join(&name));
        let link_to = temp.clone();
        let link = move |spaces: &Spaces<'_>| {
            let (from_dir, from_name) = spaces.parent(&source)?;
            let (dir, name) = spaces.parent(&link_to)?;
            file::linkat(from_dir.as_fd(), from_name, dir.as_fd(), name)
        };
        self.txn.make_by(&temp, false, Box::new(link))?;
        // It must be there to be placed.
        self.txn.flush()?;
        self.place(&temp, &at, expected.as_ref())
    }

    /// Gives the temporary object `temp` the name `path`. What is there changes places with it in one atomic rename,
    /// and is looked at only then: nobody can slip something in between.
    fn place(&mut self, temp: &Place, path: &Place, expected: Option<&Attr>) -> Result<()> {
        if expected.is_none() {
            return self.txn.rename(temp, path, None);
        }
        self.txn.swap(path, temp, expected)?;
        self.asides.push(temp.clone());
        Ok(())
    }

    /// Moves what is at `path` to a temporary name beside it, to be kept.
    fn set_aside(&mut self, path: &Place, expected: Option<&Attr>) -> Result<()> {
        let name = self.txn.temp_name();
        let parent = path.path.parent().unwrap_or_default();
        let aside = Place { space: path.space, path: parent.join(&name) };
        self.txn.rename(path, &aside, expected)?;
        self.asides.push(aside);
        Ok(())
    }

    fn step_rewrite(&mut self, root: u16, path: &RelPath, index: usize) -> Result<()> {
        let s = self.change(index)?;
        let failed = |e| stage_failed(e, path);
        let staged = self.staged.get(&index).cloned().ok_or_else(|| failed(Errno::EINVAL))?;
        let save = Place { space: Space::Kept, path: RelPath::new(&staged.name).map_err(failed)? };
        let at = Place::real(root, path);
        let from = self.upper(s).map_err(failed)?;
        // Its own attributes count, which do not move with a rename.
        let real = Object::find(self.real(root).map_err(failed)?, s.real_path.as_ref().unwrap_or(path));
        let real = match real.map_err(failed)? {
            Some(real) => Some(real),
            None => self.txn.spaces.find(&at).map_err(failed)?,
        };
        let (perm, xattrs) = self.wanted(s, &from, real.as_ref()).map_err(failed)?;
        let dirs = self.dirs(root).map_err(failed)?;
        let rewrite = move |_: &Spaces<'_>, object: &Object| {
            let from = upper_of(dirs, s)?;
            let to = file::reopen(object.fd.as_fd(), libc::O_WRONLY)?;
            data::ftruncate(to.as_fd(), 0)?;
            data::copy_content(from.readable()?.as_fd(), to.as_fd(), from.attr.size, |_| {})?;
            data::fsync(to.as_fd(), false)?;
            attrs::give(object, perm, &xattrs, &s.meta)
        };
        self.txn.bytes(&at, &save, s.real.as_ref(), Box::new(rewrite))
    }

    fn step_attr(&mut self, root: u16, path: &RelPath, index: usize) -> Result<()> {
        let s = self.change(index)?;
        let failed = |e| stage_failed(e, path);
        let at = Place::real(root, path);
        let from = self.upper(s).map_err(failed)?;
        let is_new = matches!(s.change.what, What::Added | What::Typed);
        self.txn.settle_at(&at)?;
        if s.change.kind == Kind::Dir {
            // By its own mode it is judged what changes, and beneath it nothing is to be reached any more.
            self.txn.lock_again(&at)?;
        }
        let real = if is_new { None } else { self.txn.spaces.find(&at).map_err(failed)? };
        let (perm, xattrs) = self.wanted(s, &from, real.as_ref()).map_err(failed)?;
        let mtime = if is_new { Some(from.attr.mtime) } else { s.meta.mtime.map(|(_, new)| new) };
        if let Some(mtime) = mtime.filter(|_| s.change.kind == Kind::Dir) {
            self.dir_times.push((root, path.clone(), mtime));
        }
        let attr = Attr { perm, ..from.attr };
        let give = move |_: &Spaces<'_>, object: &Object| match is_new {
            true => attrs::give_all(object, &attr, &xattrs),
            false => attrs::give(object, perm, &xattrs, &s.meta),
        };
        // A file that was written in place a step ago is looked at by its identity only.
        let expected = s.real.filter(|_| !is_new && !s.content);
        self.txn.attrs(&at, expected.as_ref(), Box::new(give))
    }

    /// Where the directory that was at `path` before the first step is now.
    fn moved_path(&self, root: u16, path: &RelPath) -> RelPath {
        let moves = self.moved.iter().filter(|(r, ..)| *r == root);
        moves.fold(path.clone(), |at, (_, from, to)| match at.strip_prefix(from) {
            Some(rest) => super::paths::under(to, &rest),
            None => at,
        })
    }

    fn sync_staged(&mut self) -> Result<()> {
        let mut seen = BTreeSet::new();
        for (root, dir) in std::mem::take(&mut self.unsynced) {
            let mut sync = || -> Sys<()> {
                let fd = objects::open(self.real(root)?, &dir, libc::O_RDONLY | libc::O_DIRECTORY)?;
                if seen.insert(file::stat(fd.as_fd())?.dev) { data::syncfs(fd.as_fd()) } else { Ok(()) }
            };
            sync().map_err(|e| Error::on_path("sync", dir.as_bytes(), e))?;
        }
        Ok(())
    }

    /// Syncs what was done, and marks the commit.
    fn commit(&mut self) -> Result<()> {
        self.txn.fault.at("sync the directories").map_err(|e| Error::sys("sync", e))?;
        let names: BTreeSet<Place> = self.txn.done.iter().flat_map(final_names).collect();
        let dirs: BTreeSet<Place> =
            names.iter().filter_map(|p| p.path.parent().map(|path| Place { path, space: p.space })).collect();
        if dirs.len() > SYNC_EACH {
            self.unsynced = self.roots.iter().map(|r| (r.root, RelPath::root())).collect();
            self.sync_staged()?;
        } else {
            dirs.iter().try_for_each(|dir| self.sync_dir(dir))?;
        }
        let kept = &self.txn.spaces.kept;
        data::fsync(kept.as_fd(), false).map_err(|e| Error::sys("sync what is kept", e))?;
        let marked = self.txn.fault.at("commit").and_then(|()| {
            for place in &names {
                let Space::Real(root) = place.space else { continue };
                let attr = self.txn.spaces.stat(place)?;
                self.txn.log.push(&Entry::After(After { root, path: place.path.clone(), attr }))?;
            }
            for (root, path, seen) in leaving(self.plan) {
                let (path, seen) = (path.clone(), seen.map(|seen| (seen.ino, seen.ctime)));
                self.txn.log.push(&Entry::Leave(Leaver { root, path, seen }))?;
            }
            self.txn.log.push(&Entry::Commit)?;
            self.txn.log.sync()
        });
        marked.map_err(|e| Error::sys("write the intent log", e))
    }

    fn sync_dir(&self, dir: &Place) -> Result<()> {
        let fd = self
            .txn
            .spaces
            .top(dir.space)
            .and_then(|top| objects::open(top, &dir.path, libc::O_RDONLY | libc::O_DIRECTORY));
        let synced = match fd {
            Ok(fd) => data::fsync(fd.as_fd(), false),
            // Removed or moved since, or a directory that we may not read: its file system syncs it in its time.
            Err(Errno::ENOENT | Errno::EACCES | Errno::ENOTDIR | Errno::ELOOP) => Ok(()),
            Err(e) => Err(e),
        };
        synced.map_err(|e| Error::on_path("sync", dir.path.as_bytes(), e))
    }

    /// After the commit: leftovers go, the changes leave the session.
    fn finish(mut self, dropper: &mut dyn Dropper) -> Report {
        let mut report = Report { stripped: std::mem::take(&mut self.stripped), ..Report::default() };
        report.warnings = remove_copied(&self.txn.spaces, &self.txn.done);
        report.warnings.extend(touched::note(&self.txn.spaces, &self.txn.done, Fate::Done).err());
        report.applied = self.plan.changes.iter().map(|s| (s.change.root, s.change.path.clone())).collect();
        for (root, path, seen) in leaving(self.plan) {
            if let Err(e) = self.txn.fault.at("take out of the session") {
                report.warnings.push(Error::on_path("take out of the session", path.as_bytes(), e));
                continue;
            }
            match dropper.drop(root, path, seen) {
                Ok(true) => {}
                Ok(false) => report.kept.push((root, path.clone())),
                Err(e) => report.warnings.push(e),
            }
        }
        if report.warnings.is_empty() {
            // Else the next command tries again.
            let ended = self.txn.log.push(&Entry::Done).and_then(|()| self.txn.log.sync());
            report.warnings.extend(ended.err().map(|e| Error::sys("write the intent log", e)));
        }
        report
    }

    /// What failed because the session changed an object meanwhile is not to be blamed on the real tree.
    fn blamed(&self, error: Error) -> Error {
        if error.errno != Some(Errno::ESTALE) {
            return error;
        }
        let changed = |s: &&Settled| self.upper(s).is_err_and(|e| e == Errno::ESTALE);
        let changed = self.plan.changes.iter().filter(|s| s.upper.is_some()).find(changed);
        changed.map_or(error, |s| changed_in_session(&s.change.path))
    }

    fn roll_back(self, vault: &Vault, number: u32, mut error: Error) -> Error {
        let mut back = Backwards::new(&self.txn.spaces);
        back.take(&self.txn.done, Begun::All, &mut NoFault);
        let noted = touched::note(&self.txn.spaces, &self.txn.done, Fate::TakenBack);
        error.causes.extend(end_of_roll_back(vault, number, back.problems));
        error.causes.extend(noted.err().map(|e| e.message));
        error
    }
}

/// What leaves the session with what `plan` applies, in order: the changes; and of a real file that is no change, but got
/// new names, the session's copy once all of them are applied, so that they are one file in the view again.
fn leaving(plan: &Plan) -> Vec<(u16, &RelPath, Option<Seen>)> {
    let mut all: Vec<_> =
        drop_order(&plan.changes).into_iter().map(|s| (s.change.root, &s.change.path, seen_of(s))).collect();
    let id = |s: &Settled| s.upper.map(|a| (a.dev, a.ino));
    let mut names: BTreeMap<Option<(u64, u64)>, u32> = BTreeMap::new();
    for s in plan.changes.iter().filter(|s| s.upper.is_some_and(|a| a.nlink > 1)) {
        *names.entry(id(s)).or_default() += 1;
    }
    let mut twins = BTreeMap::new();
    for s in &plan.changes {
        let last = names.get(&id(s)).zip(s.upper).is_some_and(|(n, upper)| n + 1 == upper.nlink);
        if let Some(twin) = s.twin.as_ref().filter(|twin| last && !twin.changed) {
            twins.insert((s.change.root, &twin.path), seen_of(s));
        }
    }
    all.extend(twins.into_iter().map(|((root, path), seen)| (root, path, seen)));
    all
}

/// Names whose object is another one after the operation, temporary ones left out.
fn final_names(op: &Op) -> Vec<Place> {
    let all = match op {
        Op::Move { from, to, .. } => vec![from, to],
        Op::Swap { one, other, .. } => vec![one, other],
        Op::Mkdir { at } | Op::Rmdir { at, .. } | Op::Attrs { at, .. } | Op::Bytes { at, .. } => vec![at],
        Op::Make { .. } | Op::Times { .. } | Op::Copied { .. } | Op::Unswapped { .. } => vec![],
    };
    let is_ours = |p: &Place| p.path.file_name().is_some_and(|name| name.starts_with(b".sbx-fuse."));
    all.into_iter().filter(|p| p.space != Space::Kept && !is_ours(p)).cloned().collect()
}

type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

fn upper_of(dirs: &RootDirs, s: &Settled) -> Sys<Object> {
    let object = Object::find(dirs.upper.as_fd(), &s.change.path)?;
    let object = object.ok_or(Errno::ESTALE)?;
    let same = s.upper.is_none_or(|was| (was.ino, was.ctime) == (object.attr.ino, object.attr.ctime));
    if same { Ok(object) } else { Err(Errno::ESTALE) }
}

fn path_of(step: &Step) -> &RelPath {
    match step {
        Step::Move { to: path, .. }
        | Step::Mkdir { path, .. }
        | Step::Put { path, .. }
        | Step::Rewrite { path, .. }
        | Step::Link { path, .. }
        | Step::Attr { path, .. }
        | Step::Remove { path, .. } => path,
    }
}

fn stage_failed(e: Errno, path: &RelPath) -> Error {
    super::transaction::failed_at("write", &Place::real(0, path), e)
}
