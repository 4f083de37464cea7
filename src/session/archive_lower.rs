//! Whether a real directory is the one that a session was made on, here or on another machine.

use super::lock::Lock;
use super::meta::PathBytes;
use super::store::{Root, Session};
use crate::base::{BaseId, Change, Errno, Error, ErrorKind, Kind, Result, Time};
use crate::journal;
use crate::sys::file;
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// How many files of a root are remembered to know it again.
const SAMPLES: usize = 32;
/// Files longer than this are not read to compare them.
const READ_MAX: u64 = 64 << 20;

/// Where numbers of inodes are kept but birth times are those of the layer that was written last (statfs(2)).
const OVERLAYFS_MAGIC: i64 = 0x794c_7630;

/// Which directory a path led to; numbers of devices, which change with every boot, are not part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirId {
    /// Inode number.
    pub ino: u64,
    /// Birth time; zero where the file system keeps none.
    pub btime: Time,
}

impl DirId {
    /// That of the directory at `path`, which is no symlink.
    ///
    /// # Errors
    /// `ENOTDIR` when it is one, or no directory; else as open(2).
    pub(super) fn at(path: &Path) -> std::result::Result<DirId, Errno> {
        DirId::of(open(path)?.as_fd())
    }

    fn of(dir: BorrowedFd<'_>) -> std::result::Result<DirId, Errno> {
        let attr = file::stat(dir)?;
        let overlay = file::statfs(dir)?.magic == OVERLAYFS_MAGIC;
        Ok(DirId { ino: attr.ino, btime: if overlay { Time::default() } else { attr.btime } })
    }

    /// Whether both are one directory, as far as is known.
    fn is(self, other: DirId) -> bool {
        let none = Time::default();
        self.ino == other.ino && (self.btime == other.btime || [self.btime, other.btime].contains(&none))
    }
}

impl Root<'_> {
    /// Opens the real directory (`O_PATH`): the very one that the session was made on, or, with a sentence about it, one
    /// that took its place and has its files (a `git clone` of the same).
    ///
    /// # Errors
    /// `Conflict` when it is gone, a symlink, or another directory; else when it cannot be reached.
    pub fn open_lower(&self) -> Result<(OwnedFd, Option<String>)> {
        let (path, shown) = (self.lower_dir(), &self.meta().path);
        let conflict = |why: String| {
            Error::new(ErrorKind::Conflict, why).hint(format!(
                "put it back, or throw the session away with: sbx-fuse rm {}",
                self.session().name
            ))
        };
        let failed = |e: Errno| {
            let why = format!("its root {shown} cannot be reached: {e}");
            Error { errno: Some(e), ..Error::failure(why) }
        };
        let fd = match open(path) {
            Ok(fd) => fd,
            Err(Errno::ENOENT) => return Err(conflict(format!("its root {shown} is gone"))),
            Err(Errno::ENOTDIR) => {
                let link = path.symlink_metadata().is_ok_and(|m| m.is_symlink());
                let what = if link { "is a symlink now" } else { "is no directory any more" };
                return Err(conflict(format!("its root {shown} {what}")));
            }
            Err(e) => return Err(failed(e)),
        };
        let Some(then) = self.meta().id else { return Ok((fd, None)) };
        if DirId::of(fd.as_fd()).map_err(failed)?.is(then) {
            return Ok((fd, None));
        }
        let folded = journal::fold_dir(&self.session().journal_dir())?;
        let ours = folded.set.changes.iter().filter(|c| usize::from(c.root) == self.index());
        let samples = samples(ours);
        let fit = samples.iter().filter(|s| s.fits(&fd)).count();
        let of = samples.len();
        let why = format!("its root {shown} is another directory than the one it was made on");
        let alike = format!("{fit} of {of} files are as they were");
        match fit * 2 >= of {
            true if of > 0 => Ok((fd, Some(format!("{why}; {alike}")))),
            _ => {
                let why = if of > 0 { format!("{why}: {alike}") } else { why };
                Err(conflict(why).hint(format!(
                    "put the directory back in its place, or go on with this one: sbx-fuse rebase -s {} --new-root",
                    self.session().name
                )))
            }
        }
    }
}

impl Session {
    /// From now on the directories that are at the paths of the roots are those that it is about. The lock must be ours.
    ///
    /// # Errors
    /// When there is no directory, or as [`Session::save_meta`].
    pub fn adopt_lowers(&mut self, _lock: &Lock) -> Result<()> {
        for root in &mut self.meta.roots {
            let id = DirId::at(root.path.as_path());
            root.id = Some(id.map_err(|e| Error::on_path("look at the root", root.path.as_bytes(), e))?);
        }
        self.save_meta()
    }
}

