//! The changes as git shows them: a unified diff that `git apply` and `patch -p1` take.
//!
//! What git has no words for (directories, owners, times, fifos) becomes a line that begins with `# `; both tools
//! pass over it.

use super::hunks::{self, Paint, Text};
use super::objects::Object;
use super::pairs::{Pair, Side, pairs};
use super::settle::Settled;
use super::{RootDirs, root_of};
use crate::base::{Error, ErrorKind, Kind, RelPath, Result, Sys, quote};
use std::io::Write;
use std::os::fd::AsFd;

/// How to show a diff.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// With colours, as git's.
    pub color: bool,
    /// For a terminal: control characters of the content are shown, never sent.
    pub safe: bool,
    /// Names with the root's path before them; for more than one root.
    pub absolute: bool,
}

/// Sides above this many bytes are summed up in one line.
const BIG: u64 = 16 << 20;
/// How far git looks for a NUL before it calls a file text.
const BINARY_LOOK: usize = 8000;

/// What one side of a pair holds.
pub(crate) struct Blob {
    kind: Kind,
    perm: u32,
    size: u64,
    /// The bytes of a file or the target of a symlink; `None` for a big file and for what has no bytes.
    data: Option<Vec<u8>>,
}

impl Blob {
    fn read(dirs: &RootDirs, side: &Side) -> Sys<Option<Blob>> {
        let object = match side {
            Side::Real(path) => Object::find(dirs.real.as_fd(), path)?,
            Side::Upper(path) => Object::find(dirs.upper.as_fd(), path)?,
        };
        let Some(object) = object else { return Ok(None) };
        let attr = object.attr;
        let data = match attr.kind {
            Kind::Symlink => Some(object.target()?),
            Kind::File if attr.size <= BIG => Some(read_all(&object)?),
            _ => None,
        };
        Ok(Some(Blob { kind: attr.kind, perm: attr.perm, size: attr.size, data }))
    }

    /// The mode as git keeps it: 100644, 100755 or 120000.
    fn git_mode(&self) -> u32 {
        match self.kind {
            Kind::Symlink => 0o120000,
            _ if self.perm & 0o100 != 0 => 0o100755,
            _ => 0o100644,
        }
    }

    fn is_binary(&self) -> bool {
        self.data.as_ref().is_some_and(|d| d[..d.len().min(BINARY_LOOK)].contains(&0))
    }

    fn has_bytes(&self) -> bool {
        matches!(self.kind, Kind::File | Kind::Symlink)
    }
}

pub(crate) fn read_all(object: &Object) -> Sys<Vec<u8>> {
    let fd = object.readable()?;
    let mut all = Vec::new();
    let mut buf = Vec::new();
    loop {
        let n = crate::sys::data::pread_into(fd.as_fd(), &mut buf, 1 << 20, all.len() as u64)?;
        if n == 0 || all.len() as u64 > BIG {
            return Ok(all);
        }
        all.extend_from_slice(&buf);
    }
}

/// Writes the diff of `set`, which is in the order that `settle` gives.
///
/// # Errors
/// When an object cannot be read or `out` not be written (kind `BrokenPipe` when its reader is gone).
pub fn render(roots: &[RootDirs], set: &[Settled], options: Options, out: &mut dyn Write) -> Result<()> {
    for pair in pairs(roots, set)? {
        let mut text = Vec::new();
        let shown = Shown::load(roots, &pair, options)?;
        shown.render(&pair, &mut text);
        out.write_all(&text).map_err(|e| match e.kind() {
            std::io::ErrorKind::BrokenPipe => Error::new(ErrorKind::BrokenPipe, "nobody reads the diff"),
            _ => Error::sys("write the diff", e),
        })?;
    }
    Ok(())
}

/// A pair with both sides read, and its names as they are shown.
struct Shown {
    old: Option<Blob>,
    new: Option<Blob>,
    old_name: Vec<u8>,
    new_name: Vec<u8>,
    paint: Paint,
}

impl Shown {
    fn load(roots: &[RootDirs], pair: &Pair, options: Options) -> Result<Shown> {
        let dirs = root_of(roots, pair.root)?;
        let read = |side: &Option<Side>, name: &RelPath| match side {
            Some(side) => Blob::read(dirs, side).map_err(|e| Error::on_path("read", name.as_bytes(), e)),
            None => Ok(None),
        };
        let name = |path: &RelPath| match (options.absolute, dirs.path.strip_prefix(b"/")) {
            (true, Some(top)) if !top.is_empty() => [top, b"/", path.as_bytes()].concat(),
            _ => path.as_bytes().to_vec(),
        };
        Ok(Shown {
            old: read(&pair.old, &pair.old_name)?,
            new: read(&pair.new, &pair.new_name)?,
            old_name: name(&pair.old_name),
            new_name: name(&pair.new_name),
            paint: Paint { color: options.color, safe: options.safe },
        })
    }

