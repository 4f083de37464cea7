//! Conflicts: what happened to the real tree meanwhile, and whether it matters.

use crate::world::World;
use sbx_fuse::layer;
use sbx_fuse::review::{Why, check};
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;

type Act = fn(&World);

/// The conflicts of `set`, which the session knew before others touched the real tree.
fn whys(w: &World, set: &sbx_fuse::base::ChangeSet) -> Vec<String> {
    let settled = sbx_fuse::review::settle(&w.roots(), set).unwrap();
    let found = check(&w.roots(), &settled, &|_, _| None).unwrap();
    found.iter().map(|c| format!("{}: {}", c.path, c.why.sentence())).collect()
}

#[test]
fn the_table() {
    let changed = "it was changed in the real tree meanwhile";
    let removed = "it was removed from the real tree meanwhile";
    let table: &[(&str, Act, Act, &[&str])] = &[
        ("nothing happened", modify, |_| {}, &[]),
        ("written", modify, |w| fs::write(w.real("d/f"), "theirs").unwrap(), &["d/f: {changed}"]),
        ("same result", modify, |w| fs::write(w.real("d/f"), "2").unwrap(), &[]),
        ("removed", modify, |w| fs::remove_file(w.real("d/f")).unwrap(), &["d/f: {removed}"]),
        (
            "only the mode",
            modify,
            |w| fs::set_permissions(w.real("d/f"), fs::Permissions::from_mode(0o600)).unwrap(),
            &["d/f: its mode, owner or times were changed in the real tree meanwhile; its content was not"],
        ),
        (
            "only the ctime",
            modify,
            |w| {
                let perm = fs::metadata(w.real("d/f")).unwrap().permissions();
                fs::set_permissions(w.real("d/f"), perm).unwrap();
            },
            &[],
        ),
        (
            "written, of the same size, and the time set back",
            modify_noted,
            |w| {
                let time = fs::metadata(w.real("d/f")).unwrap().modified().unwrap();
                fs::write(w.real("d/f"), "X").unwrap();
                fs::File::options().append(true).open(w.real("d/f")).unwrap().set_modified(time).unwrap();
            },
            &["d/f: {changed}"],
        ),
        (
            "became a directory",
            modify,
            |w| {
                fs::remove_file(w.real("d/f")).unwrap();
                fs::create_dir(w.real("d/f")).unwrap();
            },
            &["d/f: it was a file and is a directory in the real tree now"],
        ),
        (
            "parent removed",
            modify,
            |w| fs::remove_dir_all(w.real("d")).unwrap(),
            &["d/f: its directory d was removed from the real tree"],
        ),
        (
            "parent became a symlink",
            modify,
            |w| {
                fs::rename(w.real("d"), w.real("e")).unwrap();
                std::os::unix::fs::symlink("e", w.real("d")).unwrap();
            },
            &["d/f: d is a symlink in the real tree now, not a directory"],
        ),
        ("added, nothing there", add, |_| {}, &[]),
        (
            "added, appeared",
            add,
            |w| fs::write(w.real("d/n"), "theirs").unwrap(),
            &["d/n: a file appeared there in the real tree"],
        ),
        ("added, the same appeared", add, |w| fs::write(w.real("d/n"), "n").unwrap(), &[]),
        ("deleted", delete, |_| {}, &[]),
        ("deleted on both sides", delete, |w| fs::remove_dir_all(w.real("d")).unwrap(), &[]),
        (
            "deleted, something new inside",
            delete,
            |w| fs::write(w.real("d/theirs"), "1").unwrap(),
            &["d: {inside}"],
        ),
        (
            "deleted, something changed deep inside",
            delete,
            |w| fs::write(w.real("d/s/deep"), "2").unwrap(),
            &["d: d/s/deep in it is new or was changed in the real tree meanwhile"],
        ),
        ("renamed", rename, |_| {}, &[]),
        ("renamed, written", rename, |w| fs::write(w.real("d/f"), "theirs").unwrap(), &["r: {changed}"]),
        (
            "renamed, target appeared",
            rename,
            |w| fs::write(w.real("r"), "theirs").unwrap(),
            &["r: a file appeared there in the real tree"],
        ),
        ("replaced without a base", replace, |_| {}, &[]),
        (
            "replaced without a base, written",
            replace,
            |w| fs::write(w.real("d/f"), "theirs").unwrap(),
            &["d/f: the real object is younger than the session's change of it"],
        ),
    ];
    for (name, session, others, expected) in table {
        let w = World::new();
        w.has("d/f", "1").has("d/s/deep", "1");
        w.tick();
        session(&w);
        let set = w.scan();
        w.tick();
        others(&w);
        let expected: Vec<String> =
            expected.iter().map(|e| e.replace("{changed}", changed).replace("{removed}", removed)).collect();
        let found = whys(&w, &set);
        match expected.first().filter(|e| e.ends_with("{inside}")) {
            Some(_) => assert!(found.len() == 1 && found[0].contains("in it is new"), "{name}: {found:?}"),
            None => assert_eq!(found, expected, "{name}"),
        }
    }
}

fn modify(w: &World) {
    w.copy_up("d/f", "d/f", Some("2"));
}

/// As a copy-up does it, which notes what it copied.
fn modify_noted(w: &World) {
    modify(w);
    let fd = fs::File::open(w.upper("d/f")).unwrap();
    let mut origin = layer::read_origin(fd.as_fd()).unwrap().unwrap();
    origin.base.hash = Some(*blake3::hash(b"1").as_bytes());
    assert!(layer::write_origin(fd.as_fd(), &origin).unwrap());
}

fn add(w: &World) {
    w.put("d/n", "n");
}

fn delete(w: &World) {
    w.whiteout("d");
}

fn rename(w: &World) {
    w.copy_up("r", "d/f", None).whiteout("d/f");
}

fn replace(w: &World) {
    w.put("d/f", "other");
}

#[test]
fn a_known_hash_tells_a_touch_from_a_change() {
    let w = World::new();
    w.has("f", "1");
    w.copy_up("f", "f", Some("2"));
    let mut set = w.scan();
    let base = set.changes[0].base.as_mut().unwrap();
    base.hash = Some(*blake3::hash(b"1").as_bytes());
    fs::write(w.real("f"), "1").unwrap();
    let settled = sbx_fuse::review::settle(&w.roots(), &set).unwrap();
    let found = check(&w.roots(), &settled, &|_, _| None).unwrap();
    assert_eq!(found.iter().map(|c| &c.why).collect::<Vec<_>>(), [&Why::Metadata]);
}

#[test]
fn what_a_rename_took_the_place_of_is_checked_too() {
    let w = World::new();
    w.has("a", "1").has("b", "2");
    w.copy_up("b", "a", None).whiteout("a");
    let roots = w.roots();
    let attr = {
        use std::os::fd::AsFd;
        sbx_fuse::sys::file::stat_at(roots[0].real.as_fd(), b"b").unwrap()
    };
    let base = sbx_fuse::base::BaseId::of(&attr);
    let lookup = |_: u16, path: &sbx_fuse::base::RelPath| (path.as_bytes() == b"b").then(|| base.clone());
    assert_eq!(check(&roots, &w.settled(), &lookup).unwrap(), []);
    fs::write(w.real("b"), "theirs").unwrap();
    let found = check(&roots, &w.settled(), &lookup).unwrap();
    assert_eq!(found.iter().map(|c| &c.why).collect::<Vec<_>>(), [&Why::Content]);
}
