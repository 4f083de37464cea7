//! What a session says about itself: `meta.json`.

use super::archive_lower::DirId;
use super::config::{LimitsConfig, PolicyConfig, QuotaConfig};
use crate::base::{Error, Result, quote, unquote};
use crate::layer::Features;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The version of `meta.json` that this program writes.
pub const META_VERSION: u32 = 1;

/// A path or word as bytes. In JSON it is its own text; only what is no UTF-8, or begins with a double quote itself, is
/// the text that [`quote`] makes of it, which begins with a double quote.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct PathBytes(pub Vec<u8>);

impl PathBytes {
    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// It as the standard library wants it.
    pub fn as_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.0))
    }
}

impl From<&Path> for PathBytes {
    fn from(path: &Path) -> Self {
        PathBytes(path.as_os_str().as_bytes().to_vec())
    }
}

impl std::fmt::Debug for PathBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&quote(&self.0))
    }
}

impl std::fmt::Display for PathBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&quote(&self.0))
    }
}

impl Serialize for PathBytes {
    fn serialize<S: Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        match std::str::from_utf8(&self.0) {
            Ok(text) if !text.starts_with('"') => to.serialize_str(text),
            _ => to.serialize_str(&quote(&self.0)),
        }
    }
}

impl<'de> Deserialize<'de> for PathBytes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        unquote(&text).map(PathBytes).ok_or_else(|| D::Error::custom("not a quoted path"))
    }
}

/// One real directory of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootMeta {
    /// Canonical absolute path: its identity.
    pub path: PathBytes,
    /// The name of its top-level directory in a mount of several roots; unique in the session.
    pub name: PathBytes,
    /// What the file system under its upper can do.
    pub features: Features,
    /// Which directory it is, not only where; unknown of a session that an earlier program made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<DirId>,
}

/// The content of `meta.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// [`META_VERSION`].
    pub version: u32,
    /// Random hexadecimal id, which outlives a change of name.
    pub id: String,
    /// When it was made, nanoseconds since the epoch.
    pub created: u64,
    /// Whether a person chose the name; such a session is kept even when nothing changed.
    #[serde(default)]
    pub named: bool,
    /// The real directories, in order.
    pub roots: Vec<RootMeta>,
    /// Directories of which it has a version of its own that no review shows: they come after the roots, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub private: Vec<RootMeta>,
    /// The words of the last command that ran in it.
    #[serde(default)]
    pub command: Vec<PathBytes>,
    /// How much room it may take.
    #[serde(default)]
    pub quota: QuotaConfig,
    /// What its sandboxes may use of the machine.
    #[serde(default)]
    pub limits: LimitsConfig,
    /// What its sandboxes see, beside the defaults.
    #[serde(default)]
    pub policy: PolicyConfig,
    /// Whether no other session may have a root in or around its roots.
    #[serde(default)]
    pub exclusive: bool,
    /// Where a person mounted it; present while mounted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mountpoint: Option<PathBytes>,
}

impl Meta {
    /// Reads the bytes of a `meta.json`.
    ///
    /// # Errors
    /// `Failure` when it is no such file or one of a later version.
    pub fn parse(bytes: &[u8]) -> Result<Meta> {
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        // The version first, so that a later form is told as such and not as a missing field.
        let version: Version = serde_json::from_slice(bytes).map_err(damaged)?;
        if version.version != META_VERSION {
            return Err(Error::failure(format!(
                "it is of version {}, this program knows version {META_VERSION}",
                version.version
            ))
            .hint("use the sbx-fuse that made the session"));
        }
        serde_json::from_slice(bytes).map_err(damaged)
    }
}

fn damaged(e: serde_json::Error) -> Error {
    Error::failure(format!("its meta.json is damaged: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::WhiteoutForm;

    #[test]
    fn meta_keeps_names_that_are_not_utf8() {
        let meta = Meta {
            version: META_VERSION,
            id: "00ff".into(),
            created: 7,
            named: true,
            roots: vec![RootMeta {
                path: PathBytes(b"/a\xff\n\"b".to_vec()),
                name: PathBytes(b"\xff".to_vec()),
                features: Features { whiteout: WhiteoutForm::Prefix, xattr: false, reflink: false },
                id: Some(DirId { ino: 5, btime: crate::base::Time::default() }),
            }],
            private: Vec::new(),
            command: vec![PathBytes(b"\"quoted".to_vec())],
            quota: QuotaConfig { bytes: Some(super::super::Size(5)), inodes: None },
            limits: LimitsConfig::default(),
            policy: PolicyConfig { hide: vec!["x".into()], ..PolicyConfig::default() },
            exclusive: true,
            mountpoint: None,
        };
        let text = serde_json::to_vec(&meta).unwrap();
        assert_eq!(Meta::parse(&text).unwrap(), meta);
    }

    #[test]
    fn bytes_that_are_text_are_their_own_json() {
        for (bytes, json) in [
            (&b"a\nb"[..], r#""a\nb""#),
            (b"say \"x\" \\", r#""say \"x\" \\""#),
            (b"", r#""""#),
            ("\u{202e}gr\u{fc}n".as_bytes(), "\"\u{202e}gr\u{fc}n\""),
            (b"\"x\"", r#""\"\\\"x\\\"\"""#),
            (b"\xff", r#""\"\\377\"""#),
        ] {
            let path = PathBytes(bytes.to_vec());
            let text = serde_json::to_string(&path).unwrap();
            assert_eq!(text, json);
            assert_eq!(serde_json::from_str::<PathBytes>(&text).unwrap(), path);
        }
    }

    #[test]
    fn a_later_version_is_told_as_such() {
        let e = Meta::parse(br#"{"version": 9, "new": true}"#).unwrap_err();
        assert!(e.message.contains("version 9"), "{e}");
        assert!(Meta::parse(b"{").is_err());
    }
}
