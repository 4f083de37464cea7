//! `run` and what follows it: look, apply, discard.

use crate::same_as_before;
use crate::world::World;
use std::io::Write;
use std::process::Stdio;
use std::time::{Duration, Instant};

const EDIT: &str = "echo four >> a.txt; echo new > new.txt; rm gone.txt; mv dir moved; chmod 600 a.txt";

#[test]
fn from_a_run_to_the_real_tree() {
    let mut w = World::new();
    w.run(&["run", "-s", "work", "--", "sh", "-c", EDIT]);
    assert_eq!(w.read("home/project/a.txt"), "one\ntwo\nthree\n", "the real tree was touched");
    w.run(&["ls"]);
    w.run(&["status"]);
    w.run(&["changes"]);
    w.run(&["changes", "moved", "a.txt"]);
    w.run(&["changes", "nosuch"]);
    w.run(&["changes", "/etc"]);
    w.run(&["diff"]);
    w.run(&["diff", "--stat"]);
    w.run(&["log", "a.txt", "moved"]);
    w.run(&["verify"]);
    w.run(&["apply", "--dry-run", "new.txt"]);
    w.run(&["apply"]);
    w.run(&["discard"]);
    assert_eq!(w.read("home/project/a.txt"), "one\ntwo\nthree\n", "applied without a yes");
    w.run(&["apply", "-y", "new.txt", "moved"]);
    assert_eq!(
        (w.read("home/project/new.txt"), w.read("home/project/moved/b.txt")),
        ("new\n".into(), "b\n".into())
    );
    w.run(&["changes"]);
    w.run(&["discard", "-y", "gone.txt"]);
    w.run(&["changes"]);
    w.run(&["verify"]);
    w.run(&["apply", "-y"]);
    assert_eq!(w.read("home/project/a.txt"), "one\ntwo\nthree\nfour\n");
    w.run(&["apply", "-y"]);
    w.run(&["changes"]);
    w.run(&["rm", "work"]);
    same_as_before!(w);
}

#[test]
fn machine_forms() {
    let mut w = World::new();
    w.quietly(&["run", "-s", "work", "--", "sh", "-c", EDIT]);
    w.run(&["ls", "--json"]);
    w.run(&["changes", "--json"]);
    let null = w.quietly(&["changes", "-0"]);
    assert_eq!(null, "M\0a.txt\0D\0gone.txt\0R\0dir\0moved\0A\0new.txt\0");
    for line in w.quietly(&["log", "--json"]).lines() {
        let record: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(record["seq"].is_u64() && record["op"].is_string() && record["comm"].is_string(), "{line}");
    }
    let status: serde_json::Value = serde_json::from_str(&w.quietly(&["status", "--json"])).unwrap();
    assert_eq!(status["state"], "resting");
    assert_eq!(status["changes"]["modified"], 1);
    same_as_before!(w);
}

#[test]
fn the_exit_code_is_the_commands() {
    let mut w = World::new();
    w.write("home/project/no-interpreter", "#!/nonexistent/interpreter\n");
    w.shell("chmod +x no-interpreter");
    for (command, code) in [
        (&["true"][..], 0),
        (&["sh", "-c", "exit 42"], 42),
        (&["sh", "-c", "kill -KILL $$"], 137),
        (&["sh", "-c", "kill -TERM $$"], 143),
        (&["nosuch"], 127),
        (&["./nosuch"], 127),
        (&["./no-interpreter"], 127),
        (&["./a.txt"], 126),
        (&["./dir"], 126),
        (&[""], 127),
    ] {
        assert_eq!(w.run(&[&["run", "--"], command].concat()), code, "{command:?}");
    }
    assert_eq!(w.quietly(&["ls"]), "", "a session without changes was kept");
    same_as_before!(w);
}

#[test]
fn sessions_are_kept_when_named_or_changed_and_thrown_away_with_rm() {
    let mut w = World::new();
    w.run(&["run", "-s", "keep", "true"]);
    w.run(&["run", "-s", "keep", "sh", "-c", "echo 1 > one"]);
    w.run(&["run", "-s", "keep", "cat", "one"]);
    w.run(&["run", "-s", "keep", "--root", "dir", "true"]);
    w.run(&["run", "-s", "keep", "--root", ".", "--rm", "true"]);
    w.run(&["run", "--rm", "true"]);
    w.run(&["ls"]);
    assert_eq!(w.shell("ls"), "a.txt\ndir\ngone.txt\n");
    same_as_before!(w);
}

