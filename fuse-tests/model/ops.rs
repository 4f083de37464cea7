//! Random operations on paths.
#![allow(dead_code)] // each kind of tests uses some of it

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// A path of one to three names out of few, so that operations meet.
pub type Path = Vec<&'static str>;

#[derive(Clone, Debug)]
pub enum Op {
    Create {
        at: Path,
        len: u32,
    },
    Mkdir {
        at: Path,
    },
    Symlink {
        at: Path,
        n: u8,
    },
    Fifo {
        at: Path,
    },
    Link {
        from: Path,
        to: Path,
    },
    Unlink {
        at: Path,
    },
    Rmdir {
        at: Path,
    },
    /// `rm -r`.
    Remove {
        at: Path,
    },
    Rename {
        from: Path,
        to: Path,
        how: How,
    },
    Write {
        at: Path,
        offset: u32,
        len: u32,
    },
    Truncate {
        at: Path,
        len: u32,
    },
    Chmod {
        at: Path,
        mode: u32,
    },
    SetXattr {
        at: Path,
        n: u8,
        len: u8,
    },
    RemoveXattr {
        at: Path,
        n: u8,
    },
    /// Opens a file and keeps it open.
    Hold {
        at: Path,
    },
    /// Writes through a file kept open.
    HeldWrite {
        which: u8,
        offset: u32,
        len: u32,
    },
    /// Reads a file kept open: both sides must agree.
    HeldRead {
        which: u8,
    },
    /// Walks the whole tree, so that everything is known.
    Walk,
    /// What is copied block by block is made whole.
    Complete,
    /// The kernel drops all its caches.
    Forget,
    /// The server ends and starts again.
    Remount,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    Replace,
    NoReplace,
    Exchange,
}

fn path() -> impl Strategy<Value = Path> {
    let name = || prop::sample::select(vec!["a", "b", "c"]);
    prop_oneof![
        3 => prop::collection::vec(name(), 1..=1),
        4 => prop::collection::vec(name(), 2..=2),
        2 => prop::collection::vec(name(), 3..=3),
    ]
}

/// What a lower tree is made with.
pub fn building() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => path().prop_map(|at| Op::Mkdir { at }),
        6 => (path(), 0..5000u32).prop_map(|(at, len)| Op::Create { at, len }),
        1 => (path(), any::<u8>()).prop_map(|(at, n)| Op::Symlink { at, n }),
        1 => path().prop_map(|at| Op::Fifo { at }),
        3 => (path(), path()).prop_map(|(from, to)| Op::Link { from, to }),
        1 => (path(), mode()).prop_map(|(at, mode)| Op::Chmod { at, mode }),
        1 => (path(), 0..2u8, any::<u8>()).prop_map(|(at, n, len)| Op::SetXattr { at, n, len }),
    ]
}

fn mode() -> impl Strategy<Value = u32> {
    // Always with what the owner needs, so that the plain side may do everything without privileges too.
    prop::sample::select(vec![0o700, 0o755, 0o777, 0o1777, 0o711])
}

fn how() -> impl Strategy<Value = How> {
    prop_oneof![4 => Just(How::Replace), 1 => Just(How::NoReplace), 2 => Just(How::Exchange)]
}

/// What a session does.
pub fn working() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => building(),
        3 => path().prop_map(|at| Op::Unlink { at }),
        2 => path().prop_map(|at| Op::Rmdir { at }),
        2 => path().prop_map(|at| Op::Remove { at }),
        8 => (path(), path(), how()).prop_map(|(from, to, how)| Op::Rename { from, to, how }),
        3 => (path(), 0..6000u32, 1..3000u32).prop_map(|(at, offset, len)| Op::Write { at, offset, len }),
        1 => (path(), 0..6000u32).prop_map(|(at, len)| Op::Truncate { at, len }),
        1 => (path(), 0..2u8).prop_map(|(at, n)| Op::RemoveXattr { at, n }),
        2 => path().prop_map(|at| Op::Hold { at }),
        2 => (any::<u8>(), 0..6000u32, 1..100u32)
            .prop_map(|(which, offset, len)| Op::HeldWrite { which, offset, len }),
        1 => any::<u8>().prop_map(|which| Op::HeldRead { which }),
        1 => Just(Op::Walk),
        1 => Just(Op::Complete),
        1 => Just(Op::Forget),
        1 => Just(Op::Remount),
    ]
}

/// Files get other names, and lose some.
pub fn linking() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (path(), path()).prop_map(|(from, to)| Op::Link { from, to }),
        1 => path().prop_map(|at| Op::Unlink { at }),
        3 => working(),
    ]
}

/// Directories and what is in them change places. `t` is nowhere else.
pub fn places() -> impl Strategy<Value = Vec<Op>> {
    let name = || prop::sample::select(vec!["a", "b", "c"]);
    let replaced = |at: Path, new: &'static str, back: &'static str| {
        let mv = |from: Path, to: Path| Op::Rename { from, to, how: How::Replace };
        let (t, inner) = (vec!["t"], [&at[..], &[new]].concat());
        vec![
            mv(at.clone(), t.clone()),
            Op::Mkdir { at: at.clone() },
            mv(t.clone(), inner.clone()),
            mv([&inner[..], &[back]].concat(), [&at[..], &[back]].concat()),
            Op::Remove { at: t },
        ]
    };
    prop_oneof![
        3 => working().prop_map(|op| vec![op]),
        3 => (path(), path(), how()).prop_map(|(from, to, how)| vec![Op::Rename { from, to, how }]),
        1 => path().prop_map(|at| vec![Op::Mkdir { at }]),
        // A directory moves into one made in its place, and something of it comes back.
        2 => (path(), name(), name()).prop_map(move |(at, new, back)| replaced(at, new, back)),
    ]
}

/// The real tree and the session of a seed, the same each time, so many operations of each at most. Without what a scan
/// or the journal is known not to follow, and without operations that are several for the kernel or leave something
/// open.
pub fn session(seed: u64, lower: usize, work: usize) -> (Vec<Op>, Vec<Op>) {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let mut some = |what: BoxedStrategy<Op>, n: usize| {
        prop::collection::vec(what, n).new_tree(&mut runner).unwrap().current()
    };
    let (mut lower, mut work) = (some(building().boxed(), lower), some(working().boxed(), work));
    lower.retain(|op| !matches!(op, Op::Symlink { .. } | Op::Fifo { .. } | Op::Link { .. }));
    work.retain(|op| {
        !matches!(
            op,
            Op::Link { .. }
                | Op::Remove { .. }
                | Op::Hold { .. }
                | Op::HeldWrite { .. }
                | Op::HeldRead { .. }
        )
    });
    (lower, work)
}

/// The paths that an operation is about.
pub fn paths(op: &Op) -> Vec<String> {
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

/// The bytes of the `n`-th write: both sides make the same.
pub fn bytes(n: usize, len: u32) -> Vec<u8> {
    (0..len as usize).map(|i| b'a' + ((n * 7 + i) % 26) as u8).collect()
}

/// The target of a symlink: nowhere, so that no path leads through it.
pub fn target(n: u8) -> String {
    format!("/nonexistent/{n}")
}

/// The name of an xattr.
pub fn xattr(n: u8) -> String {
    format!("user.n{n}")
}
