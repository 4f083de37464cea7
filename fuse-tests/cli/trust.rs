//! What was reviewed is what is applied, and what was applied can be undone: through the program, with plain checks.

use crate::world::World;
use std::os::unix::fs::PermissionsExt;

const EDIT: &str = "echo four >> a.txt; echo new > new.txt; rm gone.txt; mv dir moved; chmod 600 a.txt";

fn says(w: &World, args: &[&str]) -> (i32, String, String) {
    let out = w.sbx(args).output().expect("the product runs");
    let text = |bytes| String::from_utf8(bytes).expect("its output is text");
    (out.status.code().unwrap_or(-1), text(out.stdout), text(out.stderr))
}

#[test]
fn other_names_of_a_changed_file_are_warned_of() {
    let w = World::new();
    w.shell("ln a.txt Makefile; ln a.txt third; echo 1 > own; ln own own2");
    w.quietly(&["run", "-s", "work", "--", "sh", "-c", "echo evil >> a.txt; rm own2; echo 2 > own2"]);
    let said = w.quietly(&["changes"]);
    assert_eq!(said, "M a.txt  ! changes the file under 2 other names, too\nM own2\n");
    w.quietly(&["apply", "-y", "a.txt"]);
    assert!(w.read("home/project/Makefile").ends_with("evil\n"));
}

#[test]
fn undo_takes_back_one_application_after_the_other() {
    let w = World::new();
    w.quietly(&["run", "-s", "work", "--", "sh", "-c", EDIT]);
    w.quietly(&["apply", "-y", "new.txt"]);
    w.quietly(&["apply", "-y"]);
    assert!(says(&w, &["undo", "-n"]).2.contains("would undo 3 changes applied at"));
    w.write("home/project/a.txt", "mine\n");
    let (code, out, err) = says(&w, &["undo", "-y"]);
    assert_eq!((code, out.as_str()), (3, "moved on a.txt: it was changed since it was applied\n"));
    assert!(err.contains("nothing was undone") && err.contains("--force"), "{err}");
    let (code, _, err) = says(&w, &["undo", "-y", "--force", "a.txt"]);
    assert_eq!(code, 0, "{err}");
    assert!(err.contains("undone: 3 changes") && err.contains("is kept in"), "{err}");
    assert_eq!(w.read("home/project/a.txt"), "one\ntwo\nthree\n");
    assert_eq!(w.shell("ls"), "a.txt\ndir\ngone.txt\nnew.txt\n");
    w.quietly(&["undo", "-y"]);
    assert_eq!(w.shell("ls"), "a.txt\ndir\ngone.txt\n");
    assert!(says(&w, &["undo", "-y"]).2.contains("nothing that could be undone"));
    assert!(says(&w, &["verify"]).2.contains("agree (0 changes)"));
}

#[test]
fn what_changed_after_the_review_is_refused_by_name() {
    let w = World::new();
    w.quietly(&["run", "-s", "work", "--", "sh", "-c", EDIT]);
    let json: serde_json::Value = serde_json::from_str(&w.quietly(&["diff", "--json"])).unwrap();
    assert!(json["diff"].as_str().unwrap().contains("+four"));
    let token = json["token"].as_str().unwrap().to_owned();
    let rows: serde_json::Value = serde_json::from_str(&w.quietly(&["changes", "--json"])).unwrap();
    assert_eq!(rows[0]["token"].as_str().unwrap(), token);
    w.quietly(&["run", "-s", "work", "--", "sh", "-c", "echo evil >> new.txt"]);
    let (code, out, _) = says(&w, &["apply", "-y", "--reviewed", &token]);
    assert_eq!(code, 3);
    assert_eq!(out, "not reviewed new.txt: the session changed it since the token was given\n");
    assert_eq!(w.shell("ls"), "a.txt\ndir\ngone.txt\n");
    w.quietly(&["apply", "-y", "--reviewed", &token, "a.txt"]);
    assert_eq!(w.read("home/project/a.txt"), "one\ntwo\nthree\nfour\n");
    assert_eq!(says(&w, &["apply", "-y", "--reviewed", "nonsense"]).0, 2);
    let token: serde_json::Value = serde_json::from_str(&w.quietly(&["diff", "--json"])).unwrap();
    w.quietly(&["apply", "-y", "--reviewed", token["token"].as_str().unwrap()]);
    assert_eq!(w.shell("ls"), "a.txt\nmoved\nnew.txt\n");
}

