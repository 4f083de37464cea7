//! Extended attributes and ACLs.

use crate::create::tool;
use crate::harness::*;
use sbx_fuse::base::Errno;
use sbx_fuse::sys::{file, xattr};
use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

crate::cases![
    of_files_and_directories,
    flags_and_sizes,
    marks_are_hidden,
    copied_up_with_the_object,
    marks_of_an_unreadable_object,
    access_acls_set_the_mode,
    removing_an_absent_acl,
    capabilities_of_new_files,
];

fn open(path: impl AsRef<Path>) -> OwnedFd {
    file::open_path(path.as_ref().as_os_str().as_bytes(), libc::O_PATH).unwrap()
}

fn list(path: impl AsRef<Path>) -> Vec<String> {
    let mut names: Vec<String> = xattr::list(open(path).as_fd())
        .unwrap()
        .into_iter()
        .map(|n| String::from_utf8(n).unwrap())
        .filter(|n| n.starts_with("user."))
        .collect();
    names.sort();
    names
}

fn tree(l: &Path) {
    mkdir(l.join("d"));
    put(l.join("f"), "1");
    for name in ["d", "f"] {
        xattr::set(open(l.join(name)).as_fd(), b"user.lower", b"v", 0).unwrap();
    }
}

/// The kernel asks for them before a first write, and we know the answer for files made here; until one is set.
fn capabilities_of_new_files() {
    let bed = Bed::new(tree);
    put(bed.at("new"), "1");
    let fd = open(bed.at("new"));
    assert_eq!(xattr::get(fd.as_fd(), b"security.capability"), Ok(None));
    // cap_net_raw=ep, version 2 (linux/capability.h); only root may set one.
    let value = [1u32 | 2 << 24, 1 << 13, 0, 0, 0].map(u32::to_le_bytes).concat();
    match xattr::set(fd.as_fd(), b"security.capability", &value, 0) {
        Ok(()) => assert_eq!(xattr::get(fd.as_fd(), b"security.capability"), Ok(Some(value))),
        Err(e) => assert_eq!(e, Errno::EPERM),
    }
    assert_eq!(
        xattr::get(fd.as_fd(), b"security.capability").unwrap().is_some(),
        nix::unistd::geteuid().is_root()
    );
}

fn of_files_and_directories() {
    let mut bed = Bed::new(tree);
    for name in ["d", "f"] {
        let fd = open(bed.at(name));
        assert_eq!(list(bed.at(name)), ["user.lower"]);
        assert_eq!(xattr::get(fd.as_fd(), b"user.lower"), Ok(Some(b"v".to_vec())));
        xattr::set(fd.as_fd(), b"user.new", b"", 0).unwrap();
        xattr::set(fd.as_fd(), b"user.lower", b"changed", 0).unwrap();
        assert_eq!(xattr::remove(fd.as_fd(), b"user.none"), Err(Errno::ENODATA));
    }
    bed.remount();
    for name in ["d", "f"] {
        let fd = open(bed.at(name));
        assert_eq!(list(bed.at(name)), ["user.lower", "user.new"]);
        assert_eq!(xattr::get(fd.as_fd(), b"user.lower"), Ok(Some(b"changed".to_vec())));
        xattr::remove(fd.as_fd(), b"user.lower").unwrap();
        assert_eq!(xattr::get(fd.as_fd(), b"user.lower"), Ok(None));
        assert_eq!(xattr::get(open(bed.lower(name)).as_fd(), b"user.lower"), Ok(Some(b"v".to_vec())));
    }
    assert_eq!(text(bed.at("f")), "1");
}

fn flags_and_sizes() {
    let bed = Bed::new(tree);
    let fd = open(bed.at("f"));
    assert_eq!(xattr::set(fd.as_fd(), b"user.lower", b"x", libc::XATTR_CREATE), Err(Errno::EEXIST));
    assert_eq!(xattr::set(fd.as_fd(), b"user.none", b"x", libc::XATTR_REPLACE), Err(Errno::ENODATA));
    let long = vec![7u8; 2000];
    xattr::set(fd.as_fd(), b"user.long", &long, 0).unwrap();
    assert_eq!(xattr::get(fd.as_fd(), b"user.long"), Ok(Some(long)));
}

