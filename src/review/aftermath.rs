//! What an undo means for the changes that the session still has: it makes real objects other than the session knows
//! them.

use super::intent::{Log, Op, Place, Space};
use super::partial::{Moved, rebase};
use super::paths::Resolver;
use super::settle::Settled;
use super::{RootDirs, compare, objects, root_of};
use crate::base::{Attr, BaseId, Change, ChangeSet, Error, Kind, RelPath, Result, What};
use objects::Object;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;

/// Largest content whose hash and bytes are noted: that of what can be merged later.
const NOTED: u64 = 128 << 10;

/// What an undo does to the real trees, as far as the session can be concerned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Aftermath {
    /// Directories that are not there any more, or elsewhere.
    gone: BTreeSet<(u16, RelPath)>,
    /// Directories that have other attributes.
    styled: BTreeSet<(u16, RelPath)>,
    /// Files that are not there any more.
    lost: BTreeSet<(u16, RelPath)>,
    /// Names that nothing has, and something has again.
    taken: BTreeSet<(u16, RelPath)>,
    /// What the application had made of files.
    applied: BTreeMap<(u16, RelPath), Attr>,
}

impl Aftermath {
    /// Of the undo of the application with this log.
    pub(super) fn of(log: &Log) -> Aftermath {
        let mut after = Aftermath::default();
        let real = |place: &Place| match place.space {
            Space::Real(root) => Some((root, place.path.clone())),
            Space::Kept => None,
        };
        // The first operation at a name tells whether it was free before, or had no file.
        let (mut met, mut free) = (BTreeSet::new(), BTreeSet::new());
        for op in &log.ops {
            let (left, entered) = match op {
                Op::Move { from, to, .. } => (vec![from], vec![to]),
                Op::Make { at, .. } => (vec![], vec![at]),
                Op::Swap { one, other, .. } => (vec![one, other], vec![]),
                Op::Bytes { at, .. } | Op::Copied { from: at, .. } | Op::Unswapped { one: at } => {
                    (vec![at], vec![])
                }
                Op::Mkdir { .. } | Op::Rmdir { .. } | Op::Attrs { .. } | Op::Times { .. } => (vec![], vec![]),
            };
            let other = match op {
                Op::Move { id, .. } | Op::Swap { one_id: id, .. } => id.kind != Kind::File,
                _ => false,
            };
            for place in left.into_iter().filter_map(real) {
                if met.insert(place.clone()) && other {
                    free.insert(place);
                }
            }
            for place in entered.into_iter().filter_map(real) {
                if met.insert(place.clone()) {
                    free.insert(place);
                }
            }
            match op {
                Op::Mkdir { at } => after.gone.extend(real(at)),
                Op::Move { to, id, .. } if id.kind == Kind::Dir => after.gone.extend(real(to)),
                Op::Attrs { at, saved } if saved.attr.kind == Kind::Dir => after.styled.extend(real(at)),
                _ => {}
            }
        }
        let files = log.after.iter().filter_map(|a| Some(((a.root, a.path.clone()), a.attr?)));
        after.taken =
            log.after.iter().filter(|a| a.attr.is_none()).map(|a| (a.root, a.path.clone())).collect();
        after.applied = files.filter(|(_, attr)| attr.kind == Kind::File).collect();
        after.lost = free.into_iter().filter(|place| after.applied.contains_key(place)).collect();
        after
    }

    /// Refuses the undo when the session has changes of what goes, or in it: they would have no place any more; or has
    /// something of its own where something comes back. `set` is what the journal folds to, and `settled` what of it differs.
    ///
    /// # Errors
    /// When it has; the hint names them.
    pub fn check(&self, roots: &[RootDirs], set: &ChangeSet, settled: &[Settled]) -> Result<()> {
        let resolver = Resolver::new(&set.changes);
        let differs: BTreeSet<_> = settled.iter().map(|s| (s.change.root, &s.change.path)).collect();
        // What left the session under another of its names is still a change for the journal, but there is nothing of it.
        let is_there = |c: &Change| -> Result<bool> {
            let upper = root_of(roots, c.root)?.upper.as_fd();
            let found = objects::stat(upper, &c.path);
            let found = found.map_err(|e| Error::on_path("look at", c.path.as_bytes(), e))?;
            Ok(found.is_some() || differs.contains(&(c.root, &c.path)))
        };
        for (root, dir) in &self.gone {
            let is_in = |c: &&Change| {
                let slot = resolver.slot(c.root, &c.path).filter(|slot| slot.starts_with(dir));
                // The directory itself may have been removed or replaced by something else.
                let needs = slot.is_some_and(|slot| slot != *dir || keeps_dir(c));
                c.root == *root && (needs || c.from.as_ref().is_some_and(|from| from.starts_with(dir)))
            };
            let why = "goes with it, and the session has changes in it";
            let mut held = Vec::new();
            for c in set.changes.iter().filter(is_in) {
                if is_there(c)? {
                    held.push(c);
                }
            }
            refuse(dir, why, held.into_iter())?;
        }
        let resolver = Resolver::new(settled.iter().map(|s| &s.change));
        let at = |c: &Change| resolver.slot(c.root, &c.path).map(|slot| (c.root, slot));
        for s in settled {
            let c = &s.change;
            // Beneath what the session removed, nobody would see what comes back, and it would go with the next application.
            let removes = matches!(c.what, What::Deleted | What::Typed) || s.over.is_some();
            if let Some((root, dir)) = at(c).filter(|_| removes) {
                let kept = self.applied.keys().filter(|place| !self.lost.contains(*place));
                let inside =
                    |(r, path): &&(u16, RelPath)| *r == root && *path != dir && path.starts_with(&dir);
                if let Some((_, path)) = self.taken.iter().chain(kept).find(inside) {
                    let why = "comes back with it, and the session has removed the directory";
                    refuse(path, why, std::iter::once(c))?;
                }
            }
            let was = c.from.clone().map(|from| (c.root, from));
            let stays = matches!(c.what, What::Modified | What::Meta);
            let source = was.or_else(|| at(c).filter(|_| stays)).filter(|place| self.lost.contains(place));
            if let Some((_, path)) = source {
                refuse(&path, "goes with it, and the session has changes of it", std::iter::once(c))?;
            }
            let was = c.from.clone().map_or_else(|| at(c), |from| Some((c.root, from)));
            let hides = matches!(c.what, What::Deleted | What::Renamed | What::Typed);
            let stays = |place: &_| self.applied.contains_key(place) && !self.lost.contains(place);
            if let Some((_, path)) = was.filter(|place| hides && stays(place)) {
                let why = "is again what it was, and the session has removed or moved it";
                refuse(&path, why, std::iter::once(c))?;
            }
            let comes = matches!(c.what, What::Added | What::Renamed);
            if let Some((_, path)) = at(c).filter(|place| comes && self.taken.contains(place)) {
                let why = "comes back with it, and the session has something else there";
                refuse(&path, why, std::iter::once(c))?;
            }
        }
        Ok(())
    }

