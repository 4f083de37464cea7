//! FALLOCATE, LSEEK, COPY_FILE_RANGE, STATFS, FSYNC.

use crate::harness::*;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::unistd::{Whence, lseek};
use std::fs::{File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};

crate::cases![fallocate_of_a_lower_file, data_and_holes, copies_of_ranges, figures_of_the_file_system, syncs,];

fn rw(path: std::path::PathBuf) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

fn fallocate_of_a_lower_file() {
    let bed = Bed::new(|l| put(l.join("f"), vec![1u8; 40_000]));
    let file = rw(bed.at("f"));
    fallocate(&file, FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, 1 << 20).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 40_000);
    assert!(stat(bed.at("f")).blocks() * 512 >= 1 << 20);
    let punch = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    fallocate(&file, punch, 4096, 8192).unwrap();
    fallocate(&file, FallocateFlags::FALLOC_FL_ZERO_RANGE, 20_000, 100).unwrap();
    fallocate(&file, FallocateFlags::empty(), 0, 50_000).unwrap();
    let bytes = get(bed.at("f"));
    assert_eq!(bytes.len(), 50_000);
    for (i, byte) in bytes.iter().enumerate() {
        let zero = (4096..12_288).contains(&i) || (20_000..20_100).contains(&i) || i >= 40_000;
        assert_eq!(*byte, u8::from(!zero), "byte {i}");
    }
    assert_eq!(get(bed.lower("f")), vec![1u8; 40_000]);
}

fn data_and_holes() {
    let bed = Bed::new(|l| {
        let file = File::create(l.join("f")).unwrap();
        file.set_len(1 << 20).unwrap();
        file.write_all_at(&[1; 4096], 512 << 10).unwrap();
    });
    for round in 0..2 {
        let file = File::open(bed.at("f")).unwrap();
        assert_eq!(lseek(&file, 0, Whence::SeekData), Ok(512 << 10), "round {round}");
        assert_eq!(lseek(&file, 512 << 10, Whence::SeekHole), Ok((512 << 10) + 4096));
        assert_eq!(nix_errno(lseek(&file, 600 << 10, Whence::SeekData)), libc::ENXIO);
        assert_eq!(lseek(&file, 0, Whence::SeekEnd), Ok(1 << 20));
        // The same of the copy.
        rw(bed.at("f")).write_all_at(&[2], 512 << 10).unwrap();
    }
}

fn copies_of_ranges() {
    let bed = Bed::new(|l| {
        put(l.join("a"), "0123456789");
        put(l.join("b"), "abcdefghij");
    });
    let (a, b) = (File::open(bed.at("a")).unwrap(), rw(bed.at("b")));
    assert_eq!(sbx_fuse::sys::data::copy_range(a.as_fd(), 2, b.as_fd(), 8, 5), Ok(5));
    assert_eq!(text(bed.at("b")), "abcdefgh23456");
    assert_eq!(b.metadata().unwrap().len(), 13);
    // The way a copying tool does it.
    let mut c = File::create(bed.at("c")).unwrap();
    std::io::copy(&mut File::open(bed.at("b")).unwrap(), &mut c).unwrap();
    assert_eq!(text(bed.at("c")), "abcdefgh23456");
    assert_eq!((text(bed.lower("a")), text(bed.lower("b"))), ("0123456789".into(), "abcdefghij".into()));
    assert!(gone(bed.upper("a")));
}

fn figures_of_the_file_system() {
    let bed = Bed::new(|_| {});
    let seen = nix::sys::statvfs::statvfs(&bed.at("")).unwrap();
    let host = nix::sys::statvfs::statvfs(&bed.outside("")).unwrap();
    assert_eq!((seen.blocks(), seen.fragment_size()), (host.blocks(), host.fragment_size()));
    assert_eq!((seen.files(), seen.name_max()), (host.files(), host.name_max()));
    assert!(seen.blocks_available() > 0);
}

fn syncs() {
    let mut bed = Bed::new(|l| {
        mkdir(l.join("d"));
        put(l.join("d/f"), "lower");
    });
    File::open(bed.at("d/f")).unwrap().sync_all().unwrap();
    File::open(bed.at("d")).unwrap().sync_all().unwrap();
    let file = rw(bed.at("d/f"));
    file.write_all_at(b"L", 0).unwrap();
    file.sync_data().unwrap();
    file.sync_all().unwrap();
    File::open(bed.at("d")).unwrap().sync_all().unwrap();
    nix::unistd::syncfs(&file).unwrap();
    drop(file);
    bed.remount();
    assert_eq!(text(bed.at("d/f")), "Lower");
}
