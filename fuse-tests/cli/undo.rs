//! What an undo does to the session and to directories that may not be written to, and what a crash leaves unreadable.

use crate::running::wait_until;
use crate::world::World;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

fn says(w: &World, args: &[&str]) -> (i32, String) {
    let out = w.sbx(args).output().expect("the product runs");
    let text = String::from_utf8([out.stdout, out.stderr].concat()).expect("its output is text");
    (out.status.code().unwrap_or(-1), text)
}

fn edit(w: &World, script: &str) {
    w.quietly(&["run", "-s", "work", "--", "sh", "-ec", script]);
}

fn agrees(w: &World, count: &str) {
    let (code, said) = says(w, &["verify"]);
    assert!(code == 0 && said.contains(&format!("agree ({count} change")), "{said}");
}

#[test]
fn a_file_in_a_directory_without_write_permission_is_applied_and_undone() {
    let w = World::new();
    w.shell("mkdir d; echo 1 > d/f; chmod 555 d");
    edit(&w, "echo 2 >> d/f");
    w.quietly(&["apply", "-y"]);
    assert_eq!(w.shell("cat d/f; stat -c %a d"), "1\n2\n555\n");
    w.quietly(&["undo", "-y"]);
    assert_eq!(w.shell("cat d/f; stat -c %a d; chmod 755 d"), "1\n555\n");
}

#[test]
fn directories_that_lost_their_write_permission_are_undone() {
    let w = World::new();
    w.shell("mkdir -p d/e; echo 1 > d/e/f");
    edit(&w, "echo 2 >> d/e/f; echo k > d/e/k; chmod 555 d/e d");
    w.quietly(&["apply", "-y"]);
    assert_eq!(w.shell("cat d/e/f d/e/k; stat -c %a d d/e"), "1\n2\nk\n555\n555\n");
    w.quietly(&["undo", "-y"]);
    assert_eq!(w.shell("cat d/e/f; ls d/e; stat -c %a d d/e"), "1\nf\n755\n755\n");
    agrees(&w, "0");
}

#[test]
fn what_a_killed_server_left_unreadable_is_served_again() {
    let w = World::new();
    let mnt = w.at("mnt");
    let mnt = mnt.to_str().expect("UTF-8");
    w.quietly(&["mount", "-s", "work", mnt]);
    w.shell(
        "cd ../../mnt; mkdir -p p/q shut; echo s > p/q/m; chmod 000 p/q/m; echo t > shut/t; chmod 000 shut",
    );
    kill(Pid::from_raw(w.server_pid("work")), Signal::SIGKILL).expect("the server can be killed");
    let is_dead = || !w.command("/usr/bin/stat".as_ref(), &["-f", mnt]).status().expect("stat").success();
    wait_until(is_dead);
    w.shell(&format!("fusermount3 -uz {mnt}"));
    w.quietly(&["mount", "-s", "work", mnt]);
    assert_eq!(
        w.shell("cd ../../mnt; stat -c %a p/q/m shut; chmod 700 shut; ls shut; chmod 0 shut"),
        "0\n0\nt\n"
    );
    w.quietly(&["umount", "work"]);
    agrees(&w, "5");
}
