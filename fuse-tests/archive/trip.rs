//! There and back.

use crate::Case;
use crate::support::tree;
use crate::world::{World, good, text};
use std::os::unix::fs::{MetadataExt, PermissionsExt};

pub const CASES: &[Case] = &[
    ("a_session_restored_elsewhere_is_equal_to_the_byte", equal_to_the_byte),
    ("an_archived_session_is_listed_refused_and_brought_back", life),
    ("an_interrupted_archive_is_done_again", interrupted),
    ("killed_at_any_moment_a_session_is_here_or_archived", killed),
    ("what_changed_meanwhile_is_told_and_another_tree_is_refused", lower),
    ("what_was_applied_can_be_undone_after_the_way_back_but_not_elsewhere", undo),
    ("a_removed_name_of_a_changed_file_is_undone_after_the_way_back", undo_of_links),
    ("encrypted_archives_open_with_their_key_only", encrypted),
    ("memory_does_not_grow_with_the_session", memory),
];

/// Everything that a session may hold.
const WORK: &str = r#"
echo more >> f1; rm f2; mv d e; echo new > e/new; ln f3 f3b; echo hh >> h1
truncate -s 50M sparse; printf middle | dd of=sparse bs=1 seek=20000000 conv=notrunc status=none
truncate -s 9M hole; printf end > ends; : > empty
ln -s /etc/passwd sl; ln -s "$(printf 't%.0s' {1..180})" longlink; mkfifo ff
python3 - <<'PY'
import os, socket
socket.socket(socket.AF_UNIX).bind("so")
os.setxattr("f1", "user.lines", b"a\nb=\0c\n12 path=x\n")
os.makedirs("deep/" + "/".join(["n" * 60] * 6))
open("deep/" + "/".join(["n" * 60] * 6) + "/leaf", "w").write("leaf")
open(b"bytes\xff\n\x1b", "w").write("odd")
os.utime("ends", ns=(1_111_111_111_123_456_789, -1_500_000_000))
PY
rm -r gone; mkdir gone; echo back > gone/z2
echo q > unreadable; chmod 0 unreadable; mkdir closed; chmod 0500 closed; chmod 1777 e/sub; chmod 4755 f4
"#;

fn equal_to_the_byte() {
    let w = World::new();
    w.bash("all", WORK);
    // A file that may not be read is compared by the walk below, too.
    let open = |state: &str| {
        let at = w.session(state, "all").join("roots/0/upper/unreadable");
        assert_eq!(at.symlink_metadata().unwrap().mode() & 0o7777, 0);
        std::fs::set_permissions(&at, std::fs::Permissions::from_mode(0o400)).unwrap();
    };
    let log = w.sbx(&["log", "-s", "all", "--json"]);
    let file = w.at("copy.tar.zst");
    w.sbx(&["archive", "all", "-o", file.to_str().unwrap()]);
    assert_eq!(file.metadata().unwrap().mode() & 0o7777, 0o600);
    // The first way back is onto the stub, with the store's own trust.
    w.sbx(&["restore", "all"]);
    open("state");
    let want = w.read_session("state", "all");
    assert!(want.len() > 40, "a real session");
    assert!(want.values().any(|o| o.kind == "device") && want.values().any(|o| o.kind == "socket"));

    let refused = w.on("other", &["restore", file.to_str().unwrap()]);
    assert!(text(&refused.stderr).contains("set-uid"), "{}", text(&refused.stderr));
    let out = w.on("other", &["restore", file.to_str().unwrap(), "--setuid"]);
    good(&out);
    open("other");
    let lines = tree::differences(&want, &w.read_session("other", "all"), |_, _| false);
    assert!(lines.is_empty(), "not equal:\n{}", lines.join("\n"));
    let sparse =
        |state: &str| w.session(state, "all").join("roots/0/upper/sparse").metadata().unwrap().blocks();
    assert!(sparse("other") <= sparse("state") && sparse("other") < 1000, "holes were filled");
    assert_eq!(good(&w.on("other", &["log", "-s", "all", "--json"])), log);
    assert_eq!(good(&w.on("other", &["changes", "-s", "all"])), w.sbx(&["changes", "-s", "all"]));
    good(&w.on("other", &["verify", "-s", "all"]));
    // It lives: a command sees what was there, and its changes can be applied.
    let seen =
        good(&w.on("other", &["run", "-s", "all", "--", "sh", "-c", "cat f1 e/new; echo last > last"]));
    assert_eq!(seen, "file 1\nmore\nnew\n");
    // Other programs can read it, too.
    let listed = w.shell("zstd -dcq ../copy.tar.zst | tar t | wc -l; zstd -dcq ../copy.tar.zst | tar xO roots/0/upper/sparse | wc -c");
    assert!(listed.ends_with("52428800\n"), "{listed}");
}

