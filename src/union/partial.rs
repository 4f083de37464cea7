//! Block-level copy-up: a large file is in the upper at once, and its bytes follow.
//!
//! The first change of a large lower file makes a sparse upper file that borrows what was not written from the lower
//! (`layer::partial` has the form on disk). A thread of our own fills it soon after, so that what anybody else sees is
//! an ordinary file: at the latest before somebody looks at the changes, and at unmount.
//!
//! The lower file cannot change underneath: as long as bytes are borrowed we hold a read lease on it (fcntl(2)). Who
//! wants to write to the real file waits in open(2) until it is filled; where no lease can be had, the file is copied
//! whole. Should a lease be lost all the same (the holder is given 45 s), a byte that was not copied in time is `EIO`,
//! never a byte that the session did not see.
//!
//! # Invariant
//! With the lock of `Partial::state`: a block with an offset below the limit is either wholly in `own` (as far as it
//! is below the limit) and allocated in the upper file, or not at all in `own` and a hole there.

use super::copy_up::lower_path;
use super::node::Node;
use super::ranges::Ranges;
use super::{Union, Writable};
use crate::base::{Attr, Errno, Kind, RelPath, Sys};
use crate::layer::partial::{self, BLOCK, Mark, Source};
use crate::layer::{self, LayerKind};
use crate::sys::{data, file, lease};
use dashmap::DashMap;
use parking_lot::{Mutex, RwLock};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// So many files borrow at a time; further ones are copied whole. Each takes two descriptors.
const MANY: usize = 256;
/// How often leases are looked at.
const TICK: Duration = Duration::from_millis(20);
/// How long filling is not tried again after it failed.
const AGAIN: Duration = Duration::from_secs(5);
/// Room that must be left on the disk, bytes, beyond what is borrowed.
const ROOM: u64 = 16 << 20;

/// Which files are copied block by block, and when the rest of them follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockCopy {
    /// Files from this size on, bytes.
    pub from: u64,
    /// How long after the last write to a file the rest of it is copied; ten times that at most while it is written to.
    pub pause: Duration,
}

impl Default for BlockCopy {
    fn default() -> Self {
        BlockCopy { from: 8 << 20, pause: Duration::from_millis(300) }
    }
}

/// A file that borrows bytes of the lower.
pub(crate) struct Partial {
    upper: OwnedFd,
    source: Source,
    work: Arc<OwnedFd>,
    /// Device and inode of the upper file.
    key: (u64, u64),
    /// Blocks of 512 bytes that the lower file takes, to be shown while ours are fewer.
    blocks: u64,
    /// Where it was when it began, for messages.
    path: RelPath,
    born: Instant,
    touched: Mutex<Instant>,
    failed: Mutex<Option<(Instant, Errno)>>,
    state: RwLock<State>,
}

struct State {
    /// Offsets whose bytes are the upper file's: what was written or filled, and all beyond the limit.
    own: Ranges,
    /// What is on the disk, but for `stale`.
    mark: Mark,
    /// The mark's limit could not be written.
    stale: bool,
    /// It is an ordinary file now.
    done: bool,
}

impl State {
    fn missing(&self) -> u64 {
        if self.done { 0 } else { self.own.missing(self.mark.limit) }
    }
}

impl Partial {
    /// Reads at most `len` bytes at `offset` into `buf`, which holds exactly what was read.
    pub fn read(&self, offset: u64, len: usize, buf: &mut Vec<u8>) -> Sys<()> {
        buf.clear();
        let state = self.state.read();
        let end = offset.saturating_add(len as u64).min(file::stat(self.upper.as_fd())?.size);
        let (mut pos, mut piece) = (offset, Vec::new());
        while pos < end {
            let gap = if state.done { None } else { state.own.gap(pos, end) };
            let (start, stop) = gap.unwrap_or((end, end));
            while pos < start {
                let n = data::pread_into(self.upper.as_fd(), &mut piece, (start - pos) as usize, pos)?;
                if n == 0 {
                    return Ok(());
                }
                buf.extend_from_slice(&piece);
                pos += n as u64;
            }
            if start < stop {
                self.source.read(start, (stop - start) as usize, buf)?;
            }
            pos = stop;
        }
        Ok(())
    }

