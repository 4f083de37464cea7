//! The real tree changes while the session lives: the mount shows it, soon; what the session changed stays.

use crate::harness::*;
use crate::mapping::Mapping;
use sbx_fuse::base::RelPath;
use sbx_fuse::journal::Op;
use sbx_fuse::union::Leave;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::MetadataExt;

crate::cases![
    a_new_file_appears,
    content_and_size_change,
    content_that_changes_through_a_mapping,
    content_that_changes_under_another_name,
    a_file_that_grows_outside_is_never_filled_up,
    a_deleted_file_goes,
    a_replaced_file_is_the_new_one,
    renames_in_the_real_tree,
    a_directory_moved_in_the_real_tree,
    a_merged_directory_moved_in_the_real_tree,
    what_is_open_is_followed_where_others_rename_it,
    what_was_read_stays_readable_when_others_remove_it,
    what_the_session_changed_does_not_move,
    a_discarded_change_shows_the_real_tree,
    an_open_file_goes_on_after_its_change_was_applied,
    an_open_new_file_goes_on_after_it_was_applied,
    an_open_file_goes_on_after_its_change_was_discarded,
    an_open_file_is_lost_only_with_its_name,
    a_mapping_goes_on_after_its_change_was_applied,
    an_open_file_with_two_names_goes_on,
    open_files_in_a_renamed_directory_go_on,
    directories_leave_with_the_last_change_beneath_them,
];

fn tree(l: &std::path::Path) {
    mkdir(l.join("d/e"));
    put(l.join("d/f"), "old");
    put(l.join("d/e/g"), "deep");
}

/// Looks at everything, so that the kernel has it in its caches.
fn look(bed: &Bed) {
    for entry in walkdir::WalkDir::new(bed.at("")) {
        let entry = entry.unwrap();
        if entry.file_type().is_file() {
            drop(get(entry.path()));
        }
    }
    assert!(gone(bed.at("d/absent")));
}

fn shows(path: &std::path::Path, content: &str) -> bool {
    fs::read(path).is_ok_and(|bytes| bytes == content.as_bytes())
}

fn a_new_file_appears() {
    let bed = Bed::new(tree);
    look(&bed);
    put(bed.lower("d/absent"), "new");
    eventually("the new file", || shows(&bed.at("d/absent"), "new"));
    eventually("its name in the listing", || ls(bed.at("d")) == ["absent", "e", "f"]);
    mkdir(bed.lower("d/e/x/y"));
    eventually("the new directory", || bed.at("d/e/x/y").read_dir().is_ok());
    put(bed.lower("d/e/x/y/z"), "z");
    eventually("a file in it", || shows(&bed.at("d/e/x/y/z"), "z"));
}

fn content_and_size_change() {
    let bed = Bed::new(tree);
    look(&bed);
    put(bed.lower("d/f"), "longer than before");
    eventually("the new content", || shows(&bed.at("d/f"), "longer than before"));
    let reader = fs::File::open(bed.at("d/f")).unwrap();
    OpenOptions::new().append(true).open(bed.lower("d/f")).unwrap().write_all(b"!").unwrap();
    eventually("the size of an open file", || reader.metadata().unwrap().len() == 19);
    chmod(bed.lower("d/f"), 0o600);
    eventually("the mode", || stat(bed.at("d/f")).mode() & 0o777 == 0o600);
}

fn content_that_changes_through_a_mapping() {
    let bed = Bed::new(tree);
    look(&bed);
    let file = OpenOptions::new().read(true).write(true).open(bed.lower("d/f")).unwrap();
    let mut map = Mapping::to_write(&file, 3);
    drop(file);
    map.set(0, b'O');
    drop(map);
    eventually("what was mapped", || shows(&bed.at("d/f"), "Old"));
}

fn content_that_changes_under_another_name() {
    let bed = Bed::new(|l| {
        tree(l);
        mkdir(l.join("unseen"));
        fs::hard_link(l.join("d/f"), l.join("unseen/f")).unwrap();
    });
    for version in ["new", "two", "and longer"] {
        assert!(!text(bed.at("d/f")).is_empty());
        OpenOptions::new()
            .write(true)
            .open(bed.lower("unseen/f"))
            .unwrap()
            .write_all(version.as_bytes())
            .unwrap();
        eventually("what was written", || shows(&bed.at("d/f"), version));
    }
    // The session's own version does not move.
    put(bed.at("d/f"), "mine");
    put(bed.lower("unseen/f"), "theirs");
    assert_eq!(text(bed.at("d/f")), "mine");
}

