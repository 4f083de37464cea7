//! READ and WRITE, with mappings, and descriptors from before a copy-up.

use crate::harness::*;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};

crate::cases![
    append_goes_to_the_end,
    truncating_and_exclusive_opens,
    a_reader_from_before_the_copy_up_sees_the_write,
    mappings_from_before_the_copy_up_see_the_write,
    a_write_through_a_shared_mapping,
    sparse_files_stay_sparse,
    offsets_over_four_gibibytes,
    many_writers_of_one_lower_file,
    a_large_file_is_copied_whole,
    a_write_takes_set_uid_away,
    content_survives_a_remount,
];

fn lower(l: &std::path::Path) {
    put(l.join("f"), "0123456789");
    put(l.join("g"), "0123456789");
    put(l.join("big"), (0..200_000u32).flat_map(u32::to_le_bytes).collect::<Vec<u8>>());
}

fn append_goes_to_the_end() {
    let bed = Bed::new(lower);
    let mut a = OpenOptions::new().append(true).open(bed.at("f")).unwrap();
    let mut b = OpenOptions::new().append(true).open(bed.at("f")).unwrap();
    a.write_all(b"a").unwrap();
    b.write_all(b"b").unwrap();
    a.write_all(b"c").unwrap();
    assert_eq!(in_process(&["append", "d", bed.at("f").to_str().unwrap()]), 0);
    b.write_all(b"e").unwrap();
    assert_eq!(text(bed.at("f")), "0123456789abcde");
    assert_eq!(text(bed.lower("f")), "0123456789");
}

fn truncating_and_exclusive_opens() {
    let bed = Bed::new(lower);
    drop(File::create(bed.at("big")).unwrap());
    assert_eq!(stat(bed.at("big")).len(), 0);
    put(bed.at("big"), "xy");
    assert_eq!(text(bed.at("big")), "xy");
    assert_eq!(errno(File::create_new(bed.at("f"))), libc::EEXIST);
    std::fs::remove_file(bed.at("f")).unwrap();
    drop(File::create_new(bed.at("f")).unwrap());
    assert_eq!(text(bed.at("f")), "");
    assert_eq!(get(bed.lower("big")).len(), 800_000);
}

fn a_reader_from_before_the_copy_up_sees_the_write() {
    let bed = Bed::new(lower);
    let mut reader = File::open(bed.at("f")).unwrap();
    let mut first = [0; 4];
    reader.read_exact(&mut first).unwrap();
    OpenOptions::new().write(true).open(bed.at("f")).unwrap().write_all_at(b"ABCDEFGHIJKL", 0).unwrap();
    let mut rest = String::new();
    reader.read_to_string(&mut rest).unwrap();
    assert_eq!((&first, rest.as_str()), (b"0123", "EFGHIJKL"));
    assert_eq!(reader.metadata().unwrap().len(), 12);
    // And one that never read: nothing was in the kernel's cache.
    let late = File::open(bed.at("big")).unwrap();
    OpenOptions::new().write(true).open(bed.at("big")).unwrap().write_all_at(b"new!", 400_000).unwrap();
    let mut four = [0; 4];
    late.read_exact_at(&mut four, 400_000).unwrap();
    assert_eq!(&four, b"new!");
}

// Mappings are made by another process: a page fault of our own would wait for our own server with the lock of our
// address space held, which the server may need.

fn mappings_from_before_the_copy_up_see_the_write() {
    let bed = Bed::new(lower);
    for kind in ["shared", "private"] {
        put(bed.outside("out"), "");
        let name = if kind == "shared" { "f" } else { "g" };
        let reader = Other::start(&[
            "map",
            kind,
            bed.at(name).to_str().unwrap(),
            bed.outside("out").to_str().unwrap(),
        ]);
        OpenOptions::new().write(true).open(bed.at(name)).unwrap().write_all_at(b"xyz", 3).unwrap();
        reader.end();
        // The private one was never written through, so it shows the file too.
        assert_eq!(text(bed.outside("out")), "0123456789 012xyz6789", "{kind}");
        assert_eq!(text(bed.lower(name)), "0123456789");
    }
}

fn a_write_through_a_shared_mapping() {
    let mut bed = Bed::new(lower);
    let before = File::open(bed.at("f")).unwrap();
    assert_eq!(in_process(&["map-write", "2", "map", bed.at("f").to_str().unwrap()]), 0);
    let mut seen = [0; 10];
    before.read_exact_at(&mut seen, 0).unwrap();
    assert_eq!(&seen, b"01map56789");
    drop(before);
    assert_eq!(text(bed.upper("f")), "01map56789");
    bed.remount();
    assert_eq!(text(bed.at("f")), "01map56789");
    assert_eq!(text(bed.lower("f")), "0123456789");
}

