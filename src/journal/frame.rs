//! The bytes of the log: a header, then frames of `len u32 | crc32 u32 | payload`, all little endian.
//!
//! A frame starts at a multiple of four, so that its length can be stored in one piece: the writer stores it last, and
//! a length of zero is the end. The checksum covers the length and the payload. A length stays below 2^24, so
//! its highest byte is zero: no name or path, which cannot hold a zero byte, can be mistaken for a frame.

use super::record::{Command, Entry, Op, Process, Record};
use crate::base::{BaseId, Kind, RelPath, Time};

/// The first bytes of a log: magic, version 1, a reserved word.
pub(super) const HEADER: [u8; 16] = *b"sbxjrnl\0\x01\0\0\0\0\0\0\0";

/// Bytes before the payload of a frame.
pub(super) const PREFIX: usize = 8;

/// The longest payload, bytes.
pub(super) const MAX_PAYLOAD: usize = (1 << 24) - 1;

const TAG_RECORD: u8 = 1;
const TAG_PROCESS: u8 = 2;
const TAG_COMMAND: u8 = 3;
const TAG_OPENED: u8 = 4;
const TAG_CLOSED: u8 = 5;

const HAS_PATH2: u8 = 1;
const HAS_BASE: u8 = 2;
const HAS_BASE2: u8 = 4;

/// The bytes that a frame with `len` bytes of payload takes in the file, padding included.
pub(super) fn stride(len: usize) -> usize {
    (PREFIX + len).next_multiple_of(4)
}

/// The checksum of a frame: its length, then its payload.
pub(super) fn checksum(payload: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&(payload.len() as u32).to_le_bytes());
    crc.update(payload);
    crc.finalize()
}

/// Replaces `buf` by the frame of a record.
pub(super) fn encode_record(buf: &mut Vec<u8>, seq: u64, time: u64, r: &Record) {
    frame(buf, |b| {
        let mut flags = 0;
        for (bit, on) in
            [(HAS_PATH2, r.path2.is_some()), (HAS_BASE, r.base.is_some()), (HAS_BASE2, r.base2.is_some())]
        {
            flags |= if on { bit } else { 0 };
        }
        b.push(TAG_RECORD);
        b.extend_from_slice(&seq.to_le_bytes());
        b.extend_from_slice(&time.to_le_bytes());
        b.extend_from_slice(&[r.op as u8, r.kind as u8, flags]);
        b.extend_from_slice(&r.root.to_le_bytes());
        b.extend_from_slice(&r.proc.to_le_bytes());
        put_bytes(b, r.path.as_bytes());
        if let Some(path2) = &r.path2 {
            put_bytes(b, path2.as_bytes());
        }
        for base in [&r.base, &r.base2].into_iter().flatten() {
            put_base(b, base);
        }
    });
}

/// Replaces `buf` by the frame of `entry`.
pub(super) fn encode(buf: &mut Vec<u8>, entry: &Entry) {
    match entry {
        Entry::Record { seq, time, record } => encode_record(buf, *seq, *time, record),
        Entry::Process(p) => frame(buf, |b| {
            b.push(TAG_PROCESS);
            b.extend_from_slice(&p.id.to_le_bytes());
            b.extend_from_slice(&p.pid.to_le_bytes());
            b.extend_from_slice(&p.start.to_le_bytes());
            b.extend_from_slice(&p.command.to_le_bytes());
            put_bytes(b, &p.comm);
            put_bytes(b, &p.exe);
        }),
        Entry::Command(c) => frame(buf, |b| {
            b.push(TAG_COMMAND);
            b.extend_from_slice(&c.id.to_le_bytes());
            b.extend_from_slice(&c.pid.to_le_bytes());
            b.extend_from_slice(&(c.argv.len() as u32).to_le_bytes());
            for word in &c.argv {
                put_bytes(b, word);
            }
        }),
        Entry::Opened { boot } => frame(buf, |b| {
            b.push(TAG_OPENED);
            b.extend_from_slice(boot);
        }),
        Entry::Closed => frame(buf, |b| b.push(TAG_CLOSED)),
    }
}

fn frame(buf: &mut Vec<u8>, payload: impl FnOnce(&mut Vec<u8>)) {
    buf.clear();
    buf.extend_from_slice(&[0; PREFIX]);
    payload(buf);
    let len = buf.len() - PREFIX;
    let crc = checksum(&buf[PREFIX..]);
    buf[..4].copy_from_slice(&(len as u32).to_le_bytes());
    buf[4..PREFIX].copy_from_slice(&crc.to_le_bytes());
    buf.resize(stride(len), 0);
}

