//! Applying a part of a changed file: the real file gets the chosen lines, the session keeps the others, on the real
//! file as it is then.
//!
//! The content that the choice makes is staged in an upper of its own beside the session's, and applied from there like
//! any other change, whole or not at all. What was staged stays until the journal was told what the session's file is
//! based on from then on: if that is killed in between, the next command finds it and tells the journal.

use super::conflict::Conflict;
use super::discard::{Dropper, Seen};
use super::objects::{self, Object};
use super::plan::{Selection, plan};
use super::settle::{Settled, settle};
use super::{Fault, Policy, Progress, Report, RootDirs, attrs, conflict, root_of};
use crate::base::{Attr, BaseId, Change, ChangeSet, Errno, Error, Kind, RelPath, Result, Sys, What};
use crate::layer::{self, Origin};
use crate::sys::{data, file};
use std::io::Read;
use std::os::fd::AsFd;

/// A changed file, and the content that the real one is to get.
pub struct Part<'a> {
    /// The change; a text file that both sides have under one name.
    pub settled: &'a Settled,
    /// The real file's content with the chosen changes.
    pub content: Vec<u8>,
}

/// A file of which a part was applied: what the session's file is based on from now on.
pub struct Moved {
    /// Which root.
    pub root: u16,
    /// Where it is in the merged view.
    pub path: RelPath,
    /// Where the real file is.
    pub real: RelPath,
    /// Inode number of the session's file.
    pub ino: u64,
    /// The real file as it is now.
    pub base: BaseId,
    /// Its content.
    pub content: Vec<u8>,
}

/// Where the content is staged, in a root's work directory.
const STAGE: &[u8] = crate::session::STAGED_PARTS;

/// Nothing leaves the session: the rest of each file stays in it.
struct Keep;

impl Dropper for Keep {
    fn drop(&mut self, _: u16, _: &RelPath, _: Option<Seen>) -> Result<bool> {
        Ok(true)
    }
}

