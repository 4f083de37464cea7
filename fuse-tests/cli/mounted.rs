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
