//! Real objects that count as untouched although their change time moved, because it was us who moved it.
//!
//! Where a session has no note of what a real object was, a change time after the session's own change is taken for
//! somebody else's work. Applying, taking back and undoing move change times, too: of the directories in which they put
//! things, and of all that they move away and back.

use super::intent::{Id, Op, Place, Space, Stamp};
use super::transaction::Spaces;
use crate::base::{Attr, Error, Kind, RelPath, Result, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The file, beside the applications.
const NAME: &str = "touched";
/// So many objects are remembered. Of others, what we did shows as a conflict.
const MANY: usize = 1 << 16;
/// So many renames of directories in one application are followed.
const FOLLOWED: usize = 1000;

/// The change times that our last work left: by device and inode.
#[derive(Debug, Default)]
pub(crate) struct Touched(BTreeMap<(u64, u64), Time>);

impl Touched {
    /// What was noted in the vault at `kept`.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn read(kept: &Path) -> Result<Touched> {
        let at = kept.join(NAME);
        let text = match std::fs::read(&at) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Touched::default()),
            other => other.map_err(|e| Error::on_path("read", at.as_os_str().as_bytes(), e))?,
        };
        let all: Vec<(u64, u64, Time)> = serde_json::from_slice(&text).unwrap_or_else(|e| {
            // It is renamed into place, so that only a failing disk can do this. It may be lost.
            tracing::warn!("{} is damaged: {e}", at.display());
            Vec::new()
        });
        Ok(Touched(all.into_iter().map(|(dev, ino, ctime)| ((dev, ino), ctime)).collect()))
    }

    /// Whether nobody did anything to this object since we did.
    pub fn explains(&self, attr: &Attr) -> bool {
        self.0.get(&(attr.dev, attr.ino)) == Some(&attr.ctime)
    }

    fn write(&self, kept: &Path) -> Result<()> {
        let told = |e: std::io::Error| Error::on_path("write in", kept.as_os_str().as_bytes(), e);
        let all: Vec<_> = self.0.iter().map(|(&(dev, ino), ctime)| (dev, ino, ctime)).collect();
        let text = serde_json::to_vec(&all).map_err(|e| told(e.into()))?;
        let temp = kept.join(format!("{NAME}.new"));
        std::fs::File::create(&temp).and_then(|mut file| file.write_all(&text)).map_err(told)?;
        std::fs::rename(&temp, kept.join(NAME)).map_err(told)
    }
}

/// What became of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// They were done; only directories are as they were.
    Done,
    /// They were done and took back others: what they moved is as it was before those.
    Restored,
    /// They were taken back.
    TakenBack,
}

/// Notes what the operations `ops` have left as it was but for its change time, as far as nobody else wrote to it
/// meanwhile. The lock of the vault is held.
///
/// # Errors
/// When it cannot be written. Then what is missing may show as a conflict.
pub(crate) fn note(spaces: &Spaces<'_>, ops: &[Op], fate: Fate) -> Result<()> {
    let Some(first) = spaces.roots.first() else { return Ok(()) };
    let mut touched = Touched::read(&first.kept)?;
    let mut add = |at: &Place, was: &dyn Fn(&Attr) -> bool| {
        if at.space != Space::Kept
            && let Ok(Some(attr)) = spaces.stat(at)
            && (attr.kind == Kind::Dir || fate != Fate::Done && was(&attr))
            && touched.0.len() < MANY
        {
            touched.0.insert((attr.dev, attr.ino), attr.ctime);
        }
    };
    let mut dirs: BTreeSet<Place> =
        spaces.roots.iter().map(|r| Place::real(r.root, &RelPath::root())).collect();
    // Of what was done for good only directories count: there may be files by the hundred thousand.
    let counts = |kind: Kind| fate != Fate::Done || kind == Kind::Dir;
    for (op, paths) in with_paths_now(ops, fate) {
        let [at, other] = &paths;
        match op {
            Op::Move { id, was, .. } if counts(id.kind) => {
                let untouched = |a: &Attr| Id::of(a) == *id && was.is_some_and(|was| Stamp::of(a) == was);
                add(at, &untouched);
                add(other, &untouched);
            }
            Op::Swap { one_id, was, .. } if counts(one_id.kind) => {
                let untouched = |a: &Attr| Id::of(a) == *one_id && was.is_some_and(|was| Stamp::of(a) == was);
                add(at, &untouched);
                add(other, &untouched);
            }
            Op::Attrs { saved, .. } | Op::Bytes { saved, .. } if counts(saved.attr.kind) => {
                let same = |a: &Attr| Stamp::of(a) == Stamp::of(&saved.attr);
                add(at, &|a| Id::of(a) == Id::of(&saved.attr) && same(a));
            }
            _ => {}
        }
        dirs.extend(paths.iter().filter_map(|p| Some(Place { path: p.path.parent()?, space: p.space })));
    }
    dirs.iter().for_each(|at| add(at, &|_| false));
    if touched.0.len() >= MANY {
        touched.0.clear();
    }
    touched.write(&first.kept)
}

/// The operations that touch names, each with the one or two (else the same twice) that it has touched, as these are now:
/// directories around them may have moved before or since.
fn with_paths_now(ops: &[Op], fate: Fate) -> Vec<(&Op, [Place; 2])> {
    // Of operations that were taken back those before count, backwards; else those after.
    let mut moved: Vec<(&Place, &Place)> = Vec::new();
    let mut found = Vec::new();
    let mut order: Vec<&Op> = ops.iter().collect();
    if fate != Fate::TakenBack {
        order.reverse();
    }
    for op in order {
        let (a, b) = match op {
            Op::Move { from, to, .. } => (from, to),
            Op::Swap { one, other, .. } => (one, other),
            Op::Mkdir { at } | Op::Rmdir { at, .. } | Op::Attrs { at, .. } | Op::Bytes { at, .. } => (at, at),
            Op::Make { .. } | Op::Times { .. } | Op::Copied { .. } | Op::Unswapped { .. } => continue,
        };
        let now = |at: &Place| moved.iter().rev().fold(at.clone(), |at, (was, is)| follow(at, was, is));
        // Who moves this many loses some: following each through all others would take for ever.
        let now = |at: &Place| if moved.len() < FOLLOWED { now(at) } else { at.clone() };
        let paths = [now(a), now(b)];
        let is_dir = |id: &Id| id.kind == Kind::Dir;
        match op {
            Op::Move { from, to, id, .. } if is_dir(id) => {
                moved.push(if fate == Fate::TakenBack { (to, from) } else { (from, to) });
            }
            Op::Swap { one, other, one_id, other_id, .. } if is_dir(one_id) || is_dir(other_id) => {
                // The other way round for what was at the other; of the two only one is looked at.
                moved.push(if fate == Fate::TakenBack { (other, one) } else { (one, other) });
            }
            _ => {}
        }
        found.push((op, paths));
    }
    found
}

/// Where `at` is when what was at `was` is at `is`.
fn follow(at: Place, was: &Place, is: &Place) -> Place {
    match at.path.strip_prefix(&was.path).filter(|_| at.space == was.space) {
        Some(rest) => Place { space: is.space, path: super::paths::under(&is.path, &rest) },
        None => at,
    }
}
