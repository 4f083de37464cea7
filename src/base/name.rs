//! Names and paths as bytes, and the one way to show them.

use super::{Errno, Sys};
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The longest name a directory entry may have, in bytes (`NAME_MAX`, limits.h).
pub const NAME_MAX: usize = 255;

/// One path component: 1 to 255 bytes, no `/`, no NUL, neither `.` nor `..`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(Box<[u8]>);

impl Name {
    /// Checks and takes a component.
    ///
    /// # Errors
    /// `ENAMETOOLONG` over 255 bytes; `EINVAL` when empty, `.`, `..`, or with `/` or NUL in it.
    pub fn new(bytes: &[u8]) -> Sys<Name> {
        if bytes.len() > NAME_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        if bytes.is_empty() || bytes == b"." || bytes == b".." || bytes.iter().any(|&b| b == b'/' || b == 0) {
            return Err(Errno::EINVAL);
        }
        Ok(Name(bytes.into()))
    }

    /// The bytes of the name.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The name as the standard library wants it.
    pub fn as_os(&self) -> &OsStr {
        OsStr::from_bytes(&self.0)
    }
}

impl AsRef<[u8]> for Name {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl std::borrow::Borrow<[u8]> for Name {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&quote(&self.0))
    }
}

/// A path beneath a root: components joined by `/`, no leading or trailing slash, empty for the root itself.
#[derive(Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RelPath(Vec<u8>);

impl RelPath {
    /// The root itself.
    pub fn root() -> Self {
        RelPath(Vec::new())
    }

    /// Checks and takes a relative path.
    ///
    /// # Errors
    /// As [`Name::new`] for the first component that is not a name.
    pub fn new(bytes: &[u8]) -> Sys<RelPath> {
        if !bytes.is_empty() {
            for part in bytes.split(|&b| b == b'/') {
                Name::new(part)?;
            }
        }
        Ok(RelPath(bytes.to_vec()))
    }

    /// This path with one more component.
    pub fn join(&self, name: &[u8]) -> RelPath {
        let mut bytes = Vec::with_capacity(self.0.len() + 1 + name.len());
        bytes.extend_from_slice(&self.0);
        if !bytes.is_empty() {
            bytes.push(b'/');
        }
        bytes.extend_from_slice(name);
        RelPath(bytes)
    }

    /// The bytes, without a leading slash.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether this is the root itself.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The components from the top.
    pub fn components(&self) -> impl DoubleEndedIterator<Item = &[u8]> {
        self.0.split(|&b| b == b'/').filter(|c| !c.is_empty())
    }

    /// The path of the directory that holds it; `None` for the root.
    pub fn parent(&self) -> Option<RelPath> {
        if self.0.is_empty() {
            return None;
        }
        let cut = self.0.iter().rposition(|&b| b == b'/').unwrap_or(0);
        Some(RelPath(self.0[..cut].to_vec()))
    }

    /// The last component; `None` for the root.
    pub fn file_name(&self) -> Option<&[u8]> {
        self.components().next_back()
    }

    /// Whether it is `dir` or lies beneath it.
    pub fn starts_with(&self, dir: &RelPath) -> bool {
        dir.is_root()
            || self.0 == dir.0
            || (self.0.starts_with(&dir.0) && self.0.get(dir.0.len()) == Some(&b'/'))
    }

    /// What is left of it below `dir`; `None` when it does not lie there.
    pub fn strip_prefix(&self, dir: &RelPath) -> Option<RelPath> {
        if !self.starts_with(dir) {
            return None;
        }
        let cut = if dir.is_root() { 0 } else { (dir.0.len() + 1).min(self.0.len()) };
        Some(RelPath(self.0[cut..].to_vec()))
    }

    /// It as a path for the standard library; `.` for the root.
    pub fn as_path(&self) -> &Path {
        if self.0.is_empty() { Path::new(".") } else { Path::new(OsStr::from_bytes(&self.0)) }
    }
}

impl serde::Serialize for RelPath {
    /// The text that [`quote`] makes of it.
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&quote(&self.0))
    }
}

