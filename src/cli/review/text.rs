//! The diff beside the tree, as lines that a terminal can take.

use crate::base::Result;
use crate::review::select::{self, FileLines, Sign};
use crate::review::{self, Options, RootDirs, Settled, show_controls};
use std::io::Write;

/// What is shown of one diff; the rest is told to be left out. Hunks that can be chosen are never cut.
const MOST: usize = 4 << 20;
/// Columns of a tabulator.
const TAB: usize = 8;

/// One line.
pub(super) struct DiffLine {
    /// Without control characters.
    pub(super) text: String,
    /// What it is, for its colour; of a line that is no part of a hunk, `Same`.
    pub(super) sign: Sign,
    /// Whether a hunk, or the diff of a file, begins here.
    pub(super) is_header: bool,
    /// Which hunk it belongs to.
    pub(super) hunk: Option<usize>,
    /// The number of the change, where it can be chosen.
    pub(super) id: Option<u32>,
}

/// A diff.
pub(super) struct Body {
    pub(super) lines: Vec<DiffLine>,
    /// How many changes of lines can be chosen one by one; 0 when the change is whole.
    pub(super) changes: u32,
    /// To make the content of a choice.
    pub(super) file: Option<FileLines>,
}

impl Body {
    /// The diff of one change; if it is risky, its whole path and why stand above it.
    pub(super) fn load(roots: &[RootDirs], s: &Settled, reasons: &[String]) -> Result<Body> {
        let mut lines: Vec<DiffLine> = Vec::new();
        if !reasons.is_empty() {
            lines.extend(wrap(&s.change.path.to_string()));
            lines.extend(reasons.iter().flat_map(|why| wrap(&format!("! {why}"))));
        }
        if let Some(file) = select::lines(roots, s)? {
            for note in mode_notes(s) {
                lines.push(plain(note));
            }
            for (h, hunk) in file.hunks.iter().enumerate() {
                lines.push(DiffLine { is_header: true, hunk: Some(h), ..plain(hunk.header.clone()) });
                for line in &hunk.lines {
                    let sign = match line.sign {
                        Sign::Same => ' ',
                        Sign::Removed => '-',
                        Sign::Added => '+',
                    };
                    let (body, ended) = match line.text.strip_suffix(b"\n") {
                        Some(body) => (body, true),
                        None => (&line.text[..], false),
                    };
                    let text = format!("{sign}{}", expand(&show_controls(body)));
                    lines.push(DiffLine {
                        text,
                        sign: line.sign,
                        is_header: false,
                        hunk: Some(h),
                        id: line.id,
                    });
                    if !ended {
                        lines.push(plain("\\ no newline at the end".into()));
                    }
                }
            }
            return Ok(Body { lines, changes: file.changes(), file: Some(file) });
        }
        let mut out = Capped { bytes: Vec::new(), cut: false };
        let options = Options { color: false, safe: true, absolute: false };
        match review::render(roots, std::slice::from_ref(s), options, &mut out) {
            Err(e) if !out.cut => return Err(e),
            _ => {}
        }
        lines.extend(out.bytes.split(|&b| b == b'\n').map(rendered));
        if lines.last().is_some_and(|l| l.text.is_empty()) {
            lines.pop();
        }
        if out.cut {
            lines.push(plain("... the rest is left out here; see: sbx-fuse diff".into()));
        }
        if lines.is_empty() {
            lines.push(plain("nothing that a diff can show".into()));
        }
        Ok(Body { lines, changes: 0, file: None })
    }

    /// In place of a diff that cannot be had.
    pub(super) fn failed(e: &crate::base::Error) -> Body {
        let lines = e.to_string().lines().map(|l| plain(expand(&show_controls(l.as_bytes())))).collect();
        Body { lines, changes: 0, file: None }
    }
}

/// Columns that every terminal shows of the diff, about.
const NARROW: usize = 42;

/// What must be read whole, in lines that fit.
fn wrap(text: &str) -> Vec<DiffLine> {
    let mut lines: Vec<String> = Vec::new();
    let mut line = String::new();
    for word in text.split_inclusive(' ') {
        let room = NARROW.saturating_sub(line.chars().count());
        if word.trim_end().chars().count() > room
            && !line.trim().is_empty()
            && word.chars().count() <= NARROW - 2
        {
            lines.push(std::mem::replace(&mut line, "  ".into()));
        }
        for c in word.chars() {
            if line.chars().count() >= NARROW {
                lines.push(std::mem::replace(&mut line, "  ".into()));
            }
            line.push(c);
        }
    }
    lines.push(line);
    lines.into_iter().map(plain).collect()
}

fn mode_notes(s: &Settled) -> Vec<String> {
    let mode = s.meta.mode.map(|(old, new)| format!("mode {old:o} -> {new:o} (goes with the whole file)"));
    mode.into_iter().collect()
}

fn plain(text: String) -> DiffLine {
    DiffLine { text, sign: Sign::Same, is_header: false, hunk: None, id: None }
}

fn rendered(line: &[u8]) -> DiffLine {
    let sign = match line.first() {
        Some(b'+') if !line.starts_with(b"+++ ") => Sign::Added,
        Some(b'-') if !line.starts_with(b"--- ") => Sign::Removed,
        _ => Sign::Same,
    };
    let is_header = line.starts_with(b"@@ ") || line.starts_with(b"diff --git ");
    DiffLine { sign, is_header, ..plain(expand(&show_controls(line))) }
}

fn expand(text: &str) -> String {
    if !text.contains('\t') {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len() + TAB);
    let mut column = 0;
    for c in text.chars() {
        if c == '\t' {
            let to = (column / TAB + 1) * TAB;
            out.extend(std::iter::repeat_n(' ', to - column));
            column = to;
        } else {
            out.push(c);
            column += 1;
        }
    }
    out
}

struct Capped {
    bytes: Vec<u8>,
    cut: bool,
}

impl Write for Capped {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let room = MOST.saturating_sub(self.bytes.len());
        if room == 0 {
            self.cut = true;
            return Err(std::io::Error::other("enough"));
        }
        let n = bytes.len().min(room);
        self.bytes.extend_from_slice(&bytes[..n]);
        Ok(n)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
