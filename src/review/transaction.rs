//! A transaction on the real tree: operations are written to the intent log in batches, each batch is on the disk before
//! its first operation is done, and every operation can be taken back from what the log says alone.
//!
//! A batch holds operations whose inverses are known before the batch begins. What an earlier operation of the same
//! batch does to a name is kept in an overlay; where that is not enough (a name in or above a directory that moves),
//! the batch is carried out first.

use super::intent::{Entry, Id, LogWriter, Op, Place, Saved, Space, Stamp};
use super::objects::{self, Object};
use super::paths::ancestors;
use super::unlocked::{UnlockedDirs, is_locked};
use super::{RootDirs, attrs, copy};
use crate::base::{Attr, Errno, Error, Kind, RelPath, Result, Sys};
use crate::sys::file;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Where tests let an application fail or die: asked before each thing it does. The program itself passes [`NoFault`].
pub trait Fault {
    /// About to do `what`.
    ///
    /// # Errors
    /// The error that this is to fail with.
    fn at(&mut self, what: &str) -> Sys<()>;
}

/// Nothing fails but by itself.
pub struct NoFault;

impl Fault for NoFault {
    fn at(&mut self, _what: &str) -> Sys<()> {
        Ok(())
    }
}

/// The trees a transaction works on.
pub(crate) struct Spaces<'a> {
    pub roots: &'a [RootDirs],
    /// The directory of the transaction.
    pub kept: OwnedFd,
}

impl Spaces<'_> {
    pub fn top(&self, space: Space) -> Sys<BorrowedFd<'_>> {
        match space {
            Space::Kept => Ok(self.kept.as_fd()),
            Space::Real(root) => {
                let dirs = self.roots.iter().find(|r| r.root == root).ok_or(Errno::EINVAL)?;
                Ok(dirs.real.as_fd())
            }
        }
    }

    pub fn find(&self, place: &Place) -> Sys<Option<Object>> {
        Object::find(self.top(place.space)?, &place.path)
    }

    pub fn stat(&self, place: &Place) -> Sys<Option<Attr>> {
        Ok(self.find(place)?.map(|o| o.attr))
    }

    pub fn parent<'p>(&self, place: &'p Place) -> Sys<(OwnedFd, &'p [u8])> {
        objects::open_parent(self.top(place.space)?, &place.path)
    }

    pub fn rename(&self, from: &Place, to: &Place, flags: u32) -> Sys<()> {
        let (from_dir, from_name) = self.parent(from)?;
        let (to_dir, to_name) = self.parent(to)?;
        file::renameat(from_dir.as_fd(), from_name, to_dir.as_fd(), to_name, flags)
    }

    /// Renames to a name that must be free.
    pub fn rename_new(&self, from: &Place, to: &Place) -> Sys<()> {
        match self.rename(from, to, libc::RENAME_NOREPLACE) {
            Err(Errno::EINVAL | Errno::ENOSYS) => match self.stat(to)? {
                None => self.rename(from, to, 0),
                Some(_) => Err(Errno::EEXIST),
            },
            other => other,
        }
    }

    pub fn save(&self, at: &Place) -> Sys<Saved> {
        let object = self.find(at)?.ok_or(Errno::ENOENT)?;
        Ok(Saved { attr: object.attr, xattrs: objects::xattrs(&object)? })
    }
}

/// What an operation does beyond what the log says of it.
pub(crate) type Action<'a> = Box<dyn FnOnce(&Spaces<'_>) -> Sys<()> + 'a>;

/// The same on an object that is there already.
pub(crate) type OnObject<'a> = Box<dyn FnOnce(&Spaces<'_>, &Object) -> Sys<()> + 'a>;

/// Does `action` to the object at `at` if it is still the one whose attributes were saved: else somebody has put
/// another there, perhaps one more name of a file that is none of ours.
fn on_same<'a>(at: &Place, saved: &Saved, action: OnObject<'a>) -> Action<'a> {
    let (at, id) = (at.clone(), Id::of(&saved.attr));
    Box::new(move |spaces| {
        let object = spaces.find(&at)?.filter(|o| Id::of(&o.attr) == id).ok_or(Errno::ESTALE)?;
        action(spaces, &object)
    })
}

