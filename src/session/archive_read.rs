//! A tar stream made into a session's directory again, whoever wrote it.
//!
//! The directory is a fresh one of ours that nobody else can reach. Nothing in the stream is believed: entries must come
//! in the order of a walk, so that each is made in a directory that is open already and no path is ever resolved; every
//! object is made, never opened or replaced, so that no link is followed; what a session's directory does not have is
//! refused, as are devices but whiteouts, foreign xattrs, set-uid programs, and more bytes than announced.

use super::archive::Header as About;
use super::archive_pax::{self as pax, TYPE, XATTR};
use super::archive_write::{HEADER, PIECES_MAX, is_passing, travels};
use crate::base::{Errno, Error, Kind, Name, RelPath, Result, SetTime, Sys, Time, quote};
use crate::layer::{self, WhiteoutForm};
use crate::sys::{data, file, process, xattr};
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use tar::EntryType;

/// The longest text of the first entry, of one pax block, and of a sparse map, bytes.
const ABOUT_MAX: u64 = 1 << 20;
const PAX_MAX: u64 = 4 << 20;
const MAP_MAX: usize = 10 << 20;

/// How a stream is taken.
pub(super) struct Terms {
    /// Take set-uid and set-gid files.
    pub(super) setuid: bool,
    /// How whiteouts are made here.
    pub(super) whiteout: WhiteoutForm,
}

/// What came of it.
#[derive(Default)]
pub(super) struct Unpacked {
    /// Whiteouts that had to be written in the other form.
    pub(super) converted: u64,
    /// Objects that could not be given their owner or group.
    pub(super) disowned: u64,
}

/// One entry, its pax records taken in.
struct Member {
    path: RelPath,
    kind: Kind,
    /// Of a hard link, the name it is another one of.
    same_as: Option<RelPath>,
    target: Vec<u8>,
    perm: u32,
    uid: u32,
    gid: u32,
    whiteout: bool,
    atime: Option<Time>,
    mtime: Time,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Bytes in the stream.
    stored: u64,
    /// Of a sparse file, its length.
    sparse: Option<u64>,
}

/// A directory that is being filled.
struct Open {
    fd: OwnedFd,
    path: RelPath,
    member: Option<Member>,
}

struct Unpacker<'a> {
    terms: &'a Terms,
    about: About,
    stack: Vec<Open>,
    /// Directories that their owner may not enter: they get their permissions last, inner ones first.
    late: Vec<(RelPath, u32)>,
    content: u64,
    result: Unpacked,
    progress: &'a mut dyn FnMut(u64),
}

fn refused(path: &[u8], why: &str) -> Error {
    Error::failure(format!("the archive is refused: its entry {} {why}", quote(path)))
}

fn unreadable(e: &std::io::Error) -> Error {
    let mut told = Error::failure("the archive cannot be read");
    told.causes.push(e.to_string());
    told
}

/// Reads the description of a session that a stream begins with.
///
/// # Errors
/// `Failure` when there is none.
pub(super) fn about(from: impl Read) -> Result<About> {
    let mut tar = tar::Archive::new(from);
    let mut entries = tar.entries().map_err(|e| unreadable(&e))?.raw(true);
    first(&mut entries)
}

fn first<R: Read>(entries: &mut tar::Entries<'_, R>) -> Result<About> {
    let none = || Error::failure("it is not an archive of a session");
    let entry = entries.next().ok_or_else(none)?.map_err(|e| unreadable(&e))?;
    if entry.header().path_bytes().as_ref() != HEADER || entry.size() > ABOUT_MAX {
        return Err(none());
    }
    let mut text = Vec::new();
    entry.take(ABOUT_MAX).read_to_end(&mut text).map_err(|e| unreadable(&e))?;
    About::parse(&text)
}