fn marks_are_hidden() {
    let bed = Bed::new(tree);
    put(bed.at("f"), "2");
    fs::rename(bed.at("d"), bed.at("e")).unwrap();
    for name in ["e", "f"] {
        let fd = open(bed.at(name));
        assert_eq!(list(bed.at(name)), ["user.lower"]);
        assert!(list(bed.upper(name)).iter().any(|n| n.starts_with("user.overlay.")));
        for mark in [b"user.overlay.redirect".as_slice(), b"user.overlay.sbx.base", b"user.overlay.opaque"] {
            assert_eq!(xattr::get(fd.as_fd(), mark), Ok(None));
            assert_eq!(xattr::set(fd.as_fd(), mark, b"y", 0), Err(Errno::EPERM));
            assert_eq!(xattr::remove(fd.as_fd(), mark), Err(Errno::ENODATA));
        }
    }
}

fn copied_up_with_the_object() {
    let mut bed = Bed::new(tree);
    put(bed.at("f"), "2");
    put(bed.at("d/x"), "2");
    for _ in 0..2 {
        assert_eq!(list(bed.at("f")), ["user.lower"]);
        assert_eq!(list(bed.at("d")), ["user.lower"]);
        bed.remount();
    }
}

/// `user.` xattrs follow the mode (xattr(7)), and so do our marks: still nothing is lost.
fn marks_of_an_unreadable_object() {
    let mut bed = Bed::new(|l| {
        tree(l);
        mkdir(l.join("e/x"));
        put(l.join("ro"), "ro");
        fs::hard_link(l.join("ro"), l.join("ro2")).unwrap();
        chmod(l.join("ro"), 0o444);
        xattr::set(open(l.join("e")).as_fd(), b"user.lower", b"v", 0).unwrap();
    });
    use std::os::unix::fs::MetadataExt;
    let ino = stat(bed.at("ro")).ino();
    fs::rename(bed.at("ro"), bed.at("ro3")).unwrap();
    fs::rename(bed.at("e"), bed.at("g")).unwrap();
    chmod(bed.at("g"), 0o000);
    chmod(bed.at("f"), 0o000);
    chmod(bed.at("ro3"), 0o000);
    for _ in 0..2 {
        bed.remount();
        for name in ["g", "f", "ro3", "ro2"] {
            assert_eq!(stat(bed.at(name)).mode() & 0o7777, 0, "{name}");
        }
        assert_eq!((stat(bed.at("ro3")).ino(), stat(bed.at("ro2")).ino()), (ino, ino));
    }
    chmod(bed.at("g"), 0o700);
    assert_eq!(ls(bed.at("g")), ["x"]);
    chmod(bed.at("ro2"), 0o600);
    assert_eq!(text(bed.at("ro3")), "ro");
}

fn access_acls_set_the_mode() {
    let mut bed = Bed::new(tree);
    let path = bed.at("f").to_str().unwrap().to_owned();
    chmod(&path, 0o600);
    if tool("setfacl", &["-m", "u:12:rw", &path]).is_none() {
        return;
    }
    for _ in 0..2 {
        use std::os::unix::fs::MetadataExt;
        assert!(tool("getfacl", &["-cnp", &path]).unwrap().contains("user:12:rw-"));
        assert_eq!(stat(&path).mode() & 0o777, 0o660, "the mask shows as the group's bits");
        bed.remount();
    }
    chmod(&path, 0o640);
    assert!(tool("getfacl", &["-cnp", &path]).unwrap().contains("mask::r--"));
    tool("setfacl", &["-b", &path]).unwrap();
    assert!(!tool("getfacl", &["-cnp", &path]).unwrap().contains("user:12"));
    drop(File::open(&path).unwrap());
    assert!(!tool("getfacl", &["-cnp", bed.lower("f").to_str().unwrap()]).unwrap().contains("user:12"));
}

/// As on ext4, where "without an ACL" is what is asked for; `tar --acls -x` does so with each directory.
fn removing_an_absent_acl() {
    let bed = Bed::new(tree);
    mkdir(bed.at("new"));
    for name in ["d", "new", "f"] {
        for acl in [b"system.posix_acl_access".as_slice(), b"system.posix_acl_default"] {
            let native = xattr::remove(open(bed.lower("d")).as_fd(), acl);
            assert_eq!(xattr::remove(open(bed.at(name)).as_fd(), acl), native, "{name}");
        }
    }
    assert_eq!(ls(bed.upper("")), ["new"], "nothing was copied up for it");
}
