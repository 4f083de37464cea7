//! What was acknowledged survives and nothing is invented, wherever the writing stopped.

use crate::{base, record};
use proptest::prelude::*;
use sbx_fuse::base::Kind;
use sbx_fuse::journal::{Entry, Journal, Log, Op, Reader, Record, fold, read};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

fn mixed(i: u64) -> Record {
    let name = format!("dir/{}{i}", "n".repeat((i * 7 % 40) as usize));
    let other = format!("o{i}");
    match i % 5 {
        0 => record(Op::Create, Kind::File, &name, None),
        1 => Record { base: Some(base(Kind::File, i)), ..record(Op::Write, Kind::File, &name, None) },
        2 => Record {
            base: Some(base(Kind::Dir, i)),
            base2: Some(base(Kind::Dir, i + 1)),
            proc: 3,
            ..record(Op::Rename, Kind::Dir, &name, Some(&other))
        },
        3 => Record { root: 2, ..record(Op::SetXattr, Kind::Symlink, &name, None) },
        _ => record(Op::Unlink, Kind::Fifo, &name, None),
    }
}

/// A closed log of mixed entries; its bytes, and where each entry ends with the entry.
fn sample(dir: &Path) -> (Vec<u8>, Vec<(u64, Entry)>) {
    let (journal, _) = Journal::open(dir).unwrap();
    for i in 0..52 {
        if i % 20 == 3 {
            journal.begin_command(std::process::id(), ["make", "all"]).unwrap();
            assert_ne!(journal.process(std::process::id()), 0);
        }
        journal.append(&mixed(i)).unwrap();
    }
    journal.close().unwrap();
    let mut reader = Reader::open(dir).unwrap();
    let mut entries = Vec::new();
    while let Some(entry) = reader.next() {
        entries.push((reader.offset(), entry.unwrap()));
    }
    assert!(entries.len() >= 58, "{}", entries.len());
    (std::fs::read(dir.join("log")).unwrap(), entries)
}

/// The end of a frame without its padding: what must be there for it to be whole.
fn whole_at(bytes: &[u8], start: u64) -> u64 {
    let at = start as usize;
    start + 8 + u64::from(u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()))
}

#[test]
fn a_log_cut_at_any_byte_keeps_exactly_the_whole_entries_before_and_goes_on() {
    let made = tempfile::tempdir().unwrap();
    let (bytes, entries) = sample(made.path());
    // Thousands of openings, each with an fsync: in memory where there is such a file system.
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let log = dir.path().join("log");
    for cut in 0..=bytes.len() {
        std::fs::write(&log, &bytes[..cut]).unwrap();
        let mut want = Vec::new();
        let mut start = 16;
        for (end, entry) in &entries {
            if whole_at(&bytes, start) > cut as u64 {
                break;
            }
            want.push(entry.clone());
            start = *end;
        }
        let seen = read(dir.path()).unwrap();
        assert_eq!(seen.entries, want, "cut at {cut}");
        let last_seq = fold(seen).last_seq;

        let (journal, opening) = Journal::open(dir.path()).unwrap();
        let closed = want.last().is_none_or(|e| *e == Entry::Closed);
        assert_eq!(opening.clean, closed && opening.cut_bytes == 0, "cut at {cut}");
        assert_eq!(opening.cut_bytes > 0, want.is_empty() && cut > 0 && cut < 16 || torn(&bytes, start, cut));
        assert_eq!(journal.append(&mixed(1)), Ok(last_seq + 1), "cut at {cut}");
        drop(journal);
        let after = read(dir.path()).unwrap();
        assert_eq!(after.entries[..want.len()], want, "cut at {cut}");
        assert_eq!(after.entries.len(), want.len() + 2);
        assert!(matches!(after.entries[want.len()], Entry::Opened { .. }));
        assert!(
            matches!(&after.entries[want.len() + 1], Entry::Record { record, .. } if *record == mixed(1))
        );
    }
}

fn torn(bytes: &[u8], start: u64, cut: usize) -> bool {
    bytes[..cut].get(start as usize..).is_some_and(|rest| rest.iter().any(|&b| b != 0))
}

#[test]
fn a_changed_byte_before_the_end_is_an_error_that_names_the_offset() {
    let made = tempfile::tempdir().unwrap();
    let (bytes, entries) = sample(made.path());
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let (first, last) = (entries[3].0, entries[entries.len() - 2].0);
    for at in (first..last).step_by(3) {
        let start = entries.iter().map(|e| e.0).filter(|&end| end <= at).max().unwrap();
        if whole_at(&bytes, start) <= at {
            continue; // padding
        }
        let mut changed = bytes.clone();
        changed[at as usize] ^= 0x40;
        std::fs::write(&log, &changed).unwrap();
        let error = read(dir.path()).unwrap_err().to_string();
        assert!(error.contains(&format!("at offset {start}")), "byte {at}: {error}");
        assert!(Journal::open(dir.path()).is_err());
        assert_eq!(std::fs::read(&log).unwrap(), changed, "a damaged log is left as it is");
    }
    // The last frame has no frame after it: that is a torn tail.
    let mut changed = bytes.clone();
    changed[last as usize + 4] ^= 1;
    std::fs::write(&log, &changed).unwrap();
    let (_, opening) = Journal::open(dir.path()).unwrap();
    assert!(!opening.clean && opening.cut_bytes > 0);
}

