//! Applying a choice: parts of files first, then what is chosen whole, each whole or not at all.

use super::super::changes::summary;
use super::super::context::Opened;
use super::super::paths;
use crate::base::{Error, Kind, RelPath, Result, quote};
use crate::journal::{Journal, Op, Record};
use crate::review::partial::{Moved, Part, apply_parts, check_parts, clear_parts, has_parts, left_over};
use crate::review::{self, Plan, Selection, Settled};
use crate::session::NewBase;
use std::collections::{BTreeMap, BTreeSet};

/// What is to be applied, by index into the set it was chosen from.
#[derive(Default)]
pub(super) struct Choice {
    /// Changes as a whole.
    pub(super) whole: Vec<usize>,
    /// Files with the content that the chosen lines make.
    pub(super) parts: Vec<(usize, Vec<u8>)>,
}

/// What came of it, in sentences.
pub(super) enum Outcome {
    Done(Vec<String>),
    /// Nothing was applied.
    Conflicts(Vec<String>),
}

/// The plan for the changes chosen whole. A directory's own change goes along only if all beneath it is chosen, or
/// if something needs it: a selection by path takes what is beneath.
fn plan_of(set: &[Settled], whole: &[usize]) -> Result<Plan> {
    if whole.is_empty() {
        return Ok(Plan::default());
    }
    if whole.len() == set.len() {
        return review::plan(set, &Selection::All);
    }
    let mut is_chosen = vec![false; set.len()];
    for &i in whole {
        is_chosen[i] = true;
    }
    // Per place: how many changes a selection of it takes, and how many of those are chosen.
    let mut places: BTreeMap<(u16, RelPath), (usize, usize)> = BTreeMap::new();
    for (s, chosen) in set.iter().zip(&is_chosen) {
        let c = &s.change;
        let all: BTreeSet<RelPath> = upwards(&c.path).chain(c.from.iter().flat_map(upwards)).collect();
        for path in all {
            let (total, taken) = places.entry((c.root, path)).or_default();
            (*total, *taken) = (*total + 1, *taken + usize::from(*chosen));
        }
    }
    // The topmost place of each that takes nothing else: a long list would be gone through for every change.
    let mut exact = BTreeSet::new();
    for &i in whole {
        let c = &set[i].change;
        let alone =
            |p: &RelPath| places.get(&(c.root, p.clone())).is_some_and(|(total, taken)| total == taken);
        let itself = (c.kind != Kind::Dir).then(|| c.path.clone());
        exact.extend(upwards(&c.path).take_while(alone).last().or(itself).map(|p| (c.root, p)));
    }
    review::plan(set, &Selection::Paths(exact.into_iter().collect()))
}

/// A path and the directories above it, the root last.
fn upwards(path: &RelPath) -> impl Iterator<Item = RelPath> {
    std::iter::successors(Some(path.clone()), RelPath::parent)
}

/// What to ask before; `None` when there is nothing to apply.
///
/// # Errors
/// When the changes cannot be put in order.
pub(super) fn question(set: &[Settled], choice: &Choice) -> Result<Option<String>> {
    if choice.whole.is_empty() && choice.parts.is_empty() {
        return Ok(None);
    }
    let plan = plan_of(set, &choice.whole)?;
    let mut words = Vec::new();
    if !plan.changes.is_empty() {
        words.push(summary(&plan.changes));
    }
    if !plan.pulled.is_empty() {
        words.push(format!("{} of it needed by others", plan.pulled.len()));
    }
    match choice.parts.len() {
        0 => {}
        1 => words.push("a part of 1 file".into()),
        n => words.push(format!("parts of {n} files")),
    }
    Ok(Some(format!("Apply {}?", words.join(", "))))
}

