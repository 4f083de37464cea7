//! Objects of a tree by relative path: open, stat, list, compare bytes. Nothing here follows a symlink.

use crate::base::{Attr, Errno, Kind, RelPath, Sys};
use crate::layer::partial::Mark;
use crate::sys::{data, dir, file, xattr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Longest path handed to one `openat2`; beyond it a path is walked piece by piece (`PATH_MAX` is 4096).
const PIECE: usize = 3000;

/// Opens the object at `path` beneath `top` with `flags`, however long the path is.
///
/// # Errors
/// As `openat2(2)`; `ELOOP` when a directory on the way is a symlink.
pub(crate) fn open(top: BorrowedFd<'_>, path: &RelPath, flags: i32) -> Sys<OwnedFd> {
    if path.as_bytes().len() <= PIECE {
        return file::open_beneath(top, path.as_bytes(), flags, 0);
    }
    let mut at: Option<OwnedFd> = None;
    let mut piece = RelPath::root();
    for name in path.components() {
        if piece.as_bytes().len() + name.len() >= PIECE {
            let from = at.as_ref().map_or(top, |fd| fd.as_fd());
            at = Some(file::open_beneath(from, piece.as_bytes(), libc::O_PATH | libc::O_DIRECTORY, 0)?);
            piece = RelPath::root();
        }
        piece = piece.join(name);
    }
    file::open_beneath(at.as_ref().map_or(top, |fd| fd.as_fd()), piece.as_bytes(), flags, 0)
}

/// Opens the directory at `path` as `O_PATH`.
///
/// # Errors
/// `ENOTDIR` or `ELOOP` when it is none, else as `openat2(2)`.
pub(crate) fn open_dir(top: BorrowedFd<'_>, path: &RelPath) -> Sys<OwnedFd> {
    open(top, path, libc::O_PATH | libc::O_DIRECTORY)
}

/// The directory that holds `path`, and the last name of it.
///
/// # Errors
/// `EINVAL` for the root itself, else as [`open_dir`].
pub(crate) fn open_parent<'a>(top: BorrowedFd<'_>, path: &'a RelPath) -> Sys<(OwnedFd, &'a [u8])> {
    let parent = path.parent().ok_or(Errno::EINVAL)?;
    let name = path.file_name().ok_or(Errno::EINVAL)?;
    Ok((open_dir(top, &parent)?, name))
}

/// An object that is there.
pub(crate) struct Object {
    /// `O_PATH` descriptor of the object itself, also of a symlink.
    pub fd: OwnedFd,
    /// Its attributes.
    pub attr: Attr,
}

