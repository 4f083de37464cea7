//! Block-level copy-up on disk: an upper file that still borrows bytes of the lower file it began as.
//!
//! A *partial* file has its full length and its own attributes, and carries the mark `user.overlay.sbx.partial`. The
//! map of what was copied is the file's own extents: **a hole before the mark's limit is the lower's bytes**, all else
//! is its own. So no crash can tear map and data apart: a block is there, written from the lower first where it is
//! written in part, or it is not. Only on file systems that never make a hole of what was written (see [`supported`]).
//!
//! It is a form for a session in use: each partial file also has a *marker* in `work/partial`, named by its inode, that
//! holds its path in the upper; [`recover`] completes what a dead server left by these. Nobody else ever sees the form.
//!
//! | step of completing | state when killed before it | who repairs it |
//! |---|---|---|
//! | note the times in the mark | mark, holes | `recover` |
//! | fill a hole | mark, fewer holes; the file's times may be ours | `recover` puts the noted ones back |
//! | fsync | mark, holes as the disk has them | `recover` |
//! | remove the mark | no hole left that means anything | `recover` removes the mark |
//! | remove the marker | a complete file | `recover` removes the marker |

use super::codec::read_origin;
use crate::base::{Attr, BaseId, Errno, Kind, RelPath, SetTime, Sys, Time};
use crate::sys::{data, dir, file, xattr};
use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// On a partial file: an encoded [`Mark`].
pub const X_PARTIAL: &[u8] = b"user.overlay.sbx.partial";
/// The directory in a work directory that holds the markers.
pub const MARKERS: &[u8] = b"partial";
/// The unit of the map, bytes.
pub const BLOCK: u64 = 4096;
/// What is filled at a time, bytes.
pub const CHUNK: u64 = 1 << 20;

const VERSION: u8 = 1;

/// What is noted on a partial file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// No byte of the lower shows at or beyond this offset: a truncation took it away.
    pub limit: u64,
    /// Access and modification time to be put back after a hole was filled.
    pub times: Option<(Time, Time)>,
}

impl Mark {
    /// Version u8, limit u64, has-times u8, both as i64 + u32; little endian. Always of one length, so that a full disk
    /// does not keep it from being changed.
    fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        out.extend(self.limit.to_le_bytes());
        out.push(u8::from(self.times.is_some()));
        let (atime, mtime) = self.times.unwrap_or_default();
        for t in [atime, mtime] {
            out.extend(t.sec.to_le_bytes());
            out.extend(t.nsec.to_le_bytes());
        }
        out
    }

    fn decode(bytes: &[u8]) -> Option<Mark> {
        let (head, rest) = bytes.split_first_chunk::<10>()?;
        let (limit, _) = head[1..].split_first_chunk::<8>()?;
        let time = |bytes: &[u8]| {
            let (sec, nsec) = bytes.split_first_chunk::<8>()?;
            Some(Time { sec: i64::from_le_bytes(*sec), nsec: u32::from_le_bytes(nsec.try_into().ok()?) })
        };
        let times = (time(rest.get(..12)?)?, time(rest.get(12..)?)?);
        let times = (head[9] == 1).then_some(times);
        (head[0] == VERSION).then_some(Mark { limit: u64::from_le_bytes(*limit), times })
    }

    /// The mark on the file behind `fd`, which may be `O_PATH`; `None` on one that is complete.
    ///
    /// # Errors
    /// `EIO` for a mark that nobody of us wrote, else as `getxattr(2)`.
    pub fn read(fd: BorrowedFd<'_>) -> Sys<Option<Mark>> {
        match in_mode(fd, 0o400, || xattr::get(fd, X_PARTIAL))? {
            None => Ok(None),
            Some(value) => Mark::decode(&value).map(Some).ok_or(Errno::EIO),
        }
    }

    /// Puts the mark on the file behind `fd`.
    ///
    /// # Errors
    /// As `setxattr(2)`.
    pub fn write(&self, fd: BorrowedFd<'_>) -> Sys<()> {
        in_mode(fd, 0o200, || xattr::set(fd, X_PARTIAL, &self.encode(), 0))
    }

    /// Takes the mark away: from now on a hole is a hole.
    ///
    /// # Errors
    /// As `removexattr(2)`.
    pub fn clear(fd: BorrowedFd<'_>) -> Sys<()> {
        match in_mode(fd, 0o200, || xattr::remove(fd, X_PARTIAL)) {
            Err(Errno::ENODATA) => Ok(()),
            other => other,
        }
    }
}

