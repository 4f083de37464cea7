//! Journal and upper made to agree again, after a crash or when they are found to differ.
//!
//! The upper is right about what is there, as it is what programs saw. Where the journal says something else, records
//! are appended that say what was found; nothing in the upper is changed.

use super::{Disagreement, RootDirs, Settled, agree, scan, settle};
use crate::base::{Attr, BaseId, Change, ChangeSet, Error, Kind, RelPath, Result, What};
use crate::journal::{self, Journal, Op, Record};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// What a journal and an upper disagree on.
#[derive(Debug)]
pub struct Differing {
    /// The paths.
    pub paths: Vec<Disagreement>,
    /// The settled changes that the upper shows.
    pub scan: Vec<Settled>,
    /// The same as the scan found them, with the identities that the upper remembers.
    raw: ChangeSet,
}

/// Compares what a journal folds to with a walk of the upper.
///
/// # Errors
/// When an object cannot be read.
pub fn compare(roots: &[RootDirs], set: &ChangeSet) -> Result<Differing> {
    let raw = scan(roots)?;
    let scan = settle(roots, &raw)?;
    let fold = settle(roots, set)?;
    Ok(Differing { paths: agree(&fold, &scan), scan, raw })
}

/// Appends to the journal in `dir` what makes it tell what the upper shows; returns on how many paths they differed.
///
/// # Errors
/// When journal or upper cannot be read, or the journal cannot be written.
pub fn repair(roots: &[RootDirs], dir: &Path, journal: &Journal) -> Result<usize> {
    let known = journal::fold_dir(dir)?.set;
    let differing = compare(roots, &known)?;
    let noted = differing.paths.len();
    if noted == 0 {
        return Ok(0);
    }
    for d in &differing.paths {
        note(journal, &differing, (d.root, &d.path), d.scan.as_ref(), 0, None)?;
    }
    journal.sync().map_err(written)?;
    let differing = compare(roots, &journal::fold_dir(dir)?.set)?;
    // Where renames were lost that others build on, path by path does not lead there: then all is told anew.
    let roots_left: BTreeSet<u16> = differing.paths.iter().map(|d| d.root).collect();
    if !roots_left.is_empty() {
        roots_left.iter().try_for_each(|&root| restate(journal, root, &differing, &known))?;
        journal.sync().map_err(written)?;
    }
    Ok(noted)
}

fn written(e: crate::base::Errno) -> Error {
    Error::sys("write the journal", e)
}

/// Tells all changes of a root anew. Who did them, and what was there before, is kept where the journal knew the same change.
fn restate(journal: &Journal, root: u16, differing: &Differing, known: &ChangeSet) -> Result<()> {
    let known: BTreeMap<&RelPath, &Change> =
        known.changes.iter().filter(|c| c.root == root).map(|c| (&c.path, c)).collect();
    append(journal, &Record { op: Op::Restated, root, ..empty() })?;
    // First all that is elsewhere leaves its place: whatever takes it is not what the real tree has there.
    let renamed = differing.scan.iter().filter(|s| s.change.root == root && s.change.what == What::Renamed);
    let mut left: Vec<_> = renamed.filter_map(|s| Some((s.change.from.clone()?, s))).collect();
    left.sort_by(|a, b| a.0.cmp(&b.0));
    for (path, s) in left {
        let base = s.real.as_ref().map(BaseId::of);
        append(journal, &Record { op: Op::FoundGone, root, path, kind: s.change.kind, base, ..empty() })?;
    }
    for s in differing.scan.iter().filter(|s| s.change.root == root) {
        let c = &s.change;
        let same = known.get(&c.path).filter(|k| (k.what, &k.from, k.kind) == (c.what, &c.from, c.kind));
        let proc = same.map_or(0, |k| k.last.proc);
        let base = same.and_then(|k| k.base.clone());
        note(journal, differing, (root, &c.path), Some(&(c.what, c.from.clone())), proc, base)?;
    }
    Ok(())
}

/// Appends what is at a path: the kind of change and, of a rename, the old path.
fn note(
    journal: &Journal,
    differing: &Differing,
    (root, path): (u16, &RelPath),
    is: Option<&(What, Option<RelPath>)>,
    proc: u32,
    base: Option<BaseId>,
) -> Result<()> {
    let raw = &differing.raw.changes;
    let raw = raw.binary_search_by(|c| (c.root, &c.path).cmp(&(root, path))).ok().map(|i| &raw[i]);
    let at = |s: &Settled| (s.change.root, &s.change.path).cmp(&(root, path));
    let found = differing.scan.binary_search_by(at).ok().map(|i| &differing.scan[i]);
    let base = raw
        .and_then(|c| c.base.clone())
        .or_else(|| found.and_then(|s| s.change.base.clone()))
        .or(base)
        .or_else(|| {
            found.filter(|s| s.change.what == What::Typed).and_then(|s| replaced(s, s.real.as_ref()))
        });
    let base2 = found.and_then(|s| replaced(s, s.over.as_ref()));
    let (op, path2) = match is {
        None => (Op::FoundSame, None),
        Some((What::Deleted, _)) => (Op::FoundGone, None),
        Some((What::Added | What::Typed, _)) => (Op::FoundPresent, None),
        Some((What::Renamed, from)) => (Op::FoundPresent, from.clone()),
        Some((What::Modified | What::Meta, _)) => {
            let real = found.and_then(|s| s.real_path.clone());
            (Op::FoundPresent, Some(real.unwrap_or_else(|| path.clone())))
        }
    };
    let kind = found.map_or(Kind::File, |s| s.change.kind);
    append(journal, &Record { op, root, path: path.clone(), path2, kind, base, base2, proc })
}

/// What the session's object took the place of, as long as that can be told: it is not younger.
fn replaced(s: &Settled, real: Option<&Attr>) -> Option<BaseId> {
    let (real, upper) = (real?, s.upper.as_ref()?);
    (real.ctime <= upper.btime).then(|| BaseId::of(real))
}

fn append(journal: &Journal, record: &Record) -> Result<()> {
    journal
        .append(record)
        .map(drop)
        .map_err(|e| Error::on_path("note in the journal", record.path.as_bytes(), e))
}

fn empty() -> Record {
    Record {
        op: Op::FoundSame,
        root: 0,
        path: RelPath::root(),
        path2: None,
        kind: Kind::Dir,
        base: None,
        base2: None,
        proc: 0,
    }
}
