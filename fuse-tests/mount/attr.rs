//! GETATTR and SETATTR: mode, times, size; identity of what the session did not touch.

use crate::harness::*;
use nix::fcntl::{AT_FDCWD, OFlag};
use nix::sys::stat::{UtimensatFlags, utimensat};
use nix::sys::time::TimeSpec;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{DirEntryExt, MetadataExt};

crate::cases![
    untouched_objects_have_the_lowers_identity,
    the_number_survives_copy_up_and_remount,
    entries_of_a_listing_have_the_numbers_of_stat,
    times_now_omit_and_given,
    times_of_a_symlink_itself,
    chmod_of_files_and_directories,
    truncate_up_and_down,
    truncate_of_a_write_only_file,
    copy_up_does_not_touch_the_directorys_times,
    a_failed_change_leaves_no_copy,
    directories_without_write_permission,
];

const TREE: &[&str] = &["d", "d/f", "d/e", "d/e/g", "s", "h1", "h2", "p"];

fn tree(l: &std::path::Path) {
    mkdir(l.join("d/e"));
    put(l.join("d/f"), "content");
    put(l.join("d/e/g"), "more");
    std::os::unix::fs::symlink("d/f", l.join("s")).unwrap();
    put(l.join("h1"), "linked");
    fs::hard_link(l.join("h1"), l.join("h2")).unwrap();
    nix::unistd::mkfifo(&l.join("p"), nix::sys::stat::Mode::S_IRWXU).unwrap();
}

fn untouched_objects_have_the_lowers_identity() {
    let mut bed = Bed::new(tree);
    for round in 0..2 {
        for path in TREE.iter().chain(&[""]) {
            let (real, seen) = (stat(bed.lower(path)), stat(bed.at(path)));
            assert_eq!(seen.ino(), real.ino(), "{path} in round {round}");
            assert_eq!((seen.mtime(), seen.mtime_nsec()), (real.mtime(), real.mtime_nsec()), "{path}");
            assert_eq!(
                (seen.mode(), seen.uid(), seen.gid()),
                (real.mode(), real.uid(), real.gid()),
                "{path}"
            );
            if !path.is_empty() {
                assert_eq!((seen.ctime(), seen.ctime_nsec()), (real.ctime(), real.ctime_nsec()), "{path}");
                assert_eq!((seen.size(), seen.nlink()), (real.size(), real.nlink()), "{path}");
            }
        }
        bed.remount();
    }
}

fn the_number_survives_copy_up_and_remount() {
    let mut bed = Bed::new(tree);
    let before: Vec<u64> = TREE.iter().map(|p| stat(bed.at(p)).ino()).collect();
    let same = |bed: &Bed, when: &str| {
        for (path, ino) in TREE.iter().zip(&before) {
            if !(["s", "p"].contains(path) && when == "after the remount") {
                assert_eq!(stat(bed.at(path)).ino(), *ino, "{path} {when}");
            }
        }
    };
    put(bed.at("d/f"), "new");
    put(bed.at("d/e/g"), "new");
    put(bed.at("h2"), "new");
    chmod(bed.at("d"), 0o750);
    let now = TimeSpec::new(1, 2);
    for path in ["s", "p"] {
        utimensat(AT_FDCWD, &bed.at(path), &now, &now, UtimensatFlags::NoFollowSymlink).unwrap();
    }
    same(&bed, "after the copy-up");
    fs::rename(bed.at("d/f"), bed.at("d/f2")).unwrap();
    fs::rename(bed.at("d/f2"), bed.at("d/f")).unwrap();
    fs::rename(bed.at("d"), bed.at("d2")).unwrap();
    fs::rename(bed.at("d2"), bed.at("d")).unwrap();
    same(&bed, "after renames");
    bed.remount();
    same(&bed, "after the remount");
}

fn entries_of_a_listing_have_the_numbers_of_stat() {
    let bed = Bed::new(tree);
    put(bed.at("d/new"), "");
    for dir in ["", "d", "d/e"] {
        for entry in fs::read_dir(bed.at(dir)).unwrap() {
            let entry = entry.unwrap();
            assert_eq!(entry.ino(), stat(entry.path()).ino(), "{}", entry.path().display());
        }
    }
    // `.` and `..`, which the standard library leaves out.
    for (dir, name, is) in [("", ".", ""), ("d", ".", "d"), ("d", "..", ""), ("d/e", "..", "d")] {
        let mut listing = nix::dir::Dir::open(
            &bed.at(dir),
            OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
            nix::sys::stat::Mode::empty(),
        )
        .unwrap();
        let entry = listing.iter().map(Result::unwrap).find(|e| e.file_name().to_bytes() == name.as_bytes());
        assert_eq!(entry.unwrap().ino(), stat(bed.at(is)).ino(), "{name} of {dir}");
    }
}

fn times_now_omit_and_given() {
    let bed = Bed::new(tree);
    for path in ["d/f", "d"] {
        let path = bed.at(path);
        let set = |a, m| utimensat(AT_FDCWD, &path, &a, &m, UtimensatFlags::FollowSymlink).unwrap();
        set(TimeSpec::new(1_000, 123_456_789), TimeSpec::new(-5, 999_999_999));
        let m = stat(&path);
        assert_eq!(
            (m.atime(), m.atime_nsec(), m.mtime(), m.mtime_nsec()),
            (1_000, 123_456_789, -5, 999_999_999)
        );
        set(TimeSpec::UTIME_OMIT, TimeSpec::new(7, 0));
        let m = stat(&path);
        assert_eq!((m.atime(), m.mtime(), m.mtime_nsec()), (1_000, 7, 0));
        set(TimeSpec::UTIME_NOW, TimeSpec::UTIME_OMIT);
        let m = stat(&path);
        assert!(m.atime() > 1_600_000_000);
        assert_eq!(m.mtime(), 7);
        set(TimeSpec::UTIME_NOW, TimeSpec::UTIME_NOW);
        assert!(stat(&path).mtime() > 1_600_000_000);
    }
    assert!(stat(bed.lower("d/f")).mtime() > 1_600_000_000, "the real file was touched");
}