    /// Writes `bytes` at `offset`; returns how many were written.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Sys<usize> {
        let mut state = self.begin_change()?;
        let end = offset + bytes.len() as u64;
        if !state.done {
            self.own_block(&mut state, offset)?;
            self.own_block(&mut state, end)?;
        }
        let mut done = 0;
        let mut failed = None;
        while done < bytes.len() && failed.is_none() {
            match data::pwrite(self.upper.as_fd(), &bytes[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) => failed = Some(e),
            }
        }
        if !state.done {
            let stop = offset + done as u64;
            state.own.insert(offset, stop);
            // A block that was written in part is ours whole.
            if stop < end {
                self.heal(&mut state, stop, end)?;
            }
        }
        match failed {
            Some(e) if done == 0 => Err(e),
            _ => Ok(done), // a short write; the next one meets the error
        }
    }

    /// Fills the block of `at` when `at` is inside of it and it is borrowed: it is about to be written in part.
    fn own_block(&self, state: &mut State, at: u64) -> Sys<()> {
        if at.is_multiple_of(BLOCK) {
            return Ok(());
        }
        let start = at - at % BLOCK;
        while let Some((from, to)) = state.own.gap(start, (start + BLOCK).min(state.mark.limit)) {
            partial::fill(self.upper.as_fd(), &self.source, from, to)?;
            state.own.insert(from, to);
        }
        Ok(())
    }

    /// After a write that failed in `start..end`: what it allocated there is filled, lest it read as zeros.
    fn heal(&self, state: &mut State, start: u64, end: u64) -> Sys<()> {
        let (start, end) = (start - start % BLOCK, end.next_multiple_of(BLOCK).min(state.mark.limit));
        for (from, to) in partial::own_ranges(self.upper.as_fd(), start, end.max(start))? {
            let mut pos = from;
            while let Some((from, to)) = state.own.gap(pos, to) {
                partial::fill(self.upper.as_fd(), &self.source, from, to)?;
                state.own.insert(from, to);
                pos = to;
            }
        }
        Ok(())
    }

    /// The lock for an operation that changes the file or its times: the mark must not put older ones back.
    fn begin_change(&self) -> Sys<parking_lot::RwLockWriteGuard<'_, State>> {
        let mut state = self.state.write();
        *self.touched.lock() = Instant::now();
        if !state.done && (state.mark.times.is_some() || state.stale) {
            let mark = Mark { times: None, ..state.mark };
            mark.write(self.upper.as_fd())?;
            (state.mark, state.stale) = (mark, false);
        }
        Ok(state)
    }

    /// Does `change` to the file's attributes; no hole is filled meanwhile.
    pub fn change<T>(&self, change: impl FnOnce() -> Sys<T>) -> Sys<T> {
        let _state = self.begin_change()?;
        change()
    }

    /// Sets the length.
    pub fn truncate(&self, size: u64) -> Sys<()> {
        let mut state = self.begin_change()?;
        data::ftruncate(self.upper.as_fd(), size)?;
        if !state.done && size < state.mark.limit {
            // Killed in between, recovery takes the length for the limit; nothing makes the file longer before this.
            state.mark.limit = size;
            state.own.insert(size, u64::MAX);
            state.stale = true;
            state.mark.write(self.upper.as_fd())?;
            state.stale = false;
        }
        Ok(())
    }

    /// `lseek(2)` for `SEEK_DATA` and `SEEK_HOLE`: borrowed bytes are data where the lower has some.
    pub fn lseek(&self, offset: i64, whence: i32) -> Sys<u64> {
        let state = self.state.read();
        let size = file::stat(self.upper.as_fd())?.size;
        let limit = if state.done { 0 } else { state.mark.limit.min(size) };
        let mut pos = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
        if pos >= size {
            return Err(Errno::ENXIO);
        }
        loop {
            let own = self.own_data(pos, size)?;
            let borrowed = match state.own.gap(pos, limit) {
                Some((from, to)) => Some(self.source.next_data(from)?).filter(|at| *at < to),
                None => None,
            };
            let next = own.map(|r| r.0).unwrap_or(size).min(borrowed.unwrap_or(size));
            if whence == libc::SEEK_DATA {
                // A gap without data of the lower may be followed by another one.
                match state.own.gap(pos, limit) {
                    Some((_, to)) if borrowed.is_none() && to < next => pos = to,
                    _ if next >= size => return Err(Errno::ENXIO),
                    _ => return Ok(next),
                }
                continue;
            }
            if next > pos {
                return Ok(pos);
            }
            let own_end = own.filter(|r| r.0 == pos).map(|r| r.1);
            let gap_end = state.own.gap(pos, limit).map(|g| g.1).unwrap_or(size);
            pos = match own_end {
                Some(end) => end,
                None => self.source.next_hole(pos)?.min(gap_end),
            };
            if pos >= size {
                return Ok(size);
            }
        }
    }

    /// The first range at or after `pos` in which the upper file has bytes.
    fn own_data(&self, pos: u64, size: u64) -> Sys<Option<(u64, u64)>> {
        let start = match data::lseek(self.upper.as_fd(), pos as i64, libc::SEEK_DATA) {
            Err(Errno::ENXIO) => return Ok(None),
            other => other?,
        };
        let end = data::lseek(self.upper.as_fd(), start as i64, libc::SEEK_HOLE)?;
        Ok(Some((start, end.min(size))))
    }

    /// Attributes as programs are to see them, however far the filling is.
    pub fn attr(&self) -> Sys<Attr> {
        let state = self.state.read();
        let mut attr = file::stat(self.upper.as_fd())?;
        if !state.done && state.missing() > 0 {
            attr.blocks = attr.blocks.max(self.blocks.min(attr.size.div_ceil(512)));
        }
        Ok(attr)
    }

    /// Bytes that the file will take beyond what it takes now.
    pub fn outstanding(&self) -> u64 {
        let missing = self.state.read().missing();
        if missing == 0 { 0 } else { missing.next_multiple_of(BLOCK) + BLOCK }
    }

    /// Fills one piece; false when nothing is missing any more.
    fn fill_piece(&self) -> Sys<bool> {
        let mut state = self.state.write();
        if state.done {
            return Ok(false);
        }
        let Some(gap) = state.own.gap(0, state.mark.limit) else { return Ok(false) };
        let Some((start, stop)) = self.source.next_piece(gap)? else {
            state.own.insert(gap.0, gap.1);
            return Ok(true);
        };
        let attr = file::stat(self.upper.as_fd())?;
        let times = (attr.atime, attr.mtime);
        if state.mark.times != Some(times) {
            let mark = Mark { times: Some(times), ..state.mark };
            mark.write(self.upper.as_fd())?;
            (state.mark, state.stale) = (mark, false);
        }
        let filled = partial::fill(self.upper.as_fd(), &self.source, start, stop);
        partial::put_times(self.upper.as_fd(), times)?;
        filled?;
        state.own.insert(gap.0, stop);
        Ok(true)
    }

    /// Makes it an ordinary file, all of which is there.
    fn finish(&self, durable: bool) -> Sys<()> {
        if durable && !self.state.read().done {
            data::fsync(self.upper.as_fd(), false)?;
        }
        let mut state = self.state.write();
        if state.done {
            return Ok(());
        }
        Mark::clear(self.upper.as_fd())?;
        partial::remove_marker(self.work.as_fd(), self.key.1)?;
        state.done = true;
        self.let_go();
        Ok(())
    }

    fn is_unlinked(&self) -> Sys<bool> {
        Ok(file::stat(self.upper.as_fd())?.nlink == 0)
    }

    fn is_wanted_back(&self) -> bool {
        lease::is_breaking(self.source.fd()).unwrap_or(false)
    }

    /// Lets whoever waits for the lower file go on.
    fn let_go(&self) {
        if let Err(e) = lease::release(self.source.fd()) {
            tracing::debug!("the lease was gone already: {e}");
        }
    }

    /// Whether filling it is due.
    fn is_due(&self, pause: Duration) -> bool {
        if self.failed.lock().is_some_and(|(at, _)| at.elapsed() < AGAIN) {
            return false;
        }
        self.touched.lock().elapsed() >= pause || self.born.elapsed() >= pause * 10
    }
}

