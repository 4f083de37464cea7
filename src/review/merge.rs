//! Moving a change of the session onto the real file as it is now: its base moves along, and where both sides changed
//! text, the two are merged line by line.

use super::conflict::{Conflict, Why};
use super::objects::{self, Object};
use super::settle::Settled;
use super::{RootDirs, attrs, root_of};
use crate::base::{BaseId, Errno, Error, Kind, Result, Sys, What};
use crate::layer::{self, Origin};
use crate::sys::{data, file};
use std::os::fd::AsFd;

/// The longest text that is merged, bytes.
const MAX_TEXT: u64 = 16 << 20;
/// How a line begins between which and [`MARK_END`] two sides stand that could not be merged.
const MARK_START: &[u8] = b"<<<<<<< ours";
const MARK_END: &[u8] = b">>>>>>> theirs";

/// A change that has a new base.
#[derive(Clone, Debug)]
pub struct Rebased {
    /// The real object as it is now.
    pub base: BaseId,
    /// Its bytes, where they are text and were needed: to be kept for the next merge.
    pub bytes: Option<Vec<u8>>,
    /// Whether the session's file now holds conflict markers.
    pub marked: bool,
    /// Whether the session's file was changed.
    pub merged: bool,
}

/// Gives the bytes that have a hash, where they were kept.
pub type BytesOf<'a> = dyn Fn(&[u8; 32]) -> Result<Option<Vec<u8>>> + 'a;

/// Moves the change `s`, which is in `conflict`, onto the real object. `old` gives the bytes that the session began with. With
/// `markers`, lines that both sides changed are left in the session's file between conflict markers. `None` where
/// this conflict cannot be solved so; the session is then as it was.
///
/// # Errors
/// When the session's file cannot be written.
pub fn move_base(
    roots: &[RootDirs],
    s: &Settled,
    conflict: &Conflict,
    old: &BytesOf<'_>,
    markers: bool,
) -> Result<Option<Rebased>> {
    let dirs = root_of(roots, s.change.root)?;
    let failed = |e| Error::on_path("merge", s.change.path.as_bytes(), e);
    let path = s.real_path.as_ref().unwrap_or(&s.change.path);
    let is_file = s.change.kind == Kind::File && matches!(s.change.what, What::Modified | What::Renamed);
    let Some(real) = Object::find(dirs.real.as_fd(), path).map_err(failed)? else { return Ok(None) };
    let base = BaseId::of(&real.attr);
    match conflict.why {
        Why::Metadata if s.change.what != What::Renamed => {
            note_origin(dirs, s, &base).map_err(failed)?;
            Ok(Some(Rebased { base, bytes: None, marked: false, merged: false }))
        }
        Why::Content if is_file => {
            let hash = s.change.base.as_ref().and_then(|b| b.hash);
            let Some(old) = hash.map(|hash| old(&hash)).transpose()?.flatten() else { return Ok(None) };
            merge(dirs, s, &real, &old, markers).map_err(failed)
        }
        _ => Ok(None),
    }
}

fn merge(dirs: &RootDirs, s: &Settled, real: &Object, old: &[u8], markers: bool) -> Sys<Option<Rebased>> {
    let Some(upper) = Object::find(dirs.upper.as_fd(), &s.change.path)? else { return Ok(None) };
    if real.attr.kind != Kind::File || real.attr.size > MAX_TEXT || upper.attr.size > MAX_TEXT {
        return Ok(None);
    }
    let theirs = objects::read_all(real.readable()?.as_fd())?;
    let ours = objects::read_all(upper.readable()?.as_fd())?;
    if [old, &ours, &theirs].iter().any(|text| text.contains(&0)) {
        return Ok(None);
    }
    let (text, marked) = match diffy::merge_bytes(old, &ours, &theirs) {
        Ok(text) => (text, false),
        Err(_) if !markers => return Ok(None),
        Err(text) => (text, true),
    };
    let mut base = BaseId::of(&real.attr);
    base.hash = Some(*blake3::hash(&theirs).as_bytes());
    replace(dirs, s, &upper, &text)?;
    note_origin(dirs, s, &base)?;
    Ok(Some(Rebased { base, bytes: Some(theirs), marked, merged: true }))
}

