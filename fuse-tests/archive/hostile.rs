//! Archives that are cut, changed, or made to do harm.

use crate::Case;
use crate::world::World;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use sbx_fuse::session::{Key, Restore, Store};
use std::io::Write;
use tar::{EntryType, Header};

pub const CASES: &[Case] = &[
    ("every_cut_and_every_flipped_bit_is_refused", cut_and_flipped),
    ("hostile_entries_are_refused_and_leave_nothing", entries),
    ("hostile_bytes_never_escape_nor_panic", bytes),
];

fn cut_and_flipped() {
    let w = World::new();
    let whole = w.small_archive();
    let len = whole.len();
    assert!(len < 8000, "a small archive: {len}");
    let cuts = (0..len).step_by(len / 60).chain(len - 60..len);
    for at in cuts {
        assert!(!w.takes(&whole[..at], &[]).0, "cut at {at} of {len}");
    }
    for at in (0..len).step_by(len / 60).chain(len - 60..len) {
        let mut bad = whole.clone();
        bad[at] ^= 1 << (at % 8);
        assert!(!w.takes(&bad, &[]).0, "changed at {at} of {len}");
    }
    assert!(!w.takes(&[&whole[..], b"\0"].concat(), &[]).0, "something added");
    assert!(w.takes(&whole, &[]).0);
}

/// The seal as the format has it: a skippable frame with mark, length and BLAKE3 hash.
fn seal(tar: &[u8]) -> Vec<u8> {
    let mut bytes = zstd::encode_all(tar, 3).expect("zstd");
    let (len, hash) = (bytes.len() as u64, blake3::hash(&bytes));
    bytes.write_all(b"\x5f\x2a\x4d\x18\x30\0\0\0sbxfuse1").expect("memory");
    bytes.write_all(&len.to_le_bytes()).expect("memory");
    bytes.write_all(hash.as_bytes()).expect("memory");
    bytes
}

/// The tar stream of an archive, its end cut off.
fn stream(archive: &[u8]) -> Vec<u8> {
    let mut tar = zstd::decode_all(archive).expect("zstd skips the trailer");
    tar.truncate(tar.len() - 1024);
    tar
}

fn header(kind: EntryType, path: &[u8], link: &[u8], mode: u32, size: u64) -> Header {
    let mut h = Header::new_ustar();
    h.set_entry_type(kind);
    h.set_mode(mode);
    h.set_uid(0);
    h.set_gid(0);
    h.set_mtime(0);
    h.set_size(size);
    let ustar = h.as_ustar_mut().expect("ustar");
    ustar.name[..path.len()].copy_from_slice(path);
    ustar.linkname[..link.len()].copy_from_slice(link);
    h.set_cksum();
    h
}

fn block(content: &[u8]) -> Vec<u8> {
    let mut block = content.to_vec();
    block.resize(block.len().next_multiple_of(512), 0);
    block
}

