//! A whole tree as a value: type, mode, times, link targets, hard links, xattrs and content.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// One object, all that a person could tell two of them apart by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    pub kind: &'static str,
    pub mode: u32,
    /// Seconds and nanoseconds; of directories too.
    pub mtime: (i64, i64),
    pub size: u64,
    pub target: Option<OsString>,
    /// The first path, in order, that is the same inode.
    pub same_as: Option<PathBuf>,
    pub hash: Option<[u8; 32]>,
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Path below the root → object; the root itself is `""`.
pub type Tree = BTreeMap<PathBuf, Object>;

/// Reads the tree at `root`.
pub fn read(root: &Path) -> Tree {
    let mut inodes: BTreeMap<(u64, u64), PathBuf> = BTreeMap::new();
    let mut tree = Tree::new();
    for entry in walkdir::WalkDir::new(root).sort_by_file_name() {
        let entry = entry.expect("the tree can be walked");
        let meta = entry.metadata().expect("an object can be examined");
        let path = entry.path().strip_prefix(root).expect("below the root").to_path_buf();
        let kind = meta.file_type();
        let regular = kind.is_file();
        let mut same_as = None;
        if !kind.is_dir() && meta.nlink() > 1 {
            let first = inodes.entry((meta.dev(), meta.ino())).or_insert_with(|| path.clone());
            same_as = (*first != path).then(|| first.clone());
        }
        let object = Object {
            kind: match () {
                () if regular => "file",
                () if kind.is_dir() => "dir",
                () if kind.is_symlink() => "symlink",
                () if kind.is_fifo() => "fifo",
                () if kind.is_socket() => "socket",
                () => "device",
            },
            mode: meta.mode() & 0o7777,
            mtime: (meta.mtime(), meta.mtime_nsec()),
            size: if kind.is_dir() { 0 } else { meta.size() },
            target: kind
                .is_symlink()
                .then(|| std::fs::read_link(entry.path()).expect("a link can be read").into()),
            same_as,
            hash: regular.then(|| hash(entry.path())),
            xattrs: if kind.is_symlink() { Vec::new() } else { xattrs(entry.path()) },
        };
        tree.insert(path, object);
    }
    tree
}

fn hash(path: &Path) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(std::fs::File::open(path).expect("a file can be read")).expect("a file can be read");
    *hasher.finalize().as_bytes()
}

fn xattrs(path: &Path) -> Vec<(Vec<u8>, Vec<u8>)> {
    use sbx_fuse::sys;
    use std::os::fd::AsFd;
    let fd =
        sys::file::open_path(path.as_os_str().as_bytes(), libc::O_PATH | libc::O_NOFOLLOW).expect("a handle");
    let mut all: Vec<(Vec<u8>, Vec<u8>)> = sys::xattr::list(fd.as_fd())
        .expect("xattrs can be listed")
        .into_iter()
        .map(|name| {
            let value = sys::xattr::get(fd.as_fd(), &name).expect("an xattr can be read").unwrap_or_default();
            (name, value)
        })
        .collect();
    all.sort();
    all
}

/// The differences between two trees, a line each; `excused` gets a path and the name of the aspect that differs.
pub fn differences(want: &Tree, have: &Tree, excused: impl Fn(&Path, &str) -> bool) -> Vec<String> {
    let mut lines = Vec::new();
    for (path, object) in want {
        let Some(other) = have.get(path) else {
            if !excused(path, "presence") {
                lines.push(format!("missing: {}", path.display()));
            }
            continue;
        };
        for aspect in aspects(object, other) {
            if !excused(path, aspect) {
                lines.push(format!("{aspect} of {}: want {object:?}, have {other:?}", path.display()));
            }
        }
    }
    for path in have.keys().filter(|p| !want.contains_key(*p)) {
        if !excused(path, "presence") {
            lines.push(format!("should not be there: {}", path.display()));
        }
    }
    lines
}

/// In what two objects differ.
pub fn aspects(a: &Object, b: &Object) -> Vec<&'static str> {
    let mut all = Vec::new();
    for (name, same) in [
        ("type", a.kind == b.kind),
        ("mode", a.mode == b.mode),
        ("mtime", a.mtime == b.mtime),
        ("content", a.size == b.size && a.hash == b.hash),
        ("target", a.target == b.target),
        ("hard links", a.same_as == b.same_as),
        ("xattrs", a.xattrs == b.xattrs),
    ] {
        if !same {
            all.push(name);
        }
    }
    all
}

/// Copies a tree with everything that [`read`] looks at.
pub fn copy(from: &Path, to: &Path) {
    let done =
        Command::new("cp").args(["-a", "--reflink=auto", "-T"]).arg(from).arg(to).status().expect("cp runs");
    assert!(done.success(), "cannot copy {}", from.display());
}

/// A file name from bytes.
pub fn name(bytes: &[u8]) -> OsString {
    OsString::from_vec(bytes.to_vec())
}