/// Gives the session's file other bytes: a new file takes its place, unless it has other names.
fn replace(dirs: &RootDirs, s: &Settled, upper: &Object, text: &[u8]) -> Sys<()> {
    if upper.attr.nlink > 1 {
        let to = file::reopen(upper.fd.as_fd(), libc::O_WRONLY)?;
        data::ftruncate(to.as_fd(), 0)?;
        data::pwrite_all(to.as_fd(), text, 0)?;
        return data::fsync(to.as_fd(), false);
    }
    let temp = b"merged";
    let work = dirs.work.as_fd();
    match file::unlinkat(work, temp) {
        Ok(()) | Err(Errno::ENOENT) => {}
        Err(e) => return Err(e),
    }
    let to = file::openat(work, temp, libc::O_CREAT | libc::O_EXCL | libc::O_RDWR, 0o600)?;
    data::pwrite_all(to.as_fd(), text, 0)?;
    let made = Object { attr: file::stat(to.as_fd())?, fd: to };
    let mtime = made.attr.mtime;
    attrs::give_all(&made, &upper.attr, &objects::xattrs(upper)?)?;
    attrs::set_mtime(&made, mtime)?;
    data::fsync(made.fd.as_fd(), false)?;
    let (dir, name) = objects::open_parent(dirs.upper.as_fd(), &s.change.path)?;
    objects::in_writable(dir.as_fd(), || file::renameat(work, temp, dir.as_fd(), name, 0))
}

/// The upper remembers the new base as well, for when the journal is lost.
fn note_origin(dirs: &RootDirs, s: &Settled, base: &BaseId) -> Sys<()> {
    let Some(object) = Object::find(dirs.upper.as_fd(), &s.change.path)? else { return Ok(()) };
    if !dirs.features.xattr || !matches!(object.attr.kind, Kind::File | Kind::Dir) {
        return Ok(());
    }
    let path = s.real_path.clone().unwrap_or_else(|| s.change.path.clone());
    let btime = objects::stat(dirs.real.as_fd(), &path)?.map(|a| a.btime).unwrap_or_default();
    let origin = Origin { path, base: base.clone(), btime };
    objects::in_writable(object.fd.as_fd(), || layer::write_origin(object.fd.as_fd(), &origin)).map(drop)
}

/// Whether the session's file of this change still holds conflict markers of a merge.
///
/// # Errors
/// When it cannot be read.
pub fn has_markers(roots: &[RootDirs], s: &Settled) -> Result<bool> {
    let candidate = s.content && s.change.kind == Kind::File && s.size_new <= MAX_TEXT && s.real.is_some();
    if !candidate || s.change.what == What::Deleted {
        return Ok(false);
    }
    let dirs = root_of(roots, s.change.root)?;
    let read = || -> Sys<bool> {
        let Some(object) = Object::find(dirs.upper.as_fd(), &s.change.path)? else { return Ok(false) };
        let text = objects::read_all(object.readable()?.as_fd())?;
        let begins = |mark: &[u8]| text.split(|&b| b == b'\n').any(|line| line == mark);
        Ok(begins(MARK_START) && begins(MARK_END))
    };
    read().map_err(|e| Error::on_path("read", s.change.path.as_bytes(), e))
}

/// Whether the session's side of a conflict can be applied over what the real tree has now.
pub fn session_can_win(s: &Settled, why: &Why) -> bool {
    let moves_dir = s.change.kind == Kind::Dir && s.change.what == What::Renamed;
    match why {
        // What would be moved is not the directory that the session moved.
        Why::Younger | Why::Retyped(..) if moves_dir => false,
        Why::Appeared(_)
        | Why::Content
        | Why::Metadata
        | Why::Inside(_)
        | Why::Younger
        | Why::Retyped(..)
        | Why::Markers => true,
        // Compared with nothing, the session's object is an addition.
        Why::Gone => s.content && s.change.kind != Kind::Dir && s.change.what == What::Added,
        Why::ParentGone(_) | Why::ParentRetyped(..) => false,
    }
}
