//! From changes to decisions: scan, compare, diff, conflict, plan, apply, discard.
//!
//! Paths: a change is named by where it is in the *merged view*. Its object lies at that same path in the upper, and
//! at its *real path* in the real tree, which differs beneath a renamed directory. Everything is resolved beneath the
//! directory descriptors of a [`RootDirs`]; no symlink is ever followed.

mod aftermath;
pub mod apply;
mod attrs;
pub mod conflict;
mod copy;
pub mod diff;
pub mod discard;
pub mod export;
mod hunks;
mod intent;
mod marks;
mod merge;
mod objects;
pub mod offline;
mod originals;
mod pairs;
pub mod partial;
mod paths;
pub mod plan;
mod preflight;
mod recover;
pub mod repair;
mod replaced;
pub mod risk;
pub mod scan;
pub mod select;
pub mod settle;
mod token;
mod touched;
mod transaction;
mod undo;
mod unlocked;
mod vault;

pub use aftermath::Aftermath;
pub use apply::{Perms, Policy, Progress, Report, apply, apply_with};
pub use conflict::{Conflict, Why, check};
pub use diff::{Options, render, stat};
pub use discard::{Discarded, Dropper, Leave, Seen, discard, may_go};
pub use hunks::show_controls;
pub use marks::Marks;
pub use merge::{BytesOf, Rebased, has_markers, move_base, session_can_win};
pub use offline::Offline;
pub use originals::{KeepLimits, Kept, is_unfinished, kept, let_go};
pub use paths::merged;
pub use plan::{Plan, Selection, Step, plan};
pub use recover::{Recovery, recover};
pub use repair::{Differing, compare, repair};
pub use replaced::Replaced;
pub use risk::{Class, Rules, classify};
pub use scan::scan;
pub use settle::{Disagreement, MetaDiff, Settled, Twin, agree, settle};
pub use token::{changed_since, token};
pub use transaction::{Fault, NoFault};
pub use undo::{Moved, Undone, undo};

use crate::base::{Error, Result};
use crate::layer::Features;
use crate::sys::file;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The directories of one root of a session.
#[derive(Debug)]
pub struct RootDirs {
    /// Index of the root in its session.
    pub root: u16,
    /// The real tree (an `O_PATH` directory).
    pub real: OwnedFd,
    /// The session's upper (an `O_PATH` directory).
    pub upper: OwnedFd,
    /// Beside the upper, for temporary files (an `O_PATH` directory).
    pub work: OwnedFd,
    /// How whiteouts are written, and whether the upper holds xattrs.
    pub features: Features,
    /// Canonical absolute path of the real tree, for messages and headings.
    pub path: Vec<u8>,
    /// The directory in which the session logs what it applies and keeps what that replaced; made when needed.
    pub kept: PathBuf,
}

impl RootDirs {
    /// Opens the three directories as root 0; a session sets `root`, and `kept`, which is beside `work` otherwise.
    ///
    /// # Errors
    /// When a directory cannot be opened or `real` has no canonical path.
    pub fn open(real: &Path, upper: &Path, work: &Path, features: Features) -> Result<RootDirs> {
        let dir = |path: &Path| {
            let bytes = path.as_os_str().as_bytes();
            file::open_path(bytes, libc::O_PATH | libc::O_DIRECTORY)
                .map_err(|e| Error::on_path("open the directory", bytes, e))
        };
        let canonical = std::fs::canonicalize(real)
            .map_err(|e| Error::on_path("resolve", real.as_os_str().as_bytes(), e))?;
        Ok(RootDirs {
            root: 0,
            real: dir(&canonical)?,
            upper: dir(upper)?,
            work: dir(work)?,
            features,
            path: canonical.as_os_str().as_bytes().to_vec(),
            kept: work.parent().unwrap_or(work).join("apply"),
        })
    }
}

/// The root with index `root`.
///
/// # Errors
/// When the list has none such.
pub(crate) fn root_of(roots: &[RootDirs], root: u16) -> Result<&RootDirs> {
    roots
        .iter()
        .find(|r| r.root == root)
        .ok_or_else(|| Error::failure(format!("the session has no root number {root}")))
}

/// What `each` makes of `items`, in order: it gets them in as many parts as there are processors, if that is worth it.
///
/// # Errors
/// What `each` returns, or when a thread cannot be started.
pub(crate) fn in_parts<T: Sync, R: Send>(
    items: &[T],
    each: impl Fn(&[T]) -> Result<Vec<R>> + Sync,
) -> Result<Vec<R>> {
    const WORTH: usize = 1000;
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let parts = processors.min(items.len() / WORTH).max(1);
    if parts == 1 {
        return each(items);
    }
    std::thread::scope(|scope| {
        let each = &each;
        let threads: Vec<_> = items
            .chunks(items.len().div_ceil(parts))
            .map(|part| std::thread::Builder::new().spawn_scoped(scope, move || each(part)))
            .collect();
        let mut all = Vec::new();
        for thread in threads {
            let thread = thread.map_err(|e| Error::sys("start a thread", e))?;
            match thread.join() {
                Ok(some) => all.extend(some?),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok(all)
    })
}
