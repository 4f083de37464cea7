//! Which other sessions changed the same real paths.

use super::output::count;
use crate::base::{Change, Result, quote};
use crate::journal;
use crate::review::Settled;
use crate::session::{Session, Store};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A sentence for each other session that changed paths which are among the changes `set` of this one.
///
/// # Errors
/// When the sessions cannot be listed. One that cannot be read is passed over: nothing can be applied from it.
pub(super) fn overlaps(session: &Session, set: &[Settled]) -> Result<Vec<String>> {
    let ours: HashSet<PathBuf> = set.iter().flat_map(|s| real_paths(session, &s.change)).collect();
    if ours.is_empty() {
        return Ok(Vec::new());
    }
    let meets = |a: &Path, b: &Path| a.starts_with(b) || b.starts_with(a);
    let mut told = Vec::new();
    for (name, other) in Store::open()?.list()? {
        let Ok(other) = other else { continue };
        let mut roots = other.meta.roots.iter().map(|r| r.path.as_path());
        let near = roots.any(|a| session.meta.roots.iter().any(|b| meets(a, b.path.as_path())));
        if name == session.name || !near {
            continue;
        }
        let theirs: Vec<PathBuf> = match &other.archived {
            Some(_) => other.archived_changes(),
            None => match journal::fold_dir(&other.journal_dir()) {
                Ok(folded) => folded.set.changes.iter().flat_map(|c| real_paths(&other, c)).collect(),
                Err(_) => continue,
            },
        };
        let mut both: Vec<PathBuf> = theirs.into_iter().filter(|p| ours.contains(p)).collect();
        both.sort();
        both.dedup();
        if let Some(first) = both.first() {
            let n = count(both.len(), "path", "paths");
            let first = quote(first.as_os_str().as_bytes());
            let archived = if other.archived.is_some() { "archived " } else { "" };
            told.push(format!(
                "{archived}session {name} changed {n} that this one changed as well, e.g. {first}"
            ));
        }
    }
    Ok(told)
}

/// Where a change is, or of a rename both ends, in the real tree.
pub(super) fn real_paths(session: &Session, change: &Change) -> Vec<PathBuf> {
    let Some(root) = session.meta.roots.get(usize::from(change.root)) else { return Vec::new() };
    let ends = std::iter::once(&change.path).chain(change.from.as_ref());
    ends.map(|p| root.path.as_path().join(OsStr::from_bytes(p.as_bytes()))).collect()
}