/// Applies the choice.
///
/// # Errors
/// When something cannot be applied. Parts and whole changes are two steps; the sentence says if the first was taken.
pub(super) fn carry_out(opened: &mut Opened, set: &[Settled], choice: Choice) -> Result<Outcome> {
    let plan = plan_of(set, &choice.whole)?;
    let made = |(i, content): (usize, Vec<u8>)| Part { settled: &set[i], content };
    let parts: Vec<Part<'_>> = choice.parts.into_iter().map(made).collect();
    let folded = &opened.folded;
    let replaced = |root: u16, path: &RelPath| folded.replaced.get(&(root, path.clone())).cloned();
    let mut conflicts = review::check(&opened.roots, &plan.changes, &replaced)?;
    conflicts.extend(check_parts(&opened.roots, &parts, &replaced)?);
    if !conflicts.is_empty() {
        let line = |c: &review::Conflict| {
            let path = quote(&paths::shown(&opened.session, c.root, &c.path));
            format!("conflict {path}: {}", c.why.sentence())
        };
        let mut lines: Vec<String> = conflicts.iter().map(line).collect();
        lines.push("nothing was applied".into());
        return Ok(Outcome::Conflicts(lines));
    }
    let mut said = Vec::new();
    if !parts.is_empty() {
        let count = parts.len();
        let resting = opened.live.is_none();
        let (report, moved) = apply_parts(&opened.roots, parts, resting, &mut |_| {}, &mut review::NoFault)?;
        note(opened, moved, &mut said)?;
        clear_parts(&opened.roots)?;
        said.extend(report.warnings.iter().map(|w| format!("warning: {w}")));
        said.push(match count {
            1 => "applied: a part of 1 file".into(),
            n => format!("applied: parts of {n} files"),
        });
    }
    if !plan.changes.is_empty() {
        let what = summary(&plan.changes);
        let report = opened
            .with_dropper(Op::Applied, |roots, dropper| review::apply(roots, &plan, dropper, &mut |_| {}));
        let report = report.map_err(|e| match said.last() {
            Some(before) => e.context(format!("{before}; the rest was not")),
            None => e,
        })?;
        said.extend(report.warnings.iter().map(|w| format!("warning: {w}")));
        for (root, path) in &report.kept {
            let path = quote(&paths::shown(&opened.session, *root, path));
            said.push(format!("{path} stays in the session: it changed again meanwhile"));
        }
        said.push(format!("applied: {what}"));
    }
    Ok(Outcome::Done(said))
}

/// Tells the journal of parts that a command applied that was killed before it could. Costs next to nothing when there
/// are none. The sentences say what was done.
///
/// # Errors
/// When files cannot be read or the journal not be written; the next command tries again.
pub(in crate::cli) fn finish_parts(opened: &mut Opened) -> Result<Vec<String>> {
    if !has_parts(&opened.roots)? {
        return Ok(Vec::new());
    }
    let resting = opened.live.is_none();
    let moved = left_over(&opened.roots, &opened.settled()?, resting)?;
    let count = moved.len();
    let mut said = Vec::new();
    if count > 0 {
        note(opened, moved, &mut said)?;
        opened.refold()?;
        said.push("an application of parts of files was interrupted after its last step: finished it".into());
    }
    // In a session that others use, one of them may just be staging.
    if resting || count > 0 {
        clear_parts(&opened.roots)?;
    }
    Ok(said)
}

/// Largest content whose bytes are kept as the base of a later merge.
const KEPT: usize = 128 << 10;

/// Tells the journal what the session's files are based on now: what was applied of them left, what is there is a
/// change of the new real file.
///
/// # Errors
/// When the journal cannot be written.
pub(in crate::cli) fn note(opened: &mut Opened, moved: Vec<Moved>, said: &mut Vec<String>) -> Result<()> {
    let Some(client) = &mut opened.live else { return note_resting(opened, &moved) };
    for m in moved {
        let file = NewBase { root: m.root, path: m.path, real: m.real, ino: m.ino, base: m.base };
        if !client.based_on(&file)? {
            let path = quote(&paths::shown(&opened.session, file.root, &file.path));
            said.push(format!("{path} is another file in the session by now: see sbx-fuse status"));
        }
    }
    Ok(())
}

/// The same in the journal of a session that rests.
fn note_resting(opened: &Opened, moved: &[Moved]) -> Result<()> {
    let (journal, _) = Journal::open(&opened.session.journal_dir())?;
    for m in moved {
        let failed = |e| Error::on_path("note in the journal", m.path.as_bytes(), e);
        let proc = journal.process(std::process::id());
        let record = |op, base| Record {
            op,
            root: m.root,
            path: m.path.clone(),
            path2: None,
            kind: Kind::File,
            base,
            base2: None,
            proc,
        };
        if let Some(hash) = m.base.hash.filter(|_| m.content.len() <= KEPT) {
            journal.put_base(&m.content, hash).map_err(failed)?;
        }
        journal.append(&record(Op::Applied, None)).map_err(failed)?;
        journal.append(&record(Op::Write, Some(m.base.clone()))).map_err(failed)?;
    }
    journal.close().map_err(|e| Error::sys("close the journal", e))
}
