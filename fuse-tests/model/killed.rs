//! The server is killed before a system call of a random session: what had returned is there, what was under way is
//! done or not, journal and upper differ on nothing else, and the session goes on.

use crate::ops::{self, Op};
use crate::plain::Plain;
use crate::tree::differences;
use crate::view::{Setup, View};
use sbx_fuse::journal;
use sbx_fuse::layer::{LayerKind, partial};
use sbx_fuse::sys::fault;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

/// Names the directory of a child's session, the seed of what it does, and the call before which it dies.
const CHILD: &str = "SBX_FUSE_KILLED_CHILD";
/// How many sessions of their own seed are killed, and each how often, in one run of the tests; the soak takes more.
const SESSIONS: u64 = 40;
const KILLS: u64 = 6;

/// What is one operation for a program and for the union alike.
fn session(seed: u64) -> (Vec<Op>, Vec<Op>) {
    let (lower, mut work) = ops::session(seed, 20, 40);
    for op in &mut work {
        if let Op::Create { len, .. } = op {
            *len = 0;
        }
    }
    (lower, work)
}

/// The directories of a session in `dir`, with its real tree; in every other session files are copied block by block.
fn setup(dir: &Path, seed: u64) -> Setup {
    let work = dir.join("work");
    let features = crate::view::probe(&work);
    Setup {
        upper: dir.join("upper"),
        work,
        journal: dir.join("journal"),
        lowers: vec![(dir.join("lower"), LayerKind::Plain)],
        features,
        borrows: seed % 2 == 1,
    }
}

/// Does what a session does; `done` is told how many operations have returned.
fn run(view: &mut View, lower: &[Op], work: &[Op], mut done: impl FnMut(u64)) {
    for (i, op) in work.iter().enumerate() {
        // What an operation gives is compared elsewhere.
        drop(view.apply(lower.len() + i, op));
        done(i as u64 + 1);
    }
}

/// What a child process of these tests does: one session, up to its death.
#[test]
fn killed_child() {
    let Some(order) = std::env::var_os(CHILD) else { return };
    let order = order.into_string().unwrap();
    let [dir, seed, call] = order.split('\n').collect::<Vec<_>>()[..] else { panic!("{order}") };
    let (dir, seed, call) = (Path::new(dir), seed.parse().unwrap(), call.parse().unwrap());
    let (lower, work) = session(seed);
    let mut view = View::new(setup(dir, seed));
    let done = fs::File::create(dir.join("done")).unwrap();
    fault::dying(call, || {
        run(&mut view, &lower, &work, |n| done.write_all_at(&n.to_le_bytes(), 0).unwrap());
    });
}

/// The directories of one session of `seed`; the plain directory and the real one have the same in them.
struct Bed {
    tmp: tempfile::TempDir,
    plain: Plain,
    lower: Vec<Op>,
    work: Vec<Op>,
    real: Vec<String>,
}

impl Bed {
    fn new(seed: u64) -> Bed {
        let tmp = crate::place();
        for name in ["plain", "lower", "upper", "work", "journal"] {
            fs::create_dir(tmp.path().join(name)).unwrap();
        }
        let (lower, work) = session(seed);
        let (mut plain, mut real) =
            (Plain::new(tmp.path().join("plain")), Plain::new(tmp.path().join("lower")));
        for (n, op) in lower.iter().enumerate() {
            assert_eq!(plain.apply(n, op), real.apply(n, op));
        }
        Bed { plain, lower, work, real: crate::fingerprint(&real.dir), tmp }
    }
}

/// How many system calls the session of `seed` makes.
fn calls(seed: u64) -> u64 {
    let bed = Bed::new(seed);
    let mut view = View::new(setup(bed.tmp.path(), seed));
    fault::counted(|| run(&mut view, &bed.lower, &bed.work, |_| ())).1.calls
}

