//! `sbx-fuse diff`: the content of the changes.

use super::context::Opened;
use super::output::Out;
use super::risk::{Noise, Reviewed};
use super::{Which, paths};
use crate::base::Result;
use crate::review::{self, Options, Settled};
use crate::session::PathBytes;
use clap::Args;
use serde::Serialize;
use std::io::IsTerminal;
use std::path::PathBuf;

/// Columns of a `--stat` when the terminal does not tell.
const WIDTH: usize = 80;

/// Show the changes as a unified diff, as git does
///
/// What could run or leak on the host comes first, build output and ignored files last.
#[derive(Debug, Args)]
pub(super) struct DiffArgs {
    #[command(flatten)]
    which: Which,
    /// Only sum up: lines added and removed in each file
    #[arg(long)]
    stat: bool,
    /// Print a JSON object: the diff, quoted as text, and a token that pins what was looked at, for apply --reviewed
    #[arg(long, conflicts_with = "stat")]
    json: bool,
    #[command(flatten)]
    noise: Noise,
    /// Only changes at or beneath these
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
}

#[derive(Serialize)]
struct Json {
    token: String,
    diff: PathBytes,
}

pub(super) fn run(args: DiffArgs) -> Result<u8> {
    let opened = Opened::open(&args.which)?;
    let set = opened.settled()?;
    let selection = paths::select(&opened.session, &args.paths, &set)?;
    let token = args.json.then(|| review::token(opened.folded.last_seq, &set));
    let reviewed = Reviewed::new(&opened, set, &args.noise)?;
    let chosen: Vec<Settled> =
        reviewed.ranked().filter(|r| selection.takes(r.settled)).map(|r| r.settled.clone()).collect();
    let mut out = Out::new();
    let options = Options {
        color: out.colored(),
        safe: std::io::stdout().is_terminal(),
        absolute: opened.session.meta.roots.len() > 1,
    };
    if let Some(token) = token {
        let mut diff = Vec::new();
        review::render(&opened.roots, &chosen, Options { color: false, safe: false, ..options }, &mut diff)?;
        out.json(&Json { token, diff: PathBytes(diff) })?;
    } else if args.stat {
        review::stat(&opened.roots, &chosen, options, width(), &mut out)?;
    } else {
        review::render(&opened.roots, &chosen, options, &mut out)?;
    }
    out.flush()?;
    Ok(0)
}

fn width() -> usize {
    let columns = std::env::var("COLUMNS").ok().and_then(|c| c.parse().ok());
    columns.filter(|&c| c >= 20).unwrap_or(WIDTH)
}