    fn render(&self, pair: &Pair, out: &mut Vec<u8>) {
        for note in &pair.notes {
            self.paint.meta(out, &format!("# {}: {note}", quote(&self.new_name)));
        }
        self.sides(self.old.as_ref(), self.new.as_ref(), out);
    }

    fn sides(&self, old: Option<&Blob>, new: Option<&Blob>, out: &mut Vec<u8>) {
        match (old, new) {
            (Some(old), Some(new)) if old.kind != new.kind => {
                self.sides(Some(old), None, out);
                self.sides(None, Some(new), out);
            }
            (Some(old), Some(new)) if old.has_bytes() && new.has_bytes() => self.both(old, new, out),
            (Some(old), None) if old.has_bytes() => {
                self.start(out);
                self.paint.head(out, &format!("deleted file mode {:o}", old.git_mode()));
                self.content(Some(old), None, out);
            }
            (None, Some(new)) if new.has_bytes() => {
                self.start(out);
                self.paint.head(out, &format!("new file mode {:o}", new.git_mode()));
                self.content(None, Some(new), out);
            }
            (Some(old), None) => self.note(out, &format!("deleted {}", old.kind.word())),
            (None, Some(new)) => self.note(out, &format!("new {}", new.kind.word())),
            (Some(old), Some(_)) if self.old_name != self.new_name => {
                self.note(out, &format!("{} was {}", old.kind.word(), quote(&self.old_name)));
            }
            _ => {}
        }
    }

    fn note(&self, out: &mut Vec<u8>, text: &str) {
        self.paint.meta(out, &format!("# {}: {text}", quote(&self.new_name)));
    }

    fn start(&self, out: &mut Vec<u8>) {
        let (a, b) = (prefixed(b"a/", &self.old_name), prefixed(b"b/", &self.new_name));
        self.paint.head(out, &format!("diff --git {a} {b}"));
    }

    fn both(&self, old: &Blob, new: &Blob, out: &mut Vec<u8>) {
        let same = old.data.is_some() && old.data == new.data || old.size == 0 && new.size == 0;
        let renamed = self.old_name != self.new_name;
        let modes = match (old.git_mode(), new.git_mode()) {
            (a, b) if a != b => Some((a, b)),
            // git knows only the executable bit; what it would not show is shown in full.
            _ if old.perm != new.perm && old.kind == Kind::File => {
                Some((Kind::File.mode_bits() | old.perm, Kind::File.mode_bits() | new.perm))
            }
            _ => None,
        };
        let unknown = old.data.is_none() || new.data.is_none();
        if same && !renamed && modes.is_none() {
            return;
        }
        if unknown && !renamed && modes.is_none() {
            return self.content(Some(old), Some(new), out);
        }
        self.start(out);
        if let Some((a, b)) = modes {
            self.paint.head(out, &format!("old mode {a:o}"));
            self.paint.head(out, &format!("new mode {b:o}"));
        }
        if renamed {
            let like = if same { 100 } else { similarity(old, new) };
            self.paint.head(out, &format!("similarity index {like}%"));
            self.paint.head(out, &format!("rename from {}", quote(&self.old_name)));
            self.paint.head(out, &format!("rename to {}", quote(&self.new_name)));
        }
        if !same {
            self.content(Some(old), Some(new), out);
        }
    }

    fn content(&self, old: Option<&Blob>, new: Option<&Blob>, out: &mut Vec<u8>) {
        let empty = Vec::new();
        let size = |b: Option<&Blob>| b.map_or(0, |b| b.size);
        let bytes = |b: Option<&Blob>| match b {
            Some(blob) => blob.data.clone(),
            None => Some(empty.clone()),
        };
        let name = |blob: Option<&Blob>, prefix: &[u8], name: &[u8]| match blob {
            Some(_) => prefixed(prefix, name),
            None => "/dev/null".to_owned(),
        };
        let (a, b) = (name(old, b"a/", &self.old_name), name(new, b"b/", &self.new_name));
        let (Some(before), Some(after)) = (bytes(old), bytes(new)) else {
            let shown = quote(if new.is_some() { &self.new_name } else { &self.old_name });
            let line = format!("File {shown} differs: {} -> {} bytes", size(old), size(new));
            return self.paint.plain(out, &line);
        };
        if old.is_some_and(Blob::is_binary) || new.is_some_and(Blob::is_binary) {
            return self.paint.plain(out, &format!("Binary files {a} and {b} differ"));
        }
        if before == after {
            return;
        }
        self.paint.head(out, &format!("--- {a}{}", tab_after(&a)));
        self.paint.head(out, &format!("+++ {b}{}", tab_after(&b)));
        Text::new(&before, &after).write(out, self.paint);
    }
}

