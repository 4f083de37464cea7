//! Taking changes out of a session: because they are unwanted, or because the real tree has them now.

use super::objects::Object;
use super::paths::Resolver;
use super::plan::Selection;
use super::settle::{MetaDiff, Settled};
use super::{RootDirs, objects, root_of};
use crate::base::{Attr, Change, Error, Kind, RelPath, Result, Sys, Time, What};
use crate::layer;
use std::collections::BTreeMap;
use std::os::fd::AsFd;

/// Which state of a session's object a decision was made on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Inode number in the upper.
    pub ino: u64,
    /// Its last change.
    pub ctime: Time,
}

/// Takes one change out of a session: off line by editing the upper, or through a live server.
pub trait Dropper {
    /// The change at exactly `path` leaves, of a rename both ends; changes beneath a directory stay. False when the
    /// session's object is not the one `seen`: then nothing was done.
    ///
    /// # Errors
    /// When the session's files cannot be edited.
    fn drop(&mut self, root: u16, path: &RelPath, seen: Option<Seen>) -> Result<bool>;
}

/// Paths of changes that left the session, and of those that did not because they changed again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Discarded {
    /// Gone from the session.
    pub dropped: Vec<(u16, RelPath)>,
    /// Still in it.
    pub kept: Vec<(u16, RelPath)>,
}

/// Discards what `selection` takes of `set`.
///
/// # Errors
/// When something that is not selected lives in, or was moved out of, what would go; nothing is discarded then.
pub fn discard(
    roots: &[RootDirs],
    set: &[Settled],
    selection: &Selection,
    dropper: &mut dyn Dropper,
) -> Result<Discarded> {
    let chosen = may_go(set, selection)?;
    let resolver = Resolver::new(set.iter().map(|s| &s.change));
    let mut out = Discarded::default();
    for s in drop_order(&chosen) {
        let c = &s.change;
        let place = (c.root, c.path.clone());
        if c.kind == Kind::Dir && c.what == What::Renamed {
            drop_unchanged(root_of(roots, c.root)?, &resolver, c, dropper)?;
        }
        if dropper.drop(c.root, &c.path, seen_of(s))? {
            out.dropped.push(place)
        } else {
            out.kept.push(place)
        }
    }
    Ok(out)
}

/// What `selection` takes of `set`, if it can be discarded without the rest.
///
/// # Errors
/// When something that is not selected lives in, or was moved out of, what would go.
pub fn may_go(set: &[Settled], selection: &Selection) -> Result<Vec<Settled>> {
    let chosen: Vec<Settled> = set.iter().filter(|s| selection.takes(s)).cloned().collect();
    let resolver = Resolver::new(set.iter().map(|s| &s.change));
    let takes = |c: &Change| set_at(set, c.root, &c.path).is_some_and(|s| selection.takes(s));
    for s in &chosen {
        let c = &s.change;
        let makes_dir = c.kind == Kind::Dir && matches!(c.what, What::Added | What::Renamed | What::Typed);
        if makes_dir {
            let inside: Vec<&Change> =
                resolver.beneath(c.root, &c.path).filter(|i| i.path != c.path && !takes(i)).collect();
            refuse(c, "it has changes inside that would be lost", &inside)?;
        }
        if let Some(from) = &c.from {
            let old = resolver.merged(c.root, from);
            let there: Vec<&Change> =
                resolver.at(c.root, &old).into_iter().filter(|t| t.path != c.path && !takes(t)).collect();
            refuse(c, "its old name was taken again", &there)?;
        }
        if matches!(c.what, What::Deleted | What::Typed | What::Renamed)
            && let Some(real) = &s.real_path
        {
            let moved: Vec<&Change> = resolver
                .claimed_within(c.root, real)
                .filter_map(|to| resolver.at(c.root, to))
                .filter(|m| m.from.as_ref() != Some(real) && !takes(m))
                .collect();
            refuse(c, "something was moved out of it", &moved)?;
        }
    }
    Ok(chosen)
}

