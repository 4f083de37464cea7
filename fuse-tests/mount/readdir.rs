//! READDIR: listings of merged directories, while they change.

use crate::harness::*;
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;

crate::cases![
    five_thousand_entries,
    deleting_while_listing,
    what_stays_is_listed_once_whatever_else_changes,
    names_that_are_no_text,
    a_listing_follows_changes,
    a_kept_descriptor_rewinds_to_the_present,
];

fn names(dir: &std::path::Path) -> Vec<OsString> {
    let mut names: Vec<OsString> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    names
}

fn five_thousand_entries() {
    let mut bed = Bed::new(|l| {
        mkdir(l.join("d"));
        (0..4000).for_each(|i| put(l.join(format!("d/l{i}")), ""));
    });
    (0..1000).for_each(|i| put(bed.at(format!("d/u{i}")), ""));
    (0..100).for_each(|i| fs::remove_file(bed.at(format!("d/l{i}"))).unwrap());
    let mut expected: Vec<OsString> = (100..4000).map(|i| format!("l{i}").into()).collect();
    expected.extend((0..1000).map(|i| OsString::from(format!("u{i}"))));
    expected.sort();
    for _ in 0..2 {
        assert_eq!(names(&bed.at("d")), expected);
        assert_eq!(names(&bed.at("d")), expected, "the second time");
        bed.remount();
    }
}

fn deleting_while_listing() {
    let bed = Bed::new(|l| {
        mkdir(l.join("d"));
        (0..1500).for_each(|i| put(l.join(format!("d/l{i}")), ""));
    });
    (0..1500).for_each(|i| put(bed.at(format!("d/u{i}")), ""));
    let mut seen = 0;
    for entry in fs::read_dir(bed.at("d")).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
        seen += 1;
    }
    assert_eq!(seen, 3000);
    assert_eq!(ls(bed.at("d")), [""; 0]);
    fs::remove_dir(bed.at("d")).unwrap();
}

fn what_stays_is_listed_once_whatever_else_changes() {
    let bed = Bed::new(|l| {
        mkdir(l.join("d"));
        (0..2000).for_each(|i| put(l.join(format!("d/stays{i}")), ""));
        (0..500).for_each(|i| put(l.join(format!("d/goes{i}")), ""));
    });
    let mut seen = HashSet::new();
    for (n, entry) in fs::read_dir(bed.at("d")).unwrap().enumerate() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.starts_with("stays") {
            assert!(seen.insert(name.clone()), "{name} twice");
        }
        if n % 5 == 0 && n / 5 < 500 {
            put(bed.at(format!("d/comes{n}")), "");
            fs::remove_file(bed.at(format!("d/goes{}", n / 5))).unwrap();
            // Another listing from the start, meanwhile.
            if n % 500 == 0 {
                drop(names(&bed.at("d")));
            }
        }
    }
    assert_eq!(seen.len(), 2000);
}

fn names_that_are_no_text() {
    let odd: Vec<Vec<u8>> = vec![
        vec![0xff, 0xfe],
        b"new\nline".to_vec(),
        b" ".to_vec(),
        b"\\".to_vec(),
        vec![0xc3; 255],
        vec![b'x'; 255],
    ];
    let path = |dir: std::path::PathBuf, name: &[u8]| dir.join(OsStr::from_bytes(name));
    let mut bed = Bed::new(|l| odd[..3].iter().for_each(|n| put(path(l.to_owned(), n), "lower")));
    odd[3..].iter().for_each(|n| put(path(bed.at(""), n), "upper"));
    put(path(bed.at(""), &odd[0]), "changed");
    for _ in 0..2 {
        let mut expected: Vec<OsString> = odd.iter().map(|n| OsStr::from_bytes(n).to_owned()).collect();
        expected.sort();
        assert_eq!(names(&bed.at("")), expected);
        assert_eq!(text(path(bed.at(""), &odd[0])), "changed");
        bed.remount();
    }
    for name in &odd {
        fs::remove_file(path(bed.at(""), name)).unwrap();
    }
    bed.remount();
    assert_eq!(names(&bed.at("")), [""; 0]);
}

fn a_listing_follows_changes() {
    let bed = Bed::new(|l| {
        mkdir(l.join("d"));
        put(l.join("d/a"), "");
        put(l.join("d/b"), "");
    });
    assert_eq!(ls(bed.at("d")), ["a", "b"]);
    put(bed.at("d/c"), "");
    assert_eq!(ls(bed.at("d")), ["a", "b", "c"]);
    fs::remove_file(bed.at("d/a")).unwrap();
    assert_eq!(ls(bed.at("d")), ["b", "c"]);
    fs::rename(bed.at("d/b"), bed.at("d/e")).unwrap();
    assert_eq!(ls(bed.at("d")), ["c", "e"]);
    fs::create_dir(bed.at("d/a")).unwrap();
    fs::rename(bed.at("d/e"), bed.at("d/a/e")).unwrap();
    assert_eq!(ls(bed.at("d")), ["a", "c"]);
    fs::hard_link(bed.at("d/c"), bed.at("d/l")).unwrap();
    assert_eq!(ls(bed.at("d")), ["a", "c", "l"]);
}

fn a_kept_descriptor_rewinds_to_the_present() {
    use nix::dir::Dir;
    use nix::fcntl::OFlag;
    let bed = Bed::new(|l| {
        mkdir(l.join("d"));
        put(l.join("d/a"), "");
    });
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let mut dir = Dir::open(&bed.at("d"), flags, nix::sys::stat::Mode::empty()).unwrap();
    // Each `iter` begins anew (rewinddir).
    let mut list =
        || dir.iter().filter(|e| !e.as_ref().unwrap().file_name().to_bytes().starts_with(b".")).count();
    assert_eq!(list(), 1);
    put(bed.at("d/b"), "");
    assert_eq!(list(), 2);
    fs::remove_file(bed.at("d/a")).unwrap();
    fs::remove_file(bed.at("d/b")).unwrap();
    assert_eq!(list(), 0);
    fs::remove_dir(bed.at("d")).unwrap();
    assert_eq!(list(), 0, "of a directory without a name");
}