    /// Once it is undone: directories of the upper that count as changed by now, though the session changed nothing of
    /// them, the deepest first. `set` is what the journal folds to.
    ///
    /// # Errors
    /// When an object cannot be read.
    pub fn strays(&self, roots: &[RootDirs], set: &ChangeSet) -> Result<Vec<(u16, RelPath)>> {
        if self.gone.is_empty() && self.styled.is_empty() {
            return Ok(Vec::new());
        }
        let differing = compare(roots, set)?;
        let unknown: BTreeSet<_> = differing
            .paths
            .iter()
            .filter(|d| d.fold.is_none() && matches!(d.scan, Some((What::Added | What::Meta, None))))
            .map(|d| (d.root, &d.path))
            .collect();
        let ours = |s: &&Settled| {
            let c = &s.change;
            let place = (c.root, s.real_path.clone().unwrap_or_else(|| c.path.clone()));
            c.kind == Kind::Dir
                && unknown.contains(&(c.root, &c.path))
                && (self.gone.contains(&place) || self.styled.contains(&place))
        };
        let found = differing.scan.iter().rev().filter(ours);
        Ok(found.map(|s| (s.change.root, s.change.path.clone())).collect())
    }

    /// Once it is undone: files of the session that were changes of what had been applied, and are changes of what is
    /// there now. With `resting` the upper is told; the journal is for the caller to tell.
    ///
    /// # Errors
    /// When an object cannot be read.
    pub fn moved(&self, roots: &[RootDirs], set: &[Settled], resting: bool) -> Result<Vec<Moved>> {
        let mut all = Vec::new();
        for s in set.iter().filter(|s| s.change.kind == Kind::File && s.change.what == What::Modified) {
            let (Some(real), Some(base), Some(upper)) = (&s.real_path, &s.change.base, &s.upper) else {
                continue;
            };
            let was = self.applied.get(&(s.change.root, real.clone()));
            let is_base = |a: &&Attr| (a.ino, a.size, a.mtime) == (base.ino, base.size, base.mtime);
            if was.filter(is_base).is_none() {
                continue;
            }
            let failed = |e| Error::on_path("move onto the old real file", s.change.path.as_bytes(), e);
            let dirs = root_of(roots, s.change.root)?;
            let Some(object) = Object::find(dirs.real.as_fd(), real).map_err(failed)? else { continue };
            let content = match object.attr.kind {
                Kind::File if object.attr.size <= NOTED => {
                    let bytes = object.readable().and_then(|fd| objects::read_all(fd.as_fd()));
                    Some(bytes.map_err(failed)?)
                }
                Kind::File => None,
                _ => continue,
            };
            let base: BaseId = rebase(dirs, s, content.as_deref(), resting).map_err(failed)?;
            all.push(Moved {
                root: s.change.root,
                path: s.change.path.clone(),
                real: real.clone(),
                ino: upper.ino,
                base,
                content: content.unwrap_or_default(),
            });
        }
        Ok(all)
    }
}

/// Refuses the undo because of `held`, changes of the session, if there are any.
fn refuse<'a>(path: &RelPath, why: &str, held: impl Iterator<Item = &'a Change>) -> Result<()> {
    const SHOWN: usize = 5;
    let held: Vec<String> = held.map(|c| c.path.to_string()).take(SHOWN + 1).collect();
    if held.is_empty() {
        return Ok(());
    }
    let more = if held.len() > SHOWN { " and more" } else { "" };
    let names = held.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(" ");
    Err(Error::failure(format!("cannot undo: {path} {why}"))
        .hint(format!("apply or discard these first: {names}{more}")))
}

/// Whether a change of the directory at its own path leaves a directory there that is merged with the real one.
fn keeps_dir(c: &Change) -> bool {
    c.kind == Kind::Dir && !matches!(c.what, What::Deleted | What::Renamed)
}
