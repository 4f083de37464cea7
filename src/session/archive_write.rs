//! A session's directory as a tar stream: everything that is the session, exactly.
//!
//! Times to the nanosecond, xattrs and long names are in pax records, sparse files in the form of GNU tar 1.0, so that
//! `tar --zstd -x` can read an archive too. Memory does not grow with the session, but for a name for each file with
//! several hard links of which not all were seen yet. Nothing is followed: every object is reached from its
//! directory's descriptor.

use super::archive_pax::{self as pax, TYPE, XATTR};
use crate::base::{Attr, Errno, Error, Kind, Result, Sys, quote};
use crate::sys::{data, dir, file, xattr};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use tar::{EntryType, Header};

/// The first entry: what the archive is.
pub(super) const HEADER: &[u8] = b"sbx-fuse.json";
/// More separate pieces than this, and a sparse file is stored with its holes as zeros.
pub(super) const PIECES_MAX: usize = 200_000;

/// What of a session's directory is not the session: who has it, where it is mounted, what is left of a write.
pub(super) fn is_passing(path: &[u8]) -> bool {
    if [
        &b"lock"[..],
        b"mnt",
        b"control.sock",
        b"archived.json",
        b"meta.json.new",
        b"server.log",
        b"reviewed",
        b"reviewed.new",
    ]
    .contains(&path)
    {
        return true;
    }
    let parts: Vec<&[u8]> = path.split(|&b| b == b'/').collect();
    matches!(parts[..], [b"roots", _, b"work", name] if name != b"index")
}

/// Writes a session's directory into a tar stream.
pub(super) struct Packer<'a, W: Write> {
    tar: tar::Builder<W>,
    /// Files with several links of which some are still to come: their first name, and how many.
    links: HashMap<(u64, u64), (Vec<u8>, u32)>,
    progress: &'a mut dyn FnMut(u64),
    done: u64,
}

struct Frame {
    dir: OpenDir,
    rest: std::vec::IntoIter<dir::DirEntry>,
    path: Vec<u8>,
}

impl Frame {
    fn open(dir: OpenDir, path: Vec<u8>) -> Sys<Frame> {
        let mut entries = dir::entries(dir.fd.as_fd())?;
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Frame { dir, rest: entries.into_iter(), path })
    }

    /// The next entry that is archived, with its path.
    fn next(&mut self) -> Option<(dir::DirEntry, Vec<u8>)> {
        loop {
            let entry = self.rest.next()?;
            let slash: &[u8] = if self.path.is_empty() { b"" } else { b"/" };
            let path = [&self.path, slash, &entry.name].concat();
            if !is_passing(&path) {
                return Some((entry, path));
            }
        }
    }
}

/// A directory open to be walked, which gets its permissions back when done with.
struct OpenDir {
    fd: OwnedFd,
    perm: Option<u32>,
}

impl OpenDir {
    fn of(at: BorrowedFd<'_>, name: &[u8], attr: &Attr) -> Sys<OpenDir> {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY;
        if attr.perm & 0o500 == 0o500 {
            return Ok(OpenDir { fd: file::openat(at, name, flags, 0)?, perm: None });
        }
        let handle = file::openat(at, name, libc::O_PATH | libc::O_DIRECTORY, 0)?;
        file::chmod_fd(handle.as_fd(), attr.perm | 0o700)?;
        // From here on dropping gives the permissions back, also when it cannot be opened.
        let mut open = OpenDir { fd: handle, perm: Some(attr.perm) };
        open.fd = file::openat(at, name, flags, 0)?;
        Ok(open)
    }
}

impl Drop for OpenDir {
    fn drop(&mut self) {
        if let Some(perm) = self.perm
            && let Err(e) = file::chmod_fd(self.fd.as_fd(), perm)
        {
            tracing::warn!("a directory could not be given its permissions back: {e}");
        }
    }
}

impl<'a, W: Write> Packer<'a, W> {
    /// Begins the stream with `header`, the text of the first entry. `progress` gets the bytes of content so far.
    pub(super) fn new(to: W, header: &[u8], progress: &'a mut dyn FnMut(u64)) -> Result<Self> {
        let mut tar = tar::Builder::new(to);
        let mut h = Header::new_ustar();
        set_name(&mut h, HEADER);
        h.set_mode(0o600);
        h.set_size(header.len() as u64);
        h.set_cksum();
        tar.append(&h, header).map_err(|e| Error::sys("write the archive", e))?;
        Ok(Packer { tar, links: HashMap::new(), progress, done: 0 })
    }