struct Pending<'a> {
    op: Op,
    action: Option<Action<'a>>,
    /// What the displaced or moved object must still be.
    expected: Option<Attr>,
}

/// What a name will be once the batch is done.
enum Soon {
    Absent,
    Is(Attr),
    /// A directory that the batch makes.
    New,
}

/// A transaction at work.
pub(crate) struct Txn<'a, 'p> {
    pub spaces: Spaces<'a>,
    pub log: LogWriter,
    pub fault: &'p mut dyn Fault,
    /// Told the path of each operation that is done.
    tick: &'p mut dyn FnMut(&RelPath),
    /// What was begun, in order: to be taken back in reverse.
    pub done: Vec<Op>,
    pending: Vec<Pending<'a>>,
    overlay: BTreeMap<Place, Soon>,
    /// Names from and to which the batch moves directories.
    moved: BTreeSet<Place>,
    /// Directories whose attributes the batch sets.
    styled: BTreeSet<Place>,
    /// Directories whose times are noted, by device and inode.
    timed: HashSet<(u64, u64)>,
    unlocked: UnlockedDirs,
    salt: u64,
    names: u64,
    /// How the names of what is kept begin.
    prefix: &'static str,
}

impl<'a, 'p> Txn<'a, 'p> {
    pub fn new(
        spaces: Spaces<'a>,
        log: LogWriter,
        fault: &'p mut dyn Fault,
        tick: &'p mut dyn FnMut(&RelPath),
        prefix: &'static str,
    ) -> Self {
        use std::hash::{BuildHasher, Hasher};
        Txn {
            spaces,
            log,
            fault,
            tick,
            done: Vec::new(),
            pending: Vec::new(),
            overlay: BTreeMap::new(),
            moved: BTreeSet::new(),
            styled: BTreeSet::new(),
            timed: HashSet::new(),
            unlocked: UnlockedDirs::default(),
            salt: std::hash::RandomState::new().build_hasher().finish() >> 24,
            names: 0,
            prefix,
        }
    }

    /// A name that nothing has.
    pub fn temp_name(&mut self) -> Vec<u8> {
        self.names += 1;
        format!(".sbx-fuse.{:010x}-{}.tmp", self.salt, self.names).into_bytes()
    }

    /// A place to keep something in.
    pub fn kept_place(&mut self) -> Result<Place> {
        self.names += 1;
        // What an earlier attempt kept may still be there.
        let name = format!("{}{:x}-{}", self.prefix, self.salt, self.names);
        let path = RelPath::new(name.as_bytes()).map_err(|e| Error::sys("name what is kept", e))?;
        Ok(Place { space: Space::Kept, path })
    }

    /// What will be at `place` once the batch is done.
    pub fn look(&mut self, place: &Place) -> Result<Option<Attr>> {
        self.come_near(place)?;
        match self.overlay.get(place) {
            Some(Soon::Absent) => return Ok(None),
            Some(Soon::Is(attr)) => return Ok(Some(*attr)),
            Some(Soon::New) => self.flush()?,
            None => {}
        }
        self.spaces.stat(place).map_err(|e| Error::on_path("look at", place.path.as_bytes(), e))
    }

    /// Carries the batch out when a directory that it moves lies on the way to `place` or beneath it.
    fn come_near(&mut self, place: &Place) -> Result<()> {
        if self.moved.is_empty() {
            return Ok(());
        }
        let above = ancestors(&place.path).any(|path| self.moved.contains(&Place { path, ..place.clone() }));
        let below = self
            .moved
            .range(place.clone()..)
            .take_while(|m| m.space == place.space && m.path.as_bytes().starts_with(place.path.as_bytes()))
            .any(|m| m != place && m.is_in(place));
        if above || below { self.flush() } else { Ok(()) }
    }

    fn queue(&mut self, op: Op, action: Option<Action<'a>>, expected: Option<Attr>) {
        self.pending.push(Pending { op, action, expected });
    }

