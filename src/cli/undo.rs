//! `sbx-fuse undo`: the last application taken back.

use super::context::Opened;
use super::output::{self, Out, bar, confirm};
use super::{Which, paths};
use crate::base::{ErrorKind, Result, quote};
use crate::journal::Op;
use crate::review::{self, Aftermath, Moved, NoFault, Undone};
use crate::session::Session;
use clap::Args;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Take back what was applied last
///
/// The real files get back their content, mode, times and xattrs, what was deleted and their old names. Said again, it
/// takes back what was applied before that, and so on. Where the real files changed since they were applied, nothing is
/// touched, these are listed, and the exit code is 3; --force goes over one of them. Like discarded changes, undone ones
/// do not return to the session; what an undo replaces is kept in the session's directory until the session is
/// removed.
#[derive(Debug, Args)]
pub(super) struct UndoArgs {
    #[command(flatten)]
    which: Which,
    /// Only say what would be done
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Do not ask
    #[arg(short = 'y', long)]
    yes: bool,
    /// Undo at or beneath this path even though it changed since
    #[arg(long, value_name = "PATH")]
    force: Vec<PathBuf>,
}

pub(super) fn run(args: UndoArgs) -> Result<u8> {
    let mut opened = Opened::open(&args.which)?;
    let mut force = Vec::new();
    for path in &args.force {
        force.extend(paths::locate(&opened.session, path)?);
    }
    let looked = review::undo(&opened.roots, &force, true, &mut |_| {}, &mut NoFault)?;
    let name = opened.session.name.clone();
    let question = match looked {
        Undone::Nothing => {
            output::note(&format!("session {name} has applied nothing that could be undone"));
            return Ok(0);
        }
        Undone::Refused(moved) => return refuse(&opened.session, &moved),
        Undone::Done { time, changes, after, .. } => {
            after.check(&opened.roots, &opened.folded.set, &opened.settled()?)?;
            let n = output::count(changes, "change", "changes");
            format!("{n} applied at {}", output::time(time).get(..19).unwrap_or_default())
        }
    };
    if args.dry_run {
        output::note(&format!("would undo {question} (nothing was done)"));
        return Ok(0);
    }
    if !confirm(&format!("Undo {question}?"), args.yes)? {
        output::note("nothing was undone");
        return Ok(ErrorKind::Failure.exit_code());
    }
    let progress = bar(1, "undoing");
    let undone = review::undo(
        &opened.roots,
        &force,
        false,
        &mut |p| {
            progress.set_length(p.total as u64);
            progress.set_position(p.done as u64);
            progress.set_message(p.path.to_string());
        },
        &mut NoFault,
    );
    progress.finish_and_clear();
    match undone? {
        Undone::Nothing => output::note("nothing was undone: another command was first"),
        Undone::Refused(moved) => return refuse(&opened.session, &moved),
        Undone::Done { kept, mut warnings, after, .. } => {
            warnings.extend(settle_session(&mut opened, &after).err());
            for warning in &warnings {
                output::note(&format!("warning: {warning}"));
            }
            let kept = quote(kept.as_os_str().as_bytes());
            output::note(&format!(
                "undone: {question} (session {name}); what it had applied is kept in {kept}"
            ));
        }
    }
    Ok(0)
}

/// What is left in the session is a change of the real files as they are now; what is undone does not come back into it.
fn settle_session(opened: &mut Opened, after: &Aftermath) -> Result<()> {
    let strays = after.strays(&opened.roots, &opened.folded.set)?;
    if !strays.is_empty() {
        opened.with_dropper(Op::Discarded, |_, dropper| {
            strays.iter().try_for_each(|(root, path)| dropper.drop(*root, path, None).map(drop))
        })?;
        opened.refold()?;
    }
    let moved = after.moved(&opened.roots, &opened.settled()?, opened.live.is_none())?;
    let mut said = Vec::new();
    if !moved.is_empty() {
        super::review::note(opened, moved, &mut said)?;
    }
    output::notes(&said);
    Ok(())
}

fn refuse(session: &Session, moved: &[Moved]) -> Result<u8> {
    let mut out = Out::new();
    for m in moved {
        let path = quote(&paths::shown(session, m.root, &m.path));
        out.line(&format!("moved on {path}: {}", m.why))?;
    }
    out.flush()?;
    let n = output::count(moved.len(), "path", "paths");
    output::note(&format!(
        "the real files changed at {n} since they were applied; nothing was undone\nhint: go over one with --force \
         PATH; what is there then is kept"
    ));
    Ok(ErrorKind::Conflict.exit_code())
}
