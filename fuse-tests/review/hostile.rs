//! Hostile bytes and names: whatever a session holds, readers and writers neither panic nor say something else.

use crate::world::{World, copy_tree, rel, run};
use proptest::collection::vec;
use proptest::prelude::*;
use sbx_fuse::base::{BaseId, Kind, RelPath, quote, unquote};
use sbx_fuse::journal::{self, Journal, Op, Record};
use sbx_fuse::review::export::{Form, archive, patch};
use sbx_fuse::review::{Options, render, show_controls, stat};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A name that a directory can hold.
fn name() -> impl Strategy<Value = Vec<u8>> {
    let byte =
        prop_oneof![any::<u8>(), prop::sample::select(b" \t\n\r\x1b\"\\'ab.-\xff\xe2\x80\xae".to_vec())];
    vec(byte, 1..12).prop_filter("a name", |n| {
        !n.iter().any(|&b| b == b'/' || b == 0)
            && n != b"."
            && n != b".."
            && !n.starts_with(b".wh.")
            && n != b".git"
    })
}

/// Lines, or anything.
fn content() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        vec(prop::sample::select(b"a\n\n\r\x1b\xff @-+\\".to_vec()), 0..200),
        vec(any::<u8>(), 0..300),
        Just(Vec::new()),
    ]
}

/// A journal of a few real records, as bytes of its log.
fn log(dir: &Path) -> Vec<u8> {
    let (journal, _) = Journal::open(dir).unwrap();
    let record = |op, path: &[u8], path2: Option<RelPath>| Record {
        op,
        root: 0,
        path: RelPath::new(path).unwrap(),
        path2,
        kind: Kind::File,
        base: None::<BaseId>,
        base2: None,
        proc: 0,
    };
    for r in [
        record(Op::Create, b"a", None),
        record(Op::Rename, b"a", Some(rel("d/b"))),
        record(Op::Write, b"\xff\n", None),
        record(Op::Unlink, b"x/y", None),
        record(Op::Applied, b"d/b", None),
    ] {
        journal.append(&r).unwrap();
    }
    journal.close().unwrap();
    fs::read(dir.join("log")).unwrap()
}

/// Paths that lie in and over each other.
const PATHS: [&str; 8] = ["", "a", "a/b", "a/b/c", "b", "b/\n", "a-b", "\u{1b}[2J"];

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_journal_of_any_bytes_is_read_or_refused(
        edits in vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<prop::sample::Index>(),
        tail in vec(any::<u8>(), 0..64),
        keep_all in any::<bool>(),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let mut bytes = log(dir.path());
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if !keep_all {
            bytes.truncate(cut.index(bytes.len()));
        }
        bytes.extend(tail);
        fs::write(dir.path().join("log"), &bytes).unwrap();
        if let Ok(folded) = journal::fold_dir(dir.path()) {
            // What is taken from a log is a set of changes like any other.
            for c in &folded.set.changes {
                prop_assert!(RelPath::new(c.path.as_bytes()).is_ok());
            }
        }
        // A writer cuts what it cannot read, or refuses; what it leaves can be read.
        if let Ok((journal, _)) = Journal::open(dir.path()) {
            journal.close().unwrap();
            prop_assert!(journal::fold_dir(dir.path()).is_ok());
        }
    }

    #[test]
    fn records_of_any_order_and_names_fold_to_changes(
        records in vec((1u8..20, prop::sample::select(&PATHS[..]), prop::option::of(prop::sample::select(&PATHS[..])), 0usize..3), 0..30),
    ) {
        let entries = records.into_iter().enumerate().filter_map(|(seq, (op, path, path2, kind))| {
            let record = Record {
                op: Op::from_u8(op)?,
                root: 0,
                path: rel(path),
                path2: path2.map(rel),
                kind: [Kind::File, Kind::Dir, Kind::Symlink][kind],
                base: None,
                base2: None,
                proc: 0,
            };
            Some(journal::Entry::Record { seq: seq as u64 + 1, time: 0, record })
        });
        let folded = journal::fold(entries);
        let paths: Vec<_> = folded.set.changes.iter().map(|c| (c.root, c.path.clone())).collect();
        let mut sorted = paths.clone();
        sorted.sort();
        sorted.dedup();
        prop_assert_eq!(paths, sorted);
    }

    #[test]
    fn bytes_that_are_shown_steer_no_terminal(bytes in vec(any::<u8>(), 0..200)) {
        let harmless = |text: &str| text.chars().all(|c| !c.is_control() || c == '\t');
        prop_assert!(harmless(&show_controls(&bytes)));
        prop_assert!(harmless(&quote(&bytes)) && !quote(&bytes).contains('\t'));
        prop_assert_eq!(unquote(&quote(&bytes)), Some(bytes));
    }
}

