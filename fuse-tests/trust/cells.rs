//! Every pair of what a session did and what the real tree did. The table in docs/conflicts.md is this test's
//! expectation: it is compared cell by cell with what happens.

use crate::world::World;
use sbx_fuse::base::{BaseId, ChangeSet, Kind, RelPath};
use sbx_fuse::review::{
    Leave, NoFault, Offline, Policy, Selection, Settled, Why, apply_with, check, move_base, plan,
    session_can_win, settle,
};
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::{PermissionsExt, symlink};

type Act = fn(&World);

/// What the file held that both sides change; the session changes its first line, the real tree its last.
const OLD: &str = "first\n2\n3\n4\nlast\n";
const SESSIONS: &str = "session\n2\n3\n4\nlast\n";
const THEIRS: &str = "first\n2\n3\n4\ntheirs\n";

/// What the session did, the same done in the real tree, and the name it is about there.
const SESSION: &[(&str, Act, Act, &str)] = &[
    ("new file", add, |w| fs::write(w.real("d/n"), "n").unwrap(), "d/n"),
    ("written", write, |w| fs::write(w.real("d/f"), SESSIONS).unwrap(), "d/f"),
    (
        "mode set",
        |w| {
            w.copy_up("d/f", "d/f", None);
            fs::set_permissions(w.upper("d/f"), fs::Permissions::from_mode(0o755)).unwrap();
        },
        |w| fs::set_permissions(w.real("d/f"), fs::Permissions::from_mode(0o755)).unwrap(),
        "d/f",
    ),
    ("deleted", delete, |w| fs::remove_file(w.real("d/f")).unwrap(), "d/f"),
    ("renamed", rename, |w| fs::rename(w.real("d/f"), w.real("d/r")).unwrap(), "d/f"),
    (
        "made a symlink",
        retype,
        |w| {
            fs::remove_file(w.real("d/f")).unwrap();
            symlink("g", w.real("d/f")).unwrap();
        },
        "d/f",
    ),
    ("directory deleted", delete_dir, |w| fs::remove_dir_all(w.real("d")).unwrap(), "d/f"),
    ("directory renamed", rename_dir, |w| fs::rename(w.real("d"), w.real("m")).unwrap(), "d/f"),
];

fn add(w: &World) {
    w.put("d/n", "n");
}

fn write(w: &World) {
    w.copy_up("d/f", "d/f", Some(SESSIONS));
}

fn delete(w: &World) {
    w.whiteout("d/f");
}

fn rename(w: &World) {
    w.copy_up("d/r", "d/f", None).whiteout("d/f");
}

fn retype(w: &World) {
    w.put("d/f", "-> g");
}

fn delete_dir(w: &World) {
    w.whiteout("d");
}

fn rename_dir(w: &World) {
    w.redirect("m", "d").whiteout("d");
}

/// What somebody does to the real tree at a path.
type Intrusion = fn(&World, &str);

/// What the real tree did to that name, or around it.
const REAL: &[(&str, Intrusion)] = &[
    ("nothing", |_, _| {}),
    ("written", |w, at| fs::write(w.real(at), THEIRS).unwrap()),
    ("mode set", |w, at| {
        if fs::metadata(w.real(at)).is_ok() {
            fs::set_permissions(w.real(at), fs::Permissions::from_mode(0o600)).unwrap();
        }
    }),
    ("removed", |w, at| drop(fs::remove_file(w.real(at)))),
    ("made a symlink", |w, at| {
        drop(fs::remove_file(w.real(at)));
        symlink("elsewhere", w.real(at)).unwrap();
    }),
    ("made a directory", |w, at| {
        drop(fs::remove_file(w.real(at)));
        fs::create_dir(w.real(at)).unwrap();
    }),
    ("new file beside", |w, _| fs::write(w.real("d/theirs"), "1").unwrap()),
    ("new name taken", |w, _| {
        for name in ["d/r", "m"] {
            fs::write(w.real(name), "theirs").unwrap();
        }
    }),
    ("parent removed", |w, _| fs::remove_dir_all(w.real("d")).unwrap()),
    ("parent a symlink", |w, _| {
        fs::rename(w.real("d"), w.real("z")).unwrap();
        symlink("z", w.real("d")).unwrap();
    }),
];

fn word(why: &Why) -> &'static str {
    match why {
        Why::Appeared(_) => "appeared",
        Why::Gone => "gone",
        Why::Retyped(..) => "other type",
        Why::Content => "content",
        Why::Metadata => "metadata",
        Why::Inside(_) => "new inside",
        Why::ParentGone(_) => "parent gone",
        Why::ParentRetyped(..) => "parent not a directory",
        Why::Younger => "younger",
        Why::Markers => "markers",
    }
}

