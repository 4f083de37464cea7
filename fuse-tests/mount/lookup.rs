//! LOOKUP and FORGET: what the merged view has at a name.

use crate::harness::*;
use std::fs;
use std::os::unix::fs::MetadataExt;

crate::cases![
    names_of_both_layers,
    an_absent_name_appears_when_made,
    a_name_too_long,
    a_deep_tree,
    many_names_are_forgotten_and_found_again,
];

fn names_of_both_layers() {
    let bed = Bed::new(|l| {
        mkdir(l.join("d/e"));
        put(l.join("d/f"), "lower");
        std::os::unix::fs::symlink("d/f", l.join("s")).unwrap();
    });
    put(bed.at("d/g"), "upper");
    assert_eq!(text(bed.at("d/f")), "lower");
    assert_eq!(text(bed.at("s")), "lower");
    assert_eq!(text(bed.at("d/g")), "upper");
    assert!(stat(bed.at("d/e")).is_dir());
    assert!(gone(bed.lower("d/g")), "the real tree was written to");
    assert!(gone(bed.upper("d/f")), "a read made a copy");
    assert_eq!(errno(fs::metadata(bed.at("d/f/x"))), libc::ENOTDIR);
}

fn an_absent_name_appears_when_made() {
    let bed = Bed::new(|l| mkdir(l.join("d")));
    assert!(gone(bed.at("d/x")));
    put(bed.at("d/x"), "1");
    assert_eq!(text(bed.at("d/x")), "1");
    fs::remove_file(bed.at("d/x")).unwrap();
    assert!(gone(bed.at("d/x")));
}

fn a_name_too_long() {
    let bed = Bed::new(|_| {});
    assert_eq!(errno(fs::metadata(bed.at("x".repeat(256)))), libc::ENAMETOOLONG);
    put(bed.at("x".repeat(255)), "1");
    assert_eq!(ls(bed.at("")), ["x".repeat(255)]);
}

fn a_deep_tree() {
    use nix::fcntl::{AtFlags, OFlag, open, openat};
    use nix::sys::stat::{Mode, fstatat, mkdirat};
    use std::io::Write;
    // Deeper than a path may be long (PATH_MAX): by steps, each from the directory before.
    let name = "n".repeat(200);
    let depth = 30;
    let step = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let bed = Bed::new(|l| {
        let mut at = open(l, step, Mode::empty()).unwrap();
        for _ in 0..depth {
            mkdirat(&at, name.as_str(), Mode::S_IRWXU).unwrap();
            at = openat(&at, name.as_str(), step, Mode::empty()).unwrap();
        }
        let file = openat(&at, "leaf", OFlag::O_CREAT | OFlag::O_WRONLY, Mode::S_IRWXU).unwrap();
        fs::File::from(file).write_all(b"deep").unwrap();
    });
    let mut at = open(&bed.at(""), step, Mode::empty()).unwrap();
    for _ in 0..depth {
        at = openat(&at, name.as_str(), step, Mode::empty()).unwrap();
    }
    let ino = fstatat(&at, "leaf", AtFlags::empty()).unwrap().st_ino;
    let leaf = openat(&at, "leaf", OFlag::O_RDWR | OFlag::O_APPEND, Mode::empty()).unwrap();
    let mut leaf = fs::File::from(leaf);
    leaf.write_all(b"er").unwrap();
    assert_eq!(leaf.metadata().unwrap().len(), 6);
    assert_eq!(leaf.metadata().unwrap().ino(), ino);
    mkdirat(&at, "new", Mode::S_IRWXU).unwrap();
    nix::fcntl::renameat(&at, "leaf", &at, "new/leaf").unwrap();
    let moved = openat(&at, "new/leaf", OFlag::O_RDONLY, Mode::empty()).unwrap();
    let mut bytes = String::new();
    std::io::Read::read_to_string(&mut fs::File::from(moved), &mut bytes).unwrap();
    assert_eq!(bytes, "deeper");
    // A directory down there moves as well.
    nix::fcntl::renameat(&at, "new", &at, "new2").unwrap();
    assert_eq!(fstatat(&at, "new2/leaf", AtFlags::empty()).unwrap().st_ino, ino);
}

fn many_names_are_forgotten_and_found_again() {
    let bed = Bed::new(|l| {
        for i in 0..300 {
            put(l.join(format!("f{i}")), format!("{i}"));
        }
    });
    let before: Vec<u64> = (0..300).map(|i| stat(bed.at(format!("f{i}"))).ino()).collect();
    // Reclaims dentries and inodes of the mount: the kernel forgets.
    drop(fs::File::open(bed.at("")).unwrap());
    for i in 0..300 {
        if i % 3 == 0 {
            put(bed.at(format!("f{i}")), "new");
        }
    }
    for (i, ino) in before.iter().enumerate() {
        let path = bed.at(format!("f{i}"));
        assert_eq!(stat(&path).ino(), *ino);
        assert_eq!(text(&path), if i % 3 == 0 { "new".to_owned() } else { i.to_string() });
    }
}