/// However late the kernel hears of it: it shows what a file was, or what it is, and never the one with the other's size.
fn a_file_that_grows_outside_is_never_filled_up() {
    const MANY: usize = 1500;
    let name = |i: usize| format!("d/many{i}");
    let bed = Bed::new(|l| {
        tree(l);
        (0..MANY).for_each(|i| put(l.join(name(i)), "old"));
    });
    (0..MANY).for_each(|i| assert_eq!(text(bed.at(name(i))), "old"));
    for i in 0..MANY {
        let mut file = OpenOptions::new().append(true).open(bed.lower(name(i))).unwrap();
        file.write_all(b" and new").unwrap();
    }
    for i in (0..MANY).rev() {
        let seen = text(bed.at(name(i)));
        assert!(seen == "old" || seen == "old and new", "{seen:?}");
    }
    eventually("what was added", || (0..MANY).all(|i| shows(&bed.at(name(i)), "old and new")));
}

fn a_deleted_file_goes() {
    let bed = Bed::new(tree);
    look(&bed);
    fs::remove_file(bed.lower("d/f")).unwrap();
    eventually("the file is gone", || gone(bed.at("d/f")));
    eventually("the listing", || ls(bed.at("d")) == ["e"]);
    fs::remove_dir_all(bed.lower("d/e")).unwrap();
    eventually("the directory is gone", || gone(bed.at("d/e")));
    put(bed.at("d/f"), "of the session");
    assert_eq!(text(bed.at("d/f")), "of the session");
}

fn a_replaced_file_is_the_new_one() {
    let bed = Bed::new(tree);
    for i in 0..5 {
        look(&bed);
        // As editors and git write.
        put(bed.lower("d/temp"), format!("version {i}"));
        fs::rename(bed.lower("d/temp"), bed.lower("d/f")).unwrap();
        eventually("the new version", || shows(&bed.at("d/f"), &format!("version {i}")));
    }
    fs::remove_file(bed.lower("d/f")).unwrap();
    mkdir(bed.lower("d/f/inside"));
    eventually("a directory instead", || bed.at("d/f/inside").read_dir().is_ok());
}

fn renames_in_the_real_tree() {
    let bed = Bed::new(tree);
    look(&bed);
    fs::rename(bed.lower("d/f"), bed.lower("d/h")).unwrap();
    eventually("the new name", || shows(&bed.at("d/h"), "old"));
    eventually("the old name is gone", || gone(bed.at("d/f")));
    OpenOptions::new().append(true).open(bed.at("d/h")).unwrap().write_all(b"+").unwrap();
    assert_eq!(text(bed.at("d/h")), "old+");
    assert_eq!(ls(bed.at("d")), ["e", "h"]);
}

fn a_directory_moved_in_the_real_tree() {
    let bed = Bed::new(tree);
    look(&bed);
    fs::rename(bed.lower("d"), bed.lower("moved")).unwrap();
    eventually("the new place", || shows(&bed.at("moved/e/g"), "deep"));
    eventually("the old place is gone", || gone(bed.at("d")));
    put(bed.at("moved/e/g"), "changed");
    put(bed.at("moved/e/new"), "new");
    mkdir(bed.lower("d"));
    put(bed.lower("d/other"), "other");
    eventually("another directory at the old place", || shows(&bed.at("d/other"), "other"));
    eventually("its listing", || ls(bed.at("d")) == ["other"]);
    assert_eq!(text(bed.at("moved/e/g")), "changed");
    assert_eq!(text(bed.at("moved/f")), "old");
}

fn a_merged_directory_moved_in_the_real_tree() {
    let bed = Bed::new(tree);
    put(bed.at("d/mine"), "mine");
    look(&bed);
    fs::rename(bed.lower("d"), bed.lower("moved")).unwrap();
    eventually("the new place", || shows(&bed.at("moved/f"), "old"));
    eventually("the session's own stays", || ls(bed.at("d")) == ["mine"]);
    assert_eq!(text(bed.at("d/mine")), "mine");
    eventually("without what is the session's", || ls(bed.at("moved")) == ["e", "f"]);
    put(bed.at("moved/e/g"), "changed");
    assert_eq!(text(bed.at("moved/e/g")), "changed");
}

