//! Reading the log, whole or from where one stopped, also while a server is writing it.

use super::frame::{self, HEADER, MAX_PAYLOAD, PREFIX};
use super::record::Entry;
use crate::base::{Errno, Error, Result, Sys};
use crate::sys::data;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The name of the log in a journal's directory.
pub(super) const LOG: &str = "log";

/// How much is read at once, bytes.
const CHUNK: usize = 256 << 10;

/// What a search for whole frames behind a damaged one may look at, bytes.
const SEARCH: usize = 64 << 20;

/// All whole entries from some offset on.
#[derive(Debug, Default)]
pub struct Log {
    /// The entries in order.
    pub entries: Vec<Entry>,
    /// Bytes of an unfinished frame behind the last whole one (trailing zeros not counted).
    pub torn: u64,
    /// Where the next entry will begin: the offset to give to [`Log::from`].
    pub offset: u64,
}

impl Log {
    /// The whole entries of the log in `dir` from byte `offset` on: 0, or the `offset` of an earlier `Log`.
    ///
    /// # Errors
    /// As [`Reader`]; a failure too when the log has become shorter than `offset`, so is not the one read before.
    pub fn from(dir: &Path, offset: u64) -> Result<Log> {
        let mut reader = Reader::open_at(dir, offset)?;
        let mut entries = Vec::new();
        for entry in &mut reader {
            entries.push(entry?);
        }
        Ok(Log { entries, torn: reader.torn(), offset: reader.offset() })
    }
}

impl IntoIterator for Log {
    type Item = Entry;
    type IntoIter = std::vec::IntoIter<Entry>;

    fn into_iter(self) -> Self::IntoIter {
        self.entries.into_iter()
    }
}

/// All whole entries of the log in `dir`. [`Reader`] gives them one by one, without holding all of them.
///
/// # Errors
/// As [`Reader`].
pub fn read(dir: &Path) -> Result<Log> {
    Log::from(dir, 0)
}

/// The whole entries of a log, one by one. It ends at the first zero length or at an unfinished last frame.
///
/// # Errors
/// An item is an error when reading fails, or when the log is damaged before its end: the checksum of a frame is
/// wrong and whole frames follow it, a frame holds no known entry, or the sequence numbers have a gap.
pub struct Reader {
    file: File,
    path: PathBuf,
    /// Bytes of the file from `at` on, of which the first `used` are done with.
    buf: Vec<u8>,
    used: usize,
    at: u64,
    seq: Option<u64>,
    torn: u64,
    done: bool,
}

impl Reader {
    /// Opens the log in `dir`.
    ///
    /// # Errors
    /// When it cannot be opened or is not a journal of a version we know.
    pub fn open(dir: &Path) -> Result<Reader> {
        Reader::open_at(dir, 0)
    }

    /// Opens the log in `dir` to read on from `offset`, which [`Reader::offset`] gave before; 0 is the start.
    ///
    /// # Errors
    /// As [`Reader::open`], and when the log is shorter than `offset`.
    pub fn open_at(dir: &Path, offset: u64) -> Result<Reader> {
        let path = dir.join(LOG);
        let file = File::open(&path).map_err(|e| Error::on_path("open", path.as_os_str().as_bytes(), e))?;
        Reader::over(file, path, offset)
    }

    pub(super) fn over(file: File, path: PathBuf, offset: u64) -> Result<Reader> {
        let fail = |e: Errno| Error::on_path("read", path.as_os_str().as_bytes(), e);
        let size = file.metadata().map_err(|e| fail(e.into()))?.len();
        let mut head = [0u8; HEADER.len()];
        let n = read_full(&file, &mut head, 0).map_err(fail)?;
        // A header of which only a part arrived is a journal with no entry.
        let unborn = n < HEADER.len() && HEADER.starts_with(&head[..n]);
        if head != HEADER && !unborn {
            return Err(not_a_journal(&path));
        }
        let at = offset.max(HEADER.len() as u64);
        // The padding of the last frame may be missing.
        if offset > HEADER.len() as u64 && at > size.saturating_add(3) {
            return Err(Error::failure(format!(
                "{} has become shorter than the {offset} bytes read before",
                crate::base::quote(path.as_os_str().as_bytes())
            ))
            .hint("read it again from the start"));
        }
        let torn = if unborn { n as u64 } else { 0 };
        Ok(Reader { file, path, buf: Vec::new(), used: 0, at, seq: None, torn, done: unborn })
    }

    /// Where the next entry begins, bytes from the start of the file.
    pub fn offset(&self) -> u64 {
        self.at + self.used as u64
    }

    /// Bytes of an unfinished frame at the end; known once the iteration has ended.
    pub fn torn(&self) -> u64 {
        self.torn
    }

    /// Bytes of the file behind `from` up to its last byte that is not zero.
    pub(super) fn tail_bytes(&self, from: u64) -> Sys<u64> {
        let (mut pos, mut last) = (from, from);
        let mut buf = vec![0u8; CHUNK];
        loop {
            let n = read_full(&self.file, &mut buf, pos)?;
            if let Some(i) = buf[..n].iter().rposition(|&b| b != 0) {
                last = pos + i as u64 + 1;
            }
            pos += n as u64;
            if n < buf.len() {
                return Ok(last - from);
            }
        }
    }

    fn fail(&self, e: Errno) -> Error {
        Error::on_path("read", self.path.as_os_str().as_bytes(), e)
    }