    /// Adds the session directory `top`, and ends the stream.
    pub(super) fn all(mut self, top: OwnedFd) -> Result<W> {
        let told = |path: &[u8], e: Errno| Error::on_path("archive", path, e);
        let top = OpenDir { fd: top, perm: None };
        let mut stack = vec![Frame::open(top, Vec::new()).map_err(|e| told(b".", e))?];
        while let Some(frame) = stack.last_mut() {
            let Some((entry, path)) = frame.next() else {
                stack.pop();
                continue;
            };
            let attr = file::stat_at(frame.dir.fd.as_fd(), &entry.name).map_err(|e| told(&path, e))?;
            let inner =
                self.object(frame.dir.fd.as_fd(), &entry.name, &path, &attr).map_err(|e| told(&path, e))?;
            if let Some(inner) = inner {
                stack.push(Frame::open(inner, path.clone()).map_err(|e| told(&path, e))?);
            }
        }
        self.tar.into_inner().map_err(|e| Error::sys("write the archive", e))
    }

    /// Adds one object; a directory is returned, open, to go on in.
    fn object(&mut self, dir: BorrowedFd<'_>, name: &[u8], path: &[u8], attr: &Attr) -> Sys<Option<OpenDir>> {
        let mut header = Header::new_ustar();
        header.set_mode(attr.perm);
        header.set_uid(u64::from(attr.uid));
        header.set_gid(u64::from(attr.gid));
        header.set_mtime(u64::try_from(attr.mtime.sec).unwrap_or(0));
        header.set_size(0);
        set_name(&mut header, path);
        let mut extra = Vec::new();
        if path.len() > 100 || !path.is_ascii() {
            pax::push(&mut extra, b"path", path);
        }
        if let Some(first) = self.seen_before(path, attr) {
            header.set_entry_type(EntryType::Link);
            set_link(&mut header, &mut extra, &first);
            return self.append(header, extra, std::io::empty()).map(|()| None);
        }
        pax::push(&mut extra, b"mtime", attr.mtime.decimal().as_bytes());
        pax::push(&mut extra, b"atime", attr.atime.decimal().as_bytes());
        match attr.kind {
            Kind::Dir => {
                let inner = OpenDir::of(dir, name, attr)?;
                push_xattrs(&mut extra, inner.fd.as_fd())?;
                header.set_entry_type(EntryType::Directory);
                self.append(header, extra, std::io::empty())?;
                return Ok(Some(inner));
            }
            Kind::File => {
                let fd = open_anyway(dir, name, attr)?;
                push_xattrs(&mut extra, fd.as_fd())?;
                self.file(fd.as_fd(), attr, path, header, extra)?;
            }
            Kind::Symlink => {
                header.set_entry_type(EntryType::Symlink);
                set_link(&mut header, &mut extra, &file::readlinkat(dir, name)?);
                self.append(header, extra, std::io::empty())?;
            }
            kind => {
                match kind {
                    Kind::Socket => pax::push(&mut extra, TYPE, b"socket"),
                    Kind::Fifo => header.set_entry_type(EntryType::Fifo),
                    Kind::Char => header.set_entry_type(EntryType::Char),
                    _ => header.set_entry_type(EntryType::Block),
                }
                if matches!(kind, Kind::Char | Kind::Block) {
                    header.set_device_major(libc::major(attr.rdev))?;
                    header.set_device_minor(libc::minor(attr.rdev))?;
                }
                self.append(header, extra, std::io::empty())?;
            }
        }
        Ok(None)
    }

    /// The name under which this inode went in before.
    fn seen_before(&mut self, path: &[u8], attr: &Attr) -> Option<Vec<u8>> {
        if attr.nlink < 2 || attr.kind == Kind::Dir {
            return None;
        }
        let key = (attr.dev, attr.ino);
        let Some((first, left)) = self.links.get_mut(&key) else {
            self.links.insert(key, (path.to_vec(), attr.nlink - 1));
            return None;
        };
        let first = first.clone();
        *left = left.saturating_sub(1);
        if *left == 0 {
            self.links.remove(&key);
        }
        Some(first)
    }

