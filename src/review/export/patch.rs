//! git-format patches that lose nothing git can carry: binary content, renames, modes, symlinks, any name.

use super::super::diff::{prefixed, similarity_of, tab_after};
use super::super::hunks::{Paint, Text};
use super::super::objects::Object;
use super::super::pairs::{Pair, Side, pairs};
use super::super::settle::Settled;
use super::super::{RootDirs, root_of};
use super::{base85, write_failed};
use crate::base::{Error, Kind, RelPath, Result, Sys, quote};
use crate::sys::data;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use sha1::{Digest, Sha1};
use std::fmt::Write as _;
use std::io::Write;
use std::os::fd::AsFd;

/// A side larger than this is not put into a patch, as git would hold it in memory several times.
const LARGEST: u64 = 512 << 20;
/// Sides above this are written as binary: a diff of their lines would take too long.
const LINES_MAX: usize = 16 << 20;

const PLAIN: Paint = Paint { color: false, safe: false };

struct Blob {
    mode: u32,
    perm: u32,
    data: Vec<u8>,
}

/// Writes `set`, in the order given, as one patch for `git apply` (and, as far as it is text, `patch -p1`). With
/// `absolute` names have the root's path before them. Returns in sentences what no patch can carry; the same stands in
/// the patch as remarks, which both programs pass over.
///
/// # Errors
/// When an object cannot be read, is too big, or `out` cannot be written.
pub fn patch(
    roots: &[RootDirs],
    set: &[Settled],
    absolute: bool,
    out: &mut dyn Write,
) -> Result<Vec<String>> {
    let mut lost = Vec::new();
    for pair in pairs(roots, set)? {
        let dirs = root_of(roots, pair.root)?;
        let name = |path: &RelPath| match (absolute, dirs.path.strip_prefix(b"/")) {
            (true, Some(top)) if !top.is_empty() => [top, b"/", path.as_bytes()].concat(),
            _ => path.as_bytes().to_vec(),
        };
        let mut one = One {
            old_name: name(&pair.old_name),
            new_name: name(&pair.new_name),
            text: Vec::new(),
            lost: vec![],
        };
        one.pair(dirs, &pair)?;
        for sentence in one.lost {
            out.write_all(format!("# {sentence}\n").as_bytes()).map_err(write_failed)?;
            lost.push(sentence);
        }
        out.write_all(&one.text).map_err(write_failed)?;
    }
    Ok(lost)
}

struct One {
    old_name: Vec<u8>,
    new_name: Vec<u8>,
    text: Vec<u8>,
    lost: Vec<String>,
}

impl One {
    fn pair(&mut self, dirs: &RootDirs, pair: &Pair) -> Result<()> {
        for note in &pair.notes {
            self.lose(note);
        }
        let old = self.side(dirs, pair.old.as_ref(), &pair.old_name)?;
        let new = self.side(dirs, pair.new.as_ref(), &pair.new_name)?;
        match (old, new) {
            (Some(old), Some(new)) if old.mode & 0o170000 != new.mode & 0o170000 => {
                self.one_side(Some(&old), None);
                self.one_side(None, Some(&new));
            }
            (Some(old), Some(new)) => self.both(&old, &new),
            (old, new) => self.one_side(old.as_ref(), new.as_ref()),
        }
        Ok(())
    }

    fn lose(&mut self, what: &str) {
        self.lost.push(format!("{}: {what}", quote(&self.new_name)));
    }

    fn side(&mut self, dirs: &RootDirs, side: Option<&Side>, name: &RelPath) -> Result<Option<Blob>> {
        let Some(side) = side else { return Ok(None) };
        let failed = |e| Error::on_path("read", name.as_bytes(), e);
        let object = match side {
            Side::Real(path) => Object::find(dirs.real.as_fd(), path),
            Side::Upper(path) => Object::find(dirs.upper.as_fd(), path),
        };
        let Some(object) = object.map_err(failed)? else { return Ok(None) };
        if object.attr.kind == Kind::File && object.attr.size > LARGEST {
            return Err(Error::failure(format!(
                "{name} is too big for a patch ({} bytes)",
                object.attr.size
            ))
            .hint("leave it out, or export an archive: sbx-fuse export --tar"));
        }
        let perm = object.attr.perm;
        let (mode, data) = match object.attr.kind {
            Kind::File => {
                (if perm & 0o100 != 0 { 0o100755 } else { 0o100644 }, read(&object).map_err(failed)?)
            }
            Kind::Symlink => (0o120000, object.target().map_err(failed)?),
            kind => {
                self.lose(&format!("a {} cannot be in a patch", kind.word()));
                return Ok(None);
            }
        };
        Ok(Some(Blob { mode, perm, data }))
    }

