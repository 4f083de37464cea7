//! What the review shows and what is chosen: a tree of rows over the changes, a diff beside it, and what a key does to
//! both. Nothing here draws or touches a file.

use super::text::{Body, DiffLine};
use crate::base::{Kind, RelPath, quote};
use crate::review::{Class, Settled};
use std::collections::{BTreeSet, HashSet};

/// How much of a change is chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Pick {
    /// Nothing.
    #[default]
    Nothing,
    /// All of it.
    Whole,
    /// These changed lines of it.
    Lines(BTreeSet<u32>),
}

/// One row of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Row {
    /// A heading: risky changes, others, noise.
    Heading(String),
    /// A directory of the plain changes: how deep, its key, its name, whether it is open, and its changes as a range of
    /// `State::plain`.
    Dir { depth: usize, key: (u16, RelPath), name: String, open: bool, range: std::ops::Range<usize> },
    /// A group of noise, and its changes as a range of `State::noise`.
    Group { name: String, open: bool, range: std::ops::Range<usize> },
    /// A change, by index; how deep, and what is shown of its path.
    Change { depth: usize, index: usize, name: String },
}

/// Which side the keys go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Focus {
    Tree,
    Diff,
}

/// What lies over both sides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Over {
    Nothing,
    /// A search that is being typed.
    Search(String),
    /// A question: applied on `y`.
    Confirm(String),
    /// Something to read; any key takes it away.
    Message(Vec<String>),
}

/// How a change's path is shown, unquoted.
pub(super) type Naming = Box<dyn Fn(&Settled) -> Vec<u8>>;

/// Everything.
pub(super) struct State {
    pub(super) set: Vec<Settled>,
    pub(super) classes: Vec<Class>,
    /// How each change's path is shown.
    names: Naming,
    pub(super) picks: Vec<Pick>,
    pub(super) reviewed: Vec<bool>,
    risky: Vec<usize>,
    plain: Vec<usize>,
    noise: Vec<usize>,
    closed: HashSet<(u16, RelPath)>,
    open_groups: HashSet<String>,
    pub(super) rows: Vec<Row>,
    pub(super) at: usize,
    pub(super) focus: Focus,
    pub(super) over: Over,
    search: String,
    /// The diff of the change under the cursor: its index and its lines.
    pub(super) body: Option<(usize, Body)>,
    pub(super) line: usize,
    /// Columns of the diff that are out of sight on the left.
    pub(super) shift: usize,
    /// Where a range of lines begins.
    pub(super) anchor: Option<usize>,
    /// Rows of a page, as last drawn.
    pub(super) page: usize,
}

impl State {
    pub(super) fn new(set: Vec<Settled>, classes: Vec<Class>, names: Naming) -> State {
        let by_parts = |&a: &usize, &b: &usize| {
            let key = |i: usize| (set[i].change.root, set[i].change.path.components());
            let ((ra, a), (rb, b)) = (key(a), key(b));
            ra.cmp(&rb).then_with(|| a.cmp(b))
        };
        let with = |rank: u8| (0..set.len()).filter(|&i| classes[i].rank() == rank).collect::<Vec<_>>();
        let (risky, mut plain, mut noise) = (with(0), with(1), with(2));
        plain.sort_by(by_parts);
        let group = |i: usize| match &classes[i] {
            Class::Noise(group) => group.clone(),
            _ => String::new(),
        };
        noise.sort_by_cached_key(|&i| group(i));
        let count = set.len();
        let mut state = State {
            set,
            classes,
            names,
            picks: vec![Pick::Nothing; count],
            reviewed: vec![false; count],
            risky,
            plain,
            noise,
            closed: HashSet::new(),
            open_groups: HashSet::new(),
            rows: Vec::new(),
            at: 0,
            focus: Focus::Tree,
            over: Over::Nothing,
            search: String::new(),
            body: None,
            line: 0,
            shift: 0,
            anchor: None,
            page: 10,
        };
        state.lay_out();
        state.at = state.rows.iter().position(|r| !matches!(r, Row::Heading(_))).unwrap_or(0);
        state
    }

    /// A change's path as a person reads it.
    pub(super) fn shown(&self, index: usize) -> String {
        quote(&(self.names)(&self.set[index]))
    }

