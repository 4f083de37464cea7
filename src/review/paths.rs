//! Where the object of a change lies in the real tree, worked out from the set of changes alone.

use crate::base::{Change, ChangeSet, Kind, RelPath, What};
use std::collections::{BTreeMap, BTreeSet};

/// `base` with `rest` beneath it; `base` itself when `rest` is empty.
pub(crate) fn under(base: &RelPath, rest: &RelPath) -> RelPath {
    if rest.is_root() { base.clone() } else { base.join(rest.as_bytes()) }
}

/// The ancestors of `path` from its parent up to, and with, the root.
pub(crate) fn ancestors(path: &RelPath) -> impl Iterator<Item = RelPath> {
    std::iter::successors(path.parent(), RelPath::parent)
}

/// Where the real path `real` shows in the merged view of a session with these changes, were it not for its own: beneath
/// the nearest directory above it that was renamed.
pub fn merged(set: &ChangeSet, root: u16, real: &RelPath) -> RelPath {
    Resolver::new(&set.changes).merged(root, real)
}

/// Answers questions about a set of changes by path.
pub(crate) struct Resolver<'a> {
    /// Ordered by root, then path.
    changes: Vec<&'a Change>,
    /// The directories among them that are not the real ones of their place: few, and asked for at every step.
    dirs: BTreeMap<(u16, &'a [u8]), &'a Change>,
    claimed: BTreeMap<(u16, &'a RelPath), &'a RelPath>,
}

impl<'a> Resolver<'a> {
    pub fn new(changes: impl IntoIterator<Item = &'a Change>) -> Self {
        let mut changes: Vec<&Change> = changes.into_iter().collect();
        let order = |a: &&Change, b: &&Change| (a.root, &a.path).cmp(&(b.root, &b.path));
        if !changes.is_sorted_by(|a, b| order(a, b).is_le()) {
            changes.sort_by(order);
        }
        let mut resolver = Resolver { changes, dirs: BTreeMap::new(), claimed: BTreeMap::new() };
        for c in &resolver.changes {
            // The type that a fold gives a rename may be a guess.
            let is_dir = match c.what {
                What::Renamed | What::Typed => true,
                What::Added => c.kind == Kind::Dir,
                _ => false,
            };
            if is_dir {
                resolver.dirs.insert((c.root, c.path.as_bytes()), c);
            }
            if let (What::Renamed, Some(from)) = (c.what, &c.from) {
                resolver.claimed.insert((c.root, from), &c.path);
            }
        }
        resolver
    }

    /// The change at exactly `path`.
    pub fn at(&self, root: u16, path: &RelPath) -> Option<&'a Change> {
        let at = self.changes.binary_search_by(|c| (c.root, &c.path).cmp(&(root, path))).ok()?;
        self.changes.get(at).copied()
    }

    /// Whether the object at the real path `real` was renamed away.
    pub fn is_claimed(&self, root: u16, real: &RelPath) -> bool {
        self.claimed.contains_key(&(root, real))
    }

    /// Renames whose real path is `dir` or lies beneath it: their new paths.
    pub fn claimed_within<'s>(
        &'s self,
        root: u16,
        dir: &'s RelPath,
    ) -> impl Iterator<Item = &'s RelPath> + 's {
        let claimed: &'s BTreeMap<(u16, &'s RelPath), &'s RelPath> = &self.claimed;
        claimed
            .range((root, dir)..)
            .take_while(move |((r, from), _)| *r == root && (from.starts_with(dir) || sibling(from, dir)))
            .filter(move |((_, from), _)| from.starts_with(dir))
            .map(|(_, to)| *to)
    }

    /// Where the name `path` of the merged view lies in the real tree as far as its directories say; `None` beneath
    /// a directory that the real tree does not have.
    pub fn slot(&self, root: u16, path: &RelPath) -> Option<RelPath> {
        let mut dir = path.as_bytes();
        while let Some(cut) = dir.iter().rposition(|&b| b == b'/') {
            dir = &dir[..cut];
            let Some(change) = self.dirs.get(&(root, dir)) else { continue };
            return match &change.from {
                Some(from) if change.what == What::Renamed => {
                    path.strip_prefix(&change.path).map(|rest| under(from, &rest))
                }
                _ => None,
            };
        }
        Some(path.clone())
    }

    /// Where the real object of what is now at `path` lies; `None` for what is new in the session.
    pub fn real_of(&self, root: u16, path: &RelPath) -> Option<RelPath> {
        match self.at(root, path) {
            Some(Change { what: What::Renamed, from: Some(from), .. }) => Some(from.clone()),
            Some(Change { what: What::Added, .. }) => None,
            _ => self.slot(root, path),
        }
    }

    /// Where the real path `real` shows in the merged view as far as its directories say, or would were it not gone.
    pub fn merged(&self, root: u16, real: &RelPath) -> RelPath {
        if self.claimed.is_empty() {
            return real.clone();
        }
        for dir in ancestors(real) {
            if let Some(to) = self.claimed.get(&(root, &dir))
                && let Some(rest) = real.strip_prefix(&dir)
            {
                return under(to, &rest);
            }
        }
        real.clone()
    }

    /// Where the object at the real path `real` is in the merged view, or would be were it not gone: where it was renamed to,
    /// alone or with a directory above it.
    pub fn shows_at(&self, root: u16, real: &RelPath) -> RelPath {
        match self.claimed.get(&(root, real)) {
            Some(&to) => to.clone(),
            None => self.merged(root, real),
        }
    }

    /// Changes at `dir` or beneath it, in order of path.
    pub fn beneath<'s>(&'s self, root: u16, dir: &'s RelPath) -> impl Iterator<Item = &'s Change> + 's {
        let from = self.changes.partition_point(|c| (c.root, &c.path) < (root, dir));
        self.changes[from..]
            .iter()
            .take_while(move |c| c.root == root && (c.path.starts_with(dir) || sibling(&c.path, dir)))
            .filter(move |c| c.path.starts_with(dir))
            .copied()
    }
}

/// Bytewise order puts `a-b` between `a` and `a/c`, so a range over what is beneath `a` must step over it.
fn sibling(path: &RelPath, dir: &RelPath) -> bool {
    path.as_bytes().starts_with(dir.as_bytes())
        && path.as_bytes().get(dir.as_bytes().len()).is_some_and(|&b| b < b'/')
}

/// Directories of the set that did not exist or were elsewhere before: what lies beneath them depends on them.
pub(crate) fn is_new_dir(change: &Change) -> bool {
    change.kind == Kind::Dir && matches!(change.what, What::Added | What::Typed | What::Renamed)
}

/// The set of real paths that are gone from their place, by deletion, replacement or rename.
pub(crate) type Hidden = BTreeSet<(u16, RelPath)>;
