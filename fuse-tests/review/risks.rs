//! Risk first: what stands on top, what is noise, and that a session cannot hide one as the other.

use crate::world::World;
use sbx_fuse::review::{Class, Rules, classify, risk};
use std::fs;
use std::os::unix::fs::PermissionsExt;

fn lines(w: &World) -> Vec<String> {
    let set = w.settled();
    let classes = classify(&Rules::builtin().unwrap(), &w.roots(), &set).unwrap();
    let line = |i: usize| {
        let path = &set[i].change.path;
        match &classes[i] {
            Class::Risk(why) => format!("! {path}: {}", why.join("; ")),
            Class::Plain => format!("{path}"),
            Class::Noise(group) => format!("~ {path} ({group})"),
        }
    };
    risk::order(&classes).into_iter().map(line).collect()
}

#[test]
fn what_runs_or_leaks_is_on_top_and_build_output_at_the_end() {
    let w = World::new();
    w.has(".gitignore", "*.log\n/out/\n!keep.log\n")
        .has("sub/.gitignore", "gen\n")
        .has("gone", "1")
        .has("run", "1");
    w.whiteout("gone").copy_up("run", "run", None).put("a", "1").put("x.log", "1").put("keep.log", "1");
    fs::set_permissions(w.upper("run"), fs::Permissions::from_mode(0o755)).unwrap();
    w.put("out/b", "1")
        .put("sub/gen/c", "1")
        .put("target/debug/d", "1")
        .put("out/.git/hooks/pre-commit", "1");
    w.put("link", "-> ../../etc")
        .put("inside", "-> out/b")
        .put("suid", "1")
        .put("target/debug/Makefile", "1");
    fs::set_permissions(w.upper("suid"), fs::Permissions::from_mode(0o4755)).unwrap();
    fs::set_permissions(w.upper("target/debug/d"), fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(
        lines(&w),
        [
            "! gone: is deleted",
            "! link: is a symlink that points out of the root",
            "! out/.git/hooks: git runs hooks on the host",
            "! out/.git/hooks/pre-commit: git runs hooks on the host",
            "! run: became executable",
            "! suid: runs with the rights of its owner or group (set-uid or set-gid); is a new executable",
            "! target/debug/Makefile: a build tool or package manager runs what it says",
            "a",
            "inside",
            "keep.log",
            "target",
            "~ x.log (*.log)",
            "~ out (out)",
            "~ out/.git (out)",
            "~ out/b (out)",
            "~ sub/gen (sub/gen)",
            "~ sub/gen/c (sub/gen)",
            "~ target/debug (target/debug)",
            "~ target/debug/d (target/debug)",
        ]
    );
}

#[test]
fn an_ignore_file_of_the_session_hides_nothing() {
    let w = World::new();
    w.put(".gitignore", "*\n").put("evil", "1");
    assert_eq!(lines(&w), [".gitignore", "evil"]);
}

#[test]
fn a_moved_directory_that_brings_a_hook_is_risky() {
    let w = World::new();
    w.has("mine/pre-commit", "1").has("x/sub/.envrc", "1").has(".git/HEAD", "1");
    w.redirect(".git/hooks", "mine").whiteout("mine").redirect("y", "x").whiteout("x");
    assert_eq!(
        lines(&w),
        [
            "! .git/hooks: git runs hooks on the host; it brings pre-commit there, which the host may run",
            "! y: it brings sub/.envrc there, which the host may run"
        ]
    );
}

#[test]
fn what_is_left_out_as_noise_is_not_what_others_need() {
    let w = World::new();
    w.put("node_modules/x/package.json", "{}").put("node_modules/x/index.js", "1").put("a", "1");
    let set = w.settled();
    let classes = classify(&Rules::builtin().unwrap(), &w.roots(), &set).unwrap();
    let left: Vec<String> =
        risk::without_noise(set, &classes).iter().map(|s| s.change.path.to_string()).collect();
    assert_eq!(left, ["a", "node_modules", "node_modules/x", "node_modules/x/package.json"]);
}