fn entries() {
    let w = World::new();
    let whole = stream(&w.small_archive());
    let canary = w.at("home/canary");
    let out = canary.to_str().unwrap().as_bytes().to_vec();
    let upper = |name: &str| format!("roots/0/upper/{name}").into_bytes();
    // Beneath the upper, which is still being filled there, so that it is not the order that is refused.
    let cut = whole
        .chunks_exact(512)
        .position(|b| b.starts_with(b"roots/0/work\0"))
        .map(|i| i * 512 - 1024)
        .expect("an entry for the work directory");
    let put = |more: &[u8]| [&whole[..cut], more, &whole[cut..], &[0; 1024]].concat();
    let one = |h: Header| put(h.as_bytes());
    let entry = |kind, path: &[u8], link: &[u8], mode| one(header(kind, path, link, mode, 0));
    let pax = |records: &[u8], h: Header| {
        let x = header(EntryType::XHeader, b"PaxHeaders/x", b"", 0o600, records.len() as u64);
        put(&[x.as_bytes(), &block(records)[..], h.as_bytes()].concat())
    };
    let record = |text: &str| {
        let n = text.len() + 4;
        assert!((10..99).contains(&n));
        format!("{n} {text}\n").into_bytes()
    };
    use EntryType as E;
    let file = || header(E::Regular, &upper("zz"), b"", 0o600, 0);
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("an absolute path", entry(E::Regular, &out, b"", 0o600)),
        ("a way up", entry(E::Regular, b"roots/0/upper/../../../../../canary", b"", 0o600)),
        ("a way up at the start", entry(E::Regular, b"../canary", b"", 0o600)),
        ("a dot", entry(E::Regular, b"./canary", b"", 0o600)),
        ("no name", entry(E::Regular, b"", b"", 0o600)),
        ("a double slash", entry(E::Regular, b"roots//canary", b"", 0o600)),
        ("a hard link out", entry(E::Link, &upper("zz"), &out, 0o600)),
        ("a hard link up", entry(E::Link, &upper("zz"), b"../../x", 0o600)),
        ("a hard link to the journal", entry(E::Link, &upper("zz"), b"journal/log", 0o600)),
        ("a hard link through a symlink", entry(E::Link, &upper("zz"), &upper("l/x"), 0o600)),
        ("a journal that is a link", entry(E::Symlink, b"journal/zz", &out, 0o777)),
        ("an upper that is a link", entry(E::Symlink, b"roots/1", b"/", 0o777)),
        ("a file through a symlink", entry(E::Regular, &upper("l/canary"), b"", 0o600)),
        ("a block device", entry(E::Block, &upper("zz"), b"", 0o600)),
        ("another device", {
            let mut h = header(E::Char, &upper("zz"), b"", 0o600, 0);
            h.set_device_major(1).unwrap();
            h.set_device_minor(3).unwrap();
            h.set_cksum();
            one(h)
        }),
        ("a whiteout outside of the upper", entry(E::Char, b"journal/zz", b"", 0o600)),
        ("a set-uid program", entry(E::Regular, &upper("zz"), b"", 0o4755)),
        ("a set-gid program", entry(E::Regular, &upper("zz"), b"", 0o2755)),
        ("the same file twice", entry(E::Regular, &upper("f1"), b"", 0o600)),
        ("meta.json twice", entry(E::Regular, b"meta.json", b"", 0o600)),
        ("a lock", entry(E::Regular, b"lock", b"", 0o600)),
        ("a place to mount on", entry(E::Symlink, b"mnt", b"/", 0o777)),
        ("a place to mount on, as a directory", entry(E::Directory, b"mnt", b"", 0o777)),
        ("a stub", entry(E::Regular, b"archived.json", b"", 0o600)),
        ("something hidden", entry(E::Directory, b".trash-x", b"", 0o700)),
        ("a work file", entry(E::Regular, b"roots/0/work/zz", b"", 0o600)),
        ("a file without its directory", entry(E::Regular, b"roots/0/upper/no/zz", b"", 0o600)),
        ("another type", entry(E::Continuous, &upper("zz"), b"", 0o600)),
        ("a long name of GNU's", entry(E::GNULongName, b"x", b"", 0o600)),
        ("global records", entry(E::XGlobalHeader, b"x", b"", 0o600)),
        ("more content than announced", {
            let h = header(E::Regular, &upper("zz"), b"", 0o600, 512);
            put(&[&h.as_bytes()[..], &[7; 512]].concat())
        }),
        ("a directory with content", {
            let h = header(E::Directory, &upper("zz"), b"", 0o700, 512);
            put(&[&h.as_bytes()[..], &[7; 512]].concat())
        }),
        ("a size beyond everything", one(header(E::Regular, &upper("zz"), b"", 0o600, u64::MAX / 2))),
        ("a path in a record", pax(&record("path=../../../../canary"), file())),
        ("a zero in a path", pax(&record("path=roots/0/upper/a\0b"), file())),
        ("a foreign xattr", pax(&record("SCHILY.xattr.security.capability=x"), file())),
        ("a trusted xattr", pax(&record("SCHILY.xattr.trusted.overlay.opaque=y"), file())),
        ("an unknown record", pax(&record("GNU.sparse.map=0,1"), file())),
        ("records that lie about their length", pax(b"99999 path=x\n", file())),
        ("a time beyond", pax(&record("mtime=99999999999999999999"), file())),
        ("a huge block of records", one(header(E::XHeader, b"x", b"", 0o600, 1 << 40))),
        ("a sparse file without a map", {
            let r =
                [record("GNU.sparse.major=1"), record("GNU.sparse.minor=0"), record("GNU.sparse.realsize=9")];
            pax(&r.concat(), file())
        }),
        ("a sparse file with too many pieces", {
            let r =
                [record("GNU.sparse.major=1"), record("GNU.sparse.minor=0"), record("GNU.sparse.realsize=9")];
            let r = r.concat();
            let x = header(E::XHeader, b"PaxHeaders/x", b"", 0o600, r.len() as u64);
            let h = header(E::Regular, &upper("zz"), b"", 0o600, 512);
            let map = block(b"99999999999999\n");
            put(&[x.as_bytes(), &block(&r)[..], h.as_bytes(), &map].concat())
        }),
        ("no end", whole[..whole.len() - 700].to_vec()),
        ("something after the end", [&whole[..], &[0; 1024], b"more"].concat()),
        ("nothing", Vec::new()),
        ("another tar", [header(E::Regular, b"x", b"", 0o600, 0).as_bytes(), &[0u8; 1024][..]].concat()),
    ];
    for (what, tar) in &cases {
        let (taken, said) = w.takes(&seal(tar), &[]);
        assert!(!taken, "{what} was taken");
        assert!(canary.symlink_metadata().is_err(), "{what} escaped");
        assert!(said.contains("refused") || said.contains("archive"), "{what}: {said}");
    }
    // The frame and the place are right, so that it is the entries that were refused.
    assert!(w.takes(&seal(&one(file())), &[]).0);
    assert!(w.takes(&seal(&[&whole[..], &[0; 1024]].concat()), &[]).0);
    lies(&w, &whole);
}

