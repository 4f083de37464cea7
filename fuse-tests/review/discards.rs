//! Discarding: the session sees the real object again, and keeps everything else.

use crate::world::{World, rel, tree};
use sbx_fuse::review::{Dropper, Leave, Offline, Seen, Selection, discard};
use std::fs;

fn try_discard(w: &World, paths: &[&str]) -> sbx_fuse::base::Result<()> {
    let roots = w.roots();
    let selection = match paths {
        [] => Selection::All,
        some => Selection::Paths(some.iter().map(|p| (0, rel(p))).collect()),
    };
    let scanned = w.scan();
    let mut dropper = Offline::new(&roots, &scanned, Leave::Discarded);
    discard(&roots, &w.settled(), &selection, &mut dropper).map(drop)
}

fn everything() -> World {
    let w = World::new();
    w.has("mod", "1").has("del", "1").has("old", "1").has("typed", "1").has("deep/er/f", "1").has("c/f", "f");
    w.has("dir/a", "1")
        .has("dir/b", "1")
        .has("dir/s/x", "1")
        .has("o/x", "1")
        .has("o/y", "1")
        .has("o/s/z", "z");
    w.copy_up("mod", "mod", Some("2")).whiteout("del").copy_up("new", "old", None).whiteout("old");
    w.put("typed/in", "1")
        .copy_up("deep/er/f", "deep/er/f", Some("2"))
        .redirect("dir2", "dir")
        .whiteout("dir");
    w.copy_up("dir2/a", "dir/a", Some("2")).whiteout("dir2/b").redirect("s2", "dir/s").whiteout("dir2/s");
    w.put("o/x", "2").put("o/n", "n").put("o/s/q", "q").opaque("o");
    w.put("c/", "").opaque("c").redirect("c/d", "c");
    w
}

#[test]
fn discarding_everything_leaves_nothing() {
    let w = everything();
    let before = w.tree();
    try_discard(&w, &[]).unwrap();
    assert_eq!(w.changes(), [""; 0]);
    assert_eq!(w.tree(), before, "the real tree is never touched");
    assert!(w.upper_is_empty(), "{:?}", tree(&w.upper("")));
}

#[test]
fn discarding_one_change_keeps_all_others() {
    let all = everything().changes();
    for one in &all {
        let path = one.split(' ').nth(1).unwrap();
        let inside = |l: &&String| l.split(' ').nth(1).unwrap().starts_with(&format!("{path}/"));
        if all.iter().any(|l| inside(&l)) {
            continue;
        }
        let w = everything();
        if path == "c/d" {
            let error = try_discard(&w, &[path]).unwrap_err();
            assert!(error.message.contains("old name was taken again"), "{error}");
            continue;
        }
        try_discard(&w, &[path]).unwrap();
        let expected: Vec<String> = all.iter().filter(|l| *l != one).cloned().collect();
        assert_eq!(w.changes(), expected, "after discarding {one}");
    }
}

#[test]
fn a_moved_directory_is_not_discarded_under_its_changes() {
    let w = everything();
    let roots = w.roots();
    let set = w.settled();
    // A selection that names the directory alone, as a picker may give it.
    let only: Vec<_> = set.iter().filter(|s| s.change.path == rel("dir2")).cloned().collect();
    assert_eq!(only.len(), 1);
    let error = try_discard(&w, &["dir"]).unwrap_err();
    assert!(error.message.contains("dir2"), "{error}");
    let hint = error.hint.unwrap();
    assert!(hint.contains("dir2/a") && hint.contains("dir2/b"), "{hint}");
    drop(roots);
}

#[test]
fn half_a_swap_leaves_the_other_half_in_place() {
    let w = World::new();
    w.has("a", "1").has("b", "2").copy_up("a", "b", None).copy_up("b", "a", None);
    try_discard(&w, &["a"]).unwrap();
    assert_eq!(w.changes(), [""; 0], "the other half was named by its old path");
    assert!(w.upper_is_empty());
}

#[test]
fn an_object_that_changed_again_is_not_dropped() {
    let w = World::new();
    w.put("f", "1");
    let roots = w.roots();
    let scanned = w.scan();
    let mut dropper = Offline::new(&roots, &scanned, Leave::Discarded);
    let seen = Seen { ino: 1, ctime: sbx_fuse::base::Time::default() };
    assert!(!dropper.drop(0, &rel("f"), Some(seen)).unwrap());
    assert_eq!(fs::read(w.upper("f")).unwrap(), b"1");
    assert!(dropper.drop(0, &rel("f"), None).unwrap());
    assert!(w.upper_is_empty());
}