/// The files of a union that borrow at present.
pub(crate) struct Partials {
    live: DashMap<(u64, u64), Arc<Partial>>,
    /// As many as `live` has, for a look without a lock.
    count: AtomicUsize,
    tune: Mutex<BlockCopy>,
    /// How many look at the changes; meanwhile nothing borrows.
    lookers: RwLock<usize>,
    /// Whether the thread that fills is running.
    filling: Mutex<bool>,
}

impl Partials {
    pub fn new() -> Partials {
        Partials {
            live: DashMap::new(),
            count: AtomicUsize::new(0),
            tune: Mutex::default(),
            lookers: RwLock::new(0),
            filling: Mutex::new(false),
        }
    }

    fn all(&self) -> Vec<Arc<Partial>> {
        self.live.iter().map(|p| p.clone()).collect()
    }

    /// Bytes that all of them will take beyond what they take now.
    pub fn outstanding(&self) -> u64 {
        self.all().iter().map(|p| p.outstanding()).sum()
    }

    fn add(&self, partial: &Arc<Partial>) {
        self.live.insert(partial.key, partial.clone());
        self.count.store(self.live.len(), Ordering::Release);
    }

    fn remove(&self, partial: &Partial) {
        self.live.remove(&partial.key);
        self.count.store(self.live.len(), Ordering::Release);
    }
}

/// A file that could not be made whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfilled {
    /// Where it was in the merged view when its copy began.
    pub path: RelPath,
    /// Why.
    pub why: Errno,
}

impl Union {
    /// Sets which files are copied block by block.
    pub fn tune_block_copy(&self, tune: BlockCopy) {
        *self.partials.tune.lock() = tune;
    }

    /// How many files borrow bytes of the lower at present.
    pub fn borrowing(&self) -> usize {
        self.partials.count.load(Ordering::Acquire)
    }

    /// Makes every upper file whole, and leaves nothing to be removed. To be called when nothing changes the union any more, or after
    /// [`Union::begin_look`].
    pub fn complete(&self) -> Vec<Unfilled> {
        self.sweep();
        let mut unfilled = Vec::new();
        for partial in self.partials.all() {
            let done = match partial.is_unlinked() {
                // Nobody will look at it again once those who have it open are gone.
                Ok(true) => continue,
                Ok(false) => self.fill_up(&partial),
                Err(e) => Err(e),
            };
            if let Err(why) = done {
                unfilled.push(Unfilled { path: partial.path.clone(), why });
            }
        }
        unfilled
    }

    /// Somebody is about to look at the uppers' files: they are made whole, and stay so until [`Union::end_look`].
    pub fn begin_look(&self) -> Vec<Unfilled> {
        *self.partials.lookers.write() += 1;
        self.complete()
    }

    /// Takes one [`Union::begin_look`] back.
    pub fn end_look(&self) {
        let mut lookers = self.partials.lookers.write();
        *lookers = lookers.saturating_sub(1);
    }

    /// The node's upper file, if it borrows.
    pub(crate) fn partial_of(&self, node: &Node) -> Option<Arc<Partial>> {
        if self.borrowing() == 0 || node.kind != Kind::File {
            return None;
        }
        let copied = node.place.read().copied;
        let key = copied.unwrap_or((node.ident.dev, node.ident.ino));
        self.partials.live.get(&key).map(|p| p.clone())
    }

    /// Makes the node's upper file whole, if it borrows.
    pub(crate) fn make_whole(&self, node: &Node) -> Sys<()> {
        self.partial_of(node).map_or(Ok(()), |partial| self.fill_up(&partial))
    }

    /// Does `change` to attributes of the node's upper file while nothing is filled.
    pub(crate) fn change_still<T>(&self, node: &Node, change: impl FnOnce() -> Sys<T>) -> Sys<T> {
        match self.partial_of(node) {
            Some(partial) => partial.change(change),
            None => change(),
        }
    }

    /// After the kernel forgot the node: an unlinked file that borrows has no use any more.
    pub(crate) fn forget_partial(&self, node: &Node) {
        if let Some(partial) = self.partial_of(node)
            && partial.is_unlinked().unwrap_or(false)
        {
            self.abandon(&partial);
        }
    }