#[test]
fn permissions_go_by_the_policy() {
    let w = World::new();
    let edit = "chmod 600 a.txt; echo x > s; chmod 4755 s; echo more >> dir/b.txt; chmod 755 dir/b.txt";
    w.quietly(&["run", "-s", "work", "--", "sh", "-c", edit]);
    let mode = |name: &str| {
        let meta = w.at(&format!("home/project/{name}")).symlink_metadata().unwrap();
        meta.permissions().mode() & 0o7777
    };
    let (code, _, err) = says(&w, &["apply", "-y", "--perms", "skip"]);
    assert_eq!(code, 0, "{err}");
    assert!(err.contains("warning: s was applied without its set-uid"), "{err}");
    assert_eq!((mode("a.txt"), mode("dir/b.txt"), mode("s")), (0o644, 0o644, 0o755));
    assert_eq!(w.quietly(&["changes"]), "P a.txt\n");
    assert_eq!(says(&w, &["apply", "-y", "--perms", "ask"]).0, 2, "nobody to ask");
    w.quietly(&["apply", "-y"]);
    assert_eq!(mode("a.txt"), 0o600);
    w.quietly(&["run", "-s", "work", "--", "chmod", "4755", "s"]);
    w.quietly(&["apply", "-y", "--allow-privileged"]);
    assert_eq!(mode("s"), 0o4755);
}

#[test]
fn text_is_merged_and_overlaps_stay_in_the_session() {
    let w = World::new();
    w.write("home/project/a.txt", "one\ntwo\nthree\nfour\nfive\n");
    w.quietly(&["run", "-s", "work", "--", "sh", "-c", "sed -i s/one/ONE/ a.txt; echo B > dir/b.txt"]);
    w.write("home/project/a.txt", "one\ntwo\nthree\nfour\nFIVE\n");
    w.write("home/project/dir/b.txt", "theirs\n");
    let (code, out, _) = says(&w, &["apply", "-y"]);
    assert_eq!((code, out.lines().count()), (3, 2), "{out}");
    let (code, out, err) = says(&w, &["rebase"]);
    assert_eq!((code, out.lines().count()), (3, 1), "{out}{err}");
    assert!(out.starts_with("conflict dir/b.txt") && err.contains("moved 1 change;"), "{out}{err}");
    w.quietly(&["apply", "-y", "a.txt"]);
    assert_eq!(w.read("home/project/a.txt"), "ONE\ntwo\nthree\nfour\nFIVE\n");
    let (code, out, _) = says(&w, &["apply", "-y", "--merge"]);
    assert_eq!(code, 3, "{out}");
    assert!(out.contains("both sides changed the same lines"), "{out}");
    assert_eq!(w.read("home/project/dir/b.txt"), "theirs\n", "markers never get into the real tree");
    let inside = w.quietly(&["run", "-s", "work", "--", "cat", "dir/b.txt"]);
    assert!(inside.contains("<<<<<<< ours\nB\n") && inside.contains("theirs\n>>>>>>> theirs\n"), "{inside}");
    let (code, out, _) = says(&w, &["apply", "-y"]);
    assert_eq!((code, out.contains("still holds the conflict markers")), (3, true), "{out}");
    w.quietly(&["run", "-s", "work", "--", "sh", "-c", "echo both > dir/b.txt"]);
    w.quietly(&["apply", "-y"]);
    assert_eq!(w.read("home/project/dir/b.txt"), "both\n");
    assert!(says(&w, &["verify"]).2.contains("agree (0 changes)"));
}