/// A real tree and a session with these files: name, real content, session's content.
fn world(files: &[File]) -> World {
    let w = World::new();
    for (name, real, upper) in files {
        for (top, content) in [("real", real), ("upper", upper)] {
            if let Some(content) = content {
                fs::write(w.dir.path().join(top).join(OsStr::from_bytes(name)), content).unwrap();
            }
        }
    }
    w
}

/// Name, real content, session's content.
type File = (Vec<u8>, Option<Vec<u8>>, Option<Vec<u8>>);

fn files() -> impl Strategy<Value = Vec<File>> {
    prop::collection::btree_map(name(), (prop::option::of(content()), prop::option::of(content())), 1..5)
        .prop_map(|map| map.into_iter().map(|(name, (real, upper))| (name, real, upper)).collect())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn git_takes_a_patch_of_any_names_and_bytes(files in files()) {
        let w = world(&files);
        let mut text = Vec::new();
        patch(&w.roots(), &w.settled(), false, &mut text).unwrap();
        let copy = w.dir.path().join("copy");
        copy_tree(&w.real(""), &copy);
        // A change of times alone is a remark, and git takes no patch without a change.
        if text.split(|&b| b == b'\n').any(|line| line.starts_with(b"diff ")) {
            fs::write(w.dir.path().join("d.patch"), &text).unwrap();
            let (ok, said) = run(&copy, "git", &["apply", "--whitespace=nowarn", "../d.patch"]);
            prop_assert!(ok, "{} {}", said, text.escape_ascii());
        }
        for (name, real, upper) in &files {
            let want = upper.as_ref().or(real.as_ref());
            let have = fs::read(copy.join(OsStr::from_bytes(name))).ok();
            prop_assert_eq!(have.as_ref(), want, "{}", quote(name));
        }
    }

    #[test]
    fn a_diff_on_a_terminal_holds_no_control_characters(files in files()) {
        let w = world(&files);
        let options = Options { color: false, safe: true, absolute: false };
        let mut out = Vec::new();
        render(&w.roots(), &w.settled(), options, &mut out).unwrap();
        stat(&w.roots(), &w.settled(), options, 80, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        prop_assert!(text.chars().all(|c| !c.is_control() || c == '\n' || c == '\t'), "{text:?}");
    }

    #[test]
    fn an_archive_of_any_names_and_bytes_unpacks_to_them(files in files()) {
        let w = world(&files);
        let mut out = Vec::new();
        archive(&w.roots(), &w.settled(), Form::OciLayer, &|_| Vec::new(), &mut out).unwrap();
        fs::write(w.dir.path().join("a.tar"), &out).unwrap();
        let to = w.dir.path().join("unpacked");
        fs::create_dir(&to).unwrap();
        let (ok, said) = run(&to, "tar", &["xpf", "../a.tar"]);
        prop_assert!(ok, "{said}");
        for (name, real, upper) in &files {
            let have = fs::read(to.join(OsStr::from_bytes(name))).ok();
            let want = upper.as_ref().filter(|u| Some(*u) != real.as_ref());
            prop_assert!(want.is_none() || have.as_ref() == want, "{}", quote(name));
        }
    }
}
