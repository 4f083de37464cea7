//! What is asked for and cannot be: told at once, with the way out, and nothing is done by half.

use crate::same_as_before;
use crate::world::{World, program};
use std::process::Output;

fn run(w: &World, args: &[&str]) -> (i32, String, String) {
    said(&w.sbx(args).output().expect("the program starts"))
}

fn said(out: &Output) -> (i32, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("its output is text");
    (out.status.code().unwrap_or(-1), text(&out.stdout), text(&out.stderr))
}

#[test]
fn no_session_goes_when_one_of_the_names_is_none() {
    let w = World::new();
    for name in ["h1", "h2"] {
        w.quietly(&["new", name]);
    }
    let (code, _, err) = run(&w, &["rm", "-y", "--json", "h1", "nosuch", "h2"]);
    assert_eq!((code, err.contains("there is no session nosuch")), (2, true), "{err}");
    let names = |text: &str| -> Vec<String> {
        let rows: Vec<serde_json::Value> = serde_json::from_str(text).unwrap();
        rows.iter().map(|r| r.get("name").unwrap_or(r).as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&w.quietly(&["ls", "--json"])), ["h1", "h2"]);
    // One that cannot go does not keep from telling which are gone.
    let mnt = w.at("mnt");
    w.quietly(&["mount", "-s", "h2", mnt.to_str().unwrap()]);
    let (code, out, err) = run(&w, &["rm", "-y", "--json", "h1", "h1", "h2"]);
    assert_eq!((code, names(&out)), (4, vec!["h1".to_owned()]), "{err}");
    w.quietly(&["umount", "h2"]);
    assert_eq!(names(&w.quietly(&["rm", "--json", "h2"])), ["h2"]);
}

#[test]
fn a_path_with_nothing_to_it_is_refused_by_all_who_take_one() {
    let w = World::new();
    w.quietly(&[
        "run",
        "-s",
        "j1",
        "--",
        "sh",
        "-c",
        "echo x > new; echo y > gone; rm gone; mkdir d; echo z > d/z",
    ]);
    for args in [
        &["log", "-s", "j1", "nosuch"][..],
        &["log", "-s", "j1", "--json", "new", "nosuch"],
        &["changes", "-s", "j1", "nosuch"],
        &["discard", "-s", "j1", "-n", "nosuch"],
        &["apply", "-s", "j1", "-n", "--take", "session:nosuch"],
        &["apply", "-s", "j1", "-y", "--take", "real:nosuch"],
    ] {
        let (code, out, err) = run(&w, args);
        assert_eq!((code, out.as_str()), (2, ""), "{args:?}: {err}");
        assert!(err.contains("nosuch") && err.contains("hint: "), "{args:?}: {err}");
    }
    // The journal knows more paths than those that are changed in the end.
    assert!(w.quietly(&["log", "-s", "j1", "gone"]).contains("unlink"));
    assert!(w.quietly(&["log", "-s", "j1", "d"]).contains("d/z"));
    w.quietly(&["apply", "-s", "j1", "-n", "--take", "session:d"]);
}

#[test]
fn an_export_goes_to_what_is_no_file_as_it_is() {
    let w = World::new();
    w.quietly(&["run", "-s", "e", "--", "sh", "-c", "echo x > new"]);
    let patch = w.quietly(&["export", "-s", "e", "--patch"]);
    let export = ["export", "-s", "e", "--patch", "-o"];
    assert_eq!(w.quietly(&[&export[..], &["-"]].concat()), patch);
    assert_eq!(w.quietly(&[&export[..], &["/dev/stdout"]].concat()), patch);
    w.quietly(&[&export[..], &["/dev/null"]].concat());
    w.shell("mkfifo ../fifo; touch ../there; ln -s there ../link");
    let mut reader = w.command(std::path::Path::new("/bin/cat"), &["../fifo"]);
    let reader = reader.stdout(std::process::Stdio::piped()).spawn().unwrap();
    w.quietly(&[&export[..], &["../fifo"]].concat());
    assert_eq!(said(&reader.wait_with_output().unwrap()).1, patch);
    w.quietly(&[&export[..], &["../link"]].concat());
    assert_eq!(w.read("home/there"), patch);
    assert_eq!(
        w.shell("ls -A .. | grep -c -e tmp -e '^-$' || true; test -L ../link; ls"),
        "0\na.txt\ndir\ngone.txt\n"
    );
}

