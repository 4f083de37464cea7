//! What an application refuses before it touches anything.

use super::objects::Object;
use super::plan::Plan;
use super::{RootDirs, root_of};
use crate::base::{Error, Kind, RelPath, Result, What};
use std::os::fd::AsFd;

/// Refuses what cannot be applied, before anything is touched.
pub(super) fn preflight(roots: &[RootDirs], plan: &Plan) -> Result<()> {
    let is_root = crate::sys::process::effective_ids().0 == 0;
    for s in &plan.changes {
        let c = &s.change;
        let dirs = root_of(roots, c.root)?;
        let makes = matches!(c.what, What::Added | What::Modified | What::Typed) && s.content;
        match c.kind {
            Kind::Socket if makes => {
                return Err(Error::failure(format!("cannot apply the socket {}", c.path)).hint(
                    "a socket belongs to the process that listens on it: discard it, or leave it out",
                ));
            }
            Kind::Char | Kind::Block if makes && !is_root => {
                return Err(Error::failure(format!("cannot apply the {} {}", c.kind.word(), c.path))
                    .hint("only root may make a device: discard it, or leave it out"));
            }
            _ => {}
        }
        let told = |e| Error::on_path("look at", c.path.as_bytes(), e);
        let object = Object::find(dirs.upper.as_fd(), &c.path).map_err(told)?;
        if let Some(object) = &object
            && object.is_incomplete().map_err(told)?
        {
            return Err(Error::failure(format!("cannot apply {}: its copy is not complete", c.path))
                .hint("leave it out, or discard it"));
        }
        let now = object.map(|o| o.attr);
        let changed =
            s.upper.is_some_and(|was| now.is_none_or(|now| (now.ino, now.ctime) != (was.ino, was.ctime)));
        if changed {
            return Err(changed_in_session(&c.path));
        }
    }
    Ok(())
}

/// The session goes on while its changes are applied.
pub(super) fn changed_in_session(path: &RelPath) -> Error {
    Error::failure(format!("{path} changed in the session since it was compared")).hint(
        "nothing was applied; try again, and if a program of the session still writes to it, wait for its end or \
         leave it out",
    )
}