#[test]
fn a_side_is_taken_by_path() {
    let w = World::new();
    w.quietly(&[
        "run",
        "-s",
        "work",
        "--",
        "sh",
        "-c",
        "echo S > a.txt; echo S > dir/b.txt; echo S > gone.txt",
    ]);
    for name in ["a.txt", "dir/b.txt", "gone.txt"] {
        w.write(&format!("home/project/{name}"), "R\n");
    }
    assert_eq!(says(&w, &["apply", "-y", "--take", "mine"]).0, 2);
    let (code, out, _) = says(&w, &["apply", "-y", "--take", "session:a.txt", "--take", "real:dir"]);
    assert_eq!((code, out.lines().count()), (3, 1), "{out}");
    assert_eq!(w.shell("cat a.txt dir/b.txt gone.txt"), "R\nR\nR\n");
    let all = ["apply", "-y", "--take", "real", "--take", "session:a.txt"];
    assert_eq!(says(&w, &all).0, 0);
    assert_eq!(w.shell("cat a.txt dir/b.txt gone.txt"), "S\nR\nR\n");
    assert_eq!(w.quietly(&["changes"]), "");
    w.quietly(&["undo", "-y"]);
    assert_eq!(w.shell("cat a.txt"), "R\n");
}

/// The log of an application without its end, and without its commit mark, as a death would leave it.
#[test]
fn the_next_command_says_what_it_did_about_an_interrupted_application() {
    const DONE: u64 = 14;
    const COMMIT: u64 = 16;
    let w = World::new();
    let log = w.at("home/.local/state/sbx-fuse/sessions/work/apply/000001/log");
    let cut = |bytes: u64| {
        let file = std::fs::File::options().write(true).open(&log).unwrap();
        file.set_len(file.metadata().unwrap().len() - bytes).unwrap();
    };
    w.quietly(&["run", "-s", "work", "--", "sh", "-c", EDIT]);
    w.quietly(&["apply", "-y", "a.txt"]);
    cut(DONE);
    let (code, out, err) = says(&w, &["changes"]);
    assert_eq!((code, out.as_str()), (0, "D gone.txt\nR dir/ -> moved/\nA new.txt\n"), "{err}");
    assert!(err.contains("interrupted after its last step: finished it"), "{err}");
    assert_eq!(says(&w, &["changes"]).2, "");
    assert_eq!(w.read("home/project/a.txt"), "one\ntwo\nthree\nfour\n");
    cut(DONE + COMMIT);
    let (code, _, err) = says(&w, &["status"]);
    assert_eq!(code, 0, "{err}");
    assert!(err.contains("took it back"), "{err}");
    assert_eq!(w.read("home/project/a.txt"), "one\ntwo\nthree\n");
    assert_eq!(says(&w, &["changes"]).2, "");
}

/// Whatever command comes next on a session says what it did about an application that died.
#[test]
fn every_command_on_a_session_finishes_an_interrupted_application() {
    const DONE: u64 = 14;
    let w = World::new();
    let sessions = "home/.local/state/sbx-fuse/sessions";
    w.quietly(&["run", "-s", "work", "--", "sh", "-c", EDIT]);
    w.quietly(&["apply", "-y", "a.txt"]);
    let commands: [&[&str]; 12] = [
        &["log", "-s", "work"],
        &["show", "work"],
        &["ps", "-s", "work"],
        &["stop", "work"],
        &["exec", "work", "--", "true"],
        &["run", "-s", "work", "--", "true"],
        &["diff", "-s", "work"],
        &["verify", "-s", "work"],
        &["undo", "-s", "work", "-n"],
        &["reset", "work"],
        &["rename", "work", "other"],
        &["rm", "-y", "other"],
    ];
    for args in commands {
        let name = if args.contains(&"other") && args[0] == "rm" { "other" } else { "work" };
        let log = w.at(&format!("{sessions}/{name}/apply/000001/log"));
        let file = std::fs::File::options().write(true).open(&log).unwrap();
        file.set_len(file.metadata().unwrap().len() - DONE).unwrap();
        let (code, _, err) = says(&w, args);
        assert_eq!(code, 0, "{args:?}: {err}");
        let told = format!("session {name}: an application was interrupted after its last step: finished it");
        assert_eq!(err.matches(&told).count(), 1, "{args:?}: {err}");
    }
}