    fn line(&mut self, text: std::fmt::Arguments<'_>) {
        let mut line = String::new();
        // Writing to a String cannot fail.
        line.write_fmt(text).unwrap_or_default();
        line.push('\n');
        self.text.extend_from_slice(line.as_bytes());
    }

    fn start(&mut self) {
        let (a, b) = (prefixed(b"a/", &self.old_name), prefixed(b"b/", &self.new_name));
        self.line(format_args!("diff --git {a} {b}"));
    }

    fn one_side(&mut self, old: Option<&Blob>, new: Option<&Blob>) {
        // A removal has the old name on both sides, an addition the new one.
        match (old, new) {
            (Some(old), _) => {
                self.new_name.clone_from(&self.old_name);
                self.start();
                self.line(format_args!("deleted file mode {:o}", old.mode));
            }
            (_, Some(new)) => {
                self.old_name.clone_from(&self.new_name);
                self.start();
                self.line(format_args!("new file mode {:o}", new.mode));
                self.special_bits(None, new);
            }
            (None, None) => return,
        }
        self.content(old, new);
    }

    /// git keeps nothing of a mode but whether the owner may execute.
    fn special_bits(&mut self, old: Option<&Blob>, new: &Blob) {
        let usual = |perm: u32| perm == 0o644 || perm == 0o755 || perm == 0o664 || perm == 0o775;
        let told = match old {
            Some(old) => old.perm == new.perm || (usual(old.perm) && usual(new.perm)),
            None => usual(new.perm),
        };
        if new.mode != 0o120000 && !told {
            self.lose(&format!("mode {:o}", new.perm));
        }
    }

    fn both(&mut self, old: &Blob, new: &Blob) {
        let renamed = self.old_name != self.new_name;
        let same = old.data == new.data;
        self.special_bits(Some(old), new);
        if same && !renamed && old.mode == new.mode {
            return;
        }
        self.start();
        if old.mode != new.mode {
            self.line(format_args!("old mode {:o}", old.mode));
            self.line(format_args!("new mode {:o}", new.mode));
        }
        if renamed {
            let like = if same { 100 } else { similarity_of(&old.data, &new.data) };
            let (from, to) = (quote(&self.old_name), quote(&self.new_name));
            self.line(format_args!("similarity index {like}%"));
            self.line(format_args!("rename from {from}"));
            self.line(format_args!("rename to {to}"));
        }
        if !same {
            self.content(Some(old), Some(new));
        }
    }

    fn content(&mut self, old: Option<&Blob>, new: Option<&Blob>) {
        let before = old.map_or(&[][..], |b| &b.data);
        let after = new.map_or(&[][..], |b| &b.data);
        let mode = match (old, new) {
            (Some(a), Some(b)) if a.mode == b.mode => format!(" {:o}", a.mode),
            _ => String::new(),
        };
        let (a_id, b_id) = (id(old), id(new));
        self.line(format_args!("index {a_id}..{b_id}{mode}"));
        if before == after {
            return;
        }
        if is_binary(before) || is_binary(after) {
            self.line(format_args!("GIT binary patch"));
            literal(after, &mut self.text);
            literal(before, &mut self.text);
            return;
        }
        let side = |blob: Option<&Blob>, prefix: &[u8], name: &[u8]| match blob {
            Some(_) => prefixed(prefix, name),
            None => "/dev/null".to_owned(),
        };
        let (a, b) = (side(old, b"a/", &self.old_name), side(new, b"b/", &self.new_name));
        self.line(format_args!("--- {a}{}", tab_after(&a)));
        self.line(format_args!("+++ {b}{}", tab_after(&b)));
        Text::new(before, after).write(&mut self.text, PLAIN);
    }
}

fn is_binary(data: &[u8]) -> bool {
    data.len() > LINES_MAX || data.contains(&0)
}

/// The name git gives the bytes of a file.
fn id(blob: Option<&Blob>) -> String {
    let Some(blob) = blob else { return "0".repeat(40) };
    let mut hash = Sha1::new();
    hash.update(format!("blob {}\0", blob.data.len()));
    hash.update(&blob.data);
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn literal(data: &[u8], out: &mut Vec<u8>) {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    // Writing to a Vec cannot fail.
    let packed = encoder.write_all(data).and_then(|()| encoder.finish()).unwrap_or_default();
    out.extend_from_slice(format!("literal {}\n", data.len()).as_bytes());
    base85::lines(&packed, out);
    out.push(b'\n');
}

fn read(object: &Object) -> Sys<Vec<u8>> {
    let fd = object.readable()?;
    let (mut all, mut buf) = (Vec::new(), Vec::new());
    loop {
        let n = data::pread_into(fd.as_fd(), &mut buf, 1 << 20, all.len() as u64)?;
        if n == 0 {
            return Ok(all);
        }
        if all.len() as u64 > LARGEST {
            return Err(crate::base::Errno::EFBIG);
        }
        all.extend_from_slice(&buf);
    }
}