#[test]
fn what_cannot_be_used_is_told_with_the_way_out() {
    let mut w = World::new();
    w.mkdir("home/other/real");
    w.quietly(&["run", "-s", "kept", "--", "sh", "-c", "echo x > new"]);
    let other = w.at("home/other/real");
    let mnt = w.at("mnt");
    let mnt = mnt.to_str().unwrap().to_owned();
    w.quietly(&["new", "lost", "--root", other.to_str().unwrap()]);
    w.shell("rmdir ../other/real");
    for args in [
        &["run", "--root", "/nosuch", "true"][..],
        &["mount", "/nosuch"],
        &["mount", "a.txt"],
        &["mount", "--root", "/nosuch", &mnt],
        &["status", "-s", "lost"],
        &["apply", "-s", "lost", "-y"],
        &["exec", "lost", "--", "true"],
        &["export", "-s", "kept", "--patch", "-o", "/nosuch/x"],
        &["archive", "kept", "-o", "/nosuch/f"],
        &["review", "-s", "kept", "--hunk", "a"],
        &["review", "-s", "kept", "--hunk", "new:7"],
        &["overlay", "-o", "lowerdir=/nosuch", &mnt],
        &["new", ""],
        &["new", "not a name"],
    ] {
        assert_ne!(w.run(args), 0, "{args:?}");
    }
    assert_ne!(w.run_with("XDG_STATE_HOME", "/proc/nosuch", &["new"]), 0);
    assert_ne!(w.run_with("HOME", "/proc/nosuch", &["new"]), 0);
    w.mkdir("home/closed");
    w.shell("chmod 000 ../closed");
    assert_ne!(w.run_with("XDG_STATE_HOME", w.at("home/closed").to_str().unwrap(), &["new"]), 0);
    w.shell("chmod 700 ../closed");
    let program = crate::world::program().to_str().unwrap().to_owned();
    let away = "mkdir ../away; cd ../away; rmdir ../away; for c in status new 'mount x' 'run true'; do \"$0\" $c 2>&1 && exit 1; done; true";
    let out = w.command(std::path::Path::new("/bin/sh"), &["-c", away, &program]).output().unwrap();
    let text = said(&out).1;
    let told = "sbx-fuse: cannot find the current directory: no such file or directory (ENOENT)\nhint: change to a directory that is there: cd\n";
    assert_eq!(text, told.repeat(4));
    same_as_before!(w);
    assert_eq!(w.transcript().matches("[exit").count(), w.transcript().matches("! hint: ").count());
}

#[test]
fn a_place_beneath_tmp_that_is_not_seen_is_told_with_the_reason() {
    let w = World::new();
    let (code, out, err) = run(&w, &["run", "--rm", "--root", "dir", "--", "pwd"]);
    let dir = w.at("home/project/dir").canonicalize().unwrap();
    assert_eq!((code, out.trim()), (0, dir.to_str().unwrap()), "{err}");
    assert!(err.contains("which has a /tmp and a /var/tmp of its own (to see it: --root)"), "{err}");
    let (code, _, err) = run(&w, &["run", "--rm", "--show", w.at("mnt").to_str().unwrap(), "true"]);
    assert!(code == 125 && err.contains("hint: /tmp and /var/tmp are the sandbox's own"), "{err}");
}

