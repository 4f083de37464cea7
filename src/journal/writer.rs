//! Appending: frames are stored into a shared mapping of preallocated file space.
//!
//! What is stored there survives the death of this process without a system call per entry. The space is allocated
//! before it is mapped, so a full disk is `ENOSPC` from an append and never a SIGBUS. Where the file system cannot
//! allocate or map, frames are written with `pwrite(2)`.
//!
//! Lock order: `processes` before `tail`; the pack's lock is taken alone.

use super::base_store::Store;
use super::frame::{self, HEADER, MAX_PAYLOAD, PREFIX};
use super::process::Processes;
use super::reader::{LOG, Reader};
use super::record::{Command, Entry, Record};
use crate::base::{Errno, Error, Result, Sys};
use crate::sys::{data, map::SharedMap};
use parking_lot::Mutex;
use std::fs::{File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// The file grows by this many bytes at a time.
const STEP: u64 = 1 << 20;

/// A window begins at a multiple of this: no machine has larger pages.
const ALIGN: u64 = 64 << 10;

/// How the journal was found when it was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening {
    /// The previous writer closed in good order and nothing was cut, or the journal is new: upper and journal agree.
    pub clean: bool,
    /// The previous writer ran in this boot of the machine, so nothing it stored was lost with a power failure. True
    /// for a new journal.
    pub same_boot: bool,
    /// Bytes of unfinished frames that were cut from the end.
    pub cut_bytes: u64,
}

/// The journal of a session, open for appending. All methods may be called from any thread.
pub struct Journal {
    file: File,
    tail: Mutex<Tail>,
    processes: Mutex<Processes>,
    store: Store,
}

/// The end of the log, where the next entry goes.
struct Tail {
    window: Option<Window>,
    /// Whether space may be preallocated and mapped; not tried again once it failed.
    mappable: bool,
    /// Where the next frame begins, and where the allocated space ends; bytes from the start of the file.
    pos: u64,
    allocated: u64,
    seq: u64,
    buf: Vec<u8>,
    closed: bool,
}

struct Window {
    map: SharedMap,
    start: u64,
}

impl Journal {
    /// Opens the journal in the directory `dir` for appending, and makes it when there is none. An unfinished frame at the
    /// end is cut. The caller holds the session's lock: there is one writer.
    ///
    /// # Errors
    /// When the log cannot be opened or written, is of an unknown version, or is damaged before its end.
    pub fn open(dir: &Path) -> Result<(Journal, Opening)> {
        Self::open_with(dir, true)
    }

    /// [`Journal::open`]; with `mappable` off, frames are written with `pwrite(2)` only.
    fn open_with(dir: &Path, mappable: bool) -> Result<(Journal, Opening)> {
        let path = dir.join(LOG);
        let fail = |what: &str, e: Errno| Error::on_path(what, path.as_os_str().as_bytes(), e);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(|e| fail("open", e.into()))?;
        let copy = file.try_clone().map_err(|e| fail("open", e.into()))?;
        let mut reader = Reader::over(copy, path.clone(), 0)?;
        let mut past = Past::default();
        for entry in &mut reader {
            past.see(&entry?);
        }
        let end = reader.offset();
        let boot = boot_id().map_err(|e| Error::on_path("read", BOOT_ID, e))?;
        let cut_bytes = match reader.torn() {
            0 => reader.tail_bytes(end).map_err(|e| fail("read", e))?,
            torn => torn,
        };
        let opening = Opening {
            // Bytes behind the last entry may be all that a power failure left of later ones.
            clean: past.closed.unwrap_or(true) && cut_bytes == 0,
            same_boot: past.boot.is_none_or(|b| b == boot),
            cut_bytes,
        };
        // Also what lies behind a zero length goes: it must not come back to life when the log grows over it.
        data::ftruncate(file.as_fd(), end).map_err(|e| fail("cut", e))?;
        data::pwrite_all(file.as_fd(), &HEADER, 0).map_err(|e| fail("write", e))?;
        let journal = Journal {
            tail: Mutex::new(Tail {
                window: None,
                mappable,
                pos: end,
                allocated: end,
                seq: past.seq,
                buf: Vec::with_capacity(512),
                closed: false,
            }),
            processes: Mutex::new(Processes::new(past.process, past.command)),
            store: Store::new(dir),
            file,
        };
        // On the disk before anything else, lest a power failure leave a log that looks closed in good order.
        journal
            .append_entry(&Entry::Opened { boot })
            .and_then(|()| data::fsync(journal.file.as_fd(), false))
            .map_err(|e| fail("write", e))?;
        Ok((journal, opening))
    }

