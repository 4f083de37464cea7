//! Whether the real tree is still what the session was based on, change by change.

use super::objects::{self, Object};
use super::paths::{Resolver, ancestors};
use super::settle::Settled;
use super::touched::Touched;
use super::{RootDirs, root_of};
use crate::base::{Attr, BaseId, Errno, Error, Kind, RelPath, Result, Sys, Time, What, quote};
use crate::layer::{self, WhiteoutForm};
use crate::sys::file;
use std::os::fd::AsFd;

/// A change that must not be applied unseen, because the real tree moved on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Which root.
    pub root: u16,
    /// The change's path.
    pub path: RelPath,
    /// What happened to the real tree.
    pub why: Why,
}

/// What happened to the real tree since the session first changed a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// Something appeared where the session adds or moves an object.
    Appeared(Kind),
    /// The real object is gone.
    Gone,
    /// The real object is of another type now: what it was, and what it is.
    Retyped(Kind, Kind),
    /// The content changed (or may have: it cannot be told from its attributes).
    Content,
    /// The bytes are as they were, other attributes are not.
    Metadata,
    /// Something in a deleted directory is new or was changed: the first such path.
    Inside(RelPath),
    /// A directory on the way is gone.
    ParentGone(RelPath),
    /// A directory on the way is something else now.
    ParentRetyped(RelPath, Kind),
    /// The session's file holds conflict markers of a merge.
    Markers,
    /// Nothing is known of what the session was based on, and the real object is younger than the session's.
    Younger,
}

impl Why {
    /// One sentence for a person, without a full stop.
    pub fn sentence(&self) -> String {
        match self {
            Why::Appeared(kind) => format!("a {} appeared there in the real tree", kind.word()),
            Why::Gone => "it was removed from the real tree meanwhile".into(),
            Why::Retyped(was, is) => {
                format!("it was a {} and is a {} in the real tree now", was.word(), is.word())
            }
            Why::Content => "it was changed in the real tree meanwhile".into(),
            Why::Metadata => {
                "its mode, owner or times were changed in the real tree meanwhile; its content was not".into()
            }
            Why::Inside(path) => {
                format!("{} in it is new or was changed in the real tree meanwhile", quote(path.as_bytes()))
            }
            Why::ParentGone(dir) => {
                format!("its directory {} was removed from the real tree", quote(dir.as_bytes()))
            }
            Why::ParentRetyped(dir, kind) => {
                format!(
                    "{} is a {} in the real tree now, not a directory",
                    quote(dir.as_bytes()),
                    kind.word()
                )
            }
            Why::Markers => "the session's file still holds the conflict markers of a merge".into(),
            Why::Younger => "the real object is younger than the session's change of it".into(),
        }
    }
}

/// Checks every change of `set` against the real tree as it is now. `replaced` gives the identity of what a rename
/// took the place of (`Folded.replaced`). A change whose outcome the real tree already has is no conflict.
///
/// # Errors
/// When an object cannot be looked at.
pub fn check(
    roots: &[RootDirs],
    set: &[Settled],
    replaced: &dyn Fn(u16, &RelPath) -> Option<BaseId>,
) -> Result<Vec<Conflict>> {
    let resolver = Resolver::new(set.iter().map(|s| &s.change));
    let touched = roots.first().map(|first| Touched::read(&first.kept)).transpose()?.unwrap_or_default();
    let mut conflicts = Vec::new();
    for s in set {
        let c = &s.change;
        let dirs = root_of(roots, c.root)?;
        let checker = Checker { dirs, resolver: &resolver, replaced, touched: &touched };
        let why = checker.one(s).map_err(|e| Error::on_path("check", c.path.as_bytes(), e))?;
        conflicts.extend(why.map(|why| Conflict { root: c.root, path: c.path.clone(), why }));
    }
    Ok(conflicts)
}

struct Checker<'a> {
    dirs: &'a RootDirs,
    resolver: &'a Resolver<'a>,
    replaced: &'a dyn Fn(u16, &RelPath) -> Option<BaseId>,
    touched: &'a Touched,
}