#[test]
fn a_path_in_json_is_its_own_text() {
    let w = World::new();
    w.quietly(&[
        "run",
        "-s",
        "n",
        "--",
        "sh",
        "-c",
        r#"echo x > "f
g"; echo x > 'say "x" \'; echo x > '"q"'; printf x > "$(printf '\377')""#,
    ]);
    let rows: serde_json::Value =
        serde_json::from_str(&w.quietly(&["changes", "-s", "n", "--json"])).unwrap();
    let paths: Vec<&str> = rows.as_array().unwrap().iter().map(|r| r["path"].as_str().unwrap()).collect();
    assert_eq!(paths, [r#""\"q\"""#, "f\ng", r#"say "x" \"#, r#""\377""#]);
}

#[test]
fn a_root_that_is_another_directory_now_is_refused() {
    let w = World::new();
    w.shell("mkdir ../p ../out; echo one > ../p/f");
    let root = w.at("home/p");
    let root = root.to_str().unwrap();
    w.quietly(&["run", "--root", root, "-s", "add", "--", "sh", "-c", &format!("echo evil > {root}/keys")]);
    w.quietly(&["run", "--root", root, "-s", "mod", "--", "sh", "-c", &format!("echo two >> {root}/f")]);
    // A symlink, also one that leads to the very directory.
    for target in ["out", "p2"] {
        w.shell(&format!("mv ../p ../p2; ln -s {target} ../p"));
        for args in [
            &["apply", "-y", "-s", "add"][..],
            &["run", "-s", "add", "--", "true"],
            &["mount", "-s", "add", w.at("mnt").to_str().unwrap()],
            &["rebase", "-s", "add"],
        ] {
            let (code, _, err) = run(&w, args);
            assert!(
                code != 0 && err.contains("is a symlink now") && err.contains("hint: "),
                "{args:?}: {err}"
            );
        }
        assert!(w.quietly(&["show", "add"]).contains("is a symlink now"));
        assert_eq!(w.shell("ls ../out; ls ../p2; rm ../p; mv ../p2 ../p"), "f\n");
    }
    // Another directory, without the files that the session knows.
    w.shell("mv ../p ../p2; mkdir ../p");
    for name in ["add", "mod"] {
        let (code, _, err) = run(&w, &["apply", "-y", "-s", name]);
        assert_eq!(code, 3, "{err}");
        assert!(err.contains("another directory") && err.contains("--new-root"), "{err}");
        assert_ne!(run(&w, &["run", "-s", name, "--", "true"]).0, 0);
    }
    assert_eq!(w.shell("ls ../p"), "");
    // One with those files is the same project, as after `git clone`; any other when a person says so.
    w.shell("echo one > ../p/f");
    let (code, _, err) = run(&w, &["apply", "-n", "-s", "mod"]);
    assert!(err.contains("1 of 1 files are as they were"), "{code} {err}");
    assert_eq!(run(&w, &["rebase", "-s", "mod"]).0, 0);
    assert_eq!(run(&w, &["rebase", "-s", "add", "--new-root"]).0, 0);
    for name in ["add", "mod"] {
        w.quietly(&["apply", "-y", "-s", name]);
    }
    assert_eq!(w.shell("cat ../p/f ../p/keys; ls ../p2"), "one\ntwo\nevil\nf\n");
}

#[test]
fn variables_of_common_names_are_the_callers() {
    let w = World::new();
    let show = ["--", "sh", "-c", "echo $SESSION_ID $SBX_FUSE_SESSION; test -n $SBX_FUSE_SESSION_ID"];
    let set = ["run", "-s", "e", "--env", "SESSION_ID=mine"];
    assert_eq!(w.quietly(&[&set[..], &show].concat()), "mine e\n");
}

#[test]
fn a_store_that_cannot_be_written_is_a_run_that_does_not_work() {
    let w = World::new();
    w.quietly(&["new", "x"]);
    w.shell("chmod -R a-w ~/.local/state/sbx-fuse");
    let (code, out, _) = run(&w, &["doctor"]);
    w.shell("chmod -R u+w ~/.local/state/sbx-fuse");
    assert_eq!(code, 6, "{out}");
    assert!(out.contains("run does not work here; sbx-fuse mount does not work here"), "{out}");
}

#[test]
fn a_path_is_that_of_the_current_directory() {
    let w = World::new();
    w.shell("mkdir s; echo 1 > g; echo 1 > s/g; ln -s project ../link");
    w.quietly(&["run", "-s", "am", "--", "sh", "-c", "echo work >> g; echo x > s/new; echo h > h"]);
    let inside = |args: &[&str]| {
        said(&w.sbx(args).current_dir(w.at("home/project/s")).output().expect("the program starts"))
    };
    // What is here and was not changed is not what has its name elsewhere.
    for args in [&["discard", "-y", "-s", "am", "g"][..], &["apply", "-y", "-s", "am", "g"]] {
        let (code, _, err) = inside(args);
        assert!(code == 2 && err.contains("no change at g"), "{err}");
    }
    // The name that a listing gave is taken where nothing is here, and that is said.
    let (code, _, err) = inside(&["apply", "-y", "-s", "am", "h"]);
    assert!(
        code == 0 && err.contains("nothing is at h in this directory: the session's h is meant"),
        "{err}"
    );
    assert_eq!(inside(&["apply", "-y", "-s", "am", "new"]).0, 0);
    // A way through a symlink leads to the root as well.
    let through = w.at("home/link/g");
    w.quietly(&["apply", "-y", "-s", "am", through.to_str().unwrap()]);
    assert_eq!(w.shell("cat g s/new s/g h"), "1\nwork\nx\n1\nh\n");
}

#[test]
fn a_mount_keeps_nothing_open_of_its_caller() {
    let w = World::new();
    let mnt = w.at("mnt");
    let script = "exec 9>../lock; flock 9; { \"$0\" mount -s lk \"$1\"; } 3>&1 | cat; exec 9>&-; flock -n ../lock true";
    let args = ["-c", script, program().to_str().unwrap(), mnt.to_str().unwrap()];
    let out = w.command(std::path::Path::new("/bin/sh"), &args).output().unwrap();
    let (code, _, err) = said(&out);
    w.quietly(&["umount", "lk"]);
    assert_eq!(code, 0, "{err}");
}

#[test]
fn a_limit_that_is_lower_already_stays() {
    let w = World::new();
    let script = "ulimit -v 4000000; exec \"$0\" run --rm --memory 8G --pids 999999999 -- sh -c 'ulimit -v'";
    let args = ["-c", script, program().to_str().unwrap()];
    let out = w.command(std::path::Path::new("/bin/sh"), &args).output().unwrap();
    let (code, out, err) = said(&out);
    assert_eq!((code, out.trim()), (0, "4000000"), "{err}");
}

#[test]
fn an_archive_from_elsewhere_shows_nothing() {
    let w = World::new();
    let theirs = w.at("home/theirs");
    let archive = w.at("home/pol.tar.zst");
    let archive = archive.to_str().unwrap();
    w.shell("mkdir ~/.ssh; echo SECRET > ~/.ssh/id");
    for args in [
        &["run", "-s", "pol", "--show", "~/.ssh", "--", "sh", "-c", "echo x > y"][..],
        &["archive", "pol", "-o", archive],
    ] {
        let out = w.sbx(args).env("XDG_STATE_HOME", &theirs).output().unwrap();
        assert!(out.status.success(), "{:?}", said(&out));
    }
    let (code, _, err) = run(&w, &["restore", archive]);
    assert!(code == 0 && err.contains("~/.ssh shown to its commands"), "{err}");
    assert!(!w.quietly(&["show", "pol"]).contains(".ssh"));
}