    /// Appends `record`; returns its sequence number. It survives the death of this process from the moment this
    /// returns, and a power failure after the next [`Journal::sync`].
    ///
    /// # Errors
    /// `ENOSPC` or `EDQUOT` on a full disk, `ENAMETOOLONG` for paths of 16 MiB, `EBADF` after closing; nothing is
    /// appended then.
    pub fn append(&self, record: &Record) -> Sys<u64> {
        let mut tail = self.tail.lock();
        let seq = tail.seq + 1;
        let mut buf = std::mem::take(&mut tail.buf);
        frame::encode_record(&mut buf, seq, now(), record);
        let done = tail.put(&self.file, &buf);
        tail.buf = buf;
        done?;
        tail.seq = seq;
        Ok(seq)
    }

    pub(super) fn append_entry(&self, entry: &Entry) -> Sys<()> {
        let mut buf = Vec::new();
        frame::encode(&mut buf, entry);
        self.tail.lock().put(&self.file, &buf)
    }

    /// The sequence number of the last record; 0 when there is none.
    pub fn last_seq(&self) -> u64 {
        self.tail.lock().seq
    }

    /// The id within the journal of the process (or of the thread's process) `pid`; 0 for pid 0, and when the journal cannot
    /// take an entry. A process that ran another program since gets a new id.
    pub fn process(&self, pid: u32) -> u32 {
        if pid == 0 {
            return 0;
        }
        if let Some(id) = self.processes.lock().fresh(pid) {
            return id;
        }
        // /proc is read outside the lock, so that others find their processes meanwhile.
        let seen = super::process::look(pid);
        let mut processes = self.processes.lock();
        let (id, new) = processes.intern(pid, seen);
        let Some(new) = new else { return id };
        match self.append_entry(&Entry::Process(new)) {
            Ok(()) => id,
            Err(e) => {
                tracing::warn!("cannot note process {pid} in the journal: {e}");
                processes.forget();
                0
            }
        }
    }

