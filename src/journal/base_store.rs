//! `base.pack`: what small text files held when the session first changed them, by content hash.
//!
//! Append-only records of `len u32 | crc32 u32 | hash 32 bytes | bytes`, little endian. An unfinished last record is
//! cut by the next writer and ignored by readers; a record whose checksum is wrong counts as absent.

use super::reader::read_full;
use crate::base::{Errno, Error, Result, Sys};
use crate::sys::data;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{BufReader, Read};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

const PACK: &str = "base.pack";
const PREFIX: usize = 40;

/// The longest content the pack takes, bytes.
pub const BASE_MAX: usize = 64 << 20;

type Hash = [u8; 32];

/// Where contents are, and where the last whole record ends.
#[derive(Default)]
struct Index {
    at: HashMap<Hash, (u64, u32)>,
    end: u64,
}

fn checksum(hash: &Hash, bytes: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&(bytes.len() as u32).to_le_bytes());
    crc.update(hash);
    crc.update(bytes);
    crc.finalize()
}

/// A record's length, checksum and hash.
fn split(head: &[u8; PREFIX]) -> (u32, u32, Hash) {
    let word = |i: usize| u32::from_le_bytes([head[i], head[i + 1], head[i + 2], head[i + 3]]);
    let mut hash = [0; 32];
    hash.copy_from_slice(&head[8..]);
    (word(0), word(4), hash)
}

fn index(file: &File) -> Sys<Index> {
    let size = file.metadata()?.len();
    let mut input = BufReader::with_capacity(256 << 10, file);
    let (mut found, mut pos, mut bytes) = (Index::default(), 0u64, Vec::new());
    while size - pos >= PREFIX as u64 {
        let mut head = [0u8; PREFIX];
        input.read_exact(&mut head)?;
        let (len, crc, hash) = split(&head);
        let next = pos + PREFIX as u64 + u64::from(len);
        if len as usize > BASE_MAX || next > size {
            break;
        }
        bytes.resize(len as usize, 0);
        input.read_exact(&mut bytes)?;
        if checksum(&hash, &bytes) == crc {
            found.at.insert(hash, (pos, len));
            found.end = next;
        }
        pos = next;
    }
    Ok(found)
}

/// The bytes stored under a hash, `None` when they are not as they were written.
fn fetch(file: &File, hash: &Hash, (pos, len): (u64, u32)) -> Sys<Option<Vec<u8>>> {
    let mut record = vec![0u8; PREFIX + len as usize];
    if read_full(file, &mut record, pos)? < record.len() {
        return Ok(None);
    }
    let bytes = record.split_off(PREFIX);
    let crc = u32::from_le_bytes([record[4], record[5], record[6], record[7]]);
    Ok((record[8..] == hash[..] && crc == checksum(hash, &bytes)).then_some(bytes))
}

/// The writer's side of the pack; the file is made by the first `put`.
pub(super) struct Store {
    path: PathBuf,
    open: Mutex<Option<(File, Index)>>,
}

impl Store {
    pub(super) fn new(dir: &Path) -> Store {
        Store { path: dir.join(PACK), open: Mutex::new(None) }
    }

    /// Stores `bytes` under `hash` unless they are there.
    pub(super) fn put(&self, bytes: &[u8], hash: Hash) -> Sys<()> {
        if bytes.len() > BASE_MAX {
            return Err(Errno::EFBIG);
        }
        let mut open = self.open.lock();
        let (file, index) = match &mut *open {
            Some(open) => open,
            None => {
                let file = OpenOptions::new()
                    .read(true)
                    .write(true)
                    .create(true)
                    .truncate(false)
                    .mode(0o600)
                    .open(&self.path)?;
                let index = index(&file)?;
                data::ftruncate(file.as_fd(), index.end)?;
                open.insert((file, index))
            }
        };
        if index.at.contains_key(&hash) {
            return Ok(());
        }
        let len = bytes.len() as u32;
        let mut record = Vec::with_capacity(PREFIX + bytes.len());
        record.extend_from_slice(&len.to_le_bytes());
        record.extend_from_slice(&checksum(&hash, bytes).to_le_bytes());
        record.extend_from_slice(&hash);
        record.extend_from_slice(bytes);
        // A failure leaves an unfinished record behind `end`, which the next one overwrites or a later open cuts.
        data::pwrite_all(file.as_fd(), &record, index.end)?;
        index.at.insert(hash, (index.end, len));
        index.end += record.len() as u64;
        Ok(())
    }

