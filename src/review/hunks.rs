//! Text of a diff: hunks of lines, their colours, and the table of `--stat`.

use imara_diff::{Algorithm, Diff, Hunk, InternedInput};
use std::fmt::Write as _;

/// How lines are written.
#[derive(Clone, Copy)]
pub(crate) struct Paint {
    pub color: bool,
    pub safe: bool,
}

const BOLD: &str = "\x1b[1m";
const RED: &str = "\x1b[31m";
const GREEN: &str = "\x1b[32m";
const CYAN: &str = "\x1b[36m";
const YELLOW: &str = "\x1b[33m";
const RESET: &str = "\x1b[m";

impl Paint {
    fn line(self, out: &mut Vec<u8>, color: &str, line: &[u8]) {
        if self.color && !color.is_empty() {
            out.extend_from_slice(color.as_bytes());
            out.extend_from_slice(line);
            out.extend_from_slice(RESET.as_bytes());
        } else {
            out.extend_from_slice(line);
        }
        out.push(b'\n');
    }

    /// A line of the header.
    pub fn head(self, out: &mut Vec<u8>, line: &str) {
        self.line(out, BOLD, line.as_bytes());
    }

    /// A line that is no part of the patch.
    pub fn meta(self, out: &mut Vec<u8>, line: &str) {
        self.line(out, YELLOW, line.as_bytes());
    }

    /// A line without colour.
    pub fn plain(self, out: &mut Vec<u8>, line: &str) {
        self.line(out, "", line.as_bytes());
    }

    fn content(self, out: &mut Vec<u8>, color: &str, sign: u8, line: &[u8]) {
        let (body, ended) = match line.strip_suffix(b"\n") {
            Some(body) => (body, true),
            None => (line, false),
        };
        let mut text = vec![sign];
        if self.safe {
            text.extend_from_slice(show_controls(body).as_bytes());
        } else {
            text.extend_from_slice(body);
        }
        self.line(out, color, &text);
        if !ended {
            self.line(out, "", b"\\ No newline at end of file");
        }
    }
}

/// Bytes as text that a terminal does not obey: control characters as `^X`, others that could steer it as `<XX>`.
pub fn show_controls(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\t' => out.push('\t'),
                '\0'..='\x1f' => out.extend(['^', char::from(c as u8 + b'@')]),
                '\x7f' => out.push_str("^?"),
                '\u{80}'..='\u{9f}'
                | '\u{200e}'
                | '\u{200f}'
                | '\u{202a}'..='\u{202e}'
                | '\u{2066}'..='\u{2069}' => {
                    out.push_str(&format!("<U+{:04X}>", u32::from(c)));
                }
                c => out.push(c),
            }
        }
        for byte in chunk.invalid() {
            out.push_str(&format!("<{byte:02X}>"));
        }
    }
    out
}

/// Two texts and how their lines differ.
pub(crate) struct Text<'a> {
    input: InternedInput<&'a [u8]>,
    diff: Diff,
}

pub(crate) const CONTEXT: u32 = 3;

impl<'a> Text<'a> {
    pub fn new(before: &'a [u8], after: &'a [u8]) -> Text<'a> {
        let input = InternedInput::new(before, after);
        let mut diff = Diff::compute(Algorithm::Histogram, &input);
        diff.postprocess_lines(&input);
        Text { input, diff }
    }

    /// Lines added and removed.
    pub fn counts(&self) -> (u64, u64) {
        (u64::from(self.diff.count_additions()), u64::from(self.diff.count_removals()))
    }

    /// Bytes of the lines that both sides share.
    pub fn common_bytes(&self) -> u64 {
        let lines = (0..self.input.before.len() as u32).filter(|&i| !self.diff.is_removed(i));
        lines.map(|i| self.before(i).len() as u64).sum()
    }

    /// Where lines differ: ranges of lines before and after, in order.
    pub fn changes(&self) -> Vec<(std::ops::Range<u32>, std::ops::Range<u32>)> {
        self.diff.hunks().map(|h| (h.before, h.after)).collect()
    }

    /// How many lines the side before has.
    pub fn len_before(&self) -> u32 {
        self.input.before.len() as u32
    }

    pub fn before(&self, line: u32) -> &'a [u8] {
        self.input.interner[self.input.before[line as usize]]
    }

    pub fn after(&self, line: u32) -> &'a [u8] {
        self.input.interner[self.input.after[line as usize]]
    }

    /// Writes all hunks with three lines of context.
    pub fn write(&self, out: &mut Vec<u8>, paint: Paint) {
        let mut group: Vec<Hunk> = Vec::new();
        for hunk in self.diff.hunks() {
            let far = group.last().is_some_and(|last| hunk.before.start - last.before.end > 2 * CONTEXT);
            if far {
                self.write_group(&group, out, paint);
                group.clear();
            }
            group.push(hunk);
        }
        self.write_group(&group, out, paint);
    }

    fn write_group(&self, group: &[Hunk], out: &mut Vec<u8>, paint: Paint) {
        let (Some(first), Some(last)) = (group.first(), group.last()) else { return };
        let lead = first.before.start.min(CONTEXT);
        let start = (first.before.start - lead, first.after.start - lead);
        let tail = (self.input.before.len() as u32 - last.before.end).min(CONTEXT);
        let lens = (last.before.end + tail - start.0, last.after.end + tail - start.1);
        let header = format!("@@ -{} +{} @@", range(start.0, lens.0), range(start.1, lens.1));
        paint.line(out, CYAN, header.as_bytes());
        let mut at = start.0;
        for hunk in group {
            (at..hunk.before.start).for_each(|i| paint.content(out, "", b' ', self.before(i)));
            hunk.before.clone().for_each(|i| paint.content(out, RED, b'-', self.before(i)));
            hunk.after.clone().for_each(|i| paint.content(out, GREEN, b'+', self.after(i)));
            at = hunk.before.end;
        }
        (at..at + tail).for_each(|i| paint.content(out, "", b' ', self.before(i)));
    }
}

