//! `sbx-fuse review`: look at the changes in the terminal, choose files, hunks or lines, apply the choice.

mod carry;
mod draw;
mod keys;
mod state;
mod text;

use super::context::Opened;
use super::output::{self, wants_color};
use super::risk::{Noise, Reviewed};
use super::{Which, paths};
use crate::base::{Error, ErrorKind, Result, quote};
use crate::review::select;
use crate::review::{Marks, Settled};
use carry::{Choice, Outcome};
pub(super) use carry::{finish_parts, note};
use clap::Args;
use crossterm::event::{self, Event, KeyEventKind};
use crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};
use draw::Look;
use keys::Action;
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use state::{Over, Pick, State};
use std::ffi::{OsStr, OsString};
use std::io::{IsTerminal, Stdout};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use text::Body;

/// Look at the changes in the terminal and choose what becomes real
///
/// What could run or leak on the host stands on top. Choose files, hunks or single lines, and apply the choice: the
/// rest stays in the session. `?` shows the keys.
#[derive(Debug, Args)]
pub(super) struct ReviewArgs {
    #[command(flatten)]
    which: Which,
    /// Without a terminal: apply these hunks of a file, counted from 1 as the review shows them
    #[arg(long = "hunk", value_name = "PATH:N[,N…]")]
    hunks: Vec<OsString>,
    #[command(flatten)]
    noise: Noise,
    /// Only changes at or beneath these
    #[arg(value_name = "PATH", conflicts_with = "hunks")]
    paths: Vec<PathBuf>,
}

pub(super) fn run(args: ReviewArgs) -> Result<u8> {
    let mut opened = Opened::open(&args.which)?;
    if !args.hunks.is_empty() {
        return by_number(&mut opened, &args.hunks);
    }
    if !(std::io::stdin().is_terminal() && std::io::stdout().is_terminal()) {
        return Err(Error::usage("a review needs a terminal")
            .hint("see: sbx-fuse diff; apply single hunks with: sbx-fuse review --hunk PATH:N"));
    }
    let (mut state, mut marks) = load(&opened, &args)?;
    if state.set.is_empty() {
        output::note(&format!("session {} has no changes", opened.session.name));
        return Ok(0);
    }
    let look = Look { color: wants_color() };
    let title = format!("review of {}", opened.session.name);
    let mut screen = Screen::open()?;
    loop {
        show_current(&opened, &mut state);
        screen.draw(&mut state, &title, look)?;
        let event = event::read().map_err(|e| Error::sys("read the keyboard", e))?;
        let Event::Key(key) = event else { continue };
        if key.kind == KeyEventKind::Release {
            continue;
        }
        match keys::press(&mut state, key) {
            Action::Nothing => {}
            Action::Mark(members, marked) => {
                if let Err(e) = marks.set(members.iter().map(|&i| &state.set[i]), marked) {
                    state.over = Over::Message(lines_of(&e.to_string()));
                }
            }
            Action::Quit => return Ok(0),
            Action::Ask => {
                state.over = match choice(&opened, &state).and_then(|c| carry::question(&state.set, &c)) {
                    Ok(Some(question)) => Over::Confirm(question),
                    Ok(None) => Over::Message(vec!["nothing is chosen: space chooses".into()]),
                    Err(e) => Over::Message(lines_of(&e.to_string())),
                };
            }
            Action::Apply => {
                let done = choice(&opened, &state).and_then(|c| carry::carry_out(&mut opened, &state.set, c));
                let told = match done {
                    Ok(Outcome::Done(sentences)) => {
                        (state, marks) = again(&mut opened, &args)?;
                        sentences
                    }
                    Ok(Outcome::Conflicts(sentences)) => sentences,
                    Err(e) => {
                        (state, marks) = again(&mut opened, &args)?;
                        lines_of(&e.to_string())
                    }
                };
                state.over = Over::Message(told);
            }
        }
    }
}

fn lines_of(text: &str) -> Vec<String> {
    text.lines().map(|l| crate::review::show_controls(l.as_bytes())).collect()
}

fn load(opened: &Opened, args: &ReviewArgs) -> Result<(State, Marks)> {
    let set = opened.settled()?;
    let marks = Marks::open(&opened.session.reviewed_path(), &set)?;
    let selection = match paths::select(&opened.session, &args.paths, &set) {
        // After an application there may be nothing left at the path.
        Err(_) if !args.paths.is_empty() && set.is_empty() => crate::review::Selection::All,
        other => other?,
    };
    let set: Vec<Settled> = set.into_iter().filter(|s| selection.takes(s)).collect();
    let reviewed = Reviewed::new(opened, set, &args.noise)?;
    let several = opened.session.meta.roots.len() > 1;
    let roots: Vec<Vec<u8>> = opened.session.meta.roots.iter().map(|r| r.name.as_bytes().to_vec()).collect();
    let names = move |s: &Settled| match roots.get(usize::from(s.change.root)).filter(|_| several) {
        Some(name) => [name, &b"/"[..], s.change.path.as_bytes()].concat(),
        None if s.change.path.is_root() => b".".to_vec(),
        None => s.change.path.as_bytes().to_vec(),
    };
    let mut state = State::new(reviewed.set, reviewed.classes, Box::new(names));
    state.reviewed = state.set.iter().map(|s| marks.has(s)).collect();
    Ok((state, marks))
}

