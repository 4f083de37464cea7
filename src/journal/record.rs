//! What one entry of the journal says.

use crate::base::{Attr, BaseId, Kind, RelPath};
use serde::Serialize;

/// What was done to the merged view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum Op {
    /// A regular file, fifo, socket or device was made at `path`.
    Create = 1,
    /// A directory was made at `path`.
    Mkdir = 2,
    /// A symlink was made at `path`.
    Symlink = 3,
    /// `path` became one more name of the object at `path2`.
    Link = 4,
    /// The non-directory `path` was removed.
    Unlink = 5,
    /// The directory `path`, empty in the merged view, was removed.
    Rmdir = 6,
    /// `path` became `path2`; what was at `path2` is gone.
    Rename = 7,
    /// `path` and `path2` changed places.
    Exchange = 8,
    /// Content of `path` was written (first write of a run by one process; later ones make no record).
    Write = 9,
    /// Size of `path` was set.
    Truncate = 10,
    /// Mode, owner or times of `path` were set.
    SetAttr = 11,
    /// An xattr or ACL of `path` was set or removed.
    SetXattr = 12,
    /// `path` left the session because it was applied to the real tree.
    Applied = 13,
    /// `path` left the session because it was discarded.
    Discarded = 14,
    /// Recovery found `path` present in the upper, unknown to the journal (`path2`: where it was in the lower).
    FoundPresent = 15,
    /// Recovery found `path` whited out, unknown to the journal.
    FoundGone = 16,
    /// Recovery found that `path` is unchanged although the journal had a change there.
    FoundSame = 17,
    /// Recovery forgot what was known of the root: the records that follow tell all that its upper has.
    Restated = 18,
    /// The directory `path`, made anew over a real one, is merged with that from now on; what it hides of it the records
    /// that follow tell.
    Merged = 19,
    /// What the real tree has at `path`, in a directory that was merged with its own, is not seen there.
    Hidden = 20,
}

impl Op {
    /// From the number in a frame.
    pub fn from_u8(n: u8) -> Option<Op> {
        use Op::*;
        [
            Create,
            Mkdir,
            Symlink,
            Link,
            Unlink,
            Rmdir,
            Rename,
            Exchange,
            Write,
            Truncate,
            SetAttr,
            SetXattr,
            Applied,
            Discarded,
            FoundPresent,
            FoundGone,
            FoundSame,
            Restated,
            Merged,
            Hidden,
        ]
        .into_iter()
        .find(|op| *op as u8 == n)
    }
}

/// One operation on the merged view, as it is handed to the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// What was done.
    pub op: Op,
    /// Which root of the session.
    pub root: u16,
    /// Where, in the merged view at that moment.
    pub path: RelPath,
    /// The second path of `Link`, `Rename`, `Exchange`, `FoundPresent`.
    pub path2: Option<RelPath>,
    /// Type of the object at `path`.
    pub kind: Kind,
    /// What the lower object at `path` was, when this is the operation that first changes it.
    pub base: Option<BaseId>,
    /// What the lower object at `path2` was, when a rename or exchange is the first to change that.
    pub base2: Option<BaseId>,
    /// Process, an id given by `Journal::process`; 0 when unknown.
    pub proc: u32,
}

impl Record {
    /// What tells that the directory `path`, made anew over a real one, is merged with that: `hidden` is all that the real
    /// one has, none of which is seen.
    pub fn of_merged<'a>(
        root: u16,
        path: &'a RelPath,
        hidden: &'a [(Box<[u8]>, Attr)],
    ) -> impl Iterator<Item = Record> + 'a {
        let record = move |op, path, kind, base| Record {
            op,
            root,
            path,
            path2: None,
            kind,
            base,
            base2: None,
            proc: 0,
        };
        let names = hidden
            .iter()
            .map(move |(name, attr)| record(Op::Hidden, path.join(name), attr.kind, Some(BaseId::of(attr))));
        std::iter::once(record(Op::Merged, path.clone(), Kind::Dir, None)).chain(names)
    }
}

/// A process that changed something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Id within this journal, from 1.
    pub id: u32,
    /// Process id in the server's pid namespace.
    pub pid: u32,
    /// Start time, clock ticks since boot (proc(5), stat field 22); 0 when it was gone before we looked.
    pub start: u64,
    /// `comm` (proc(5)).
    pub comm: Vec<u8>,
    /// Path of its executable; empty when unreadable.
    pub exe: Vec<u8>,
    /// The command it descends from, an id of a [`Command`]; 0 when unknown.
    pub command: u32,
}

/// A command that was started in the session (`run`, `exec`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// Id within this journal, from 1.
    pub id: u32,
    /// Process id of the command itself.
    pub pid: u32,
    /// Its words.
    pub argv: Vec<Vec<u8>>,
}

/// One frame of the log.
#[expect(clippy::large_enum_variant, reason = "nearly all entries of a log are records")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// An operation.
    Record {
        /// Sequence number, from 1, without gaps.
        seq: u64,
        /// Nanoseconds since the epoch.
        time: u64,
        /// The operation.
        record: Record,
    },
    /// A process that later records name.
    Process(Process),
    /// A command that later processes name.
    Command(Command),
    /// A server opened the journal for writing, in this boot of the machine.
    Opened {
        /// `/proc/sys/kernel/random/boot_id`.
        boot: [u8; 16],
    },
    /// The server closed it in good order: upper and journal agree.
    Closed,
}