fn life() {
    let w = World::new();
    w.bash("s", "echo more >> f1; head -c 300000 /dev/urandom > big");
    let before = w.read_session("state", "s");
    w.sbx(&["archive", "-s", "s"]);
    let left: Vec<_> =
        std::fs::read_dir(w.session("state", "s")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 4, "the disk is free: {left:?}");
    assert_eq!(w.archive("s").metadata().unwrap().mode() & 0o7777, 0o600);
    assert!(w.sbx(&["ls"]).contains("archived"));
    let ls: serde_json::Value = serde_json::from_str(&w.sbx(&["ls", "--json"])).unwrap();
    assert_eq!((&ls[0]["state"], &ls[0]["archive"]["changes"]), (&"archived".into(), &2.into()));
    for command in
        [&["status", "-s", "s"][..], &["apply", "-y", "-s", "s"], &["archive", "s"], &["log", "-s", "s"]]
    {
        let said = w.fails(1, command);
        assert!(said.contains("sbx-fuse restore s"), "{said}");
    }
    let said = w.fails(125, &["run", "-s", "s", "true"]);
    assert!(said.contains("sbx-fuse restore s"), "{said}");
    w.fails(2, &["rm", "s"]);

    w.sbx(&["restore", "s", "--as", "t"]);
    assert!(w.archive("s").symlink_metadata().is_ok(), "a copy leaves the archive");
    w.fails(2, &["restore", "s", "--as", "t"]);
    w.sbx(&["restore", "s"]);
    assert_eq!(w.entries("state"), ["s", "t"], "the archive is gone with the restore");
    assert_eq!(w.read_session("state", "s").len(), before.len());
    let ids: serde_json::Value = serde_json::from_str(&w.sbx(&["ls", "--json"])).unwrap();
    assert_ne!(ids[0]["id"], ids[1]["id"], "two sessions with one socket");
    w.fails(2, &["restore", "s"]);
    w.fails(2, &["restore", "nosuch"]);
    w.fails(2, &["archive", "nosuch"]);

    w.sbx(&["archive", "s"]);
    w.sbx(&["rm", "-y", "s"]);
    assert_eq!(w.entries("state"), ["t"], "rm takes the archive along");
    w.fails(2, &["archive", "t", "-o", "f1"]);
    assert_eq!(w.shell("cat f1"), "file 1\n");
    assert!(w.fails(1, &["archive", "t", "-o", "/nonexistent/x"]).contains("nonexistent"));
    assert!(w.sbx(&["changes", "-s", "t"]).contains("big"), "a failed archive leaves the session as it was");
}

fn interrupted() {
    let w = World::new();
    w.bash("s", "echo more >> f1");
    // As killed between the archive and the stub: the archive is in its place, the session, too.
    w.shell("cp -a ../state/sbx-fuse/sessions/s ../saved");
    w.sbx(&["archive", "s"]);
    w.shell("rm -r ../state/sbx-fuse/sessions/s; cp -a ../saved ../state/sbx-fuse/sessions/s");
    w.sbx(&["archive", "s"]);
    w.sbx(&["restore", "s"]);
    assert_eq!(w.sbx(&["changes", "-s", "s"]), "M f1\n");
    // Of another session it is not replaced.
    w.bash("o", "echo more >> f1");
    w.sbx(&["archive", "o", "--ttl", "1h"]);
    w.shell("mv ../state/sbx-fuse/archives/o.tar.zst ../state/sbx-fuse/archives/s.tar.zst");
    assert!(w.fails(2, &["archive", "s"]).contains("is there already"));
}