    fn file(
        &mut self,
        fd: BorrowedFd<'_>,
        attr: &Attr,
        path: &[u8],
        mut header: Header,
        mut extra: Vec<u8>,
    ) -> Sys<()> {
        let holes = attr.blocks.saturating_mul(512) < attr.size;
        let pieces = if holes { pieces_of(fd, attr.size)? } else { vec![(0, attr.size)] };
        let mut map = Vec::new();
        if pieces != [(0, attr.size)] {
            map = map_text(&pieces);
            set_name(&mut header, &[b"GNUSparseFile.0/", path].concat());
            for (key, value) in [(&b"GNU.sparse.major"[..], "1"), (b"GNU.sparse.minor", "0")] {
                pax::push(&mut extra, key, value.as_bytes());
            }
            pax::push(&mut extra, b"GNU.sparse.name", path);
            pax::push(&mut extra, b"GNU.sparse.realsize", attr.size.to_string().as_bytes());
        }
        let stored: u64 = pieces.iter().map(|p| p.1).sum();
        header.set_entry_type(EntryType::Regular);
        header.set_size(map.len() as u64 + stored);
        self.pax(extra)?;
        header.set_cksum();
        let content = Content { fd, pieces: pieces.into_iter(), at: 0, end: 0 };
        let counted = Counted { from: content, done: &mut self.done, progress: self.progress };
        self.tar.append(&header, map.as_slice().chain(counted))?;
        Ok(())
    }

    fn append(&mut self, mut header: Header, extra: Vec<u8>, content: impl Read) -> Sys<()> {
        self.pax(extra)?;
        header.set_cksum();
        Ok(self.tar.append(&header, content)?)
    }

    fn pax(&mut self, records: Vec<u8>) -> Sys<()> {
        if records.is_empty() {
            return Ok(());
        }
        let mut header = Header::new_ustar();
        set_name(&mut header, b"PaxHeaders/x");
        header.set_entry_type(EntryType::XHeader);
        header.set_mode(0o600);
        header.set_size(records.len() as u64);
        header.set_cksum();
        Ok(self.tar.append(&header, &records[..])?)
    }
}

/// Opens a file for reading that its owner may not read; its permissions are as before afterwards.
fn open_anyway(dir: BorrowedFd<'_>, name: &[u8], attr: &Attr) -> Sys<OwnedFd> {
    match file::openat(dir, name, libc::O_RDONLY, 0) {
        Err(Errno::EACCES) => {}
        other => return other,
    }
    let handle = file::openat(dir, name, libc::O_PATH, 0)?;
    file::chmod_fd(handle.as_fd(), attr.perm | 0o400)?;
    let opened = file::openat(dir, name, libc::O_RDONLY, 0);
    file::chmod_fd(handle.as_fd(), attr.perm)?;
    opened
}

fn set_name(header: &mut Header, path: &[u8]) {
    if let Some(ustar) = header.as_ustar_mut() {
        ustar.name = [0; 100];
        let n = path.len().min(100);
        ustar.name[..n].copy_from_slice(&path[..n]);
    }
}

fn set_link(header: &mut Header, extra: &mut Vec<u8>, target: &[u8]) {
    if target.len() > 100 || !target.is_ascii() {
        pax::push(extra, b"linkpath", target);
    }
    if let Some(ustar) = header.as_ustar_mut() {
        let n = target.len().min(100);
        ustar.linkname[..n].copy_from_slice(&target[..n]);
    }
}

/// The xattrs that are part of the session: the users' and access lists. What the host's security modules put there
/// they will put there again.
fn push_xattrs(extra: &mut Vec<u8>, fd: BorrowedFd<'_>) -> Sys<()> {
    let mut names = xattr::list(fd)?;
    names.retain(|n| travels(n));
    names.sort();
    for name in names {
        if let Some(value) = xattr::get(fd, &name)? {
            pax::push(extra, &[XATTR, &name].concat(), &value);
        }
    }
    Ok(())
}