    /// Sees to it that the entries of the directory that holds `place` can change, and notes its times when they do so
    /// for the first time.
    fn enter(&mut self, place: &Place) -> Result<()> {
        let Some(path) = place.path.parent() else { return Ok(()) };
        let at = Place { space: place.space, path };
        if at.space == Space::Kept || matches!(self.overlay.get(&at), Some(Soon::New)) {
            return Ok(());
        }
        if self.styled.contains(&at) {
            self.flush()?;
        }
        let Some(attr) = self.look(&at)? else { return Ok(()) };
        if self.timed.insert((attr.dev, attr.ino)) {
            let times = Op::Times { at: at.clone(), atime: attr.atime, mtime: attr.mtime };
            self.queue(times, None, None);
        }
        if is_locked(&attr) && self.unlocked.add(&at, &attr) {
            self.set_mode(&at, attr.perm | 0o700)?;
            // What follows may build on that.
            self.styled.remove(&at);
        }
        Ok(())
    }

    fn set_mode(&mut self, at: &Place, perm: u32) -> Result<()> {
        let set = move |_: &Spaces<'_>, object: &Object| file::chmod_fd(object.fd.as_fd(), perm);
        self.attrs(at, None, Box::new(set))
    }

    /// Directories at or beneath `within` that were made writable get their own modes back.
    pub fn lock_again(&mut self, within: &Place) -> Result<()> {
        let dirs = self.unlocked.take(within);
        if dirs.is_empty() {
            return Ok(());
        }
        // Taken back, they are to be writable first: that is on the disk when their attributes are noted.
        self.flush()?;
        dirs.iter().try_for_each(|dir| self.set_mode(&dir.at, dir.perm))?;
        self.flush()
    }

    /// A temporary object will be made at `at` by the caller, after the next flush.
    pub fn make(&mut self, at: &Place, tree: bool) -> Result<()> {
        self.enter(at)?;
        self.queue(Op::Make { at: at.clone(), tree }, None, None);
        Ok(())
    }

    /// As [`Txn::make`], and `action` makes it.
    pub fn make_by(&mut self, at: &Place, tree: bool, action: Action<'a>) -> Result<()> {
        self.enter(at)?;
        self.queue(Op::Make { at: at.clone(), tree }, Some(action), None);
        Ok(())
    }

    /// Renames to a name that is free.
    pub fn rename(&mut self, from: &Place, to: &Place, expected: Option<&Attr>) -> Result<()> {
        self.come_near(to)?;
        self.enter(from)?;
        self.enter(to)?;
        let attr = self.look(from)?.ok_or_else(|| failed_at("move", from, Errno::ENOENT))?;
        expect(&attr, expected).map_err(|e| failed_at("move", from, e))?;
        if self.look(to)?.is_some() {
            return Err(failed_at("move to", to, Errno::EEXIST));
        }
        // Looking may have carried the batch out, but changes nothing else.
        let (id, was) = (Id::of(&attr), Some(Stamp::of(&attr)));
        let op = Op::Move { from: from.clone(), to: to.clone(), id, was };
        self.queue(op, None, expected.copied());
        self.overlay.insert(from.clone(), Soon::Absent);
        self.overlay.insert(to.clone(), Soon::Is(attr));
        if attr.kind == Kind::Dir {
            self.moved.extend([from.clone(), to.clone()]);
            self.unlocked.follow(from, to);
        }
        Ok(())
    }

    /// Lets two objects change places; `expected` is what is at `one`.
    pub fn swap(&mut self, one: &Place, other: &Place, expected: Option<&Attr>) -> Result<()> {
        self.enter(one)?;
        self.enter(other)?;
        let missing = |place| move || failed_at("replace", place, Errno::ESTALE);
        let other_attr = self.look(other)?.ok_or_else(missing(other))?;
        let attr = self.look(one)?.ok_or_else(missing(one))?;
        expect(&attr, expected).map_err(|e| failed_at("replace", one, e))?;
        let (one_id, other_id) = (Id::of(&attr), Id::of(&other_attr));
        let was = Some(Stamp::of(&attr));
        let op = Op::Swap { one: one.clone(), other: other.clone(), one_id, other_id, was };
        self.queue(op, None, expected.copied());
        self.overlay.insert(one.clone(), Soon::Is(other_attr));
        self.overlay.insert(other.clone(), Soon::Is(attr));
        if attr.kind == Kind::Dir || other_attr.kind == Kind::Dir {
            self.moved.extend([one.clone(), other.clone()]);
            self.unlocked.swap(one, other);
        }
        Ok(())
    }

