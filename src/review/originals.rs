//! What applying replaced and a session keeps for an undo: how much that is, and letting go of it by a policy.

use super::objects;
use super::vault::{Stage, Vault};
use crate::base::{Errno, Error, RelPath, Result};
use crate::sys::file;
use std::collections::HashSet;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// One application whose originals are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Its number, which grows with time.
    pub number: u32,
    /// When it was applied, or undone if it was: nanoseconds since the epoch.
    pub time: u64,
    /// Allocated bytes, its log included.
    pub bytes: u64,
    /// Whether it was undone; what it had applied is kept then.
    pub undone: bool,
}

/// How much is kept. What is not said is not limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeepLimits {
    /// The newest so many applications.
    pub keep: Option<usize>,
    /// Nanoseconds since they were applied or undone.
    pub age: Option<u64>,
}

/// Whether a crash left an application or an undo in the vault at `path` half-way. Costs a look at the end of each log;
/// what somebody is just at work on counts as well.
///
/// # Errors
/// When the vault cannot be read.
pub fn is_unfinished(path: &Path) -> Result<bool> {
    // Its lock is not asked for: whoever holds it a moment too long would keep an application waiting.
    let Some(vault) = Vault::look(path)? else { return Ok(false) };
    for number in vault.numbers()? {
        if vault.progress(number)? == Stage::Unfinished {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What is kept in the vault at `path`, oldest first; nothing of what is half-way.
///
/// # Errors
/// When it cannot be read.
pub fn kept(path: &Path) -> Result<Vec<Kept>> {
    match Vault::look(path)? {
        Some(vault) => list(&vault),
        None => Ok(Vec::new()),
    }
}

fn list(vault: &Vault) -> Result<Vec<Kept>> {
    let mut all = Vec::new();
    for number in vault.numbers()? {
        let stage = match vault.progress(number) {
            Ok(stage) => stage,
            // It went meanwhile.
            Err(e) if e.errno == Some(Errno::ENOENT) => continue,
            Err(e) => return Err(e),
        };
        if stage == Stage::Unfinished {
            continue;
        }
        let dir = vault.open_dir(number)?;
        let failed = |e| Error::on_path("look at", vault.dir(number).as_os_str().as_bytes(), e);
        let (mut bytes, mut seen) = (file::stat(dir.as_fd()).map_err(failed)?.blocks * 512, HashSet::new());
        let mut newest = 0;
        objects::walk(dir.as_fd(), &RelPath::root(), &mut |path, attr| {
            if attr.nlink < 2 || seen.insert(attr.ino) {
                bytes += attr.blocks * 512;
            }
            if matches!(path.as_bytes(), b"log" | b"undo") {
                let sec = u64::try_from(attr.mtime.sec).unwrap_or(0);
                newest = newest.max(sec * 1_000_000_000 + u64::from(attr.mtime.nsec));
            }
            Ok(())
        })
        .map_err(failed)?;
        all.push(Kept { number, time: newest, bytes, undone: stage == Stage::Undone });
    }
    Ok(all)
}

/// Lets go of what is beyond `limits`, the oldest first, so that what is left can still be undone one by one. With `dry`
/// only says what would go. Nothing goes while somebody applies or undoes.
///
/// # Errors
/// When something cannot be removed.
pub fn let_go(path: &Path, limits: &KeepLimits, now: u64, dry: bool) -> Result<Vec<Kept>> {
    let Some(vault) = Vault::open(path, false)? else { return Ok(Vec::new()) };
    let all = list(&vault)?;
    let beyond = limits.keep.map_or(0, |keep| all.len().saturating_sub(keep));
    let old = |k: &Kept| limits.age.is_some_and(|age| now.saturating_sub(k.time) > age);
    let aged = all.iter().take_while(|k| old(k)).count();
    let gone: Vec<Kept> = all.into_iter().take(beyond.max(aged)).collect();
    for k in gone.iter().filter(|_| !dry) {
        vault
            .remove(k.number)
            .map_err(|e| Error::on_path("let go of", vault.dir(k.number).as_os_str().as_bytes(), e))?;
    }
    Ok(gone)
}