pub(crate) fn prefixed(prefix: &[u8], name: &[u8]) -> String {
    quote(&[prefix, name].concat())
}

/// git ends a name with blanks by a tab, so that patch(1) does not take what follows a blank for a date.
pub(crate) fn tab_after(name: &str) -> &'static str {
    if name.contains(' ') && !name.starts_with('"') { "\t" } else { "" }
}

/// Share of the larger side that both have in common, in percent, as far as lines tell.
fn similarity(old: &Blob, new: &Blob) -> u64 {
    let (Some(a), Some(b)) = (&old.data, &new.data) else { return 50 };
    similarity_of(a, b)
}

/// The same of two contents that differ.
pub(crate) fn similarity_of(a: &[u8], b: &[u8]) -> u64 {
    let largest = a.len().max(b.len()).max(1) as u64;
    (Text::new(a, b).common_bytes() * 100 / largest).min(99)
}

/// Writes a summary like that of `git diff --stat`, at most `width` columns wide.
///
/// # Errors
/// When an object cannot be read or `out` not be written.
pub fn stat(
    roots: &[RootDirs],
    set: &[Settled],
    options: Options,
    width: usize,
    out: &mut dyn Write,
) -> Result<()> {
    let mut rows = Vec::new();
    for pair in pairs(roots, set)?.iter().filter(|p| p.old.is_some() || p.new.is_some()) {
        let shown = Shown::load(roots, pair, options)?;
        rows.push(hunks::Row { name: stat_name(&shown), count: count(&shown) });
    }
    let text = hunks::stat_table(&rows, width, options.color);
    out.write_all(text.as_bytes()).map_err(|e| match e.kind() {
        std::io::ErrorKind::BrokenPipe => Error::new(ErrorKind::BrokenPipe, "nobody reads the summary"),
        _ => Error::sys("write the summary", e),
    })
}

fn count(shown: &Shown) -> hunks::Count {
    let empty = Vec::new();
    let data = |b: &Option<Blob>| match b {
        Some(blob) => blob.data.clone(),
        None => Some(empty.clone()),
    };
    let size = |b: &Option<Blob>| b.as_ref().map_or(0, |b| b.size);
    let no_bytes = [&shown.old, &shown.new].into_iter().flatten().all(|b| !b.has_bytes());
    if no_bytes {
        return hunks::Count::Lines(0, 0);
    }
    let binary = [&shown.old, &shown.new].into_iter().flatten().any(Blob::is_binary);
    match (data(&shown.old), data(&shown.new)) {
        (Some(a), Some(b)) if a == b => hunks::Count::Lines(0, 0),
        (Some(a), Some(b)) if !binary => {
            let (added, removed) = Text::new(&a, &b).counts();
            hunks::Count::Lines(added, removed)
        }
        _ => hunks::Count::Bytes(size(&shown.old), size(&shown.new)),
    }
}

/// `old => new`, with what both have in common outside braces.
fn stat_name(shown: &Shown) -> String {
    let (old, new) = (&shown.old_name, &shown.new_name);
    if old == new {
        return quote(new);
    }
    let head = old.iter().zip(new.iter()).take_while(|(a, b)| a == b).count();
    let head = old[..head].iter().rposition(|&b| b == b'/').map_or(0, |at| at + 1);
    let (a, b) = (&old[head..], &new[head..]);
    let tail = a.iter().rev().zip(b.iter().rev()).take_while(|(x, y)| x == y).count();
    let tail = a[a.len() - tail..].iter().position(|&b| b == b'/').map_or(0, |at| tail - at);
    let plain =
        quote(old) == *old.escape_ascii().to_string() && quote(new) == *new.escape_ascii().to_string();
    if !plain || head + tail == 0 {
        return format!("{} => {}", quote(old), quote(new));
    }
    let part = |bytes: &[u8]| bytes.escape_ascii().to_string();
    let (a, b) = (&a[..a.len() - tail], &b[..b.len() - tail]);
    format!("{}{{{} => {}}}{}", part(&old[..head]), part(a), part(b), part(&new[new.len() - tail..]))
}