    /// Makes a directory where nothing is.
    pub fn mkdir(&mut self, at: &Place) -> Result<()> {
        self.enter(at)?;
        // On the disk, nothing must be there when this is logged: what is there is not ours to remove.
        self.settle_at(at)?;
        self.queue(Op::Mkdir { at: at.clone() }, None, None);
        self.overlay.insert(at.clone(), Soon::New);
        Ok(())
    }

    /// Whether the directory at `at` will be empty once the batch is done.
    pub fn will_be_empty(&mut self, at: &Place) -> Result<bool> {
        self.settle_at(at)?;
        let names = self.spaces.top(at.space).and_then(|top| objects::names(top, &at.path));
        let names = names.map_err(|e| failed_at("list", at, e))?;
        let goes = |name: &[u8]| {
            let child = Place { space: at.space, path: at.path.join(name) };
            matches!(self.overlay.get(&child), Some(Soon::Absent))
        };
        let comes = |place: &Place, soon: &Soon| {
            !matches!(soon, Soon::Absent) && place != at && place.path.parent().as_ref() == Some(&at.path)
        };
        let new = self.overlay.range(at.clone()..).take_while(|(p, _)| p.is_in(at)).any(|(p, s)| comes(p, s));
        Ok(!new && names.iter().all(|name| goes(name)))
    }

    /// Removes a directory that is or will be empty.
    pub fn rmdir(&mut self, at: &Place) -> Result<()> {
        self.enter(at)?;
        self.settle_at(at)?;
        let saved = self.spaces.save(at).map_err(|e| failed_at("remove", at, e))?;
        self.queue(Op::Rmdir { at: at.clone(), saved }, None, None);
        self.unlocked.take(at);
        self.overlay.insert(at.clone(), Soon::Absent);
        Ok(())
    }

    /// Sets attributes of the object at `at` by `action`, unless by then another is there. It must be what is
    /// `expected`.
    pub fn attrs(&mut self, at: &Place, expected: Option<&Attr>, action: OnObject<'a>) -> Result<()> {
        self.settle_at(at)?;
        let failed = |e| failed_at("set the attributes of", at, e);
        let saved = self.spaces.save(at).map_err(failed)?;
        expect(&saved.attr, expected).map_err(failed)?;
        if saved.attr.kind == Kind::Dir {
            self.styled.insert(at.clone());
        }
        let action = on_same(at, &saved, action);
        self.queue(Op::Attrs { at: at.clone(), saved }, Some(action), None);
        Ok(())
    }

    /// Writes the file at `at` in place by `action`; `save` holds a copy of what it had.
    pub fn bytes(
        &mut self,
        at: &Place,
        save: &Place,
        expected: Option<&Attr>,
        action: OnObject<'a>,
    ) -> Result<()> {
        self.settle_at(at)?;
        let saved = self.spaces.save(at).map_err(|e| failed_at("write", at, e))?;
        expect(&saved.attr, expected).map_err(|e| failed_at("write", at, e))?;
        let action = on_same(at, &saved, action);
        self.queue(Op::Bytes { at: at.clone(), save: save.clone(), saved }, Some(action), expected.copied());
        Ok(())
    }

    /// Sees to it that what is at `at` on the disk is what the batch has there.
    pub fn settle_at(&mut self, at: &Place) -> Result<()> {
        self.come_near(at)?;
        if self.overlay.contains_key(at) { self.flush() } else { Ok(()) }
    }

    /// Moves what was set aside at `from` to where it is kept, by a rename where the file system lets us.
    pub fn keep(&mut self, from: &Place) -> Result<()> {
        let Some(attr) = self.look(from)? else { return Ok(()) };
        let to = self.kept_place()?;
        let dev =
            file::stat(self.spaces.kept.as_fd()).map_err(|e| Error::sys("look at what is kept", e))?.dev;
        if dev == attr.dev {
            return self.rename(from, &to, None);
        }
        self.queue(Op::Copied { from: from.clone(), to }, None, None);
        Ok(())
    }

