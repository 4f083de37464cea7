//! Large files of the lower through the mount: they borrow from it for a while, and nobody sees that.

use crate::harness::*;
use sbx_fuse::union::{BlockCopy, Limits};
use std::fs::{File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::Duration;

crate::cases![
    a_large_file_is_one_file_from_the_first_byte_on,
    mappings_renames_and_removals,
    the_quota_counts_what_will_be_there,
];

const LEN: usize = (16 << 20) + 777;

fn pattern() -> Vec<u8> {
    (0..LEN).map(|i| (i / 4096 % 250) as u8 + 1).collect()
}

/// A mount on which what is borrowed stays so for as long as the test wants.
fn bed() -> Bed {
    let bed = Bed::new(|l| put(l.join("f"), pattern()));
    bed.union().tune_block_copy(BlockCopy { pause: Duration::from_secs(3600), ..BlockCopy::default() });
    bed
}

fn rw(path: std::path::PathBuf) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

fn is_ordinary(path: &std::path::Path) -> bool {
    let names = sbx_fuse::sys::xattr::list(File::open(path).unwrap().as_fd()).unwrap();
    !names.iter().any(|n| n.ends_with(b".partial"))
}

fn a_large_file_is_one_file_from_the_first_byte_on() {
    let mut bed = bed();
    let mut plain = pattern();
    let before = stat(bed.at("f"));
    let (reader, file) = (File::open(bed.at("f")).unwrap(), rw(bed.at("f")));
    for (at, len) in [(5000, 10), (4096 * 7, 4096), (1 << 20, 300_000), (LEN - 3, 9), (LEN + 50_000, 1)] {
        file.write_all_at(&vec![b'x'; len], at as u64).unwrap();
        plain.resize(plain.len().max(at + len), 0);
        plain[at..at + len].fill(b'x');
        let mut there = vec![0; plain.len()];
        reader.read_exact_at(&mut there, 0).unwrap();
        assert!(there == plain, "after a write at {at}");
    }
    file.set_len(9_000_000).unwrap();
    file.set_len(9_500_000).unwrap();
    plain.truncate(9_000_000);
    plain.resize(9_500_000, 0);
    assert!(get(bed.at("f")) == plain);
    let after = stat(bed.at("f"));
    assert_eq!((after.ino(), after.nlink(), after.mode()), (before.ino(), 1, before.mode()));
    file.sync_all().unwrap();
    drop((file, reader));
    assert!(get(bed.lower("f")) == pattern(), "the real file");
    bed.remount();
    assert!(get(bed.at("f")) == plain);
    assert!(get(bed.upper("f")) == plain && is_ordinary(&bed.upper("f")), "once nobody serves it");
}

fn mappings_renames_and_removals() {
    let bed = bed();
    let mut plain = pattern();
    assert_eq!(in_process(&["map-write", "70000", "mapped", bed.at("f").to_str().unwrap()]), 0);
    plain[70_000..70_006].copy_from_slice(b"mapped");
    assert!(get(bed.at("f")) == plain);
    std::fs::rename(bed.at("f"), bed.at("g")).unwrap();
    assert!(get(bed.at("g")) == plain);
    let file = rw(bed.at("g"));
    std::fs::remove_file(bed.at("g")).unwrap();
    file.write_all_at(b"late", 100_000).unwrap();
    plain[100_000..100_004].copy_from_slice(b"late");
    let mut there = vec![0; LEN];
    file.read_exact_at(&mut there, 0).unwrap();
    assert!(there == plain, "open and without a name");
    drop(file);
    eventually("nothing is borrowed any more", || bed.union().borrowing() == 0);
}

fn the_quota_counts_what_will_be_there() {
    let bed = bed();
    let limits = Limits { bytes: Some((16 << 20) + (256 << 10)), inodes: None };
    bed.union().limit(limits).unwrap();
    let file = rw(bed.at("f"));
    file.write_all_at(b"x", 0).unwrap();
    put(bed.at("small"), [1; 4096]);
    assert_eq!(errno(std::fs::write(bed.at("large"), vec![1; 1 << 20])), libc::EDQUOT);
    std::fs::remove_file(bed.at("large")).unwrap();
    assert_eq!(bed.union().complete(), []);
    file.sync_all().unwrap();
    let taken: u64 = ["", "f", "small"].iter().map(|f| stat(bed.upper(f)).blocks() * 512).sum();
    let used = bed.union().usage().unwrap().bytes;
    assert_eq!(used, taken);
    assert!(used <= limits.bytes.unwrap());
    // One that is not allowed to be whole does not even begin.
    let small = self::bed();
    small.union().limit(Limits { bytes: Some(8 << 20), inodes: None }).unwrap();
    assert_eq!(errno(rw(small.at("f")).write_all_at(b"x", 0)), libc::EDQUOT);
    assert_eq!(small.union().borrowing(), 0);
    assert!(gone(small.upper("f")));
}