/// Does `f`, where the file's mode keeps even its owner out with `add` added to it meanwhile (xattr(7)).
fn in_mode<T>(fd: BorrowedFd<'_>, add: u32, f: impl Fn() -> Sys<T>) -> Sys<T> {
    match f() {
        Err(Errno::EACCES) => {}
        other => return other,
    }
    let perm = file::stat(fd)?.perm;
    file::chmod_fd(fd, perm | add)?;
    let done = f();
    file::chmod_fd(fd, perm)?;
    done
}

/// Whether holes of the file system of `work` can be a map in units of [`BLOCK`]. They cannot on one that may make a
/// hole of written zeros (ZFS, anything unknown), without `user.` xattrs, or with larger blocks.
pub fn supported(work: BorrowedFd<'_>) -> bool {
    const EXT: i64 = 0xef53;
    const XFS: i64 = 0x5846_5342;
    const TMPFS: i64 = 0x0102_1994;
    let Ok(fs) = file::statfs(work) else { return false };
    if ![EXT, XFS, TMPFS].contains(&fs.magic) || u64::from(fs.bsize) > BLOCK {
        return false;
    }
    const NAME: &[u8] = b"probe.holes";
    let tried = || -> Sys<bool> {
        match file::unlinkat(work, NAME) {
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(e) => return Err(e),
        }
        let fd = file::openat(work, NAME, libc::O_CREAT | libc::O_EXCL | libc::O_RDWR, 0o600)?;
        file::unlinkat(work, NAME)?;
        data::ftruncate(fd.as_fd(), 16 * BLOCK)?;
        data::pwrite_all(fd.as_fd(), &[0; 4096], 5 * BLOCK)?;
        Mark { limit: 0, times: None }.write(fd.as_fd())?;
        Ok(own_ranges(fd.as_fd(), 0, 16 * BLOCK)? == [(5 * BLOCK, 6 * BLOCK)])
    };
    tried().unwrap_or(false)
}

/// The ranges of `start..end` for which the file behind `fd` has bytes of its own, in order.
///
/// # Errors
/// As `lseek(2)`.
pub fn own_ranges(fd: BorrowedFd<'_>, start: u64, end: u64) -> Sys<Vec<(u64, u64)>> {
    let (mut ranges, mut pos) = (Vec::new(), start);
    while pos < end {
        let data = match data::lseek(fd, pos as i64, libc::SEEK_DATA) {
            Err(Errno::ENXIO) => break,
            other => other?,
        };
        if data >= end {
            break;
        }
        let hole = data::lseek(fd, data as i64, libc::SEEK_HOLE)?.min(end);
        ranges.push((data, hole));
        pos = hole;
    }
    Ok(ranges)
}

/// The lower file that a partial file borrows from, as it was when that began.
pub struct Source {
    fd: OwnedFd,
    size: u64,
    mtime: Time,
}

impl Source {
    /// `fd` is the lower file, open for reading; `attr` what it was.
    pub fn new(fd: OwnedFd, attr: &Attr) -> Source {
        Source { fd, size: attr.size, mtime: attr.mtime }
    }

    /// The descriptor.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Reads exactly `len` bytes at `offset` onto the end of `buf`; zeros beyond the file's end.
    ///
    /// # Errors
    /// `EIO` when the file was written to meanwhile, so that what it was is lost; else as `pread(2)`.
    pub fn read(&self, offset: u64, len: usize, buf: &mut Vec<u8>) -> Sys<()> {
        let (begin, mut piece) = (buf.len(), Vec::new());
        while buf.len() - begin < len {
            let done = buf.len() - begin;
            if data::pread_into(self.fd.as_fd(), &mut piece, len - done, offset + done as u64)? == 0 {
                break;
            }
            buf.extend_from_slice(&piece);
        }
        buf.resize(begin + len, 0);
        if self.is_as_it_was()? { Ok(()) } else { Err(Errno::EIO) }
    }