fn times_of_a_symlink_itself() {
    let mut bed = Bed::new(tree);
    let t = TimeSpec::new(11, 22);
    utimensat(AT_FDCWD, &bed.at("s"), &t, &t, UtimensatFlags::NoFollowSymlink).unwrap();
    for _ in 0..2 {
        assert_eq!((stat(bed.at("s")).mtime(), stat(bed.at("s")).mtime_nsec()), (11, 22));
        assert_eq!(fs::read_link(bed.at("s")).unwrap().to_str(), Some("d/f"));
        assert!(stat(bed.at("d/f")).mtime() > 1_600_000_000);
        bed.remount();
    }
}

fn chmod_of_files_and_directories() {
    let mut bed = Bed::new(tree);
    let real = stat(bed.lower("d/f")).mode();
    for mode in [0o000, 0o444, 0o200, 0o4755, 0o1777, 0o600] {
        chmod(bed.at("d/f"), mode);
        assert_eq!(stat(bed.at("d/f")).mode() & 0o7777, mode);
    }
    for mode in [0o000, 0o555, 0o300, 0o1777, 0o711] {
        chmod(bed.at("d/e"), mode);
        assert_eq!(stat(bed.at("d/e")).mode() & 0o7777, mode);
    }
    bed.remount();
    assert_eq!(stat(bed.at("d/f")).mode() & 0o7777, 0o600);
    assert_eq!(stat(bed.at("d/e")).mode() & 0o7777, 0o711);
    assert_eq!(text(bed.at("d/e/g")), "more");
    assert_eq!(stat(bed.lower("d/f")).mode(), real);
}

fn truncate_up_and_down() {
    let mut bed = Bed::new(|l| {
        put(l.join("small"), "0123456789");
        put(l.join("big"), vec![7u8; 300_000]);
    });
    for (path, len) in [("small", 10u64), ("big", 300_000)] {
        let byte = get(bed.at(path))[0];
        for to in [len - 3, len + 5000, 0, 4096] {
            let file = OpenOptions::new().write(true).open(bed.at(path)).unwrap();
            file.set_len(to).unwrap();
            assert_eq!(stat(bed.at(path)).len(), to);
            assert_eq!(get(bed.at(path)).len() as u64, to);
        }
        assert!(get(bed.at(path)).iter().all(|b| *b == 0));
        assert_eq!(get(bed.lower(path))[0], byte);
    }
    bed.remount();
    assert_eq!(get(bed.at("big")), vec![0; 4096]);
}

fn truncate_of_a_write_only_file() {
    let bed = Bed::new(|l| {
        put(l.join("f"), "secret");
        chmod(l.join("f"), 0o200);
    });
    let mut file = OpenOptions::new().write(true).truncate(true).open(bed.at("f")).unwrap();
    std::io::Write::write_all(&mut file, b"new").unwrap();
    assert_eq!(stat(bed.at("f")).len(), 3);
    chmod(bed.at("f"), 0o600);
    assert_eq!(text(bed.at("f")), "new");
}

fn copy_up_does_not_touch_the_directorys_times() {
    let bed = Bed::new(tree);
    let before = stat(bed.at("d"));
    OpenOptions::new().write(true).open(bed.at("d/f")).unwrap().set_len(2).unwrap();
    let after = stat(bed.at("d"));
    assert_eq!((before.mtime(), before.mtime_nsec()), (after.mtime(), after.mtime_nsec()));
}

fn a_failed_change_leaves_no_copy() {
    let bed = Bed::new(tree);
    assert_eq!(errno(fs::hard_link(bed.at("d"), bed.at("x"))), libc::EPERM);
    assert_eq!(errno(fs::create_dir(bed.at("d/f"))), libc::EEXIST);
    assert_eq!(errno(fs::remove_dir(bed.at("d"))), libc::ENOTEMPTY);
    assert_eq!(errno(fs::remove_dir(bed.at("d/f"))), libc::ENOTDIR);
    assert_eq!(errno(fs::rename(bed.at("d/f"), bed.at("d/e"))), libc::EISDIR);
    assert!(gone(bed.upper("d/e")));
}

/// Their owner may change them all the same, and what lies in them.
fn directories_without_write_permission() {
    let mut bed = Bed::new(|l| {
        mkdir(l.join("ro/sub"));
        put(l.join("ro/f"), "1");
        put(l.join("ro/sub/g"), "1");
        chmod(l.join("ro/sub"), 0o555);
        chmod(l.join("ro"), 0o555);
    });
    put(bed.at("ro/sub/g"), "2");
    put(bed.at("ro/f"), "2");
    for _ in 0..2 {
        assert_eq!((text(bed.at("ro/f")), text(bed.at("ro/sub/g"))), ("2".into(), "2".into()));
        for dir in ["ro", "ro/sub"] {
            assert_eq!(stat(bed.at(dir)).mode() & 0o7777, 0o555, "{dir}");
        }
        bed.remount();
    }
    chmod(bed.at("ro"), 0o755);
    chmod(bed.at("ro/sub"), 0o755);
    std::fs::remove_dir_all(bed.at("ro")).unwrap();
    assert!(gone(bed.at("ro")));
    for dir in ["ro", "ro/sub"] {
        chmod(bed.lower(dir), 0o755); // the bed is taken away
    }
}