/// As every command does before it serves a session whose server died.
fn recover(setup: &Setup) {
    for entry in fs::read_dir(&setup.work).unwrap() {
        let path = entry.unwrap().path();
        if !path.ends_with("index") && path.file_name().unwrap().as_encoded_bytes() != partial::MARKERS {
            fs::remove_dir_all(&path).or_else(|_| fs::remove_file(&path)).unwrap();
        }
    }
    let [work, upper, lower] = [&setup.work, &setup.upper, &setup.lowers[0].0].map(|p| crate::view::open(p));
    let recovered = partial::recover(work.as_fd(), upper.as_fd(), lower.as_fd()).unwrap();
    assert_eq!(recovered.incomplete, []);
}

/// One session of `seed` that is killed before system call `call`.
fn kill(seed: u64, call: u64) {
    let what = format!("seed {seed} at call {call}");
    let mut bed = Bed::new(seed);
    let order = format!("{}\n{seed}\n{call}", bed.tmp.path().to_str().unwrap());
    let out = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "killed::killed_child", "--nocapture"])
        .env(CHILD, order)
        .output()
        .unwrap();
    assert_eq!(out.status.signal(), Some(libc::SIGKILL), "{what}: {}", out.stderr.escape_ascii());
    let done = fs::read(bed.tmp.path().join("done")).unwrap();
    let done = done.first_chunk().map_or(0, |b| u64::from_le_bytes(*b)) as usize;
    let under_way = &bed.work[done];
    let what = format!("{what}, in {under_way:?} after {done} others");

    let setup = setup(bed.tmp.path(), seed);
    recover(&setup);
    let paths = ops::paths(under_way);
    let about = |path: &str| {
        paths.iter().any(|p| path == p || path.strip_prefix(p.as_str()).is_some_and(|r| r.starts_with('/')))
    };
    // What was renamed before and is removed now is missed at the old name.
    let changes = journal::fold_dir(&setup.journal).unwrap().set.changes;
    let old_names: Vec<_> =
        changes.into_iter().filter(|c| about(&c.path.to_string())).filter_map(|c| c.from).collect();
    for d in crate::disagreements(&setup).2 {
        let moved = d.scan.iter().chain(&d.fold).filter_map(|(_, from)| from.as_ref());
        let known = about(&d.path.to_string())
            || moved.into_iter().any(|from| about(&from.to_string()))
            || old_names.contains(&d.path);
        assert!(known, "{what}: journal and upper differ: {d:?}");
    }
    let mut view = View::new(setup);
    for (i, op) in bed.work[..done].iter().enumerate() {
        drop(bed.plain.apply(bed.lower.len() + i, op));
    }
    let tree = view.tree();
    let not_done = differences(&bed.plain.tree(), &tree, true);
    if !not_done.is_empty() {
        drop(bed.plain.apply(bed.lower.len() + done, under_way));
        let is_done = differences(&bed.plain.tree(), &tree, true);
        assert!(is_done.is_empty(), "{what}: not done: {not_done:#?} done: {is_done:#?}");
    }
    assert_eq!(view.leftovers(), Vec::<String>::new(), "{what}");
    // It goes on as if nothing had been.
    bed.plain.apply(0, &Op::Remount).unwrap();
    for (i, op) in bed.work.iter().enumerate() {
        assert_eq!(view.apply(1000 + i, op), bed.plain.apply(1000 + i, op), "{what}: going on with {op:?}");
    }
    let differ = differences(&bed.plain.tree(), &view.tree(), true);
    assert!(differ.is_empty(), "{what}: going on: {differ:#?}");
    assert_eq!(crate::fingerprint(&bed.plain.dir.with_file_name("lower")), bed.real, "{what}: the real tree");
}

#[test]
fn a_killed_server_loses_nothing_that_returned() {
    let given = |name: &str, usual| std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(usual);
    let (first, sessions) = (given("SBX_FUSE_SEED", 0), given("SBX_FUSE_SESSIONS", SESSIONS));
    let kills = given("SBX_FUSE_KILLS", KILLS);
    for seed in first..first + sessions {
        let calls = calls(seed);
        // Evenly over the session, and not at the same part of it in each.
        (0..kills.min(calls)).for_each(|n| kill(seed, (n * calls + seed * 7919 % calls) / kills));
    }
}
