//! A directory made anew over a real one, told by whiteouts instead of by an opaque mark.

use super::{Features, WH_OPAQUE, WH_PREFIX, WhiteoutForm, X_REDIRECT, make_whiteout, set_opaque};
use crate::base::{Attr, Errno, Kind, Sys};
use crate::sys::{dir, file, xattr};
use std::cell::RefCell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Makes a change of the upper object given, even when its mode keeps its owner out.
pub type Forced<'a> = &'a dyn Fn(BorrowedFd<'_>, &dyn Fn() -> Sys<()>) -> Sys<()>;

/// Says with whiteouts what the opaque mark of the upper directory `upper` says about the real directory `real`: every
/// name of that, which it returns, stays hidden. The mark goes last: stopped half-way, the directory means what it meant.
///
/// # Errors
/// As listing `real`, and as the changes of `upper`.
pub fn expand(
    upper: BorrowedFd<'_>,
    real: BorrowedFd<'_>,
    features: Features,
    forced: Forced<'_>,
) -> Sys<Vec<(Box<[u8]>, Attr)>> {
    let form = features.whiteout;
    let listable = file::reopen(real, libc::O_RDONLY | libc::O_DIRECTORY)?;
    let mut hidden = Vec::new();
    for entry in dir::entries(listable.as_fd())? {
        let name = entry.name;
        if form == WhiteoutForm::Prefix && name.starts_with(WH_PREFIX) {
            continue; // not shown anyway
        }
        let below = match file::stat_at(real, &name) {
            Ok(below) => below,
            Err(Errno::ENOENT) => continue,
            Err(e) => return Err(e),
        };
        hide(upper, &name, &below, features, forced)?;
        hidden.push((name, below));
    }
    clear_opaque(upper, features, forced)?;
    hidden.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(hidden)
}

/// Keeps what the real tree has at `name` out of sight: by a whiteout, or by what is there.
fn hide(upper: BorrowedFd<'_>, name: &[u8], below: &Attr, features: Features, forced: Forced<'_>) -> Sys<()> {
    // One after the other: who forces one change may not be asked for another meanwhile.
    let dir = RefCell::new(None);
    forced(upper, &|| {
        *dir.borrow_mut() = cover(upper, name, features.whiteout)?;
        Ok(())
    })?;
    let Some(dir) = dir.into_inner().filter(|_| below.kind == Kind::Dir) else { return Ok(()) };
    let dir = dir.as_fd();
    forced(dir, &|| match xattr::get(dir, X_REDIRECT)? {
        None => mark_opaque(dir, features),
        // It says itself what it shows.
        Some(_) => Ok(()),
    })
}

/// Puts a whiteout at `name` unless something is there; if that is a directory, a handle of it.
fn cover(upper: BorrowedFd<'_>, name: &[u8], form: WhiteoutForm) -> Sys<Option<OwnedFd>> {
    match file::stat_at(upper, name) {
        Ok(attr) if attr.kind == Kind::Dir => {
            file::openat(upper, name, libc::O_PATH | libc::O_DIRECTORY, 0).map(Some)
        }
        Ok(_) => Ok(None),
        Err(Errno::ENOENT) => match make_whiteout(upper, name, form) {
            Ok(()) | Err(Errno::EEXIST) => Ok(None),
            Err(e) => Err(e),
        },
        Err(e) => Err(e),
    }
}

fn mark_opaque(dir: BorrowedFd<'_>, features: Features) -> Sys<()> {
    if features.xattr {
        return set_opaque(dir);
    }
    file::openat(dir, WH_OPAQUE, libc::O_CREAT | libc::O_WRONLY, 0o600).map(drop)
}

/// Takes the opaque mark of the upper directory `dir` away, in whichever form it is there.
///
/// # Errors
/// As `removexattr(2)` and `unlinkat(2)` on one that is there.
pub fn clear_opaque(dir: BorrowedFd<'_>, features: Features, forced: Forced<'_>) -> Sys<()> {
    forced(dir, &|| super::codec::clear_opaque(dir))?;
    if features.whiteout != WhiteoutForm::Prefix {
        return Ok(());
    }
    match forced(dir, &|| file::unlinkat(dir, WH_OPAQUE)) {
        Err(Errno::ENOENT) => Ok(()),
        other => other,
    }
}