    /// Begins a copy of the lower file `from` as the empty file `to`, which borrows all of it; `None` when it is to be
    /// copied whole. `meta` gives it its attributes and adds the mark by the function it is called with.
    pub(crate) fn borrow(
        &self,
        root: &Writable,
        node: &Arc<Node>,
        (from, attr): (OwnedFd, &Attr),
        to: BorrowedFd<'_>,
        meta: impl FnOnce(BorrowedFd<'_>, &dyn Fn(BorrowedFd<'_>) -> Sys<()>) -> Sys<()>,
    ) -> Sys<Result<Arc<Partial>, OwnedFd>> {
        let lookers = self.partials.lookers.read();
        let tune = *self.partials.tune.lock();
        if !root.borrows || *lookers > 0 || attr.size < tune.from || attr.nlink != 1 {
            return Ok(Err(from));
        }
        let Some(path) = self.path_to_borrow(node) else { return Ok(Err(from)) };
        if self.borrowing() >= MANY || !self.has_room(root, attr.size)? || lease::take(from.as_fd()).is_err()
        {
            return Ok(Err(from));
        }
        // Nobody writes to it from here on; up to here somebody may have.
        let now = file::stat(from.as_fd())?;
        if (now.ino, now.size, now.mtime) != (attr.ino, attr.size, attr.mtime) {
            return Err(Errno::ESTALE);
        }
        let mark = Mark { limit: attr.size, times: None };
        data::ftruncate(to, attr.size)?;
        meta(from.as_fd(), &|to| {
            // Recovery finds the lower file by the path that is noted; without it nothing may be borrowed.
            let noted = layer::read_origin(to)?.is_some_and(|origin| !origin.path.is_root());
            if noted { mark.write(to) } else { Err(Errno::ENOSPC) }
        })?;
        let copy = file::stat(to)?;
        partial::make_marker(root.work.as_fd(), copy.ino, &path)?;
        let mut own = Ranges::default();
        own.insert(attr.size, u64::MAX);
        let partial = Arc::new(Partial {
            upper: to.try_clone_to_owned().map_err(Errno::from)?,
            source: Source::new(from, attr),
            work: root.work.clone(),
            key: (copy.dev, copy.ino),
            blocks: attr.blocks,
            path,
            born: Instant::now(),
            touched: Mutex::new(Instant::now()),
            failed: Mutex::new(None),
            state: RwLock::new(State { own, mark, stale: false, done: false }),
        });
        self.partials.add(&partial);
        drop(lookers);
        self.start_filling();
        Ok(Ok(partial))
    }

    /// The path in the upper of a node whose lower file recovery would find again; `None` for any other.
    fn path_to_borrow(&self, node: &Arc<Node>) -> Option<RelPath> {
        /// Fits into an xattr beside the rest.
        const LONG_PATH: usize = 1000;
        let _tree = self.tree.read();
        let layer = node.place.read().layer;
        let plain = self.root(node).ok()?.lowers.get(usize::from(layer))?.kind == LayerKind::Plain;
        let found = lower_path(node)?.as_bytes().len() < LONG_PATH;
        let named = !node.place.read().links.is_empty();
        (plain && found && named).then(|| self.upper_path(node))
    }

    /// Whether the disk can take `size` bytes beside all that is borrowed already.
    fn has_room(&self, root: &Writable, size: u64) -> Sys<bool> {
        let fs = file::statfs(root.work.as_fd())?;
        let free = fs.bavail.saturating_mul(u64::from(fs.frsize));
        Ok(free >= size.saturating_add(self.partials.outstanding()).saturating_add(ROOM))
    }

    /// Lets go of a file whose copy did not come to be, or that is unlinked.
    pub(crate) fn abandon(&self, partial: &Partial) {
        self.partials.remove(partial);
        partial.let_go();
        if let Err(e) = partial::remove_marker(partial.work.as_fd(), partial.key.1) {
            tracing::warn!("a marker could not be removed, the next command does it: {e}");
        }
        self.loosen();
    }

    fn fill_up(&self, partial: &Partial) -> Sys<()> {
        while partial.fill_piece()? {}
        self.finish_partial(partial)
    }

    fn finish_partial(&self, partial: &Partial) -> Sys<()> {
        partial.finish(!self.view.volatile)?;
        self.partials.remove(partial);
        self.loosen();
        Ok(())
    }

    fn start_filling(&self) {
        let mut filling = self.partials.filling.lock();
        if *filling {
            return;
        }
        let union = self.own.clone();
        let spawned = std::thread::Builder::new().name("fill".into()).spawn(move || fill_loop(&union));
        match spawned {
            Ok(_) => *filling = true,
            // They are filled when somebody looks, and at unmount.
            Err(e) => tracing::warn!("no thread to complete copies: {e}"),
        }
    }

    /// Fills a piece of one file that is due; false when none is.
    fn fill_some(&self) -> bool {
        let pause = self.partials.tune.lock().pause;
        let all = self.partials.all();
        let linked = |p: &&Arc<Partial>| !p.is_unlinked().unwrap_or(false);
        let wanted = all.iter().filter(linked).find(|p| p.failed.lock().is_none() && p.is_wanted_back());
        let Some(partial) = wanted.or_else(|| all.iter().filter(linked).find(|p| p.is_due(pause))) else {
            return false;
        };
        let done = match partial.fill_piece() {
            Ok(true) => return true,
            Ok(false) => self.finish_partial(partial),
            Err(e) => Err(e),
        };
        if let Err(e) = done {
            tracing::warn!("the copy of {} cannot be completed: {e}", partial.path);
            *partial.failed.lock() = Some((Instant::now(), e));
            if partial.is_wanted_back() {
                partial.let_go(); // nobody is to wait for what may never be
            }
        }
        true
    }
}

