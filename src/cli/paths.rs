//! Paths that a person names, as places in a session.

use super::output;
use crate::base::{Error, RelPath, Result, quote};
use crate::review::{Selection, Settled};
use crate::session::Session;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// The directory that we were started in.
///
/// # Errors
/// When it was removed, or cannot be reached.
pub(super) fn cwd() -> Result<PathBuf> {
    std::env::current_dir().map_err(|e| {
        Error::sys("find the current directory", e).hint("change to a directory that is there: cd")
    })
}

/// Where `arg` may lie in the session, likeliest first: as a real path beneath a root, as one beneath the mount, or, if
/// relative, as `changes` shows it. What is there from the current directory is meant and nothing else.
///
/// # Errors
/// `Usage` when it lies in no root.
pub(super) fn locate(session: &Session, arg: &Path) -> Result<Vec<(u16, RelPath)>> {
    let cwd = cwd()?;
    let absolute = absolute(&cwd, arg);
    let in_roots =
        |at: &Path| session.roots().find_map(|r| beneath(at, r.lower_dir()).map(|p| (r.index(), p)));
    let by_real = in_roots(&absolute).or_else(|| in_roots(&resolved(&absolute)?));
    let by_mount = || within(session, beneath(&absolute, session.meta.mountpoint.as_ref()?.as_path())?);
    let top = Path::new("/");
    let as_shown = arg.is_relative().then(|| beneath(&self::absolute(top, arg), top)).flatten();
    let here = by_real.or_else(by_mount);
    let is_here = here.is_some() && absolute.symlink_metadata().is_ok();
    let as_shown = as_shown.and_then(|p| within(session, p)).filter(|p| !is_here && here.as_ref() != Some(p));
    let found = here.into_iter().chain(as_shown);
    let found: Vec<_> = found.map(|(i, path)| (u16::try_from(i).unwrap_or(u16::MAX), path)).collect();
    if found.is_empty() {
        let roots: Vec<String> = session.meta.roots.iter().map(|r| r.path.to_string()).collect();
        let shown = quote(arg.as_os_str().as_bytes());
        return Err(Error::usage(format!("{shown} lies in no root of session {}", session.name))
            .hint(format!("its roots: {}", roots.join(" "))));
    }
    Ok(found)
}

/// A path as a mount of the session shows it: in the one root, or beneath a root's name.
fn within(session: &Session, path: RelPath) -> Option<(usize, RelPath)> {
    if session.meta.roots.len() == 1 {
        return Some((0, path));
    }
    let name = path.components().next()?;
    let root = session.roots().find(|r| r.meta().name.as_bytes() == name)?;
    Some((root.index(), path.strip_prefix(&RelPath::new(name).ok()?)?))
}

/// `arg` from `base` without `.` and `..`; no symlink is followed, as it may be one of the changes.
fn absolute(base: &Path, arg: &Path) -> PathBuf {
    let mut out = PathBuf::from("/");
    for part in base.join(arg).components() {
        match part {
            Component::ParentDir => {
                out.pop();
            }
            Component::Normal(name) => out.push(name),
            _ => {}
        }
    }
    out
}

/// `path` with the directory that it lies in made canonical, as far as that is there; its own name may be a change.
fn resolved(path: &Path) -> Option<PathBuf> {
    let dir = path.ancestors().skip(1).find_map(|d| Some((d, d.canonicalize().ok()?)));
    dir.and_then(|(dir, real)| Some(real.join(path.strip_prefix(dir).ok()?)))
}

fn beneath(path: &Path, root: &Path) -> Option<RelPath> {
    RelPath::new(path.strip_prefix(root).ok()?.as_os_str().as_bytes()).ok()
}

/// What the arguments of a command select: everything when there are none.
///
/// # Errors
/// `Usage` for a path outside of all roots, or with no change at or beneath it.
pub(super) fn select(session: &Session, args: &[PathBuf], set: &[Settled]) -> Result<Selection> {
    if args.is_empty() {
        return Ok(Selection::All);
    }
    let mut paths = Vec::new();
    for arg in args {
        paths.push(changed(session, arg, set)?);
    }
    Ok(Selection::Paths(paths))
}

/// The place that `arg` names, at or beneath which something changed.
///
/// # Errors
/// As [`select`].
pub(super) fn changed(session: &Session, arg: &Path, set: &[Settled]) -> Result<(u16, RelPath)> {
    let has_changes = |place: &(u16, RelPath)| {
        let one = Selection::Paths(vec![place.clone()]);
        set.iter().any(|s| one.takes(s))
    };
    let places = locate(session, arg)?;
    let at = places.iter().position(has_changes).ok_or_else(|| {
        let shown = quote(arg.as_os_str().as_bytes());
        Error::usage(format!("session {} has no change at {shown}", session.name))
            .hint(format!("see: sbx-fuse changes -s {}", session.name))
    })?;
    let (root, path) = &places[at];
    // A path with the name of one of several roots in front is hardly meant from here.
    if at > 0 && session.meta.roots.len() == 1 {
        let shown = quote(&shown(session, *root, path));
        output::note(&format!("nothing is at {shown} in this directory: the session's {shown} is meant"));
    }
    Ok(places[at].clone())
}

/// How a path of the session is shown: from its root, of several with the root's name in front.
pub(super) fn shown(session: &Session, root: u16, path: &RelPath) -> Vec<u8> {
    let roots = &session.meta.roots;
    if roots.len() == 1 {
        return if path.is_root() { b".".to_vec() } else { path.as_bytes().to_vec() };
    }
    let name = roots.get(usize::from(root)).map_or(&b"?"[..], |r| r.name.as_bytes());
    if path.is_root() { name.to_vec() } else { [name, b"/", path.as_bytes()].concat() }
}