/// Fills the empty directory `top` from the stream. `check` sees what the archive says of itself before anything else
/// is made; `progress` gets the bytes of content so far.
///
/// # Errors
/// `Failure` when the stream is damaged or holds what is not taken; what was made until then is in `top`.
pub(super) fn unpack<R: Read>(
    from: R,
    top: OwnedFd,
    terms: &Terms,
    check: &mut dyn FnMut(&About) -> Result<()>,
    progress: &mut dyn FnMut(u64),
) -> Result<(R, About, Unpacked)> {
    let mut tar = tar::Archive::new(from);
    let mut entries = tar.entries().map_err(|e| unreadable(&e))?.raw(true);
    let about = first(&mut entries)?;
    check(&about)?;
    let open = Open { fd: top, path: RelPath::root(), member: None };
    let mut unpacker = Unpacker {
        terms,
        about,
        stack: vec![open],
        late: Vec::new(),
        content: 0,
        result: Unpacked::default(),
        progress,
    };
    let mut records = Vec::new();
    for entry in entries {
        let mut entry = entry.map_err(|e| unreadable(&e))?;
        if entry.header().entry_type() == EntryType::XHeader {
            if entry.size() > PAX_MAX || !records.is_empty() {
                return Err(refused(b"PaxHeaders", "is of no form that sbx-fuse writes"));
            }
            entry.by_ref().take(PAX_MAX).read_to_end(&mut records).map_err(|e| unreadable(&e))?;
            continue;
        }
        let member = member(entry.header(), entry.size(), &records)?;
        records.clear();
        unpacker.place(member, &mut entry)?;
    }
    unpacker.leave(0)?;
    let (about, result) = unpacker.finish()?;
    Ok((tar.into_inner(), about, result))
}

/// Takes an entry's header and records together.
fn member(header: &tar::Header, size: u64, records: &[u8]) -> Result<Member> {
    let mut path = header.path_bytes().into_owned();
    let mut link = header.link_name_bytes().map(|l| l.into_owned()).unwrap_or_default();
    let odd = |why: &str| refused(&header.path_bytes(), why);
    let number = |n: std::io::Result<u64>| {
        n.ok().and_then(|n| u32::try_from(n).ok()).ok_or_else(|| odd("has a number that cannot be"))
    };
    let mut m = Member {
        path: RelPath::root(),
        kind: Kind::File,
        same_as: None,
        target: Vec::new(),
        perm: number(header.mode().map(u64::from))? & 0o7777,
        uid: number(header.uid())?,
        gid: number(header.gid())?,
        whiteout: false,
        atime: None,
        mtime: Time { sec: header.mtime().ok().and_then(|t| i64::try_from(t).ok()).unwrap_or(0), nsec: 0 },
        xattrs: Vec::new(),
        stored: size,
        sparse: None,
    };
    let mut socket = false;
    let mut version = (None, None);
    for (key, value) in pax::parse(records).ok_or_else(|| odd("has records that cannot be read"))? {
        let time = || pax::parse_time(value).ok_or_else(|| odd("has a time that cannot be"));
        match key {
            b"path" | b"GNU.sparse.name" => path = value.to_vec(),
            b"linkpath" => link = value.to_vec(),
            b"mtime" => m.mtime = time()?,
            b"atime" => m.atime = Some(time()?),
            b"GNU.sparse.major" => version.0 = Some(value),
            b"GNU.sparse.minor" => version.1 = Some(value),
            b"GNU.sparse.realsize" => {
                m.sparse = Some(decimal(value).ok_or_else(|| odd("has a length that cannot be"))?);
            }
            TYPE if value == b"socket" => socket = true,
            _ => match key.strip_prefix(XATTR) {
                Some(name) if travels(name) => m.xattrs.push((name.to_vec(), value.to_vec())),
                _ => return Err(refused(&path, &format!("has a record {}, which is not taken", quote(key)))),
            },
        }
    }
    if m.sparse.is_some() != (version == (Some(b"1"), Some(b"0"))) {
        return Err(refused(&path, "is a sparse file of another form"));
    }
    m.path = RelPath::new(&path).map_err(|_| refused(&path, "is not a plain path beneath the session"))?;
    let device = (header.device_major().ok().flatten(), header.device_minor().ok().flatten());
    m.kind = match header.entry_type() {
        EntryType::Regular if socket => Kind::Socket,
        EntryType::Regular => Kind::File,
        EntryType::Directory => Kind::Dir,
        EntryType::Symlink => Kind::Symlink,
        EntryType::Fifo => Kind::Fifo,
        EntryType::Link => {
            let first = RelPath::new(&link);
            m.same_as = Some(first.map_err(|_| refused(&path, "is a link out of the session"))?);
            Kind::File
        }
        EntryType::Char if device == (Some(0), Some(0)) => {
            m.whiteout = true;
            Kind::Char
        }
        EntryType::Char | EntryType::Block => return Err(refused(&path, "is a device")),
        _ => return Err(refused(&path, "is of a type that is not taken")),
    };
    if size > 0 && (m.kind != Kind::File || m.same_as.is_some()) {
        return Err(refused(&path, "has content that it cannot have"));
    }
    m.target = link;
    Ok(m)
}

