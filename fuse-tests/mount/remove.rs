//! UNLINK and RMDIR, and files that are open when they lose their last name.

use crate::harness::*;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};

crate::cases![
    names_of_both_layers,
    merged_directories,
    an_open_file_goes_on_without_a_name,
    an_open_file_whose_name_was_replaced,
    whiteouts_are_not_shown,
    an_unreadable_lower_directory_is_left_alone,
    a_tree_of_both_layers,
];

fn names_of_both_layers() {
    let mut bed = Bed::new(|l| {
        mkdir(l.join("d"));
        for name in ["d/a", "d/b", "d/c"] {
            put(l.join(name), "lower");
        }
    });
    put(bed.at("d/b"), "copied up");
    put(bed.at("d/n"), "new");
    for name in ["d/a", "d/b", "d/n"] {
        fs::remove_file(bed.at(name)).unwrap();
    }
    assert_eq!(errno(fs::remove_file(bed.at("d/a"))), libc::ENOENT);
    for _ in 0..2 {
        assert_eq!(ls(bed.at("d")), ["c"]);
        assert!(gone(bed.at("d/a")) && gone(bed.at("d/b")) && gone(bed.at("d/n")));
        bed.remount();
    }
    assert_eq!(ls(bed.lower("d")), ["a", "b", "c"]);
}

fn merged_directories() {
    let mut bed = Bed::new(|l| {
        mkdir(l.join("empty"));
        mkdir(l.join("full"));
        put(l.join("full/f"), "");
        mkdir(l.join("copied"));
    });
    put(bed.at("copied/x"), "");
    assert_eq!(errno(fs::remove_dir(bed.at("full"))), libc::ENOTEMPTY);
    assert_eq!(errno(fs::remove_dir(bed.at("copied"))), libc::ENOTEMPTY);
    fs::remove_file(bed.at("copied/x")).unwrap();
    fs::remove_file(bed.at("full/f")).unwrap();
    for name in ["empty", "full", "copied"] {
        fs::remove_dir(bed.at(name)).unwrap();
    }
    for _ in 0..2 {
        assert_eq!(ls(bed.at("")), [""; 0]);
        bed.remount();
    }
    assert_eq!(ls(bed.lower("")), ["copied", "empty", "full"]);
}

/// Opens `f` in all its states, takes its name away by `lose`, and goes on using it.
fn without_a_name(lose: fn(&Bed, &str)) {
    let bed = Bed::new(|l| {
        for name in ["lower", "lower2", "copied"] {
            put(l.join(name), "0123456789");
        }
    });
    put(bed.at("upper"), "0123456789");
    OpenOptions::new().write(true).open(bed.at("copied")).unwrap().write_all_at(b"0", 0).unwrap();
    for name in ["lower", "lower2", "copied", "upper"] {
        let file = OpenOptions::new().read(true).write(name != "lower2").open(bed.at(name)).unwrap();
        let ino = file.metadata().unwrap().ino();
        lose(&bed, name);
        let attr = file.metadata().unwrap();
        assert_eq!((attr.nlink(), attr.ino(), attr.len()), (0, ino, 10), "{name}");
        let mut bytes = [0; 4];
        file.read_exact_at(&mut bytes, 2).unwrap();
        assert_eq!(&bytes, b"2345", "{name}");
        if name == "lower2" {
            continue;
        }
        file.write_all_at(b"XY", 3).unwrap();
        file.set_len(6).unwrap();
        let mut bytes = [0; 6];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"012XY5", "{name}");
        let attr = file.metadata().unwrap();
        assert_eq!((attr.nlink(), attr.ino(), attr.len()), (0, ino, 6), "{name}");
        file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600, "{name}");
        file.sync_all().unwrap();
    }
    for name in ["lower", "lower2", "copied"] {
        assert_eq!(text(bed.lower(name)), "0123456789");
    }
}

fn an_open_file_goes_on_without_a_name() {
    without_a_name(|bed, name| {
        fs::remove_file(bed.at(name)).unwrap();
        assert!(gone(bed.at(name)));
    });
    without_a_name(|bed, name| {
        fs::remove_file(bed.at(name)).unwrap();
        put(bed.at(name), "another");
    });
}

fn an_open_file_whose_name_was_replaced() {
    without_a_name(|bed, name| {
        put(bed.at("temp"), "another");
        fs::rename(bed.at("temp"), bed.at(name)).unwrap();
        assert_eq!(text(bed.at(name)), "another");
    });
}

fn whiteouts_are_not_shown() {
    let bed = Bed::new(|l| put(l.join("f"), ""));
    fs::remove_file(bed.at("f")).unwrap();
    assert!(stat(bed.upper("f")).file_type().is_char_device() || !gone(bed.upper(".wh.f")));
    assert_eq!(ls(bed.at("")), [""; 0]);
    assert!(gone(bed.at("f")));
}

fn an_unreadable_lower_directory_is_left_alone() {
    let bed = Bed::new(|l| {
        mkdir(l.join("d"));
        chmod(l.join("d"), 0o000);
    });
    let before = stat(bed.lower("d"));
    if !as_root() {
        assert_eq!(errno(fs::read_dir(bed.at("d"))), libc::EACCES);
        // Nobody can tell whether it is empty, so it cannot go.
        assert_eq!(errno(fs::remove_dir(bed.at("d"))), libc::EACCES);
    }
    let after = stat(bed.lower("d"));
    assert_eq!(
        (before.mode(), before.ctime_nsec()),
        (after.mode(), after.ctime_nsec()),
        "the real tree was changed"
    );
}

fn a_tree_of_both_layers() {
    let mut bed = Bed::new(|l| {
        for i in 0..5 {
            mkdir(l.join(format!("t/{i}/x")));
            put(l.join(format!("t/{i}/x/f")), "");
        }
    });
    for i in 0..5 {
        put(bed.at(format!("t/{i}/new")), "");
        fs::rename(bed.at(format!("t/{i}/x")), bed.at(format!("t/{i}/y"))).unwrap();
    }
    let open = File::open(bed.at("t/3/y/f")).unwrap();
    fs::remove_dir_all(bed.at("t")).unwrap();
    assert_eq!(open.metadata().unwrap().nlink(), 0);
    drop(open);
    bed.remount();
    assert!(gone(bed.at("t")));
    assert_eq!(ls(bed.lower("t")).len(), 5);
}