/// Whether the one session there is, `s`, is archived.
fn is_archived(w: &World) -> bool {
    let listed: serde_json::Value = serde_json::from_str(&w.sbx(&["ls", "--json"])).unwrap();
    assert_eq!((listed.as_array().unwrap().len(), &listed[0]["name"]), (1, &"s".into()), "{listed}");
    listed[0]["state"] == "archived"
}

/// Killed after so many milliseconds, over and over; at the end the session is what it was.
fn killed() {
    let w = World::new();
    w.bash("s", "head -c 20000000 /dev/urandom > big; echo more >> f1");
    let before = w.read_session("state", "s");
    let (mut archives, mut restores) = (0, 0);
    let start = std::time::Instant::now();
    // On a slow machine nothing is done in the first ones: until both were, each time a little later.
    for step in 0u64.. {
        if step >= 40 && archives > 1 && restores > 1 {
            break;
        }
        assert!(start.elapsed().as_secs() < 300, "{archives} {restores}");
        let archived = is_archived(&w);
        let command = if archived { "restore" } else { "archive" };
        *(if archived { &mut restores } else { &mut archives }) += 1;
        let mut child =
            w.program("state", &[command, "s"]).stderr(std::process::Stdio::piped()).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis((step * step / 4).min(3000)));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    if is_archived(&w) {
        w.sbx(&["restore", "s"]);
    }
    let lines = tree::differences(&before, &w.read_session("state", "s"), |_, _| false);
    assert!(lines.is_empty(), "{}", lines.join("\n"));
    w.shell("touch -c -d '1 hour ago' ../state/sbx-fuse/{sessions,archives}/.[a-z]* 2>/dev/null || true");
    w.sbx(&["gc"]);
    let left: Vec<_> = w.entries("state").into_iter().filter(|n| n.starts_with('.')).collect();
    assert!(left.is_empty(), "{left:?}");
}

fn lower() {
    let w = World::new();
    w.bash("s", "for i in 1 2 3 4; do echo more >> f$i; done");
    let file = w.at("a.tar.zst");
    let file = file.to_str().unwrap();
    w.sbx(&["archive", "s", "-o", file]);
    w.shell("echo theirs >> f1");
    let out = w.on("two", &["restore", file]);
    good(&out);
    assert!(text(&out.stderr).contains("drift f1: it was changed in the real tree"), "{}", text(&out.stderr));
    // A copy of the tree, as on another machine: other inodes, same files.
    w.shell("cp -a ../project ../copied; mv ../project ../was; mv ../copied ../project");
    let out = w.on("three", &["restore", file]);
    good(&out);
    assert!(text(&out.stderr).contains("3 of 4 files are as they were"), "{}", text(&out.stderr));
    w.shell("for i in 1 2 3 4; do echo quite another > f$i; done");
    for (state, gone) in [("four", false), ("five", true)] {
        if gone {
            std::fs::rename(w.at("project"), w.at("away")).unwrap();
            std::fs::create_dir(w.at("elsewhere")).unwrap();
        }
        let restore = |more: &[&str]| {
            let mut command = w.program(state, &[&["restore", file], more].concat());
            command.current_dir(w.at("home")).output().unwrap()
        };
        let out = restore(&[]);
        assert_eq!(out.status.code(), Some(3), "{}", text(&out.stderr));
        assert!(w.entries(state).is_empty());
        good(&restore(&["--force"]));
    }
}