fn what_is_open_is_followed_where_others_rename_it() {
    let bed = Bed::new(tree);
    let reads = |file: &File, content: &str| {
        let mut text = String::new();
        let mut file = file;
        file.metadata().is_ok_and(|m| m.len() == content.len() as u64)
            && file.rewind().and_then(|()| file.read_to_string(&mut text)).is_ok_and(|_| text == content)
    };
    let open = |path| OpenOptions::new().read(true).append(true).open(bed.at(path)).unwrap();
    let (file, mut deep, dir) = (open("d/f"), open("d/e/g"), File::open(bed.at("d/e")).unwrap());
    fs::rename(bed.lower("d/f"), bed.lower("d/e/h")).unwrap();
    eventually("the renamed file", || reads(&file, "old"));
    fs::rename(bed.lower("d"), bed.lower("x")).unwrap();
    eventually("the file in a renamed directory", || reads(&deep, "deep"));
    eventually("the other one", || reads(&file, "old"));
    let dir = std::path::PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&dir)));
    eventually("the directory itself", || ls(&dir) == ["g", "h"]);
    deep.write_all(b"er").unwrap();
    assert_eq!((text(bed.at("x/e/g")), text(bed.upper("x/e/g"))), ("deeper".into(), "deeper".into()));
    assert_eq!(text(bed.lower("x/e/g")), "deep");
    put(bed.lower("x/e/h"), "and new");
    eventually("what is written there", || reads(&file, "and new"));
}

fn what_was_read_stays_readable_when_others_remove_it() {
    let bed = Bed::new(tree);
    let mut files = ["d/f", "d/e/g"].map(|path| File::open(bed.at(path)).unwrap());
    files.iter_mut().for_each(|f| f.read_exact(&mut [0]).unwrap());
    fs::remove_file(bed.lower("d/f")).unwrap();
    put(bed.lower("temp"), "another");
    fs::rename(bed.lower("temp"), bed.lower("d/e/g")).unwrap();
    eventually("the changes", || gone(bed.at("d/f")) && shows(&bed.at("d/e/g"), "another"));
    for (file, content) in files.iter_mut().zip(["old", "deep"]) {
        let mut text = String::new();
        file.rewind().unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!((text.as_str(), file.metadata().unwrap().nlink()), (content, 0));
    }
}

fn what_the_session_changed_does_not_move() {
    let bed = Bed::new(tree);
    put(bed.at("d/f"), "mine");
    fs::remove_file(bed.at("d/e/g")).unwrap();
    look(&bed);
    put(bed.lower("d/f"), "theirs");
    put(bed.lower("d/e/g"), "theirs");
    put(bed.lower("d/sign"), "");
    eventually("the sign that events arrived", || !gone(bed.at("d/sign")));
    assert_eq!(text(bed.at("d/f")), "mine");
    assert!(gone(bed.at("d/e/g")));
    assert_eq!(ls(bed.at("d/e")), [""; 0]);
}

fn a_discarded_change_shows_the_real_tree() {
    let bed = Bed::new(|l| {
        tree(l);
        put(l.join("h1"), "linked");
        fs::hard_link(l.join("h1"), l.join("h2")).unwrap();
    });
    put(bed.at("d/f"), "mine");
    put(bed.at("d/new"), "mine");
    put(bed.at("h1"), "mine");
    fs::remove_file(bed.at("d/e/g")).unwrap();
    look(&bed);
    for path in ["d/f", "d/new", "d/e/g", "h1"] {
        leave(&bed, Op::Discarded, path);
    }
    eventually("the real content", || shows(&bed.at("d/f"), "old"));
    eventually("what was deleted", || shows(&bed.at("d/e/g"), "deep"));
    eventually("no new file", || gone(bed.at("d/new")));
    eventually("the linked file", || shows(&bed.at("h1"), "linked"));
    eventually("its other name", || shows(&bed.at("h2"), "linked"));
    eventually("the listings", || ls(bed.at("d")) == ["e", "f"] && ls(bed.at("d/e")) == ["g"]);
    put(bed.at("d/f"), "again");
    assert_eq!(text(bed.at("d/f")), "again");
}

fn leave(bed: &Bed, op: Op, path: &str) {
    let path = RelPath::new(path.as_bytes()).unwrap();
    assert!(bed.union().leave(&Leave { op, root: 0, path, from: None, seen: None, silent: vec![] }).unwrap());
}

