//! What a person or a program sees: data on stdout, messages on stderr, colour and bars on a terminal only.

use crate::base::{Error, ErrorKind, Result, acts_on_terminal};
use crate::sys::clock;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use std::io::{BufRead, BufWriter, IsTerminal, Stdout, Write};

/// The bytes a command answers with. A reader that goes away ends the program silently.
pub(super) struct Out {
    to: BufWriter<Stdout>,
    colored: bool,
}

/// Colours by meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Color {
    Red,
    Green,
    Yellow,
    Cyan,
    Bold,
}

impl Color {
    fn code(self) -> &'static str {
        match self {
            Color::Red => "\x1b[31m",
            Color::Green => "\x1b[32m",
            Color::Yellow => "\x1b[33m",
            Color::Cyan => "\x1b[36m",
            Color::Bold => "\x1b[1m",
        }
    }
}

/// Whether the person and the terminal take colours: neither `NO_COLOR` nor `TERM=dumb`.
pub(super) fn wants_color() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
        && std::env::var_os("TERM").is_none_or(|t| t != "dumb")
}

/// Whether messages may be coloured.
pub(super) fn stderr_colored() -> bool {
    std::io::stderr().is_terminal() && wants_color()
}

impl Out {
    /// Standard output.
    pub(super) fn new() -> Out {
        let stdout = std::io::stdout();
        let colored = stdout.is_terminal() && wants_color();
        Out { to: BufWriter::with_capacity(64 << 10, stdout), colored }
    }

    /// Whether colours are wanted.
    pub(super) fn colored(&self) -> bool {
        self.colored
    }

    /// `text` in a colour, where colours are wanted.
    pub(super) fn paint(&self, color: Color, text: &str) -> String {
        if self.colored { format!("{}{text}\x1b[0m", color.code()) } else { text.to_owned() }
    }

    /// Writes bytes as they are.
    pub(super) fn bytes(&mut self, bytes: &[u8]) -> Result<()> {
        self.to.write_all(bytes).map_err(write_failed)
    }

    /// Writes one line.
    pub(super) fn line(&mut self, text: &str) -> Result<()> {
        self.bytes(text.as_bytes())?;
        self.bytes(b"\n")
    }

    /// Writes a value as indented JSON.
    pub(super) fn json(&mut self, value: &impl Serialize) -> Result<()> {
        let text = serde_json::to_string_pretty(value).map_err(|e| Error::failure(e.to_string()))?;
        self.line(&inert(text))
    }

    /// Writes a value as one line of JSON.
    pub(super) fn json_line(&mut self, value: &impl Serialize) -> Result<()> {
        let text = serde_json::to_string(value).map_err(|e| Error::failure(e.to_string()))?;
        self.line(&inert(text))
    }

    /// Hands everything to the reader. To be called at the end: dropping would hide a failure.
    pub(super) fn flush(&mut self) -> Result<()> {
        self.to.flush().map_err(write_failed)
    }
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.to.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.to.flush()
    }
}

/// JSON in which names do nothing to a terminal that it is printed on: serde_json escapes the control characters of
/// ASCII alone.
fn inert(json: String) -> String {
    let acts = |c: char| c >= '\u{7f}' && acts_on_terminal(c);
    if !json.contains(acts) {
        return json;
    }
    let escaped = |c: char| if acts(c) { format!("\\u{:04x}", u32::from(c)) } else { c.to_string() };
    json.chars().map(escaped).collect()
}

/// What a command did, for programs: on stdout where `json` asks for it.
///
/// # Errors
/// When stdout cannot be written.
pub(super) fn answer(json: bool, did: &impl Serialize) -> Result<()> {
    if json {
        let mut out = Out::new();
        out.json(did)?;
        out.flush()?;
    }
    Ok(())
}

/// The error of a failed write to stdout.
pub(super) fn write_failed(e: std::io::Error) -> Error {
    if e.kind() == std::io::ErrorKind::BrokenPipe {
        Error::new(ErrorKind::BrokenPipe, "the reader went away")
    } else {
        Error::sys("write to stdout", e)
    }
}

/// Says something on stderr. If even that fails nobody is listening.
pub(super) fn note(text: &str) {
    drop(writeln!(std::io::stderr().lock(), "sbx-fuse: {text}"));
}

/// Says an error with its causes and its hint.
pub(super) fn error(e: &Error) {
    note(&e.to_string());
}

/// Says a list of sentences, if any.
pub(super) fn notes(sentences: &[String]) {
    for sentence in sentences {
        note(sentence);
    }
}

/// Asks a person before something that cannot be taken back; true at once when `yes` was given on the command line.
///
/// # Errors
/// `Usage` without a terminal to ask on.
pub(super) fn confirm(question: &str, yes: bool) -> Result<bool> {
    if yes {
        return Ok(true);
    }
    if !(std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
        return Err(Error::usage(format!("{question} There is no terminal to ask on"))
            .hint("say yes on the command line with -y"));
    }
    let mut stderr = std::io::stderr().lock();
    write!(stderr, "{question} [y/N] ").and_then(|()| stderr.flush()).map_err(|e| Error::sys("ask", e))?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer).map_err(|e| Error::sys("read the answer", e))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes" | "Yes"))
}

/// A bar on a terminal, nothing elsewhere.
pub(super) fn bar(total: u64, what: &str) -> ProgressBar {
    if !(std::io::stderr().is_terminal() && wants_color()) {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr_with_hz(10));
    if let Ok(style) = ProgressStyle::with_template("{prefix} [{bar:30}] {pos}/{len} {wide_msg}") {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_prefix(what.to_owned());
    bar
}

/// A bar that counts bytes, on a terminal only. To be made when the first are done: it is drawn at once.
pub(super) fn byte_bar(total: u64, what: &str) -> ProgressBar {
    let bar = bar(total, what);
    if let Ok(style) =
        ProgressStyle::with_template("{prefix} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec}")
    {
        bar.set_style(style.progress_chars("=> "));
    }
    bar
}

/// A time, nanoseconds since the epoch, as local civil time: `2025-11-21 14:03:05.123`.
pub(super) fn time(ns: u64) -> String {
    let (sec, milli) = ((ns / 1_000_000_000) as i64, ns / 1_000_000 % 1000);
    match clock::local(sec) {
        Ok(t) => format!(
            "{:04}-{:02}-{:02} {:02}:{:02}:{:02}.{milli:03}",
            t.year, t.month, t.day, t.hour, t.minute, t.second
        ),
        Err(_) => format!("{sec}.{milli:03}"),
    }
}

/// `1 file`, `2 files`.
pub(super) fn count(n: usize, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_does_nothing_to_a_terminal() {
        let name = "a\x1b\u{7f}\u{9b}2J\u{202e}gr\u{fc}n\u{1f600}";
        let text = inert(serde_json::to_string_pretty(&[name]).unwrap());
        assert_eq!(text, "[\n  \"a\\u001b\\u007f\\u009b2J\\u202egr\u{fc}n\u{1f600}\"\n]");
        assert_eq!(serde_json::from_str::<[String; 1]>(&text).unwrap(), [name]);
    }
}
