//! What an apply leaves in the session; what an undo does to it and to directories that may not be written to, and what a crash leaves unreadable.

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

/// It has left with its directory by the time when its turn comes, and nobody else had a hand in it.
#[test]
fn a_file_with_a_new_name_in_a_moved_directory_leaves_with_it() {
    let w = World::new();
    w.shell("mkdir -p d1/e1 d2 d3; echo 1 > d1/e1/f1");
    edit(&w, "mv d1 D; mv D/e1 d2/E1; mv d2 D/d2; mkdir d1; ln D/d2/E1/f1 d1/lf1; mv D d3/D");
    let (code, said) = says(&w, &["apply", "-y"]);
    assert!(code == 0 && !said.contains("stays"), "{said}");
    agrees(&w, "0");
}

#[test]
fn a_dry_discard_refuses_what_a_real_one_does() {
    let w = World::new();
    w.shell("mkdir d; echo 1 > d/a");
    edit(&w, "mv d E; echo z >> E/a; mkdir d; echo q > d/n");
    for how in ["-n", "-y"] {
        let (code, said) = says(&w, &["discard", how, "E"]);
        assert!(code == 1 && said.contains("cannot discard E alone: its old name was taken again"), "{said}");
    }
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

#[test]
fn attributes_of_directories_leave_the_session_with_what_is_undone() {
    let w = World::new();
    let mnt = w.at("mnt");
    let mnt = mnt.to_str().expect("UTF-8");
    let change = "setfattr -n user.a -v 1 . dir; chmod 700 dir; echo k > k; echo l > dir/l";
    let look = "getfattr -R -m user.a . | wc -c; stat -c %a dir; ls . dir";
    let old = w.shell(look);
    edit(&w, change);
    w.quietly(&["apply", "-y"]);
    w.quietly(&["undo", "-y"]);
    assert_eq!(w.quietly(&["run", "-s", "work", "--", "sh", "-ec", look]), old);
    agrees(&w, "0");
    w.quietly(&["mount", "-s", "work", mnt]);
    w.shell(&format!("cd ../../mnt; {change}"));
    w.quietly(&["apply", "-y"]);
    // In a directory of the session something stays.
    w.shell("cd ../../mnt; echo more > dir/more");
    w.quietly(&["undo", "-y"]);
    w.shell("cd ../../mnt; rm dir/more");
    assert_eq!(w.shell(&format!("cd ../../mnt; {look}")), old);
    agrees(&w, "0");
    w.quietly(&["umount", "work"]);
    agrees(&w, "0");
}

#[test]
fn directories_that_the_session_still_changes_are_not_undone() {
    let w = World::new();
    edit(&w, "mkdir n; echo k > n/k; echo l > n/l; mv dir moved; echo 2 >> moved/b.txt; echo 3 > moved/c");
    w.quietly(&["apply", "-y", "n/k"]);
    let (code, said) = says(&w, &["undo", "-y"]);
    assert!(code == 1 && said.contains("n goes with it") && said.contains("first: n/l"), "{said}");
    assert_eq!(says(&w, &["undo", "-n"]).0, 1);
    agrees(&w, "4");
    w.quietly(&["apply", "-y", "n/l"]);
    w.quietly(&["undo", "-y"]);
    w.quietly(&["undo", "-y"]);
    w.quietly(&["apply", "-y", "moved/b.txt"]);
    let (code, said) = says(&w, &["undo", "-y"]);
    assert!(code == 1 && said.contains("moved goes with it") && said.contains("first: moved/c"), "{said}");
    assert_eq!(w.shell("ls; cat moved/b.txt"), "a.txt\ngone.txt\nmoved\nb\n2\n");
    w.quietly(&["discard", "-y", "moved/c"]);
    w.quietly(&["undo", "-y"]);
    assert_eq!(w.shell("ls; cat dir/b.txt"), "a.txt\ndir\ngone.txt\nb\n");
    agrees(&w, "0");
}

#[test]
fn what_is_left_of_a_file_is_a_change_of_the_one_that_came_back() {
    let w = World::new();
    w.shell("seq 9 > a.txt");
    edit(&w, "sed -i 's/1/one/; s/9/nine/' a.txt");
    w.quietly(&["review", "--hunk", "a.txt:2"]);
    w.quietly(&["undo", "-y"]);
    assert_eq!(w.shell("cat a.txt"), w.shell("seq 9"));
    agrees(&w, "1");
    w.quietly(&["apply", "-y"]);
    assert_eq!(w.shell("cat a.txt"), w.shell("seq 9 | sed 's/1/one/; s/9/nine/'"));
}

#[test]
fn a_side_that_cannot_win_is_not_offered_again() {
    let w = World::new();
    edit(&w, "echo 2 >> dir/b.txt");
    w.shell("rm -r dir");
    let (code, said) = says(&w, &["apply", "-y", "--take", "session"]);
    assert_eq!(code, 3);
    assert!(said.contains("only --take real solves this") && said.contains("--take real:PATH"), "{said}");
    assert!(!said.contains("choose a side"), "{said}");
    w.quietly(&["apply", "-y", "--take", "real"]);
    assert_eq!(w.quietly(&["changes"]), "");
}

/// A change time that we moved ourselves, or a time that lies ahead, is nobody's work.
#[test]
fn what_we_did_ourselves_is_no_conflict() {
    let w = World::new();
    w.shell("mkdir -p ahead a/a b c d; echo x > ahead/f; touch -d 2131-01-01 ahead/f; echo 1 | tee a/a/f a/g b/b b/d c/f d/k");
    edit(&w, "rm -r ahead; mv a/a e; rm -r a; chmod 750 b; echo 2 > b/new; mv b/new b/d");
    for args in [["e"], ["b/d"]] {
        w.quietly(&[&["apply", "-y"][..], &args].concat());
    }
    edit(&w, "rm -r b");
    w.quietly(&["apply", "-y"]);
    assert_eq!(w.shell("ls | tr '\\n' ' '; ls e"), "a.txt c d dir e gone.txt f\n");
    // In a session in use, too.
    let mnt = w.at("mnt");
    let mnt = mnt.to_str().expect("UTF-8");
    w.quietly(&["mount", "-s", "work", mnt]);
    w.shell("mv ../../mnt/c/f ../../mnt/d/n");
    w.quietly(&["apply", "-y"]);
    w.shell("rm -r ../../mnt/d");
    w.quietly(&["apply", "-y"]);
    w.quietly(&["umount", mnt]);
    assert_eq!(w.shell("ls | tr '\\n' ' '"), "a.txt c dir e gone.txt ");
    agrees(&w, "0");
}

#[test]
fn an_application_that_died_before_its_log_is_none() {
    let w = World::new();
    edit(&w, "echo 2 >> a.txt");
    w.shell("mkdir ../.local/state/sbx-fuse/sessions/work/apply ../.local/state/sbx-fuse/sessions/work/apply/000001");
    assert_eq!(w.quietly(&["changes"]), "M a.txt\n");
    w.quietly(&["apply", "-y"]);
    w.quietly(&["undo", "-y"]);
    assert_eq!(w.read("home/project/a.txt"), "one\ntwo\nthree\n");
}

#[test]
fn a_directory_of_somebody_else_gets_its_entries_back_and_keeps_its_times() {
    let w = World::new();
    w.shell("mkdir open; echo 1 > open/f; chmod 777 open");
    if !w.give_to_root("home/project/open") {
        eprintln!("only root can give directories away: nothing was tried");
        return;
    }
    // Its copy in the session is the person's; what is shown is whose it is, and so is what may be done.
    let owner = "stat -c '%u %a' open; chmod 755 open 2>&1 || touch -d 2001-01-01 open 2>&1 || :";
    w.quietly(&["mount", "-s", "seen", w.at("mnt").to_str().expect("UTF-8")]);
    let seen = w.shell(&format!("cd ../../mnt; echo > open/x; {owner}"));
    assert!(seen.starts_with("0 777\n") && seen.matches("Operation not permitted").count() == 2, "{seen}");
    w.quietly(&["umount", "seen"]);
    edit(&w, "echo new > open/n; echo 2 >> open/f; echo top > top");
    w.quietly(&["apply", "-y"]);
    assert_eq!(w.shell("cat open/f open/n top; stat -c '%u %a' open"), "1\n2\nnew\ntop\n0 777\n");
    w.quietly(&["undo", "-y"]);
    assert_eq!(w.shell("ls . open; cat open/f"), ".:\na.txt\ndir\ngone.txt\nopen\n\nopen:\nf\n1\n");
}

#[test]
fn links_in_directories_made_since_are_undone_one_application_after_the_other() {
    let w = World::new();
    w.shell("echo 0 > f");
    for n in ["1", "2"] {
        edit(&w, &format!("echo {n} >> f; mkdir n{n}; ln f n{n}/lf"));
        w.quietly(&["apply", "-y"]);
    }
    w.quietly(&["undo", "-y"]);
    assert_eq!(w.shell("cat f n1/lf; ls"), "0\n1\n0\n1\na.txt\ndir\nf\ngone.txt\nn1\n");
    w.quietly(&["undo", "-y"]);
    assert_eq!(w.shell("cat f; ls"), "0\na.txt\ndir\nf\ngone.txt\n");
}

#[test]
fn an_undo_that_the_session_is_in_the_way_of_is_refused() {
    let w = World::new();
    let refused = |why: &str, first: &str| {
        let before = w.shell("ls; cat *.txt d n 2>/dev/null || :");
        let (code, said) = says(&w, &["undo", "-y"]);
        assert!(code == 1 && said.contains(why) && said.contains(&format!("first: {first}\n")), "{said}");
        assert_eq!(w.shell("ls; cat *.txt d n 2>/dev/null || :"), before);
    };
    // Something of its own where the real tree would get a file back.
    edit(&w, "mv a.txt d");
    w.quietly(&["apply", "-y"]);
    edit(&w, "echo mine > a.txt");
    refused("a.txt comes back with it", "a.txt");
    edit(&w, "rm a.txt; mv gone.txt a.txt");
    refused("a.txt comes back with it", "a.txt");
    w.quietly(&["discard", "-y"]);
    // A change of the file that would go.
    edit(&w, "echo more >> d");
    refused("d goes with it", "d");
    w.quietly(&["discard", "-y"]);
    edit(&w, "mv d n");
    refused("d goes with it", "n");
    w.quietly(&["discard", "-y"]);
    // A change of what would be again what it was.
    w.shell("echo 1 > f");
    edit(&w, "echo 2 > f");
    w.quietly(&["apply", "-y"]);
    for script in ["rm f", "mv f g", "rm f; mkdir f"] {
        edit(&w, script);
        refused("f is again what it was", if script == "mv f g" { "g" } else { "f" });
        w.quietly(&["discard", "-y"]);
    }
    w.quietly(&["undo", "-y"]);
    // Something that comes back where the session removed the directory.
    w.shell("mkdir b e; echo precious > b/p");
    edit(&w, "mv b/p q");
    w.quietly(&["apply", "-y"]);
    for script in ["rmdir b", "rmdir b; echo > b", "rmdir b; mv -T e b"] {
        edit(&w, script);
        refused("b/p comes back with it", "b");
        w.quietly(&["discard", "-y"]);
    }
    edit(&w, "mv b c");
    w.quietly(&["undo", "-y"]);
    edit(&w, "cat c/p");
    w.quietly(&["discard", "-y"]);
    w.shell("rm -r b e");
    edit(&w, "rm f; mkdir f");
    w.quietly(&["apply", "-y"]);
    edit(&w, "rmdir f; echo 2 > f");
    w.quietly(&["apply", "-y"]);
    edit(&w, "echo 3 > f");
    refused("f goes with it", "f");
    w.quietly(&["discard", "-y"]);
    w.quietly(&["undo", "-y"]);
    w.quietly(&["undo", "-y"]);
    w.shell("rm f");
    // That it removed it is no change of anything then.
    edit(&w, "rm d");
    w.quietly(&["undo", "-y"]);
    assert_eq!(w.quietly(&["changes"]), "");
    edit(&w, "echo new > n");
    w.quietly(&["apply", "-y"]);
    edit(&w, "echo more > n");
    refused("n goes with it", "n");
    w.quietly(&["apply", "-y"]);
    w.quietly(&["undo", "-y"]);
    w.quietly(&["undo", "-y"]);
    agrees(&w, "0");
}

#[test]
fn the_time_of_a_directory_is_not_lost_with_what_is_applied_in_it() {
    let w = World::new();
    let mnt = w.at("mnt");
    let mnt = mnt.to_str().expect("UTF-8");
    let change = "touch -d @1700000000 dir; echo x >> dir/b.txt; mv a.txt dir/a; touch -d @1700000000 dir";
    let time = "stat -c %Y dir";
    let apply_one = || {
        w.quietly(&["apply", "-y", "dir/b.txt"]);
        assert_ne!(w.shell(time), "1700000000\n");
    };
    edit(&w, change);
    apply_one();
    assert_eq!(w.quietly(&["run", "-s", "work", "--", "sh", "-ec", time]), "1700000000\n");
    w.quietly(&["apply", "-y"]);
    assert_eq!(w.shell(time), "1700000000\n");
    w.shell("mv dir/a a.txt; touch dir");
    w.quietly(&["mount", "-s", "work", mnt]);
    w.shell(&format!("cd ../../mnt; {change}"));
    apply_one();
    assert_eq!(w.shell(&format!("cd ../../mnt; {time}")), "1700000000\n");
    w.quietly(&["apply", "-y"]);
    assert_eq!(w.shell(time), "1700000000\n");
    w.quietly(&["umount", "work"]);
}

#[test]
fn what_others_made_is_not_deleted_with_what_the_session_had_there() {
    let w = World::new();
    edit(&w, "echo mine > new; echo mine > next");
    w.shell("echo theirs > new; echo theirs > next");
    edit(&w, "rm new next; echo again > next");
    assert_eq!(w.quietly(&["changes"]), "D new\nM next\n");
    agrees(&w, "2");
    let (code, said) = says(&w, &["apply", "-y"]);
    assert!(code == 3 && said.contains("conflict new:") && said.contains("conflict next:"), "{said}");
    assert_eq!(w.shell("cat new next"), "theirs\ntheirs\n");
    w.quietly(&["apply", "-y", "--take", "session"]);
    assert_eq!(w.shell("test ! -e new; cat next"), "again\n");
}
