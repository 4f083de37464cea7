//! After `kill -9` of a server the next command recovers, and says so.

use crate::running::wait_until;
use crate::same_as_before;
use crate::world::World;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

#[test]
fn a_killed_mount_is_recovered_by_the_next_command() {
    let mut w = World::new();
    let mnt = w.at("mnt");
    let mnt = mnt.to_str().unwrap();
    w.run(&["mount", "-s", "live", mnt]);
    w.shell("echo more >> ../../mnt/a.txt; mv ../../mnt/dir ../../mnt/moved; rm ../../mnt/gone.txt");
    kill(Pid::from_raw(w.server_pid("live")), Signal::SIGKILL).unwrap();
    wait_until(|| is_dead(&w, mnt));
    w.run(&["mount", "-s", "other", mnt]);
    w.run(&["changes"]);
    w.run(&["verify"]);
    w.run(&["mount", "-s", "live", mnt]);
    kill(Pid::from_raw(w.server_pid("live")), Signal::SIGKILL).unwrap();
    wait_until(|| is_dead(&w, mnt));
    w.run(&["umount", "live"]);
    w.run(&["umount", "live"]);
    w.run(&["apply", "-y"]);
    assert_eq!(w.shell("ls; cat a.txt"), "a.txt\nmoved\none\ntwo\nthree\nmore\n");
    same_as_before!(w);
}

#[test]
fn a_killed_run_takes_its_command_along_and_loses_nothing() {
    let mut w = World::new();
    let script = "echo 1 > one; echo $$ > pid; sleep 1000";
    let mut child = w.sbx(&["run", "-s", "work", "--", "sh", "-c", script]).spawn().unwrap();
    wait_until(|| w.sbx(&["changes", "-s", "work"]).output().unwrap().stdout == b"A one\nA pid\n");
    assert_eq!(w.run(&["apply", "-s", "work", "-y", "one"]), 0);
    child.kill().unwrap();
    child.wait().unwrap();
    w.run(&["changes", "-s", "work"]);
    w.run(&["verify", "-s", "work"]);
    w.run(&["run", "-s", "work", "cat", "one"]);
    assert_eq!(w.read("home/project/one"), "1\n");
    same_as_before!(w);
}

/// Only statfs(2) asks the server: listings of a dead mount may come from what the kernel remembers. Others than the
/// person are not let in, and told nothing.
fn is_dead(w: &World, mnt: &str) -> bool {
    let asked = w.command(std::path::Path::new("/usr/bin/stat"), &["-f", mnt]).output().expect("stat starts");
    !asked.status.success()
}