/// A session that did one thing, and a real tree that did another meanwhile.
fn both(session: Act, real: &dyn Fn(&World)) -> (World, ChangeSet) {
    let w = World::new();
    w.has("d/f", OLD).has("d/g", "1");
    let stat = |path: &[u8]| {
        let roots = w.roots();
        sbx_fuse::sys::file::stat_at(roots[0].real.as_fd(), path).unwrap()
    };
    let (file, dir) = (BaseId::of(&stat(b"d/f")), BaseId::of(&stat(b"d")));
    w.tick();
    session(&w);
    let mut set = w.scan();
    for change in &mut set.changes {
        // The journal has it from the moment of the change; an upper without an object cannot.
        let base = match change.from.as_ref().unwrap_or(&change.path).as_bytes() {
            b"d/f" if change.kind != Kind::Dir => &file,
            b"d" => &dir,
            _ => continue,
        };
        let hash = (base.kind == Kind::File).then(|| *blake3::hash(OLD.as_bytes()).as_bytes());
        let known = change.base.get_or_insert_with(|| base.clone());
        known.hash = hash;
    }
    w.tick();
    real(&w);
    (w, set)
}

/// What `rebase` makes of the same pair.
fn rebased(session: Act, real: &dyn Fn(&World)) -> String {
    let (w, mut set) = both(session, real);
    let roots = w.roots();
    let nobody = |_: u16, _: &RelPath| None;
    let settled = settle(&roots, &set).unwrap();
    let conflicts = check(&roots, &settled, &nobody).unwrap();
    if conflicts.is_empty() {
        return "–".into();
    }
    let old = |hash: &[u8; 32]| {
        Ok((*blake3::hash(OLD.as_bytes()).as_bytes() == *hash).then(|| OLD.as_bytes().to_vec()))
    };
    let mut words = std::collections::BTreeSet::new();
    let before = w.tree();
    for c in &conflicts {
        let s = settled.iter().find(|s| s.change.path == c.path).unwrap();
        match move_base(&roots, s, c, &old, false).unwrap() {
            None => drop(words.insert("left")),
            Some(moved) => {
                words.insert(if moved.merged { "merged" } else { "noted" });
                let change = set.changes.iter_mut().find(|change| change.path == c.path).unwrap();
                change.base = Some(moved.base);
            }
        }
    }
    assert_eq!(w.tree(), before, "the real tree is not touched");
    let settled = settle(&roots, &set).unwrap();
    let left = check(&roots, &settled, &nobody).unwrap().len();
    assert_eq!(left > 0, words.contains("left"), "{words:?}");
    words.into_iter().collect::<Vec<_>>().join(", ")
}

fn cell(session: Act, real: &dyn Fn(&World)) -> String {
    let (w, set) = both(session, real);
    let roots = w.roots();
    let settled = settle(&roots, &set).unwrap();
    if settled.is_empty() {
        return "same".into();
    }
    let nobody = |_: u16, _: &RelPath| None;
    let conflicts = check(&roots, &settled, &nobody).unwrap();
    let find = |path: &RelPath| -> &Settled { settled.iter().find(|s| s.change.path == *path).unwrap() };
    let can_win = conflicts.iter().all(|c| session_can_win(find(&c.path), &c.why));
    let before = w.tree();
    let plan = plan(&settled, &Selection::All).unwrap();
    let mut dropper = Offline::new(&roots, &set, Leave::Applied);
    if can_win {
        let report =
            apply_with(&roots, &plan, Policy::default(), &mut dropper, &mut |_| {}, &mut NoFault).unwrap();
        assert!(report.warnings.is_empty() && report.kept.is_empty(), "{report:?}");
        assert_eq!(w.changes(), [""; 0]);
    } else {
        assert_eq!(w.tree(), before);
    }
    match conflicts.first() {
        None => "applies".into(),
        Some(c) if can_win => word(&c.why).into(),
        Some(c) => format!("{} †", word(&c.why)),
    }
}

/// What comes of what the session did and what was done to the real tree.
type Cell = fn(Act, &dyn Fn(&World)) -> String;

fn table(title: &str, cell: Cell) -> Vec<String> {
    let heads: Vec<&str> = SESSION.iter().map(|s| s.0).collect();
    let mut lines = vec![format!("| {title} | {} |", heads.join(" | "))];
    lines.push(format!("|---|{}", "---|".repeat(SESSION.len())));
    let mut rows: Vec<(String, Vec<String>)> = Vec::new();
    for (name, real) in REAL {
        let cells = SESSION.iter().map(|(_, session, _, at)| cell(*session, &|w| real(w, at)));
        rows.push(((*name).into(), cells.collect()));
    }
    let same = SESSION.iter().map(|(_, session, same, _)| cell(*session, &|w| same(w)));
    rows.push(("the same".into(), same.collect()));
    lines.extend(rows.iter().map(|(name, cells)| format!("| {name} | {} |", cells.join(" | "))));
    lines
}

#[test]
fn every_cell_is_as_the_documentation_has_it() {
    let mut lines = table("real tree \\ session", cell);
    lines.extend(table("rebase", rebased));
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/conflicts.md");
    let docs = fs::read_to_string(path).unwrap();
    let table: Vec<&str> = docs.lines().filter(|l| l.starts_with('|')).collect();
    assert_eq!(lines, table, "the table is\n{}", lines.join("\n"));
}