/// What `meta.json` and the description say must not lead out, either.
fn lies(w: &World, whole: &[u8]) {
    let change = |from: &str, to: &str| {
        let mut tar = [whole, &[0; 1024]].concat();
        let mut found = 0;
        while let Some(at) = tar.windows(from.len()).position(|p| p == from.as_bytes()) {
            tar[at..at + from.len()].copy_from_slice(to.as_bytes());
            found += 1;
        }
        assert!(found > 0, "{from}");
        seal(&tar)
    };
    let text = String::from_utf8(whole.iter().map(|b| b & 0x7f).collect()).unwrap();
    let id = text.split("\"id\": \"").nth(1).unwrap().split('"').next().unwrap().to_owned();
    let project = w.at("project").to_str().unwrap().to_owned();
    let up = |n: usize| format!("{:/<n$}", "../../../x");
    for (what, bytes) in [
        ("an id that is a path", change(&id, &up(id.len()))),
        ("a root that goes up", change(&project, &format!("{:x<1$}", "/tmp/../", project.len()))),
        ("a name that is a path", change("\"name\": \"small\"", "\"name\": \"../xx\"")),
        ("a later version", change("\"version\": 1", "\"version\": 9")),
    ] {
        let (taken, said) = w.takes(&bytes, &["--force"]);
        assert!(!taken, "{what} was taken: {said}");
    }
}

fn bytes() {
    let w = World::new();
    let whole = [stream(&w.small_archive()), vec![0; 1024]].concat();
    let store = Store::at(w.at("fuzzed/sbx-fuse")).unwrap();
    std::fs::create_dir(w.at("fuzzed")).unwrap();
    let file = w.at("fuzzed.tar.zst");
    let canary = || std::fs::read_dir(w.at("")).unwrap().count();
    let before = canary() + 1;
    let attempt = |bytes: &[u8]| {
        std::fs::write(&file, bytes).unwrap();
        let restored = store.restore(Restore {
            file: file.clone(),
            name: None,
            stub: None,
            setuid: false,
            key: &mut |_| Ok(Key::Passphrase("x".into())),
            check: &mut |_| Ok(()),
            progress: &mut |_, _| {},
        });
        if let Ok(restored) = restored {
            store.remove(&restored.session.name, &restored.lock).unwrap();
        }
        assert!(w.entries("fuzzed").is_empty(), "left behind: {:?}", w.entries("fuzzed"));
        assert_eq!(canary(), before, "something escaped");
    };
    let mut runner = TestRunner::new(Config { cases: 300, failure_persistence: None, ..Config::default() });
    let wild = prop::collection::vec(any::<u8>(), 0..600);
    runner
        .run(&(wild, any::<bool>()), |(bytes, sealed)| {
            attempt(&if sealed { seal(&bytes) } else { bytes });
            Ok(())
        })
        .unwrap();
    // A good stream with some bytes changed, and header checksums mended, so that the changes are looked at.
    let changes = prop::collection::vec((0..whole.len(), any::<u8>()), 1..6);
    runner
        .run(&changes, |changes| {
            let mut tar = whole.clone();
            for (at, byte) in changes {
                tar[at] = byte;
            }
            mend(&mut tar);
            attempt(&seal(&tar));
            Ok(())
        })
        .unwrap();
}

/// Corrects the checksum of every block that looks like a header.
fn mend(tar: &mut [u8]) {
    for block in tar.chunks_exact_mut(512) {
        if &block[257..262] == b"ustar" {
            block[148..156].fill(b' ');
            let sum: u32 = block.iter().map(|&b| u32::from(b)).sum();
            block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
    }
}
