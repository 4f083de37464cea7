//! Operations written as text, for scenarios that are told by name.

use crate::ops::{How, Op, Path};

/// The names of a path.
pub fn at(path: &'static str) -> Path {
    path.split('/').collect()
}

/// The operations of a script: `mkdir d; create d/f 90; mv d/f d/g; ...`.
pub fn script(text: &'static str) -> Vec<Op> {
    text.split(';').map(str::trim).filter(|line| !line.is_empty()).map(line).collect()
}

fn line(text: &'static str) -> Op {
    let words: Vec<&'static str> = text.split_whitespace().collect();
    let path = |n: usize| at(words[n]);
    let number = |n: usize| words[n].parse().unwrap_or_else(|_| panic!("no number in {text:?}"));
    let mode = |n: usize| u32::from_str_radix(words[n], 8).unwrap();
    let mv = |how| Op::Rename { from: path(1), to: path(2), how };
    match words[0] {
        "create" => Op::Create { at: path(1), len: number(2) },
        "mkdir" => Op::Mkdir { at: path(1) },
        "symlink" => Op::Symlink { at: path(1), n: 1 },
        "fifo" => Op::Fifo { at: path(1) },
        "link" => Op::Link { from: path(1), to: path(2) },
        "unlink" => Op::Unlink { at: path(1) },
        "rmdir" => Op::Rmdir { at: path(1) },
        "rm-r" => Op::Remove { at: path(1) },
        "mv" => mv(How::Replace),
        "exchange" => mv(How::Exchange),
        "write" => Op::Write { at: path(1), offset: number(2), len: number(3) },
        "truncate" => Op::Truncate { at: path(1), len: number(2) },
        "chmod" => Op::Chmod { at: path(1), mode: mode(2) },
        "setxattr" => Op::SetXattr { at: path(1), n: 0, len: 9 },
        "removexattr" => Op::RemoveXattr { at: path(1), n: 0 },
        "hold" => Op::Hold { at: path(1) },
        "write-held" => Op::HeldWrite { which: 0, offset: number(1), len: number(2) },
        "walk" => Op::Walk,
        "complete" => Op::Complete,
        "forget" => Op::Forget,
        "remount" => Op::Remount,
        other => panic!("no operation {other}"),
    }
}
