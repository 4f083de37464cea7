//! `sbx-fuse changes`: one line a net change. Also the words other commands say about changes.

use super::context::Opened;
use super::output::{Color, Out};
use super::risk::{Noise, Ranked, Reviewed, noise_lines, remark};
use super::{Which, paths};
use crate::base::{Kind, Result, What, quote};
use crate::journal::Folded;
use crate::review::{self, Class, Settled};
use crate::session::{PathBytes, Session};
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;

/// Show what the session changed, one line each
///
/// A added, M modified, D deleted, R renamed (old -> new), T of another type, P only mode, owner, times or xattrs.
/// Paths are those from the root; of several roots, the root's name comes first. What could run or leak on the host
/// stands on top, with a `!` and the reason; build output and ignored files are grouped at the end.
#[derive(Debug, Args)]
pub(super) struct ChangesArgs {
    #[command(flatten)]
    which: Which,
    /// Print a JSON array
    #[arg(long, conflicts_with = "null")]
    json: bool,
    /// End letter and paths with NUL, unquoted: LETTER NUL PATH NUL, for R: LETTER NUL OLD NUL NEW NUL
    #[arg(short = '0', long)]
    null: bool,
    #[command(flatten)]
    noise: Noise,
    /// List build output and ignored files one by one
    #[arg(long, conflicts_with = "no_ignored")]
    all: bool,
    /// Only changes at or beneath these
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
}

#[derive(Serialize)]
struct Json {
    change: char,
    what: What,
    root: PathBytes,
    path: PathBytes,
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<PathBytes>,
    kind: Kind,
    content: bool,
    meta: bool,
    size_old: u64,
    size_new: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    comm: Option<PathBytes>,
    /// Pins what was looked at, the same in each row: for `apply --reviewed`.
    token: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    risk: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    noise: Option<String>,
}

pub(super) fn run(args: ChangesArgs) -> Result<u8> {
    let opened = Opened::open(&args.which)?;
    let set = opened.settled()?;
    let selection = paths::select(&opened.session, &args.paths, &set)?;
    let reviewed = Reviewed::new(&opened, set, &args.noise)?;
    let mut out = Out::new();
    let session = &opened.session;
    if args.json || args.null {
        // Programs get the order of paths, and find what is risky in a field.
        let token = review::token(opened.folded.last_seq, &reviewed.set);
        let both = reviewed.set.iter().zip(&reviewed.classes);
        let chosen =
            both.filter(|(s, _)| selection.takes(s)).map(|(settled, class)| Ranked { settled, class });
        if args.json {
            let rows: Vec<Json> = chosen.map(|r| json(session, &opened.folded, &r, token.clone())).collect();
            out.json(&rows)?;
        } else {
            for r in chosen {
                out.bytes(&null_ended(session, r.settled))?;
            }
        }
    } else {
        let chosen: Vec<Ranked<'_>> = reviewed.ranked().filter(|r| selection.takes(r.settled)).collect();
        for r in chosen.iter().filter(|r| args.all || !matches!(r.class, Class::Noise(_))) {
            let text = line(&out, session, r.settled) + &remark(&out, r);
            out.line(&text)?;
        }
        if !args.all {
            for text in noise_lines(&chosen) {
                out.line(&text)?;
            }
        }
    }
    out.flush()?;
    Ok(0)
}

fn json(session: &Session, folded: &Folded, r: &Ranked<'_>, token: String) -> Json {
    let s = r.settled;
    let c = &s.change;
    let process = folded.process(c);
    let root = session.meta.roots.get(usize::from(c.root)).map(|r| r.path.clone());
    Json {
        change: c.what.letter(),
        what: c.what,
        root: root.unwrap_or(PathBytes(Vec::new())),
        path: PathBytes(c.path.as_bytes().to_vec()),
        from: c.from.as_ref().map(|f| PathBytes(f.as_bytes().to_vec())),
        kind: c.kind,
        content: s.content,
        meta: !s.meta.is_empty(),
        size_old: s.size_old,
        size_new: s.size_new,
        time: (c.last.seq > 0).then_some(c.last.time),
        pid: process.map(|p| p.pid),
        comm: process.map(|p| PathBytes(p.comm.clone())),
        token,
        risk: r.class.reasons().to_vec(),
        noise: match r.class {
            Class::Noise(group) => Some(group.clone()),
            _ => None,
        },
    }
}

fn null_ended(session: &Session, s: &Settled) -> Vec<u8> {
    let c = &s.change;
    let mut out = vec![c.what.letter() as u8, 0];
    for path in c.from.iter().chain([&c.path]) {
        out.extend(paths::shown(session, c.root, path));
        out.push(0);
    }
    out
}

/// A change as people read it: `M src/main.rs`, `R old -> new`; a directory ends in a slash.
pub(super) fn line(out: &Out, session: &Session, s: &Settled) -> String {
    let c = &s.change;
    let color = match c.what {
        What::Added => Color::Green,
        What::Deleted => Color::Red,
        What::Modified | What::Typed | What::Meta => Color::Yellow,
        What::Renamed => Color::Cyan,
    };
    let slash = if c.kind == Kind::Dir && !c.path.is_root() { &b"/"[..] } else { b"" };
    let show = |path| quote(&[&paths::shown(session, c.root, path), slash].concat());
    let letter = out.paint(color, &c.what.letter().to_string());
    match &c.from {
        Some(from) => format!("{letter} {} -> {}", show(from), show(&c.path)),
        None => format!("{letter} {}", show(&c.path)),
    }
}

/// `3 added, 1 modified, 2 deleted`; `no changes`.
pub(super) fn summary<'a>(changes: impl IntoIterator<Item = &'a Settled>) -> String {
    const WORDS: [(What, &str); 6] = [
        (What::Added, "added"),
        (What::Modified, "modified"),
        (What::Deleted, "deleted"),
        (What::Renamed, "renamed"),
        (What::Typed, "of another type"),
        (What::Meta, "with other attributes"),
    ];
    let mut counts = [0usize; WORDS.len()];
    for s in changes {
        for (count, (what, _)) in counts.iter_mut().zip(WORDS) {
            *count += usize::from(s.change.what == what);
        }
    }
    let parts: Vec<String> = counts
        .iter()
        .zip(WORDS)
        .filter(|(n, _)| **n > 0)
        .map(|(n, (_, word))| format!("{n} {word}"))
        .collect();
    if parts.is_empty() { "no changes".into() } else { parts.join(", ") }
}