fn sparse_files_stay_sparse() {
    let bed = Bed::new(|l| {
        let file = File::create(l.join("f")).unwrap();
        file.set_len(64 << 20).unwrap();
        file.write_all_at(b"middle", 32 << 20).unwrap();
    });
    let file = OpenOptions::new().read(true).write(true).open(bed.at("f")).unwrap();
    file.write_all_at(b"end", (64 << 20) - 3).unwrap();
    assert!(stat(bed.upper("f")).blocks() * 512 < 1 << 20, "the copy is not sparse");
    let mut bytes = [1; 6];
    file.read_exact_at(&mut bytes, 32 << 20).unwrap();
    assert_eq!(&bytes, b"middle");
    file.read_exact_at(&mut bytes, 1 << 20).unwrap();
    assert_eq!(bytes, [0; 6]);
    assert_eq!(file.metadata().unwrap().len(), 64 << 20);
}

fn offsets_over_four_gibibytes() {
    let mut bed = Bed::new(lower);
    let at = (5 << 30) + 7;
    let mut file = OpenOptions::new().read(true).write(true).open(bed.at("f")).unwrap();
    file.write_all_at(b"far", at).unwrap();
    assert_eq!(file.metadata().unwrap().len(), at + 3);
    file.seek(SeekFrom::Start(at)).unwrap();
    let mut far = String::new();
    file.read_to_string(&mut far).unwrap();
    assert_eq!(far, "far");
    drop(file);
    bed.remount();
    let file = File::open(bed.at("f")).unwrap();
    let mut far = [0; 3];
    file.read_exact_at(&mut far, at).unwrap();
    assert_eq!(&far, b"far");
    file.read_exact_at(&mut far, 0).unwrap();
    assert_eq!(&far, b"012");
}

fn many_writers_of_one_lower_file() {
    let bed = Bed::new(lower);
    std::thread::scope(|scope| {
        for i in 0..8u64 {
            let path = bed.at("big");
            scope.spawn(move || {
                let file = OpenOptions::new().write(true).open(path).unwrap();
                for k in 0..20 {
                    file.write_all_at(&[i as u8; 100], (k * 8 + i) * 100).unwrap();
                }
            });
        }
    });
    let bytes = get(bed.at("big"));
    assert_eq!(bytes.len(), 800_000);
    for (n, piece) in bytes[..16_000].chunks(100).enumerate() {
        assert!(piece.iter().all(|b| *b == (n % 8) as u8), "piece {n}");
    }
    assert_eq!(bytes[16_000..], get(bed.lower("big"))[16_000..]);
}

fn a_large_file_is_copied_whole() {
    let bed = Bed::new(|l| put(l.join("f"), vec![0x5a; (9 << 20) + 13]));
    OpenOptions::new().append(true).open(bed.at("f")).unwrap().write_all(b"!").unwrap();
    let bytes = get(bed.at("f"));
    assert_eq!(bytes.len(), (9 << 20) + 14);
    assert!(bytes[..bytes.len() - 1].iter().all(|b| *b == 0x5a));
}

fn a_write_takes_set_uid_away() {
    if as_root() {
        return; // root keeps it (CAP_FSETID)
    }
    let bed = Bed::new(|l| {
        put(l.join("f"), "x");
        chmod(l.join("f"), 0o6755);
    });
    put(bed.at("g"), "x");
    chmod(bed.at("g"), 0o6755);
    for path in ["f", "g"] {
        assert_eq!(stat(bed.at(path)).mode() & 0o7777, 0o6755);
        let file = OpenOptions::new().write(true).custom_flags(libc::O_CLOEXEC).open(bed.at(path)).unwrap();
        file.write_all_at(b"y", 0).unwrap();
        assert_eq!(stat(bed.at(path)).mode() & 0o7777, 0o755, "{path}");
    }
}

fn content_survives_a_remount() {
    let mut bed = Bed::new(lower);
    put(bed.at("new"), "new");
    put(bed.at("f"), "changed");
    bed.remount();
    assert_eq!(text(bed.at("new")), "new");
    assert_eq!(text(bed.at("f")), "changed");
    OpenOptions::new().append(true).open(bed.at("f")).unwrap().write_all(b"+").unwrap();
    bed.remount();
    assert_eq!(text(bed.at("f")), "changed+");
}