impl Checker<'_> {
    fn one(&self, s: &Settled) -> Sys<Option<Why>> {
        let c = &s.change;
        if let Some(why) = self.parents(&c.path)? {
            return Ok(Some(why));
        }
        let upper = match c.what {
            What::Deleted => None,
            _ => Object::find(self.dirs.upper.as_fd(), &c.path)?,
        };
        match c.what {
            What::Added => {
                let origin = match upper.as_ref().filter(|u| u.attr.kind == Kind::File) {
                    Some(u) => layer::read_origin(u.fd.as_fd())?.filter(|o| o.path == c.path).map(|o| o.base),
                    None => None,
                };
                self.target(s, upper.as_ref(), c.base.as_ref().or(origin.as_ref()))
            }
            What::Renamed => {
                let from = c.from.as_ref().unwrap_or(&c.path);
                let source = Object::find(self.dirs.real.as_fd(), from)?;
                let why = self.against_base(s, from, source.as_ref(), upper.as_ref())?;
                let over = (self.replaced)(c.root, &c.path);
                match why {
                    Some(why) => Ok(Some(why)),
                    None => self.target(s, upper.as_ref(), over.as_ref()),
                }
            }
            What::Modified | What::Deleted | What::Typed | What::Meta => {
                let path = s.real_path.as_ref().unwrap_or(&c.path);
                let real = Object::find(self.dirs.real.as_fd(), path)?;
                self.against_base(s, path, real.as_ref(), upper.as_ref())
            }
        }
    }

    /// Every directory that is to hold the change must still be one; those the set makes are not looked for.
    fn parents(&self, path: &RelPath) -> Sys<Option<Why>> {
        let mut dirs: Vec<RelPath> = ancestors(path).collect();
        dirs.reverse();
        for dir in dirs {
            let Some(real) = self.resolver.real_of(self.dirs.root, &dir) else { return Ok(None) };
            if self.resolver.at(self.dirs.root, &dir).is_some_and(|c| c.what == What::Typed) {
                return Ok(None);
            }
            match objects::open(self.dirs.real.as_fd(), &real, libc::O_PATH)
                .and_then(|fd| file::stat(fd.as_fd()))
            {
                Ok(attr) if attr.kind == Kind::Dir => {}
                Ok(attr) => return Ok(Some(Why::ParentRetyped(dir, attr.kind))),
                Err(Errno::ENOENT) => return Ok(Some(Why::ParentGone(dir))),
                Err(Errno::ENOTDIR | Errno::ELOOP) => {
                    return Ok(Some(Why::ParentRetyped(dir, Kind::Symlink)));
                }
                Err(e) => return Err(e),
            }
        }
        Ok(None)
    }

    /// The place where an object is to appear: nothing may be there, or what `was` there.
    fn target(&self, s: &Settled, upper: Option<&Object>, was: Option<&BaseId>) -> Sys<Option<Why>> {
        let c = &s.change;
        let slot = self.resolver.slot(c.root, &c.path).filter(|p| !self.resolver.is_claimed(c.root, p));
        let there = match &slot {
            Some(slot) => Object::find(self.dirs.real.as_fd(), slot)?,
            None => None,
        };
        match (there, was) {
            (None, Some(_)) if c.what == What::Added && !self.is_claimed(&c.path) => {
                self.gone(&c.path).map(Some)
            }
            (None, _) => Ok(None),
            (Some(real), Some(base)) => self.differs(&real, base, upper),
            (Some(real), None) => {
                if upper.is_some_and(|u| same_outcome(&real, u).unwrap_or(false)) {
                    return Ok(None);
                }
                // A rename over something old is a replacement that was not noted; an addition is never one.
                let old = c.what == What::Renamed
                    && upper.is_some_and(|u| self.not_younger(&real.attr, u.attr.btime));
                Ok((!old).then_some(Why::Appeared(real.attr.kind)))
            }
        }
    }

    /// Whether a rename of the session took the real object from `path`, itself or with a directory above it.
    fn is_claimed(&self, path: &RelPath) -> bool {
        let mut dirs = std::iter::once(path.clone()).chain(ancestors(path));
        dirs.any(|p| self.resolver.is_claimed(self.dirs.root, &p))
    }

    /// What was at `path` in the real tree is gone: alone, or with a directory above it.
    fn gone(&self, path: &RelPath) -> Sys<Why> {
        let mut top = None;
        for dir in ancestors(path) {
            match objects::stat(self.dirs.real.as_fd(), &dir)? {
                None => top = Some(Why::ParentGone(dir)),
                Some(attr) if attr.kind != Kind::Dir => top = Some(Why::ParentRetyped(dir, attr.kind)),
                Some(_) => {}
            }
        }
        Ok(top.unwrap_or(Why::Gone))
    }

    fn against_base(
        &self,
        s: &Settled,
        path: &RelPath,
        real: Option<&Object>,
        upper: Option<&Object>,
    ) -> Sys<Option<Why>> {
        let c = &s.change;
        let Some(real) = real else { return Ok(Some(Why::Gone)) };
        let origin = match upper {
            Some(u) if matches!(u.attr.kind, Kind::File | Kind::Dir) => layer::read_origin(u.fd.as_fd())?,
            _ => None,
        };
        let noted = c.base.clone().or(origin.filter(|o| o.path == *path).map(|o| o.base));
        let since = match (upper, c.what) {
            (_, What::Deleted) => self.deleted_at(&c.path)?,
            (Some(u), _) => u.attr.btime,
            (None, _) => Time::default(),
        };
        let why = match &noted {
            Some(base) => self.differs(real, base, upper)?,
            None if self.not_younger(&real.attr, since) => None,
            None if upper.is_some_and(|u| same_outcome(real, u).unwrap_or(false)) => None,
            None => Some(Why::Younger),
        };
        let removes_dir = real.attr.kind == Kind::Dir && matches!(c.what, What::Deleted | What::Typed);
        if removes_dir && matches!(why, None | Some(Why::Younger)) {
            return Ok(self.inside(path, real, noted.as_ref(), since)?.or(why));
        }
        Ok(why)
    }

    fn not_younger(&self, attr: &Attr, than: Time) -> bool {
        // Whatever is done to an object moves this one, and nobody can set it: unlike mtime, which may be ahead.
        attr.ctime <= than || self.touched.explains(attr)
    }

    /// When the session deleted `path`: the birth of its whiteout, or of the opaque directory that hides it.
    fn deleted_at(&self, path: &RelPath) -> Sys<Time> {
        if let Some(attr) = objects::stat(self.dirs.upper.as_fd(), path)? {
            return Ok(attr.btime);
        }
        if self.dirs.features.whiteout == WhiteoutForm::Prefix
            && let (Some(parent), Some(name)) = (path.parent(), path.file_name())
            && let Some(attr) =
                objects::stat(self.dirs.upper.as_fd(), &parent.join(&layer::prefixed_name(name)))?
        {
            return Ok(attr.btime);
        }
        for dir in ancestors(path) {
            if let Some(attr) = objects::stat(self.dirs.upper.as_fd(), &dir)? {
                return Ok(attr.btime);
            }
        }
        Ok(Time::default())
    }

    /// Something beneath a directory to be removed that the session never saw.
    fn inside(&self, path: &RelPath, dir: &Object, base: Option<&BaseId>, since: Time) -> Sys<Option<Why>> {
        let mut first = None;
        objects::walk(self.dirs.real.as_fd(), path, &mut |child, attr| {
            if first.is_none() && since != Time::default() && !self.not_younger(attr, since) {
                first = Some(child.clone());
            }
            Ok(())
        })?;
        if let Some(child) = first {
            return Ok(Some(Why::Inside(child)));
        }
        let moved_on = base.is_some_and(|b| b.kind == Kind::Dir && b.mtime != dir.attr.mtime);
        let touched = moved_on && !self.touched.explains(&dir.attr);
        Ok(touched.then(|| Why::Inside(path.clone())))
    }

    /// What of the real object is not as `base` has it; nothing when the session comes to the same result.
    fn differs(&self, real: &Object, base: &BaseId, upper: Option<&Object>) -> Sys<Option<Why>> {
        let attr = &real.attr;
        if attr.kind != base.kind {
            let same =
                attr.kind != Kind::Dir && upper.is_some_and(|u| same_outcome(real, u).unwrap_or(false));
            if same {
                return Ok(None);
            }
            return Ok(Some(Why::Retyped(base.kind, attr.kind)));
        }
        let owned = same_id(base.uid, attr.uid) && same_id(base.gid, attr.gid) && attr.perm == base.perm;
        if attr.kind == Kind::Dir {
            // What is in a directory has changes and conflicts of its own.
            return Ok((!owned || attr.ino != base.ino).then_some(Why::Metadata));
        }
        let alike = (attr.size, attr.mtime, attr.ino) == (base.size, base.mtime, base.ino);
        if alike && owned && attr.ctime == base.ctime {
            return Ok(None);
        }
        // Times can be set: rsync does so with what it writes in place.
        let same = match &base.hash {
            Some(hash) if attr.size == base.size => hash_of(real)?.is_some_and(|now| now == *hash),
            _ => alike,
        };
        if (same && alike && owned) || upper.is_some_and(|u| same_outcome(real, u).unwrap_or(false)) {
            return Ok(None);
        }
        Ok(Some(if same { Why::Metadata } else { Why::Content }))
    }
}

