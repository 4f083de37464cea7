//! A mount of root's that serves several users: what each may do, and whose things are. Only when run as root.

use crate::harness::*;
use std::fs;
use std::os::unix::fs::MetadataExt;

crate::cases![
    what_a_user_makes_is_theirs,
    a_user_may_do_what_the_modes_allow,
    owners_survive_copy_up_and_remount,
    a_write_by_another_takes_set_uid_away,
    a_sticky_directory_protects_its_files,
];

const USER: u32 = 54_321;

/// A mount whose root any user may write to.
fn bed() -> Option<Bed> {
    as_root().then(|| {
        Bed::new(|l| {
            chmod(l, 0o777);
            mkdir(l.join("shared"));
            chmod(l.join("shared"), 0o1777);
            for (name, mode) in [("f", 0o644), ("writable", 0o6777), ("shared/f", 0o666), ("w", 0o644)] {
                put(l.join(name), "root's");
                chmod(l.join(name), mode);
            }
            put(l.join("theirs"), "theirs");
            std::os::unix::fs::chown(l.join("theirs"), Some(USER), Some(USER)).unwrap();
        })
    })
}

fn user(bed: &Bed, what: &[&str], name: &str) -> i32 {
    let path = bed.at(name);
    as_user(USER, &[what, &[path.to_str().unwrap()]].concat())
}

fn what_a_user_makes_is_theirs() {
    let Some(mut bed) = bed() else {
        return;
    };
    fs::remove_file(bed.at("w")).unwrap();
    assert_eq!(user(&bed, &["create", "022", "6755"], "new"), 0);
    assert_eq!(user(&bed, &["create", "022", "644"], "w"), 0);
    assert_eq!(user(&bed, &["mkdir", "022", "755"], "dir"), 0);
    assert_eq!(user(&bed, &["mkfifo", "022", "644"], "dir/fifo"), 0);
    for _ in 0..2 {
        for (name, mode) in [("new", 0o6755), ("w", 0o644), ("dir", 0o755), ("dir/fifo", 0o644)] {
            let m = stat(bed.at(name));
            assert_eq!((m.uid(), m.gid(), m.mode() & 0o7777), (USER, USER, mode), "{name}");
        }
        bed.remount();
    }
}

fn a_user_may_do_what_the_modes_allow() {
    let Some(bed) = bed() else {
        return;
    };
    assert_eq!(user(&bed, &["append", "x"], "f"), libc::EACCES);
    assert_eq!(user(&bed, &["chmod", "777"], "f"), libc::EPERM);
    assert_eq!(user(&bed, &["append", "x"], "writable"), 0);
    assert_eq!(text(bed.at("writable")), "root'sx");
    assert_eq!(user(&bed, &["truncate", "1"], "theirs"), 0);
    assert_eq!(user(&bed, &["chmod", "600"], "theirs"), 0);
    chmod(bed.at("shared"), 0o700);
    assert_eq!(user(&bed, &["append", "x"], "shared/f"), libc::EACCES);
    assert!(gone(bed.upper("f")), "a refused change made a copy");
}

fn owners_survive_copy_up_and_remount() {
    let Some(mut bed) = bed() else {
        return;
    };
    assert_eq!(user(&bed, &["append", "+"], "theirs"), 0);
    std::os::unix::fs::chown(bed.at("f"), Some(7), Some(8)).unwrap();
    std::os::unix::fs::chown(bed.at("shared"), Some(7), None).unwrap();
    for _ in 0..2 {
        assert_eq!((stat(bed.at("theirs")).uid(), stat(bed.at("theirs")).gid()), (USER, USER));
        assert_eq!((stat(bed.at("f")).uid(), stat(bed.at("f")).gid()), (7, 8));
        assert_eq!((stat(bed.at("shared")).uid(), stat(bed.at("shared")).gid()), (7, 0));
        assert_eq!(text(bed.at("f")), "root's");
        bed.remount();
    }
    assert_eq!(stat(bed.lower("f")).uid(), 0);
}

fn a_write_by_another_takes_set_uid_away() {
    let Some(bed) = bed() else {
        return;
    };
    assert_eq!(stat(bed.at("writable")).mode() & 0o7777, 0o6777);
    assert_eq!(user(&bed, &["append", "x"], "writable"), 0);
    assert_eq!(stat(bed.at("writable")).mode() & 0o7777, 0o777);
    chmod(bed.at("writable"), 0o6777);
    assert_eq!(user(&bed, &["truncate", "0"], "writable"), 0);
    assert_eq!(stat(bed.at("writable")).mode() & 0o7777, 0o777);
}

fn a_sticky_directory_protects_its_files() {
    let Some(bed) = bed() else {
        return;
    };
    assert_eq!(user(&bed, &["unlink"], "shared/f"), libc::EPERM);
    assert_eq!(user(&bed, &["create", "022", "644"], "shared/own"), 0);
    assert_eq!(user(&bed, &["unlink"], "shared/own"), 0);
    assert_eq!(user(&bed, &["unlink"], "theirs"), 0);
    assert_eq!(ls(bed.at("shared")), ["f"]);
}
