//! Candidates compared with the real objects: what differs in truth, and in which respect.

use super::objects::{self, Finder, Object};
use super::paths::{Resolver, ancestors, under};
use super::{RootDirs, in_parts, root_of, scan};
use crate::base::{Attr, Change, ChangeSet, Error, Kind, RelPath, Result, Sys, Time, What};
use crate::layer;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;

/// Attributes that differ: what they are in the real tree, and in the session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetaDiff {
    /// Permission bits.
    pub mode: Option<(u32, u32)>,
    /// User and group, only where we could set them.
    pub owner: Option<((u32, u32), (u32, u32))>,
    /// Time of last change of content.
    pub mtime: Option<(Time, Time)>,
    /// Names of xattrs (and ACLs, capabilities) that one side lacks or that differ.
    pub xattrs: Vec<Vec<u8>>,
}

impl MetaDiff {
    /// Whether nothing differs.
    pub fn is_empty(&self) -> bool {
        *self == MetaDiff::default()
    }

    /// Compares two objects of the same kind; a directory's mtime only when `dir_mtime`.
    pub(crate) fn of(real: &Object, upper: &Object, dirs: &RootDirs, dir_mtime: bool) -> Sys<MetaDiff> {
        let (old, new) = (&real.attr, &upper.attr);
        let mut diff = MetaDiff::default();
        if old.perm != new.perm && old.kind != Kind::Symlink {
            diff.mode = Some((old.perm, new.perm));
        }
        let owner = ((old.uid, old.gid), (new.uid, new.gid));
        if owner.0 != owner.1 && could_own(owner.0, owner.1) {
            diff.owner = Some(owner);
        }
        let timed = matches!(old.kind, Kind::File | Kind::Symlink) || (old.kind == Kind::Dir && dir_mtime);
        if timed && old.mtime != new.mtime {
            diff.mtime = Some((old.mtime, new.mtime));
        }
        if dirs.features.xattr {
            let (old, new) = (objects::xattrs(real)?, objects::xattrs(upper)?);
            let old: BTreeSet<_> = old.into_iter().collect();
            let new: BTreeSet<_> = new.into_iter().collect();
            let names: BTreeSet<_> = old.symmetric_difference(&new).map(|(name, _)| name.clone()).collect();
            diff.xattrs = names.into_iter().collect();
        }
        Ok(diff)
    }
}

/// Whether this process may turn owner `old` into `new` (chown(2)): an owner of the upper that differs only because
/// nobody could have set it is no change.
fn could_own(old: (u32, u32), new: (u32, u32)) -> bool {
    let (euid, egid) = crate::sys::process::effective_ids();
    if euid == 0 {
        return true;
    }
    let member = |gid: u32| {
        gid == egid || nix::unistd::getgroups().is_ok_and(|groups| groups.iter().any(|g| g.as_raw() == gid))
    };
    old.0 == euid && new.0 == euid && member(new.1)
}

/// A change that is one.
#[derive(Clone, Debug)]
pub struct Settled {
    /// The change with its final `what`, `content` and `meta`. `opaque` only tells what the upper holds: the
    /// deletions that it means are changes of their own here.
    pub change: Change,
    /// Whether content (bytes, symlink target, type) differs.
    pub content: bool,
    /// Attributes that differ; empty for `Added`, `Deleted` and `Typed`.
    pub meta: MetaDiff,
    /// Size of the real object in bytes; 0 when there is none.
    pub size_old: u64,
    /// Size of the session's object in bytes; 0 when there is none.
    pub size_new: u64,
    /// Device and inode of the upper file when several names of the set share it.
    pub link_group: Option<(u64, u64)>,
    /// Where the real object lies (for `Renamed` the old path); `None` when there is none.
    pub real_path: Option<RelPath>,
    /// The real object as it was when compared.
    pub real: Option<Attr>,
    /// The session's object as it was when compared.
    pub upper: Option<Attr>,
    /// Whether the session changed the real file itself, rather than put another in its place: its other hard links
    /// are to change with it.
    pub same_file: bool,
    /// Of a file that is to be put: a name of the same file that will be there without being put.
    pub twin: Option<Twin>,
    /// Of a rename: what the real tree has at the new path.
    pub over: Option<Attr>,
    /// Of a rename: whether the upper tells it too, as it does of files with one name and of directories that the real
    /// tree still has.
    pub told: bool,
}