    /// Works out the rows anew, after something was opened or closed.
    fn lay_out(&mut self) {
        let mut rows = Vec::new();
        if !self.risky.is_empty() {
            rows.push(Row::Heading(format!("look first ({})", self.risky.len())));
            rows.extend(self.risky.iter().map(|&i| Row::Change { depth: 0, index: i, name: self.shown(i) }));
        }
        if !self.plain.is_empty() {
            rows.push(Row::Heading(format!("changes ({})", self.plain.len())));
            self.tree(0..self.plain.len(), 0, &mut rows);
        }
        if !self.noise.is_empty() {
            rows.push(Row::Heading(format!("build output, ignored ({})", self.noise.len())));
            self.groups(&mut rows);
        }
        self.rows = rows;
        self.at = self.at.min(self.rows.len().saturating_sub(1));
    }

    /// Rows of the plain changes in `range`, which share their first `depth` names.
    fn tree(&self, range: std::ops::Range<usize>, depth: usize, rows: &mut Vec<Row>) {
        // Without recursion: a path may be thousands of names deep.
        let mut todo = vec![(range, depth)];
        while let Some((range, depth)) = todo.pop() {
            let Some(&first) = self.plain.get(range.start).filter(|_| !range.is_empty()) else { continue };
            let c = &self.set[first].change;
            let name = |i: usize| self.set[i].change.path.components().nth(depth);
            let Some(part) = name(first) else {
                rows.push(Row::Change { depth, index: first, name: ".".into() });
                todo.push((range.start + 1..range.end, depth));
                continue;
            };
            let same = |&i: &usize| self.set[i].change.root == c.root && name(i) == Some(part);
            let len = self.plain[range.clone()].partition_point(same).max(1);
            let here = range.start..range.start + len;
            todo.push((here.end..range.end, depth));
            let is_own = c.path.components().count() == depth + 1;
            if len == 1 && is_own && c.kind != Kind::Dir {
                rows.push(Row::Change { depth, index: first, name: self.leaf(first, part) });
                continue;
            }
            let parts = c.path.components().take(depth + 1);
            let path = parts.fold(RelPath::root(), |path, part| path.join(part));
            let key = (c.root, path);
            let open = !self.closed.contains(&key);
            let name = quote(&[part, b"/"].concat());
            rows.push(Row::Dir { depth, key, name, open, range: here.clone() });
            if open {
                let own = here.start + usize::from(is_own);
                todo.push((own..here.end, depth + 1));
            }
        }
    }

    fn leaf(&self, index: usize, part: &[u8]) -> String {
        match &self.set[index].change.from {
            Some(from) => format!("{} <- {from}", quote(part)),
            None => quote(part),
        }
    }

    fn groups(&self, rows: &mut Vec<Row>) {
        let group = |i: usize| match &self.classes[i] {
            Class::Noise(group) => group.as_str(),
            _ => "",
        };
        let mut start = 0;
        while start < self.noise.len() {
            let name = group(self.noise[start]);
            let len = self.noise[start..].iter().take_while(|&&i| group(i) == name).count().max(1);
            let range = start..start + len;
            let open = self.open_groups.contains(name);
            rows.push(Row::Group { name: name.to_owned(), open, range: range.clone() });
            if open {
                let change = |&i: &usize| Row::Change { depth: 1, index: i, name: self.shown(i) };
                rows.extend(self.noise[range].iter().map(change));
            }
            start += len;
        }
    }

    /// The changes that a row stands for.
    pub(super) fn members<'a>(&'a self, row: &'a Row) -> &'a [usize] {
        match row {
            Row::Heading(_) => &[],
            Row::Dir { range, .. } => self.plain.get(range.clone()).unwrap_or_default(),
            Row::Group { range, .. } => self.noise.get(range.clone()).unwrap_or_default(),
            Row::Change { index, .. } => std::slice::from_ref(index),
        }
    }

    /// The change whose diff is to be shown: that of the row, or a directory's own.
    pub(super) fn current(&self) -> Option<usize> {
        self.current_of(self.rows.get(self.at)?)
    }

    /// The same for any row.
    pub(super) fn current_of(&self, row: &Row) -> Option<usize> {
        match row {
            Row::Change { index, .. } => Some(*index),
            Row::Dir { key, range, .. } => {
                let first = *self.plain.get(range.start)?;
                (self.set[first].change.path == key.1).then_some(first)
            }
            _ => None,
        }
    }

