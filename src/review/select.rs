//! One changed text file line by line, and the content that a choice of its lines makes.

use super::hunks::{CONTEXT, Text, range};
use super::objects::Object;
use super::settle::Settled;
use super::{RootDirs, diff, root_of};
use crate::base::{Error, Kind, Result, What};
use std::os::fd::AsFd;

/// Files above this many bytes are taken whole or not at all.
const LARGEST: u64 = 8 << 20;

/// What a line of a hunk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// On both sides.
    Same,
    /// Only in the real file.
    Removed,
    /// Only in the session's.
    Added,
}

/// One line of a hunk.
#[derive(Clone, Debug)]
pub struct Line {
    /// What it is.
    pub sign: Sign,
    /// Its bytes, with the newline where it has one.
    pub text: Vec<u8>,
    /// Number of the change among all of the file, from 0; none for a line on both sides.
    pub id: Option<u32>,
}

/// Lines that differ, with three lines around them.
#[derive(Clone, Debug)]
pub struct Hunk {
    /// `@@ -1,6 +1,7 @@`.
    pub header: String,
    /// Its lines in order.
    pub lines: Vec<Line>,
}

impl Hunk {
    /// The numbers of its changes.
    pub fn ids(&self) -> impl Iterator<Item = u32> {
        self.lines.iter().filter_map(|l| l.id)
    }
}

/// A changed text file.
#[derive(Clone, Debug)]
pub struct FileLines {
    /// Its hunks in order.
    pub hunks: Vec<Hunk>,
    before: Vec<u8>,
    after: Vec<u8>,
}

impl FileLines {
    /// Compares two contents.
    pub fn new(before: Vec<u8>, after: Vec<u8>) -> FileLines {
        let hunks = hunks(&Text::new(&before, &after));
        FileLines { hunks, before, after }
    }

    /// How many changes of lines there are.
    pub fn changes(&self) -> u32 {
        self.hunks.iter().map(|h| h.ids().count() as u32).sum()
    }

    /// The real content with the chosen changes made in it.
    pub fn merged(&self, chosen: &dyn Fn(u32) -> bool) -> Vec<u8> {
        let text = Text::new(&self.before, &self.after);
        let mut out: Vec<u8> = Vec::with_capacity(self.after.len());
        let mut push = |line: &[u8]| {
            // Only the last line may lack its newline, and which is last depends on the choice.
            if out.last().is_some_and(|&b| b != b'\n') {
                out.push(b'\n');
            }
            out.extend_from_slice(line);
        };
        let (mut at, mut id) = (0, 0);
        for (before, after) in text.changes() {
            (at..before.start).for_each(|i| push(text.before(i)));
            for i in before.clone() {
                if !chosen(id) {
                    push(text.before(i));
                }
                id += 1;
            }
            for i in after {
                if chosen(id) {
                    push(text.after(i));
                }
                id += 1;
            }
            at = before.end;
        }
        (at..text.len_before()).for_each(|i| push(text.before(i)));
        out
    }
}

fn hunks(text: &Text<'_>) -> Vec<Hunk> {
    let changes = text.changes();
    let mut groups: Vec<&[_]> = Vec::new();
    let mut start = 0;
    for i in 1..=changes.len() {
        let far = i == changes.len() || changes[i].0.start - changes[i - 1].0.end > 2 * CONTEXT;
        if far && start < i {
            groups.push(&changes[start..i]);
            start = i;
        }
    }
    let mut id = 0;
    groups.into_iter().filter_map(|group| hunk(text, group, &mut id)).collect()
}