fn decimal(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok().filter(|t| t.bytes().all(|b| b.is_ascii_digit()))?.parse().ok()
}

/// Whether `path` lies where a session keeps what programs made, so that it may be anything.
fn in_tree(path: &RelPath) -> bool {
    let parts: Vec<&[u8]> = path.components().take(5).collect();
    matches!(
        parts[..],
        [b"roots", _, b"upper", _, ..] | [b"roots", _, b"work", b"index", _] | [b"layers" | b"apply", _, ..]
    )
}

/// Whether two paths belong to the same part of a session, so that one may be a hard link to the other.
fn same_part(a: &RelPath, b: &RelPath) -> bool {
    let part = |p: &RelPath| -> Vec<Vec<u8>> {
        let deep = if p.components().next() == Some(b"roots") { 2 } else { 1 };
        p.components().take(deep).map(<[u8]>::to_vec).collect()
    };
    in_tree(a) && in_tree(b) && part(a) == part(b)
}

impl Unpacker<'_> {
    /// Makes one entry.
    fn place(&mut self, m: Member, content: &mut impl Read) -> Result<()> {
        self.allowed(&m)?;
        let shown = m.path.clone();
        let told = |e: Errno| Error::on_path("restore", shown.as_bytes(), e);
        let (Some(parent), Some(name)) = (m.path.parent(), m.path.file_name().map(<[u8]>::to_vec)) else {
            return Err(refused(b"", "has no name"));
        };
        while self.stack.len() > 1 && self.stack.last().is_some_and(|o| !parent.starts_with(&o.path)) {
            self.leave(self.stack.len() - 1)?;
        }
        let Some(dir) = self.stack.last().filter(|o| o.path == parent) else {
            return Err(refused(m.path.as_bytes(), "does not come after its directory"));
        };
        let dir = dir.fd.as_fd();
        if let Some(first) = &m.same_as {
            let made = link(self.stack[0].fd.as_fd(), first, dir, &name);
            return made.map_err(|e| refused(m.path.as_bytes(), &format!("cannot be linked: {e}")));
        }
        let taken =
            |e| if e == Errno::EEXIST { refused(shown.as_bytes(), "is there twice") } else { told(e) };
        match m.kind {
            Kind::Dir => {
                file::mkdirat(dir, &name, 0o700).map_err(taken)?;
                let fd = file::openat(dir, &name, libc::O_RDONLY | libc::O_DIRECTORY, 0).map_err(told)?;
                let path = m.path.clone();
                self.stack.push(Open { fd, path, member: Some(m) });
                return Ok(());
            }
            Kind::File => {
                let flags = libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY;
                let fd = file::openat(dir, &name, flags, 0o600).map_err(taken)?;
                self.disown(fd.as_fd(), &m).map_err(told)?;
                let room = self.about.content.saturating_sub(self.content);
                let mut filler = Filler { content, done: &mut self.content, room, progress: self.progress };
                filler.fill(fd.as_fd(), &m)?;
                attributes(fd.as_fd(), &m, m.perm).map_err(told)?;
                return Ok(());
            }
            Kind::Symlink => file::symlinkat(&m.target, dir, &name).map_err(taken)?,
            Kind::Char if self.terms.whiteout == WhiteoutForm::Prefix => {
                self.result.converted += 1;
                return layer::make_whiteout(dir, &name, WhiteoutForm::Prefix).map_err(taken);
            }
            kind => file::mknodat(dir, &name, kind.mode_bits() | 0o600, 0).map_err(taken)?,
        }
        let fd = file::openat(dir, &name, libc::O_PATH, 0).map_err(told)?;
        if m.kind != Kind::Symlink {
            file::chmod_fd(fd.as_fd(), m.perm).map_err(told)?;
        }
        let times = (m.atime.map(SetTime::At), Some(SetTime::At(m.mtime)));
        file::utimens_at(dir, &name, times.0, times.1).map_err(told)?;
        self.disown(fd.as_fd(), &m).map_err(told)
    }

    /// Refuses what a session's directory cannot have at this place.
    fn allowed(&self, m: &Member) -> Result<()> {
        let path = m.path.as_bytes();
        let hidden = m.path.components().next().is_none_or(|first| first.starts_with(b"."));
        if hidden || is_passing(path) || m.path.components().next() == Some(HEADER) {
            return Err(refused(path, "is nothing that a session has"));
        }
        if !in_tree(&m.path) {
            let wanted = match m.path.components().collect::<Vec<_>>()[..] {
                [b"roots" | b"journal" | b"layers" | b"apply"]
                | [b"roots", _]
                | [b"roots", _, b"upper" | b"work"]
                | [b"roots", _, b"work", b"index"] => Some(Kind::Dir),
                [b"meta.json"] | [b"journal", _] => Some(Kind::File),
                [b"roots", ..] => return Err(refused(path, "is nothing that a session has there")),
                _ => None,
            };
            let plain = matches!(m.kind, Kind::File | Kind::Dir) && m.same_as.is_none();
            if !plain || wanted.is_some_and(|w| w != m.kind) {
                return Err(refused(path, "is nothing that a session has there"));
            }
        }
        if let Some(first) = &m.same_as
            && !same_part(&m.path, first)
        {
            return Err(refused(path, "is a link out of its part of the session"));
        }
        // Mode bits of a hard link are those of its first name.
        if m.perm & 0o6000 != 0 && m.kind != Kind::Dir && m.same_as.is_none() && !self.terms.setuid {
            return Err(refused(path, "runs with its owner's rights (set-uid or set-gid)")
                .hint("if you trust where the archive comes from, take it with --setuid"));
        }
        Ok(())
    }

    /// Gives an object to whom it belonged, where that was somebody else than the one who archived it.
    fn disown(&mut self, fd: BorrowedFd<'_>, m: &Member) -> Sys<()> {
        let uid = if m.uid == self.about.uid { u32::MAX } else { m.uid };
        let gid = if m.gid == self.about.gid { u32::MAX } else { m.gid };
        if (uid, gid) == (u32::MAX, u32::MAX) || (process::effective_ids() == (m.uid, m.gid)) {
            return Ok(());
        }
        match file::chown_fd(fd, uid, gid) {
            Err(Errno::EPERM | Errno::EINVAL) => {
                self.result.disowned += 1;
                Ok(())
            }
            other => other,
        }
    }

    /// Finishes all directories but the first `keep`.
    fn leave(&mut self, keep: usize) -> Result<()> {
        while self.stack.len() > keep.max(1) {
            let Some(Open { fd, path, member: Some(m) }) = self.stack.pop() else { return Ok(()) };
            let told = |e: Errno| Error::on_path("restore", path.as_bytes(), e);
            self.disown(fd.as_fd(), &m).map_err(told)?;
            // Links to what is in it may still come.
            let late = m.perm & 0o700 != 0o700;
            attributes(fd.as_fd(), &m, if late { 0o700 } else { m.perm }).map_err(told)?;
            if late {
                self.late.push((path, m.perm));
            }
        }
        Ok(())
    }

    fn finish(self) -> Result<(About, Unpacked)> {
        for (path, perm) in &self.late {
            let fd = file::open_beneath(self.stack[0].fd.as_fd(), path.as_bytes(), libc::O_PATH, 0);
            fd.and_then(|fd| file::chmod_fd(fd.as_fd(), *perm))
                .map_err(|e| Error::on_path("restore", path.as_bytes(), e))?;
        }
        if self.content != self.about.content {
            return Err(Error::failure("the archive is refused: it holds less than it says"));
        }
        Ok((self.about, self.result))
    }
}

