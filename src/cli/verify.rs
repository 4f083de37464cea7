//! `sbx-fuse verify`: whether journal and files agree.

use super::context::Opened;
use super::output::{self, Out};
use super::{Which, paths};
use crate::base::{Error, ErrorKind, RelPath, Result, What, quote};
use crate::journal::{self, Journal};
use crate::review;
use clap::Args;

/// Compare the journal with a walk of the session's files
///
/// Repairs the journal of a session that rests where they differ, and says what it repaired (exit 1). A live session
/// is only compared.
#[derive(Debug, Args)]
pub(super) struct VerifyArgs {
    #[command(flatten)]
    which: Which,
}

pub(super) fn run(args: VerifyArgs) -> Result<u8> {
    let opened = Opened::open(&args.which)?;
    let name = &opened.session.name;
    let differing = review::compare(&opened.roots, &opened.folded.set)?;
    if differing.paths.is_empty() {
        let n = output::count(differing.scan.len(), "change", "changes");
        output::note(&format!("session {name}: journal and files agree ({n})"));
        return Ok(0);
    }
    let mut out = Out::new();
    for d in &differing.paths {
        let path = quote(&paths::shown(&opened.session, d.root, &d.path));
        out.line(&format!("{path}: the journal says {}, the files say {}", word(&d.fold), word(&d.scan)))?;
    }
    out.flush()?;
    let n = output::count(differing.paths.len(), "path", "paths");
    if opened.live.is_some() {
        output::note(&format!(
            "session {name}: journal and files differ on {n}; it is live, so nothing was repaired"
        ));
        return Ok(ErrorKind::Failure.exit_code());
    }
    let dir = opened.session.journal_dir();
    let (journal, _) = Journal::open(&dir)?;
    review::repair(&opened.roots, &dir, &journal)?;
    journal.close().map_err(|e| Error::sys("close the journal", e))?;
    let left = review::compare(&opened.roots, &journal::fold_dir(&dir)?.set)?.paths.len();
    output::note(&match left {
        0 => format!("session {name}: repaired the journal on {n}"),
        left => format!("session {name}: {left} of {n} are still not as the files say after a repair"),
    });
    Ok(ErrorKind::Failure.exit_code())
}

fn word(found: &Option<(What, Option<RelPath>)>) -> String {
    match found {
        None => "unchanged".into(),
        Some((What::Renamed, Some(from))) => format!("renamed from {from}"),
        Some((what, _)) => format!("{what:?}").to_lowercase(),
    }
}
