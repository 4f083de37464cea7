//! Undoing an application: a transaction of its own, made of the inverses that the log of the application holds.
//!
//! Newest first. What the real tree has become since is never overwritten unasked: every name that the application
//! left behind is compared with what it was right after it.

use super::RootDirs;
use super::aftermath::Aftermath;
use super::apply::Progress;
use super::intent::{After, Entry, Log, LogWriter, Op, Place, Saved, Space, UNDO_LOG};
use super::objects::{self, Object};
use super::recover::{clear_undone, end_of_undo_back};
use super::touched::{self, Fate};
use super::transaction::{Backwards, Begun, Fault, Spaces, Txn};
use super::vault::{Stage, Vault};
use super::{attrs, copy};
use crate::base::{Attr, Errno, Error, Kind, RelPath, Result, quote};
use crate::sys::data;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

/// A path where the real tree moved on since the application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Which root.
    pub root: u16,
    /// The path.
    pub path: RelPath,
    /// What happened, as a sentence without a full stop.
    pub why: String,
}

/// What an undo came to.
#[derive(Debug)]
pub enum Undone {
    /// Nothing was applied, or all of it is undone.
    Nothing,
    /// Nothing was done, because the real tree moved on here.
    Refused(Vec<Moved>),
    /// The real tree is what it was before.
    Done {
        /// When it had been applied, nanoseconds since the epoch.
        time: u64,
        /// How many changes that were.
        changes: usize,
        /// Where what was undone is kept.
        kept: PathBuf,
        /// What did not work afterwards.
        warnings: Vec<Error>,
        /// What it means for the session.
        after: Aftermath,
    },
}