    /// The next piece of `range`, a hole of the partial file, that has bytes to be copied, [`CHUNK`] at most and made of
    /// whole blocks of `range`; `None` when there is none left.
    ///
    /// # Errors
    /// As [`Source::read`] and `lseek(2)`.
    pub fn next_piece(&self, (start, end): (u64, u64)) -> Sys<Option<(u64, u64)>> {
        let data = self.next_data(start)?;
        if data >= end {
            // A file that was cut short has no data there, either.
            return if self.is_as_it_was()? { Ok(None) } else { Err(Errno::EIO) };
        }
        // The lower's blocks may be smaller than the upper's, which cannot be half a hole.
        let from = (data - data % BLOCK).max(start);
        let to = self.next_hole(data)?.max(data + 1).next_multiple_of(BLOCK);
        Ok(Some((from, to.min((from + CHUNK) / BLOCK * BLOCK).min(end))))
    }

    /// Where at or after `pos` it has data; its end where it has none.
    ///
    /// # Errors
    /// As `lseek(2)`.
    pub fn next_data(&self, pos: u64) -> Sys<u64> {
        match data::lseek(self.fd.as_fd(), pos as i64, libc::SEEK_DATA) {
            Ok(at) => Ok(at),
            Err(Errno::ENXIO) => Ok(self.size.max(pos)),
            Err(Errno::EINVAL | Errno::EOPNOTSUPP) => Ok(pos),
            Err(e) => Err(e),
        }
    }

    /// Where the data at `pos` ends.
    ///
    /// # Errors
    /// As `lseek(2)`.
    pub fn next_hole(&self, pos: u64) -> Sys<u64> {
        match data::lseek(self.fd.as_fd(), pos as i64, libc::SEEK_HOLE) {
            Ok(at) => Ok(at),
            Err(Errno::ENXIO | Errno::EINVAL | Errno::EOPNOTSUPP) => Ok(self.size.max(pos)),
            Err(e) => Err(e),
        }
    }

    fn is_as_it_was(&self) -> Sys<bool> {
        let now = file::stat(self.fd.as_fd())?;
        Ok((now.size, now.mtime) == (self.size, self.mtime))
    }
}

/// Copies `start..end` of the lower file into a hole of the partial file `to`.
///
/// # Errors
/// As [`Source::read`] and `pwrite(2)`.
pub fn fill(to: BorrowedFd<'_>, source: &Source, start: u64, end: u64) -> Sys<()> {
    let mut buf = Vec::new();
    source.read(start, (end - start) as usize, &mut buf)?;
    data::pwrite_all(to, &buf, start)
}

/// Sets the times of a file, after a hole was filled.
///
/// # Errors
/// As `utimensat(2)`.
pub fn put_times(fd: BorrowedFd<'_>, (atime, mtime): (Time, Time)) -> Sys<()> {
    file::utimens_at(fd, b"", Some(SetTime::At(atime)), Some(SetTime::At(mtime)))
}

/// The name of the marker of the file with this inode.
pub fn marker_name(ino: u64) -> Vec<u8> {
    format!("{ino:x}").into_bytes()
}

/// Makes the marker of the partial file with inode `ino` that is to be at `path` in the upper.
///
/// # Errors
/// As `open(2)` and `write(2)`.
pub fn make_marker(work: BorrowedFd<'_>, ino: u64, path: &RelPath) -> Sys<()> {
    match file::mkdirat(work, MARKERS, 0o700) {
        Ok(()) | Err(Errno::EEXIST) => {}
        Err(e) => return Err(e),
    }
    let dir = file::openat(work, MARKERS, libc::O_PATH | libc::O_DIRECTORY, 0)?;
    let flags = libc::O_CREAT | libc::O_TRUNC | libc::O_WRONLY;
    let fd = file::openat(dir.as_fd(), &marker_name(ino), flags, 0o600)?;
    data::pwrite_all(fd.as_fd(), path.as_bytes(), 0)
}

