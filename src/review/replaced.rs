//! Directories that the session made anew over real ones, and that stand between a change and the real tree.
//!
//! Such a directory hides all of the real one by one mark. Before a change beneath it leaves the session alone, it is
//! merged with the real one: whiteouts say what it hides, so that the one that leaves can leave without the others.
//!
//! And directories that the session renamed, once the real tree has renamed them: what is in them leaves before they do, and
//! is to be found meanwhile, so they are told first where the real one is by now.

use super::objects::{self, Object};
use super::offline::lower_of;
use super::{Leave, RootDirs, scan};
use crate::base::{Attr, BaseId, ChangeSet, Error, Kind, RelPath, Result, Sys, What};
use crate::layer;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;

/// The renames of a session, which say which real directories are not those of their place.
pub struct Replaced {
    why: Leave,
    /// For each rename that is still there, by its new path: its old one, and what it moved.
    renames: BTreeMap<(u16, RelPath), (RelPath, Option<BaseId>)>,
    /// Real paths of which a rename that is still there took the object, and where it is now.
    taken: BTreeMap<(u16, RelPath), RelPath>,
    /// The same real paths for all renames, also those that left.
    ever_taken: BTreeSet<(u16, RelPath)>,
    /// Directories at and above which nothing was found that needs to be merged.
    merged: BTreeSet<(u16, RelPath)>,
}

impl Replaced {
    /// Of a session with the changes `set`, some of which leave because of `why`.
    pub fn new(set: &ChangeSet, why: Leave) -> Replaced {
        let (mut renames, mut taken) = (BTreeMap::new(), BTreeMap::new());
        for c in set.changes.iter().filter(|c| c.what == What::Renamed) {
            if let Some(from) = &c.from {
                renames.insert((c.root, c.path.clone()), (from.clone(), c.base.clone()));
                taken.insert((c.root, from.clone()), c.path.clone());
            }
        }
        let ever_taken = taken.keys().cloned().collect();
        Replaced { why, renames, taken, ever_taken, merged: BTreeSet::new() }
    }

    /// The change at `path` left.
    pub fn left(&mut self, root: u16, path: &RelPath) {
        if let Some((from, _)) = self.renames.remove(&(root, path.clone())) {
            self.taken.remove(&(root, from));
        }
    }

    /// Where the session has what the real tree has at `real`, if a rename that is still there took it.
    pub(super) fn taken(&self, root: u16, real: &RelPath) -> Option<&RelPath> {
        self.taken.get(&(root, real.clone()))
    }

    /// Whether the session has, or had, the real object at `real` under another name, and the real tree still has it
    /// there.
    pub(super) fn was_elsewhere(&self, root: u16, real: &RelPath) -> bool {
        self.why == Leave::Discarded && self.ever_taken.contains(&(root, real.clone()))
    }

    /// Calls `merge` for every directory at and above `path` that is to be merged before the change at `path` leaves, from
    /// the top, with where the real one is.
    ///
    /// # Errors
    /// When a directory cannot be looked at, and what `merge` returns.
    pub fn merge_way(
        &mut self,
        dirs: &RootDirs,
        path: &RelPath,
        mut merge: impl FnMut(&RelPath, &RelPath) -> Result<()>,
    ) -> Result<()> {
        let failed = |e| Error::on_path("look at the directories of", path.as_bytes(), e);
        let above = (dirs.root, path.parent().unwrap_or_default());
        let known = self.merged.contains(&above);
        let is_dir =
            || Sys::Ok(objects::stat(dirs.upper.as_fd(), path)?.is_some_and(|a| a.kind == Kind::Dir));
        if known && !is_dir().map_err(failed)? {
            return Ok(());
        }
        let mut last = None;
        while let Some((at, real)) = self.topmost(dirs, path).map_err(failed)? {
            // It was made opaque again meanwhile, or is another.
            if last.as_ref() == Some(&at) {
                return Ok(());
            }
            merge(&at, &real)?;
            last = Some(at);
        }
        self.merged.insert(above);
        Ok(())
    }

    /// The topmost directory at or above `path` that hides a real one, and where that is.
    fn topmost(&self, dirs: &RootDirs, path: &RelPath) -> Sys<Option<(RelPath, RelPath)>> {
        match self.why {
            Leave::Applied => self.topmost_applied(dirs, path),
            Leave::Discarded => {
                let mut found = None;
                self.reveal(dirs, path, |at, real, _| {
                    found.get_or_insert_with(|| (at.clone(), real.clone()));
                    Ok(())
                })?;
                Ok(found)
            }
        }
    }

    /// As [`lower_of`], and calls `merge` for every opaque directory on the way, so that what leaves the session shows what is
    /// below. A new directory where the real one was renamed away stays as it is as long as the real tree does not have
    /// it: what is below it then belongs elsewhere.
    pub(super) fn reveal(
        &self,
        dirs: &RootDirs,
        path: &RelPath,
        mut merge: impl FnMut(&RelPath, &RelPath, &Object) -> Sys<()>,
    ) -> Sys<Option<RelPath>> {
        lower_of(dirs, path, |at, lower, object| {
            if scan::is_opaque(dirs, object)? {
                if self.was_elsewhere(dirs.root, lower) || self.taken(dirs.root, lower).is_some() {
                    return Ok(false);
                }
                merge(at, lower, object)?;
            }
            Ok(true)
        })
    }

    /// As [`Replaced::topmost`], for what the real tree has now: directories that the session renamed were renamed there
    /// before, so everything on the way has its path in both.
    fn topmost_applied(&self, dirs: &RootDirs, path: &RelPath) -> Sys<Option<(RelPath, RelPath)>> {
        let mut at = RelPath::root();
        for name in path.components() {
            let above = at.clone();
            at = at.join(name);
            let Some(object) = Object::find(dirs.upper.as_fd(), &at)? else { continue };
            if object.attr.kind != Kind::Dir {
                continue;
            }
            let Some(real) = objects::stat(dirs.real.as_fd(), &at)?.filter(is_dir) else { continue };
            if scan::is_opaque(dirs, &object)? {
                return Ok(Some((at.clone(), at)));
            }
            if let Some(shown) = layer::read_redirect(object.fd.as_fd(), &above)?
                && shown != at
                && self.was_renamed(dirs, &at, &real, &shown)?
            {
                return Ok(Some((at.clone(), at)));
            }
        }
        Ok(None)
    }

    /// Whether `real`, which the real tree has at `at`, is what it had at `shown` when the session renamed that.
    fn was_renamed(&self, dirs: &RootDirs, at: &RelPath, real: &Attr, shown: &RelPath) -> Sys<bool> {
        match self.renames.get(&(dirs.root, at.clone())) {
            Some((_, Some(base))) => Ok((base.dev, base.ino) == (real.dev, real.ino)),
            Some((_, None)) => Ok(!objects::stat(dirs.real.as_fd(), shown)?.as_ref().is_some_and(is_dir)),
            None => Ok(false),
        }
    }
}

fn is_dir(attr: &Attr) -> bool {
    attr.kind == Kind::Dir
}