/// Whether an xattr of this name is archived and taken from an archive.
pub(super) fn travels(name: &[u8]) -> bool {
    let lists = [&b"system.posix_acl_access"[..], b"system.posix_acl_default"];
    (name.starts_with(b"user.") && !name.contains(&b'=') && !name.contains(&0)) || lists.contains(&name)
}

/// Where data is in a file: offset and length of each piece; of a file that ends in a hole the last one is empty.
fn pieces_of(fd: BorrowedFd<'_>, size: u64) -> Sys<Vec<(u64, u64)>> {
    let whole = vec![(0, size)];
    let mut pieces = Vec::new();
    let mut at = 0;
    while at < size {
        if pieces.len() >= PIECES_MAX {
            return Ok(whole);
        }
        let start = match data::lseek(fd, at as i64, libc::SEEK_DATA) {
            Ok(start) if start < size => start,
            Ok(_) | Err(Errno::ENXIO) => {
                pieces.push((size, 0));
                break;
            }
            Err(Errno::EINVAL | Errno::EOPNOTSUPP) => return Ok(whole),
            Err(e) => return Err(e),
        };
        let end = data::lseek(fd, start as i64, libc::SEEK_HOLE)?.min(size);
        pieces.push((start, end - start));
        at = end;
    }
    Ok(if pieces.is_empty() { whole } else { pieces })
}

/// The bytes of content that an archive of the session directory `top` will hold.
///
/// # Errors
/// When something in it cannot be looked at.
pub(super) fn measure(top: OwnedFd) -> Result<u64> {
    let told = |path: &[u8], e: Errno| Error::on_path("archive", path, e);
    let mut sum = 0u64;
    let mut linked = std::collections::HashSet::new();
    let mut stack =
        vec![Frame::open(OpenDir { fd: top, perm: None }, Vec::new()).map_err(|e| told(b".", e))?];
    while let Some(frame) = stack.last_mut() {
        let Some((entry, path)) = frame.next() else {
            stack.pop();
            continue;
        };
        let at = frame.dir.fd.as_fd();
        let attr = file::stat_at(at, &entry.name).map_err(|e| told(&path, e))?;
        if attr.kind == Kind::Dir {
            let inner = OpenDir::of(at, &entry.name, &attr).map_err(|e| told(&path, e))?;
            stack.push(Frame::open(inner, path.clone()).map_err(|e| told(&path, e))?);
        } else if attr.kind == Kind::File && (attr.nlink < 2 || linked.insert((attr.dev, attr.ino))) {
            let stored = || -> Sys<u64> {
                let fd = open_anyway(at, &entry.name, &attr)?;
                Ok(pieces_of(fd.as_fd(), attr.size)?.iter().map(|p| p.1).sum())
            };
            let holes = attr.blocks.saturating_mul(512) < attr.size;
            sum += if holes { stored().map_err(|e| told(&path, e))? } else { attr.size };
        }
    }
    Ok(sum)
}

/// The map that stands before the content of a sparse file, filled up to a whole block.
fn map_text(pieces: &[(u64, u64)]) -> Vec<u8> {
    let mut text = format!("{}\n", pieces.len());
    for (offset, len) in pieces {
        text.push_str(&format!("{offset}\n{len}\n"));
    }
    let mut bytes = text.into_bytes();
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

/// The pieces of a file, one after the other.
struct Content<'a> {
    fd: BorrowedFd<'a>,
    pieces: std::vec::IntoIter<(u64, u64)>,
    at: u64,
    end: u64,
}

impl Read for Content<'_> {
    fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
        while self.at == self.end {
            let Some((start, len)) = self.pieces.next() else { return Ok(0) };
            (self.at, self.end) = (start, start + len);
        }
        let room = to.len().min(usize::try_from(self.end - self.at).unwrap_or(usize::MAX));
        let n = data::pread(self.fd, &mut to[..room], self.at)?;
        if n == 0 && room > 0 {
            return Err(std::io::Error::other(format!(
                "the file became shorter while it was read ({})",
                quote(&file::proc_path(self.fd))
            )));
        }
        self.at += n as u64;
        Ok(n)
    }
}

struct Counted<'a, R> {
    from: R,
    done: &'a mut u64,
    progress: &'a mut dyn FnMut(u64),
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
        let n = self.from.read(to)?;
        *self.done += n as u64;
        (self.progress)(*self.done);
        Ok(n)
    }
}