/// Undoes the newest application that is not undone, in the vault of `roots`. Where the real tree moved on since, nothing
/// is done, unless the path is in or beneath one of `force`: what is there is then kept like everything that an undo
/// replaces. With `dry`, only looks.
///
/// # Errors
/// When a step fails; the real trees are then as they were.
pub fn undo(
    roots: &[RootDirs],
    force: &[(u16, RelPath)],
    dry: bool,
    progress: &mut dyn FnMut(Progress<'_>),
    fault: &mut dyn Fault,
) -> Result<Undone> {
    let Some(first) = roots.first() else { return Ok(Undone::Nothing) };
    let vault = Vault::take(&first.kept)?;
    let Some(entry) = newest(&vault)? else { return Ok(Undone::Nothing) };
    let spaces = Spaces { roots, kept: vault.open_dir(entry.number)? };
    let mut moved = moved_on(&spaces, &entry.apply)?;
    moved.retain(|m| !force.iter().any(|(root, path)| *root == m.root && m.path.starts_with(path)));
    if !moved.is_empty() {
        return Ok(Undone::Refused(moved));
    }
    let kept = vault.dir(entry.number);
    let (time, changes, after) = (entry.apply.time, entry.apply.changes, Aftermath::of(&entry.apply));
    if dry {
        return Ok(Undone::Done { time, changes, kept, warnings: Vec::new(), after });
    }
    let log = LogWriter::create(spaces.kept.as_fd(), UNDO_LOG)
        .map_err(|e| Error::sys("write the intent log", e))?;
    let (mut done, total) = (0, entry.apply.ops.len());
    let mut tick = |path: &RelPath| {
        done = (done + 1).min(total);
        progress(Progress { done, total, bytes: 0, path });
    };
    let mut txn = Txn::new(spaces, log, fault, &mut tick, "u");
    match run(&mut txn, &entry.apply) {
        Ok(()) => {
            let mut warnings = clear_undone(&txn.spaces, &txn.done);
            if warnings.is_empty() {
                let ended = txn.log.push(&Entry::Done).and_then(|()| txn.log.sync());
                warnings.extend(ended.err().map(|e| Error::sys("write the intent log", e)));
            }
            Ok(Undone::Done { time, changes, kept, warnings, after })
        }
        Err(mut e) => {
            let mut back = Backwards::new(&txn.spaces);
            back.take(&txn.done, Begun::All, &mut super::NoFault);
            back.problems.extend(touched::note(&txn.spaces, &txn.done, Fate::TakenBack).err());
            e.causes.extend(back.problems.into_iter().map(|p| p.message));
            end_of_undo_back(&txn.spaces)?;
            Err(e)
        }
    }
}

/// The newest application that is not undone.
fn newest(vault: &Vault) -> Result<Option<super::vault::Entry>> {
    for number in vault.numbers()?.into_iter().rev() {
        if vault.progress(number)? == Stage::Undone {
            continue;
        }
        let entry = vault.entry(number)?;
        if entry.apply.committed && entry.undo.is_none() {
            return Ok(Some(entry));
        }
    }
    Ok(None)
}

/// Where the real trees are not what the application left.
fn moved_on(spaces: &Spaces<'_>, log: &Log) -> Result<Vec<Moved>> {
    let known: BTreeSet<(u16, &RelPath)> =
        log.after.iter().filter(|a| a.attr.is_some()).map(|a| (a.root, &a.path)).collect();
    let made: BTreeSet<&Place> =
        log.ops.iter().filter_map(|op| if let Op::Mkdir { at } = op { Some(at) } else { None }).collect();
    let mut moved = Vec::new();
    for after in &log.after {
        let place = Place::real(after.root, &after.path);
        let failed = |e| Error::on_path("look at", after.path.as_bytes(), e);
        let mut say = |path: &RelPath, why: String| {
            moved.push(Moved { root: after.root, path: path.clone(), why });
        };
        let now = spaces.stat(&place).map_err(failed)?;
        if let Some(why) = difference(now.as_ref(), after) {
            say(&after.path, why);
            continue;
        }
        if made.contains(&place) {
            let top = spaces.top(place.space).map_err(failed)?;
            for name in objects::names(top, &after.path).map_err(failed)? {
                let child = after.path.join(&name);
                if !known.contains(&(after.root, &child)) {
                    say(
                        &after.path,
                        format!("{} in it is new since it was applied", quote(child.as_bytes())),
                    );
                    break;
                }
            }
        }
    }
    Ok(moved)
}

fn difference(now: Option<&Attr>, after: &After) -> Option<String> {
    let (now, was) = match (now, &after.attr) {
        (None, None) => return None,
        (None, Some(_)) => return Some("it was removed since it was applied".into()),
        (Some(now), None) => return Some(format!("a {} appeared there since", now.kind.word())),
        (Some(now), Some(was)) => (now, was),
    };
    if now.kind != was.kind {
        return Some(format!("it was applied as a {} and is a {} now", was.kind.word(), now.kind.word()));
    }
    if now.kind == Kind::File && (now.size, now.mtime) != (was.size, was.mtime) {
        return Some("it was changed since it was applied".into());
    }
    if now.kind == Kind::Symlink && (now.size, now.mtime) != (was.size, was.mtime) {
        return Some("it was made anew since it was applied".into());
    }
    let owned = |a: &Attr| (a.perm, a.uid, a.gid);
    (owned(now) != owned(was)).then(|| "its mode or owner was changed since it was applied".into())
}

fn run(txn: &mut Txn<'_, '_>, log: &Log) -> Result<()> {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
    txn.log
        .push(&Entry::Begin { time, changes: log.changes })
        .map_err(|e| Error::sys("write the intent log", e))?;
    let mut unswapped: BTreeSet<&Place> = BTreeSet::new();
    let rewritten = Rewritten::of(log);
    for op in log.ops.iter().rev() {
        match op {
            Op::Unswapped { one } => {
                unswapped.insert(one);
            }
            Op::Swap { one, .. } if unswapped.remove(one) => {}
            op => {
                rewritten.split(txn, op)?;
                invert(txn, op)?;
            }
        }
    }
    for dirs in txn.spaces.roots {
        txn.lock_again(&Place::real(dirs.root, &RelPath::root()))?;
    }
    txn.flush()?;
    let synced = txn.fault.at("commit").and_then(|()| {
        for root in txn.spaces.roots {
            let fd = objects::open(root.real.as_fd(), &RelPath::root(), libc::O_RDONLY | libc::O_DIRECTORY)?;
            data::syncfs(fd.as_fd())?;
        }
        data::syncfs(txn.spaces.kept.as_fd())?;
        txn.log.push(&Entry::Commit)?;
        txn.log.sync()
    });
    synced.map_err(|e| Error::sys("write the intent log", e))
}

/// Files that were written in place, by device and inode: what they were.
struct Rewritten<'l>(BTreeMap<(u64, u64), (&'l Place, &'l Saved)>);

impl<'l> Rewritten<'l> {
    fn of(log: &'l Log) -> Self {
        let mut all = BTreeMap::new();
        for op in &log.ops {
            if let Op::Bytes { save, saved, .. } = op {
                all.entry((saved.attr.dev, saved.attr.ino)).or_insert((save, saved));
            }
        }
        Rewritten(all)
    }

    /// What `op` brings back may have been a name of such a file, and be one no more: it was kept on another file system, or
    /// came back from an archive. As a copy it has what was written under the other name, and gets what was there before.
    fn split(&self, txn: &mut Txn<'_, '_>, op: &Op) -> Result<()> {
        let (at, id) = match op {
            Op::Move { to, id, .. } => (to, id),
            Op::Swap { one, other_id, .. } => (one, other_id),
            _ => return Ok(()),
        };
        let Some((save, saved)) = self.0.get(&(id.dev, id.ino)) else { return Ok(()) };
        match txn.look(at)? {
            Some(now) if now.kind == Kind::File && (now.dev, now.ino) != (id.dev, id.ino) => {
                write_back(txn, at, save, saved)
            }
            _ => Ok(()),
        }
    }
}

/// Queues that the file at `at` becomes what it was, by the copy `save`; what it is now is kept.
fn write_back(txn: &mut Txn<'_, '_>, at: &Place, save: &Place, saved: &Saved) -> Result<()> {
    txn.flush()?;
    let now = txn.kept_place()?;
    let copied =
        txn.spaces.find(at).and_then(|object| copy::bytes(&txn.spaces, &object.ok_or(Errno::ENOENT)?, &now));
    copied.map_err(|e| Error::on_path("keep a copy of", at.path.as_bytes(), e))?;
    let (save, saved) = (save.clone(), saved.clone());
    let back = move |spaces: &Spaces<'_>, object: &Object| {
        copy::bytes_back(spaces, object, &save)?;
        attrs::restore(object, &saved.attr, &saved.xattrs)
    };
    txn.bytes(at, &now, None, Box::new(back))
}