    /// Writes the batch to the log and carries it out.
    pub fn flush(&mut self) -> Result<()> {
        self.overlay.clear();
        self.moved.clear();
        self.styled.clear();
        let pending = std::mem::take(&mut self.pending);
        if pending.is_empty() {
            return Ok(());
        }
        let logged = self.fault.at("write the log").and_then(|()| {
            self.log.push(&Entry::Batch)?;
            pending.iter().try_for_each(|p| self.log.push(&Entry::Op(p.op.clone())))?;
            self.log.sync()
        });
        logged.map_err(|e| Error::sys("write the intent log", e))?;
        for p in pending {
            let (verb, place) = described(&p.op);
            let place = place.clone();
            self.fault.at(verb).map_err(|e| failed_at(verb, &place, e))?;
            self.done.push(p.op.clone());
            self.perform(p).map_err(|e| failed_at(verb, &place, e))?;
            (self.tick)(&place.path);
        }
        Ok(())
    }

    fn perform(&mut self, p: Pending<'_>) -> Sys<()> {
        match &p.op {
            Op::Mkdir { at } => {
                let (dir, name) = self.spaces.parent(at)?;
                file::mkdirat(dir.as_fd(), name, 0o700)?;
            }
            Op::Rmdir { at, .. } => {
                let (dir, name) = self.spaces.parent(at)?;
                file::rmdirat(dir.as_fd(), name)?;
            }
            Op::Move { from, to, id, .. } => return self.move_it(from, to, *id, p.expected.as_ref()),
            Op::Swap { one, other, .. } => return self.swap_them(one, other, p.expected.as_ref(), &p.op),
            Op::Copied { from, to } => return copy::tree(&self.spaces, from, to),
            Op::Bytes { at, .. } => {
                // Checked once more at the last moment: what is written in place cannot be looked at afterwards.
                let now = self.spaces.stat(at)?.ok_or(Errno::ESTALE)?;
                if let Err(e) = expect(&now, p.expected.as_ref()) {
                    self.done.pop();
                    return Err(e);
                }
            }
            Op::Make { .. } | Op::Attrs { .. } | Op::Times { .. } | Op::Unswapped { .. } => {}
        }
        p.action.map_or(Ok(()), |action| action(&self.spaces))
    }

    fn move_it(&mut self, from: &Place, to: &Place, id: Id, expected: Option<&Attr>) -> Sys<()> {
        match self.spaces.rename_new(from, to) {
            Ok(()) => {}
            // Same device, and yet not to be renamed: another mount, or a directory that we may not write to.
            Err(Errno::EXDEV | Errno::EACCES | Errno::EPERM) if to.space == Space::Kept => {
                let op = Op::Copied { from: from.clone(), to: to.clone() };
                self.log_now(op)?;
                return copy::tree(&self.spaces, from, to);
            }
            Err(e) => return Err(e),
        }
        let now = self.spaces.stat(to)?;
        let same = now.is_some_and(|now| Id::of(&now) == id && expect(&now, expected).is_ok());
        if !same {
            // Somebody put another object there since the batch was written: it goes back at once.
            self.spaces.rename_new(to, from)?;
            return Err(Errno::ESTALE);
        }
        Ok(())
    }

    fn swap_them(&mut self, one: &Place, other: &Place, expected: Option<&Attr>, op: &Op) -> Sys<()> {
        match self.spaces.rename(one, other, libc::RENAME_EXCHANGE) {
            Ok(()) => {}
            Err(Errno::EINVAL | Errno::ENOSYS | Errno::EOPNOTSUPP) => {
                return self.swap_by_moves(one, other, op);
            }
            Err(e) => return Err(e),
        }
        let Op::Swap { one_id, .. } = op else { return Err(Errno::EINVAL) };
        let now = self.spaces.stat(other)?;
        let same = now.is_some_and(|now| Id::of(&now) == *one_id && expect(&now, expected).is_ok());
        if !same {
            self.spaces.rename(one, other, libc::RENAME_EXCHANGE)?;
            return Err(Errno::ESTALE);
        }
        Ok(())
    }