    pub(super) fn sync(&self) -> Sys<()> {
        match &*self.open.lock() {
            Some((file, _)) => data::fsync(file.as_fd(), true),
            None => Ok(()),
        }
    }
}

/// The base bytes of a journal, opened for many look-ups.
pub struct Bases {
    open: Option<(File, Index)>,
    path: PathBuf,
}

impl Bases {
    /// Indexes the pack of the journal in `dir`; a missing pack holds nothing.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn open(dir: &Path) -> Result<Bases> {
        let path = dir.join(PACK);
        let fail = |e: Errno| Error::on_path("read", path.as_os_str().as_bytes(), e);
        let open = match File::open(&path).map_err(Errno::from) {
            Ok(file) => {
                let index = index(&file).map_err(fail)?;
                Some((file, index))
            }
            Err(Errno::ENOENT) => None,
            Err(e) => return Err(fail(e)),
        };
        Ok(Bases { open, path })
    }

    /// The bytes stored under `hash`.
    ///
    /// # Errors
    /// When the pack cannot be read.
    pub fn get(&self, hash: &[u8; 32]) -> Result<Option<Vec<u8>>> {
        let Some((file, index)) = &self.open else { return Ok(None) };
        match index.at.get(hash) {
            Some(&at) => {
                fetch(file, hash, at).map_err(|e| Error::on_path("read", self.path.as_os_str().as_bytes(), e))
            }
            None => Ok(None),
        }
    }
}

/// The base bytes stored under `hash` in the journal in `dir`. Reads the whole pack; for many, keep a [`Bases`].
///
/// # Errors
/// When the pack cannot be read.
pub fn get_base(dir: &Path, hash: [u8; 32]) -> Result<Option<Vec<u8>>> {
    Bases::open(dir)?.get(&hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pack_keeps_contents_once_and_survives_a_cut_at_every_byte() {
        let dir = tempfile::tempdir().unwrap();
        let contents: Vec<Vec<u8>> = (0u8..6).map(|i| vec![i; usize::from(i) * 9]).collect();
        let hash = |bytes: &[u8]| *blake3::hash(bytes).as_bytes();
        let store = Store::new(dir.path());
        assert_eq!(get_base(dir.path(), [0; 32]).unwrap(), None);
        for bytes in contents.iter().chain(&contents) {
            store.put(bytes, hash(bytes)).unwrap();
        }
        let path = dir.path().join(PACK);
        let whole = std::fs::read(&path).unwrap();
        assert_eq!(whole.len(), contents.iter().map(|c| c.len() + PREFIX).sum::<usize>());
        for cut in 0..=whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let store = Store::new(dir.path());
            store.put(b"after", hash(b"after")).unwrap();
            let bases = Bases::open(dir.path()).unwrap();
            let mut end = 0;
            for bytes in &contents {
                end += bytes.len() + PREFIX;
                let want = (end <= cut).then(|| bytes.clone());
                assert_eq!(bases.get(&hash(bytes)).unwrap(), want, "cut at {cut}");
            }
            assert_eq!(bases.get(&hash(b"after")).unwrap().unwrap(), b"after");
        }
    }

    #[test]
    fn a_damaged_record_is_absent_and_the_others_stay() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path());
        for i in 0u8..3 {
            store.put(&[i; 10], [i; 32]).unwrap();
        }
        let path = dir.path().join(PACK);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[PREFIX + 10 + PREFIX + 3] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        let bases = Bases::open(dir.path()).unwrap();
        assert_eq!(bases.get(&[0; 32]).unwrap().unwrap(), [0; 10]);
        assert_eq!(bases.get(&[1; 32]).unwrap(), None);
        assert_eq!(bases.get(&[2; 32]).unwrap().unwrap(), [2; 10]);
    }
}