    /// Whether the cursor is on a directory.
    pub(super) fn is_dir(&self) -> bool {
        matches!(self.rows.get(self.at), Some(Row::Dir { .. }))
    }

    /// Changes of which something is chosen.
    pub(super) fn chosen(&self) -> usize {
        self.picks.iter().filter(|p| **p != Pick::Nothing).count()
    }

    pub(super) fn move_by(&mut self, by: isize) {
        let moved = |at: usize, len: usize| at.saturating_add_signed(by).min(len.saturating_sub(1));
        match self.focus {
            Focus::Tree => {
                self.at = moved(self.at, self.rows.len());
                // A heading is stepped over, unless it is the first or last row.
                if matches!(self.rows.get(self.at), Some(Row::Heading(_))) {
                    let step = if by < 0 && self.at > 0 { -1 } else { 1 };
                    self.at = self.at.saturating_add_signed(step).min(self.rows.len().saturating_sub(1));
                }
            }
            Focus::Diff => self.line = moved(self.line, self.lines().len()),
        }
    }

    pub(super) fn lines(&self) -> &[DiffLine] {
        self.body.as_ref().map_or(&[], |(_, body)| &body.lines)
    }

    /// To the next hunk of the diff, or the one before.
    pub(super) fn next_hunk(&mut self, forward: bool) {
        let lines = self.lines();
        let starts = |i: &usize| lines[*i].is_header;
        let found = match forward {
            true => (self.line + 1..lines.len()).find(starts),
            false => (0..self.line).rev().find(starts),
        };
        self.line = found.unwrap_or(self.line);
    }

    /// Opens or closes the directory or group under the cursor.
    pub(super) fn toggle_open(&mut self) {
        match self.rows.get(self.at).cloned() {
            Some(Row::Dir { key, .. }) => {
                if !self.closed.remove(&key) {
                    self.closed.insert(key);
                }
            }
            Some(Row::Group { name, .. }) => {
                if !self.open_groups.remove(&name) {
                    self.open_groups.insert(name);
                }
            }
            _ => return,
        }
        self.lay_out();
    }

    /// Closes the directory or group that the row lies in, and goes there.
    pub(super) fn close_parent(&mut self) {
        if let Some(Row::Dir { open: true, .. } | Row::Group { open: true, .. }) = self.rows.get(self.at) {
            return self.toggle_open();
        }
        let depth = |row: &Row| match row {
            Row::Dir { depth, .. } | Row::Change { depth, .. } => *depth,
            _ => 0,
        };
        let Some(mine) = self.rows.get(self.at).map(depth).filter(|d| *d > 0) else { return };
        let above = |&i: &usize| match &self.rows[i] {
            Row::Dir { depth, .. } => *depth < mine,
            Row::Group { .. } => true,
            _ => false,
        };
        if let Some(up) = (0..self.at).rev().find(above) {
            self.at = up;
            self.toggle_open();
        }
    }

    /// Opens all noise, or closes it.
    pub(super) fn toggle_noise(&mut self) {
        if self.open_groups.is_empty() {
            let groups = self.rows.iter().filter_map(|r| match r {
                Row::Group { name, .. } => Some(name.clone()),
                _ => None,
            });
            self.open_groups = groups.collect();
        } else {
            self.open_groups.clear();
        }
        self.lay_out();
    }

    /// Chooses what the row stands for, or no longer.
    pub(super) fn toggle_row(&mut self) {
        let Some(row) = self.rows.get(self.at) else { return };
        let members = self.members(row).to_vec();
        self.toggle(&members);
    }

    /// Chooses everything, or nothing.
    pub(super) fn toggle_all(&mut self) {
        let all: Vec<usize> = (0..self.set.len()).collect();
        self.toggle(&all);
    }

    fn toggle(&mut self, members: &[usize]) {
        let all = members.iter().all(|&i| self.picks[i] == Pick::Whole);
        for &i in members {
            self.picks[i] = if all { Pick::Nothing } else { Pick::Whole };
        }
    }

