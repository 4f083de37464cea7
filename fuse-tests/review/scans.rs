//! What a scan and a settlement see.

use crate::world::{World, rel};
use sbx_fuse::base::What;
use sbx_fuse::review::{agree, settle};
use std::fs;
use std::os::unix::fs::PermissionsExt;

#[test]
fn every_kind_of_change_is_seen_as_what_it_is() {
    for w in [World::new(), World::prefixed()] {
        w.has("mod", "1").has("same", "1").has("del", "1").has("old", "1").has("typed", "1").has("perm", "1");
        w.has("dir/a", "1").has("dir/b", "1").has("gone/x", "1").has("link", "-> a").has("kept", "1");
        w.copy_up("mod", "mod", Some("2")).copy_up("same", "same", None).whiteout("del");
        w.copy_up("new", "old", None).whiteout("old").put("typed/in", "1").put("added", "1");
        w.copy_up("perm", "perm", None);
        fs::set_permissions(w.upper("perm"), fs::Permissions::from_mode(0o755)).unwrap();
        w.redirect("dir2", "dir").whiteout("dir").copy_up("dir2/a", "dir/a", Some("2")).whiteout("dir2/b");
        w.whiteout("gone").put("link", "-> b").put("empty/", "");
        assert_eq!(
            w.changes(),
            [
                "A added",
                "D del",
                "R dir2 < dir",
                "M dir2/a",
                "D dir2/b",
                "A empty",
                "D gone",
                "M link",
                "M mod",
                "R new < old",
                "P perm",
                "T typed",
                "A typed/in"
            ]
        );
    }
}

#[test]
fn a_merged_directory_and_a_whiteout_over_nothing_are_no_changes() {
    let w = World::new();
    w.has("d/f", "1").copy_up("d/f", "d/f", None).whiteout("d/never").whiteout("never");
    assert_eq!(w.changes(), [""; 0]);
}

#[test]
fn an_opaque_directory_becomes_the_changes_it_means() {
    for w in [World::new(), World::prefixed()] {
        w.has("d/keep", "1").has("d/change", "1").has("d/gone", "1").has("d/sub/x", "1").has("d/kind", "1");
        w.put("d/change", "2").put("d/new", "n").put("d/kind/in", "1").opaque("d");
        w.copy_up("d/keep", "d/keep", None);
        assert_eq!(w.changes(), ["M d/change", "D d/gone", "T d/kind", "A d/kind/in", "A d/new", "D d/sub"]);
        let set = w.scan();
        assert!(set.changes.iter().any(|c| c.path == rel("d") && c.opaque && c.what == What::Modified));
    }
}

#[test]
fn a_name_taken_again_after_a_rename_is_an_addition() {
    let w = World::new();
    w.has("a", "1").has("d/x", "1");
    w.copy_up("b", "a", None).put("a", "other").redirect("e", "d").put("d/y", "1").opaque("d");
    assert_eq!(w.changes(), ["A a", "R b < a", "A d", "A d/y", "R e < d"]);
}

#[test]
fn swaps_and_moves_out_of_moved_directories_keep_their_origins() {
    let w = World::new();
    w.has("a", "1").has("b", "2").has("d/s/x", "1").has("d/f", "f");
    w.copy_up("a", "b", None).copy_up("b", "a", None);
    w.redirect("t", "d/s").redirect("e", "d").whiteout("d").whiteout("e/s");
    w.copy_up("g", "d/f", Some("changed")).whiteout("e/f");
    assert_eq!(w.changes(), ["R a < b", "R b < a", "R e < d", "R* g < d/f", "R t < d/s"]);
}

#[test]
fn a_second_name_of_a_file_is_an_addition_and_only_one_name_is_the_renamed_one() {
    let w = World::new();
    w.has("a", "1").has("m", "1").copy_up("a", "a", None);
    fs::hard_link(w.upper("a"), w.upper("b")).unwrap();
    w.copy_up("n", "m", None).whiteout("m");
    fs::hard_link(w.upper("n"), w.upper("o")).unwrap();
    assert_eq!(w.changes(), ["A b", "R n < m", "A o"]);
}

#[test]
fn names_of_one_new_file_are_a_group() {
    let w = World::new();
    w.put("a", "1").put("c", "1");
    fs::hard_link(w.upper("a"), w.upper("b")).unwrap();
    let groups: Vec<bool> = w.settled().iter().map(|s| s.link_group.is_some()).collect();
    assert_eq!(groups, [true, true, false]);
}

#[test]
fn attributes_that_differ_are_told_apart() {
    let w = World::new();
    w.has("t", "1").has("x", "1").has("d/f", "1");
    w.copy_up("t", "t", None).copy_up("x", "x", None).put("d/", "");
    fs::File::open(w.upper("t")).unwrap().set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    w.set_xattr(&w.upper("x"), "user.note", "n");
    fs::set_permissions(w.upper("d"), fs::Permissions::from_mode(0o700)).unwrap();
    let settled = w.settled();
    assert_eq!(w.changes(), ["P d", "P t", "P x"]);
    assert!(settled[0].meta.mode.is_some() && settled[0].meta.mtime.is_none());
    assert!(settled[1].meta.mtime.is_some() && settled[1].meta.mode.is_none());
    assert_eq!(settled[2].meta.xattrs, [b"user.note".to_vec()]);
}

#[test]
fn two_views_agree_but_for_what_an_upper_cannot_tell() {
    let w = World::new();
    w.has("s", "-> x").has("f", "1").put("t", "-> x").whiteout("s").copy_up("f", "f", Some("2"));
    let scanned = w.scan();
    let mut fold = scanned.clone();
    fold.changes.retain(|c| c.path != rel("s"));
    let t = fold.changes.iter_mut().find(|c| c.path == rel("t")).unwrap();
    (t.what, t.from) = (What::Renamed, Some(rel("s")));
    let settled = settle(&w.roots(), &fold).unwrap();
    assert_eq!(agree(&settled, &w.settled()), []);
    let less: Vec<_> = settled.into_iter().filter(|s| s.change.path != rel("f")).collect();
    let found = agree(&less, &w.settled());
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].path.clone(), found[0].scan.clone()), (rel("f"), Some((What::Modified, None))));
}

#[test]
fn what_came_back_to_its_place_is_no_change() {
    let w = World::new();
    w.has("d/s/x", "1").has("d/s/y", "1").has("d/f", "f").has("d/gone", "1");
    w.put("d/", "").opaque("d").redirect("d/s", "d/s").whiteout("d/s/y").copy_up("d/f", "d/f", None);
    assert_eq!(w.changes(), ["D d/gone", "D d/s/y"]);
    w.apply(&["d/gone"]);
    assert_eq!(w.changes(), ["D d/s/y"]);
    w.apply(&[]);
    assert_eq!(w.tree(), ["d/", "d/f = f", "d/s/", "d/s/x = 1"]);
}
