//! The journal from outside: crashes at every byte, hostile bytes, a killed writer, and the fold against a model.

// Helpers outside `#[test]` functions fail by panicking as well.
#![allow(clippy::unwrap_used)]

mod crash;
mod model;
mod scenarios;

use sbx_fuse::base::{BaseId, Kind, RelPath, Time};
use sbx_fuse::journal::{Op, Record};

/// A path beneath a root.
fn path(text: &str) -> RelPath {
    RelPath::new(text.as_bytes()).unwrap()
}

/// A base that tells apart which lower object it is of.
fn base(kind: Kind, ino: u64) -> BaseId {
    let time = Time { sec: ino as i64, nsec: 7 };
    BaseId {
        kind,
        perm: 0o644,
        uid: 1000,
        gid: 1000,
        size: ino,
        dev: 1,
        ino,
        nlink: 1,
        mtime: time,
        ctime: time,
        hash: (ino % 2 == 1).then_some([ino as u8; 32]),
    }
}

/// A record without bases.
fn record(op: Op, kind: Kind, at: &str, to: Option<&str>) -> Record {
    Record { op, root: 0, path: path(at), path2: to.map(path), kind, base: None, base2: None, proc: 0 }
}