fn hunk(
    text: &Text<'_>,
    group: &[(std::ops::Range<u32>, std::ops::Range<u32>)],
    id: &mut u32,
) -> Option<Hunk> {
    let (first, last) = (group.first()?, group.last()?);
    let lead = first.0.start.min(CONTEXT);
    let start = (first.0.start - lead, first.1.start - lead);
    let tail = (text.len_before() - last.0.end).min(CONTEXT);
    let lens = (last.0.end + tail - start.0, last.1.end + tail - start.1);
    let header = format!("@@ -{} +{} @@", range(start.0, lens.0), range(start.1, lens.1));
    let mut lines = Vec::new();
    let mut push = |sign, line: &[u8], id: Option<u32>| lines.push(Line { sign, text: line.to_vec(), id });
    let mut at = start.0;
    let mut next = || {
        *id += 1;
        Some(*id - 1)
    };
    for (before, after) in group {
        (at..before.start).for_each(|i| push(Sign::Same, text.before(i), None));
        before.clone().for_each(|i| push(Sign::Removed, text.before(i), next()));
        after.clone().for_each(|i| push(Sign::Added, text.after(i), next()));
        at = before.end;
    }
    (at..at + tail).for_each(|i| push(Sign::Same, text.before(i), None));
    Some(Hunk { header, lines })
}

/// The lines of a change of which a part can be applied: a text file that both sides have under one name. `None` for
/// all others.
///
/// # Errors
/// When a side cannot be read.
pub fn lines(roots: &[RootDirs], s: &Settled) -> Result<Option<FileLines>> {
    let c = &s.change;
    let Some(real) = s.real_path.as_ref().filter(|_| c.what == What::Modified && c.kind == Kind::File) else {
        return Ok(None);
    };
    let dirs = root_of(roots, c.root)?;
    let failed = |e| Error::on_path("read", c.path.as_bytes(), e);
    let sides = (
        Object::find(dirs.real.as_fd(), real).map_err(failed)?,
        Object::find(dirs.upper.as_fd(), &c.path).map_err(failed)?,
    );
    let (Some(before), Some(after)) = sides else { return Ok(None) };
    let fits = |o: &Object| o.attr.kind == Kind::File && o.attr.size <= LARGEST;
    if !fits(&before) || !fits(&after) {
        return Ok(None);
    }
    let (before, after) = (diff::read_all(&before).map_err(failed)?, diff::read_all(&after).map_err(failed)?);
    if before.contains(&0) || after.contains(&0) || before == after {
        return Ok(None);
    }
    Ok(Some(FileLines::new(before, after)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_choice_of_hunks_is_that_choice_and_no_other() {
        let before: String = (0..30).map(|i| format!("{i}\n")).collect();
        let after =
            before.replace("\n2\n", "\ntwo\n").replace("\n15\n", "\n").replace("\n28\n", "\n28\nmore\n");
        let file = FileLines::new(before.clone().into_bytes(), after.clone().into_bytes());
        assert_eq!(file.hunks.len(), 3);
        assert_eq!(file.merged(&|_| false), before.as_bytes());
        assert_eq!(file.merged(&|_| true), after.as_bytes());
        let middle: Vec<u32> = file.hunks[1].ids().collect();
        assert_eq!(file.merged(&|id| middle.contains(&id)), before.replace("\n15\n", "\n").as_bytes());
    }

    #[test]
    fn a_part_without_the_last_newline_runs_no_lines_together() {
        let file = FileLines::new(b"a".to_vec(), b"a\nb".to_vec());
        let added =
            file.hunks[0].lines.iter().filter(|l| l.sign == Sign::Added).filter_map(|l| l.id).next_back();
        assert_eq!(file.merged(&|id| Some(id) == added), b"a\nb");
    }

    proptest::proptest! {
        #[test]
        fn all_or_nothing_is_one_of_the_sides(
            before in proptest::collection::vec(proptest::sample::select(b"ab\n\x1b\xff".to_vec()), 0..60),
            after in proptest::collection::vec(proptest::sample::select(b"ab\n\x1b\xff".to_vec()), 0..60),
            mask in proptest::num::u64::ANY,
        ) {
            let file = FileLines::new(before.clone(), after.clone());
            proptest::prop_assert_eq!(file.merged(&|_| false), before);
            proptest::prop_assert_eq!(file.merged(&|_| true), after);
            file.merged(&|id| mask & (1 << (id % 64)) != 0);
        }
    }
}