/// Takes out what lies beneath a renamed directory that goes back, and is no change: files copied up that are like the real
/// ones, and merged directories. Where it was, it would be an addition.
fn drop_unchanged(
    dirs: &RootDirs,
    resolver: &Resolver<'_>,
    c: &Change,
    dropper: &mut dyn Dropper,
) -> Result<()> {
    let mut found = Vec::new();
    objects::walk(dirs.upper.as_fd(), &c.path, &mut |path, attr| {
        let is_mark = attr.is_whiteout() || path.file_name().is_some_and(|n| n.starts_with(layer::WH_PREFIX));
        if !is_mark && resolver.at(c.root, path).is_none() {
            found.push((path.clone(), attr.kind));
        }
        Ok(())
    })
    .map_err(|e| Error::on_path("look into", c.path.as_bytes(), e))?;
    // What is in a directory comes after it.
    for (path, kind) in found.iter().rev() {
        let seen = match kind {
            Kind::Dir => None,
            _ => {
                let same = unchanged(dirs, resolver, c.root, path);
                let same = same.map_err(|e| Error::on_path("compare", path.as_bytes(), e))?;
                // Changed since the changes were settled: it stays.
                let Some(attr) = same else { continue };
                Some(Seen { ino: attr.ino, ctime: attr.ctime })
            }
        };
        dropper.drop(c.root, path, seen)?;
    }
    Ok(())
}

/// The upper object at `path` if it is like the real one there.
fn unchanged(dirs: &RootDirs, resolver: &Resolver<'_>, root: u16, path: &RelPath) -> Sys<Option<Attr>> {
    let Some(slot) = resolver.slot(root, path) else { return Ok(None) };
    let upper = Object::find(dirs.upper.as_fd(), path)?;
    let (Some(upper), Some(real)) = (upper, Object::find(dirs.real.as_fd(), &slot)?) else { return Ok(None) };
    let same = upper.attr.kind == real.attr.kind
        && MetaDiff::of(&real, &upper, dirs, false)?.is_empty()
        && objects::same_content(&real, &upper)?;
    Ok(same.then_some(upper.attr))
}

fn set_at<'a>(set: &'a [Settled], root: u16, path: &RelPath) -> Option<&'a Settled> {
    let at = set.binary_search_by(|s| (s.change.root, &s.change.path).cmp(&(root, path))).ok()?;
    set.get(at)
}

fn refuse(c: &Change, why: &str, others: &[&Change]) -> Result<()> {
    const SHOWN: usize = 5;
    if others.is_empty() {
        return Ok(());
    }
    let names: Vec<String> = others.iter().take(SHOWN).map(|o| o.path.to_string()).collect();
    let more = match others.len().saturating_sub(SHOWN) {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    Err(Error::failure(format!("cannot discard {} alone: {why}", c.path))
        .hint(format!("select these too: {}{more}", names.join(" "))))
}

/// What the dropper is to look for: a directory's ctime moves with every entry, so directories are not checked.
pub(crate) fn seen_of(s: &Settled) -> Option<Seen> {
    s.upper.filter(|a| a.kind != Kind::Dir).map(|a| Seen { ino: a.ino, ctime: a.ctime })
}

/// The order in which changes leave: what lies in a directory, or was moved out of it, before the directory.
pub(crate) fn drop_order(set: &[Settled]) -> Vec<&Settled> {
    let resolver = Resolver::new(set.iter().map(|s| &s.change));
    let index: BTreeMap<(u16, &RelPath), usize> =
        set.iter().enumerate().map(|(i, s)| ((s.change.root, &s.change.path), i)).collect();
    let mut moved_out: BTreeMap<(u16, RelPath), usize> = BTreeMap::new();
    for (i, s) in set.iter().enumerate() {
        if let Some(from) = &s.change.from {
            moved_out.insert((s.change.root, resolver.merged(s.change.root, from)), i);
        }
    }
    let mut done = vec![false; set.len()];
    let mut order = Vec::with_capacity(set.len());
    // Depth first, without recursion: an index is seen once to open it and once more to close it.
    for start in 0..set.len() {
        let mut stack = vec![(start, false)];
        while let Some((i, close)) = stack.pop() {
            if close {
                order.push(&set[i]);
                continue;
            }
            if std::mem::replace(&mut done[i], true) {
                continue;
            }
            stack.push((i, true));
            let c = &set[i].change;
            if c.kind != Kind::Dir {
                continue;
            }
            let inside = resolver.beneath(c.root, &c.path).filter(|b| b.path != c.path);
            stack.extend(inside.filter_map(|b| index.get(&(b.root, &b.path))).map(|&j| (j, false)));
            let out = moved_out
                .range((c.root, c.path.clone())..)
                .take_while(|((r, p), _)| *r == c.root && p.as_bytes().starts_with(c.path.as_bytes()))
                .filter(|((_, p), _)| p.starts_with(&c.path) && *p != c.path);
            stack.extend(out.map(|(_, &j)| (j, false)));
        }
    }
    order
}

/// Why changes leave a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    /// The real tree has them now.
    Applied,
    /// They are unwanted.
    Discarded,
}