/// A real file of which a new name is a hard link, at a name of its own in the view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Twin {
    /// That name.
    pub path: RelPath,
    /// The real file as it was when compared.
    pub real: Attr,
    /// Whether the set has a change of that name, without which the two are not the same.
    pub changed: bool,
}

/// Compares every candidate of `set` with the real object. What does not differ is dropped; what an opaque directory
/// hides becomes changes of its own. The result is ordered by root, then path.
///
/// # Errors
/// When an object cannot be read.
pub fn settle(roots: &[RootDirs], set: &ChangeSet) -> Result<Vec<Settled>> {
    let (changes, done) = as_in_place_where_moved(roots, &set.changes)?;
    let mut candidates = as_new_where_claimed(changes);
    for dirs in roots {
        expand_opaque(dirs, &mut candidates)?;
    }
    let resolver = Resolver::new(&candidates);
    let compare_all = |some: &[Change]| -> Result<Vec<Settled>> {
        let mut finders = BTreeMap::new();
        let mut settled = Vec::with_capacity(some.len());
        for change in some {
            let dirs = root_of(roots, change.root)?;
            let finder = finders
                .entry(change.root)
                .or_insert_with(|| (Finder::new(dirs.real.as_fd()), Finder::new(dirs.upper.as_fd())));
            let moved = !done.is_empty() && done.contains(&(change.root, change.path.clone()));
            let one = compare(dirs, finder, &resolver, change, moved)
                .map_err(|e| Error::on_path("compare", change.path.as_bytes(), e))?;
            settled.extend(one);
        }
        Ok(settled)
    };
    let mut settled = in_parts(&candidates, compare_all)?;
    settled.sort_by(|a, b| (a.change.root, &a.change.path).cmp(&(b.change.root, &b.change.path)));
    group_links(&mut settled);
    find_twins(roots, &mut settled)?;
    Ok(settled)
}

/// Names of roots by their number.
type Names = BTreeSet<(u16, RelPath)>;

/// What the session and the real tree have renamed alike is not renamed any more, but a change, or none, of what is now at
/// the new name; and what was beneath the old name is beneath the new one. Returned with the new names of such renames.
fn as_in_place_where_moved(roots: &[RootDirs], changes: &[Change]) -> Result<(Vec<Change>, Names)> {
    let mut changes = changes.to_vec();
    let mut done = BTreeSet::new();
    let renames: Vec<usize> = (0..changes.len()).filter(|&i| changes[i].what == What::Renamed).collect();
    // Directories come before what is in them.
    for i in renames {
        let (c, Some(from)) = (&changes[i], changes[i].from.clone()) else { continue };
        let dirs = root_of(roots, c.root)?;
        let moved = has_moved(dirs, &changes, c, &from);
        if !moved.map_err(|e| Error::on_path("compare", c.path.as_bytes(), e))? {
            continue;
        }
        let (root, to) = (c.root, c.path.clone());
        done.insert((root, to.clone()));
        let what = if c.kind == Kind::Dir { What::Meta } else { What::Modified };
        changes[i] = Change { what, from: None, content: true, meta: true, ..changes[i].clone() };
        for other in changes.iter_mut().filter(|c| c.root == root) {
            if let Some(rest) = other.from.as_ref().and_then(|f| f.strip_prefix(&from)) {
                other.from = Some(under(&to, &rest));
            }
        }
    }
    Ok((changes, done))
}