/// Does to the real tree what `apply` does with the session's file, which then leaves the session.
fn apply(bed: &Bed, path: &str) {
    let temp = bed.lower(".applied");
    put(&temp, get(bed.upper(path)));
    fs::rename(&temp, bed.lower(path)).unwrap();
    leave(bed, Op::Applied, path);
    assert!(gone(bed.upper(path)));
}

fn appending(bed: &Bed, path: &str) -> File {
    OpenOptions::new().read(true).append(true).create(true).open(bed.at(path)).unwrap()
}

/// What is written through `open` counts, is seen under the name, and is a change again.
fn goes_on(bed: &Bed, open: &mut File, path: &str, before: &str) {
    assert_eq!(text(bed.at(path)), before);
    open.write_all(b"two").unwrap();
    let both = format!("{before}two");
    assert_eq!(text(bed.at(path)), both);
    assert_eq!(text(bed.upper(path)), both);
    assert_eq!(text(bed.lower(path)), before);
    let mut read = String::new();
    open.rewind().unwrap();
    open.read_to_string(&mut read).unwrap();
    assert_eq!(read, both);
    let (by_name, by_fd) = (stat(bed.at(path)), open.metadata().unwrap());
    assert_eq!((by_name.ino(), by_name.len()), (by_fd.ino(), by_fd.len()));
    let changed = bed.fold();
    assert!(changed.iter().any(|p| p == path), "{path} is not among {changed:?}");
}

fn an_open_file_goes_on_after_its_change_was_applied() {
    let bed = Bed::new(tree);
    let mut open = appending(&bed, "d/f");
    let ino = open.metadata().unwrap().ino();
    for before in ["oldone", "oldonetwoone"] {
        open.write_all(b"one").unwrap();
        apply(&bed, "d/f");
        goes_on(&bed, &mut open, "d/f", before);
        assert_eq!(stat(bed.at("d/f")).ino(), ino);
    }
    apply(&bed, "d/f");
    // Attributes as well, and the real file has none of it.
    open.set_len(1).unwrap();
    open.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o640)).unwrap();
    assert_eq!((text(bed.at("d/f")), stat(bed.at("d/f")).mode() & 0o777), ("o".into(), 0o640));
    assert_eq!((stat(bed.lower("d/f")).len(), stat(bed.upper("d/f")).len()), (12 + 3, 1));
}

fn an_open_new_file_goes_on_after_it_was_applied() {
    let bed = Bed::new(tree);
    let mut open = appending(&bed, "d/new");
    open.write_all(b"one").unwrap();
    apply(&bed, "d/new");
    goes_on(&bed, &mut open, "d/new", "one");

    // In directories that are new themselves.
    mkdir(bed.at("x/y"));
    let mut one = appending(&bed, "x/y/one");
    let mut two = appending(&bed, "x/y/two");
    (&one).write_all(b"one").unwrap();
    (&two).write_all(b"one").unwrap();
    mkdir(bed.lower("x/y"));
    for path in ["x/y/one", "x/y/two"] {
        apply(&bed, path);
    }
    leave(&bed, Op::Applied, "x/y");
    leave(&bed, Op::Applied, "x");
    goes_on(&bed, &mut one, "x/y/one", "one");
    goes_on(&bed, &mut two, "x/y/two", "one");
}

fn an_open_file_goes_on_after_its_change_was_discarded() {
    let bed = Bed::new(tree);
    let mut open = appending(&bed, "d/f");
    open.write_all(b"one, and more").unwrap();
    leave(&bed, Op::Discarded, "d/f");
    // The kernel has not asked for the size again when it says where the end is.
    open.write_all(b"one").unwrap();
    eventually("the end of the real file", || shows(&bed.at("d/f"), "oldone"));
    leave(&bed, Op::Discarded, "d/f");
    goes_on(&bed, &mut open, "d/f", "old");
}

fn an_open_file_is_lost_only_with_its_name() {
    let bed = Bed::new(tree);
    let mut open = appending(&bed, "d/new");
    open.write_all(b"one").unwrap();
    leave(&bed, Op::Discarded, "d/new");
    open.write_all(b"two").unwrap();
    assert!(gone(bed.at("d/new")));

    let mut open = appending(&bed, "d/f");
    fs::rename(bed.at("d/f"), bed.at("d/g")).unwrap();
    let [path, from] = ["d/g", "d/f"].map(|p| RelPath::new(p.as_bytes()).unwrap());
    let renamed = Leave { op: Op::Discarded, root: 0, path, from: Some(from), seen: None, silent: vec![] };
    assert!(bed.union().leave(&renamed).unwrap());
    goes_on(&bed, &mut open, "d/f", "old");
}

