//! CREATE, MKNOD, MKDIR, SYMLINK: what is made, with which mode.

use crate::harness::*;
use std::fs::{self, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::process::Command;

crate::cases![
    every_kind_of_object,
    the_umask_of_the_caller_counts,
    a_default_acl_overrides_the_umask,
    a_set_gid_directory_gives_its_group,
    a_read_only_file_is_written_through_its_first_descriptor,
    a_write_only_file,
    many_small_files_in_a_row,
    others_at_one_of_many_files_in_a_row,
    over_a_whiteout,
    a_directory_over_a_deleted_one_is_empty,
    in_a_directory_that_was_removed,
    a_device_that_would_be_a_whiteout,
];

fn every_kind_of_object() {
    let mut bed = Bed::new(|l| mkdir(l.join("d")));
    put(bed.at("d/file"), "1");
    mkdir(bed.at("d/dir"));
    std::os::unix::fs::symlink("a target", bed.at("d/symlink")).unwrap();
    nix::unistd::mkfifo(&bed.at("d/fifo"), nix::sys::stat::Mode::S_IRUSR).unwrap();
    // A bound socket holds on to its mount, so it is let go of at once.
    drop(std::os::unix::net::UnixListener::bind(bed.at("d/socket")).unwrap());
    for _ in 0..2 {
        assert!(stat(bed.at("d/file")).is_file());
        assert!(stat(bed.at("d/dir")).is_dir());
        assert_eq!(fs::read_link(bed.at("d/symlink")).unwrap().to_str(), Some("a target"));
        assert_eq!(stat(bed.at("d/symlink")).len(), 8);
        assert!(stat(bed.at("d/fifo")).file_type().is_fifo());
        assert!(stat(bed.at("d/socket")).file_type().is_socket());
        assert_eq!(ls(bed.at("d")), ["dir", "fifo", "file", "socket", "symlink"]);
        bed.remount();
    }
    assert_eq!(ls(bed.lower("d")), [""; 0]);
}

fn the_umask_of_the_caller_counts() {
    let bed = Bed::new(|l| {
        mkdir(l.join("d"));
        put(l.join("d/w"), "");
        mkdir(l.join("d/w2"));
    });
    fs::remove_file(bed.at("d/w")).unwrap();
    fs::remove_dir(bed.at("d/w2")).unwrap();
    let path = |name: &str| bed.at(name).to_str().unwrap().to_owned();
    for (what, name, mode, is) in [
        ("create", "d/a", "666", 0o640),
        ("create", "d/w", "777", 0o750),
        ("mkdir", "d/b", "777", 0o750),
        ("mkdir", "d/w2", "777", 0o750),
        ("mkfifo", "d/c", "666", 0o640),
    ] {
        assert_eq!(in_process(&[what, "027", mode, &path(name)]), 0);
        assert_eq!(stat(bed.at(name)).mode() & 0o7777, is, "{what} {name}");
    }
}

/// Runs a tool of the host; `None` when it is not installed.
pub fn tool(program: &str, args: &[&str]) -> Option<String> {
    let out = Command::new(program).args(args).output().ok()?;
    assert!(out.status.success(), "{program} {args:?}: {}", String::from_utf8(out.stderr).unwrap());
    Some(String::from_utf8(out.stdout).unwrap())
}

fn a_default_acl_overrides_the_umask() {
    let mut bed = Bed::new(|l| {
        mkdir(l.join("d"));
        put(l.join("d/w"), "");
        mkdir(l.join("d/w2"));
    });
    let d = bed.at("d").to_str().unwrap().to_owned();
    if tool("setfacl", &["-d", "-m", "u::rwx,g::rwx,o::---,u:12:rw", &d]).is_none() {
        return;
    }
    fs::remove_file(bed.at("d/w")).unwrap();
    fs::remove_dir(bed.at("d/w2")).unwrap();
    for round in 0..2 {
        for name in ["a", "w"] {
            let path = format!("{d}/{name}");
            assert_eq!(in_process(&["create", "077", "666", &path]), 0);
            assert_eq!(stat(&path).mode() & 0o7777, 0o660, "{name} in round {round}");
            let acl = tool("getfacl", &["-cnp", &path]).unwrap();
            assert!(acl.contains("user:12:rw-"), "{name}: {acl}");
        }
        for name in ["b", "w2"] {
            let path = format!("{d}/{name}");
            assert_eq!(in_process(&["mkdir", "077", "777", &path]), 0);
            assert_eq!(stat(&path).mode() & 0o7777, 0o770, "{name} in round {round}");
            let acl = tool("getfacl", &["-cnp", &path]).unwrap();
            assert!(acl.contains("default:user:12:rw-"), "{name}: {acl}");
            fs::remove_dir(path).unwrap();
        }
        fs::remove_file(bed.at("d/a")).unwrap();
        fs::remove_file(bed.at("d/w")).unwrap();
        bed.remount();
    }
}

fn a_set_gid_directory_gives_its_group() {
    let bed = Bed::new(|l| {
        mkdir(l.join("d"));
        put(l.join("d/w"), "");
        mkdir(l.join("d/w2"));
        chmod(l.join("d"), 0o2775);
    });
    let gid = stat(bed.at("d")).gid();
    fs::remove_file(bed.at("d/w")).unwrap();
    fs::remove_dir(bed.at("d/w2")).unwrap();
    for name in ["d/f", "d/w"] {
        put(bed.at(name), "");
        assert_eq!(stat(bed.at(name)).gid(), gid);
    }
    for name in ["d/e", "d/w2"] {
        fs::create_dir(bed.at(name)).unwrap();
        assert_eq!((stat(bed.at(name)).gid(), stat(bed.at(name)).mode() & 0o2000), (gid, 0o2000), "{name}");
    }
}

fn a_read_only_file_is_written_through_its_first_descriptor() {
    let bed = Bed::new(|l| put(l.join("w"), ""));
    fs::remove_file(bed.at("w")).unwrap();
    for name in ["f", "w"] {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o444)
            .open(bed.at(name))
            .unwrap();
        file.write_all(b"content").unwrap();
        file.set_len(4).unwrap();
        file.rewind().unwrap();
        let mut read = String::new();
        file.read_to_string(&mut read).unwrap();
        assert_eq!(read, "cont");
        assert_eq!(stat(bed.at(name)).mode() & 0o777, 0o444);
        let again = OpenOptions::new().write(true).open(bed.at(name));
        assert_eq!(errno(again), if as_root() { 0 } else { libc::EACCES });
    }
}