#[test]
fn a_reader_follows_a_live_writer() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = Journal::open(dir.path()).unwrap();
    let total = 20_000;
    let (mut offset, mut next) = (0, 1);
    std::thread::scope(|s| {
        s.spawn(|| {
            for i in 0..total {
                journal.append(&mixed(i)).unwrap();
            }
        });
        while next <= total {
            let log = Log::from(dir.path(), offset).unwrap();
            offset = log.offset;
            for entry in log {
                if let Entry::Record { seq, record, .. } = entry {
                    assert_eq!((seq, record), (next, mixed(next - 1)));
                    next += 1;
                }
            }
        }
    });
    journal.close().unwrap();
    assert_eq!(Log::from(dir.path(), offset).unwrap().entries, [Entry::Closed]);
    assert!(Log::from(dir.path(), offset + 1000).is_err());
}

const CHILD: &str = "SBX_JOURNAL_TEST_DIR";

/// Not a test by itself: the writer that `kill_9_loses_nothing_acknowledged` kills.
#[test]
fn writer_to_be_killed() {
    let Some(dir) = std::env::var_os(CHILD) else { return };
    let (journal, _) = Journal::open(Path::new(&dir)).unwrap();
    let mut out = std::io::stdout();
    for i in 0.. {
        let seq = journal.append(&mixed(i)).unwrap();
        writeln!(out, "ack {seq}").unwrap();
        out.flush().unwrap();
    }
}

#[test]
fn kill_9_loses_nothing_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let mut total = 0;
    for round in 0..5 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "crash::writer_to_be_killed", "--nocapture", "--test-threads=1"])
            .env(CHILD, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut acknowledged = 0;
        let mut seen = 0;
        while seen < 700 + round * 331 {
            let line = lines.next().unwrap().unwrap();
            if let Some(seq) = line.split_once("ack ").map(|(_, n)| n) {
                acknowledged = seq.trim().parse().unwrap();
                seen += 1;
            }
        }
        child.kill().unwrap();
        // What it said before it died counts as well; the last line may be cut short, so only whole ones parse.
        for line in lines.map_while(Result::ok) {
            if let Some(seq) = line.strip_prefix("ack ").and_then(|n| n.parse::<u64>().ok()) {
                acknowledged = acknowledged.max(seq);
            }
        }
        child.wait().unwrap();
        let log = read(dir.path()).unwrap();
        let seqs: Vec<u64> = log
            .into_iter()
            .filter_map(|e| match e {
                Entry::Record { seq, .. } => Some(seq),
                _ => None,
            })
            .collect();
        assert!(seqs.len() as u64 >= acknowledged, "{} of {acknowledged}", seqs.len());
        assert!(acknowledged > total);
        total = seqs.len() as u64;
        assert_eq!(seqs, (1..=total).collect::<Vec<_>>());
    }
    let (journal, opening) = Journal::open(dir.path()).unwrap();
    assert!(!opening.clean && opening.same_boot);
    assert_eq!(journal.last_seq(), total);
}

/// Bytes that resemble frames: some whole, some with a wrong length, checksum or payload.
fn hostile() -> impl Strategy<Value = Vec<u8>> {
    let piece = (any::<u32>(), 0u8..6, proptest::collection::vec(any::<u8>(), 0..80), 0u8..8).prop_map(
        |(word, tag, mut payload, how)| {
            payload.insert(0, tag);
            let mut crc = crc32fast::Hasher::new();
            let len = payload.len() as u32;
            crc.update(&len.to_le_bytes());
            crc.update(&payload);
            let crc = crc.finalize();
            let (len, crc) = match how {
                0 => (word, crc),
                1 => (len, word),
                2 => (0, 0),
                3 => (word >> 9, word),
                _ => (len, crc),
            };
            let mut bytes = [len.to_le_bytes(), crc.to_le_bytes()].concat();
            bytes.extend(payload);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            bytes
        },
    );
    proptest::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn hostile_bytes_end_in_entries_or_an_error(bytes in hostile(), header: bool, offset in 0u64..400) {
        let dir = tempfile::tempdir().unwrap();
        let head: &[u8] = if header { b"sbxjrnl\0\x01\0\0\0\0\0\0\0" } else { b"" };
        std::fs::write(dir.path().join("log"), [head, &bytes].concat()).unwrap();
        std::fs::write(dir.path().join("base.pack"), &bytes).unwrap();
        if let Ok(log) = read(dir.path()) {
            prop_assert!(log.offset <= (head.len() + bytes.len()).max(16) as u64 + 3);
            fold(log);
        }
        drop(Log::from(dir.path(), offset));
        drop(Journal::open(dir.path()));
        prop_assert_eq!(sbx_fuse::journal::get_base(dir.path(), [9; 32]).unwrap(), None);
    }
}