    /// For file systems that cannot exchange.
    fn swap_by_moves(&mut self, one: &Place, other: &Place, op: &Op) -> Sys<()> {
        let Op::Swap { one_id, other_id, .. } = op else { return Err(Errno::EINVAL) };
        let name = self.temp_name();
        let parent = other.path.parent().ok_or(Errno::EINVAL)?;
        let aside = Place { space: other.space, path: parent.join(&name) };
        self.log_now(Op::Unswapped { one: one.clone() })?;
        for (from, to, id) in [(one, &aside, one_id), (other, one, other_id), (&aside, other, one_id)] {
            self.log_now(Op::Move { from: from.clone(), to: to.clone(), id: *id, was: None })?;
            self.spaces.rename_new(from, to)?;
        }
        Ok(())
    }

    fn log_now(&mut self, op: Op) -> Sys<()> {
        self.log.push(&Entry::Op(op.clone()))?;
        self.log.sync()?;
        self.done.push(op);
        Ok(())
    }
}

/// What an operation is called in messages, and the name it is about.
fn described(op: &Op) -> (&'static str, &Place) {
    match op {
        Op::Make { at, .. } => ("make a temporary file for", at),
        Op::Mkdir { at } => ("make the directory", at),
        Op::Rmdir { at, .. } => ("remove the directory", at),
        Op::Move { from, to, .. } if to.space == Space::Kept => ("keep", from),
        Op::Move { to, .. } => ("move to", to),
        Op::Swap { one, .. } => ("replace", one),
        Op::Attrs { at, .. } => ("set the attributes of", at),
        Op::Bytes { at, .. } => ("write", at),
        Op::Times { at, .. } => ("note the times of", at),
        Op::Copied { from, .. } => ("keep a copy of", from),
        Op::Unswapped { one } => ("replace by renames", one),
    }
}

/// The error of `verb` on a place.
pub(crate) fn failed_at(verb: &str, place: &Place, e: Errno) -> Error {
    let error = Error::on_path(verb, place.path.as_bytes(), e);
    match e {
        Errno::ESTALE | Errno::EEXIST => error
            .hint("the real tree changed while the changes were applied; it was left as it is. Try again"),
        _ => error,
    }
}

/// `ESTALE` unless the object is the one that was compared. Its ctime may differ: a rename changes it.
pub(crate) fn expect(now: &Attr, was: Option<&Attr>) -> Sys<()> {
    let same = match was {
        // A file with several names may have been written through another of them a step ago.
        Some(was) if was.kind == Kind::Dir || was.nlink > 1 => (was.kind, was.ino) == (now.kind, now.ino),
        Some(was) => (was.kind, was.ino, was.size, was.mtime) == (now.kind, now.ino, now.size, now.mtime),
        None => true,
    };
    if same { Ok(()) } else { Err(Errno::ESTALE) }
}

/// Which operations were begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begun {
    /// All of them.
    All,
    /// Those up to some point, as a log is written ahead; and an earlier, interrupted attempt took some back.
    UpTo,
}

/// Operations taken back, batch by batch.
pub(crate) struct Backwards<'s, 'r> {
    spaces: &'s Spaces<'r>,
    /// What may be the only copy of something that could not be put back.
    pub spoiled: BTreeSet<Place>,
    /// What could not be put back.
    pub problems: Vec<Error>,
}

impl<'s, 'r> Backwards<'s, 'r> {
    pub fn new(spaces: &'s Spaces<'r>) -> Self {
        Backwards { spaces, spoiled: BTreeSet::new(), problems: Vec::new() }
    }

    /// Takes operations back, last first; each only as far as it was done.
    pub fn take(&mut self, ops: &[Op], begun: Begun, fault: &mut dyn Fault) {
        // Whether an operation was found that was done: then all before it were.
        let mut reached = begun == Begun::All;
        for op in ops.iter().rev() {
            if let Op::Make { at, .. } = op
                && self.spoiled.contains(at)
            {
                continue;
            }
            let e = match fault.at("take back").and_then(|()| inverse(self.spaces, op)) {
                Ok(was_done) => {
                    reached |= was_done;
                    continue;
                }
                Err(e) => e,
            };
            match op {
                // One of a chain of renames that had not come to it: its object is not even where it was to start from.
                Op::Move { .. } if e == Errno::ESTALE && !reached => continue,
                Op::Move { from, to, .. } => self.spoiled.extend([from.clone(), to.clone()]),
                // It may hold the only copy of what was there.
                Op::Swap { other, .. } => self.spoiled.extend([other.clone()]),
                _ => {}
            }
            let (_, place) = described(op);
            self.problems.push(Error::on_path("put back", place.path.as_bytes(), e));
        }
    }
}