fn a_mapping_goes_on_after_its_change_was_applied() {
    let bed = Bed::new(tree);
    let mut open = appending(&bed, "d/f");
    open.write_all(b"one").unwrap();
    let mut map = Mapping::to_write(&open, 6);
    map.set(0, b'O');
    apply(&bed, "d/f");
    map.set(3, b'O');
    assert_eq!(text(bed.at("d/f")), "OldOne");
    assert_eq!(text(bed.lower("d/f")), "Oldone");
    assert_eq!(bed.fold(), ["d/f"]);
    open.write_all(b"two").unwrap();
    assert_eq!(text(bed.at("d/f")), "OldOnetwo");
}

fn an_open_file_with_two_names_goes_on() {
    let bed = Bed::new(tree);
    let mut open = appending(&bed, "d/one");
    fs::hard_link(bed.at("d/one"), bed.at("d/two")).unwrap();
    open.write_all(b"one").unwrap();
    put(bed.lower("d/one"), "one");
    fs::hard_link(bed.lower("d/one"), bed.lower("d/two")).unwrap();
    for path in ["d/one", "d/two"] {
        leave(&bed, Op::Applied, path);
    }
    eventually("the real file", || shows(&bed.at("d/one"), "one") && shows(&bed.at("d/two"), "one"));
    open.write_all(b"two").unwrap();
    assert_eq!(text(bed.at("d/two")), "onetwo");
}

/// Its directory moved in the real tree before any change beneath it leaves the session.
fn open_files_in_a_renamed_directory_go_on() {
    for looks in [true, false] {
        let bed = Bed::new(tree);
        if looks {
            look(&bed);
        }
        fs::rename(bed.at("d"), bed.at("D")).unwrap();
        fs::rename(bed.at("D/e"), bed.at("D/E")).unwrap();
        let paths = ["D/f", "D/new", "D/E/g", "D/E/new"];
        let mut open = paths.map(|path| appending(&bed, path));
        open.iter_mut().for_each(|f| f.write_all(b"one").unwrap());

        fs::rename(bed.lower("d"), bed.lower("D")).unwrap();
        fs::rename(bed.lower("D/e"), bed.lower("D/E")).unwrap();
        paths.iter().for_each(|path| apply(&bed, path));
        for (path, from) in [("D/E", "D/e"), ("D", "d")] {
            let [path, from] = [path, from].map(|p| RelPath::new(p.as_bytes()).unwrap());
            let renamed =
                Leave { op: Op::Applied, root: 0, path, from: Some(from), seen: None, silent: vec![] };
            assert!(bed.union().leave(&renamed).unwrap());
        }
        assert_eq!(ls(bed.upper("")), [""; 0]);
        for (file, (path, before)) in
            open.iter_mut().zip(paths.iter().zip(["oldone", "one", "deepone", "one"]))
        {
            goes_on(&bed, file, path, before);
        }
    }
}

fn directories_leave_with_the_last_change_beneath_them() {
    let bed = Bed::new(|l| {
        tree(l);
        put(l.join("d/e/h"), "deep");
    });
    look(&bed);
    put(bed.at("d/e/g"), "mine");
    put(bed.at("d/e/h"), "mine");
    let silent = |path: &str, above: &[&str]| {
        let path = RelPath::new(path.as_bytes()).unwrap();
        let silent = above.iter().map(|p| RelPath::new(p.as_bytes()).unwrap()).collect();
        let change = Leave { op: Op::Discarded, root: 0, path, from: None, seen: None, silent };
        assert!(bed.union().leave(&change).unwrap());
    };
    silent("d/e/g", &["d/e", "d"]);
    assert!(bed.upper("d/e/h").symlink_metadata().is_ok());
    silent("d/e/h", &["d/e"]);
    // What is above was changed itself.
    assert_eq!(ls(bed.upper("d")), [""; 0]);
    put(bed.at("d/e/g"), "mine");
    assert_eq!(text(bed.at("d/e/g")), "mine");
    silent("d/e/g", &["d/e", "d"]);
    assert_eq!(ls(bed.upper("")), [""; 0]);
    assert_eq!(ls(bed.at("d/e")), ["g", "h"]);
    fs::remove_dir_all(bed.lower("d/e")).unwrap();
    eventually("the directory is gone", || gone(bed.at("d/e")));
}
