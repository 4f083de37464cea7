//! The server of a mount is killed at random points of a random workload: every operation that had returned is there,
//! the one under way is done or not, `verify` is clean, and the session goes on. Through the binary, as a person
//! without privileges.
//!
//! In CI a few sessions; `SBX_FUSE_SESSIONS` asks for more, from `SBX_FUSE_SEED` on.

// As in a test module, which this harness is not for the compiler.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

#[path = "../model/ops.rs"]
mod ops;
#[path = "../model/plain.rs"]
mod plain;
#[path = "../support/mod.rs"]
mod support;
#[path = "../model/tree.rs"]
mod tree;

use libtest_mimic::{Arguments, Trial};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use ops::Op;
use plain::Plain;
use sbx_fuse::base::{Errno, Sys};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use tree::{Tree, differences};

const BUILT: &str = env!("CARGO_BIN_EXE_sbx-fuse");

/// How many sessions one run of the tests takes, and how often the server of each is killed.
const SESSIONS: u64 = 4;
const KILLS: usize = 5;
/// How many operations there are between two deaths at most.
const BETWEEN: usize = 60;
/// A file that is copied block by block, bytes.
const LARGE: u64 = (8 << 20) + 5000;
const PAGE: u32 = 4096;

fn main() -> ExitCode {
    if let Some(code) = support::as_unprivileged(BUILT) {
        return code;
    }
    // Both sides make their objects with the same modes.
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o022));
    let given = |name: &str, usual| std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(usual);
    let first = given("SBX_FUSE_SEED", 0);
    let trials = (first..first + given("SBX_FUSE_SESSIONS", SESSIONS)).map(|seed| {
        Trial::test(format!("a_killed_server_loses_nothing_that_returned::{seed}"), move || {
            session(seed);
            Ok(())
        })
    });
    // One after the other: what another thread starts has our descriptors for a moment, and the mount would be busy.
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}

/// A session over a real tree, and a plain directory that has what the session should have.
struct World {
    dir: tempfile::TempDir,
    plain: Plain,
}