/// A file with two names in the real tree, changed in the session and then discarded: both names show the real file.
#[test]
fn a_discarded_change_of_a_hard_linked_file_is_gone_under_all_its_names() {
    let w = World::new();
    w.shell("ln a.txt second.txt");
    let index = w.at("home/.local/state/sbx-fuse/sessions/work/roots/0/work/index");
    w.quietly(&["run", "-s", "work", "--", "sh", "-c", "echo four >> a.txt"]);
    assert_eq!(std::fs::read_dir(&index).unwrap().count(), 1);
    assert!(w.quietly(&["run", "-s", "work", "--", "cat", "second.txt"]).contains("four"));
    w.quietly(&["discard", "-s", "work", "-y"]);
    assert_eq!(
        w.quietly(&["run", "-s", "work", "--", "cat", "a.txt", "second.txt"]).matches("four").count(),
        0
    );
    assert_eq!(std::fs::read_dir(&index).unwrap().count(), 0);
    assert!(says(&w, &["verify", "-s", "work"]).2.contains("agree (0 changes)"));
    assert!(says(&w, &["usage"]).1.lines().count() > 1);
}

/// Names that the session gave to files leave it one after the other, which is no change of those that are left.
#[test]
fn links_of_a_session_in_use_are_applied_and_undone() {
    let w = World::new();
    w.shell("ln a.txt second.txt");
    let before = w.shell("stat -c '%n %h %s' * dir/*");
    w.quietly(&["mount", "-s", "live", w.at("mnt").to_str().unwrap()]);
    w.shell(
        "cd ../../mnt; echo more >> a.txt; ln a.txt third.txt; cp -al dir copy; ln -s x sym; ln sym sym2",
    );
    let (code, _, err) = says(&w, &["apply", "-s", "live", "-y"]);
    assert_eq!((code, err.contains("stays in the session")), (0, false), "{err}");
    assert_eq!(says(&w, &["changes", "-s", "live"]).1, "");
    let links = |at: &str| {
        w.shell(&format!("cd {at}; stat -c '%n %i' a.txt second.txt third.txt sym sym2 dir/* copy/*"))
    };
    let distinct = |at: &str| {
        let listed = links(at);
        let inodes: std::collections::BTreeSet<&str> =
            listed.lines().filter_map(|l| l.split(' ').nth(1)).collect();
        (listed.lines().count(), inodes.len())
    };
    let (names, inodes) = distinct(".");
    // One for the three, one for the two symlinks, and the copy has those of the original.
    assert_eq!((names - 5) / 2, inodes - 2, "{}", links("."));
    assert_eq!(distinct("../../mnt"), (names, inodes));
    assert_eq!(w.shell("cat second.txt"), w.shell("cat ../../mnt/third.txt"));
    w.quietly(&["undo", "-s", "live", "-y"]);
    assert_eq!(w.shell("stat -c '%n %h %s' * dir/*"), before);
    assert_eq!(says(&w, &["changes", "-s", "live"]).1, "");
    w.quietly(&["umount", "live"]);
    assert!(says(&w, &["verify", "-s", "live"]).2.contains("agree (0 changes)"));
}