fn a_write_only_file() {
    let mut bed = Bed::new(|_| {});
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o200).open(bed.at("f")).unwrap();
    file.write_all(b"a").unwrap();
    drop(file);
    bed.remount();
    OpenOptions::new().append(true).open(bed.at("f")).unwrap().write_all(b"b").unwrap();
    assert_eq!(errno(fs::File::open(bed.at("f"))), if as_root() { 0 } else { libc::EACCES });
    assert_eq!(stat(bed.at("f")).mode() & 0o777, 0o200);
    chmod(bed.at("f"), 0o600);
    assert_eq!(text(bed.at("f")), "ab");
}

/// From the fourth on such a descriptor does not go through the kernel's pages.
fn many_small_files_in_a_row() {
    let mut bed = Bed::new(|l| put(l.join("real"), "from the real tree"));
    let content = |i: usize| [&b"ab".repeat(5_000 + i), b"tail".as_slice()].concat();
    for i in 0..10 {
        let mut file = fs::File::create_new(bed.at(format!("f{i}"))).unwrap();
        file.write_all(&content(i)[..3]).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 3);
        file.write_all(&content(i)[3..]).unwrap();
        file.seek_relative(10_000).unwrap();
        file.write_all(b"beyond").unwrap();
        file.set_len(content(i).len() as u64).unwrap();
        file.sync_all().unwrap();
    }
    let mut copy = fs::File::create_new(bed.at("copy")).unwrap();
    std::io::copy(&mut fs::File::open(bed.at("real")).unwrap(), &mut copy).unwrap();
    copy.write_all(b", and more").unwrap();
    let mut append = OpenOptions::new().append(true).create_new(true).open(bed.at("append")).unwrap();
    append.write_all(b"one ").unwrap();
    OpenOptions::new().append(true).open(bed.at("append")).unwrap().write_all(b"two ").unwrap();
    append.write_all(b"three").unwrap();
    drop((copy, append));
    for _ in 0..2 {
        for i in 0..10 {
            assert!(fs::read(bed.at(format!("f{i}"))).unwrap() == content(i), "f{i}");
        }
        assert_eq!(text(bed.at("copy")), "from the real tree, and more");
        assert_eq!(text(bed.at("append")), "one two three");
        bed.remount();
    }
}

