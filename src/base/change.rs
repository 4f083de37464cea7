//! What a session changed, net: the result of folding the journal, or of scanning the upper.

use super::{Attr, Kind, RelPath, Time};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// What a real object was when the session first changed it. Conflict detection compares against this.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BaseId {
    /// Type.
    pub kind: Kind,
    /// `mode & 0o7777`.
    pub perm: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size in bytes.
    pub size: u64,
    /// Device number of the file system it is on.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
    /// Hard links it had.
    pub nlink: u32,
    /// Last change of content.
    pub mtime: Time,
    /// Last change of the inode.
    pub ctime: Time,
    /// BLAKE3 of the content (regular file) or of the target (symlink), where it was known at no great cost.
    pub hash: Option<[u8; 32]>,
}

impl BaseId {
    /// The identity that `attr` describes, without a content hash.
    pub fn of(attr: &Attr) -> BaseId {
        BaseId {
            kind: attr.kind,
            perm: attr.perm,
            uid: attr.uid,
            gid: attr.gid,
            size: attr.size,
            dev: attr.dev,
            ino: attr.ino,
            nlink: attr.nlink,
            mtime: attr.mtime,
            ctime: attr.ctime,
            hash: None,
        }
    }
}

/// How a path differs from the real tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum What {
    /// `A`: new in the session.
    Added,
    /// `M`: content differs.
    Modified,
    /// `D`: gone in the session.
    Deleted,
    /// `R`: was at another path (content may differ as well).
    Renamed,
    /// `T`: of another type now.
    Typed,
    /// `P`: only mode, owner, times or xattrs differ.
    Meta,
}

impl What {
    /// The letter that `changes` prints.
    pub fn letter(self) -> char {
        match self {
            What::Added => 'A',
            What::Modified => 'M',
            What::Deleted => 'D',
            What::Renamed => 'R',
            What::Typed => 'T',
            What::Meta => 'P',
        }
    }
}

/// The record that last touched a change: when, and which process (an id into the journal's process table).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcRef {
    /// Sequence number of the journal record.
    pub seq: u64,
    /// Nanoseconds since the epoch.
    pub time: u64,
    /// Process id within the journal; 0 when unknown.
    pub proc: u32,
}

/// One net change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Which root of the session, by index.
    pub root: u16,
    /// Where it is in the merged view (for `Deleted`: where it was).
    pub path: RelPath,
    /// How it differs.
    pub what: What,
    /// For `Renamed`: the path it has in the real tree.
    pub from: Option<RelPath>,
    /// Its type now (for `Deleted`: the type it had).
    pub kind: Kind,
    /// What the real object was when first changed; `None` for `Added`.
    pub base: Option<BaseId>,
    /// Whether content was written (a rename may carry this too). A candidate of a fold; `review` settles it.
    pub content: bool,
    /// Whether mode, owner, times or xattrs were set. A candidate of a fold; `review` settles it.
    pub meta: bool,
    /// A directory that hides what the real tree has beneath the same path (made anew after a deletion).
    pub opaque: bool,
    /// The last record that touched it.
    pub last: ProcRef,
}

/// All net changes, ordered by root, then path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangeSet {
    /// The changes in order.
    pub changes: Vec<Change>,
}

impl ChangeSet {
    /// Makes renames of those of `changes`, of one root, that `back` names, with their paths in the real tree: what
    /// is where the real tree has them again, in a directory made in the session. Such a one is in its place only as long as
    /// the real directory around it stays there; when a rename takes that along, this is a rename as well, which may end
    /// at the path where it began. Returns the paths of these.
    pub fn rename_left_behind(changes: &mut [Change], mut back: Vec<(usize, RelPath)>) -> BTreeSet<RelPath> {
        let mut renamed = BTreeSet::new();
        if back.is_empty() {
            return renamed;
        }
        let renames = changes.iter().filter(|c| c.what == What::Renamed);
        let mut claims: BTreeMap<RelPath, RelPath> =
            renames.filter_map(|c| Some((c.from.clone()?, c.path.clone()))).collect();
        // Directories come before what is in them: what the one takes along the other may leave.
        back.sort_by(|a, b| a.1.cmp(&b.1));
        for (i, real) in back {
            let path = changes[i].path.clone();
            let above = std::iter::successors(real.parent(), RelPath::parent);
            let taken = above.into_iter().find_map(|dir| Some((claims.get(&dir)?, real.strip_prefix(&dir)?)));
            let shown = taken.map(|(to, rest)| rest.components().fold(to.clone(), |p, name| p.join(name)));
            if shown.is_some_and(|shown| shown != path) {
                changes[i].what = What::Renamed;
                changes[i].from = Some(real.clone());
                claims.insert(real, path.clone());
                renamed.insert(path);
            }
        }
        renamed
    }
}