/// Takes one operation back. True when it is certain that it had been done.
fn inverse(spaces: &Spaces<'_>, op: &Op) -> Sys<bool> {
    let id_at = |place: &Place| -> Sys<Option<Id>> { Ok(spaces.stat(place)?.map(|a| Id::of(&a))) };
    match op {
        Op::Make { at, tree } => remove(spaces, at, *tree)?,
        Op::Mkdir { at } => {
            let (dir, name) = match spaces.parent(at) {
                Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => return Ok(false),
                other => other?,
            };
            match file::rmdirat(dir.as_fd(), name) {
                // Not made yet: nothing, or what is to be set aside first, is there.
                Ok(()) | Err(Errno::ENOENT | Errno::ENOTDIR) => {}
                Err(e) => return Err(e),
            }
        }
        Op::Rmdir { at, saved } => {
            if spaces.stat(at)?.is_none() {
                let (dir, name) = spaces.parent(at)?;
                file::mkdirat(dir.as_fd(), name, 0o700)?;
            }
            restore(spaces, at, saved)?;
        }
        Op::Move { from, to, id, .. } => {
            if id_at(to)? == Some(*id) {
                spaces.rename_new(to, from)?;
                return Ok(true);
            }
            if id_at(from)? != Some(*id) {
                return Err(Errno::ESTALE);
            }
        }
        Op::Swap { one, other, one_id, other_id, .. } => match (id_at(one)?, id_at(other)?) {
            // What was to come to `one` is still where it was made.
            (_, Some(b)) if b == *other_id => {}
            // And here it had not even come to where it was to start from.
            (Some(a), _) if a == *one_id => {}
            (Some(a), Some(b)) if (a, b) == (*other_id, *one_id) => {
                spaces.rename(one, other, libc::RENAME_EXCHANGE)?;
                return Ok(true);
            }
            _ => return Err(Errno::ESTALE),
        },
        Op::Attrs { at, saved } => restore(spaces, at, saved)?,
        Op::Bytes { at, save, saved } => {
            let object = spaces.find(at)?.filter(|o| Id::of(&o.attr) == Id::of(&saved.attr));
            let object = object.ok_or(Errno::ESTALE)?;
            if object.attr.ctime != saved.attr.ctime {
                copy::bytes_back(spaces, &object, save)?;
            }
            restore(spaces, at, saved)?;
        }
        // Another inode where the directory was removed and has just been made again.
        Op::Times { at, atime, mtime } => match spaces.find(at)? {
            Some(object) if object.attr.kind == Kind::Dir => attrs::set_both_times(&object, *atime, *mtime)?,
            _ => return Err(Errno::ESTALE),
        },
        // What was copied is still there; the copy goes with the directory of the transaction.
        Op::Copied { .. } | Op::Unswapped { .. } => {}
    }
    Ok(false)
}

/// Removes a temporary object that may not be there.
pub(crate) fn remove(spaces: &Spaces<'_>, at: &Place, tree: bool) -> Sys<()> {
    if spaces.stat(at)?.is_none() {
        return Ok(());
    }
    if tree {
        return copy::remove_all(spaces.top(at.space)?, &at.path);
    }
    let (dir, name) = spaces.parent(at)?;
    file::unlinkat(dir.as_fd(), name)
}

fn restore(spaces: &Spaces<'_>, at: &Place, saved: &Saved) -> Sys<()> {
    let object = spaces.find(at)?.ok_or(Errno::ESTALE)?;
    // A directory may have been removed and made again.
    let same = if saved.attr.kind == Kind::Dir {
        object.attr.kind == Kind::Dir
    } else {
        Id::of(&object.attr) == Id::of(&saved.attr)
    };
    if !same {
        return Err(Errno::ESTALE);
    }
    attrs::restore(&object, &saved.attr, &saved.xattrs)
}
