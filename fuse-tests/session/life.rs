//! Made, used by several commands at once, stopped, reset, renamed, thrown away.

use crate::world::{World, said, until};
use serde_json::json;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

/// A command that says it runs and goes on until `stop` is there.
fn waiting(file: &str) -> String {
    format!("echo 1 > {file}; while ! [ -e stop ]; do sleep 0.05; done")
}

pub fn from_new_to_rm() {
    let w = World::new();
    assert_eq!(w.ok(&["new", "s"]), "s\n");
    assert_eq!(w.state("s"), "resting");
    assert!(w.fails(2, &["new", "s"]).contains("already a session s"));
    assert_eq!(w.run(&["exec", "s", "--", "sh", "-c", "echo x > new; exit 7"]).0, 7);
    assert_eq!(w.ok(&["exec", "s", "--", "cat", "new"]), "x\n");
    assert_eq!(w.state("s"), "resting");
    assert_eq!(w.run(&["exec", "nosuch", "true"]).0, 125);
    w.fails(2, &["rm", "s"]);
    w.ok(&["rm", "-y", "s"]);
    assert!(w.fails(2, &["stop", "s"]).contains("no session s"));
    let name = w.ok(&["new"]);
    w.ok(&["exec", name.trim(), "true"]);
    assert_eq!(w.state(name.trim()), "resting", "a session that was asked for was thrown away");
}

pub fn several_commands_share_a_running_session() {
    let w = World::new();
    let first = w.start(&["run", "-s", "s", "--", "sh", "-c", &waiting("first")]);
    until("the first runs", || w.has("s", "first"));
    let second = w.start(&["exec", "s", "--", "sh", "-c", &format!("{}; echo end > end", waiting("second"))]);
    until("the second runs", || w.has("s", "second"));
    assert_eq!(w.state("s"), "running");
    // Of a shell that is just starting a program there are two for a moment.
    until("two shells are listed", || {
        let ps = w.json(&["ps", "-s", "s", "--json"]);
        ps.as_array().unwrap().iter().filter(|p| p["comm"] == "sh").count() == 2
    });
    // The first ends; its server stays for the second.
    w.ok(&["exec", "s", "--", "sh", "-c", "kill -0 1; touch stop"]);
    for child in [first, second] {
        let (code, out, err) = said(&child.wait_with_output().unwrap());
        assert_eq!(code, 0, "{out}{err}");
    }
    assert_eq!(w.ok(&["exec", "s", "--", "cat", "first", "second", "end"]), "1\n1\nend\n");
    assert!(!w.at("home/project/first").exists(), "it reached the real tree");
    w.ok(&["verify", "-s", "s"]);
    // The journal names the commands.
    let log = w.ok(&["log", "-s", "s"]);
    assert!(log.contains("end"), "{log}");
}

pub fn a_mounted_session_takes_commands() {
    let w = World::new();
    let mnt = w.at("mnt");
    let mnt = mnt.to_str().unwrap();
    w.ok(&["mount", "-s", "s", mnt]);
    assert_eq!(w.state("s"), "mounted");
    w.ok(&["exec", "s", "--", "sh", "-c", "echo y >> a.txt"]);
    assert_eq!(w.read("mnt/a.txt"), "one\ny\n");
    let mut child = w.start(&["exec", "s", "--", "sh", "-c", &waiting("busy")]);
    until("it runs", || w.at("mnt/busy").exists());
    assert!(w.fails(4, &["umount", "s"]).contains("sbx-fuse stop s"));
    w.ok(&["stop", "s"]);
    child.wait().unwrap();
    assert_eq!(w.state("s"), "resting");
    assert!(!w.at("mnt/a.txt").exists());
    assert_eq!(w.read("home/project/a.txt"), "one\n");
}