    /// Notes that the command `argv` was started as process `pid`: processes that descend from it belong to it. Returns
    /// the command's id.
    ///
    /// # Errors
    /// As [`Journal::append`].
    pub fn begin_command(&self, pid: u32, argv: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Sys<u32> {
        let argv = argv.into_iter().map(|word| word.as_ref().to_vec()).collect();
        let seen = super::process::look(pid);
        let mut processes = self.processes.lock();
        let id = processes.next_command();
        self.append_entry(&Entry::Command(Command { id, pid, argv }))?;
        processes.begin(id, pid, seen.start());
        Ok(id)
    }

    /// Stores the base content `bytes` under its `hash`, if it is not stored yet; [`super::get_base`] gives it back.
    ///
    /// # Errors
    /// As `pwrite(2)`; `EFBIG` over [`super::BASE_MAX`] bytes.
    pub fn put_base(&self, bytes: &[u8], hash: [u8; 32]) -> Sys<()> {
        self.store.put(bytes, hash)
    }

    /// Waits until all that was appended is on the disk. Appending goes on meanwhile.
    ///
    /// # Errors
    /// As `fdatasync(2)`.
    pub fn sync(&self) -> Sys<()> {
        self.store.sync()?;
        // This writes back pages that were changed through a mapping as well (fsync(2), mmap(2) on MAP_SHARED).
        data::fsync(self.file.as_fd(), true)
    }

    /// Notes that upper and journal agree, gives the preallocated space back and waits for the disk.
    ///
    /// # Errors
    /// As [`Journal::append`] and `fsync(2)`.
    pub fn close(self) -> Sys<()> {
        self.finish()
    }

    /// [`Journal::close`] for a journal that others hold too: their later appends fail with `EBADF`.
    ///
    /// # Errors
    /// As [`Journal::close`]; `EBADF` when it is closed already.
    pub fn finish(&self) -> Sys<()> {
        self.store.sync()?;
        let mut tail = self.tail.lock();
        let mut buf = Vec::new();
        frame::encode(&mut buf, &Entry::Closed);
        tail.put(&self.file, &buf)?;
        tail.closed = true;
        tail.window = None;
        data::ftruncate(self.file.as_fd(), tail.pos)?;
        data::fsync(self.file.as_fd(), false)
    }
}

impl Tail {
    /// Stores one frame, all of it or nothing.
    fn put(&mut self, file: &File, frame: &[u8]) -> Sys<()> {
        if self.closed {
            return Err(Errno::EBADF);
        }
        if frame.len() > MAX_PAYLOAD {
            return Err(Errno::ENAMETOOLONG);
        }
        if self.mappable && self.pos + frame.len() as u64 > self.allocated {
            self.grow(file, frame.len() as u64)?;
        }
        match &mut self.window {
            Some(window) => window.store(self.pos, frame)?,
            None => {
                if let Err(e) = data::pwrite_all(file.as_fd(), frame, self.pos) {
                    // What arrived of it would end the log for readers; the next frame overwrites it in any case.
                    data::ftruncate(file.as_fd(), self.pos)?;
                    return Err(e);
                }
            }
        }
        self.pos += frame.len() as u64;
        Ok(())
    }

    /// Allocates and maps room for `need` more bytes, or settles for `pwrite`.
    fn grow(&mut self, file: &File, need: u64) -> Sys<()> {
        let end = (self.pos + need).next_multiple_of(STEP);
        loop {
            match data::fallocate(file.as_fd(), 0, self.allocated, end - self.allocated) {
                Ok(()) => break,
                Err(Errno::EINTR) => continue,
                Err(e @ (Errno::ENOSPC | Errno::EDQUOT | Errno::EFBIG | Errno::EIO)) => return Err(e),
                Err(e) => {
                    self.unmappable("preallocate", e);
                    return Ok(());
                }
            }
        }
        let start = self.pos - self.pos % ALIGN;
        match SharedMap::new(file.as_fd(), start, (end - start) as usize) {
            Ok(map) => {
                self.window = Some(Window { map, start });
                self.allocated = end;
            }
            Err(e) => self.unmappable("map", e),
        }
        Ok(())
    }

    fn unmappable(&mut self, what: &str, e: Errno) {
        tracing::debug!("cannot {what} the journal, writing instead: {e}");
        self.mappable = false;
        self.window = None;
    }
}

impl Window {
    /// Stores a frame at `pos`, its length last: until then a reader sees the end of the log there.
    fn store(&mut self, pos: u64, frame: &[u8]) -> Sys<()> {
        let at = (pos - self.start) as usize;
        let len = frame.first_chunk::<4>().map(|b| u32::from_le_bytes(*b)).ok_or(Errno::EINVAL)?;
        let room = self.map.bytes().get_mut(at + 4..at + frame.len()).ok_or(Errno::EINVAL)?;
        room.copy_from_slice(&frame[4..]);
        debug_assert!(frame.len() >= PREFIX);
        self.map.publish_u32(at, len)
    }
}

/// What the entries of an existing log leave to know.
#[derive(Default)]
struct Past {
    seq: u64,
    process: u32,
    command: u32,
    boot: Option<[u8; 16]>,
    /// Whether the last entry is `Closed`; `None` without entries.
    closed: Option<bool>,
}

impl Past {
    fn see(&mut self, entry: &Entry) {
        self.closed = Some(matches!(entry, Entry::Closed));
        match entry {
            Entry::Record { seq, .. } => self.seq = *seq,
            Entry::Process(p) => self.process = self.process.max(p.id),
            Entry::Command(c) => self.command = self.command.max(c.id),
            Entry::Opened { boot } => self.boot = Some(*boot),
            Entry::Closed => {}
        }
    }
}

/// Nanoseconds since the epoch.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64)
}

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

