//! The intent log of a transaction on the real tree: what is about to be done, on the disk before it is done.
//!
//! Frames of `len u32 | crc32 u32 | payload`, little endian; a payload is the JSON of an [`Entry`]. A tail that is no
//! whole frame was never acted upon and counts as absent.

use super::objects;
use crate::base::{Attr, Errno, Kind, RelPath, Sys, Time};
use crate::sys::{data, file};
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The log of an application, in its directory.
pub(crate) const APPLY_LOG: &[u8] = b"log";
/// The log of its undoing.
pub(crate) const UNDO_LOG: &[u8] = b"undo";

/// In which tree a place is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Space {
    /// The real tree of this root.
    Real(u16),
    /// The directory of the transaction, where old content is kept.
    Kept,
}

/// A name in one of the trees.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Place {
    pub space: Space,
    pub path: RelPath,
}

impl Place {
    /// A place in the real tree of `root`.
    pub fn real(root: u16, path: &RelPath) -> Place {
        Place { space: Space::Real(root), path: path.clone() }
    }

    /// Whether it is `dir` or lies beneath it.
    pub fn is_in(&self, dir: &Place) -> bool {
        self.space == dir.space && self.path.starts_with(&dir.path)
    }
}

/// Which object: stays the same when it is renamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Id {
    pub dev: u64,
    pub ino: u64,
    pub kind: Kind,
}

impl Id {
    /// The identity of the object that has these attributes.
    pub fn of(attr: &Attr) -> Id {
        Id { dev: attr.dev, ino: attr.ino, kind: attr.kind }
    }
}

/// What tells that nobody wrote to an object meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stamp {
    pub size: u64,
    pub mtime: Time,
}

impl Stamp {
    /// The stamp of the object that has these attributes.
    pub fn of(attr: &Attr) -> Stamp {
        Stamp { size: attr.size, mtime: attr.mtime }
    }
}

/// What an object had before its attributes were set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Saved {
    pub attr: Attr,
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// One operation, with all that its inverse needs. Paths are those at the moment when it is done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Op {
    /// A temporary object is made here, a tree of them if `tree`; removed again.
    Make { at: Place, tree: bool },
    /// A directory is made where nothing was; removed again.
    Mkdir { at: Place },
    /// An empty directory is removed; made again.
    Rmdir { at: Place, saved: Saved },
    /// Renamed to a free name; renamed back. `was` is what it was when that was planned, if known.
    Move {
        from: Place,
        to: Place,
        id: Id,
        #[serde(default)]
        was: Option<Stamp>,
    },
    /// Two objects change places; once more. `was` is what the first was when that was planned, if known.
    Swap {
        one: Place,
        other: Place,
        one_id: Id,
        other_id: Id,
        #[serde(default)]
        was: Option<Stamp>,
    },
    /// Attributes are set; given back.
    Attrs { at: Place, saved: Saved },
    /// The bytes of a file are written in place; written back from a copy.
    Bytes { at: Place, save: Place, saved: Saved },
    /// Entries of this directory will change; its times are given back.
    Times { at: Place, atime: Time, mtime: Time },
    /// The object was copied, to be removed from its place after the commit. Nothing to take back.
    Copied { from: Place, to: Place },
    /// The swap at this name could not be done as one; moves follow that do the same.
    Unswapped { one: Place },
}

/// A change that leaves the session once the real tree has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Leaver {
    pub root: u16,
    pub path: RelPath,
    /// Inode and ctime of the session's object.
    pub seen: Option<(u64, Time)>,
}

/// What a name of the real tree was right after the transaction; `None`: nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct After {
    pub root: u16,
    pub path: RelPath,
    pub attr: Option<Attr>,
}

