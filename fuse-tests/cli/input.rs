//! What needs no mount: help, bad input, empty state, broken sessions.

use crate::same_as_before;
use crate::world::World;
use std::path::Path;
use std::process::Stdio;

#[test]
fn the_reference_is_a_snapshot() {
    let mut w = World::new();
    w.run(&["--help"]);
    for command in [
        "run",
        "mount",
        "umount",
        "overlay",
        "status",
        "changes",
        "diff",
        "apply",
        "discard",
        "log",
        "verify",
        "ls",
        "rm",
        "archive",
        "restore",
        "gc",
        "usage",
        "doctor",
        "completions",
        "new",
        "exec",
        "shell",
        "show",
        "ps",
        "stop",
        "reset",
        "rename",
    ] {
        w.run(&[command, "--help"]);
    }
    same_as_before!(w);
}

/// Asked as bash asks: the function named by `complete`, with the words in `COMP_WORDS`.
#[test]
fn bash_completes_commands_options_and_sessions() {
    let w = World::new();
    for name in ["alpha", "alps", "beta"] {
        assert!(w.sbx(&["new", name]).output().unwrap().status.success());
    }
    let script = w.at("home/completions");
    let text = w.sbx(&["completions", "bash"]).output().unwrap().stdout;
    std::fs::write(&script, text).unwrap();
    let asked = r#"set -e; bash -n "$1"; . "$1"; shift
        asked=$(complete -p sbx-fuse); asked=${asked##*-F }; asked=${asked%% *}
        COMP_WORDS=(sbx-fuse "$@"); COMP_CWORD=$#
        $asked sbx-fuse "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}" || true
        echo "${COMPREPLY[*]}""#;
    // The script calls the program by its name.
    let path = format!("{}:/usr/bin:/bin", crate::world::program().parent().unwrap().to_str().unwrap());
    let completes = |words: &[&str]| {
        let script = [&["--norc", "-c", asked, "-", script.to_str().unwrap()], words].concat();
        let out = w.command(Path::new("/bin/bash"), &script).env("PATH", &path).output().unwrap();
        assert!(out.status.success() && out.stderr.is_empty(), "{words:?}: {}", out.stderr.escape_ascii());
        String::from_utf8(out.stdout).unwrap().trim().to_owned()
    };
    assert_eq!(completes(&["arch"]), "archive");
    assert_eq!(completes(&["gc", "--max"]), "--max-total");
    assert_eq!(completes(&["stop", "al"]), "alpha alps");
    assert_eq!(completes(&["diff", "-s", "b"]), "beta");
    assert_eq!(completes(&["run", "--session", "alph"]), "alpha");
    for taker in ["exec", "shell", "umount", "show", "reset", "rename", "rm", "archive", "restore"] {
        assert_eq!(completes(&[taker, "alp"]), "alpha alps", "{taker}");
    }
    assert_eq!(completes(&["new", "alp"]), "", "a new one has a new name");
}

#[test]
fn bad_arguments_of_every_command() {
    let mut w = World::new();
    w.run(&[]);
    w.run(&["frobnicate"]);
    w.run(&["run"]);
    w.run(&["run", "--root"]);
    w.run(&["run", "--what", "true"]);
    w.run(&["mount"]);
    w.run(&["umount"]);
    w.run(&["status", "extra"]);
    w.run(&["changes", "--json", "-0"]);
    w.run(&["diff", "--stat=3"]);
    w.run(&["apply", "--yes=no"]);
    w.run(&["discard", "-s"]);
    w.run(&["log", "--folow"]);
    w.run(&["verify", "x"]);
    w.run(&["ls", "x"]);
    w.run(&["rm"]);
    w.run(&["archive", "a", "-s", "b"]);
    w.run(&["archive", "--ttl", "soon"]);
    w.run(&["restore"]);
    w.run(&["gc", "--older-than", "24", "--max-total", "1G"]);
    w.run(&["gc", "--max-total", "much"]);
    w.run(&["usage", "x"]);
    w.run(&["doctor", "x"]);
    w.run(&["completions", "klingon"]);
    same_as_before!(w);
}

#[test]
fn commands_without_any_session() {
    let mut w = World::new();
    assert_eq!(w.run(&["ls"]), 0);
    assert_eq!(w.run(&["ls", "--json"]), 0);
    for command in ["status", "changes", "diff", "apply", "discard", "log", "verify"] {
        assert_eq!(w.run(&[command]), 2);
        assert_eq!(w.run(&[command, "-s", "nosuch"]), 2);
        assert_eq!(w.run(&[command, "-s", "../x"]), 2);
    }
    w.run(&["umount", "nosuch"]);
    w.run(&["umount", "/"]);
    w.run(&["rm", "nosuch"]);
    w.run_with("SBX_FUSE_SESSION", "nosuch", &["status"]);
    w.run_with("SBX_FUSE_SESSION", "not a name", &["status"]);
    assert!(w.at("home/.local").symlink_metadata().is_err(), "looking made something");
    same_as_before!(w);
}

#[test]
fn roots_that_cannot_be() {
    let mut w = World::new();
    for roots in [
        &["--root", "nosuch"][..],
        &["--root", "a.txt"],
        &["--root", ".", "--root", "dir"],
        &["--root", "dir", "--root", "."],
        &["--root", "dir", "--root", "./dir/../dir"],
        &["--root", "/proc/sys"],
        &["--root", "/dev"],
        &["--root", ""],
    ] {
        w.run(&[&["run"], roots, &["true"]].concat());
    }
    w.mkdir("home/.local/state/sbx-fuse");
    let state = w.at("home/.local/state/sbx-fuse");
    w.run(&["run", "--root", state.to_str().unwrap(), "true"]);
    w.run(&["run", "-s", "not a name", "true"]);
    w.run(&["mount", "--root", ".", "dir"]);
    w.run(&["mount", "--root", ".", "nosuch"]);
    w.run(&["mount", "--root", "dir", "."]);
    assert_eq!(w.quietly(&["ls"]), "", "a refused command left a session");
    same_as_before!(w);
}

#[test]
fn the_home_directory_is_a_root_only_when_named() {
    let mut w = World::new();
    for dir in ["home", "/"] {
        let out = w.sbx(&["run", "true"]).current_dir(w.at(dir)).output().unwrap();
        assert_eq!(out.status.code(), Some(125));
        assert!(String::from_utf8(out.stderr).unwrap().contains("which is a root only when named"));
    }
    w.run_with("HOME", "relative", &["ls"]);
    same_as_before!(w);
}

#[test]
fn nothing_runs_without_bwrap() {
    let mut w = World::new();
    w.set_path("/nonexistent");
    assert_eq!(w.run(&["run", "/bin/true"]), 125);
    assert_eq!(w.quietly(&["ls"]), "", "a refused run left a session");
    w.set_path("/usr/bin:/bin");
    // What lies in a root may be of a sandbox's making and is not trusted to be bwrap.
    w.write("home/project/bwrap", "#!/bin/sh\necho fooled\n");
    w.shell("chmod +x bwrap");
    w.set_path(w.at("home/project").to_str().unwrap().to_owned().as_str());
    assert_eq!(w.run(&["run", "/bin/true"]), 125);
    w.set_path(".");
    assert_eq!(w.run(&["run", "/bin/true"]), 125);
    same_as_before!(w);
}

#[test]
fn a_session_that_cannot_be_read_is_told_and_can_be_thrown_away() {
    let mut w = World::new();
    w.mkdir("home/.local/state/sbx-fuse/sessions/cut");
    w.write("home/.local/state/sbx-fuse/sessions/cut/meta.json", "{\"version\": 1");
    w.mkdir("home/.local/state/sbx-fuse/sessions/later");
    w.write("home/.local/state/sbx-fuse/sessions/later/meta.json", "{\"version\": 99}");
    w.mkdir("home/.local/state/sbx-fuse/sessions/empty");
    w.run(&["ls"]);
    w.run(&["ls", "--json"]);
    w.run(&["status", "-s", "cut"]);
    w.run(&["changes", "-s", "later"]);
    w.run(&["status"]);
    w.run(&["rm", "cut"]);
    w.run(&["rm", "-y", "cut", "later", "empty"]);
    w.run(&["ls"]);
    same_as_before!(w);
}

#[test]
fn a_state_directory_that_cannot_be_used_is_refused() {
    let mut w = World::new();
    w.run_with("XDG_STATE_HOME", "/nonexistent", &["run", "true"]);
    w.run_with("HOME", "", &["ls"]);
    same_as_before!(w);
}

#[test]
fn doctor_tells_every_thing_with_its_remedy() {
    let w = World::new();
    let json: serde_json::Value = serde_json::from_str(&w.quietly(&["doctor", "--json"])).unwrap();
    assert!(json["run"].is_boolean() && json["mount"].is_boolean());
    let checks = json["checks"].as_array().unwrap();
    let names: Vec<&str> = checks.iter().map(|c| c["name"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        [
            "/dev/fuse",
            "own mounts",
            "AppArmor",
            "fusermount3",
            "allow_other",
            "bwrap",
            "state directory",
            "open files",
            "inotify watches",
            "limits",
            "left behind"
        ]
    );
    for check in checks {
        let verdict = check["verdict"].as_str().unwrap();
        assert!(["ok", "warn", "fail"].contains(&verdict), "{check}");
        assert!(!check["found"].as_str().unwrap().is_empty(), "{check}");
        assert!(verdict == "ok" || !check["remedy"].as_str().unwrap().is_empty(), "{check}");
    }
    assert!(w.at("home/.local").symlink_metadata().is_err(), "doctor left something behind");
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let w = World::new();
    let mut child =
        w.sbx(&["completions", "bash"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let out = child.wait_with_output().unwrap();
    assert_eq!((out.status.code(), out.stderr.as_slice()), (Some(0), &b""[..]));
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let out = w.sbx(&["completions", "bash"]).stdout(full).output().unwrap();
    assert_eq!(out.status.code(), Some(1), "a full disk is one");
}

/// `..` in a path of the command line leads to no place outside of the roots.
#[test]
fn paths_that_lead_out_of_the_root_select_nothing() {
    let w = World::new();
    w.write("home/outside", "mine\n");
    w.quietly(&[
        "run",
        "-s",
        "work",
        "--",
        "sh",
        "-ec",
        "echo new > outside; mkdir dir/sub; echo 1 > dir/sub/x",
    ]);
    for command in [&["apply", "-y"][..], &["discard", "-y"], &["changes"], &["diff"], &["export", "--patch"]]
    {
        for path in ["../nowhere", "dir/../../nowhere", "../../../../../../etc/passwd", "/etc/passwd"] {
            let out = w.sbx(&[command, &["-s", "work", path][..]].concat()).output().unwrap();
            assert_eq!(out.status.code(), Some(2), "{command:?} {path}: {out:?}");
        }
    }
    // Within the root it is a path like any other.
    w.quietly(&["apply", "-s", "work", "-y", "dir/sub/../../../project/dir/sub"]);
    assert_eq!(w.read("home/project/dir/sub/x"), "1\n");
    assert_eq!(w.read("home/outside"), "mine\n");
    assert_eq!(w.quietly(&["changes", "-s", "work"]), "A outside\n");
}