    /// Marks what the row stands for as reviewed, or no longer; which changes that are, and whether they are marked now.
    pub(super) fn toggle_reviewed(&mut self) -> (Vec<usize>, bool) {
        let Some(row) = self.rows.get(self.at) else { return (Vec::new(), false) };
        let members = self.members(row).to_vec();
        let all = members.iter().all(|&i| self.reviewed[i]);
        for &i in &members {
            self.reviewed[i] = !all;
        }
        (members, !all)
    }

    /// Chooses lines of the diff: a range when one was begun, else the hunk under the cursor, or with `one` its line.
    pub(super) fn toggle_lines(&mut self, one: bool) {
        let Some((index, body)) = &self.body else { return };
        let (index, total) = (*index, body.changes);
        let Some(at) = body.lines.get(self.line) else { return };
        let ids: Vec<u32> = match self.anchor.take() {
            Some(from) => {
                let (a, b) = (from.min(self.line), from.max(self.line));
                body.lines.iter().take(b + 1).skip(a).filter_map(|l| l.id).collect()
            }
            None if one => at.id.into_iter().collect(),
            None => body.lines.iter().filter(|l| l.hunk == at.hunk).filter_map(|l| l.id).collect(),
        };
        if total == 0 {
            return self.toggle(&[index]);
        }
        let mut now: BTreeSet<u32> = match &self.picks[index] {
            Pick::Nothing => BTreeSet::new(),
            Pick::Whole => (0..total).collect(),
            Pick::Lines(lines) => lines.clone(),
        };
        let all = ids.iter().all(|id| now.contains(id));
        for id in ids {
            if all {
                now.remove(&id);
            } else {
                now.insert(id);
            }
        }
        self.picks[index] = match now.len() {
            0 => Pick::Nothing,
            n if n == total as usize => Pick::Whole,
            _ => Pick::Lines(now),
        };
    }

    /// Whether a changed line is chosen.
    pub(super) fn is_chosen(&self, index: usize, id: u32) -> bool {
        match &self.picks[index] {
            Pick::Nothing => false,
            Pick::Whole => true,
            Pick::Lines(lines) => lines.contains(&id),
        }
    }

    /// Goes to the next change whose path contains the text, from the cursor on; false when there is none.
    pub(super) fn search(&mut self, text: Option<String>, forward: bool) -> bool {
        if let Some(text) = text {
            self.search = text.to_lowercase();
        }
        if self.search.is_empty() {
            return true;
        }
        let order: Vec<usize> = self.risky.iter().chain(&self.plain).chain(&self.noise).copied().collect();
        let here = self.rows.get(self.at).map(|r| self.members(r).first().copied());
        let start = here.flatten().and_then(|i| order.iter().position(|&o| o == i)).unwrap_or(0);
        let hit = |&&i: &&usize| self.shown(i).to_lowercase().contains(&self.search);
        let (before, after) = order.split_at(start);
        let rest = after.get(1..).unwrap_or_default();
        let found = match forward {
            true => rest.iter().chain(before).chain(after.first()).find(hit),
            false => before.iter().rev().chain(rest.iter().rev()).chain(after.first()).find(hit),
        };
        let Some(&index) = found else { return false };
        self.reveal(index);
        true
    }

    /// Puts the cursor on a change, opening what it lies in.
    fn reveal(&mut self, index: usize) {
        let c = &self.set[index].change;
        match &self.classes[index] {
            Class::Noise(group) => {
                self.open_groups.insert(group.clone());
            }
            _ => {
                let mut dir = c.path.parent();
                while let Some(at) = dir {
                    self.closed.remove(&(c.root, at.clone()));
                    dir = at.parent();
                }
            }
        }
        self.lay_out();
        let key = (self.set[index].change.root, self.set[index].change.path.clone());
        let is_it = |row: &Row| match row {
            Row::Change { index: i, .. } => *i == index,
            Row::Dir { key: k, .. } => *k == key,
            _ => false,
        };
        self.at = self.rows.iter().position(is_it).unwrap_or(self.at);
        self.focus = Focus::Tree;
    }
}

#[cfg(test)]
mod tests {
    use super::super::draw::{Look, draw};
    use super::super::keys::press;
    use super::*;
    use crate::base::What;
    use crate::review::settle::for_test;
    use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
    use ratatui::{Terminal, backend::TestBackend};
    use std::time::Instant;

