//! The screen of the review. Only rows that are visible are looked at.

use super::state::{Focus, Over, Pick, Row, State};
use crate::base::What;
use crate::review::Class;
use crate::review::select::Sign;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Clear, Paragraph};

/// How things look; without colour all is said by signs.
#[derive(Clone, Copy)]
pub(super) struct Look {
    pub(super) color: bool,
}

impl Look {
    fn fg(self, color: Color) -> Style {
        if self.color { Style::new().fg(color) } else { Style::new() }
    }
}

const HELP: [&str; 19] = [
    "arrows, j k      move             PgUp PgDn, g G   further",
    "Tab, Enter       to the diff and back",
    "left, h          close a directory, or back to the tree",
    "space            choose: a file, a directory, a hunk",
    "x                in the diff: choose one line",
    "v                in the diff: begin a range of lines, then space",
    "] [              in the diff: next hunk, the one before",
    "> <              see the right of long lines, and back",
    "A                choose everything, or nothing",
    "r                mark as reviewed",
    "z                show build output and ignored files one by one",
    "/  n  N          search a path, next, the one before",
    "a                apply what is chosen; the rest stays in the session",
    "q                leave; nothing is lost",
    "",
    "A added  M modified  D deleted  R renamed  T of another type",
    "P only mode, owner, times or xattrs        ! could run or leak",
    "[x] chosen  [~] a part of it  * reviewed",
    "                                    any key takes this away",
];

/// Draws everything.
pub(super) fn draw(frame: &mut Frame<'_>, state: &mut State, title: &str, look: Look) {
    let [head, body, foot] =
        Layout::vertical([Constraint::Length(1), Constraint::Min(1), Constraint::Length(1)])
            .areas(frame.area());
    frame.render_widget(
        Line::from(header(state, title)).style(Style::new().add_modifier(Modifier::BOLD)),
        head,
    );
    let [left, right] = Layout::horizontal([Constraint::Percentage(44), Constraint::Min(20)]).areas(body);
    tree(frame, state, left, look);
    diff(frame, state, right, look);
    frame.render_widget(Line::from(footer(state)), foot);
    match &state.over {
        Over::Message(lines) => message(frame, lines),
        Over::Nothing | Over::Search(_) | Over::Confirm(_) => {}
    }
}

fn header(state: &State, title: &str) -> String {
    let reviewed = state.reviewed.iter().filter(|r| **r).count();
    let risky = state.classes.iter().filter(|c| matches!(c, Class::Risk(_))).count();
    format!(
        " {title}: {} changes, {risky} to look at first, {reviewed} reviewed, {} chosen",
        state.set.len(),
        state.chosen()
    )
}

fn footer(state: &State) -> String {
    match (&state.over, state.focus) {
        (Over::Search(text), _) => format!(" search: {text}_"),
        (Over::Confirm(question), _) => format!(" {question} [y/N]"),
        (_, Focus::Tree) => {
            " space choose  Enter diff  r reviewed  / search  a apply  ? keys  q leave".into()
        }
        (_, Focus::Diff) if state.anchor.is_some() => " move to the end of the range, then space".into(),
        (_, Focus::Diff) => {
            " space hunk  v range  x line  ] [ hunks  Tab tree  a apply  ? keys  q leave".into()
        }
    }
}

/// The first of `len` rows to show so that `at` is among `height`.
fn top(at: usize, len: usize, height: usize) -> usize {
    at.saturating_sub(height / 2).min(len.saturating_sub(height))
}

fn mark(state: &State, members: &[usize]) -> &'static str {
    let whole = members.iter().filter(|&&i| state.picks[i] == Pick::Whole).count();
    let none = members.iter().filter(|&&i| state.picks[i] == Pick::Nothing).count();
    match (whole == members.len(), none == members.len()) {
        (true, _) => "[x]",
        (_, true) => "[ ]",
        _ => "[~]",
    }
}

fn tree(frame: &mut Frame<'_>, state: &mut State, area: Rect, look: Look) {
    let block = Block::new().borders(Borders::RIGHT);
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let height = usize::from(inner.height);
    state.page = height.max(1);
    let first = top(state.at, state.rows.len(), height);
    let lines: Vec<Line<'_>> = state
        .rows
        .iter()
        .enumerate()
        .skip(first)
        .take(height)
        .map(|(i, row)| {
            let line = row_line(state, row, look);
            match (i == state.at, state.focus) {
                (true, Focus::Tree) => line.style(Style::new().add_modifier(Modifier::REVERSED)),
                (true, Focus::Diff) => line.style(Style::new().add_modifier(Modifier::UNDERLINED)),
                _ => line,
            }
        })
        .collect();
    frame.render_widget(Paragraph::new(lines), inner);
}