/// One frame of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Entry {
    /// When it began (nanoseconds since the epoch), and for messages how many changes it carries out.
    Begin { time: u64, changes: usize },
    /// A batch of operations follows: the next one begins only when all of this one are done.
    Batch,
    /// About to be done.
    Op(Op),
    /// The batch that begins with this operation is about to be taken back; those after it are. At these places
    /// something was found that is not to be touched.
    BackTo { batch: usize, spoiled: Vec<Place> },
    /// A name as the transaction left it.
    After(After),
    /// A change that is to leave the session.
    Leave(Leaver),
    /// The point of no return: everything before it is done and on the disk.
    Commit,
    /// Nothing is left to do.
    Done,
}

/// The log, open for appending.
pub(crate) struct LogWriter {
    file: OwnedFd,
    end: u64,
    buf: Vec<u8>,
}

impl LogWriter {
    /// Makes a new log called `name` in `dir`.
    ///
    /// # Errors
    /// As `openat(2)`; `EEXIST` when there is one.
    pub fn create(dir: BorrowedFd<'_>, name: &[u8]) -> Sys<LogWriter> {
        let flags = libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY;
        let file = file::openat(dir, name, flags, 0o600)?;
        Ok(LogWriter { file, end: 0, buf: Vec::new() })
    }

    /// Opens a log behind its last whole frame, `end` as [`read`] gave it.
    ///
    /// # Errors
    /// As `openat(2)` and `ftruncate(2)`.
    pub fn append(dir: BorrowedFd<'_>, name: &[u8], end: u64) -> Sys<LogWriter> {
        let file = file::openat(dir, name, libc::O_WRONLY, 0)?;
        data::ftruncate(file.as_fd(), end)?;
        Ok(LogWriter { file, end, buf: Vec::new() })
    }

    /// Adds an entry; it is on the disk after [`LogWriter::sync`].
    ///
    /// # Errors
    /// `EINVAL` for an entry that has no JSON form, which none of ours lacks.
    pub fn push(&mut self, entry: &Entry) -> Sys<()> {
        self.buf.extend(framed(entry)?);
        Ok(())
    }

    /// Writes what was added and waits until the disk has it.
    ///
    /// # Errors
    /// As `pwrite(2)` and `fdatasync(2)`.
    pub fn sync(&mut self) -> Sys<()> {
        let written = data::pwrite_all(self.file.as_fd(), &self.buf, self.end)
            .and_then(|()| data::fsync(self.file.as_fd(), true));
        if let Err(e) = written {
            // Nobody acts on what may or may not have reached the disk: above all not on a commit.
            self.buf.clear();
            data::ftruncate(self.file.as_fd(), self.end)?;
            return Err(e);
        }
        self.end += self.buf.len() as u64;
        self.buf.clear();
        Ok(())
    }
}

/// Whether the log called `name` in `dir` ends with [`Entry::Done`], so that nothing is left to do about it; `None` when
/// there is none. Costs no look at the rest.
///
/// # Errors
/// As `openat(2)` and `pread(2)`.
pub(crate) fn is_done(dir: BorrowedFd<'_>, name: &[u8]) -> Sys<Option<bool>> {
    let file = match file::openat(dir, name, libc::O_RDONLY, 0) {
        Ok(file) => file,
        Err(Errno::ENOENT) => return Ok(None),
        Err(e) => return Err(e),
    };
    let end = framed(&Entry::Done)?;
    let size = file::stat(file.as_fd())?.size;
    let mut tail = Vec::new();
    let at = size.saturating_sub(end.len() as u64);
    data::pread_into(file.as_fd(), &mut tail, end.len(), at)?;
    Ok(Some(tail == end))
}

/// The frame of one entry.
fn framed(entry: &Entry) -> Sys<Vec<u8>> {
    let payload = serde_json::to_vec(entry).map_err(|_| Errno::EINVAL)?;
    let len = u32::try_from(payload.len()).map_err(|_| Errno::E2BIG)?;
    let mut frame = Vec::with_capacity(8 + payload.len());
    frame.extend(len.to_le_bytes());
    frame.extend(checksum(len, &payload).to_le_bytes());
    frame.extend(payload);
    Ok(frame)
}