/// Removes a marker that may be gone already.
///
/// # Errors
/// As `unlinkat(2)`.
pub fn remove_marker(work: BorrowedFd<'_>, ino: u64) -> Sys<()> {
    let done = file::openat(work, MARKERS, libc::O_PATH | libc::O_DIRECTORY, 0)
        .and_then(|dir| file::unlinkat(dir.as_fd(), &marker_name(ino)));
    match done {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(e) => Err(e),
    }
}

/// A partial file that a dead server left and that could not be completed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incomplete {
    /// Where it is in the upper.
    pub path: RelPath,
    /// `ESTALE` when the real file is not what it was, so that the bytes are lost; else what failed.
    pub why: Errno,
}

/// What [`recover`] did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// How many files it completed.
    pub completed: usize,
    /// What it could not; their marks and markers stay.
    pub incomplete: Vec<Incomplete>,
}

/// Whether `work` has markers: partial files that [`recover`] has not completed.
///
/// # Errors
/// As listing a directory.
pub fn has_incomplete(work: BorrowedFd<'_>) -> Sys<bool> {
    Ok(!markers(work)?.is_empty())
}

/// The inodes and paths that the markers note.
fn markers(work: BorrowedFd<'_>) -> Sys<Vec<(u64, Option<RelPath>)>> {
    let dir = match file::openat(work, MARKERS, libc::O_RDONLY | libc::O_DIRECTORY, 0) {
        Err(Errno::ENOENT) => return Ok(Vec::new()),
        other => other?,
    };
    let mut all = Vec::new();
    for entry in dir::entries(dir.as_fd())? {
        let text = std::str::from_utf8(&entry.name).ok();
        let ino = text.and_then(|t| u64::from_str_radix(t, 16).ok()).ok_or(Errno::EIO)?;
        let fd = file::openat(dir.as_fd(), &entry.name, libc::O_RDONLY, 0)?;
        let mut path = Vec::new();
        data::pread_into(fd.as_fd(), &mut path, file::stat(fd.as_fd())?.size as usize, 0)?;
        all.push((ino, RelPath::new(&path).ok()));
    }
    Ok(all)
}

/// Completes the partial files that a dead server left in `upper`, whose work directory is `work`, from the real tree
/// `lower`.
///
/// # Errors
/// When `work` or `upper` cannot be read. What fails for one file is told in the result.
pub fn recover(work: BorrowedFd<'_>, upper: BorrowedFd<'_>, lower: BorrowedFd<'_>) -> Sys<Recovered> {
    let mut done = Recovered::default();
    let markers = markers(work)?;
    let mut walked: Option<HashMap<u64, RelPath>> = None;
    for (ino, noted) in &markers {
        let mut found = match noted {
            Some(path) => look(upper, path, *ino)?.map(|fd| (path.clone(), fd)),
            None => None,
        };
        if found.is_none() {
            // Renamed or removed since; that it is nowhere takes a walk to know.
            let all = match &walked {
                Some(all) => all,
                None => walked.insert(walk(upper, &markers.iter().map(|m| m.0).collect())?),
            };
            if let Some(path) = all.get(ino) {
                found = look(upper, path, *ino)?.map(|fd| (path.clone(), fd));
            }
        }
        match found.map(|(path, fd)| (path, complete(fd.as_fd(), lower))) {
            Some((path, Err(why))) => {
                done.incomplete.push(Incomplete { path, why });
                continue;
            }
            Some((_, Ok(()))) => done.completed += 1,
            None => {}
        }
        remove_marker(work, *ino)?;
    }
    Ok(done)
}