    fn state(paths: impl Iterator<Item = (String, Class)>) -> State {
        let (set, classes): (Vec<Settled>, Vec<Class>) =
            paths.map(|(path, class)| (for_test(&path, What::Added, Kind::File, None), class)).unzip();
        State::new(set, classes, Box::new(|s| s.change.path.as_bytes().to_vec()))
    }

    fn labels(state: &State) -> Vec<String> {
        let line = |row: &Row| match row {
            Row::Heading(text) => format!("-- {text}"),
            Row::Dir { depth, name, range, .. } => format!("{depth} {name} {}", range.len()),
            Row::Group { name, range, .. } => format!("~ {name} {}", range.len()),
            Row::Change { depth, name, .. } => format!("{depth} {name}"),
        };
        state.rows.iter().map(line).collect()
    }

    #[test]
    fn rows_are_a_tree_in_the_order_of_names_not_of_bytes() {
        let paths = ["a/b/c", "a-b", "a/d", "e"];
        let mut s = state(paths.iter().map(|p| ((*p).to_owned(), Class::Plain)));
        assert_eq!(labels(&s), ["-- changes (4)", "0 a/ 2", "1 b/ 1", "2 c", "1 d", "0 a-b", "0 e"]);
        s.toggle_open();
        assert_eq!(labels(&s), ["-- changes (4)", "0 a/ 2", "0 a-b", "0 e"]);
        s.toggle_row();
        assert_eq!(s.chosen(), 2);
        assert!(s.search(Some("D".into()), true));
        assert_eq!(labels(&s)[s.at], "1 d");
    }

    #[test]
    fn a_search_typed_before_the_terminal_was_ours_ends_with_its_return() {
        let mut s = state(["a", "lines"].iter().map(|p| ((*p).to_owned(), Class::Plain)));
        for c in "/lin".chars() {
            press(&mut s, KeyEvent::new(KeyCode::Char(c), KeyModifiers::NONE));
        }
        press(&mut s, KeyEvent::new(KeyCode::Char('j'), KeyModifiers::CONTROL));
        assert!(matches!(s.over, Over::Nothing));
        assert_eq!(labels(&s)[s.at], "0 lines");
    }

    #[test]
    fn risky_changes_stay_in_sight_whatever_is_closed() {
        let risk = Class::Risk(vec!["runs".into()]);
        let mut s = state(
            [("d/.envrc", risk), ("d/x", Class::Plain), ("t/1", Class::Noise("t".into()))]
                .into_iter()
                .map(|(p, c)| (p.to_owned(), c)),
        );
        for at in 0..s.rows.len() {
            s.at = at.min(s.rows.len() - 1);
            s.close_parent();
        }
        assert_eq!(labels(&s)[..2], ["-- look first (1)", "0 d/.envrc"]);
        s.toggle_noise();
        assert_eq!(labels(&s).last().unwrap(), "1 t/1");
    }

    /// What a key costs with 50,000 changes must not be felt; the bound leaves room for a slow machine.
    #[test]
    fn fifty_thousand_changes_are_shown_and_moved_through() {
        // Enough to see on a quiet machine what a key takes; no bound is held, since a busy one has none.
        const KEYS: usize = 60;
        let class = |i: usize| match i % 10 {
            0 => Class::Risk(vec!["runs".into()]),
            1 => Class::Noise(format!("target{}", i % 7)),
            _ => Class::Plain,
        };
        let start = Instant::now();
        let mut s = state((0..50_000).map(|i| (format!("d{:03}/e{:02}/file{i}", i % 500, i % 20), class(i))));
        let built = start.elapsed();
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
        let keys = "jjjkG gGkA azz?q/file49\nnnN".chars().cycle().take(KEYS);
        let start = Instant::now();
        for c in keys {
            let code = if c == '\n' { KeyCode::Enter } else { KeyCode::Char(c) };
            press(&mut s, KeyEvent::new(code, KeyModifiers::NONE));
            terminal.draw(|frame| draw(frame, &mut s, "many", Look { color: true })).unwrap();
        }
        let each = start.elapsed() / KEYS as u32;
        eprintln!("50,000 changes: laid out in {built:?}, a key takes {each:?} with its drawing");
        assert_eq!(s.picks.len(), 50_000);
    }
}
