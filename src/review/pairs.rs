//! Changes as pairs of files, the way a diff shows them: a directory becomes the files beneath it.

use super::objects;
use super::paths::{Resolver, ancestors, under};
use super::settle::Settled;
use super::{RootDirs, root_of};
use crate::base::{Error, Kind, RelPath, Result, Sys, What, quote};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;

/// Where one side of a pair is to be read.
pub(crate) enum Side {
    /// In the real tree.
    Real(RelPath),
    /// In the upper.
    Upper(RelPath),
}

/// One file of a diff, or a remark without one.
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
    let resolver = Resolver::new(set.iter().map(|s| &s.change));
    let mut apart = BTreeSet::new();
    for s in set {
        let c = &s.change;
        if c.kind != Kind::Dir || matches!(c.what, What::Deleted | What::Renamed | What::Typed) {
            apart.extend(s.real_path.clone().map(|path| (c.root, path)));
        }
        if c.what == What::Renamed {
            apart.extend(resolver.slot(c.root, &c.path).map(|path| (c.root, path)));
        }
    }
    let mut maker = Maker { resolver, apart, out: Vec::new() };
    for s in set {
        let dirs = root_of(roots, s.change.root)?;
        maker.one(dirs, s).map_err(|e| Error::on_path("read", s.change.path.as_bytes(), e))?;
    }
    Ok(by_name(maker.out))
}

/// What happens to each name, as git sees it: a rename whose old name is taken again, or whose new name held
/// something, is a removal and an addition; and what is removed and added under one name is a modification.
fn by_name(pairs: Vec<Pair>) -> Vec<Pair> {
    let key = |p: &Pair, name: &RelPath| (p.root, name.clone());
    let is_rename = |p: &Pair| p.old.is_some() && p.new.is_some() && p.old_name != p.new_name;
    let mut freed = BTreeSet::new();
    let mut filled = BTreeSet::new();
    for p in pairs.iter().filter(|p| is_rename(p) || p.old.is_none() != p.new.is_none()) {
        freed.extend(p.old.as_ref().map(|_| key(p, &p.old_name)));
        filled.extend(p.new.as_ref().map(|_| key(p, &p.new_name)));
    }
    let mut split = Vec::new();
    for mut p in pairs {
        if is_rename(&p) && (filled.contains(&key(&p, &p.old_name)) || freed.contains(&key(&p, &p.new_name)))
        {
            p.notes.push(format!("was {}", quote(p.old_name.as_bytes())));
            let name = std::mem::replace(&mut p.old_name, p.new_name.clone());
            let old = p.old.take();
            split.push(Pair {
                root: p.root,
                old,
                new: None,
                old_name: name.clone(),
                new_name: name,
                notes: vec![],
            });
        }
        split.push(p);
    }
    let added: BTreeSet<_> =
        split.iter().filter(|p| p.old.is_none() && p.new.is_some()).map(|p| key(p, &p.new_name)).collect();
    let mut before: BTreeMap<(u16, RelPath), Side> = BTreeMap::new();
    for p in split.iter_mut().filter(|p| p.new.is_none() && added.contains(&key(p, &p.old_name))) {
        let name = key(p, &p.old_name);
        before.extend(p.old.take().map(|side| (name, side)));
    }
    for p in split.iter_mut().filter(|p| p.old.is_none() && p.new.is_some()) {
        p.old = before.remove(&key(p, &p.new_name));
    }
    split.retain(|p| p.old.is_some() || p.new.is_some() || !p.notes.is_empty());
    split
}

struct Maker<'a> {
    resolver: Resolver<'a>,
    /// Real objects that have a pair of their own, or are in one by their directory.
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
        if c.what == What::Renamed {
            self.taken_place(dirs, &c.path)?;
        }
        match (c.what, c.kind) {
            (What::Deleted, _) => {}
            (What::Renamed, Kind::Dir) => {
                let from = c.from.as_ref().unwrap_or(&c.path);
                let mut notes = notes;
                notes.push(match *from == s.change.path {
                    true => "directory stays while the one around it moves".into(),
                    false => format!("directory was {}", quote(from.as_bytes())),
                });
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

    /// What a rename took the place of: its deletion is no change of its own.
    fn taken_place(&mut self, dirs: &RootDirs, path: &RelPath) -> Sys<()> {
        let root = dirs.root;
        let Some(slot) = self.resolver.slot(root, path).filter(|s| !self.resolver.is_claimed(root, s)) else {
            return Ok(());
        };
        match objects::stat(dirs.real.as_fd(), &slot)? {
            None => {}
            Some(attr) if attr.kind == Kind::Dir => {
                for file in self.files_beneath(dirs, &slot)? {
                    self.push(root, Some(Side::Real(file.clone())), None, &file, &file, Vec::new());
                }
            }
            Some(_) => self.push(root, Some(Side::Real(slot.clone())), None, &slot, &slot, Vec::new()),
        }
        Ok(())
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