/// What stands in the way of `parts`, as [`conflict::check`] has it. To be empty before [`apply_parts`].
///
/// # Errors
/// When an object cannot be looked at.
pub fn check_parts(
    roots: &[RootDirs],
    parts: &[Part<'_>],
    replaced: &dyn Fn(u16, &RelPath) -> Option<BaseId>,
) -> Result<Vec<Conflict>> {
    let set: Vec<Settled> = parts.iter().map(|p| p.settled.clone()).collect();
    conflict::check(roots, &set, replaced)
}

/// Gives the real files their parts, all of them or none, and with `resting` moves the session's files onto them: then
/// its lock must be the caller's. Its journal is to be told what is returned, then comes [`clear_parts`].
///
/// # Errors
/// When something cannot be staged or applied; the real files are then as they were.
pub fn apply_parts(
    roots: &[RootDirs],
    parts: Vec<Part<'_>>,
    resting: bool,
    progress: &mut dyn FnMut(Progress<'_>),
    fault: &mut dyn Fault,
) -> Result<(Report, Vec<Moved>)> {
    let mut shadows = Vec::new();
    for dirs in roots.iter().filter(|d| parts.iter().any(|p| p.settled.change.root == d.root)) {
        shadows.push(shadow(dirs).map_err(|e| Error::sys("make a place for the parts", e))?);
    }
    let result = staged(roots, &shadows, parts, resting, progress, fault);
    if result.is_err() {
        clear_parts(roots)?;
    }
    result
}

/// Removes what was staged, once the journal knows.
///
/// # Errors
/// As `unlinkat(2)`.
pub fn clear_parts(roots: &[RootDirs]) -> Result<()> {
    roots.iter().try_for_each(clear).map_err(|e| Error::sys("clear the place of the parts", e))
}

/// Whether something is staged: a command is at it, or was killed.
///
/// # Errors
/// As `fstatat(2)`.
pub fn has_parts(roots: &[RootDirs]) -> Result<bool> {
    let there = |dirs: &RootDirs| Ok(objects::stat(dirs.work.as_fd(), &RelPath::new(STAGE)?)?.is_some());
    let found = roots.iter().map(there).collect::<Sys<Vec<bool>>>();
    Ok(found.map_err(|e| Error::sys("look for parts of files", e))?.contains(&true))
}

/// What of the staged parts the real files have, although the journal may not know: as [`apply_parts`] returns it. `set`
/// is what the session has changed.
///
/// # Errors
/// When a file cannot be read.
pub fn left_over(roots: &[RootDirs], set: &[Settled], resting: bool) -> Result<Vec<Moved>> {
    let mut moved = Vec::new();
    for s in set.iter().filter(|s| s.content && s.change.kind == Kind::File && s.upper.is_some()) {
        let Some(real) = s.real_path.clone().filter(|_| s.real.is_some_and(|r| r.kind == Kind::File)) else {
            continue;
        };
        let dirs = root_of(roots, s.change.root)?;
        let found = staged_in_real(dirs, &real).and_then(|content| {
            let Some(content) = content else { return Ok(None) };
            Ok(Some((rebase(dirs, s, Some(&content), resting)?, content)))
        });
        let found = found.map_err(|e| Error::on_path("look for the part of", real.as_bytes(), e))?;
        if let Some((base, content)) = found {
            let (root, path) = (s.change.root, s.change.path.clone());
            moved.push(Moved { root, path, real, ino: s.upper.map_or(0, |a| a.ino), base, content });
        }
    }
    Ok(moved)
}

/// The staged content of the real file at `path`, if that has it.
fn staged_in_real(dirs: &RootDirs, path: &RelPath) -> Sys<Option<Vec<u8>>> {
    let find = |top, path: &RelPath| -> Sys<Option<Object>> {
        match Object::find(top, path) {
            Err(Errno::ENOTDIR | Errno::ELOOP) => Ok(None),
            other => Ok(other?.filter(|o| o.attr.kind == Kind::File)),
        }
    };
    let Some(staged) = find(dirs.work.as_fd(), &RelPath::new(STAGE)?.join(path.as_bytes()))? else {
        return Ok(None);
    };
    let real = find(dirs.real.as_fd(), path)?.filter(|real| real.attr.size == staged.attr.size);
    let Some(real) = real else { return Ok(None) };
    let read = |object: &Object| {
        let mut bytes = Vec::new();
        std::fs::File::from(object.readable()?).read_to_end(&mut bytes)?;
        Sys::Ok(bytes)
    };
    let content = read(&staged)?;
    Ok((read(&real)? == content).then_some(content))
}

fn staged(
    roots: &[RootDirs],
    shadows: &[RootDirs],
    parts: Vec<Part<'_>>,
    resting: bool,
    progress: &mut dyn FnMut(Progress<'_>),
    fault: &mut dyn Fault,
) -> Result<(Report, Vec<Moved>)> {
    let mut set = ChangeSet::default();
    for part in &parts {
        let c = &part.settled.change;
        let failed = |e| Error::on_path("stage a part of", c.path.as_bytes(), e);
        let change = stage(root_of(roots, c.root)?, root_of(shadows, c.root)?, part).map_err(failed)?;
        set.changes.push(change);
    }
    set.changes.sort_by(|a, b| (a.root, &a.path).cmp(&(b.root, &b.path)));
    let plan = plan(&settle(shadows, &set)?, &Selection::All)?;
    let report = super::apply_with(shadows, &plan, Policy::default(), &mut Keep, progress, fault)?;
    let mut moved = Vec::with_capacity(parts.len());
    for part in parts {
        let c = &part.settled.change;
        let base = rebase(root_of(roots, c.root)?, part.settled, Some(&part.content), resting)
            .map_err(|e| Error::on_path("move onto the new real file", c.path.as_bytes(), e))?;
        let real = part.settled.real_path.clone().unwrap_or_else(|| c.path.clone());
        let ino = part.settled.upper.map_or(0, |a| a.ino);
        moved.push(Moved { root: c.root, path: c.path.clone(), real, ino, base, content: part.content });
    }
    Ok((report, moved))
}

/// The root with an empty upper of its own.
fn shadow(dirs: &RootDirs) -> Sys<RootDirs> {
    clear(dirs)?;
    file::mkdirat(dirs.work.as_fd(), STAGE, 0o700)?;
    let upper = objects::open_dir(dirs.work.as_fd(), &RelPath::new(STAGE)?)?;
    let again = |fd: &std::os::fd::OwnedFd| fd.try_clone().map_err(Errno::from);
    Ok(RootDirs {
        root: dirs.root,
        real: again(&dirs.real)?,
        upper,
        work: again(&dirs.work)?,
        features: dirs.features,
        path: dirs.path.clone(),
        kept: dirs.kept.clone(),
    })
}

fn clear(dirs: &RootDirs) -> Sys<()> {
    let top = RelPath::new(STAGE)?;
    let work = dirs.work.as_fd();
    if objects::stat(work, &top)?.is_none() {
        return Ok(());
    }
    let mut found = Vec::new();
    objects::walk(work, &top, &mut |path, attr| {
        found.push((path.clone(), attr.kind == Kind::Dir));
        Ok(())
    })?;
    // What lies in a directory has the longer path.
    found.sort_by_key(|(path, _)| std::cmp::Reverse(path.as_bytes().len()));
    for (path, is_dir) in found.into_iter().chain([(top, true)]) {
        let (dir, name) = objects::open_parent(work, &path)?;
        let gone = if is_dir { file::rmdirat(dir.as_fd(), name) } else { file::unlinkat(dir.as_fd(), name) };
        // Of two commands that find it both may clear it.
        gone.or_else(|e| if e == Errno::ENOENT { Ok(()) } else { Err(e) })?;
    }
    Ok(())
}

/// Writes the content as an upper file of the shadow, at the real path, and says what change that is. Only the content
/// is to differ: mode, owner and xattrs are the real file's.
fn stage(dirs: &RootDirs, shadow: &RootDirs, part: &Part<'_>) -> Sys<Change> {
    let s = part.settled;
    let real_path = s.real_path.as_ref().ok_or(Errno::EINVAL)?;
    let real = Object::find(dirs.real.as_fd(), real_path)?.ok_or(Errno::ENOENT)?;
    let upper = Object::find(dirs.upper.as_fd(), &s.change.path)?.ok_or(Errno::ESTALE)?;
    let unchanged =
        |now: &Attr, was: Option<Attr>| was.is_some_and(|w| (w.ino, w.ctime) == (now.ino, now.ctime));
    if !unchanged(&real.attr, s.real) || !unchanged(&upper.attr, s.upper) {
        return Err(Errno::ESTALE);
    }
    let mut at = RelPath::root();
    for name in real_path.parent().unwrap_or_default().components() {
        let dir = objects::open_dir(shadow.upper.as_fd(), &at)?;
        match file::mkdirat(dir.as_fd(), name, 0o700) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(e) => return Err(e),
        }
        at = at.join(name);
    }
    let (dir, name) = objects::open_parent(shadow.upper.as_fd(), real_path)?;
    let fd = file::openat(dir.as_fd(), name, libc::O_CREAT | libc::O_EXCL | libc::O_RDWR, 0o600)?;
    data::pwrite_all(fd.as_fd(), &part.content, 0)?;
    let made = Object::find(shadow.upper.as_fd(), real_path)?.ok_or(Errno::ESTALE)?;
    let base = BaseId::of(&real.attr);
    if s.same_file {
        layer::write_origin(
            fd.as_fd(),
            &Origin { path: real_path.clone(), base: base.clone(), btime: real.attr.btime },
        )?;
    }
    let attr = Attr { mtime: upper.attr.mtime, ..real.attr };
    attrs::give_all(&made, &attr, &objects::xattrs(&real)?)?;
    Ok(Change {
        path: real_path.clone(),
        what: What::Modified,
        from: None,
        base: Some(base),
        content: true,
        meta: true,
        opaque: false,
        ..s.change.clone()
    })
}

/// The session's file is a change of the real file as it is now, which has this content. A live server knows its files by
/// what the upper says of their origin: there only the journal is told.
pub(super) fn rebase(dirs: &RootDirs, s: &Settled, content: Option<&[u8]>, resting: bool) -> Sys<BaseId> {
    let real_path = s.real_path.as_ref().ok_or(Errno::EINVAL)?;
    let real = Object::find(dirs.real.as_fd(), real_path)?.ok_or(Errno::ENOENT)?;
    let mut base = BaseId::of(&real.attr);
    base.hash = content.map(|bytes| *blake3::hash(bytes).as_bytes());
    let upper = Object::find(dirs.upper.as_fd(), &s.change.path)?.ok_or(Errno::ESTALE)?;
    if resting && layer::read_origin(upper.fd.as_fd())?.is_some() {
        let origin = Origin { path: real_path.clone(), base: base.clone(), btime: real.attr.btime };
        layer::write_origin(upper.fd.as_fd(), &origin)?;
    }
    Ok(base)
}