/// What a real directory is known by on another machine, too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LowerId {
    /// Canonical absolute path.
    pub path: PathBytes,
    /// Inode number.
    pub ino: u64,
    /// Birth time; zero where the file system keeps none.
    pub btime: Time,
    /// Some of the files that the session changed, as they were.
    pub samples: Vec<Sample>,
}

/// A real file as it was when the session first changed it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// Where it was beneath the root.
    pub path: PathBytes,
    /// Bytes.
    pub size: u64,
    /// Last change of content.
    pub mtime: Time,
    /// BLAKE3 of the content, hexadecimal, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
}

/// How well a directory fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LowerMatch {
    /// It is the very directory.
    Same,
    /// It is another one with the same files: so many of so many that were looked at.
    Alike(usize, usize),
    /// It is another one, and the session changed no file by which to tell.
    Unknown,
    /// It is another one with other files.
    Other(usize, usize),
    /// There is no such directory.
    Missing,
}

impl LowerId {
    /// The identity of the real directory `path`, of which a session made `changes`.
    ///
    /// # Errors
    /// When the directory cannot be looked at.
    pub fn of<'a>(path: &PathBytes, changes: impl Iterator<Item = &'a Change>) -> Result<LowerId> {
        let id =
            DirId::at(path.as_path()).map_err(|e| Error::on_path("look at the root", path.as_bytes(), e))?;
        Ok(LowerId { path: path.clone(), ino: id.ino, btime: id.btime, samples: samples(changes) })
    }

    /// Compares what is at the path now with what was.
    ///
    /// # Errors
    /// When something is there and cannot be read.
    pub fn compare(&self) -> Result<LowerMatch> {
        let told = |e: Errno| Error::on_path("look at the root", self.path.as_bytes(), e);
        let fd = match open(self.path.as_path()) {
            Ok(fd) => fd,
            Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(LowerMatch::Missing),
            Err(e) => return Err(told(e)),
        };
        let then = DirId { ino: self.ino, btime: self.btime };
        if DirId::of(fd.as_fd()).map_err(told)?.is(then) {
            return Ok(LowerMatch::Same);
        }
        let looked = self.samples.len();
        let fit = self.samples.iter().filter(|s| s.fits(&fd)).count();
        Ok(match fit {
            _ if looked == 0 => LowerMatch::Unknown,
            // Some drift is expected; a directory in which most is as it was is the same project.
            fit if fit * 2 >= looked => LowerMatch::Alike(fit, looked),
            fit => LowerMatch::Other(fit, looked),
        })
    }
}

/// Some of the real files that `changes` are about, as they were.
fn samples<'a>(changes: impl Iterator<Item = &'a Change>) -> Vec<Sample> {
    let known = |c: &'a Change| {
        let base: &BaseId = c.base.as_ref().filter(|b| b.kind == Kind::File)?;
        let at = c.from.as_ref().unwrap_or(&c.path);
        Some(Sample {
            path: PathBytes(at.as_bytes().to_vec()),
            size: base.size,
            mtime: base.mtime,
            hash: base.hash.map(|h| h.iter().map(|b| format!("{b:02x}")).collect()),
        })
    };
    let all: Vec<Sample> = changes.filter_map(known).collect();
    let step = all.len().div_ceil(SAMPLES).max(1);
    all.into_iter().step_by(step).collect()
}

fn open(path: &Path) -> std::result::Result<OwnedFd, Errno> {
    use std::os::unix::ffi::OsStrExt;
    file::open_path(path.as_os_str().as_bytes(), libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW)
}

impl Sample {
    /// Whether the file is still there with the same content, as far as can be told at little cost.
    fn fits(&self, root: &OwnedFd) -> bool {
        let Ok(handle) = file::open_beneath(root.as_fd(), self.path.as_bytes(), libc::O_PATH, 0) else {
            return false;
        };
        let Ok(attr) = file::stat(handle.as_fd()) else { return false };
        if attr.kind != Kind::File || attr.size != self.size {
            return false;
        }
        match &self.hash {
            _ if attr.mtime == self.mtime => true,
            Some(hash) if attr.size <= READ_MAX => {
                let content = file::reopen(handle.as_fd(), libc::O_RDONLY);
                content.is_ok_and(|fd| {
                    let mut hasher = blake3::Hasher::new();
                    let read = hasher.update_reader(std::fs::File::from(fd).take(READ_MAX));
                    read.is_ok_and(|h| h.finalize().to_hex().as_str() == hash)
                })
            }
            _ => false,
        }
    }
}