/// Where mounts do not propagate, a mount namespace that was made meanwhile keeps its copy for as long as it lives.
pub fn a_mount_ends_although_another_namespace_has_a_copy() {
    let w = World::new();
    w.ok(&["mount", "-s", "s", w.at("mnt").to_str().unwrap()]);
    let script = "echo y >> a.txt; cd /; echo ready; read end; cat \"$1\" 2>&1";
    let mut other = std::process::Command::new("unshare");
    other.args(["-Urm", "--propagation", "private", "sh", "-c", script, "sh"]).arg(w.at("mnt/dir/b.txt"));
    other.current_dir(w.at("mnt")).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut other = other.spawn().unwrap();
    let mut out = BufReader::new(other.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    w.ok(&["umount", "s"]);
    assert_eq!(w.state("s"), "resting");
    w.ok(&["verify", "-s", "s"]);
    w.ok(&["apply", "-s", "s", "-y"]);
    assert_eq!(w.read("home/project/a.txt"), "one\ny\n");
    // The copy is dead, and says so.
    drop(other.stdin.take());
    out.read_line(&mut line).unwrap();
    assert!(line.contains("not connected"), "{line}");
    other.wait().unwrap();
}

pub fn stop_ends_daemons_too() {
    let w = World::new();
    let daemon = "setsid -f sh -c 'trap \"\" TERM HUP; echo 1 > up; while :; do sleep 0.05; echo >> alive; done'; \
                  sleep 1000";
    let child = w.start(&["run", "-s", "s", "--", "sh", "-c", daemon]);
    until("the daemon runs", || w.has("s", "alive"));
    until("it is listed", || w.ok(&["ps", "-s", "s"]).contains("sleep 1000"));
    assert!(w.json(&["ps", "-s", "s", "--json"]).as_array().unwrap().len() >= 3);
    w.ok(&["stop", "--grace", "1", "s"]);
    // Its output is the daemon's as well, and has an end only when that is dead, too.
    let (code, _, err) = said(&child.wait_with_output().unwrap());
    assert!(code > 128, "{code} {err}");
    assert_eq!(w.ok(&["ps", "-s", "s"]), "");
    assert_eq!(w.state("s"), "resting");
    assert!(w.run(&["stop", "s"]).2.contains("rests already"));
    w.ok(&["verify", "-s", "s"]);
}

pub fn reset_hard_makes_a_session_as_new() {
    let w = World::new();
    w.ok(&["run", "-s", "s", "--", "sh", "-c", "echo x > new; rm a.txt; mv dir moved"]);
    w.ok(&["reset", "s"]);
    assert_eq!(w.ok(&["exec", "s", "cat", "new"]), "x\n");
    w.fails(2, &["reset", "--hard", "s"]);
    assert_eq!(w.ok(&["exec", "s", "cat", "new"]), "x\n");
    w.ok(&["reset", "--hard", "-y", "s"]);
    assert_eq!(w.ok(&["changes", "-s", "s"]), "");
    assert_eq!(w.ok(&["log", "-s", "s"]), "");
    assert_eq!(w.ok(&["exec", "s", "--", "sh", "-c", "ls; cat a.txt"]), "a.txt\ndir\none\n");
    w.ok(&["verify", "-s", "s"]);
}

pub fn what_was_done_is_told_to_programs() {
    let w = World::new();
    let made = w.json(&["new", "s", "--json"]);
    assert_eq!((&made["name"], made["roots"].as_array().unwrap().len()), (&json!("s"), 1));
    assert_eq!(w.json(&["rename", "s", "t", "--json"]), json!({"name": "t", "was": "s"}));
    let script = format!("echo 2 > a.txt; {}", waiting("up"));
    let mut child = w.start(&["exec", "t", "--", "sh", "-c", &script]);
    until("it runs", || w.has("t", "up"));
    let stopped = w.json(&["stop", "t", "--json"]);
    assert_eq!((&stopped[0]["name"], &stopped[0]["stopped"]), (&json!("t"), &json!(true)));
    assert!(stopped[0]["ended"].as_u64().unwrap() > 0, "{stopped}");
    child.wait().unwrap();
    assert_eq!(w.json(&["stop", "t", "--json"]), json!([{"name": "t", "stopped": false, "ended": 0}]));
    let archived = w.json(&["archive", "t", "--json"]);
    let file = archived["file"].as_str().unwrap();
    let size = std::fs::metadata(file).unwrap().len();
    assert_eq!((&archived["changes"], &archived["size"]), (&json!(2), &json!(size)));
    w.write("home/project/a.txt", "3\n");
    let restored = w.json(&["restore", "t", "--json"]);
    assert_eq!((&restored["name"], &restored["changes"]), (&json!("t"), &json!(2)));
    assert_eq!(restored["drift"][0]["path"], "a.txt", "{restored}");
    let reset = w.json(&["reset", "t", "--hard", "-y", "--json"]);
    assert_eq!(reset, json!({"name": "t", "ended": 0, "hard": true}));
    assert_eq!(w.json(&["rm", "-y", "t", "--json"]), json!(["t"]));
}

pub fn a_renamed_session_keeps_what_it_has() {
    let w = World::new();
    w.ok(&["run", "-s", "s", "--", "sh", "-c", "echo x > new"]);
    w.ok(&["new", "other"]);
    w.fails(2, &["rename", "s", "other"]);
    w.fails(2, &["rename", "s", "../x"]);
    w.ok(&["rename", "s", "t"]);
    assert_eq!(w.ok(&["exec", "t", "cat", "new"]), "x\n");
    w.fails(2, &["rename", "s", "u"]);
    let child = w.start(&["exec", "t", "--", "sh", "-c", &waiting("up")]);
    until("it runs", || w.has("t", "up"));
    w.fails(4, &["rename", "t", "u"]);
    w.ok(&["exec", "t", "touch", "stop"]);
    assert_eq!(said(&child.wait_with_output().unwrap()).0, 0);
    assert!(w.at("home/project/a.txt").exists());
}

pub fn states_are_told_with_reason_and_way_out() {
    let w = World::new();
    w.ok(&["run", "-s", "s", "--", "sh", "-c", "echo x > new"]);
    let show = w.json(&["show", "s", "--json"]);
    assert_eq!((&show["state"], &show["processes"]), (&"resting".into(), &0.into()), "{show}");
    assert!(show["way_out"].as_str().unwrap().contains("exec s"), "{show}");
    let mut child = w.start(&["exec", "s", "--", "sleep", "1000"]);
    until("it runs", || w.json(&["show", "s", "--json"])["processes"] == 1);
    let show = w.ok(&["show", "s"]);
    assert!(show.contains("running (pid ") && show.contains("sbx-fuse stop s"), "{show}");
    // A server that died leaves a session that any command can use.
    child.kill().unwrap();
    child.wait().unwrap();
    until("nobody has it", || w.state("s") == "resting");
    until("nothing runs on", || w.json(&["show", "s", "--json"])["processes"] == 0);
    assert_eq!(w.ok(&["exec", "s", "cat", "new"]), "x\n");
    std::fs::rename(w.at("home/project"), w.at("home/elsewhere")).unwrap();
    std::fs::create_dir(w.at("home/project")).unwrap();
    std::fs::remove_dir(w.at("home/project")).unwrap();
    let ls = w.sbx(&["ls"]).current_dir(w.at("home")).output().unwrap();
    let (_, out, _) = said(&ls);
    assert!(out.contains("broken") && out.contains("is gone") && out.contains("sbx-fuse rm s"), "{out}");
}

/// A reservation holds whatever way another session comes into being or changes its name meanwhile.
pub fn exclusive_is_held_against_restore_and_rename() {
    let w = World::new();
    let archive = w.at("s.tar.zst");
    let archive = archive.to_str().unwrap();
    w.ok(&["run", "-s", "s", "--", "sh", "-c", "echo x > new"]);
    w.ok(&["archive", "s", "-o", archive]);
    w.ok(&["rm", "-y", "s"]);
    // A file that was brought from elsewhere, and takers of its root: one wins, and whoever lost says who has it.
    for round in 0..4 {
        let mut all = vec![w.start(&["restore", archive])];
        all.extend((0..3).map(|i| w.start(&["new", &format!("r{i}"), "--exclusive"])));
        let all: Vec<_> = all.into_iter().map(|c| said(&c.wait_with_output().unwrap())).collect();
        let won: Vec<_> = (0..4).filter(|&i| all[i].0 == 0).collect();
        assert_eq!(won.len(), 1, "round {round}: {all:?}");
        let holder = ["s", "r0", "r1", "r2"][won[0]];
        for (code, _, err) in all.iter().filter(|r| r.0 != 0) {
            assert!(*code == 4 && err.contains(&format!("session {holder} has")), "{code} {err}");
        }
        w.ok(&["rm", "-y", holder]);
    }
    w.ok(&["new", "a", "--exclusive"]);
    let mut takers = Vec::new();
    for i in 0..6 {
        let (from, to) = if i % 2 == 0 { ("a", "b") } else { ("b", "a") };
        takers.push(w.start(&["new", &format!("t{i}"), "--exclusive"]));
        w.ok(&["rename", from, to]);
    }
    for taker in takers {
        let (code, out, err) = said(&taker.wait_with_output().unwrap());
        assert_eq!(code, 4, "{out}{err}");
    }
}
