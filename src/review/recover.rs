//! After a crash: what an application or its undoing left half-way is finished or taken back.
//!
//! With a commit mark in the log everything is done but the tidying, which is finished; without one everything is
//! taken back. Every inverse looks first whether there is something to take back, so that this, too, can be
//! interrupted anywhere and begun again.

use super::RootDirs;
use super::discard::{Dropper, Seen};
use super::intent::{APPLY_LOG, Entry, Leaver, Log, LogWriter, Op, Place, Space, UNDO_LOG};
use super::touched::{self, Fate};
use super::transaction::{Backwards, Begun, Fault, Spaces};
use super::vault::{Stage, Vault};
use super::{attrs, copy, objects, root_of};
use crate::base::{Attr, Errno, Error, Kind, RelPath, Result, Sys};
use crate::sys::{data, file};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// What was found of an unfinished application.
pub struct Recovery {
    /// What was done about it, in sentences.
    pub said: Vec<String>,
    vault: Vault,
    /// Applications whose changes are still to leave the session.
    leaving: Vec<(u32, u64, Vec<Leaver>)>,
}

/// Takes back or finishes what a crash left in the vault at `path`. `None` when there is nothing, or another command is
/// at work. What is committed still has to leave the session: see [`Recovery::drop_with`].
///
/// # Errors
/// When a log cannot be read or written.
pub fn recover(roots: &[RootDirs], path: &Path, fault: &mut dyn Fault) -> Result<Option<Recovery>> {
    let Some(vault) = Vault::open(path, false)? else { return Ok(None) };
    let mut recovery = Recovery { said: Vec::new(), vault, leaving: Vec::new() };
    for number in recovery.vault.numbers()? {
        if recovery.vault.progress(number)? != Stage::Unfinished {
            continue;
        }
        if !recovery.vault.has_begun(number)? {
            recovery
                .vault
                .remove(number)
                .map_err(|e| Error::sys("remove an application without a log", e))?;
            continue;
        }
        let entry = recovery.vault.entry(number)?;
        let kept = recovery.vault.open_dir(entry.number)?;
        let spaces = Spaces { roots, kept };
        if !entry.apply.committed {
            let problems = take_back(&spaces, &entry.apply, APPLY_LOG, fault)?;
            let noted = touched::note(&spaces, &entry.apply.ops, Fate::TakenBack);
            let mut bad = end_of_roll_back(&recovery.vault, entry.number, problems);
            bad.extend(noted.err().map(|e| e.message));
            recovery
                .say("an application was interrupted: took it back, the real files are as they were", bad);
            continue;
        }
        if !entry.apply.done {
            let mut bad = remove_copied(&spaces, &entry.apply.ops);
            bad.extend(touched::note(&spaces, &entry.apply.ops, Fate::Done).err());
            let bad = bad.into_iter().map(|e| e.message).collect();
            recovery.say("an application was interrupted after its last step: finished it", bad);
            recovery.leaving.push((entry.number, entry.apply.end, entry.apply.leave.clone()));
        }
        match &entry.undo {
            Some(undo) if !undo.committed => recovery.undo_back(&spaces, undo, fault)?,
            Some(undo) if !undo.done => {
                let bad = clear_undone(&spaces, &undo.ops).into_iter().map(|e| e.message).collect();
                end(&spaces, UNDO_LOG, undo.end)?;
                recovery.say("an undo was interrupted after its last step: finished it", bad);
            }
            _ => {}
        }
    }
    Ok(Some(recovery))
}

/// Takes back what the log called `name` says, batch by batch. What is taken back is on the disk, and noted in the log,
/// before the batch before it is touched: when this is interrupted, the next attempt does not look at names that an
/// earlier operation has to do with again by now.
fn take_back(spaces: &Spaces<'_>, log: &Log, name: &[u8], fault: &mut dyn Fault) -> Result<Vec<Error>> {
    let failed = |e| Error::sys("write the intent log", e);
    let mut writer = LogWriter::append(spaces.kept.as_fd(), name, log.end).map_err(failed)?;
    let mut back = Backwards::new(spaces);
    let (mut end, mut begun) = (log.ops.len(), Begun::UpTo);
    if let Some((batch, spoiled)) = &log.back {
        end = log.batches.iter().copied().find(|start| start > batch).unwrap_or(end);
        let told = |at: &Place| Error::on_path("put back", at.path.as_bytes(), Errno::ESTALE);
        back.problems.extend(spoiled.iter().map(told));
        back.spoiled.extend(spoiled.iter().cloned());
    }
    while end > 0 {
        let start = log.batches.iter().copied().rfind(|start| *start < end).unwrap_or(0);
        if begun == Begun::All {
            for root in spaces.roots {
                objects::open(root.real.as_fd(), &RelPath::root(), libc::O_RDONLY | libc::O_DIRECTORY)
                    .and_then(|fd| data::syncfs(fd.as_fd()))
                    .map_err(|e| Error::on_path("sync", &root.path[..], e))?;
            }
            let noted = Entry::BackTo { batch: start, spoiled: back.spoiled.iter().cloned().collect() };
            fault
                .at("write the log")
                .and_then(|()| writer.push(&noted))
                .and_then(|()| writer.sync())
                .map_err(failed)?;
        }
        back.take(&log.ops[start..end], begun, fault);
        (end, begun) = (start, Begun::All);
    }
    Ok(back.problems)
}

