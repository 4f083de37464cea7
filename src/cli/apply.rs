//! `sbx-fuse apply`: changes made real.

use super::changes::{line, summary};
use super::context::Opened;
use super::output::{self, Out, bar, confirm};
use super::overlaps::overlaps;
use super::{Which, paths};
use crate::base::{ErrorKind, RelPath, Result, quote};
use crate::journal::Op;
use crate::review::{self, Conflict, Plan, Report, Settled};
use crate::session::Session;
use clap::Args;
use std::path::PathBuf;

/// Make changes real
///
/// All of them, or those at or beneath the paths given together with what they need (new directories above them,
/// renames out of what is replaced). It is done whole or not at all. If a real file is no longer what it was when the
/// session first changed it, nothing is touched, the conflicts are listed, and the exit code is 3. What was applied
/// leaves the session.
#[derive(Debug, Args)]
pub(super) struct ApplyArgs {
    #[command(flatten)]
    which: Which,
    /// Only show what would be done
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Do not ask
    #[arg(short = 'y', long)]
    yes: bool,
    /// Only changes at or beneath these
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
}

pub(super) fn run(args: ApplyArgs) -> Result<u8> {
    let mut opened = Opened::open(&args.which)?;
    let set = opened.settled()?;
    let selection = paths::select(&opened.session, &args.paths, &set)?;
    let plan = review::plan(&set, &selection)?;
    let name = opened.session.name.clone();
    if plan.changes.is_empty() {
        output::note(&format!("session {name} has no changes to apply"));
        return Ok(0);
    }
    let folded = &opened.folded;
    let replaced = |root: u16, path: &RelPath| folded.replaced.get(&(root, path.clone())).cloned();
    let conflicts = review::check(&opened.roots, &plan.changes, &replaced)?;
    if !conflicts.is_empty() {
        return refuse(&opened.session, &conflicts);
    }
    show_pulled(&opened.session, &plan);
    if args.dry_run {
        return dry_run(&opened.session, &plan);
    }
    for sentence in overlaps(&opened.session, &plan.changes)? {
        output::note(&sentence);
    }
    let what = summary(&plan.changes);
    if !confirm(&format!("Apply {what} to {}?", targets(&opened.session, &plan.changes)), args.yes)? {
        output::note("nothing was applied");
        return Ok(ErrorKind::Failure.exit_code());
    }
    let report = carry_out(&mut opened, &plan)?;
    tell(&opened.session, &what, &report);
    Ok(0)
}

fn carry_out(opened: &mut Opened, plan: &Plan) -> Result<Report> {
    let progress = bar(plan.steps.len() as u64, "applying");
    let report = opened.with_dropper(Op::Applied, |roots, dropper| {
        review::apply(roots, plan, dropper, &mut |p| {
            progress.set_length(p.total as u64);
            progress.set_position(p.done as u64);
            progress.set_message(p.path.to_string());
        })
    });
    progress.finish_and_clear();
    report
}

fn refuse(session: &Session, conflicts: &[Conflict]) -> Result<u8> {
    let mut out = Out::new();
    for c in conflicts {
        let path = quote(&paths::shown(session, c.root, &c.path));
        out.line(&format!("conflict {path}: {}", c.why.sentence()))?;
    }
    out.flush()?;
    let n = output::count(conflicts.len(), "conflict", "conflicts");
    output::note(&format!(
        "{n}: the real files are not what session {} was based on; nothing was applied\nhint: apply other paths by \
         name, or drop these changes: sbx-fuse discard -s {} PATH...",
        session.name, session.name
    ));
    Ok(ErrorKind::Conflict.exit_code())
}

fn show_pulled(session: &Session, plan: &Plan) {
    for &i in &plan.pulled {
        if let Some(s) = plan.changes.get(i) {
            let path = quote(&paths::shown(session, s.change.root, &s.change.path));
            output::note(&format!("{path} is applied as well: what was selected needs it"));
        }
    }
}

fn dry_run(session: &Session, plan: &Plan) -> Result<u8> {
    let mut out = Out::new();
    for s in &plan.changes {
        let text = line(&out, session, s);
        out.line(&text)?;
    }
    out.flush()?;
    output::note(&format!("would apply {} (nothing was done)", summary(&plan.changes)));
    Ok(0)
}

/// The roots that the changes are in.
fn targets(session: &Session, changes: &[Settled]) -> String {
    let mut roots: Vec<u16> = changes.iter().map(|s| s.change.root).collect();
    roots.dedup();
    let names: Vec<String> = roots
        .iter()
        .filter_map(|&r| session.meta.roots.get(usize::from(r)))
        .map(|r| r.path.to_string())
        .collect();
    names.join(", ")
}

fn tell(session: &Session, what: &str, report: &Report) {
    for warning in &report.warnings {
        output::note(&format!("warning: {warning}"));
    }
    for (root, path) in &report.kept {
        let path = quote(&paths::shown(session, *root, path));
        output::note(&format!("{path} was applied, and stays in the session: it changed again meanwhile"));
    }
    output::note(&format!("applied: {what} (session {})", session.name));
}