/// `start,len` counted from 1; a length of 1 is left out, an empty range names the line before it.
pub(crate) fn range(start: u32, len: u32) -> String {
    match len {
        0 => format!("{start},0"),
        1 => format!("{}", start + 1),
        _ => format!("{},{len}", start + 1),
    }
}

/// How much one file changed.
pub(crate) enum Count {
    /// Lines added and removed.
    Lines(u64, u64),
    /// Size before and after, of what has no lines.
    Bytes(u64, u64),
}

/// One line of the table.
pub(crate) struct Row {
    pub name: String,
    pub count: Count,
}

/// The table of `git diff --stat`, at most `width` columns wide.
pub(crate) fn stat_table(rows: &[Row], width: usize, color: bool) -> String {
    let (mut added, mut removed, mut most, mut any_bytes) = (0, 0, 0, false);
    for row in rows {
        match row.count {
            Count::Lines(a, r) => {
                (added, removed, most) = (added + a, removed + r, most.max(a + r));
            }
            Count::Bytes(..) => any_bytes = true,
        }
    }
    let number = most.to_string().len().max(if any_bytes { 3 } else { 1 });
    let longest = rows.iter().map(|r| r.name.chars().count()).max().unwrap_or(0);
    // " name | number graph": at least ten columns are kept for the graph.
    let name_width = longest.min(width.saturating_sub(number + 5 + 10).max(10));
    let graph = width.saturating_sub(name_width + number + 5).max(1) as u64;
    let scale = |n: u64| match (n, most <= graph) {
        (0, _) => 0,
        (n, true) => n,
        (n, false) => (n * graph / most).max(1),
    };
    let mut out = String::new();
    for row in rows {
        let tail = match row.count {
            Count::Bytes(old, new) => format!("{:>number$} {old} -> {new} bytes", "Bin"),
            Count::Lines(a, r) => {
                let bar = |sign: &str, n: u64, tint: &str| match (n, color) {
                    (0, _) => String::new(),
                    (n, false) => sign.repeat(scale(n) as usize),
                    (n, true) => format!("{tint}{}{RESET}", sign.repeat(scale(n) as usize)),
                };
                let bars = bar("+", a, GREEN) + &bar("-", r, RED);
                if bars.is_empty() { format!("{:>number$}", 0) } else { format!("{:>number$} {bars}", a + r) }
            }
        };
        let name = shorten(&row.name, name_width);
        let pad = name_width - name.chars().count().min(name_width);
        push(&mut out, format_args!(" {name}{:pad$} | {tail}\n", ""));
    }
    let plural = |n: u64| if n == 1 { "" } else { "s" };
    push(&mut out, format_args!(" {} file{} changed", rows.len(), plural(rows.len() as u64)));
    if added > 0 || removed == 0 {
        push(&mut out, format_args!(", {added} insertion{}(+)", plural(added)));
    }
    if removed > 0 || added == 0 {
        push(&mut out, format_args!(", {removed} deletion{}(-)", plural(removed)));
    }
    out.push('\n');
    out
}

fn push(out: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    out.write_fmt(text).unwrap_or_default();
}

/// The end of a name that is too long, after three dots.
fn shorten(name: &str, width: usize) -> String {
    let count = name.chars().count();
    if count <= width {
        return name.to_owned();
    }
    let tail: String = name.chars().skip(count - width.saturating_sub(3)).collect();
    format!("...{tail}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn diff(a: &str, b: &str) -> String {
        let mut out = Vec::new();
        Text::new(a.as_bytes(), b.as_bytes()).write(&mut out, Paint { color: false, safe: false });
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn hunks_have_three_lines_of_context_and_say_when_a_newline_is_missing() {
        let before: String = (1..=20).map(|i| format!("{i}\n")).collect();
        let after = before.replace("\n3\n", "\nthree\n").replace("\n20\n", "\n20");
        assert_eq!(
            diff(&before, &after),
            "@@ -1,6 +1,6 @@\n 1\n 2\n-3\n+three\n 4\n 5\n 6\n@@ -17,4 +17,4 @@\n 17\n 18\n 19\n-20\n+20\n\\ No \
             newline at end of file\n"
        );
        assert_eq!(diff("", "a\n"), "@@ -0,0 +1 @@\n+a\n");
        assert_eq!(diff("a", ""), "@@ -1 +0,0 @@\n-a\n\\ No newline at end of file\n");
    }

    #[test]
    fn a_terminal_is_told_no_escape_codes() {
        assert_eq!(show_controls(b"a\x1b[31m\t\x07\x7f\r"), "a^[[31m\t^G^?^M");
        assert_eq!(show_controls(b"\xc2\x9b2J\xff\xe2\x80\xae"), "<U+009B>2J<FF><U+202E>");
    }

    #[test]
    fn the_summary_is_laid_out_as_git_does() {
        let rows = [
            Row { name: "a.txt".into(), count: Count::Lines(2, 1) },
            Row { name: "image".into(), count: Count::Bytes(10, 20) },
        ];
        assert_eq!(
            stat_table(&rows, 80, false),
            " a.txt |   3 ++-\n image | Bin 10 -> 20 bytes\n 2 files changed, 2 insertions(+), 1 deletion(-)\n"
        );
        let wide = [Row { name: "x".repeat(100), count: Count::Lines(500, 500) }];
        assert!(stat_table(&wide, 60, false).lines().all(|l| l.len() <= 60));
    }
}
