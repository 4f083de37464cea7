//! Whether a real directory is the one that a session was made on, here or on another machine.

use super::meta::PathBytes;
use crate::base::{BaseId, Change, Errno, Error, Kind, Result, Time};
use crate::sys::file;
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

/// How many files of a root are remembered to know it again.
const SAMPLES: usize = 32;
/// Files longer than this are not read to compare them.
const READ_MAX: u64 = 64 << 20;

/// What a real directory is known by; numbers of devices, which change with every boot, are not part of it.
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
        let attr = open(path.as_path())
            .and_then(|fd| file::stat(fd.as_fd()))
            .map_err(|e| Error::on_path("look at the root", path.as_bytes(), e))?;
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
        let samples = all.into_iter().step_by(step).collect();
        Ok(LowerId { path: path.clone(), ino: attr.ino, btime: attr.btime, samples })
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
        let attr = file::stat(fd.as_fd()).map_err(told)?;
        if (attr.ino, attr.btime) == (self.ino, self.btime) {
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

fn open(path: &Path) -> std::result::Result<OwnedFd, Errno> {
    use std::os::unix::ffi::OsStrExt;
    file::open_path(path.as_os_str().as_bytes(), libc::O_PATH | libc::O_DIRECTORY)
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