/// The marked file at `path`, open for writing, if it is the one with this inode.
fn look(upper: BorrowedFd<'_>, path: &RelPath, ino: u64) -> Sys<Option<OwnedFd>> {
    let handle = match open_long(upper, path, libc::O_PATH) {
        Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::EXDEV) => return Ok(None),
        other => other?,
    };
    let attr = file::stat(handle.as_fd())?;
    if attr.kind != Kind::File || attr.ino != ino || Mark::read(handle.as_fd())?.is_none() {
        return Ok(None);
    }
    in_mode(handle.as_fd(), 0o600, || file::reopen(handle.as_fd(), libc::O_RDWR)).map(Some)
}

/// Opens what is at `path` beneath `top`, however long the path is.
fn open_long(top: BorrowedFd<'_>, path: &RelPath, flags: i32) -> Sys<OwnedFd> {
    let mut at: Option<OwnedFd> = None;
    let mut names = path.components().peekable();
    while let Some(name) = names.next() {
        let flags = if names.peek().is_none() { flags } else { libc::O_PATH | libc::O_DIRECTORY };
        at = Some(file::open_beneath(at.as_ref().map_or(top, |fd| fd.as_fd()), name, flags, 0)?);
    }
    at.ok_or(Errno::ENOENT)
}

/// Where in an upper the files with these inodes are.
fn walk(upper: BorrowedFd<'_>, wanted: &HashSet<u64>) -> Sys<HashMap<u64, RelPath>> {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY;
    let mut found = HashMap::new();
    let mut todo = vec![(RelPath::root(), file::reopen(upper, flags)?)];
    while let Some((path, dir)) = todo.pop() {
        for entry in dir::entries(dir.as_fd())? {
            let attr = match file::stat_at(dir.as_fd(), &entry.name) {
                Err(Errno::ENOENT) => continue,
                other => other?,
            };
            let here = path.join(&entry.name);
            if attr.kind == Kind::Dir {
                let handle = file::openat(dir.as_fd(), &entry.name, libc::O_PATH | libc::O_DIRECTORY, 0)?;
                let fd = in_mode(handle.as_fd(), 0o500, || file::reopen(handle.as_fd(), flags))?;
                todo.push((here, fd));
            } else if attr.kind == Kind::File && wanted.contains(&attr.ino) {
                found.insert(attr.ino, here);
            }
        }
    }
    Ok(found)
}

/// Completes the partial file behind `fd`.
fn complete(fd: BorrowedFd<'_>, lower: BorrowedFd<'_>) -> Sys<()> {
    let mark = Mark::read(fd)?.ok_or(Errno::EIO)?;
    let origin = read_origin(fd)?.ok_or(Errno::EIO)?;
    let attr = file::stat(fd)?;
    // A truncation may have been cut off before it lowered the limit.
    let end = mark.limit.min(attr.size);
    let times = mark.times.unwrap_or((attr.atime, attr.mtime));
    let mut holes = Vec::new();
    let mut pos = 0;
    for (start, stop) in own_ranges(fd, 0, end)?.into_iter().chain([(end, end)]) {
        if pos < start {
            holes.push((pos, start));
        }
        pos = stop;
    }
    if !holes.is_empty() {
        let source = reopen_source(lower, &origin.path, &origin.base, origin.btime)?;
        Mark { limit: end, times: Some(times) }.write(fd)?;
        for hole in holes {
            let mut pos = hole.0;
            while let Some((start, stop)) = source.next_piece((pos, hole.1))? {
                fill(fd, &source, start, stop)?;
                pos = stop;
            }
        }
    }
    put_times(fd, times)?;
    data::fsync(fd, false)?;
    Mark::clear(fd)
}

/// The lower file at `path`, if it still is what it was.
fn reopen_source(lower: BorrowedFd<'_>, path: &RelPath, base: &BaseId, btime: Time) -> Sys<Source> {
    let fd = match open_long(lower, path, libc::O_RDONLY | libc::O_NONBLOCK) {
        Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => return Err(Errno::ESTALE),
        other => other?,
    };
    let attr = file::stat(fd.as_fd())?;
    let same = (attr.kind, attr.ino, attr.btime, attr.size, attr.mtime)
        == (Kind::File, base.ino, btime, base.size, base.mtime);
    if same { Ok(Source::new(fd, &attr)) } else { Err(Errno::ESTALE) }
}