#[test]
fn the_sandbox_sees_roots_writable_and_the_rest_not() {
    let mut w = World::new();
    w.mkdir("home/other/project");
    let script = "pwd; id -u; umask; touch /usr/outside 2>/dev/null || echo read-only; echo x > ../other/project/x; \
                  ls /tmp; ls -a \"$XDG_RUNTIME_DIR\"; ls -A ~/.local 2>/dev/null; grep CapEff /proc/self/status; \
                  tail -n +3 /proc/net/dev | wc -l; echo \"$SBX_FUSE_SESSION\"";
    let out = w
        .sbx(&["run", "-s", "s", "--root", ".", "--root", "../other/project", "--", "sh", "-c", script])
        .output()
        .unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], w.at("home/project").to_str().unwrap(), "{text}");
    assert_eq!(lines[2], "0022", "{text}");
    assert!(lines.contains(&"read-only") && lines.contains(&"CapEff:\t0000000000000000"), "{text}");
    assert_eq!(lines[lines.len() - 2..], ["1", "s"], "only a loopback: {text}");
    w.run(&["changes", "-s", "s"]);
    w.run(&["changes", "-s", "s", "project-2/x"]);
    w.run(&["status", "-s", "s"]);
    w.run(&["diff", "-s", "s", "--stat"]);
    same_as_before!(w);
}

#[test]
fn input_and_output_pass_through() {
    let w = World::new();
    let mut child = w
        .sbx(&["run", "--", "sh", "-c", "cat; echo err >&2"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"through\n").unwrap();
    let out = child.wait_with_output().unwrap();
    assert_eq!(out.stdout, b"through\n");
    assert_eq!(out.stderr, b"err\nsbx-fuse: no changes\n");
}

#[test]
fn a_command_may_handle_the_signals_that_it_is_sent() {
    let w = World::new();
    for (signal, name) in [(nix::sys::signal::SIGTERM, "TERM"), (nix::sys::signal::SIGHUP, "HUP")] {
        let script = format!("trap 'exit 33' {name}; echo ready > ready; while :; do sleep 0.05; done");
        let mut child = w.sbx(&["run", "-s", name, "--", "sh", "-c", &script]).spawn().unwrap();
        wait_until(|| w.sbx(&["changes", "-s", name]).output().unwrap().stdout == b"A ready\n");
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(child.id() as i32), signal).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(33), "{name}");
    }
}

#[test]
fn a_changed_real_file_is_a_conflict() {
    let mut w = World::new();
    w.quietly(&["run", "-s", "work", "--", "sh", "-c", EDIT]);
    w.write("home/project/a.txt", "somebody else\n");
    w.run(&["status"]);
    assert_eq!(w.run(&["apply", "-y"]), 3);
    assert!(w.at("home/project/new.txt").symlink_metadata().is_err(), "applied in part");
    assert_eq!(w.run(&["apply", "-y", "new.txt"]), 0);
    same_as_before!(w);
}

/// In a user namespace of our own the kernel would refuse both, as the owner does not exist there.
#[test]
fn files_of_others_can_be_moved_and_removed_where_the_directory_allows_it() {
    let mut w = World::new();
    if !(w.give_to_root("home/project/gone.txt") && w.give_to_root("home/project/dir/b.txt")) {
        eprintln!("only root can give files away: nothing was tried");
        return;
    }
    assert_eq!(w.run(&["run", "-s", "work", "--", "sh", "-c", "rm gone.txt; mv dir/b.txt b.txt"]), 0);
    w.run(&["changes"]);
    w.run(&["verify"]);
    w.run(&["apply", "-y"]);
    assert_eq!(w.shell("ls; ls dir; stat -c %u b.txt"), "a.txt\nb.txt\ndir\n0\n");
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(w.at("home").to_str().unwrap()), "a mount was left: {mounts}");
    same_as_before!(w);
}

#[test]
fn names_are_bytes() {
    let mut w = World::new();
    w.quietly(&["run", "-s", "work", "--", "sh", "-c", "echo 1 > \"$(printf 'a\\377\\nb \\033[31m')\""]);
    w.run(&["changes"]);
    w.run(&["diff"]);
    w.run(&["verify"]);
    w.run(&["apply", "-y"]);
    assert_eq!(w.shell("ls | wc -l").trim(), "5");
    same_as_before!(w);
}

/// Waits until `done`, for at most two minutes.
pub fn wait_until(mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(120), "waited in vain");
        std::thread::sleep(Duration::from_millis(20));
    }
}