/// Fills what is borrowed until nothing is, or the union is gone.
fn fill_loop(union: &Weak<Union>) {
    loop {
        let Some(union) = union.upgrade() else { return };
        let did = union.fill_some();
        {
            let mut filling = union.partials.filling.lock();
            if union.borrowing() == 0 {
                *filling = false;
                return;
            }
        }
        drop(union);
        if !did {
            std::thread::sleep(TICK);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Name, SetAttr, SetTime, Time};
    use crate::union::{Caller, Config, LayerConfig, NodeId, Range, RootConfig, UpperConfig, View};
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::FileExt;
    use std::path::{Path, PathBuf};

    fn dir(path: &Path) -> OwnedFd {
        file::open_path(path.as_os_str().as_bytes(), libc::O_PATH | libc::O_DIRECTORY).unwrap()
    }

    /// A lower with the file `f`, an upper and a work directory.
    struct Bed {
        tmp: tempfile::TempDir,
        /// Whether the file system has what borrowing takes. Where none here has, the same is tested of whole copies.
        borrows: bool,
    }

    impl Bed {
        /// The file has `bytes`, with holes for whole blocks of zeros.
        fn new(bytes: &[u8]) -> Bed {
            Bed::at_first_of(&[std::env::temp_dir(), "/dev/shm".into()], bytes)
        }

        /// One that is made and thrown away hundreds of times, where waiting for the disk says nothing.
        fn brief(bytes: &[u8]) -> Bed {
            Bed::at_first_of(&["/dev/shm".into(), std::env::temp_dir()], bytes)
        }

        fn at_first_of(places: &[PathBuf], bytes: &[u8]) -> Bed {
            let make = |place: &PathBuf| tempfile::tempdir_in(place).ok();
            let able = |tmp: &tempfile::TempDir| partial::supported(dir(tmp.path()).as_fd());
            let found = places.iter().filter_map(make).find(able);
            let borrows = found.is_some();
            let tmp = found.unwrap_or_else(|| tempfile::tempdir().unwrap());
            for name in ["lower", "upper", "work"] {
                std::fs::create_dir(tmp.path().join(name)).unwrap();
            }
            let bed = Bed { tmp, borrows };
            {
                let file = std::fs::File::create(bed.at("lower/f")).unwrap();
                file.set_len(bytes.len() as u64).unwrap();
                for (i, block) in bytes.chunks(BLOCK as usize).enumerate() {
                    if block.iter().any(|b| *b != 0) {
                        file.write_all_at(block, i as u64 * BLOCK).unwrap();
                    }
                }
            }
            bed.until_nobody_writes();
            if !borrows {
                eprintln!("no file system here has what borrowing takes; testing whole copies");
            }
            bed
        }

        /// A child that another test is just starting may have our descriptor for a moment.
        fn until_nobody_writes(&self) {
            let end = Instant::now() + Duration::from_secs(60);
            let file = std::fs::File::open(self.at("lower/f")).unwrap();
            while self.borrows && lease::take(file.as_fd()) == Err(Errno::EAGAIN) {
                assert!(Instant::now() < end, "somebody keeps writing");
                std::thread::yield_now();
            }
        }

        fn at(&self, path: &str) -> PathBuf {
            self.tmp.path().join(path)
        }

        /// A union whose files borrow for as long as nobody has them filled.
        fn union(&self) -> Arc<Union> {
            let work = dir(&self.at("work"));
            let features = layer::probe(work.as_fd()).unwrap();
            let upper = UpperConfig { dir: dir(&self.at("upper")), work, features, shared: false };
            let root = RootConfig {
                name: Name::new(b"root").unwrap(),
                real_path: b"/lower".to_vec(),
                upper: Some(upper),
                lowers: vec![LayerConfig { dir: dir(&self.at("lower")), kind: LayerKind::Plain }],
            };
            let config = Config {
                roots: vec![root],
                single: true,
                hidden: Vec::new(),
                journal: None,
                multi_user: false,
                view: View { volatile: true, ..View::default() },
            };
            let union = Union::new(config).unwrap();
            union.tune_block_copy(BlockCopy { from: 1, pause: Duration::from_secs(3600) });
            union
        }

        fn recover(&self) -> partial::Recovered {
            let (work, upper, lower) =
                (dir(&self.at("work")), dir(&self.at("upper")), dir(&self.at("lower")));
            let done = partial::recover(work.as_fd(), upper.as_fd(), lower.as_fd()).unwrap();
            assert_eq!(partial::has_incomplete(work.as_fd()), Ok(!done.incomplete.is_empty()));
            done
        }

        fn mark(&self) -> Option<Mark> {
            let fd = file::open_path(self.at("upper/f").as_os_str().as_bytes(), libc::O_PATH).unwrap();
            Mark::read(fd.as_fd()).unwrap()
        }
    }

    fn id(union: &Union) -> NodeId {
        union.lookup(crate::union::ROOT_ID, b"f").unwrap().id
    }

    fn content(union: &Union, id: NodeId) -> Vec<u8> {
        let mut bytes = Vec::new();
        union.read(id, 0, 1 << 24, &mut bytes).unwrap();
        bytes
    }

    fn partial(union: &Union) -> Option<Arc<Partial>> {
        union.partials.all().pop()
    }

    fn set(size: Option<u64>, mtime: Option<Time>) -> SetAttr {
        SetAttr { perm: None, uid: None, gid: None, size, atime: None, mtime: mtime.map(SetTime::At) }
    }

    /// xorshift; enough for picking operations.
    struct Dice(u64);

    impl Dice {
        fn roll(&mut self, sides: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % sides
        }
    }

    /// More than what is copied whole for its text.
    const BLOCKS: u64 = 40;

    fn base() -> Vec<u8> {
        let byte = |i: u64| if (i / BLOCK) % 6 == 4 { 0 } else { (i % 251) as u8 + 1 };
        (0..BLOCKS * BLOCK + 1234).map(byte).collect()
    }

    /// Resizes `plain` as ftruncate(2) does and writes as pwrite(2) does.
    fn write(plain: &mut Vec<u8>, at: usize, bytes: &[u8]) {
        plain.resize(plain.len().max(at + bytes.len()), 0);
        plain[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// One random operation on both; sometimes a piece is filled behind the back, and sometimes all is.
    fn step(dice: &mut Dice, union: &Union, id: NodeId, plain: &mut Vec<u8>) -> String {
        let caller = Caller::default();
        let at = dice.roll((BLOCKS + 2) * BLOCK);
        let at = if dice.roll(3) == 0 { at - at % BLOCK } else { at };
        let len = [1, 100, BLOCK, 3 * BLOCK][dice.roll(4) as usize] + dice.roll(2) * 77;
        let range = Range { offset: at, len };
        match dice.roll(16) {
            0..=5 => {
                let bytes = vec![dice.roll(3) as u8 * 100; len as usize];
                assert_eq!(union.write(&caller, id, at, &bytes), Ok(bytes.len()));
                write(plain, at as usize, &bytes);
                format!("write {at}+{len}")
            }
            6 | 7 => {
                let size = if dice.roll(2) == 0 { at } else { plain.len() as u64 };
                union.setattr(&caller, id, &set(Some(size), None)).unwrap();
                plain.resize(size as usize, 0);
                format!("truncate {size}")
            }
            8 => {
                let mode = [
                    0,
                    libc::FALLOC_FL_KEEP_SIZE,
                    libc::FALLOC_FL_KEEP_SIZE | libc::FALLOC_FL_PUNCH_HOLE,
                    libc::FALLOC_FL_ZERO_RANGE,
                ][dice.roll(4) as usize];
                match union.fallocate(&caller, id, range, mode) {
                    Ok(()) => {
                        let end = (at + len) as usize;
                        if mode & libc::FALLOC_FL_KEEP_SIZE == 0 {
                            plain.resize(plain.len().max(end), 0);
                        }
                        let (from, to) = ((at as usize).min(plain.len()), end.min(plain.len()));
                        if mode & (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE) != 0 {
                            plain[from..to].fill(0);
                        }
                    }
                    Err(e) => assert_eq!(e, Errno::EOPNOTSUPP),
                }
                format!("fallocate {mode} {at}+{len}")
            }
            9 => {
                let time = Time { sec: 1_000_000 + at as i64, nsec: 0 };
                let now = union.setattr(&caller, id, &set(None, Some(time))).unwrap().0;
                assert_eq!(now.mtime, time);
                format!("utimes {}", time.sec)
            }
            10 => {
                // What is shown as a hole is zeros, and the next hole comes after the next data.
                let size = plain.len() as u64;
                let data = union.lseek(id, at as i64, libc::SEEK_DATA).unwrap_or(size);
                if at < size {
                    assert!(plain[at as usize..data as usize].iter().all(|b| *b == 0), "{at}..{data}");
                    let hole = union.lseek(id, at as i64, libc::SEEK_HOLE).unwrap();
                    assert!(if data == at { hole > at } else { hole == at }, "{at}: {data}, {hole}");
                }
                format!("seek {at}")
            }
            _ => {
                let before = union.getattr(id).unwrap().0;
                if let Some(partial) = partial(union) {
                    partial.fill_piece().unwrap();
                }
                let after = union.getattr(id).unwrap().0;
                assert_eq!((after.mtime, after.size), (before.mtime, before.size));
                "fill".into()
            }
        }
    }

    #[test]
    fn it_is_a_plain_file_whatever_is_done_to_it_and_when_the_server_dies() {
        for seed in 1..=40u64 {
            let mut plain = base();
            let bed = Bed::new(&plain);
            let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let mut union = bed.union();
            let mut f = id(&union);
            let mut done = Vec::new();
            for n in 0..25 {
                done.push(step(&mut dice, &union, f, &mut plain));
                if n == 0 && bed.borrows && done[0].starts_with("write") {
                    assert_eq!(union.borrowing(), 1, "seed {seed}");
                }
                assert!(content(&union, f) == plain, "seed {seed}: {done:?}");
                if dice.roll(8) == 0 {
                    let mtime = union.getattr(f).unwrap().0.mtime;
                    drop(union); // the server dies
                    assert_eq!(bed.recover().incomplete, [], "seed {seed}");
                    union = bed.union();
                    f = id(&union);
                    done.push("crash".into());
                    assert!(content(&union, f) == plain, "seed {seed}: {done:?}");
                    assert_eq!(union.getattr(f).unwrap().0.mtime, mtime, "seed {seed}: {done:?}");
                }
            }
            assert_eq!(union.complete(), []);
            assert_eq!(union.borrowing(), 0);
            assert!(content(&union, f) == plain, "seed {seed}: {done:?}");
            if bed.at("upper/f").symlink_metadata().is_ok() {
                assert!(std::fs::read(bed.at("upper/f")).unwrap() == plain, "seed {seed}: {done:?}");
                assert_eq!(bed.mark(), None);
            }
            assert!(std::fs::read(bed.at("lower/f")).unwrap() == base(), "the real file");
            drop(union);
            assert_eq!(bed.recover(), partial::Recovered::default());
        }
    }

    /// An operation of the sweeps, and what it makes of the file.
    type Op = (&'static str, fn(&Union, NodeId) -> Sys<()>, fn(&mut Vec<u8>));

    fn ops() -> Vec<Op> {
        fn put(union: &Union, f: NodeId, at: u64, bytes: &[u8]) -> Sys<()> {
            union.write(&Caller::default(), f, at, bytes).map(drop)
        }
        fn resize(union: &Union, f: NodeId, size: u64) -> Sys<()> {
            union.setattr(&Caller::default(), f, &set(Some(size), None)).map(drop)
        }
        vec![
            ("write", |u, f| put(u, f, 5000, &[7; 9000]), |p| write(p, 5000, &[7; 9000])),
            (
                "append",
                |u, f| put(u, f, BLOCKS * BLOCK + 1234, b"x"),
                |p| {
                    write(p, (BLOCKS * BLOCK + 1234) as usize, b"x");
                },
            ),
            ("cut", |u, f| resize(u, f, 10_000), |p| p.resize(10_000, 0)),
            ("extend", |u, f| resize(u, f, 1 << 20), |p| p.resize(1 << 20, 0)),
            ("empty", |u, f| resize(u, f, 0), |p| p.clear()),
            (
                "touch",
                |u, f| u.setattr(&Caller::default(), f, &set(None, Some(Time::default()))).map(drop),
                |_| {},
            ),
            ("fill", |u, _| partial(u).map_or(Ok(()), |p| p.fill_piece().map(drop)), |_| {}),
            ("complete", |u, _| u.complete().first().map_or(Ok(()), |left| Err(left.why)), |_| {}),
        ]
    }

    /// How far the file is when an operation meets it: untouched, borrowing, filled in part, cut short.
    const STATES: usize = 4;

    fn prepare(union: &Union, f: NodeId, state: usize, plain: &mut Vec<u8>) {
        let mut put = |at: u64| {
            union.write(&Caller::default(), f, at, b"first").unwrap();
            write(plain, at as usize, b"first");
        };
        match state {
            0 => {}
            1 => put(40_000),
            2 => {
                put(40_000);
                put(80_000);
                if let Some(partial) = partial(union) {
                    partial.fill_piece().unwrap();
                }
            }
            _ => {
                put(40_000);
                union.setattr(&Caller::default(), f, &set(Some(60_000), None)).unwrap();
                plain.truncate(60_000);
            }
        }
    }

    /// Each operation in each state with each of its calls refused: what it says is true, nothing is torn, and what is
    /// there is there after a crash as well.
    #[test]
    fn whatever_fails_the_file_is_as_before_or_as_after() {
        use crate::sys::fault;
        let errors = [Errno::EIO, Errno::ENOSPC, Errno::EDQUOT, Errno::EMFILE];
        for ((name, op, model), state) in ops().into_iter().flat_map(|o| (0..STATES).map(move |s| (o, s))) {
            let mut refused = true;
            for n in 0.. {
                if !refused {
                    break;
                }
                for dies in [false, true] {
                    let mut before = base();
                    let bed = Bed::brief(&before);
                    let union = bed.union();
                    let f = id(&union);
                    prepare(&union, f, state, &mut before);
                    let mut after = before.clone();
                    model(&mut after);
                    let (done, seen) = match dies {
                        false => fault::failing(n, errors[(n % 4) as usize], || op(&union, f)),
                        true => fault::stopping(n, || op(&union, f)),
                    };
                    let told =
                        format!("{name} in state {state}, call {n}, dies {dies}: {done:?} {:?}", seen.hit);
                    if !dies {
                        let now = content(&union, f);
                        assert!(now == after || (done.is_err() && now == before), "{told}");
                        before.clone_from(&now);
                        after = now;
                    }
                    drop(union);
                    assert_eq!(bed.recover().incomplete, [], "{told}");
                    let union = bed.union();
                    let now = content(&union, id(&union));
                    assert!(now == after || (done.is_err() && now == before), "after a crash: {told}");
                    assert_eq!(
                        bed.at("upper/f").symlink_metadata().is_ok().then(|| bed.mark()).flatten(),
                        None,
                        "{told}"
                    );
                    refused = seen.hit.is_some();
                    assert!(refused || done == Ok(()), "{told}");
                    if !refused {
                        break;
                    }
                }
            }
        }
    }

    #[test]
    fn a_write_that_died_after_its_truncation_shows_no_byte_of_the_lower_again() {
        let bed = Bed::new(&base());
        if !bed.borrows {
            return; // said above; the form on disk is what is tested
        }
        let union = bed.union();
        union.write(&Caller::default(), id(&union), 0, b"x").unwrap();
        drop(union);
        // As if killed between ftruncate and the note of the limit.
        std::fs::OpenOptions::new().write(true).open(bed.at("upper/f")).unwrap().set_len(6000).unwrap();
        assert_eq!(bed.mark().map(|m| m.limit), Some(base().len() as u64));
        assert_eq!(bed.recover().completed, 1);
        let mut plain = base()[..6000].to_vec();
        plain[0] = b'x';
        assert!(std::fs::read(bed.at("upper/f")).unwrap() == plain);
    }

    #[test]
    fn who_writes_to_the_real_file_waits_until_the_copy_is_whole() {
        let bed = Bed::new(&base());
        let union = bed.union();
        let f = id(&union);
        union.write(&Caller::default(), f, 10, b"x").unwrap();
        assert_eq!(union.borrowing(), usize::from(bed.borrows));
        let path = bed.at("lower/f");
        let writer = std::thread::spawn(move || std::fs::write(path, vec![b'!'; 200_000]));
        writer.join().unwrap().unwrap();
        let mut plain = base();
        plain[10] = b'x';
        assert!(content(&union, f) == plain, "what was copied up does not move");
        assert_eq!(union.complete(), []);
        assert!(std::fs::read(bed.at("upper/f")).unwrap() == plain);
    }

    #[test]
    fn a_reader_of_bytes_that_are_there_does_not_care_for_the_real_file() {
        let bed = Bed::new(&base());
        let union = bed.union();
        let f = id(&union);
        union.write(&Caller::default(), f, 0, &[b'x'; BLOCK as usize]).unwrap();
        let Some(partial) = partial(&union) else {
            return; // said above
        };
        // As after 45 s.
        partial.let_go();
        std::fs::write(bed.at("lower/f"), "other").unwrap();
        let mut bytes = Vec::new();
        partial.read(0, BLOCK as usize, &mut bytes).unwrap();
        assert!(bytes == [b'x'; BLOCK as usize]);
        match partial.read(0, BLOCK as usize + 1, &mut bytes) {
            Err(e) => assert_eq!(e, Errno::EIO),
            // The thread that copies was faster than the other writer.
            Ok(()) => assert!(bytes == [&[b'x'; BLOCK as usize], &base()[BLOCK as usize..][..1]].concat()),
        }
    }

    #[test]
    fn a_reader_who_comes_as_the_copy_is_done_does_not_care_for_the_real_file() {
        let bed = Bed::new(&base());
        let union = bed.union();
        let f = id(&union);
        union.write(&Caller::default(), f, 10, b"x").unwrap();
        let Some(partial) = partial(&union) else {
            return; // said above
        };
        assert_eq!(union.complete(), []);
        std::fs::write(bed.at("lower/f"), "other").unwrap();
        let (mut bytes, mut plain) = (Vec::new(), base());
        plain[10] = b'x';
        partial.read(0, 1 << 24, &mut bytes).unwrap();
        assert!(bytes == plain);
    }

    #[test]
    fn a_real_file_that_changed_while_nobody_held_it_is_told_and_never_mixed_in() {
        let bed = Bed::new(&base());
        if !bed.borrows {
            return; // said above
        }
        let union = bed.union();
        union.write(&Caller::default(), id(&union), 0, b"x").unwrap();
        drop(union);
        let real = std::fs::OpenOptions::new().write(true).open(bed.at("lower/f")).unwrap();
        real.write_all_at(b"other", 50_000).unwrap();
        real.set_modified(std::time::SystemTime::now() + Duration::from_secs(5)).unwrap();
        let path = RelPath::new(b"f").unwrap();
        for _ in 0..2 {
            let told = bed.recover().incomplete;
            assert_eq!(told, [partial::Incomplete { path: path.clone(), why: Errno::ESTALE }]);
        }
        assert!(bed.mark().is_some());
        // Discarded: then nothing is left of it.
        std::fs::remove_file(bed.at("upper/f")).unwrap();
        assert_eq!(bed.recover(), partial::Recovered::default());
    }

    #[test]
    fn a_file_that_was_renamed_is_found_after_a_crash() {
        let bed = Bed::new(&base());
        std::fs::create_dir(bed.at("lower/d")).unwrap();
        let union = bed.union();
        let root = crate::union::ROOT_ID;
        union.write(&Caller::default(), id(&union), 0, b"x").unwrap();
        let d = union.lookup(root, b"d").unwrap().id;
        union.rename(&Caller::default(), root, b"f", d, b"g", 0).unwrap();
        drop(union);
        assert_eq!(bed.recover().completed, usize::from(bed.borrows));
        let mut plain = base();
        plain[0] = b'x';
        assert!(std::fs::read(bed.at("upper/d/g")).unwrap() == plain);
    }

    #[test]
    fn what_is_unlinked_while_it_borrows_goes_on_for_those_who_have_it_open() {
        let bed = Bed::new(&base());
        let union = bed.union();
        let f = id(&union);
        union.write(&Caller::default(), f, 0, b"x").unwrap();
        union.unlink(&Caller::default(), crate::union::ROOT_ID, b"f").unwrap();
        assert_eq!(union.complete(), []);
        let mut plain = base();
        plain[0] = b'x';
        assert!(content(&union, f) == plain);
        union.write(&Caller::default(), f, 9000, b"y").unwrap();
        plain[9000] = b'y';
        assert!(content(&union, f) == plain);
        union.forget(f, 1);
        assert_eq!(union.borrowing(), 0);
        drop(union);
        assert_eq!(bed.recover(), partial::Recovered::default());
    }

    #[test]
    fn while_somebody_looks_everything_is_whole() {
        let bed = Bed::new(&base());
        std::fs::write(bed.at("lower/g"), base()).unwrap();
        let union = bed.union();
        let (f, g) = (id(&union), union.lookup(crate::union::ROOT_ID, b"g").unwrap().id);
        union.write(&Caller::default(), f, 0, b"x").unwrap();
        assert_eq!(union.begin_look(), []);
        assert_eq!(bed.mark(), None);
        union.write(&Caller::default(), g, 0, b"x").unwrap();
        assert_eq!(union.borrowing(), 0);
        assert_eq!(std::fs::read(bed.at("upper/g")).unwrap()[1..], base()[1..]);
        union.end_look();
    }

    #[test]
    fn the_rest_follows_by_itself() {
        let bed = Bed::new(&base());
        let union = bed.union();
        union.tune_block_copy(BlockCopy { from: 1, pause: Duration::from_millis(1) });
        union.write(&Caller::default(), id(&union), 0, b"x").unwrap();
        let end = Instant::now() + Duration::from_secs(60);
        while union.borrowing() > 0 {
            assert!(Instant::now() < end);
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(bed.mark(), None);
        assert_eq!(std::fs::read(bed.at("upper/f")).unwrap()[1..], base()[1..]);
    }
}
