//! A whole tree as a value, to compare.

use sbx_fuse::base::Kind;
use std::collections::BTreeMap;

/// One object under one of its names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    pub kind: Kind,
    pub perm: u32,
    /// Number of names; 0 for directories, which need not count.
    pub nlink: u32,
    /// Content, or the target of a symlink.
    pub bytes: Vec<u8>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The first path of the same object.
    pub same_as: String,
}

/// Path to object.
pub type Tree = BTreeMap<String, Object>;

/// What differs, one line each; empty when nothing does. Without `exact_links`, an object may have more links than it
/// should: how many names of a lower hard link were removed is not kept beyond a forget.
pub fn differences(plain: &Tree, view: &Tree, exact_links: bool) -> Vec<String> {
    let mut all = Vec::new();
    for (path, object) in plain {
        match view.get(path) {
            None => all.push(format!("{path} is missing")),
            Some(other) if other != object => {
                let mut other = other.clone();
                if !exact_links && other.nlink > object.nlink {
                    other.nlink = object.nlink;
                    if other == *object {
                        continue;
                    }
                }
                let mut what = Vec::new();
                let mut note = |name: &str, a: String, b: String| {
                    if a != b {
                        what.push(format!("{name} is {b}, should be {a}"));
                    }
                };
                note("kind", format!("{:?}", object.kind), format!("{:?}", other.kind));
                note("mode", format!("{:o}", object.perm), format!("{:o}", other.perm));
                note("nlink", object.nlink.to_string(), other.nlink.to_string());
                note("size", object.bytes.len().to_string(), other.bytes.len().to_string());
                note("content", short(&object.bytes), short(&other.bytes));
                note("xattrs", format!("{:?}", object.xattrs.keys()), format!("{:?}", other.xattrs.keys()));
                note("xattr values", format!("{:?}", object.xattrs), format!("{:?}", other.xattrs));
                note("identity", object.same_as.clone(), other.same_as.clone());
                all.push(format!("{path}: {}", what.join("; ")));
            }
            Some(_) => {}
        }
    }
    all.extend(view.keys().filter(|p| !plain.contains_key(*p)).map(|p| format!("{p} should not be there")));
    all
}

fn short(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().split_at(8).0.to_owned()
}
