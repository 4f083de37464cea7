//! Where the space is: allocated bytes, as `du` counts them, each inode once.

use super::store::{Session, Store, cwd};
use crate::base::{Errno, Error, Kind, Result, Sys};
use crate::sys::{dir, file};
use serde::Serialize;
use std::collections::HashSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The allocated bytes of one session, by what they are for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// What programs wrote: the uppers, with the index of hard links.
    pub upper: u64,
    /// Frozen layers.
    pub layers: u64,
    /// The journal.
    pub journal: u64,
    /// What small files held before.
    pub bases: u64,
    /// What applying replaced, kept for an undo.
    pub originals: u64,
    /// Its archive.
    pub archive: u64,
    /// The rest: directories, `meta.json`, logs.
    pub other: u64,
}

impl Usage {
    /// All of it.
    pub fn total(&self) -> u64 {
        self.upper + self.layers + self.journal + self.bases + self.originals + self.archive + self.other
    }

    /// Adds what another one has.
    pub fn add(&mut self, o: &Usage) {
        self.upper += o.upper;
        self.layers += o.layers;
        self.journal += o.journal;
        self.bases += o.bases;
        self.originals += o.originals;
        self.archive += o.archive;
        self.other += o.other;
    }

    fn part(&mut self, path: &[&[u8]]) -> &mut u64 {
        match path {
            [b"roots", _, b"upper" | b"work", ..] => &mut self.upper,
            [b"layers", ..] => &mut self.layers,
            [b"journal", b"base.pack"] => &mut self.bases,
            [b"journal", ..] => &mut self.journal,
            [b"apply", ..] => &mut self.originals,
            _ => &mut self.other,
        }
    }
}

struct Level {
    fd: OwnedFd,
    rest: std::vec::IntoIter<dir::DirEntry>,
    /// The first three parts of its path; deeper ones do not matter.
    path: Vec<Box<[u8]>>,
}

/// The allocated bytes of the session directory `path`. What disappears meanwhile, or may not be looked into, is left
/// out; a mount in it is not entered.
///
/// # Errors
/// When the directory cannot be read.
pub fn of_directory(path: &Path) -> Result<Usage> {
    let told = |e: Errno| Error::on_path("measure", path.as_os_str().as_bytes(), e);
    let flags = libc::O_RDONLY | libc::O_DIRECTORY;
    let top = file::open_path(path.as_os_str().as_bytes(), flags).map_err(told)?;
    let attr = file::stat(top.as_fd()).map_err(told)?;
    let mut usage = Usage { other: attr.blocks * 512, ..Usage::default() };
    let mut seen = HashSet::new();
    let rest = dir::entries(top.as_fd()).map_err(told)?.into_iter();
    let mut stack = vec![Level { fd: top, rest, path: Vec::new() }];
    while let Some(level) = stack.last_mut() {
        let Some(entry) = level.rest.next() else {
            stack.pop();
            continue;
        };
        // Where `run` mounts: looking at it would ask the server.
        if level.path.is_empty() && &*entry.name == b"mnt" {
            usage.other += unmounted(level.fd.as_fd(), attr.dev).unwrap_or(0);
            continue;
        }
        let Ok(found) = file::stat_at(level.fd.as_fd(), &entry.name) else { continue };
        if found.dev != attr.dev || (found.nlink > 1 && found.kind != Kind::Dir && !seen.insert(found.ino)) {
            continue;
        }
        let mut path = level.path.clone();
        if path.len() < 3 {
            path.push(entry.name.clone());
        }
        let parts: Vec<&[u8]> = path.iter().map(|p| &**p).collect();
        *usage.part(&parts) += found.blocks * 512;
        if found.kind == Kind::Dir
            && let Ok(fd) = file::openat(level.fd.as_fd(), &entry.name, flags, 0)
            && let Ok(entries) = dir::entries(fd.as_fd())
        {
            stack.push(Level { fd, rest: entries.into_iter(), path });
        }
    }
    Ok(usage)
}

/// The bytes of the directory `mnt` when nothing is mounted on it.
fn unmounted(dir: BorrowedFd<'_>, dev: u64) -> Sys<u64> {
    let attr = file::stat_at(dir, b"mnt")?;
    Ok(if attr.dev == dev { attr.blocks * 512 } else { 0 })
}

impl Session {
    /// The allocated bytes of this session and its archive.
    ///
    /// # Errors
    /// When its directory cannot be read.
    pub fn usage(&self) -> Result<Usage> {
        let mut usage = of_directory(&self.dir)?;
        usage.archive = self.archived.as_ref().and_then(|a| a.on_disk()).unwrap_or(0);
        Ok(usage)
    }

    /// When the session last changed, nanoseconds since the epoch.
    pub fn last_used(&self) -> u64 {
        if let Some(archived) = &self.archived {
            return archived.at;
        }
        let log = self.journal_dir().join("log");
        let written = file::stat_at(cwd(), log.as_os_str().as_bytes()).map(|a| a.mtime);
        let nanos =
            |t: crate::base::Time| Some(u64::try_from(t.sec).ok()? * 1_000_000_000 + u64::from(t.nsec));
        written.ok().and_then(nanos).unwrap_or(self.meta.created)
    }
}

impl Store {
    /// The allocated bytes of each session, by name; one that cannot be read is counted all the same.
    ///
    /// # Errors
    /// When the store cannot be listed.
    pub fn usage(&self) -> Result<Vec<(String, Result<Session>, Usage)>> {
        let all = self.list()?;
        let next = std::sync::atomic::AtomicUsize::new(0);
        let results = parking_lot::Mutex::new(vec![Usage::default(); all.len()]);
        let work = || {
            loop {
                let i = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                let Some((name, session)) = all.get(i) else { return };
                let usage = match session {
                    Ok(session) => session.usage(),
                    Err(_) => of_directory(&self.sessions().join(name)),
                };
                // A session that was removed meanwhile takes no space.
                results.lock()[i] = usage.unwrap_or_default();
            }
        };
        // Reading directories waits for the disk more than it computes.
        std::thread::scope(|scope| {
            for _ in 1..all.len().min(4) {
                scope.spawn(work);
            }
            work();
        });
        let results = results.into_inner();
        Ok(all.into_iter().zip(results).map(|((name, session), usage)| (name, session, usage)).collect())
    }
}
