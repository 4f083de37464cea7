//! Changes as pairs of files, the way a diff shows them: a directory becomes the files beneath it.

use super::objects;
use super::paths::{Resolver, ancestors, under};
use super::settle::Settled;
use super::{RootDirs, root_of};
use crate::base::{Error, Kind, RelPath, Result, Sys, What, quote};
use std::collections::BTreeSet;
use std::os::fd::AsFd;

/// Where one side of a pair is to be read.
pub(crate) enum Side {
    /// In the real tree.
    Real(RelPath),
    /// In the upper.
    Upper(RelPath),
}

/// One file of a diff.
pub(crate) struct Pair {
    pub root: u16,
    /// Before: always in the real tree.
    pub old: Option<Side>,
    /// After; in the real tree where a directory was moved and the file in it is as it was.
    pub new: Option<Side>,
    pub old_name: RelPath,
    pub new_name: RelPath,
    /// What a diff cannot say.
    pub notes: Vec<String>,
}

/// The pairs of `set`, in its order.
///
/// # Errors
/// When a real directory cannot be read.
pub(crate) fn pairs(roots: &[RootDirs], set: &[Settled]) -> Result<Vec<Pair>> {
    let mut maker = Maker {
        resolver: Resolver::new(set.iter().map(|s| &s.change)),
        // Real objects that have a pair of their own, or are in one by their directory.
        apart: set
            .iter()
            .filter(|s| s.change.kind != Kind::Dir || matches!(s.change.what, What::Deleted | What::Renamed))
            .filter_map(|s| Some((s.change.root, s.real_path.clone()?)))
            .collect(),
        out: Vec::new(),
    };
    for s in set {
        let dirs = root_of(roots, s.change.root)?;
        maker.one(dirs, s).map_err(|e| Error::on_path("read", s.change.path.as_bytes(), e))?;
    }
    Ok(maker.out)
}

struct Maker<'a> {
    resolver: Resolver<'a>,
    apart: BTreeSet<(u16, RelPath)>,
    out: Vec<Pair>,
}

impl Maker<'_> {
    fn one(&mut self, dirs: &RootDirs, s: &Settled) -> Sys<()> {
        let c = &s.change;
        let real = s.real_path.clone();
        let real_is_dir = s.real.is_some_and(|a| a.kind == Kind::Dir);
        let notes = notes(s);
        if let Some(real) = real.as_ref().filter(|_| matches!(c.what, What::Deleted | What::Typed)) {
            if real_is_dir {
                self.deleted_dir(dirs, real)?;
            } else {
                self.push(c.root, Some(Side::Real(real.clone())), None, real, real, Vec::new());
            }
        }
        match (c.what, c.kind) {
            (What::Deleted, _) => {}
            (What::Renamed, Kind::Dir) => {
                let from = c.from.as_ref().unwrap_or(&c.path);
                let mut notes = notes;
                notes.push(format!("directory was {}", quote(from.as_bytes())));
                self.push(c.root, None, None, &c.path, &c.path, notes);
                self.renamed_dir(dirs, from, &c.path)?;
            }
            (What::Added | What::Typed, Kind::Dir) => {
                let empty = self.resolver.beneath(c.root, &c.path).all(|b| b.path == c.path);
                if empty {
                    let notes = vec!["new empty directory".to_owned()];
                    self.push(c.root, None, None, &c.path, &c.path, notes);
                }
            }
            (_, Kind::Dir) => self.push(c.root, None, None, &c.path, &c.path, notes),
            (What::Added | What::Typed, _) => {
                self.push(c.root, None, Some(Side::Upper(c.path.clone())), &c.path, &c.path, notes);
            }
            _ => {
                let old_name = real.clone().unwrap_or_else(|| c.path.clone());
                self.push(
                    c.root,
                    real.map(Side::Real),
                    Some(Side::Upper(c.path.clone())),
                    &old_name,
                    &c.path,
                    notes,
                );
            }
        }
        Ok(())
    }

    fn push(
        &mut self,
        root: u16,
        old: Option<Side>,
        new: Option<Side>,
        old_name: &RelPath,
        new_name: &RelPath,
        notes: Vec<String>,
    ) {
        let (old_name, new_name) = (old_name.clone(), new_name.clone());
        self.out.push(Pair { root, old, new, old_name, new_name, notes });
    }

    fn deleted_dir(&mut self, dirs: &RootDirs, real: &RelPath) -> Sys<()> {
        let files = self.files_beneath(dirs, real)?;
        if files.is_empty() {
            let notes = vec!["directory deleted".to_owned()];
            self.push(dirs.root, None, None, real, real, notes);
        }
        for file in files {
            self.push(dirs.root, Some(Side::Real(file.clone())), None, &file, &file, Vec::new());
        }
        Ok(())
    }

    fn renamed_dir(&mut self, dirs: &RootDirs, from: &RelPath, to: &RelPath) -> Sys<()> {
        for file in self.files_beneath(dirs, from)? {
            let Some(rest) = file.strip_prefix(from) else { continue };
            let sides = (Some(Side::Real(file.clone())), Some(Side::Real(file.clone())));
            self.push(dirs.root, sides.0, sides.1, &file, &under(to, &rest), Vec::new());
        }
        Ok(())
    }

    /// Real files beneath the real directory `top` that share its fate, in order.
    fn files_beneath(&self, dirs: &RootDirs, top: &RelPath) -> Sys<Vec<RelPath>> {
        let mut files = Vec::new();
        objects::walk(dirs.real.as_fd(), top, &mut |path, attr| {
            let apart = std::iter::once(path.clone())
                .chain(ancestors(path).take_while(|dir| dir != top))
                .any(|p| self.apart.contains(&(dirs.root, p)));
            if !apart && attr.kind != Kind::Dir {
                files.push(path.clone());
            }
            Ok(())
        })?;
        files.sort_unstable();
        Ok(files)
    }
}

/// What differs besides content and a file's mode.
fn notes(s: &Settled) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some((old, new)) = s.meta.mode.filter(|_| s.change.kind != Kind::File) {
        notes.push(format!("mode {old:o} -> {new:o}"));
    }
    if let Some((old, new)) = s.meta.owner {
        notes.push(format!("owner {}:{} -> {}:{}", old.0, old.1, new.0, new.1));
    }
    for name in &s.meta.xattrs {
        notes.push(format!("xattr {} differs", quote(name)));
    }
    if s.meta.mtime.is_some() && !s.content && s.meta.mode.is_none() && notes.is_empty() {
        notes.push("only its modification time differs".to_owned());
    }
    notes
}
