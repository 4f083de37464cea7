//! Diffs: git and patch take them and come to the same tree as applying does.

use crate::world::{World, copy_tree, run, tree};
use sbx_fuse::base::{quote, unquote};
use sbx_fuse::review::{Options, render, stat};
use std::fs;
use std::os::unix::fs::PermissionsExt;

fn text_world() -> World {
    let w = World::new();
    let lines: String = (0..40).map(|i| format!("line {i}\n")).collect();
    w.has("mod", &lines)
        .has("del", "x\ny\n")
        .has("old name", &lines)
        .has("perm", "1\n")
        .has("no newline", "a");
    w.has("dir/a", &lines).has("dir/b", "b\n").has("dir/c", "c\n").has("gone/x/y", "y\n").has("link", "-> a");
    w.has("typed", "was\n")
        .has("was empty", "")
        .has("opq/k", "k\n")
        .has("opq/l", "l\n")
        .has("ex dir/f", "f\n");
    w.copy_up("mod", "mod", Some(&lines.replace("line 7\n", "seven\n").replace("line 30\n", "")));
    w.whiteout("del").copy_up("new name", "old name", Some(&lines.replace("line 9\n", "nine\n")));
    w.whiteout("old name").copy_up("perm", "perm", None).copy_up("no newline", "no newline", Some("a\nb"));
    fs::set_permissions(w.upper("perm"), fs::Permissions::from_mode(0o755)).unwrap();
    w.redirect("dir2", "dir").whiteout("dir").whiteout("dir2/b");
    w.copy_up("dir2/a", "dir/a", Some(&lines.replace("line 0\n", "zero\n"))).whiteout("gone");
    w.put("link", "-> b").put("typed", "-> else").put("added/new file", "n\n").put("empty", "");
    w.put("was empty", "no more\n").put("opq/k", "K\n").opaque("opq").put("crlf", "a\r\nb\r\n");
    w.put("uml\u{e4}ut \"q\"\n", "odd\n").put("bytes", "text\u{0}".trim_end_matches('\0'));
    w
}

#[test]
fn git_apply_and_apply_come_to_the_same_tree() {
    let w = text_world();
    let diff = w.diff();
    let copy = w.dir.path().join("copy");
    copy_tree(&w.real(""), &copy);
    fs::write(w.dir.path().join("d.patch"), &diff).unwrap();
    let (ok, said) = run(&copy, "git", &["apply", "-v", "../d.patch"]);
    assert!(ok, "{}\n{}", said.replace("\\n", "\n"), quote(&diff).replace("\\n", "\n"));
    w.apply(&[]);
    let without_empty =
        |lines: Vec<String>| lines.into_iter().filter(|l| !l.ends_with('/')).collect::<Vec<_>>();
    assert_eq!(without_empty(tree(&copy)), without_empty(w.tree()));
}

#[test]
fn patch_takes_plain_text_changes() {
    let w = World::new();
    w.has("a b", "1\n2\n3\n").has("del", "x\n").copy_up("a b", "a b", Some("1\ntwo\n3\n")).whiteout("del");
    w.put("new/f", "n\n").has("r", "1\n2\n3\n4\n").copy_up("s", "r", Some("1\n2\n3\n5\n")).whiteout("r");
    fs::write(w.dir.path().join("d.patch"), w.diff()).unwrap();
    let copy = w.dir.path().join("copy");
    copy_tree(&w.real(""), &copy);
    let (ok, said) = run(&copy, "patch", &["-p1", "-i", "../d.patch"]);
    assert!(ok, "{said}");
    w.apply(&[]);
    assert_eq!(tree(&copy), w.tree());
}

#[test]
fn the_text_is_gits() {
    let w = World::new();
    w.has("a", "1\n").has("bin", "x").has("s", "-> t").has("dir/f", "f\n").has("mode", "m\n");
    w.copy_up("a", "a", Some("2\n")).put("s", "-> u").whiteout("dir").put("bin", "x\u{0}y");
    w.copy_up("mode", "mode", None);
    fs::set_permissions(w.real("mode"), fs::Permissions::from_mode(0o644)).unwrap();
    fs::set_permissions(w.upper("mode"), fs::Permissions::from_mode(0o755)).unwrap();
    let expected = "diff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -1 +1 @@\n-1\n+2\n\
        diff --git a/bin b/bin\nBinary files a/bin and b/bin differ\n\
        diff --git a/dir/f b/dir/f\ndeleted file mode 100644\n--- a/dir/f\n+++ /dev/null\n@@ -1 +0,0 @@\n-f\n\
        diff --git a/mode b/mode\nold mode 100644\nnew mode 100755\n\
        diff --git a/s b/s\n--- a/s\n+++ b/s\n@@ -1 +1 @@\n-t\n\\ No newline at end of file\n+u\n\\ No newline at end \
        of file\n";
    assert_eq!(String::from_utf8(w.diff()).unwrap(), expected);
    let mut table = Vec::new();
    stat(&w.roots(), &w.settled(), Options::default(), 80, &mut table).unwrap();
    let table = String::from_utf8(table).unwrap();
    assert!(table.ends_with(" 5 files changed, 2 insertions(+), 3 deletions(-)\n"), "{table}");
    assert!(table.contains(" bin   | Bin 1 -> 3 bytes\n"), "{table}");
}

#[test]
fn a_terminal_gets_no_control_characters_and_a_file_gets_every_byte() {
    let w = World::new();
    w.put("e\x1b[2J", "\x1b[31mred\x07\n");
    let show = |safe| {
        let mut out = Vec::new();
        render(&w.roots(), &w.settled(), Options { safe, ..Options::default() }, &mut out).unwrap();
        out
    };
    assert!(!show(true).iter().any(|b| b.is_ascii_control() && *b != b'\n'));
    let raw = show(false);
    assert_eq!(raw.iter().filter(|&&b| b == 0x1b).count(), 1, "only in the content, never in a name");
    assert_eq!(unquote(&quote(&raw)), Some(raw));
}

#[test]
fn big_files_are_summed_up() {
    let w = World::new();
    w.has("big", "1").put("big", "");
    fs::File::options().write(true).open(w.upper("big")).unwrap().set_len(17 << 20).unwrap();
    assert_eq!(w.diff(), b"File big differs: 1 -> 17825792 bytes\n");
}

#[test]
fn what_git_has_no_words_for_is_a_remark() {
    let w = World::new();
    w.has("d/f", "1").put("empty/", "").put("d/", "").has("t", "1").copy_up("t", "t", None);
    fs::set_permissions(w.real("d"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(w.upper("d"), fs::Permissions::from_mode(0o700)).unwrap();
    fs::File::open(w.upper("t")).unwrap().set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    assert_eq!(
        String::from_utf8(w.diff()).unwrap(),
        "# d: mode 755 -> 700\n# empty: new empty directory\n# t: only its modification time differs\n"
    );
}