/// What an id that a user namespace does not know shows as in it (`/proc/sys/kernel/overflowuid`, by default).
const OVERFLOW: u32 = 65534;

/// Whether an id is what it was. One that was noted inside of a sandbox's user namespace, where it is nobody's, says
/// nothing of whose it is outside.
fn same_id(was: u32, is: u32) -> bool {
    was == is || was == OVERFLOW
}

/// Whether the real object is what applying would make of it: type, content and permissions.
fn same_outcome(real: &Object, upper: &Object) -> Sys<bool> {
    if real.attr.kind != upper.attr.kind {
        return Ok(false);
    }
    let same_perm = real.attr.kind == Kind::Symlink || real.attr.perm == upper.attr.perm;
    Ok(real.attr.kind == Kind::Dir || (same_perm && objects::same_content(real, upper)?))
}

/// BLAKE3 of a file's bytes or a symlink's target, as `BaseId::hash` has it.
fn hash_of(object: &Object) -> Sys<Option<[u8; 32]>> {
    match object.attr.kind {
        Kind::Symlink => Ok(Some(*blake3::hash(&object.target()?).as_bytes())),
        Kind::File => {
            let mut hasher = blake3::Hasher::new();
            hasher.update_reader(std::fs::File::from(object.readable()?))?;
            Ok(Some(*hasher.finalize().as_bytes()))
        }
        _ => Ok(None),
    }
}