fn boot_id() -> Sys<[u8; 16]> {
    let text = std::fs::read(BOOT_ID)?;
    let digits: Vec<u8> = text.iter().filter_map(|&b| (b as char).to_digit(16)).map(|d| d as u8).collect();
    let mut id = [0u8; 16];
    if digits.len() != 2 * id.len() {
        return Err(Errno::EINVAL);
    }
    for (byte, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = pair[0] << 4 | pair[1];
    }
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Kind, RelPath};
    use crate::journal::{Op, read};

    fn record(name: &str) -> Record {
        Record {
            op: Op::Create,
            root: 0,
            path: RelPath::new(name.as_bytes()).unwrap(),
            path2: None,
            kind: Kind::File,
            base: None,
            base2: None,
            proc: 0,
        }
    }

    fn seqs(dir: &Path) -> Vec<u64> {
        read(dir)
            .unwrap()
            .into_iter()
            .filter_map(|e| match e {
                Entry::Record { seq, .. } => Some(seq),
                _ => None,
            })
            .collect()
    }

    #[test]
    fn both_ways_of_writing_cross_the_step_and_continue_after_reopening() {
        for mappable in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let long = "n".repeat(200);
            let (journal, opening) = Journal::open_with(dir.path(), mappable).unwrap();
            assert_eq!(opening, Opening { clean: true, same_boot: true, cut_bytes: 0 });
            for seq in 1..=9000 {
                assert_eq!(journal.append(&record(&long)), Ok(seq));
            }
            assert_eq!(seqs(dir.path()).len(), 9000, "readable while open");
            journal.close().unwrap();
            let (journal, opening) = Journal::open_with(dir.path(), !mappable).unwrap();
            assert_eq!(opening, Opening { clean: true, same_boot: true, cut_bytes: 0 });
            assert_eq!(journal.append(&record("x")), Ok(9001));
            drop(journal);
            let (journal, opening) = Journal::open_with(dir.path(), mappable).unwrap();
            assert_eq!(opening, Opening { clean: false, same_boot: true, cut_bytes: 0 });
            assert_eq!(journal.append(&record("x")), Ok(9002));
            journal.close().unwrap();
            assert_eq!(seqs(dir.path()), (1..=9002).collect::<Vec<_>>());
            let size = std::fs::metadata(dir.path().join(LOG)).unwrap().len();
            assert_eq!(size, read(dir.path()).unwrap().offset, "no preallocated space left behind");
        }
    }

    #[test]
    fn a_record_longer_than_the_step_fits_and_one_beyond_a_frame_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (journal, _) = Journal::open(dir.path()).unwrap();
        let deep = |n: usize| vec!["d".repeat(255); n].join("/");
        assert_eq!(journal.append(&record(&deep(12_000))), Ok(1));
        assert_eq!(journal.append(&record(&deep(66_000))), Err(Errno::ENAMETOOLONG));
        assert_eq!(journal.append(&record("x")), Ok(2));
        assert_eq!(seqs(dir.path()), [1, 2]);
    }

    #[test]
    fn threads_append_without_losing_or_mixing() {
        let dir = tempfile::tempdir().unwrap();
        let (journal, _) = Journal::open(dir.path()).unwrap();
        let journal = std::sync::Arc::new(journal);
        std::thread::scope(|s| {
            for t in 0..4 {
                let journal = journal.clone();
                s.spawn(move || {
                    for i in 0..2000 {
                        journal.append(&record(&format!("t{t}/{i}"))).unwrap();
                    }
                });
            }
        });
        assert_eq!(journal.last_seq(), 8000);
        journal.finish().unwrap();
        assert_eq!(journal.append(&record("late")), Err(Errno::EBADF));
        assert_eq!(seqs(dir.path()), (1..=8000).collect::<Vec<_>>());
    }
}