fn checksum(len: u32, payload: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&len.to_le_bytes());
    crc.update(payload);
    crc.finalize()
}

/// What a log says.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    pub ops: Vec<Op>,
    pub after: Vec<After>,
    pub leave: Vec<Leaver>,
    pub time: u64,
    pub changes: usize,
    pub committed: bool,
    pub done: bool,
    /// With which operations the batches begin.
    pub batches: Vec<usize>,
    /// How far it was taken back already: the last batch that may not be yet, and what is not to be touched.
    pub back: Option<(usize, Vec<Place>)>,
    /// Where its last whole frame ends.
    pub end: u64,
}

/// Reads the log called `name` in `dir`; `None` when there is none.
///
/// # Errors
/// As `openat(2)` and `pread(2)`.
pub(crate) fn read(dir: BorrowedFd<'_>, name: &[u8]) -> Sys<Option<Log>> {
    let file = match file::openat(dir, name, libc::O_RDONLY, 0) {
        Ok(file) => file,
        Err(Errno::ENOENT) => return Ok(None),
        Err(e) => return Err(e),
    };
    let bytes = objects::read_all(file.as_fd())?;
    let mut log = Log::default();
    let mut rest = &bytes[..];
    while let Some((entry, stride)) = frame(rest) {
        rest = &rest[stride..];
        log.end += stride as u64;
        match entry {
            Entry::Begin { time, changes } => (log.time, log.changes) = (time, changes),
            Entry::Batch => log.batches.push(log.ops.len()),
            Entry::BackTo { batch, spoiled } => log.back = Some((batch, spoiled)),
            Entry::Op(op) => log.ops.push(op),
            Entry::After(after) => log.after.push(after),
            Entry::Leave(leaver) => log.leave.push(leaver),
            Entry::Commit => log.committed = true,
            Entry::Done => log.done = true,
        }
    }
    Ok(Some(log))
}

/// The first frame of `bytes` and its length in the file; `None` when it is not whole.
fn frame(bytes: &[u8]) -> Option<(Entry, usize)> {
    let (head, rest) = bytes.split_first_chunk::<8>()?;
    let len = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
    let crc = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
    let payload = rest.get(..len as usize)?;
    if checksum(len, payload) != crc {
        return None;
    }
    Some((serde_json::from_slice(payload).ok()?, 8 + payload.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_cut_anywhere_gives_its_whole_frames() {
        let dir = tempfile::tempdir().unwrap();
        let fd = std::fs::File::open(dir.path()).unwrap();
        let mut log = LogWriter::create(fd.as_fd(), b"log").unwrap();
        let at = Place::real(3, &RelPath::new(b"a/\xff\n").unwrap());
        log.push(&Entry::Begin { time: 7, changes: 2 }).unwrap();
        log.push(&Entry::Op(Op::Make { at: at.clone(), tree: false })).unwrap();
        log.push(&Entry::Op(Op::Mkdir { at: Place::real(0, &RelPath::root()) })).unwrap();
        log.push(&Entry::Commit).unwrap();
        log.sync().unwrap();
        let whole = std::fs::read(dir.path().join("log")).unwrap();
        let all = read(fd.as_fd(), b"log").unwrap().unwrap();
        assert_eq!((all.ops.len(), all.committed, all.end, all.time), (2, true, whole.len() as u64, 7));
        assert_eq!(all.ops[0], Op::Make { at, tree: false });
        let mut ops = 0;
        for cut in 0..whole.len() {
            std::fs::write(dir.path().join("log"), &whole[..cut]).unwrap();
            let log = read(fd.as_fd(), b"log").unwrap().unwrap();
            assert!(!log.committed && log.ops.len() >= ops && log.end <= cut as u64);
            ops = log.ops.len();
        }
        assert_eq!(ops, 2);
    }
}