    /// The bytes from the next entry on: `want` of them, fewer only at the end of the file.
    fn ahead(&mut self, want: usize) -> Sys<&[u8]> {
        if self.buf.len() - self.used.min(self.buf.len()) < want {
            self.at += self.used as u64;
            self.buf.drain(..self.used.min(self.buf.len()));
            self.used = 0;
            let had = self.buf.len();
            self.buf.resize(want.max(CHUNK), 0);
            let n = read_full(&self.file, &mut self.buf[had..], self.at + had as u64)?;
            self.buf.truncate(had + n);
        }
        Ok(&self.buf[self.used.min(self.buf.len())..])
    }

    fn peek(&mut self) -> Sys<Peek> {
        let head = self.ahead(PREFIX)?;
        let Some(len) = head.first_chunk::<4>().map(|b| u32::from_le_bytes(*b) as usize) else {
            return Ok(if head.iter().all(|&b| b == 0) { Peek::End } else { Peek::Bad });
        };
        if len == 0 {
            return Ok(Peek::End);
        }
        if len > MAX_PAYLOAD {
            return Ok(Peek::Bad);
        }
        let bytes = self.ahead(PREFIX + len)?;
        Ok(match whole_frame(bytes) {
            None => Peek::Bad,
            Some(payload) => match frame::decode(payload) {
                Some(entry) => Peek::Whole(entry, frame::stride(len)),
                None => Peek::Unknown,
            },
        })
    }

    fn step(&mut self) -> Result<Option<Entry>> {
        let mut tries = 0;
        loop {
            match self.peek().map_err(|e| self.fail(e))? {
                Peek::End => return Ok(None),
                Peek::Whole(entry, stride) => {
                    self.check_seq(&entry)?;
                    self.used += stride;
                    return Ok(Some(entry));
                }
                Peek::Unknown => return Err(self.damaged("an entry of no known form")),
                // A read is not atomic against a live writer: look again before judging.
                Peek::Bad if tries < 3 => {
                    if tries > 0 {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    tries += 1;
                    self.at = self.offset();
                    self.used = 0;
                    self.buf.clear();
                }
                Peek::Bad => {
                    if self.frames_follow().map_err(|e| self.fail(e))? {
                        return Err(self.damaged("a frame with a wrong checksum"));
                    }
                    self.torn = self.tail_bytes(self.offset()).map_err(|e| self.fail(e))?;
                    return Ok(None);
                }
            }
        }
    }

    fn check_seq(&mut self, entry: &Entry) -> Result<()> {
        if let Entry::Record { seq, .. } = entry {
            if self.seq.is_some_and(|last| last.checked_add(1) != Some(*seq)) {
                return Err(self.damaged("a gap in the sequence numbers"));
            }
            self.seq = Some(*seq);
        }
        Ok(())
    }

    /// Whether a whole frame begins anywhere behind the damaged one: then it is not the tail that is torn.
    fn frames_follow(&self) -> Sys<bool> {
        let from = self.offset();
        let size = self.file.metadata().map_err(Errno::from)?.len();
        let len = usize::try_from(size.saturating_sub(from)).unwrap_or(SEARCH).min(SEARCH);
        let mut rest = vec![0u8; len];
        let n = read_full(&self.file, &mut rest, from)?;
        rest.truncate(n);
        // Bytes made to look like many long frames would cost a checksum each; past the budget call it damage, which
        // loses nothing.
        let mut budget = 4 * SEARCH;
        for start in (4..rest.len()).step_by(4) {
            let bytes = &rest[start..];
            let Some(len) = bytes.first_chunk::<4>().map(|b| u32::from_le_bytes(*b) as usize) else { break };
            if len == 0 || len > bytes.len() || !bytes.get(PREFIX).is_some_and(|&t| frame::is_tag(t)) {
                continue;
            }
            if len > budget {
                return Ok(true);
            }
            budget -= len;
            if whole_frame(bytes).and_then(frame::decode).is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn damaged(&self, what: &str) -> Error {
        Error::failure(format!(
            "the journal {} is damaged: {what} at offset {}",
            crate::base::quote(self.path.as_os_str().as_bytes()),
            self.offset()
        ))
        .hint("what lies before that offset is intact; the upper can still be compared with the real tree")
    }
}

impl Iterator for Reader {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Result<Entry>> {
        if self.done {
            return None;
        }
        let next = self.step().transpose();
        self.done = !matches!(next, Some(Ok(_)));
        next
    }
}

enum Peek {
    /// A zero length, or nothing.
    End,
    /// An entry, and the bytes it takes.
    Whole(Entry, usize),
    /// Too short, too long, or with a wrong checksum.
    Bad,
    /// Whole, but not an entry.
    Unknown,
}

/// The payload of the frame that `bytes` begins with, if that is whole.
fn whole_frame(bytes: &[u8]) -> Option<&[u8]> {
    let (len, rest) = bytes.split_first_chunk::<4>()?;
    let (crc, rest) = rest.split_first_chunk::<4>()?;
    let len = u32::from_le_bytes(*len) as usize;
    if len > MAX_PAYLOAD {
        return None;
    }
    let payload = rest.get(..len)?;
    (frame::checksum(payload) == u32::from_le_bytes(*crc)).then_some(payload)
}

/// Reads until `buf` is full or the file ends.
pub(super) fn read_full(file: &File, buf: &mut [u8], offset: u64) -> Sys<usize> {
    let mut done = 0;
    while done < buf.len() {
        match data::pread(file.as_fd(), &mut buf[done..], offset + done as u64)? {
            0 => break,
            n => done += n,
        }
    }
    Ok(done)
}

fn not_a_journal(path: &Path) -> Error {
    Error::failure(format!(
        "{} is not a journal of a version this program knows",
        crate::base::quote(path.as_os_str().as_bytes())
    ))
    .hint("use the version of sbx-fuse that made the session")
}