fn row_line<'a>(state: &'a State, row: &'a Row, look: Look) -> Line<'a> {
    let members = state.members(row);
    match row {
        Row::Heading(text) => {
            Line::from(Span::styled(format!("-- {text}"), Style::new().add_modifier(Modifier::BOLD)))
        }
        Row::Dir { depth, name, open, .. } => {
            let sign = if *open { '-' } else { '+' };
            let own = state.current_of(row).map_or(' ', |i| state.set[i].change.what.letter());
            Line::from(format!(
                "{} {:indent$}{sign}{own} {name} ({})",
                mark(state, members),
                "",
                members.len(),
                indent = (depth * 2).min(20)
            ))
        }
        Row::Group { name, open, .. } => {
            let sign = if *open { '-' } else { '+' };
            Line::from(format!("{} {sign} {name} ({})", mark(state, members), members.len()))
        }
        Row::Change { depth, index, name } => {
            let what = state.set[*index].change.what;
            let color = match what {
                What::Added => Color::Green,
                What::Deleted => Color::Red,
                What::Renamed => Color::Cyan,
                What::Modified | What::Typed | What::Meta => Color::Yellow,
            };
            let risky = if matches!(state.classes[*index], Class::Risk(_)) { "!" } else { " " };
            let seen = if state.reviewed[*index] { "*" } else { " " };
            Line::from(vec![
                Span::raw(format!(
                    "{}{seen}{:indent$}",
                    mark(state, members),
                    "",
                    indent = (depth * 2).min(20)
                )),
                Span::styled(risky, look.fg(Color::Red)),
                Span::styled(what.letter().to_string(), look.fg(color)),
                Span::raw(format!(" {name}")),
            ])
        }
    }
}

fn diff(frame: &mut Frame<'_>, state: &State, area: Rect, look: Look) {
    let height = usize::from(area.height);
    let lines = state.lines();
    let at = if state.focus == Focus::Diff { state.line } else { 0 };
    let first = top(at, lines.len(), height);
    let index = state.body.as_ref().map(|(i, _)| *i);
    let shown: Vec<Line<'_>> = lines
        .iter()
        .enumerate()
        .skip(first)
        .take(height)
        .map(|(i, line)| {
            let style = match line.sign {
                _ if line.is_header => look.fg(Color::Cyan),
                Sign::Added => look.fg(Color::Green),
                Sign::Removed => look.fg(Color::Red),
                Sign::Same => Style::new(),
            };
            let chosen = match (index, line.id) {
                (Some(index), Some(id)) if state.is_chosen(index, id) => "x",
                _ => " ",
            };
            let in_range = state.anchor.is_some_and(|a| i >= a.min(state.line) && i <= a.max(state.line));
            let under = state.focus == Focus::Diff && (i == state.line || in_range);
            let style = if under { style.add_modifier(Modifier::REVERSED) } else { style };
            Line::from(vec![Span::raw(chosen), Span::styled(shifted(&line.text, state.shift), style)])
        })
        .collect();
    frame.render_widget(Paragraph::new(shown), area);
}

/// What is left of a line when its first `by` characters are out of sight.
fn shifted(text: &str, by: usize) -> &str {
    text.char_indices().nth(by).map_or("", |(at, _)| text.get(at..).unwrap_or_default())
}

fn message(frame: &mut Frame<'_>, lines: &[String]) {
    let area = frame.area();
    let height = (lines.len() as u16).saturating_add(2).min(area.height);
    let width = lines.iter().map(|l| l.chars().count()).max().unwrap_or(0) as u16;
    let width = width.saturating_add(4).min(area.width);
    let at = Rect::new((area.width - width) / 2, (area.height - height) / 2, width, height);
    frame.render_widget(Clear, at);
    let text: Vec<Line<'_>> = lines.iter().map(|l| Line::from(format!(" {l}"))).collect();
    frame.render_widget(Paragraph::new(text).block(Block::bordered()), at);
}

/// The keys, as lines.
pub(super) fn help() -> Vec<String> {
    HELP.iter().map(|l| (*l).to_owned()).collect()
}