/// Whether the real object that the session renamed is gone from its old name and is at the new one, as it was.
fn has_moved(dirs: &RootDirs, changes: &[Change], c: &Change, from: &RelPath) -> Sys<bool> {
    let Some(base) = &c.base else { return Ok(false) };
    if objects::stat(dirs.real.as_fd(), from)?.is_some() {
        return Ok(false);
    }
    let Some(slot) = Resolver::new(changes).slot(c.root, &c.path) else { return Ok(false) };
    // An inode number alone may be another object's by now.
    let same = |a: &Attr| (a.dev, a.ino, a.kind, a.mtime) == (base.dev, base.ino, base.kind, base.mtime);
    Ok(objects::stat(dirs.real.as_fd(), &slot)?.is_some_and(|a| same(&a) && a.size == base.size))
}

/// Something at a place whose real object was renamed away, itself or with a directory above it, is new there, whatever the
/// candidate calls it.
fn as_new_where_claimed(mut changes: Vec<Change>) -> Vec<Change> {
    let resolver = Resolver::new(&changes);
    let is_new = |c: &Change| match c.what {
        What::Deleted | What::Renamed => false,
        what => match resolver.slot(c.root, &c.path) {
            None => what == What::Added,
            Some(real) => resolver.shows_at(c.root, &real) != c.path,
        },
    };
    let new: Vec<usize> = (0..changes.len()).filter(|&i| is_new(&changes[i])).collect();
    for i in new {
        let c = &mut changes[i];
        (c.what, c.base, c.opaque) = (What::Added, None, false);
    }
    changes
}

/// Replaces the candidates beneath each opaque directory by those that a comparison of both directories gives.
fn expand_opaque(dirs: &RootDirs, candidates: &mut Vec<Change>) -> Result<()> {
    let is_opaque = |c: &Change| -> Sys<bool> {
        let candidate = c.root == dirs.root && c.opaque && c.kind == Kind::Dir && c.what != What::Added;
        if !candidate {
            return Ok(false);
        }
        Ok(match Object::find(dirs.upper.as_fd(), &c.path)? {
            Some(object) if object.attr.kind == Kind::Dir => scan::is_opaque(dirs, &object)?,
            _ => false,
        })
    };
    let mut found = Vec::new();
    for c in candidates.iter() {
        if is_opaque(c).map_err(|e| Error::on_path("look at", c.path.as_bytes(), e))? {
            found.push(c.clone());
        }
    }
    for top in found {
        let resolver = Resolver::new(candidates.iter());
        let Some(real) = resolver.slot(dirs.root, &top.path) else { continue };
        let mut expansion = Expansion { dirs, resolver: &resolver, top: &top, out: Vec::new() };
        expansion
            .directory(&top.path, &real)
            .map_err(|e| Error::on_path("compare the directory", top.path.as_bytes(), e))?;
        let made = expansion.out;
        let known: BTreeSet<RelPath> = made.iter().map(|c| c.path.clone()).collect();
        candidates.retain(|c| c.root != dirs.root || !known.contains(&c.path));
        candidates.extend(made);
    }
    Ok(())
}

struct Expansion<'a> {
    dirs: &'a RootDirs,
    resolver: &'a Resolver<'a>,
    top: &'a Change,
    out: Vec<Change>,
}

