//! The independent truth: what an upper changes in its real tree, by the rules of overlayfs and nothing else.
//!
//! The walk gives candidates, like the fold of a journal; [`settle`](super::settle()) compares them with the real
//! bytes. What an xattr cannot tell is told differently than by a journal: a renamed symlink or fifo (which cannot
//! hold an origin) is one deleted and one added.

use super::paths::{Hidden, ancestors};
use super::settle::MetaDiff;
use super::{RootDirs, objects};
use crate::base::{Attr, Change, ChangeSet, Error, Kind, ProcRef, RelPath, Result, Sys, What};
use crate::layer::{self, Origin, WH_OPAQUE, WH_PREFIX, WhiteoutForm};
use crate::sys::file;
use objects::Object;
use std::collections::BTreeSet;
use std::os::fd::AsFd;

/// Walks the upper of every root against its real tree.
///
/// # Errors
/// When a directory of an upper or the real tree cannot be read.
pub fn scan(roots: &[RootDirs]) -> Result<ChangeSet> {
    let mut changes = Vec::new();
    for dirs in roots {
        let mut walk =
            Walk { dirs, changes: Vec::new(), back: Vec::new(), claims: Vec::new(), hidden: Hidden::new() };
        walk.top().map_err(|e| Error::on_path("examine the session's root", b".", e))?;
        let mut todo = vec![(RelPath::root(), Lower { real: Some(RelPath::root()), hidden: false })];
        while let Some((path, lower)) = todo.pop() {
            walk.directory(&path, &lower, &mut todo)
                .map_err(|e| Error::on_path("scan the session's directory", path.as_bytes(), e))?;
        }
        changes.extend(walk.finish());
    }
    changes.sort_by(|a, b| (a.root, &a.path).cmp(&(b.root, &b.path)));
    Ok(ChangeSet { changes })
}

/// An upper file whose origin may be another real path.
struct Claim {
    path: RelPath,
    origin: Origin,
    /// What is at its own place in the real tree.
    below: Option<Attr>,
    /// Whether its origin is its own place.
    in_place: bool,
    /// Whether an opaque directory hides its own place.
    hidden: bool,
    /// Whether its origin is still a regular file of the real tree.
    origin_exists: bool,
}

struct Walk<'a> {
    dirs: &'a RootDirs,
    changes: Vec<Change>,
    /// Which of them came back to where the real tree has them, and where that is.
    back: Vec<(usize, RelPath)>,
    claims: Vec<Claim>,
    hidden: Hidden,
}

/// What lies below a directory or name of the upper.
#[derive(Clone)]
struct Lower {
    /// Its real path; `None` beneath what the real tree does not have.
    real: Option<RelPath>,
    /// Whether an opaque directory on the way hides it.
    hidden: bool,
}

impl Lower {
    fn join(&self, name: &[u8]) -> Lower {
        Lower { real: self.real.as_ref().map(|r| r.join(name)), hidden: self.hidden }
    }

    fn visible(&self) -> Option<&RelPath> {
        self.real.as_ref().filter(|_| !self.hidden)
    }
}

type Todo = Vec<(RelPath, Lower)>;