fn others_at_one_of_many_files_in_a_row() {
    let bed = Bed::new(|_| {});
    for i in 0..8 {
        let (name, out) = (format!("f{i}"), format!("out{i}"));
        put(bed.outside(&out), "");
        let writer = fs::File::create_new(bed.at(&name)).unwrap();
        writer.write_all_at(b"0123456789", 0).unwrap();
        let reader = fs::File::open(bed.at(&name)).unwrap();
        let mut seen = [0; 10];
        reader.read_exact_at(&mut seen, 0).unwrap();
        let (path, out) = (bed.at(&name), bed.outside(&out));
        let mapped = Other::start(&["map", "shared", path.to_str().unwrap(), out.to_str().unwrap()]);
        writer.write_all_at(b"xyz", 3).unwrap();
        mapped.end();
        assert_eq!(text(&out), "0123456789 012xyz6789", "{name}");
        assert_eq!(in_process(&["map-write", "2", "M", path.to_str().unwrap()]), 0);
        writer.write_all_at(b"N", 9).unwrap();
        reader.read_exact_at(&mut seen, 0).unwrap();
        assert_eq!(&seen, b"01Mxyz678N", "{name}");
    }
}

fn over_a_whiteout() {
    let mut bed = Bed::new(|l| {
        for name in ["a", "b", "c", "d"] {
            put(l.join(name), "lower");
        }
    });
    for name in ["a", "b", "c", "d"] {
        fs::remove_file(bed.at(name)).unwrap();
    }
    put(bed.at("a"), "upper");
    fs::create_dir(bed.at("b")).unwrap();
    std::os::unix::fs::symlink("t", bed.at("c")).unwrap();
    fs::hard_link(bed.at("a"), bed.at("d")).unwrap();
    for _ in 0..2 {
        assert_eq!(text(bed.at("a")), "upper");
        assert!(stat(bed.at("b")).is_dir());
        assert!(stat(bed.at("c")).is_symlink());
        assert_eq!(stat(bed.at("d")).ino(), stat(bed.at("a")).ino());
        bed.remount();
    }
}

fn a_directory_over_a_deleted_one_is_empty() {
    let mut bed = Bed::new(|l| {
        mkdir(l.join("d/e"));
        put(l.join("d/f"), "1");
    });
    fs::remove_dir_all(bed.at("d")).unwrap();
    fs::create_dir(bed.at("d")).unwrap();
    for _ in 0..2 {
        assert_eq!(ls(bed.at("d")), [""; 0]);
        assert!(gone(bed.at("d/f")));
        bed.remount();
    }
    fs::rename(bed.at("d"), bed.at("x")).unwrap();
    assert_eq!(ls(bed.at("x")), [""; 0]);
    assert!(gone(bed.at("d")));
}

fn in_a_directory_that_was_removed() {
    use nix::fcntl::{OFlag, open, openat};
    use nix::sys::stat::Mode;
    let bed = Bed::new(|l| mkdir(l.join("lower")));
    fs::create_dir(bed.at("upper")).unwrap();
    for name in ["lower", "upper"] {
        let dir = open(&bed.at(name), OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())
            .unwrap();
        fs::remove_dir(bed.at(name)).unwrap();
        let made = openat(&dir, "x", OFlag::O_CREAT | OFlag::O_WRONLY, Mode::S_IRWXU);
        assert_eq!(nix_errno(made), libc::ENOENT, "{name}");
        assert_eq!(nix_errno(nix::sys::stat::fstat(&dir).map(|s| assert_eq!(s.st_nlink, 0))), 0, "{name}");
    }
}

fn a_device_that_would_be_a_whiteout() {
    let bed = Bed::new(|_| {});
    let made =
        nix::sys::stat::mknod(&bed.at("c"), nix::sys::stat::SFlag::S_IFCHR, nix::sys::stat::Mode::S_IRWXU, 0);
    assert_eq!(nix_errno(made), libc::EPERM);
    assert_eq!(ls(bed.at("")), [""; 0]);
}