impl Expansion<'_> {
    fn directory(&mut self, path: &RelPath, real: &RelPath) -> Sys<()> {
        let root = self.dirs.root;
        let mut names: BTreeSet<Box<[u8]>> =
            objects::names(self.dirs.upper.as_fd(), path)?.into_iter().collect();
        names.extend(objects::names(self.dirs.real.as_fd(), real)?);
        for name in names {
            if name.starts_with(layer::WH_PREFIX)
                && self.dirs.features.whiteout == layer::WhiteoutForm::Prefix
            {
                continue;
            }
            let (here, below) = (path.join(&name), real.join(&name));
            if self.resolver.at(root, &here).is_some_and(|c| c.what == What::Renamed) {
                continue;
            }
            let upper = objects::stat(self.dirs.upper.as_fd(), &here)?.filter(|a| !a.is_whiteout());
            let lower = match self.resolver.is_claimed(root, &below) {
                true => None,
                false => objects::stat(self.dirs.real.as_fd(), &below)?,
            };
            match (upper, lower) {
                (None, None) => {}
                (None, Some(lower)) => self.push(here, What::Deleted, lower.kind),
                (Some(upper), None) => self.added(here, upper.kind)?,
                (Some(upper), Some(lower)) if upper.kind != lower.kind => {
                    self.push(here.clone(), What::Typed, upper.kind);
                    if upper.kind == Kind::Dir {
                        self.added_children(&here)?;
                    }
                }
                // Its candidates stand: it is merged with the real directory, not hidden with its parent.
                (Some(upper), Some(_)) if upper.kind == Kind::Dir && self.came_back(&here, &below)? => {}
                (Some(upper), Some(_)) => {
                    self.push(here.clone(), What::Modified, upper.kind);
                    if upper.kind == Kind::Dir {
                        self.directory(&here, &below)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn came_back(&self, path: &RelPath, real: &RelPath) -> Sys<bool> {
        let Some(object) = Object::find(self.dirs.upper.as_fd(), path)? else { return Ok(false) };
        let parent = real.parent().unwrap_or_default();
        Ok(layer::read_redirect(object.fd.as_fd(), &parent)?.as_ref() == Some(real))
    }

    fn added(&mut self, path: RelPath, kind: Kind) -> Sys<()> {
        if self.resolver.at(self.dirs.root, &path).is_some_and(|c| c.what == What::Renamed) {
            return Ok(());
        }
        self.push(path.clone(), What::Added, kind);
        if kind == Kind::Dir { self.added_children(&path) } else { Ok(()) }
    }

    fn added_children(&mut self, dir: &RelPath) -> Sys<()> {
        for name in objects::names(self.dirs.upper.as_fd(), dir)? {
            let path = dir.join(&name);
            if let Some(attr) = objects::stat(self.dirs.upper.as_fd(), &path)?.filter(|a| !a.is_whiteout()) {
                self.added(path, attr.kind)?;
            }
        }
        Ok(())
    }

    fn push(&mut self, path: RelPath, what: What, kind: Kind) {
        let known = self.resolver.at(self.dirs.root, &path);
        self.out.push(Change {
            root: self.dirs.root,
            what,
            from: None,
            kind,
            base: known.and_then(|c| c.base.clone()),
            content: kind != Kind::Dir,
            meta: kind != Kind::Dir,
            opaque: false,
            last: known.map_or(self.top.last, |c| c.last),
            path,
        });
    }
}

/// `moved`: the real tree has done the same rename, so that the change is to leave the session even if nothing differs.
fn compare(
    dirs: &RootDirs,
    finder: &mut (Finder<'_>, Finder<'_>),
    resolver: &Resolver<'_>,
    c: &Change,
    moved: bool,
) -> Sys<Option<Settled>> {
    let (in_real, in_upper) = finder;
    let slot = match c.what {
        What::Renamed => c.from.clone(),
        _ => resolver.slot(c.root, &c.path),
    };
    let claimed = c.what != What::Renamed && slot.as_ref().is_some_and(|s| resolver.is_claimed(c.root, s));
    let real = match &slot {
        Some(path) if !claimed => in_real.stat(path)?,
        _ => None,
    };
    let upper = match c.what {
        What::Deleted => None,
        _ => in_upper.stat(&c.path)?.filter(|a| !a.is_whiteout()),
    };
    let over = match (c.what, resolver.slot(c.root, &c.path)) {
        (What::Renamed, Some(at)) => in_real.stat(&at)?,
        _ => None,
    };
    let mut out = Settled {
        change: c.clone(),
        content: true,
        meta: MetaDiff::default(),
        size_old: real.map_or(0, |a| a.size),
        size_new: upper.map_or(0, |a| a.size),
        link_group: None,
        real_path: slot.clone().filter(|_| real.is_some()),
        real,
        upper,
        same_file: false,
        twin: None,
        over,
        told: false,
    };
    let Some(upper) = upper else {
        // Nothing in the upper: a deletion, or a candidate whose object is not there any more.
        let deleted = c.what == What::Deleted && real.is_some();
        return Ok(deleted.then_some(out));
    };
    out.change.kind = upper.kind;
    out.told = dirs.features.xattr && is_told(real.as_ref(), &upper);
    let Some(real) = real else {
        if c.what != What::Renamed {
            out.change.what = What::Added;
        }
        out.content = upper.kind != Kind::Dir;
        return Ok(Some(finish(out)));
    };
    if real.kind != upper.kind {
        if !matches!(c.what, What::Added | What::Renamed) {
            out.change.what = What::Typed;
        }
        return Ok(Some(finish(out)));
    }
    let found = (slot.as_ref().map_or(Ok(None), |slot| in_real.find(slot))?, in_upper.find(&c.path)?);
    let (Some(real), Some(upper)) = found else {
        // Gone since it was looked at.
        return compare(dirs, finder, resolver, c, moved);
    };
    let dir_mtime = c.meta && matches!(c.what, What::Meta | What::Modified | What::Renamed) && c.last.seq > 0;
    out.meta = MetaDiff::of(&real, &upper, dirs, dir_mtime)?;
    out.content = !objects::same_content(&real, &upper)?;
    if upper.attr.kind == Kind::File {
        let origin = layer::read_origin(upper.fd.as_fd())?;
        out.same_file = origin.is_some_and(|o| Some(&o.path) == out.real_path.as_ref());
    }
    let differs = out.content || !out.meta.is_empty();
    match c.what {
        What::Renamed => {}
        _ if !differs && !moved => return Ok(None),
        What::Added if upper.attr.kind != Kind::Dir => {}
        _ if out.content => out.change.what = What::Modified,
        _ => out.change.what = What::Meta,
    }
    Ok(Some(finish(out)))
}

fn is_told(real: Option<&Attr>, upper: &Attr) -> bool {
    real.is_some_and(|real| match (real.kind, upper.kind) {
        (Kind::File, Kind::File) => real.nlink == 1 && upper.nlink == 1,
        (Kind::Dir, Kind::Dir) => true,
        (old, new) => old != new,
    })
}

fn finish(mut settled: Settled) -> Settled {
    settled.change.content = settled.content;
    settled.change.meta = !settled.meta.is_empty();
    settled
}

fn group_links(settled: &mut [Settled]) {
    let key = |s: &Settled| {
        let attr = s.upper.filter(|a| a.kind != Kind::Dir && a.nlink > 1)?;
        // A rename alone moves the real file with all its links.
        let moved_only = s.change.what == What::Renamed && !s.content;
        (!moved_only).then_some((attr.dev, attr.ino))
    };
    let mut count: BTreeMap<(u64, u64), usize> = BTreeMap::new();
    for id in settled.iter().filter_map(key) {
        *count.entry(id).or_default() += 1;
    }
    for s in settled {
        s.link_group = key(s).filter(|id| count.get(id).is_some_and(|&n| n > 1));
    }
}

/// Finds the new names of real files that stay what they are, or are changed in place.
fn find_twins(roots: &[RootDirs], settled: &mut [Settled]) -> Result<()> {
    let is_candidate = |s: &Settled| {
        let several = s.upper.is_some_and(|a| a.kind == Kind::File && a.nlink > 1);
        several && !s.same_file && matches!(s.change.what, What::Added | What::Modified | What::Typed)
    };
    let candidates: Vec<usize> = (0..settled.len()).filter(|&i| is_candidate(&settled[i])).collect();
    if candidates.is_empty() {
        return Ok(());
    }
    let resolver = Resolver::new(settled.iter().map(|s| &s.change));
    let mut twins = Vec::new();
    for i in candidates {
        let dirs = root_of(roots, settled[i].change.root)?;
        let twin = twin_of(dirs, &resolver, settled, i)
            .map_err(|e| Error::on_path("compare", settled[i].change.path.as_bytes(), e))?;
        twins.extend(twin.map(|twin| (i, twin)));
    }
    for (i, twin) in twins {
        settled[i].twin = Some(twin);
    }
    Ok(())
}

fn twin_of(dirs: &RootDirs, resolver: &Resolver<'_>, settled: &[Settled], i: usize) -> Sys<Option<Twin>> {
    let s = &settled[i];
    let Some(object) = Object::find(dirs.upper.as_fd(), &s.change.path)? else { return Ok(None) };
    let Some(origin) = layer::read_origin(object.fd.as_fd())? else { return Ok(None) };
    let path = resolver.shows_at(s.change.root, &origin.path);
    if path == s.change.path {
        return Ok(None);
    }
    let there = objects::stat(dirs.upper.as_fd(), &path)?;
    if there.is_none_or(|a| (a.dev, a.ino) != (object.attr.dev, object.attr.ino)) {
        return Ok(None);
    }
    let Some(real) = objects::stat(dirs.real.as_fd(), &origin.path)? else { return Ok(None) };
    let key = (s.change.root, &path);
    let change = settled.binary_search_by(|s| (s.change.root, &s.change.path).cmp(&key)).ok();
    let stays = change.map(|c| &settled[c]).is_none_or(|c| match c.change.what {
        What::Meta => true,
        What::Modified | What::Renamed => !c.content || (c.same_file && real.nlink > 1),
        What::Added | What::Deleted | What::Typed => false,
    });
    Ok((real.kind == Kind::File && stays).then(|| Twin { path, real, changed: change.is_some() }))
}

/// One path on which two views of the same session do not agree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disagreement {
    /// Which root.
    pub root: u16,
    /// Where.
    pub path: RelPath,
    /// What the fold of the journal says: the kind of change and, of a rename, the old path.
    pub fold: Option<(What, Option<RelPath>)>,
    /// What the scan of the upper says.
    pub scan: Option<(What, Option<RelPath>)>,
}

/// Compares two settled sets as sets of (root, path, what, from). Two things that an upper cannot tell count as
/// equal: a rename of what holds no mark, and a deletion with an addition; a directory of which only the mtime was set,
/// and no change. And what is new in the session is a change of whatever the real tree has there by now.
pub fn agree(fold: &[Settled], scan: &[Settled]) -> Vec<Disagreement> {
    let (fold_map, scan_map) = (by_path(fold), by_path(scan));
    let fold_split = split_renames(&fold_map, &scan_map, fold);
    let scan_split = split_renames(&scan_map, &fold_map, scan);
    let keys: BTreeSet<_> = fold_split.keys().chain(scan_split.keys()).cloned().collect();
    keys.into_iter()
        .filter(|key| fold_split.get(key) != scan_split.get(key) && fold_map.get(key) != scan_map.get(key))
        .map(|(root, path)| Disagreement {
            root,
            fold: fold_map.get(&(root, path.clone())).cloned(),
            scan: scan_map.get(&(root, path.clone())).cloned(),
            path,
        })
        .collect()
}

type Outcome = BTreeMap<(u16, RelPath), (What, Option<RelPath>)>;

fn by_path(set: &[Settled]) -> Outcome {
    let only_dir_mtime = |s: &&Settled| {
        let rest = MetaDiff { mtime: None, ..s.meta.clone() };
        s.change.what == What::Meta && s.change.kind == Kind::Dir && rest.is_empty()
    };
    set.iter()
        .filter(|s| !only_dir_mtime(s))
        .map(|s| ((s.change.root, s.change.path.clone()), (what_by_now(s), s.change.from.clone())))
        .collect()
}

fn what_by_now(s: &Settled) -> What {
    match (s.change.what, &s.real) {
        (What::Added, Some(real)) if real.kind == s.change.kind => What::Modified,
        (What::Added, Some(_)) => What::Typed,
        (what, _) => what,
    }
}

/// Turns each rename that `other` does not have into a deletion and an addition.
fn split_renames(map: &Outcome, other: &Outcome, set: &[Settled]) -> Outcome {
    let names = |is: fn(&Settled) -> bool| -> Names {
        set.iter().filter(|s| is(s)).map(|s| (s.change.root, s.change.path.clone())).collect()
    };
    let told = names(|s| s.told);
    // What took the place of something of the same type.
    let replacing = names(|s| s.change.kind != Kind::Dir && s.over.is_some_and(|o| o.kind == s.change.kind));
    let mut out = Outcome::new();
    let mut replaced = Vec::new();
    for ((root, path), (what, from)) in map {
        let key = (*root, path.clone());
        let theirs = other.get(&key);
        let differs = *what == What::Renamed && theirs != map.get(&key) && !told.contains(&key);
        let Some(from) = from.as_ref().filter(|_| differs) else {
            out.insert(key, (*what, from.clone()));
            continue;
        };
        let old = merged_place(map, *root, from);
        let old_key = (*root, old.clone());
        // What took the place of something is Modified or Typed there, when no rename is seen; or nothing, when it is
        // just like that (a fifo exchanged with a fifo), but for its times maybe (a symlink with the same target).
        match theirs.map(|t| t.0) {
            Some(w @ (What::Modified | What::Typed)) => drop(out.insert(key, (w, None))),
            Some(What::Meta) if replacing.contains(&key) => drop(out.insert(key, (What::Meta, None))),
            None if replacing.contains(&key) => {}
            _ => drop(out.insert(key, (What::Added, None))),
        }
        // What was made where it was is a change of it, when it is not seen to have moved.
        let made = map.get(&old_key).is_some_and(|m| m.0 == What::Added);
        if made && let Some(w @ (What::Modified | What::Typed)) = other.get(&old_key).map(|t| t.0) {
            replaced.push((old_key, w));
        }
        let subsumed = ancestors(&old)
            .any(|dir| map.get(&(*root, dir)).is_some_and(|(w, _)| matches!(w, What::Deleted | What::Typed)));
        if !subsumed && !map.contains_key(&(*root, old.clone())) {
            out.insert((*root, old), (What::Deleted, None));
        }
    }
    out.extend(replaced.into_iter().map(|(key, what)| (key, (what, None))));
    out
}

/// Where the real path `real` shows in the merged view, were it not for its own change.
fn merged_place(map: &Outcome, root: u16, real: &RelPath) -> RelPath {
    for dir in ancestors(real) {
        let moved = map.iter().find(|((r, _), (what, from))| {
            *r == root && *what == What::Renamed && from.as_ref() == Some(&dir)
        });
        if let (Some(((_, to), _)), Some(rest)) = (moved, real.strip_prefix(&dir)) {
            return under(to, &rest);
        }
    }
    real.clone()
}

/// A settled change by hand, for callers that know both sides already.
#[cfg(test)]
pub(crate) fn for_test(path: &str, what: What, kind: Kind, from: Option<&str>) -> Settled {
    let rel = |p: &str| RelPath::new(p.as_bytes()).unwrap();
    let change = Change {
        root: 0,
        path: rel(path),
        what,
        from: from.map(rel),
        kind,
        base: None,
        content: true,
        meta: false,
        opaque: false,
        last: crate::base::ProcRef::default(),
    };
    Settled {
        real_path: (what != What::Added).then(|| change.from.clone().unwrap_or(change.path.clone())),
        change,
        content: !(kind == Kind::Dir || what == What::Renamed),
        meta: MetaDiff::default(),
        size_old: 0,
        size_new: 0,
        link_group: None,
        real: None,
        upper: None,
        same_file: false,
        twin: None,
        over: None,
        told: true,
    }
}