impl<'de> serde::Deserialize<'de> for RelPath {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = <String as serde::Deserialize>::deserialize(from)?;
        let bytes = unquote(&text).ok_or_else(|| serde::de::Error::custom("not a quoted path"))?;
        RelPath::new(&bytes).map_err(|_| serde::de::Error::custom("not a path beneath a root"))
    }
}

impl fmt::Debug for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&quote(&self.0))
    }
}

impl fmt::Display for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&quote(&self.0))
    }
}

/// Shows bytes safely on a terminal: unchanged when they are plain UTF-8 without control characters, quotes or
/// backslashes, else in double quotes with C escapes (the way git quotes paths). [`unquote`] is the inverse.
pub fn quote(bytes: &[u8]) -> String {
    let plain = std::str::from_utf8(bytes)
        .is_ok_and(|s| !s.is_empty() && !s.chars().any(|c| c == '"' || c == '\\' || acts_on_terminal(c)));
    if plain {
        return std::str::from_utf8(bytes).unwrap_or_default().to_owned();
    }
    let mut out = String::with_capacity(bytes.len() + 8);
    out.push('"');
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\t' => out.push_str("\\t"),
                '\r' => out.push_str("\\r"),
                c if acts_on_terminal(c) => push_octal(&mut out, c.encode_utf8(&mut [0; 4]).as_bytes()),
                c => out.push(c),
            }
        }
        push_octal(&mut out, chunk.invalid());
    }
    out.push('"');
    out
}

fn push_octal(out: &mut String, bytes: &[u8]) {
    use fmt::Write;
    for b in bytes {
        // Writing to a String cannot fail.
        write!(out, "\\{b:03o}").unwrap_or_default();
    }
}

/// Whether a terminal does something with `c` other than to show it: control characters, and those that turn the
/// direction of text.
pub fn acts_on_terminal(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The bytes that [`quote`] showed; `None` when the text is not of its form.
pub fn unquote(text: &str) -> Option<Vec<u8>> {
    let Some(inner) = text.strip_prefix('"') else {
        return Some(text.as_bytes().to_vec());
    };
    let inner = inner.strip_suffix('"')?.as_bytes();
    let mut out = Vec::with_capacity(inner.len());
    let mut i = 0;
    while i < inner.len() {
        if inner[i] != b'\\' {
            out.push(inner[i]);
            i += 1;
            continue;
        }
        let (byte, used) = match *inner.get(i + 1)? {
            b'n' => (b'\n', 2),
            b't' => (b'\t', 2),
            b'r' => (b'\r', 2),
            c @ (b'"' | b'\\') => (c, 2),
            b'0'..=b'3' => {
                let digits = std::str::from_utf8(inner.get(i + 1..i + 4)?).ok()?;
                (u8::from_str_radix(digits, 8).ok()?, 4)
            }
            _ => return None,
        };
        out.push(byte);
        i += used;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quote_shows_plain_names_as_they_are_and_escapes_the_rest() {
        assert_eq!(quote(b"src/main.rs"), "src/main.rs");
        assert_eq!(quote("grün".as_bytes()), "grün");
        assert_eq!(quote(b"a\nb\x1b[2J"), "\"a\\nb\\033[2J\"");
        assert_eq!(quote(b"\xff"), "\"\\377\"");
        assert_eq!(quote(b""), "\"\"");
    }

    proptest::proptest! {
        #[test]
        fn unquote_inverts_quote(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..40)) {
            let back = unquote(&quote(&bytes));
            proptest::prop_assert_eq!(back, Some(bytes));
        }
    }

    #[test]
    fn paths_split_and_join() {
        let p = RelPath::new(b"a/b/c").unwrap();
        assert_eq!(p.parent().unwrap(), RelPath::new(b"a/b").unwrap());
        assert_eq!(RelPath::new(b"a").unwrap().parent(), Some(RelPath::root()));
        assert_eq!(p.strip_prefix(&RelPath::new(b"a").unwrap()).unwrap().as_bytes(), b"b/c");
        assert!(!RelPath::new(b"ab").unwrap().starts_with(&RelPath::new(b"a").unwrap()));
        assert!(RelPath::new(b"a/../b").is_err());
        assert!(RelPath::new(b"/a").is_err());
        assert_eq!(Name::new(&[b'x'; 256]), Err(Errno::ENAMETOOLONG));
    }
}
