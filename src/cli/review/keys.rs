//! What a key does.

use super::draw;
use super::state::{Focus, Over, State};
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// What is left for the caller to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Nothing,
    /// Note that these changes, by index, are marked as reviewed, or no longer.
    Mark(Vec<usize>, bool),
    Quit,
    /// Ask whether to apply what is chosen.
    Ask,
    /// Apply it.
    Apply,
}

/// Does what a key stands for.
pub(super) fn press(state: &mut State, key: KeyEvent) -> Action {
    if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
        return Action::Quit;
    }
    // What was typed before the terminal was ours had its Return turned into a line feed.
    let code = match key.code {
        KeyCode::Char('j' | 'm') if key.modifiers.contains(KeyModifiers::CONTROL) => KeyCode::Enter,
        KeyCode::Char(_) if key.modifiers.contains(KeyModifiers::CONTROL) => return Action::Nothing,
        code => code,
    };
    match std::mem::replace(&mut state.over, Over::Nothing) {
        Over::Message(_) => Action::Nothing,
        Over::Confirm(_) if matches!(code, KeyCode::Char('y' | 'Y')) => Action::Apply,
        Over::Confirm(_) => Action::Nothing,
        Over::Search(text) => {
            search(state, text, code);
            Action::Nothing
        }
        Over::Nothing => plain(state, code),
    }
}

fn search(state: &mut State, mut text: String, code: KeyCode) {
    match code {
        KeyCode::Enter => found(state, Some(text), true),
        KeyCode::Esc => {}
        KeyCode::Backspace => {
            text.pop();
            state.over = Over::Search(text);
        }
        KeyCode::Char(c) => {
            text.push(c);
            state.over = Over::Search(text);
        }
        _ => state.over = Over::Search(text),
    }
}

fn found(state: &mut State, text: Option<String>, forward: bool) {
    if !state.search(text, forward) {
        state.over = Over::Message(vec!["no path contains that".into()]);
    }
}

fn plain(state: &mut State, code: KeyCode) -> Action {
    let page = isize::try_from(state.page).unwrap_or(1);
    match code {
        KeyCode::Char('q') => return Action::Quit,
        KeyCode::Char('a') => return Action::Ask,
        KeyCode::Char('?') => state.over = Over::Message(draw::help()),
        KeyCode::Char('/') => state.over = Over::Search(String::new()),
        KeyCode::Char('n') => found(state, None, true),
        KeyCode::Char('N') => found(state, None, false),
        KeyCode::Down | KeyCode::Char('j') => state.move_by(1),
        KeyCode::Up | KeyCode::Char('k') => state.move_by(-1),
        KeyCode::PageDown => state.move_by(page),
        KeyCode::PageUp => state.move_by(-page),
        KeyCode::Home | KeyCode::Char('g') => state.move_by(isize::MIN / 2),
        KeyCode::End | KeyCode::Char('G') => state.move_by(isize::MAX / 2),
        KeyCode::Char('>') => state.shift += 8,
        KeyCode::Char('<') => state.shift = state.shift.saturating_sub(8),
        KeyCode::Char('A') => state.toggle_all(),
        KeyCode::Char('z') => state.toggle_noise(),
        KeyCode::Tab => {
            state.anchor = None;
            state.focus = match state.focus {
                Focus::Tree if state.current().is_some() => Focus::Diff,
                _ => Focus::Tree,
            };
        }
        code => match state.focus {
            Focus::Tree => return in_tree(state, code),
            Focus::Diff => return in_diff(state, code),
        },
    }
    Action::Nothing
}

fn in_tree(state: &mut State, code: KeyCode) -> Action {
    match code {
        KeyCode::Char(' ') => state.toggle_row(),
        KeyCode::Char('r') => {
            let (members, marked) = state.toggle_reviewed();
            state.move_by(1);
            return Action::Mark(members, marked);
        }
        KeyCode::Enter | KeyCode::Right | KeyCode::Char('l') => match state.current() {
            Some(_) if !state.is_dir() => state.focus = Focus::Diff,
            _ => state.toggle_open(),
        },
        KeyCode::Left | KeyCode::Char('h') => state.close_parent(),
        _ => {}
    }
    Action::Nothing
}

fn in_diff(state: &mut State, code: KeyCode) -> Action {
    match code {
        KeyCode::Char(' ') => state.toggle_lines(false),
        KeyCode::Char('x') => state.toggle_lines(true),
        KeyCode::Char('v') => state.anchor = Some(state.line),
        KeyCode::Char(']') => state.next_hunk(true),
        KeyCode::Char('[') => state.next_hunk(false),
        KeyCode::Esc if state.anchor.is_some() => state.anchor = None,
        KeyCode::Esc | KeyCode::Left | KeyCode::Char('h') | KeyCode::Enter => {
            state.anchor = None;
            state.focus = Focus::Tree;
        }
        KeyCode::Char('r') => {
            let (members, marked) = state.toggle_reviewed();
            return Action::Mark(members, marked);
        }
        _ => {}
    }
    Action::Nothing
}