impl Walk<'_> {
    fn push(&mut self, path: RelPath, what: What, kind: Kind) -> &mut Change {
        let at = self.changes.len();
        self.changes.push(Change {
            root: self.dirs.root,
            path,
            what,
            from: None,
            kind,
            base: None,
            content: !matches!(what, What::Meta | What::Deleted),
            meta: what != What::Deleted,
            opaque: false,
            last: ProcRef::default(),
        });
        &mut self.changes[at]
    }

    fn real(&self, path: &RelPath) -> Sys<Option<Attr>> {
        objects::stat(self.dirs.real.as_fd(), path)
    }

    fn hide(&mut self, real: Option<&RelPath>) {
        self.hidden.extend(real.map(|p| (self.dirs.root, p.clone())));
    }

    /// Looks at the root itself: its upper was made like the real directory, and says what that was.
    fn top(&mut self) -> Sys<()> {
        let root = RelPath::root();
        let (Some(real), Some(upper)) =
            (Object::find(self.dirs.real.as_fd(), &root)?, Object::find(self.dirs.upper.as_fd(), &root)?)
        else {
            return Ok(());
        };
        let Some(origin) = layer::read_origin(upper.fd.as_fd())? else {
            return Ok(());
        };
        let diff = MetaDiff::of(&real, &upper, self.dirs, false)?;
        let mode = diff.mode.is_some() && upper.attr.perm != origin.base.perm;
        let owner =
            diff.owner.is_some() && (upper.attr.uid, upper.attr.gid) != (origin.base.uid, origin.base.gid);
        if mode || owner || !diff.xattrs.is_empty() {
            self.push(root, What::Meta, Kind::Dir).base = Some(origin.base);
        }
        Ok(())
    }

    /// Looks at all entries of the upper directory `path`, whose content below lies at `lower` of the real tree.
    fn directory(&mut self, path: &RelPath, lower: &Lower, todo: &mut Todo) -> Sys<()> {
        let prefixed = self.dirs.features.whiteout == WhiteoutForm::Prefix;
        for name in objects::names(self.dirs.upper.as_fd(), path)? {
            if prefixed && *name == *WH_OPAQUE {
                continue;
            }
            if let Some(hidden) = name.strip_prefix(WH_PREFIX).filter(|n| prefixed && !n.is_empty()) {
                self.whiteout(path.join(hidden), lower.join(hidden).visible())?;
                continue;
            }
            let here = path.join(&name);
            let below = lower.join(&name);
            let Some(object) = Object::find(self.dirs.upper.as_fd(), &here)? else { continue };
            if object.attr.is_whiteout() {
                self.whiteout(here, below.visible())?;
            } else if object.attr.kind == Kind::Dir {
                self.subdirectory(here, lower, below, &object, todo)?;
            } else {
                self.object(here, &below, &object)?;
            }
        }
        Ok(())
    }

    fn whiteout(&mut self, path: RelPath, below: Option<&RelPath>) -> Sys<()> {
        let Some(below) = below else { return Ok(()) };
        if let Some(attr) = self.real(below)? {
            let change = self.push(path, What::Deleted, attr.kind);
            // Kept here until `finish` knows whether a rename took the object; a deletion has no `from`.
            change.from = Some(below.clone());
            self.hide(Some(below));
        }
        Ok(())
    }

    fn object(&mut self, path: RelPath, below: &Lower, object: &Object) -> Sys<()> {
        let under = match below.visible() {
            Some(b) => self.real(b)?,
            None => None,
        };
        let origin = match object.attr.kind {
            Kind::File => layer::read_origin(object.fd.as_fd())?,
            _ => None,
        };
        let in_place = origin.as_ref().is_some_and(|o| below.real.as_ref() == Some(&o.path));
        if under.is_some() && !in_place {
            self.hide(below.visible());
        }
        match origin {
            Some(origin) => {
                let hidden = below.visible().is_none();
                let was = if in_place && !hidden { under } else { self.real(&origin.path)? };
                let origin_exists = was.is_some_and(|a| a.kind == Kind::File);
                self.claims.push(Claim { path, origin, below: under, in_place, hidden, origin_exists });
            }
            None => {
                self.push(path, replacement(under, object.attr.kind), object.attr.kind);
            }
        }
        Ok(())
    }

    fn subdirectory(
        &mut self,
        path: RelPath,
        parent: &Lower,
        below: Lower,
        object: &Object,
        todo: &mut Todo,
    ) -> Sys<()> {
        let fd = object.fd.as_fd();
        let base = layer::read_origin(fd)?.map(|o| o.base);
        let opaque = is_opaque(self.dirs, object)?;
        let redirect =
            if opaque { None } else { layer::read_redirect(fd, &parent.real.clone().unwrap_or_default())? };
        // A redirect to its own place tells that an opaque directory above does not hide it: it came back there.
        let came_back = redirect.is_some() && redirect == below.real;
        let below = if came_back { Lower { hidden: false, ..below } } else { below };
        let source = match redirect.as_ref().filter(|_| !came_back) {
            Some(from) => Object::find(self.dirs.real.as_fd(), from)?.filter(|o| o.attr.kind == Kind::Dir),
            None => None,
        };
        if let (Some(real), Some(from)) = (source, redirect) {
            self.hide(below.visible());
            let meta = MetaDiff::of(&real, object, self.dirs, false)?;
            let change = self.push(path.clone(), What::Renamed, Kind::Dir);
            (change.base, change.content, change.meta) = (base, false, !meta.is_empty());
            change.from = Some(from.clone());
            todo.push((path, Lower { real: Some(from), hidden: false }));
            return Ok(());
        }
        let real = match below.visible() {
            Some(b) => Object::find(self.dirs.real.as_fd(), b)?,
            None => None,
        };
        match real {
            Some(real) if real.attr.kind == Kind::Dir => {
                let meta = !MetaDiff::of(&real, object, self.dirs, false)?.is_empty();
                if came_back {
                    self.back.extend(below.real.clone().map(|real| (self.changes.len(), real)));
                    let change = self.push(path.clone(), What::Modified, Kind::Dir);
                    (change.base, change.content, change.meta) = (base, false, meta);
                } else if opaque {
                    self.hide(below.visible());
                    let change = self.push(path.clone(), What::Modified, Kind::Dir);
                    (change.base, change.content, change.meta, change.opaque) = (base, true, meta, true);
                } else if meta {
                    self.push(path.clone(), What::Meta, Kind::Dir).base = base;
                }
                todo.push((path, Lower { hidden: below.hidden || opaque, ..below }));
            }
            Some(_) => {
                self.hide(below.visible());
                self.push(path.clone(), What::Typed, Kind::Dir);
                todo.push((path, Lower { real: None, hidden: false }));
            }
            None => {
                self.push(path.clone(), What::Added, Kind::Dir).content = false;
                // What an opaque directory hides is not there, and yet it is where it would be.
                let real = below.real.filter(|_| below.hidden);
                todo.push((path, Lower { real, hidden: below.hidden }));
            }
        }
        Ok(())
    }

    /// Decides which origins mean a rename: the real object is gone from its own place, and only one name can be the
    /// one it was renamed to. All other names of it are new links.
    fn finish(mut self) -> Vec<Change> {
        let root = self.dirs.root;
        self.claims.sort_by(|a, b| a.path.cmp(&b.path));
        let mut taken: BTreeSet<RelPath> =
            self.claims.iter().filter(|c| c.in_place).map(|c| c.origin.path.clone()).collect();
        let mut renamed: BTreeSet<RelPath> = BTreeSet::new();
        for claim in std::mem::take(&mut self.claims) {
            let from = claim.origin.path;
            let gone = std::iter::once(from.clone())
                .chain(ancestors(&from))
                .any(|p| self.hidden.contains(&(root, p)));
            let is_rename = !claim.in_place && claim.origin_exists && gone && taken.insert(from.clone());
            let what = if is_rename { What::Renamed } else { replacement(claim.below, Kind::File) };
            if claim.in_place && claim.hidden && claim.origin_exists {
                self.back.push((self.changes.len(), from.clone()));
            }
            let change = self.push(claim.path, what, Kind::File);
            if is_rename || claim.in_place {
                change.base = Some(claim.origin.base);
            }
            if is_rename {
                change.from = Some(from.clone());
                renamed.insert(from);
            }
        }
        ChangeSet::rename_left_behind(&mut self.changes, std::mem::take(&mut self.back));
        let dirs = self.changes.iter().filter(|c| c.what == What::Renamed).filter_map(|c| c.from.clone());
        renamed.extend(dirs);
        self.changes.retain_mut(|c| {
            if c.what != What::Deleted {
                return true;
            }
            c.from.take().is_none_or(|below| !renamed.contains(&below))
        });
        self.changes
    }
}

fn replacement(below: Option<Attr>, kind: Kind) -> What {
    match below {
        None => What::Added,
        Some(attr) if attr.kind == kind => What::Modified,
        Some(_) => What::Typed,
    }
}

/// Whether an upper directory hides what lies below it, in either form of the mark.
///
/// # Errors
/// As `getxattr(2)` and `statx(2)`.
pub(crate) fn is_opaque(dirs: &RootDirs, object: &Object) -> Sys<bool> {
    if layer::is_opaque(object.fd.as_fd())? {
        return Ok(true);
    }
    if dirs.features.whiteout != WhiteoutForm::Prefix {
        return Ok(false);
    }
    match file::stat_at(object.fd.as_fd(), WH_OPAQUE) {
        Ok(_) => Ok(true),
        Err(crate::base::Errno::ENOENT) => Ok(false),
        Err(e) => Err(e),
    }
}
