//! The server is killed before a system call of a random session: what had returned is there, what was under way is
//! done or not, journal and upper differ on nothing else, and the session goes on.

use crate::ops::{self, Op};
use crate::plain::Plain;
use crate::tree::differences;
use crate::view::{Setup, View};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use sbx_fuse::layer::LayerKind;
use sbx_fuse::sys::fault;
use std::fs;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Names the directory of a child's session, the seed of what it does, and the call before which it dies.
const CHILD: &str = "SBX_FUSE_KILLED_CHILD";
/// How many sessions are killed in one run of the tests; the soak takes more.
const KILLS: u64 = 280;

/// The real tree and the session of a seed: the same in the child and in its parent. Without what is several
/// operations for the kernel, and without what only one of the two could tell after the death.
fn session(seed: u64) -> (Vec<Op>, Vec<Op>) {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let mut some = |what: BoxedStrategy<Op>, n: usize| {
        prop::collection::vec(what, n).new_tree(&mut runner).unwrap().current()
    };
    let (mut lower, mut work) = (some(ops::building().boxed(), 20), some(ops::working().boxed(), 40));
    lower.retain(|op| !matches!(op, Op::Symlink { .. } | Op::Fifo { .. } | Op::Link { .. }));
    let left_out = |op: &Op| {
        matches!(
            op,
            Op::Link { .. }
                | Op::Remove { .. }
                | Op::Remount
                | Op::Hold { .. }
                | Op::HeldWrite { .. }
                | Op::HeldRead { .. }
        )
    };
    work.retain(|op| !left_out(op));
    for op in &mut work {
        if let Op::Create { len, .. } = op {
            *len = 0;
        }
    }
    (lower, work)
}

fn setup(dir: &Path) -> Setup {
    let work = dir.join("work");
    let features = crate::view::probe(&work);
    Setup {
        upper: dir.join("upper"),
        work,
        journal: dir.join("journal"),
        lowers: vec![(dir.join("lower"), LayerKind::Plain)],
        features,
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
    let mut view = View::new(setup(dir));
    let done = fs::File::create(dir.join("done")).unwrap();
    fault::dying(call, || {
        for (i, op) in work.iter().enumerate() {
            // What an operation gives is compared elsewhere.
            view.apply(lower.len() + i, op).map_or((), drop);
            done.write_all_at(&(i as u64 + 1).to_le_bytes(), 0).unwrap();
        }
    });
}

/// The paths that an operation is about.
fn paths(op: &Op) -> Vec<String> {
    match op {
        Op::Create { at, .. }
        | Op::Mkdir { at }
        | Op::Symlink { at, .. }
        | Op::Fifo { at }
        | Op::Unlink { at }
        | Op::Rmdir { at }
        | Op::Write { at, .. }
        | Op::Truncate { at, .. }
        | Op::Chmod { at, .. }
        | Op::SetXattr { at, .. }
        | Op::RemoveXattr { at, .. } => vec![at.join("/")],
        Op::Rename { from, to, .. } => vec![from.join("/"), to.join("/")],
        _ => Vec::new(),
    }
}

/// One session that dies; true when it did.
fn kill(seed: u64, call: u64) -> bool {
    let tmp = crate::place();
    for name in ["plain", "lower", "upper", "work", "journal"] {
        fs::create_dir(tmp.path().join(name)).unwrap();
    }
    let (lower, work) = session(seed);
    let (mut plain, mut real) = (Plain::new(tmp.path().join("plain")), Plain::new(tmp.path().join("lower")));
    for (n, op) in lower.iter().enumerate() {
        assert_eq!(plain.apply(n, op), real.apply(n, op));
    }
    let before = crate::fingerprint(&real.dir);
    let order = format!("{}\n{seed}\n{call}", tmp.path().to_str().unwrap());
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "killed::killed_child", "--nocapture"])
        .env(CHILD, order)
        .stdout(Stdio::null())
        .status()
        .unwrap();
    let died = status.signal() == Some(libc::SIGKILL);
    assert!(died || status.success(), "seed {seed} at {call}: {status}");
    let done = fs::read(tmp.path().join("done")).unwrap();
    let done = done.first_chunk().map_or(0, |b| u64::from_le_bytes(*b)) as usize;

    let setup = setup(tmp.path());
    let under_way = work.get(done).map(paths).unwrap_or_default();
    let about = |path: &str| {
        under_way.iter().any(|p| path == p || path.strip_prefix(p.as_str()).is_some_and(|r| r.starts_with('/')))
    };
    for d in crate::disagreements(&setup) {
        let moved = d.scan.iter().chain(&d.fold).filter_map(|(_, from)| from.as_ref());
        let known = about(&d.path.to_string()) || moved.into_iter().any(|from| about(&from.to_string()));
        assert!(known, "seed {seed} at {call}, after {done} operations: {d:?}, under way: {:?}", work.get(done));
    }
    // As every command does before it serves a session whose server died.
    for entry in fs::read_dir(&setup.work).unwrap() {
        let path = entry.unwrap().path();
        if !path.ends_with("index") {
            fs::remove_dir_all(&path).or_else(|_| fs::remove_file(&path)).unwrap();
        }
    }
    let mut view = View::new(setup);
    for (i, op) in work[..done].iter().enumerate() {
        plain.apply(lower.len() + i, op).map_or((), drop);
    }
    let tree = view.tree();
    let not_done = differences(&plain.tree(), &tree, true);
    if !not_done.is_empty() {
        let op = work.get(done).unwrap_or_else(|| panic!("seed {seed} at {call}: {not_done:#?}"));
        plain.apply(lower.len() + done, op).map_or((), drop);
        let is_done = differences(&plain.tree(), &tree, true);
        assert!(
            is_done.is_empty(),
            "seed {seed} at {call}, in {op:?}: neither done {is_done:#?} nor not done {not_done:#?}"
        );
    }
    for (i, op) in work.iter().enumerate() {
        assert_eq!(view.apply(1000 + i, op), plain.apply(1000 + i, op), "seed {seed} at {call}: {op:?}");
    }
    let differ = differences(&plain.tree(), &view.tree(), true);
    assert!(differ.is_empty(), "seed {seed} at {call}: going on: {differ:#?}");
    assert_eq!(crate::fingerprint(&real.dir), before, "seed {seed} at {call}: the real tree was changed");
    died
}

#[test]
fn a_killed_server_loses_nothing_that_returned() {
    let kills = std::env::var("SBX_FUSE_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(KILLS);
    let died = (0..kills).filter(|n| kill(n / 4, (n * 7919) % 500)).count() as u64;
    assert!(died * 2 > kills, "only {died} of {kills} died");
}
