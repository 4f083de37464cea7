//! `sbx-fuse discard`: changes thrown away.

use super::changes::{line, summary};
use super::context::Opened;
use super::output::{self, Out, confirm};
use super::{Which, paths};
use crate::base::{ErrorKind, Result, quote};
use crate::journal::Op;
use crate::review;
use clap::Args;
use std::path::PathBuf;

/// Throw changes away
///
/// All of them, or those at or beneath the paths given. The real files are not touched; the session shows them again
/// as they are.
#[derive(Debug, Args)]
pub(super) struct DiscardArgs {
    #[command(flatten)]
    which: Which,
    /// Only show what would be thrown away
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Do not ask
    #[arg(short = 'y', long)]
    yes: bool,
    /// Only changes at or beneath these
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
}

pub(super) fn run(args: DiscardArgs) -> Result<u8> {
    let mut opened = Opened::open(&args.which)?;
    let set = opened.settled()?;
    let selection = paths::select(&opened.session, &args.paths, &set)?;
    let name = opened.session.name.clone();
    let chosen: Vec<_> = set.iter().filter(|s| selection.takes(s)).collect();
    if chosen.is_empty() {
        output::note(&format!("session {name} has no changes to throw away"));
        return Ok(0);
    }
    let what = summary(chosen.iter().copied());
    if args.dry_run {
        review::may_go(&set, &selection)?;
        let mut out = Out::new();
        for s in &chosen {
            let text = line(&out, &opened.session, s);
            out.line(&text)?;
        }
        out.flush()?;
        output::note(&format!("would throw away {what} (nothing was done)"));
        return Ok(0);
    }
    if !confirm(&format!("Throw away {what} of session {name}?"), args.yes)? {
        output::note("nothing was thrown away");
        return Ok(ErrorKind::Failure.exit_code());
    }
    let done = opened
        .with_dropper(Op::Discarded, |roots, dropper| review::discard(roots, &set, &selection, dropper))?;
    for (root, path) in &done.kept {
        let path = quote(&paths::shown(&opened.session, *root, path));
        output::note(&format!("{path} stays: it changed again meanwhile"));
    }
    output::note(&format!("thrown away: {what} (session {name})"));
    Ok(0)
}