fn put_bytes(b: &mut Vec<u8>, bytes: &[u8]) {
    b.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    b.extend_from_slice(bytes);
}

fn put_base(b: &mut Vec<u8>, base: &BaseId) {
    b.extend_from_slice(&[base.kind as u8, u8::from(base.hash.is_some())]);
    for n in [base.perm, base.uid, base.gid, base.nlink] {
        b.extend_from_slice(&n.to_le_bytes());
    }
    for n in [base.size, base.dev, base.ino] {
        b.extend_from_slice(&n.to_le_bytes());
    }
    for t in [base.mtime, base.ctime] {
        b.extend_from_slice(&t.sec.to_le_bytes());
        b.extend_from_slice(&t.nsec.to_le_bytes());
    }
    if let Some(hash) = &base.hash {
        b.extend_from_slice(hash);
    }
}

/// The entry that a payload holds; `None` when the bytes are of no form that [`encode`] gives.
pub(super) fn decode(payload: &[u8]) -> Option<Entry> {
    let mut c = Cursor(payload);
    let entry = match c.u8()? {
        TAG_RECORD => decode_record(&mut c)?,
        TAG_PROCESS => Entry::Process(Process {
            id: c.u32()?,
            pid: c.u32()?,
            start: c.u64()?,
            command: c.u32()?,
            comm: c.bytes()?.to_vec(),
            exe: c.bytes()?.to_vec(),
        }),
        TAG_COMMAND => {
            let (id, pid, count) = (c.u32()?, c.u32()?, c.u32()? as usize);
            // A word takes four bytes at least: a count beyond that would only be a way to make us reserve memory.
            if count > c.0.len() / 4 {
                return None;
            }
            let mut argv = Vec::with_capacity(count);
            for _ in 0..count {
                argv.push(c.bytes()?.to_vec());
            }
            Entry::Command(Command { id, pid, argv })
        }
        TAG_OPENED => Entry::Opened { boot: c.array()? },
        TAG_CLOSED => Entry::Closed,
        _ => return None,
    };
    c.0.is_empty().then_some(entry)
}

/// Whether `tag`, the first byte of a payload, is one that entries have.
pub(super) fn is_tag(tag: u8) -> bool {
    (TAG_RECORD..=TAG_CLOSED).contains(&tag)
}

fn decode_record(c: &mut Cursor<'_>) -> Option<Entry> {
    let (seq, time) = (c.u64()?, c.u64()?);
    let (op, kind, flags) = (Op::from_u8(c.u8()?)?, Kind::from_u8(c.u8()?)?, c.u8()?);
    if flags & !(HAS_PATH2 | HAS_BASE | HAS_BASE2) != 0 {
        return None;
    }
    let (root, proc) = (u16::from_le_bytes(c.array()?), c.u32()?);
    let path = c.path()?;
    let path2 = if flags & HAS_PATH2 != 0 { Some(c.path()?) } else { None };
    let base = if flags & HAS_BASE != 0 { Some(c.base()?) } else { None };
    let base2 = if flags & HAS_BASE2 != 0 { Some(c.base()?) } else { None };
    Some(Entry::Record { seq, time, record: Record { op, root, path, path2, kind, base, base2, proc } })
}

struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[b]| b)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()? as usize;
        self.take(len)
    }

    fn path(&mut self) -> Option<RelPath> {
        RelPath::new(self.bytes()?).ok()
    }

    fn time(&mut self) -> Option<Time> {
        Some(Time { sec: i64::from_le_bytes(self.array()?), nsec: self.u32()? })
    }

    fn base(&mut self) -> Option<BaseId> {
        let (kind, hashed) = (Kind::from_u8(self.u8()?)?, self.u8()?);
        let (perm, uid, gid, nlink) = (self.u32()?, self.u32()?, self.u32()?, self.u32()?);
        let (size, dev, ino) = (self.u64()?, self.u64()?, self.u64()?);
        let (mtime, ctime) = (self.time()?, self.time()?);
        let hash = match hashed {
            0 => None,
            1 => Some(self.array()?),
            _ => return None,
        };
        Some(BaseId { kind, perm, uid, gid, size, dev, ino, nlink, mtime, ctime, hash })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn base(n: u64) -> BaseId {
        BaseId {
            kind: Kind::File,
            perm: 0o644,
            uid: 1,
            gid: 2,
            size: n,
            dev: 3,
            ino: n * 7,
            nlink: 1,
            mtime: Time { sec: -5, nsec: 999_999_999 },
            ctime: Time { sec: 5, nsec: 1 },
            hash: n.is_multiple_of(2).then_some([n as u8; 32]),
        }
    }

    fn entries() -> impl Strategy<Value = Entry> {
        let path = "[a-z\u{e4}]{1,9}(/[a-z]{1,5}){0,3}".prop_map(|s| RelPath::new(s.as_bytes()).unwrap());
        let bytes = proptest::collection::vec(any::<u8>(), 0..20);
        let record = (
            any::<(u64, u64, u16, u32)>(),
            (1u8..=20, 1u8..=7),
            path.clone(),
            proptest::option::of(path),
            proptest::option::of((0u64..1000).prop_map(base)),
            proptest::option::of((0u64..1000).prop_map(base)),
        )
            .prop_map(|((seq, time, root, proc), (op, kind), path, path2, base, base2)| {
                let (op, kind) = (Op::from_u8(op).unwrap(), Kind::from_u8(kind).unwrap());
                Entry::Record { seq, time, record: Record { op, root, path, path2, kind, base, base2, proc } }
            });
        prop_oneof![
            record,
            (any::<(u32, u32, u64, u32)>(), bytes.clone(), bytes.clone()).prop_map(
                |((id, pid, start, command), comm, exe)| Entry::Process(Process {
                    id,
                    pid,
                    start,
                    comm,
                    exe,
                    command
                })
            ),
            (any::<(u32, u32)>(), proptest::collection::vec(bytes, 0..5))
                .prop_map(|((id, pid), argv)| Entry::Command(Command { id, pid, argv })),
            any::<[u8; 16]>().prop_map(|boot| Entry::Opened { boot }),
            Just(Entry::Closed),
        ]
    }

    /// A path in a record is never joined to a root as it is: one that would lead out is no path.
    #[test]
    fn a_record_with_a_path_that_leads_out_is_no_record() {
        for (inside, out) in [("xx/b", "../b"), ("a/xx", "a/.."), ("xa/b", "/a/b"), ("axxb", "a//b")] {
            let record = |second: &str| Record {
                op: Op::Rename,
                root: 0,
                path: RelPath::new(inside.as_bytes()).unwrap(),
                path2: Some(RelPath::new(second.as_bytes()).unwrap()),
                kind: Kind::File,
                base: None,
                base2: None,
                proc: 0,
            };
            for second in ["other", inside] {
                let mut buf = Vec::new();
                encode(&mut buf, &Entry::Record { seq: 1, time: 0, record: record(second) });
                let len = u32::from_le_bytes(buf[..4].try_into().unwrap()) as usize;
                let payload = &mut buf[PREFIX..PREFIX + len];
                assert!(decode(payload).is_some());
                let at = |p: &[u8]| p.windows(4).rposition(|w| w == inside.as_bytes()).unwrap();
                let at = at(payload);
                payload[at..at + 4].copy_from_slice(out.as_bytes());
                assert!(decode(payload).is_none(), "{out}");
            }
        }
    }

    proptest! {
        #[test]
        fn decode_inverts_encode(entry in entries()) {
            let mut buf = vec![1, 2, 3];
            encode(&mut buf, &entry);
            let len = u32::from_le_bytes(buf[..4].try_into().unwrap()) as usize;
            prop_assert_eq!(buf.len(), stride(len));
            prop_assert_eq!(decode(&buf[PREFIX..PREFIX + len]), Some(entry));
        }

        #[test]
        fn decode_of_any_bytes_returns(tag in 0u8..7, mut bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            bytes.insert(0, tag);
            decode(&bytes);
        }

        #[test]
        fn decode_of_a_shortened_or_changed_payload_returns(entry in entries(), at: usize, to: u8, cut: usize) {
            let mut buf = Vec::new();
            encode(&mut buf, &entry);
            let at = PREFIX + at % (buf.len() - PREFIX);
            buf[at] = to;
            decode(&buf[PREFIX..]);
            decode(&buf[PREFIX..PREFIX + cut % (buf.len() - PREFIX + 1)]);
        }
    }
}
