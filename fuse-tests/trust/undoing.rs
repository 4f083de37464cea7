//! Undo: step by step back, and never over what came since.

use crate::sweep::{full, picture};
use crate::world::{World, rel};
use sbx_fuse::base::RelPath;
use sbx_fuse::review::{NoFault, Undone, undo};
use std::fs;
use std::os::unix::fs::PermissionsExt;

fn back(w: &World, force: &[&str]) -> Undone {
    let force: Vec<(u16, RelPath)> = force.iter().map(|p| (0, rel(p))).collect();
    undo(&w.roots(), &force, false, &mut |_| {}, &mut NoFault).unwrap()
}

fn refused(undone: &Undone) -> Vec<String> {
    match undone {
        Undone::Refused(moved) => moved.iter().map(|m| format!("{}: {}", m.path, m.why)).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn content_mode_times_xattrs_deletions_and_renames_come_back() {
    let w = full();
    let old = picture(&w.real(""), true);
    w.apply(&[]);
    assert_ne!(picture(&w.real(""), true), old);
    assert!(matches!(back(&w, &[]), Undone::Done { changes, .. } if changes > 20));
    assert_eq!(picture(&w.real(""), true), old);
    assert!(matches!(back(&w, &[]), Undone::Nothing));
    assert_eq!(w.changes(), [""; 0], "undone changes do not return to the session");
}

#[test]
fn one_after_the_other_newest_first() {
    let w = World::new();
    w.has("a", "1").has("b", "1").has("d/f", "1");
    let first = picture(&w.real(""), true);
    w.copy_up("a", "a", Some("2")).whiteout("b").apply(&[]);
    let second = picture(&w.real(""), true);
    w.copy_up("a", "a", Some("3")).put("b", "new").redirect("e", "d").whiteout("d").apply(&[]);
    back(&w, &[]);
    assert_eq!(picture(&w.real(""), true), second);
    w.put("x", "x").apply(&[]);
    back(&w, &[]);
    assert_eq!(picture(&w.real(""), true), second);
    back(&w, &[]);
    assert_eq!(picture(&w.real(""), true), first);
    assert!(matches!(back(&w, &[]), Undone::Nothing));
}

#[test]
fn what_came_since_is_listed_and_stays_unless_forced() {
    let w = World::new();
    w.has("mod", "1").has("del", "1").has("perm", "1").has("old", "1").has("dir/f", "1");
    w.copy_up("mod", "mod", Some("2")).whiteout("del").put("n/f", "n").put("gone", "g").put("perm2", "p");
    w.copy_up("new", "old", None).whiteout("old").whiteout("dir").apply(&[]);
    fs::write(w.real("mod"), "mine").unwrap();
    fs::write(w.real("del"), "mine").unwrap();
    fs::write(w.real("n/mine"), "mine").unwrap();
    fs::remove_file(w.real("gone")).unwrap();
    fs::set_permissions(w.real("perm2"), fs::Permissions::from_mode(0o600)).unwrap();
    let before = picture(&w.real(""), true);
    assert_eq!(
        refused(&back(&w, &[])),
        [
            "del: a file appeared there since",
            "gone: it was removed since it was applied",
            "mod: it was changed since it was applied",
            "n: n/mine in it is new since it was applied",
            "perm2: its mode or owner was changed since it was applied"
        ]
    );
    assert_eq!(refused(&back(&w, &["mod", "gone"])).len(), 3);
    assert_eq!(picture(&w.real(""), true), before, "a refusal touches nothing");
    let Undone::Done { kept, .. } = back(&w, &["mod", "gone", "del", "n", "perm2"]) else {
        panic!("refused")
    };
    assert_eq!(w.tree(), ["del = 1", "dir/", "dir/f = 1", "mod = 1", "old = 1", "perm = 1"]);
    let mut mine = 0;
    for entry in walkdir::WalkDir::new(kept) {
        let entry = entry.unwrap();
        mine += usize::from(entry.file_type().is_file() && fs::read(entry.path()).unwrap() == b"mine");
    }
    assert_eq!(mine, 3, "what was forced over is kept");
}