fn end(spaces: &Spaces<'_>, name: &[u8], at: u64) -> Result<()> {
    let ended = LogWriter::append(spaces.kept.as_fd(), name, at)
        .and_then(|mut log| log.push(&Entry::Done).and_then(|()| log.sync()));
    ended.map_err(|e| Error::sys("write the intent log", e))
}

impl Recovery {
    fn say(&mut self, done: &str, problems: Vec<String>) {
        self.said.push(done.into());
        self.said.extend(problems);
    }

    fn undo_back(&mut self, spaces: &Spaces<'_>, undo: &Log, fault: &mut dyn Fault) -> Result<()> {
        let mut problems = take_back(spaces, undo, UNDO_LOG, fault)?;
        problems.extend(touched::note(spaces, &undo.ops, Fate::TakenBack).err());
        let bad: Vec<String> = problems.into_iter().map(|p| p.message).collect();
        end_of_undo_back(spaces)?;
        self.say("an undo was interrupted: took it back, the real files are as they were before it", bad);
        Ok(())
    }

    /// Whether changes are still to leave the session.
    pub fn has_leavers(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// Takes the changes of finished applications out of the session, those that `is_there` (by root and path) says it
    /// still has; one that it changed again stays.
    ///
    /// # Errors
    /// When the session's files cannot be edited; the next command tries again.
    pub fn drop_with(
        &mut self,
        roots: &[RootDirs],
        is_there: &dyn Fn(u16, &RelPath) -> bool,
        dropper: &mut dyn Dropper,
    ) -> Result<()> {
        for (number, log_end, leavers) in std::mem::take(&mut self.leaving) {
            for leaver in leavers.into_iter().filter(|l| is_there(l.root, &l.path)) {
                let upper = root_of(roots, leaver.root)?.upper.as_fd();
                let there = objects::stat(upper, &leaver.path)
                    .map_err(|e| Error::on_path("look at", leaver.path.as_bytes(), e))?;
                let is_new = |a: &crate::base::Attr| a.kind != Kind::Dir && !a.is_whiteout();
                if leaver.seen.is_none() && there.as_ref().is_some_and(is_new) {
                    continue;
                }
                // Where the object is gone already, what goes with it may still be there.
                let seen = leaver.seen.filter(|_| there.is_some_and(|a| !a.is_whiteout()));
                dropper.drop(leaver.root, &leaver.path, seen.map(|(ino, ctime)| Seen { ino, ctime }))?;
            }
            let kept = self.vault.open_dir(number)?;
            let ended = LogWriter::append(kept.as_fd(), APPLY_LOG, log_end)
                .and_then(|mut log| log.push(&Entry::Done).and_then(|()| log.sync()));
            ended.map_err(|e| Error::sys("write the intent log", e))?;
        }
        Ok(())
    }
}

/// After an undo was taken back: its log goes.
///
/// # Errors
/// As `unlinkat(2)`.
pub(crate) fn end_of_undo_back(spaces: &Spaces<'_>) -> Result<()> {
    file::unlinkat(spaces.kept.as_fd(), UNDO_LOG).map_err(|e| Error::sys("remove the log of the undo", e))
}

/// After operations were taken back: what was kept goes, unless something could not be put back. The sentences say what
/// went wrong.
pub(crate) fn end_of_roll_back(vault: &Vault, number: u32, problems: Vec<Error>) -> Vec<String> {
    let mut said: Vec<String> = problems.into_iter().map(|p| p.message).collect();
    if said.is_empty() {
        if let Err(e) = vault.remove(number) {
            said.push(format!("what was kept could not be removed: {e}"));
        }
        return said;
    }
    let path = vault.set_aside(number).unwrap_or_else(|_| vault.dir(number));
    said.push(format!("what was replaced is in {}", crate::base::quote(path.as_os_str().as_bytes())));
    said
}

/// Removes what was copied to where it is kept; the directories that held it keep their times.
pub(crate) fn remove_copied(spaces: &Spaces<'_>, ops: &[Op]) -> Vec<Error> {
    let mut problems = Vec::new();
    for op in ops {
        let Op::Copied { from, .. } = op else { continue };
        let Some(path) = from.path.parent() else { continue };
        let dir = Place { space: from.space, path };
        let gone = || -> Sys<()> {
            let Some(dir) = spaces.find(&dir)? else { return Ok(()) };
            copy::remove_all(spaces.top(from.space)?, &from.path)?;
            attrs::set_both_times(&dir, dir.attr.atime, dir.attr.mtime)
        };
        if let Err(e) = gone() {
            problems.push(Error::on_path("remove the leftover", from.path.as_bytes(), e));
        }
    }
    problems
}

/// As [`remove_copied`], after an undo; and what it kept of what had been applied is not kept where it is but another name
/// of a file: in the real tree that would count as a link of it for as long.
pub(crate) fn clear_undone(spaces: &Spaces<'_>, ops: &[Op]) -> Vec<Error> {
    let mut problems = remove_copied(spaces, ops);
    problems.extend(touched::note(spaces, ops, Fate::Restored).err());
    for op in ops {
        let Op::Move { to, .. } = op else { continue };
        let gone = || -> Sys<()> {
            let is_link = |a: &Attr| a.kind == Kind::File && a.nlink > 1;
            if to.space != Space::Kept || !spaces.stat(to)?.as_ref().is_some_and(is_link) {
                return Ok(());
            }
            let (dir, name) = spaces.parent(to)?;
            file::unlinkat(dir.as_fd(), name)
        };
        if let Err(e) = gone() {
            problems.push(Error::on_path("remove the leftover", to.path.as_bytes(), e));
        }
    }
    problems
}