impl Object {
    /// The object at `path`; `None` when nothing is there without following a symlink.
    ///
    /// # Errors
    /// As `openat2(2)` other than `ENOENT`, `ENOTDIR` and `ELOOP`.
    pub fn find(top: BorrowedFd<'_>, path: &RelPath) -> Sys<Option<Object>> {
        match open(top, path, libc::O_PATH) {
            Ok(fd) => {
                let attr = file::stat(fd.as_fd())?;
                Ok(Some(Object { fd, attr }))
            }
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Whether it is a session's file whose copy was begun and never completed: parts of it are missing.
    ///
    /// # Errors
    /// As `getxattr(2)`.
    pub fn is_incomplete(&self) -> Sys<bool> {
        let lacks_blocks = self.attr.kind == Kind::File && self.attr.blocks * 512 < self.attr.size;
        Ok(lacks_blocks && Mark::read(self.fd.as_fd())?.is_some())
    }

    /// A readable descriptor of a regular file or directory.
    ///
    /// # Errors
    /// `EIO` for an incomplete file, else as `open(2)`.
    pub fn readable(&self) -> Sys<OwnedFd> {
        if self.is_incomplete()? {
            return Err(Errno::EIO);
        }
        file::reopen(self.fd.as_fd(), libc::O_RDONLY | libc::O_NONBLOCK)
    }

    /// The target of a symlink.
    ///
    /// # Errors
    /// As `readlinkat(2)`.
    pub fn target(&self) -> Sys<Vec<u8>> {
        file::readlinkat(self.fd.as_fd(), b"")
    }
}

/// Finds objects of one tree by path, fast where one lies beside the last: the directory stays open.
pub(crate) struct Finder<'a> {
    top: BorrowedFd<'a>,
    /// The directory of the last path; without a descriptor where there is none.
    dir: Option<(RelPath, Option<OwnedFd>)>,
}

impl<'a> Finder<'a> {
    pub fn new(top: BorrowedFd<'a>) -> Finder<'a> {
        Finder { top, dir: None }
    }

    /// As [`stat`].
    ///
    /// # Errors
    /// As [`Object::find`].
    pub fn stat(&mut self, path: &RelPath) -> Sys<Option<Attr>> {
        let Some(name) = path.file_name() else { return stat(self.top, path) };
        let Some(dir) = self.open_parent(path)? else { return Ok(None) };
        match file::stat_at(dir, name) {
            Ok(attr) => Ok(Some(attr)),
            Err(Errno::ENOENT | Errno::ENOTDIR) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// As [`Object::find`].
    ///
    /// # Errors
    /// As [`Object::find`].
    pub fn find(&mut self, path: &RelPath) -> Sys<Option<Object>> {
        let Some(name) = path.file_name() else { return Object::find(self.top, path) };
        let Some(dir) = self.open_parent(path)? else { return Ok(None) };
        Object::find(dir, &RelPath::new(name)?)
    }

    fn open_parent(&mut self, path: &RelPath) -> Sys<Option<BorrowedFd<'_>>> {
        let parent = path.parent().unwrap_or_default();
        if self.dir.as_ref().is_none_or(|(at, _)| *at != parent) {
            let fd = match open_dir(self.top, &parent) {
                Ok(fd) => Some(fd),
                Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => None,
                Err(e) => return Err(e),
            };
            self.dir = Some((parent, fd));
        }
        Ok(self.dir.as_ref().and_then(|(_, fd)| fd.as_ref()).map(AsFd::as_fd))
    }
}

/// Attributes of what is at `path`; `None` when nothing is there without following a symlink.
///
/// # Errors
/// As [`Object::find`].
pub(crate) fn stat(top: BorrowedFd<'_>, path: &RelPath) -> Sys<Option<Attr>> {
    Ok(Object::find(top, path)?.map(|o| o.attr))
}

/// Names and types in the directory at `path`, sorted by name; empty when it is not there.
///
/// # Errors
/// As `open(2)` and `getdents64(2)`.
pub(crate) fn names(top: BorrowedFd<'_>, path: &RelPath) -> Sys<Vec<Box<[u8]>>> {
    match open(top, path, libc::O_RDONLY | libc::O_DIRECTORY) {
        Ok(fd) => names_of(fd.as_fd()),
        Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => Ok(Vec::new()),
        Err(e) => Err(e),
    }
}

/// Names in the directory `fd` (open for reading), sorted.
///
/// # Errors
/// As `getdents64(2)`.
pub(crate) fn names_of(fd: BorrowedFd<'_>) -> Sys<Vec<Box<[u8]>>> {
    let mut names: Vec<_> = dir::entries(fd)?.into_iter().map(|e| e.name).collect();
    names.sort_unstable();
    Ok(names)
}

/// Calls `each` for every object beneath the directory `path` (not for itself), parents before children.
///
/// # Errors
/// What `each` returns, or the first error of a listing.
pub(crate) fn walk(
    top: BorrowedFd<'_>,
    path: &RelPath,
    each: &mut impl FnMut(&RelPath, &Attr) -> Sys<()>,
) -> Sys<()> {
    let mut todo = vec![path.clone()];
    while let Some(dir) = todo.pop() {
        for name in names(top, &dir)? {
            let child = dir.join(&name);
            if let Some(attr) = stat(top, &child)? {
                each(&child, &attr)?;
                if attr.kind == Kind::Dir {
                    todo.push(child);
                }
            }
        }
    }
    Ok(())
}

/// All bytes of the file `fd`.
///
/// # Errors
/// As `pread(2)`.
pub(crate) fn read_all(fd: BorrowedFd<'_>) -> Sys<Vec<u8>> {
    let (mut all, mut piece) = (Vec::new(), Vec::new());
    while data::pread_into(fd, &mut piece, 1 << 20, all.len() as u64)? > 0 {
        all.extend_from_slice(&piece);
    }
    Ok(all)
}

/// Whether two regular files of equal size hold the same bytes. Stops at the first difference; holes on both sides
/// are skipped.
///
/// # Errors
/// As `pread(2)`.
pub(crate) fn same_bytes(a: BorrowedFd<'_>, b: BorrowedFd<'_>, size: u64) -> Sys<bool> {
    const CHUNK: usize = 256 << 10;
    let (mut left, mut right) = (Vec::new(), Vec::new());
    let mut pos = 0u64;
    while pos < size {
        let skip = next_data(a, pos, size)?.min(next_data(b, pos, size)?);
        // Data of both files is looked for once per stretch of 64 chunks: a seek for each chunk would cost more than
        // the reading.
        let stretch = (skip + 64 * CHUNK as u64).min(size);
        pos = skip;
        while pos < stretch {
            let want = CHUNK.min((stretch - pos) as usize);
            let n = data::pread_into(a, &mut left, want, pos)?;
            let m = data::pread_into(b, &mut right, want, pos)?;
            if n != m || left != right {
                return Ok(false);
            }
            if n == 0 {
                return Ok(true);
            }
            pos += n as u64;
        }
    }
    Ok(true)
}

fn next_data(fd: BorrowedFd<'_>, pos: u64, size: u64) -> Sys<u64> {
    match data::lseek(fd, pos as i64, libc::SEEK_DATA) {
        Ok(at) => Ok(at.min(size)),
        Err(Errno::ENXIO) => Ok(size),
        Err(Errno::EINVAL | Errno::EOPNOTSUPP) => Ok(pos),
        Err(e) => Err(e),
    }
}

/// Whether two objects of the same kind hold the same: bytes of a file, target of a symlink, number of a device.
///
/// # Errors
/// As the calls that read them.
pub(crate) fn same_content(a: &Object, b: &Object) -> Sys<bool> {
    match a.attr.kind {
        Kind::File => {
            if a.attr.size != b.attr.size {
                return Ok(false);
            }
            if (a.attr.dev, a.attr.ino) == (b.attr.dev, b.attr.ino) || a.attr.size == 0 {
                return Ok(true);
            }
            if a.is_incomplete()? || b.is_incomplete()? {
                return Ok(false);
            }
            same_bytes(a.readable()?.as_fd(), b.readable()?.as_fd(), a.attr.size)
        }
        Kind::Symlink => Ok(a.target()? == b.target()?),
        Kind::Char | Kind::Block => Ok(a.attr.rdev == b.attr.rdev),
        Kind::Dir | Kind::Fifo | Kind::Socket => Ok(true),
    }
}

/// Does `change` to `dir`, its entries or its xattrs; where the mode of an object of ours forbids it, that is lifted for as long.
///
/// # Errors
/// What `change` returns, or as `fchmod(2)`.
pub(crate) fn in_writable<T>(dir: BorrowedFd<'_>, mut change: impl FnMut() -> Sys<T>) -> Sys<T> {
    match change() {
        Err(Errno::EACCES) => {
            let perm = file::stat(dir)?.perm;
            file::chmod_fd(dir, perm | 0o700).map_err(|_| Errno::EACCES)?;
            let done = change();
            file::chmod_fd(dir, perm)?;
            done
        }
        other => other,
    }
}

/// ACL of an object (acl(5)).
pub(crate) const ACL_ACCESS: &[u8] = b"system.posix_acl_access";
/// ACL that a directory gives to what is made in it.
pub(crate) const ACL_DEFAULT: &[u8] = b"system.posix_acl_default";
/// File capabilities (capabilities(7)).
pub(crate) const CAPABILITY: &[u8] = b"security.capability";

/// The xattrs that belong to a file's content as a person sees it, sorted: `user.*` but the union's own, ACLs and
/// capabilities. What we may not read is left out.
///
/// # Errors
/// As `listxattr(2)`.
pub(crate) fn xattrs(object: &Object) -> Sys<Vec<(Vec<u8>, Vec<u8>)>> {
    if !matches!(object.attr.kind, Kind::File | Kind::Dir) {
        return Ok(Vec::new());
    }
    let mut all = Vec::new();
    for name in xattr::list(object.fd.as_fd())? {
        let ours = (name.starts_with(b"user.") && !crate::layer::is_private(&name))
            || [ACL_ACCESS, ACL_DEFAULT, CAPABILITY].contains(&&name[..]);
        if ours {
            match xattr::get(object.fd.as_fd(), &name) {
                Ok(Some(value)) => all.push((name, value)),
                Ok(None) | Err(Errno::EACCES | Errno::EPERM) => {}
                Err(e) => return Err(e),
            }
        }
    }
    all.sort_unstable();
    Ok(all)
}