/// The review of what is left.
fn again(opened: &mut Opened, args: &ReviewArgs) -> Result<(State, Marks)> {
    opened.refold()?;
    load(opened, args)
}

/// Reads the diff of the change under the cursor, if it is not the one that is shown.
fn show_current(opened: &Opened, state: &mut State) {
    let current = state.current();
    if state.body.as_ref().map(|(i, _)| *i) == current {
        return;
    }
    (state.line, state.shift, state.anchor) = (0, 0, None);
    state.body = current.map(|i| {
        let body = Body::load(&opened.roots, &state.set[i], state.classes[i].reasons());
        (i, body.unwrap_or_else(|e| Body::failed(&e)))
    });
}

/// What is chosen, with the contents that choices of lines make.
fn choice(opened: &Opened, state: &State) -> Result<Choice> {
    let mut choice = Choice::default();
    for (i, pick) in state.picks.iter().enumerate() {
        match pick {
            Pick::Nothing => {}
            Pick::Whole => choice.whole.push(i),
            Pick::Lines(lines) => {
                let kept = state.body.as_ref().filter(|(at, _)| *at == i).and_then(|(_, b)| b.file.clone());
                let file = match kept {
                    Some(file) => Some(file),
                    None => select::lines(&opened.roots, &state.set[i])?,
                };
                let path = &state.set[i].change.path;
                let file = file.filter(|f| lines.iter().all(|&l| l < f.changes()));
                let file =
                    file.ok_or_else(|| Error::failure(format!("{path} changed since it was shown")))?;
                choice.parts.push((i, file.merged(&|id| lines.contains(&id))));
            }
        }
    }
    Ok(choice)
}

/// The review for scripts.
fn by_number(opened: &mut Opened, args: &[OsString]) -> Result<u8> {
    let set = opened.settled()?;
    let mut choice = Choice::default();
    for arg in args {
        let (path, numbers) = split(arg)?;
        let shown = quote(path.as_bytes());
        let selection = paths::select(&opened.session, &[PathBuf::from(path)], &set)?;
        let found: Vec<usize> = (0..set.len()).filter(|&i| selection.takes(&set[i])).collect();
        let [index] = found[..] else {
            return Err(Error::usage(format!("{shown} is not one changed file"))
                .hint("name one of the files in: sbx-fuse changes"));
        };
        let Some(file) = select::lines(&opened.roots, &set[index])? else {
            return Err(Error::usage(format!("{shown} can only be applied whole"))
                .hint("hunks are those of a text file that both sides have under one name"));
        };
        let total = file.hunks.len();
        if let Some(n) = numbers.iter().find(|n| **n == 0 || **n > total) {
            return Err(Error::usage(format!("{shown} has no hunk {n}, it has {total}"))
                .hint("they are counted from 1, as diff shows them: sbx-fuse diff"));
        }
        let ids: std::collections::BTreeSet<u32> =
            numbers.iter().filter_map(|n| file.hunks.get(n - 1)).flat_map(|h| h.ids()).collect();
        if ids.len() == file.changes() as usize {
            choice.whole.push(index);
        } else {
            choice.parts.push((index, file.merged(&|id| ids.contains(&id))));
        }
    }
    match carry::carry_out(opened, &set, choice)? {
        Outcome::Done(sentences) => {
            output::notes(&sentences);
            Ok(0)
        }
        Outcome::Conflicts(sentences) => {
            output::notes(&sentences);
            Ok(ErrorKind::Conflict.exit_code())
        }
    }
}

/// `PATH:N[,N…]`.
fn split(arg: &OsStr) -> Result<(&OsStr, Vec<usize>)> {
    let bytes = arg.as_bytes();
    let wrong = || {
        Error::usage(format!("{} is not PATH:N[,N…]", quote(bytes)))
            .hint("name a changed file and its hunks, e.g. --hunk src/main.rs:1,3; see: sbx-fuse diff")
    };
    let at = bytes.iter().rposition(|&b| b == b':').ok_or_else(wrong)?;
    let numbers = std::str::from_utf8(&bytes[at + 1..]).map_err(|_| wrong())?;
    let numbers: Vec<usize> =
        numbers.split(',').map(str::parse).collect::<std::result::Result<_, _>>().map_err(|_| wrong())?;
    Ok((OsStr::from_bytes(&bytes[..at]), numbers))
}

/// The terminal while the review has it; as it was when dropped, also in a panic.
struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
}

impl Screen {
    fn open() -> Result<Screen> {
        let failed = |e| Error::sys("use the terminal", e);
        enable_raw_mode().map_err(failed)?;
        let entered = crossterm::execute!(std::io::stdout(), EnterAlternateScreen);
        match entered.and_then(|()| Terminal::new(CrosstermBackend::new(std::io::stdout()))) {
            Ok(terminal) => Ok(Screen { terminal }),
            Err(e) => {
                // The first error is the one to tell.
                drop(disable_raw_mode());
                Err(failed(e))
            }
        }
    }

    fn draw(&mut self, state: &mut State, title: &str, look: Look) -> Result<()> {
        let drawn = self.terminal.draw(|frame| draw::draw(frame, state, title, look));
        drawn.map(|_| ()).map_err(|e| Error::sys("draw on the terminal", e))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone needs no putting right.
        drop(crossterm::execute!(std::io::stdout(), LeaveAlternateScreen, crossterm::cursor::Show));
        drop(disable_raw_mode());
    }
}