fn encrypted() {
    use age::secrecy::ExposeSecret;
    let w = World::new();
    let (ours, other) = (age::x25519::Identity::generate(), age::x25519::Identity::generate());
    for (name, identity) in [("ours", &ours), ("other", &other)] {
        std::fs::write(w.at(name), identity.to_string().expose_secret()).unwrap();
    }
    w.bash("s", "echo secret >> f1");
    let before = w.read_session("state", "s");
    assert!(w.fails(2, &["archive", "s", "--recipient", "age1nonsense"]).contains("no age key"));
    assert!(w.fails(2, &["archive", "s", "--encrypt"]).contains("terminal"));
    w.sbx(&["archive", "s", "--recipient", &ours.to_public().to_string()]);
    let file = w.at("state/sbx-fuse/archives/s.tar.zst.age");
    let bytes = std::fs::read(&file).unwrap();
    assert!(bytes.starts_with(b"age-encryption.org/v1"));
    assert!(w.fails(2, &["restore", "s"]).contains("--identity"));
    w.fails(1, &["restore", "s", "--identity", w.at("other").to_str().unwrap()]);
    let ours = w.at("ours");
    let with = ["--identity", ours.to_str().unwrap()];
    for at in (0..bytes.len()).step_by(bytes.len() / 20) {
        let mut bad = bytes.clone();
        bad[at] ^= 4;
        assert!(!w.takes(&bad, &with).0, "changed at {at}");
        assert!(!w.takes(&bytes[..at], &with).0, "cut at {at}");
    }
    assert!(w.takes(&bytes, &with).0);
    w.sbx(&["restore", "s", "--identity", ours.to_str().unwrap()]);
    let lines = tree::differences(&before, &w.read_session("state", "s"), |_, _| false);
    assert!(lines.is_empty(), "{}", lines.join("\n"));
}

/// 300 MB of content within 96 MiB of address space beyond what the program is.
fn memory() {
    let w = World::new();
    w.bash("s", "head -c 300000000 /dev/zero > big; for i in $(seq 2000); do : > n$i; done");
    let program = crate::support::product(crate::BUILT);
    let size = program.metadata().unwrap().len() / 1024 + 98_304;
    for command in ["archive", "restore"] {
        w.shell(&format!("ulimit -v {size}; {} {command} s 2>&1", program.display()));
    }
    assert_eq!(w.session("state", "s").join("roots/0/upper/big").metadata().unwrap().len(), 300_000_000);
}

/// The log of what was applied says what an undo or a recovery does to the real tree: it is trusted where it was written.
fn undo() {
    let w = World::new();
    w.bash("s", "echo more >> f1; rm f2; ln -sf f3 f4; mkfifo f5x; rm -r gone");
    w.sbx(&["apply", "-s", "s", "-y"]);
    let file = w.at("copy.tar.zst");
    w.sbx(&["archive", "s", "-o", file.to_str().unwrap()]);
    let elsewhere = w.on("other", &["restore", file.to_str().unwrap()]);
    good(&elsewhere);
    assert!(text(&elsewhere.stderr).contains("cannot be undone here"), "{}", text(&elsewhere.stderr));
    assert!(w.session("other", "s").join("apply").symlink_metadata().is_err());
    let out = w.on("other", &["undo", "-s", "s", "-y"]);
    assert!(text(&out.stderr).contains("nothing that could be undone"), "{}", text(&out.stderr));
    assert_eq!(w.shell("cat f1; ls f2 gone || true"), "file 1\nmore\n");
    let back = w.on("state", &["restore", "s"]);
    good(&back);
    assert!(!text(&back.stderr).contains("cannot be undone"), "{}", text(&back.stderr));
    w.sbx(&["undo", "-s", "s", "-y"]);
    assert_eq!(w.shell("cat f1 f2 gone/z; readlink f4 || echo a file"), "file 1\nfile 2\nz\na file\n");
}

/// In the archive, what is kept of the removed name is a file of its own, with what was written under the other one.
fn undo_of_links() {
    let w = World::new();
    w.shell("echo old > one; ln one two; ln one three");
    w.bash("s", "echo new >> one; rm two");
    w.sbx(&["apply", "-s", "s", "-y"]);
    assert_eq!(w.shell("cat one three; ls two || true"), "old\nnew\nold\nnew\n");
    w.sbx(&["archive", "s"]);
    w.sbx(&["restore", "s"]);
    w.sbx(&["undo", "-s", "s", "-y"]);
    assert_eq!(w.shell("cat one two three"), "old\nold\nold\n");
}