/// Queues what takes `op` back.
fn invert(txn: &mut Txn<'_, '_>, op: &Op) -> Result<()> {
    match op {
        // What had been applied goes to where it is kept.
        Op::Make { at, .. } => txn.keep(at),
        Op::Mkdir { at } => remove_dir(txn, at),
        Op::Move { from, to, .. } => move_back(txn, from, to),
        Op::Swap { one, other, .. } => {
            if txn.look(other)?.is_none() {
                return Ok(());
            }
            match txn.look(one)? {
                Some(_) => txn.swap(one, other, None),
                None => txn.rename(other, one, None),
            }
        }
        Op::Copied { from, to } => {
            let (source, target) = (to.clone(), from.clone());
            txn.make_by(from, true, Box::new(move |spaces| copy::tree(spaces, &source, &target)))?;
            txn.flush()
        }
        Op::Attrs { at, saved } => {
            if txn.look(at)?.is_none_or(|a| a.kind != saved.attr.kind) {
                return Ok(());
            }
            txn.lock_again(at)?;
            let saved = saved.clone();
            let give =
                move |_: &Spaces<'_>, object: &Object| attrs::restore(object, &saved.attr, &saved.xattrs);
            txn.attrs(at, None, Box::new(give))
        }
        Op::Times { at, atime, mtime } => {
            if txn.look(at)?.is_none() {
                return Ok(());
            }
            let (atime, mtime) = (*atime, *mtime);
            let set = move |_: &Spaces<'_>, object: &Object| attrs::set_both_times(object, atime, mtime);
            txn.attrs(at, None, Box::new(set))
        }
        Op::Bytes { at, save, saved } => match txn.look(at)? {
            Some(_) => write_back(txn, at, save, saved),
            None => Ok(()),
        },
        Op::Rmdir { .. } | Op::Unswapped { .. } => Ok(()),
    }
}

fn move_back(txn: &mut Txn<'_, '_>, from: &Place, to: &Place) -> Result<()> {
    if txn.look(to)?.is_none() {
        // Gone, which was forced; or it was copied, and the copy is in place already.
        return Ok(());
    }
    if txn.look(from)?.is_some() {
        if to.space == Space::Kept {
            return Ok(());
        }
        // Forced: what has taken the name is kept.
        let aside = aside_of(txn, from)?;
        txn.rename(from, &aside, None)?;
        txn.keep(&aside)?;
    }
    txn.rename(to, from, None)
}

fn remove_dir(txn: &mut Txn<'_, '_>, at: &Place) -> Result<()> {
    if txn.look(at)?.is_none_or(|a| a.kind != Kind::Dir) {
        return Ok(());
    }
    if txn.will_be_empty(at)? {
        return txn.rmdir(at);
    }
    txn.flush()?;
    if txn.will_be_empty(at)? {
        return txn.rmdir(at);
    }
    // Forced: it goes with what is in it.
    let aside = aside_of(txn, at)?;
    txn.rename(at, &aside, None)?;
    txn.keep(&aside)
}

fn aside_of(txn: &mut Txn<'_, '_>, place: &Place) -> Result<Place> {
    let name = txn.temp_name();
    let parent = place.path.parent().unwrap_or_default();
    Ok(Place { space: place.space, path: parent.join(&name) })
}
