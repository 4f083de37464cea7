//! Every pair of what a session did and what the real tree did. The table in docs/conflicts.md is this test's
//! expectation: it is compared cell by cell with what happens.

use crate::world::{World, rel};
use sbx_fuse::base::RelPath;
use sbx_fuse::review::{
    Leave, NoFault, Offline, Policy, Selection, Settled, Why, apply_with, check, plan, session_can_win,
    settle,
};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

type Act = fn(&World);

/// What the session did, the same done in the real tree, and the name it is about there.
const SESSION: &[(&str, Act, Act, &str)] = &[
    ("new file", add, |w| fs::write(w.real("d/n"), "n").unwrap(), "d/n"),
    ("written", write, |w| fs::write(w.real("d/f"), "2").unwrap(), "d/f"),
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
    w.copy_up("d/f", "d/f", Some("2"));
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
    ("written", |w, at| fs::write(w.real(at), "theirs").unwrap()),
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

/// The kernel's clock for file times ticks every 4 ms or so.
fn pause() {
    std::thread::sleep(std::time::Duration::from_millis(12));
}

fn cell(session: Act, real: &dyn Fn(&World)) -> String {
    let w = World::new();
    w.has("d/f", "1").has("d/g", "1");
    let base = {
        use std::os::fd::AsFd;
        let roots = w.roots();
        sbx_fuse::sys::file::stat_at(roots[0].real.as_fd(), b"d/f").unwrap()
    };
    pause();
    session(&w);
    let mut set = w.scan();
    for change in &mut set.changes {
        if change.path == rel("d/f") && change.base.is_none() {
            // The journal has it from the moment of the change; an upper without an object cannot.
            change.base = Some(sbx_fuse::base::BaseId::of(&base));
        }
    }
    pause();
    real(&w);
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

#[test]
fn every_cell_is_as_the_documentation_has_it() {
    let mut lines = vec![];
    let heads: Vec<&str> = SESSION.iter().map(|s| s.0).collect();
    lines.push(format!("| real tree \\ session | {} |", heads.join(" | ")));
    lines.push(format!("|---|{}", "---|".repeat(SESSION.len())));
    let mut rows: Vec<(String, Vec<String>)> = Vec::new();
    for (name, real) in REAL {
        let cells = SESSION.iter().map(|(_, session, _, at)| cell(*session, &|w| real(w, at)));
        rows.push(((*name).into(), cells.collect()));
    }
    let same = SESSION.iter().map(|(_, session, same, _)| cell(*session, &|w| same(w)));
    rows.push(("the same".into(), same.collect()));
    lines.extend(rows.iter().map(|(name, cells)| format!("| {name} | {} |", cells.join(" | "))));
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/conflicts.md");
    let docs = fs::read_to_string(path).unwrap();
    let table: Vec<&str> = docs.lines().filter(|l| l.starts_with('|')).collect();
    assert_eq!(lines, table, "the table is\n{}", lines.join("\n"));
}
