//! The real tree changes while the session lives: the mount shows it, soon; what the session changed stays.

use crate::harness::*;
use std::fs::{self, OpenOptions};
use std::io::Write;

crate::cases![
    a_new_file_appears,
    content_and_size_change,
    a_deleted_file_goes,
    a_replaced_file_is_the_new_one,
    renames_in_the_real_tree,
    a_directory_moved_in_the_real_tree,
    a_merged_directory_moved_in_the_real_tree,
    what_the_session_changed_does_not_move,
    a_discarded_change_shows_the_real_tree,
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
    eventually("the mode", || {
        use std::os::unix::fs::MetadataExt;
        stat(bed.at("d/f")).mode() & 0o777 == 0o600
    });
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
    use sbx_fuse::base::RelPath;
    use sbx_fuse::journal::Op;
    use sbx_fuse::union::Leave;
    let bed = Bed::new(|l| {
        tree(l);
        put(l.join("h1"), "linked");
        fs::hard_link(l.join("h1"), l.join("h2")).unwrap();
    });
    let leave = |path: &str| {
        let path = RelPath::new(path.as_bytes()).unwrap();
        bed.union().leave(&Leave { op: Op::Discarded, root: 0, path, from: None, seen: None }).unwrap()
    };
    put(bed.at("d/f"), "mine");
    put(bed.at("d/new"), "mine");
    put(bed.at("h1"), "mine");
    fs::remove_file(bed.at("d/e/g")).unwrap();
    look(&bed);
    for path in ["d/f", "d/new", "d/e/g", "h1"] {
        assert!(leave(path));
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
