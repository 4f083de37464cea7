//! `mount`, `umount`, and commands on a live session.

use crate::running::wait_until;
use crate::same_as_before;
use crate::world::World;

#[test]
fn a_mount_from_beginning_to_end() {
    let mut w = World::new();
    let mnt = w.at("mnt");
    let mnt = mnt.to_str().unwrap();
    w.run(&["mount", "-s", "live", mnt]);
    w.shell("echo more >> ../../mnt/a.txt; echo new > ../../mnt/new.txt");
    w.run(&["status"]);
    w.run(&["changes"]);
    w.run(&["changes", &format!("{mnt}/new.txt")]);
    w.run(&["run", "-s", "live", "true"]);
    w.run(&["rm", "live"]);
    w.run(&["mount", "-s", "live", mnt]);
    w.run(&["verify"]);
    w.run(&["apply", "-y", "new.txt"]);
    w.run(&["discard", "-y", "a.txt"]);
    assert_eq!(w.shell("cat ../../mnt/a.txt ../../mnt/new.txt"), "one\ntwo\nthree\nnew\n");
    w.shell("rm ../../mnt/gone.txt");
    w.run(&["verify"]);
    w.run(&["umount", mnt]);
    w.run(&["umount", mnt]);
    w.run(&["umount", "live"]);
    w.run(&["changes"]);
    w.run(&["verify"]);
    same_as_before!(w);
}

#[test]
fn several_roots_are_directories_of_the_mount() {
    let mut w = World::new();
    w.mkdir("home/other/project");
    let mnt = w.at("mnt");
    w.run(&["mount", "-s", "two", "--root", ".", "--root", "../other/project", mnt.to_str().unwrap()]);
    assert_eq!(w.shell("ls ../../mnt; ls ../../mnt/project"), "project\nproject-2\na.txt\ndir\ngone.txt\n");
    w.shell("echo 1 > ../../mnt/project-2/x");
    w.run(&["changes", "-s", "two"]);
    w.run(&["umount", "two"]);
    same_as_before!(w);
}

#[test]
fn a_mount_in_use_is_not_taken_away() {
    let mut w = World::new();
    let mnt = w.at("mnt");
    w.run(&["mount", "-s", "busy", mnt.to_str().unwrap()]);
    let script = "cd ../../mnt && echo in > ../home/in && exec sleep 100";
    let mut user = w.command(std::path::Path::new("/bin/sh"), &["-c", script]).spawn().unwrap();
    wait_until(|| w.at("home/in").symlink_metadata().is_ok());
    w.run(&["umount", "busy"]);
    w.shell("echo still there > ../../mnt/x");
    user.kill().unwrap();
    user.wait().unwrap();
    w.run(&["umount", "busy"]);
    w.run(&["changes", "-s", "busy"]);
    same_as_before!(w);
}

#[test]
fn a_mount_point_must_be_empty_and_apart_from_the_roots() {
    let mut w = World::new();
    w.mkdir("home/project/inside");
    for at in ["inside", "..", "../..", "/"] {
        assert_eq!(w.run(&["mount", "-s", "bad", at]), 2);
    }
    w.mkdir("full");
    w.write("full/x", "x");
    w.run(&["mount", "-s", "bad", w.at("full").to_str().unwrap().to_owned().as_str()]);
    assert_eq!(w.quietly(&["ls"]), "", "a refused mount left a session");
    same_as_before!(w);
}

/// What a session in use made anew leaves change by change: the rest stays as it is, also in the kernel's caches.
#[test]
fn a_change_in_a_replaced_directory_leaves_alone() {
    for (leave, theirs) in [("apply", "new\n"), ("discard", "precious\n")] {
        let w = World::new();
        w.mkdir("home/project/p");
        w.write("home/project/p/a", "precious\n");
        w.write("home/project/p/b", "b\n");
        w.quietly(&["mount", "-s", "live", w.at("mnt").to_str().unwrap()]);
        w.shell("cd ../../mnt; rm -r p; mkdir p; echo new > p/a; ls -l p; ! cat p/b");
        w.quietly(&[leave, "-y", "p/a"]);
        assert_eq!(w.shell("cat ../../mnt/p/a; ls ../../mnt/p"), format!("{theirs}a\n"), "{leave}");
        assert_eq!(w.read("home/project/p/a"), theirs, "{leave}");
        let files = || {
            let all = w.quietly(&["changes"]);
            all.lines().filter(|l| !l.ends_with('/')).collect::<Vec<_>>().join("\n")
        };
        assert_eq!(files(), "D p/b", "{leave}");
        w.quietly(&["verify"]);
        // What is left is a deletion alone, which leaves as well.
        w.quietly(&["discard", "-y", "p/b"]);
        assert_eq!(files(), "", "{leave}");
        assert_eq!(w.shell("cat ../../mnt/p/b"), "b\n", "{leave}");
        w.quietly(&["verify"]);
        w.quietly(&["umount", "live"]);
        w.quietly(&["apply", "-y"]);
        assert_eq!(w.read("home/project/p/b"), "b\n", "{leave}");
    }
}

/// The same of a session at rest.
#[test]
fn a_change_in_a_replaced_directory_leaves_alone_at_rest() {
    for (leave, path) in [("apply", "p/a"), ("discard", "p/n")] {
        let w = World::new();
        w.mkdir("home/project/p");
        w.write("home/project/p/a", "old\n");
        w.write("home/project/p/b", "old\n");
        w.quietly(&["run", "-s", "rest", "--", "sh", "-c", "rm -r p; mkdir p; echo 1 > p/a; echo 2 > p/n"]);
        w.quietly(&[leave, "-y", path]);
        assert!(w.quietly(&["changes"]).lines().any(|l| l == "D p/b"), "{leave}");
        w.quietly(&["verify"]);
        w.quietly(&["apply", "-y"]);
        let there = if leave == "apply" { "a\nn\n" } else { "a\n" };
        assert_eq!(w.shell("ls p"), there, "{leave}");
    }
}
