//! Directories that their owner may not write to at the moment: what changes in them is applied and undone, and they keep
//! their modes. By a person, as root needs no leave.

use crate::support::test_as_unprivileged;
use crate::sweep;
use crate::world::World;
use sbx_fuse::review::{NoFault, Undone, undo};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// In directories of mode 555 a file is changed, made and deleted, one is renamed to another, and some lie in others; one
/// gets that mode from the session, and one loses it.
fn locked() -> World {
    let w = World::within(sweep::place());
    w.has("d/f", "1").has("d/del", "1").has("d/in/f", "1").has("from/f", "1").has("from/sub/f", "1");
    w.has("shut/in/f", "1").has("open/f", "1").has("gone/f", "1").has("one/f", "1");
    for dir in ["d/in", "d", "from/sub", "from", "open", "gone", "one"] {
        chmod(&w.real(dir), 0o555);
    }
    w.copy_up("d/f", "d/f", Some("2")).whiteout("d/del").put("d/new", "n").put("d/in/f", "2");
    w.redirect("to", "from").whiteout("from").copy_up("to/f", "from/f", Some("2")).put("to/sub/new", "n");
    w.put("shut/in/f", "2").put("shut/new", "n").put("open/new", "n").whiteout("gone").put("made/in/f", "n");
    w.copy_up("moved", "one/f", None).whiteout("one/f");
    for dir in ["d/in", "d", "to/sub", "to", "shut/in", "shut", "one", "made/in", "made"] {
        chmod(&w.upper(dir), 0o555);
    }
    w
}

fn passed(name: &str) -> bool {
    match test_as_unprivileged(name) {
        Some(passed) => {
            assert!(passed, "{name} failed without privileges");
            true
        }
        None => false,
    }
}

#[test]
fn what_changes_in_them_is_applied_and_undone() {
    if passed("modes::what_changes_in_them_is_applied_and_undone") {
        return;
    }
    let w = locked();
    let old = sweep::picture(&w.real(""), true);
    w.apply(&["d/f"]);
    assert_eq!(fs::read(w.real("d/f")).unwrap(), b"2");
    let mode = |path: &str| fs::metadata(w.real(path)).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode("d"), 0o555);
    w.apply(&[]);
    let modes = ["d", "d/in", "to", "to/sub", "shut", "shut/in", "one", "made", "open"].map(mode);
    assert_eq!(modes, [0o555, 0o555, 0o555, 0o555, 0o555, 0o555, 0o555, 0o555, 0o755]);
    for _ in 0..2 {
        let undone = undo(&w.roots(), &[], false, &mut |_| {}, &mut NoFault);
        assert!(matches!(undone.unwrap(), Undone::Done { .. }));
    }
    assert_eq!(sweep::picture(&w.real(""), true), old);
}

#[test]
fn an_error_or_a_death_leaves_their_modes() {
    if passed("modes::an_error_or_a_death_leaves_their_modes") {
        return;
    }
    assert!(sweep::fails_anywhere(locked) > 30);
    let (olds, news) = sweep::dies_anywhere(locked);
    assert!(olds > 30 && news > 5, "{olds} {news}");
    sweep::undo_fails_or_dies_anywhere(locked);
}