#[test]
fn originals_are_counted_and_let_go_by_the_policy() {
    let w = World::new();
    let applied = |n: usize| {
        for i in 0..n {
            w.quietly(&["run", "-s", "work", "--", "sh", "-c", &format!("echo {i} >> a.txt")]);
            w.quietly(&["apply", "-s", "work", "-y"]);
        }
    };
    let status = |field: &str| -> u64 {
        let json: serde_json::Value =
            serde_json::from_str(&w.quietly(&["status", "-s", "work", "--json"])).unwrap();
        json["originals"][field].as_u64().unwrap()
    };
    applied(4);
    assert_eq!(status("applications"), 4);
    let bytes = status("bytes");
    assert!(bytes >= 4 * 4096, "{bytes}");
    let usage: serde_json::Value = serde_json::from_str(&w.quietly(&["usage", "--json"])).unwrap();
    assert!(usage["sessions"][0]["originals"].as_u64().unwrap() >= bytes, "{usage}");
    assert!(says(&w, &["status", "-s", "work"]).1.contains("of originals are kept, of 4 applications"));
    w.quietly(&["gc"]);
    assert_eq!(status("applications"), 4, "nothing goes without a policy");
    w.mkdir("home/.config/sbx-fuse");
    w.write("home/.config/sbx-fuse/config.toml", "[undo]\nkeep = 2\ndays = 30\n");
    let (code, out, _) = says(&w, &["gc", "-n"]);
    assert_eq!((code, out.contains("would remove originals of work")), (0, true), "{out}");
    assert_eq!(status("applications"), 4);
    let (code, out, _) = says(&w, &["gc"]);
    assert_eq!((code, out.contains("2 applications beyond [undo]")), (0, true), "{out}");
    assert_eq!(status("applications"), 2);
    assert!(status("bytes") < bytes);
    // What is left can still be undone, one by one, and no more.
    w.quietly(&["undo", "-y"]);
    w.quietly(&["undo", "-y"]);
    assert_eq!(w.read("home/project/a.txt"), "one\ntwo\nthree\n0\n1\n");
    assert!(says(&w, &["undo", "-y"]).2.contains("nothing that could be undone"));
    w.write("home/.config/sbx-fuse/config.toml", "[undo]\ndays = 0\n");
    w.quietly(&["gc"]);
    assert_eq!(status("applications"), 0);
    w.write("home/project/.sbx-fuse.toml", "[undo]\nkeep = 0\n");
    let (code, _, err) = says(&w, &["run", "--", "true"]);
    assert!(code != 0 && err.contains("may not set undo"), "{code} {err}");
}

/// What its owner may not read, by its mode, is reviewed and applied like anything else.
#[test]
fn objects_of_mode_000_are_compared_and_applied() {
    let w = World::new();
    let edit = "echo secret > f; mkdir -p d/sub; echo inner > d/sub/g; echo more >> a.txt; \
                chmod 0 f a.txt d/sub/g d/sub d";
    w.quietly(&["run", "-s", "work", "--", "sh", "-ec", edit]);
    let (code, out, err) = says(&w, &["changes", "-s", "work"]);
    assert_eq!((code, out.as_str()), (0, "M a.txt\nA d/\nA d/sub/\nA d/sub/g\nA f\n"), "{err}");
    let diff = w.quietly(&["diff", "-s", "work"]);
    assert!(diff.contains("+secret") && diff.contains("+inner") && diff.contains("+more"), "{diff}");
    let json: serde_json::Value =
        serde_json::from_str(&w.quietly(&["diff", "-s", "work", "--json"])).unwrap();
    // Looking changes nothing: what was reviewed is what there is.
    w.quietly(&["apply", "-s", "work", "-y", "--reviewed", json["token"].as_str().unwrap()]);
    let mode = |name: &str| {
        w.at(&format!("home/project/{name}")).symlink_metadata().unwrap().permissions().mode() & 0o7777
    };
    assert_eq!((mode("f"), mode("a.txt"), mode("d")), (0, 0, 0));
    assert!(says(&w, &["verify", "-s", "work"]).2.contains("agree (0 changes)"));
    let read =
        "chmod 700 d d/sub; chmod 600 f a.txt d/sub/g; cat f a.txt d/sub/g; chmod 0 f a.txt d/sub/g d/sub d";
    assert_eq!(w.shell(read), "secret\none\ntwo\nthree\nmore\ninner\n");
    let (code, _, err) = says(&w, &["undo", "-s", "work", "-y", "--force", "."]);
    assert_eq!(code, 0, "{err}");
    assert_eq!(w.shell("cat a.txt; ls"), "one\ntwo\nthree\na.txt\ndir\ngone.txt\n");
}
