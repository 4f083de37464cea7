//! After a crash: journal and upper made to agree again.
//!
//! The upper is right about what is there, as it is what programs saw. Where the journal says something else, records
//! are appended that say what was found; nothing in the upper is changed.

use super::output;
use crate::base::{Change, ChangeSet, Error, Kind, RelPath, Result, What};
use crate::journal::{self, Folded, Journal, Op, Record};
use crate::review::{self, Disagreement, RootDirs, Settled};
use crate::session::Session;

/// Folds the journal of a session whose lock is ours; when its last writer did not close it in good order, compares it
/// with the upper first and adds what was lost. `said` gets a sentence on each repair.
///
/// # Errors
/// When journal or upper cannot be read, or the journal cannot be written.
pub(super) fn reconcile(session: &Session, roots: &[RootDirs], said: &mut Vec<String>) -> Result<Folded> {
    let dir = session.journal_dir();
    match dir.join("log").symlink_metadata() {
        Ok(_) => {
            let folded = journal::fold_dir(&dir)?;
            if folded.clean {
                return Ok(folded);
            }
        }
        // Never served; a server makes the log before anything else.
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return Ok(Folded { clean: true, ..Folded::default() });
        }
        Err(e) => return Err(Error::sys("look at the journal", e)),
    }
    let (journal, opening) = Journal::open(&dir)?;
    said.push("its server ended without closing the journal".into());
    if opening.cut_bytes > 0 {
        let bytes = output::count(usize::try_from(opening.cut_bytes).unwrap_or(usize::MAX), "byte", "bytes");
        said.push(format!("cut {bytes} of an unfinished record off the journal"));
    }
    let differing = compare(roots, &journal::fold_dir(&dir)?.set)?;
    let added = note(&journal, &differing)?;
    journal.close().map_err(|e| Error::sys("close the journal", e))?;
    said.push(match added {
        0 => "journal and files agree".into(),
        n => format!("noted {} that the journal did not know", output::count(n, "change", "changes")),
    });
    journal::fold_dir(&dir)
}

/// What journal and upper disagree on.
pub(super) struct Differing {
    /// The paths.
    pub(super) paths: Vec<Disagreement>,
    /// The settled changes that the upper shows.
    pub(super) scan: Vec<Settled>,
    /// The same as the scan found them, with the identities that the upper remembers.
    raw: ChangeSet,
}

/// Compares what a journal folds to with a walk of the upper.
///
/// # Errors
/// When an object cannot be read.
pub(super) fn compare(roots: &[RootDirs], set: &ChangeSet) -> Result<Differing> {
    let raw = review::scan(roots)?;
    let scan = review::settle(roots, &raw)?;
    let fold = review::settle(roots, set)?;
    Ok(Differing { paths: review::agree(&fold, &scan), scan, raw })
}

/// Appends what was found to the journal, parents first; returns how many paths that were.
///
/// # Errors
/// When the journal cannot be written.
pub(super) fn note(journal: &Journal, differing: &Differing) -> Result<usize> {
    for d in &differing.paths {
        let at = |set: &[Change]| {
            set.binary_search_by(|c| (c.root, &c.path).cmp(&(d.root, &d.path))).ok().map(|i| set[i].clone())
        };
        let settled = differing.scan.iter().map(|s| &s.change);
        let found = settled.clone().find(|c| c.root == d.root && c.path == d.path);
        let base =
            at(&differing.raw.changes).and_then(|c| c.base).or_else(|| found.and_then(|c| c.base.clone()));
        let (op, path2) = match &d.scan {
            None => (Op::FoundSame, None),
            Some((What::Deleted, _)) => (Op::FoundGone, None),
            Some((What::Added | What::Typed, _)) => (Op::FoundPresent, None),
            Some((What::Renamed, from)) => (Op::FoundPresent, from.clone()),
            Some((What::Modified | What::Meta, _)) => (Op::FoundPresent, Some(real_path(differing, d))),
        };
        let kind = found.map_or(Kind::File, |c| c.kind);
        let record =
            Record { op, root: d.root, path: d.path.clone(), path2, kind, base, base2: None, proc: 0 };
        journal.append(&record).map_err(|e| Error::on_path("note in the journal", d.path.as_bytes(), e))?;
    }
    journal.sync().map_err(|e| Error::sys("write the journal", e))?;
    Ok(differing.paths.len())
}

fn real_path(differing: &Differing, d: &Disagreement) -> RelPath {
    let found = differing.scan.iter().find(|s| s.change.root == d.root && s.change.path == d.path);
    found.and_then(|s| s.real_path.clone()).unwrap_or_else(|| d.path.clone())
}
