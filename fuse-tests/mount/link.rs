//! LINK, and hard links of the lower.

use crate::harness::*;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};

crate::cases![
    a_link_is_the_same_file,
    lower_links_stay_one_file,
    lower_links_in_other_directories,
    a_lower_link_loses_a_name,
    a_linked_file_replaced_by_its_own_name,
    a_new_link_to_a_lower_link,
];

fn a_link_is_the_same_file() {
    let mut bed = Bed::new(|l| put(l.join("lower"), "1"));
    put(bed.at("upper"), "1");
    for name in ["lower", "upper"] {
        let other = format!("{name}2");
        let ino = stat(bed.at(name)).ino();
        fs::hard_link(bed.at(name), bed.at(&other)).unwrap();
        assert_eq!((stat(bed.at(&other)).ino(), stat(bed.at(name)).nlink()), (ino, 2), "{name}");
        put(bed.at(&other), "2");
    }
    bed.remount();
    for name in ["lower", "upper"] {
        let other = format!("{name}2");
        assert_eq!(text(bed.at(name)), "2");
        assert_eq!(stat(bed.at(name)).ino(), stat(bed.at(&other)).ino(), "{name}");
        assert_eq!(stat(bed.at(&other)).nlink(), 2);
        fs::remove_file(bed.at(name)).unwrap();
        assert_eq!((text(bed.at(&other)), stat(bed.at(&other)).nlink()), ("2".to_owned(), 1));
    }
    assert_eq!(text(bed.lower("lower")), "1");
}

fn lower_links_stay_one_file() {
    let mut bed = Bed::new(|l| {
        put(l.join("a"), "0123");
        fs::hard_link(l.join("a"), l.join("b")).unwrap();
        fs::hard_link(l.join("a"), l.join("c")).unwrap();
    });
    let ino = stat(bed.lower("a")).ino();
    let check = |bed: &Bed, content: &str| {
        for name in ["a", "b", "c"] {
            let m = stat(bed.at(name));
            assert_eq!((m.ino(), m.nlink(), text(bed.at(name)).as_str()), (ino, 3, content), "{name}");
        }
    };
    check(&bed, "0123");
    let reader = fs::File::open(bed.at("c")).unwrap();
    OpenOptions::new().write(true).open(bed.at("b")).unwrap().write_all_at(b"X", 1).unwrap();
    let mut byte = [0];
    reader.read_exact_at(&mut byte, 1).unwrap();
    assert_eq!(&byte, b"X");
    drop(reader);
    check(&bed, "0X23");
    bed.remount();
    check(&bed, "0X23");
    OpenOptions::new().write(true).open(bed.at("c")).unwrap().write_all_at(b"Y", 0).unwrap();
    check(&bed, "YX23");
    bed.remount();
    check(&bed, "YX23");
    assert_eq!(text(bed.lower("c")), "0123");
}

fn lower_links_in_other_directories() {
    let mut bed = Bed::new(|l| {
        mkdir(l.join("x"));
        mkdir(l.join("y"));
        put(l.join("x/a"), "0");
        fs::hard_link(l.join("x/a"), l.join("y/b")).unwrap();
    });
    fs::rename(bed.at("y"), bed.at("z")).unwrap();
    put(bed.at("z/b"), "1");
    for _ in 0..2 {
        assert_eq!(text(bed.at("x/a")), "1");
        assert_eq!(stat(bed.at("x/a")).ino(), stat(bed.at("z/b")).ino());
        assert_eq!(stat(bed.at("x/a")).nlink(), 2);
        bed.remount();
    }
    fs::rename(bed.at("x/a"), bed.at("z/a")).unwrap();
    put(bed.at("z/a"), "2");
    for _ in 0..2 {
        assert_eq!((text(bed.at("z/a")), text(bed.at("z/b"))), ("2".into(), "2".into()));
        assert!(gone(bed.at("x/a")));
        bed.remount();
    }
}

fn a_lower_link_loses_a_name() {
    let mut bed = Bed::new(|l| {
        put(l.join("a"), "0");
        fs::hard_link(l.join("a"), l.join("b")).unwrap();
    });
    // Only while the file is known: how many of its names are gone is not kept for one that was never copied up.
    assert_eq!(stat(bed.at("b")).nlink(), 2);
    fs::remove_file(bed.at("a")).unwrap();
    assert_eq!(stat(bed.at("b")).nlink(), 1);
    put(bed.at("b"), "1");
    for _ in 0..2 {
        assert!(gone(bed.at("a")));
        assert_eq!((text(bed.at("b")), stat(bed.at("b")).nlink()), ("1".into(), 1));
        bed.remount();
    }
    let open = fs::File::open(bed.at("b")).unwrap();
    fs::remove_file(bed.at("b")).unwrap();
    assert_eq!(open.metadata().unwrap().nlink(), 0);
    assert_eq!(ls(bed.dirs.session.join("work/index")), [""; 0]);
}

fn a_linked_file_replaced_by_its_own_name() {
    let bed = Bed::new(|l| {
        put(l.join("a"), "0");
        fs::hard_link(l.join("a"), l.join("b")).unwrap();
    });
    // rename(2): two names of one file, nothing happens.
    fs::rename(bed.at("a"), bed.at("b")).unwrap();
    assert_eq!(ls(bed.at("")), ["a", "b"]);
    put(bed.at("c"), "1");
    fs::rename(bed.at("c"), bed.at("a")).unwrap();
    assert_eq!((text(bed.at("a")), text(bed.at("b"))), ("1".into(), "0".into()));
    assert_eq!(stat(bed.at("b")).nlink(), 1);
}

fn a_new_link_to_a_lower_link() {
    let mut bed = Bed::new(|l| {
        put(l.join("a"), "0");
        fs::hard_link(l.join("a"), l.join("b")).unwrap();
    });
    fs::hard_link(bed.at("b"), bed.at("c")).unwrap();
    put(bed.at("a"), "1");
    for _ in 0..2 {
        for name in ["a", "b", "c"] {
            assert_eq!((text(bed.at(name)), stat(bed.at(name)).nlink()), ("1".into(), 3), "{name}");
        }
        bed.remount();
    }
}