/// Sets what can be set through an open file or directory.
fn attributes(fd: BorrowedFd<'_>, m: &Member, perm: u32) -> Sys<()> {
    for (name, value) in &m.xattrs {
        xattr::set(fd, name, value, 0)?;
    }
    file::chmod_fd(fd, perm)?;
    file::utimens_at(fd, b"", m.atime.map(SetTime::At), Some(SetTime::At(m.mtime)))
}

/// Makes `name` in `dir` another name of what was made at `first`.
fn link(top: BorrowedFd<'_>, first: &RelPath, dir: BorrowedFd<'_>, name: &[u8]) -> Sys<()> {
    let (Some(parent), Some(last)) = (first.parent(), first.file_name()) else { return Err(Errno::EINVAL) };
    let from = file::open_beneath(top, parent.as_bytes(), libc::O_PATH | libc::O_DIRECTORY, 0)?;
    file::linkat(from.as_fd(), last, dir, name)
}

/// Writes the content of one file.
struct Filler<'a, R: Read> {
    content: &'a mut R,
    done: &'a mut u64,
    room: u64,
    progress: &'a mut dyn FnMut(u64),
}

impl<R: Read> Filler<'_, R> {
    fn fill(&mut self, to: BorrowedFd<'_>, m: &Member) -> Result<()> {
        let path = m.path.as_bytes();
        let Some(size) = m.sparse else {
            return self.piece(to, 0, m.stored, path);
        };
        let (map, used) = self.map(m)?;
        let stored = map.iter().try_fold(used, |sum, p| sum.checked_add(p.1));
        let mut end = 0;
        for &(offset, len) in &map {
            if offset < end || offset.checked_add(len).is_none_or(|e| e > size) || stored != Some(m.stored) {
                return Err(refused(path, "has a map that does not fit it"));
            }
            self.piece(to, offset, len, path)?;
            end = offset + len;
        }
        data::ftruncate(to, size).map_err(|e| Error::on_path("restore", path, e))
    }

    /// The map before the content of a sparse file, and the bytes it took.
    fn map(&mut self, m: &Member) -> Result<(Vec<(u64, u64)>, u64)> {
        let bad = || refused(m.path.as_bytes(), "has a map that cannot be read");
        let mut text = Vec::new();
        let (mut numbers, mut at, mut want) = (Vec::new(), 0, 1);
        while numbers.len() < want {
            let mut block = [0; 512];
            self.content.read_exact(&mut block).map_err(|e| unreadable(&e))?;
            text.extend_from_slice(&block);
            while let Some(len) = text[at..].iter().position(|&b| b == b'\n').filter(|_| numbers.len() < want)
            {
                numbers.push(decimal(&text[at..at + len]).ok_or_else(bad)?);
                at += len + 1;
                if numbers.len() == 1 {
                    let pieces = usize::try_from(numbers[0]).ok().filter(|&n| n <= PIECES_MAX + 1);
                    want = 1 + 2 * pieces.ok_or_else(bad)?;
                }
            }
            if text.len() > MAP_MAX {
                return Err(bad());
            }
        }
        let pairs = numbers[1..].chunks_exact(2).map(|p| (p[0], p[1])).collect();
        Ok((pairs, text.len() as u64))
    }

    fn piece(&mut self, to: BorrowedFd<'_>, offset: u64, len: u64, path: &[u8]) -> Result<()> {
        if len > self.room {
            return Err(refused(path, "holds more than the archive says"));
        }
        self.room -= len;
        let mut buffer = vec![0; usize::try_from(len.min(256 << 10)).unwrap_or(0)];
        let mut at = 0;
        while at < len {
            let want = buffer.len().min(usize::try_from(len - at).unwrap_or(usize::MAX));
            let n = self.content.read(&mut buffer[..want]).map_err(|e| unreadable(&e))?;
            if n == 0 {
                return Err(refused(path, "ends too early"));
            }
            data::pwrite_all(to, &buffer[..n], offset + at)
                .map_err(|e| Error::on_path("restore", path, e))?;
            at += n as u64;
            *self.done += n as u64;
            (self.progress)(*self.done);
        }
        Ok(())
    }
}

/// Whether a name may be a directory's in a mount of several roots.
pub(super) fn is_name(bytes: &[u8]) -> bool {
    Name::new(bytes).is_ok()
}