impl World {
    fn new(lower: &[Op]) -> World {
        let dir = tempfile::TempDir::with_prefix("sbx-fuse-kill").unwrap();
        for name in ["home", "run", "mnt", "real", "plain"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        std::fs::set_permissions(dir.path().join("run"), std::os::unix::fs::PermissionsExt::from_mode(0o700))
            .unwrap();
        let (mut plain, mut real) =
            (Plain::new(dir.path().join("plain")), Plain::new(dir.path().join("real")));
        for side in [&mut plain, &mut real] {
            for (n, op) in lower.iter().enumerate() {
                drop(side.apply(n, op));
            }
            let large = std::fs::File::create_new(side.dir.join("large")).unwrap();
            large.set_len(LARGE).unwrap();
            std::os::unix::fs::FileExt::write_all_at(&large, &[b'r'; 100_000], 3_000_000).unwrap();
        }
        World { dir, plain }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs the program; it must succeed. Returns its stdout.
    fn ok(&self, args: &[&str], what: &str) -> String {
        let mut command = Command::new(support::product(BUILT));
        command.args(args).current_dir(self.at("real")).env_clear().stdin(Stdio::null());
        command.env("PATH", "/usr/local/bin:/usr/bin:/bin").env("HOME", self.at("home"));
        command.env("XDG_RUNTIME_DIR", self.at("run")).env("LC_ALL", "C");
        let out = command.output().unwrap();
        let (said, err) = (String::from_utf8(out.stdout).unwrap(), out.stderr.escape_ascii());
        assert!(out.status.success(), "{what}: {args:?}: {}: {said}{err}", out.status);
        said
    }

    /// Mounts the session; returns the server's process and the view.
    fn mount(&self, what: &str) -> (Pid, Plain) {
        let mnt = self.at("mnt");
        self.ok(&["mount", "--root", ".", "-s", "s", mnt.to_str().unwrap()], what);
        let told: serde_json::Value = serde_json::from_str(&self.ok(&["show", "s", "--json"], what)).unwrap();
        let pid = told["pid"].as_i64().unwrap_or_else(|| panic!("{what}: no server: {told}"));
        (Pid::from_raw(i32::try_from(pid).unwrap()), Plain::new(mnt))
    }
}

impl Drop for World {
    /// A test that failed may leave its mount, without which the directory could not be removed.
    fn drop(&mut self) {
        let gone = Command::new("fusermount3").args(["-u", "-q", "-z"]).arg(self.at("mnt")).output();
        if std::thread::panicking() {
            eprintln!("clean-up: {gone:?}");
        }
    }
}

/// Whether an operation found no server any more.
fn is_dead(found: &Sys<Vec<u8>>) -> bool {
    matches!(found, Err(Errno::ENOTCONN | Errno::ECONNABORTED))
}

/// Whether nothing of a process is left but its exit status, which somebody else may collect.
fn is_gone(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.map_or(true, |s| s.rsplit(") ").next().is_some_and(|rest| rest.starts_with(['Z', 'X'])))
}

/// What a tree may be after `op`, the `n`-th, was cut off: the states between the requests that it makes, and between
/// the pages of a write, which write(2) of the host goes through one by one (the server dies between two of them).
fn after(plain: &mut Plain, n: usize, op: &Op) -> Vec<Tree> {
    let mut states = vec![plain.tree()];
    let (at, offset, len) = match op {
        Op::Create { at, len } => {
            if plain.apply(n, &Op::Create { at: at.clone(), len: 0 }).is_err() {
                return states;
            }
            (at, 0, *len)
        }
        Op::Write { at, offset, len } => (at, *offset, *len),
        op => {
            drop(plain.apply(n, op));
            states.push(plain.tree());
            return states;
        }
    };
    states.push(plain.tree());
    let first = (offset / PAGE + 1) * PAGE;
    for end in (first..offset + len).step_by(PAGE as usize).chain([offset + len]) {
        drop(plain.apply(n, &Op::Write { at: at.clone(), offset, len: end - offset }));
        states.push(plain.tree());
    }
    states
}

fn session(seed: u64) {
    let (lower, ops) = ops::session(seed, 20, KILLS * BETWEEN * 2);
    let mut work = Vec::new();
    for (i, op) in ops.into_iter().filter(|op| !matches!(op, Op::Remount)).enumerate() {
        work.push(op);
        if i % 7 == 0 {
            let offset = (i as u64 * 1_234_567 + seed * 1000) % LARGE;
            work.push(Op::Write { at: vec!["large"], offset: offset as u32, len: 2000 });
        }
    }
    let mut w = World::new(&lower);
    let mut next = 0;
    for death in 0..KILLS {
        let what = format!("seed {seed}, death {death}");
        let (pid, mut view) = w.mount(&what);
        // After so many operations another thread kills the server, while they go on.
        let (after_n, (now, told)) = ((seed as usize * 31 + death * 17) % BETWEEN + 1, mpsc::channel());
        let killer = std::thread::spawn(move || {
            told.recv().unwrap();
            kill(pid, Signal::SIGKILL).unwrap();
        });
        let begun = next;
        let under_way = loop {
            assert!(next - begun < BETWEEN * 100, "{what}: the server does not die");
            if next - begun == after_n {
                now.send(()).unwrap();
            }
            let op = &work[next % work.len()];
            let found = view.apply(next, op);
            next += 1;
            if is_dead(&found) {
                break op;
            }
            assert_eq!(found, w.plain.apply(next - 1, op), "{what}: {op:?}, the {next}th");
        };
        killer.join().unwrap();
        let end = Instant::now() + Duration::from_secs(120);
        while !is_gone(pid) {
            assert!(Instant::now() < end, "{what}: the server does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
        let what = format!("{what}, in {under_way:?}, the {next}th");
        w.ok(&["verify", "-s", "s"], &what);
        drop(view);
        let (_, view) = w.mount(&what);
        let is = view.tree();
        let states = after(&mut w.plain, next - 1, under_way);
        let wrong: Vec<_> = states.iter().map(|s| differences(s, &is, true)).collect();
        let Some(state) = wrong.iter().position(Vec::is_empty) else {
            panic!("{what}: neither not done, nor done: {wrong:#?}");
        };
        if state + 1 < states.len() {
            // The plain directory has it whole; the session does it now.
            if let (Op::Create { at, .. }, true) = (under_way, state > 0) {
                std::fs::remove_file(view.dir.join(at.join("/"))).unwrap();
            }
            drop(Plain::new(view.dir.clone()).apply(next - 1, under_way));
        }
        let differ = differences(&w.plain.tree(), &view.tree(), true);
        assert!(differ.is_empty(), "{what}: going on: {differ:#?}");
        drop(view);
        w.ok(&["umount", w.at("mnt").to_str().unwrap()], &what);
    }
    w.ok(&["verify", "-s", "s"], "at the end");
    let real = std::fs::read(w.at("real/large")).unwrap();
    assert!(real.iter().filter(|b| **b == b'r').count() == 100_000, "the real file was changed");
}
