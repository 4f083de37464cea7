//! `sbx-fuse apply`: changes made real.

use super::changes::{line, summary};
use super::context::Opened;
use super::output::{self, Out, bar, confirm};
use super::overlaps::overlaps;
use super::risk::{Noise, Reviewed};
use super::take::Taken;
use super::{Which, paths};
use crate::base::{ErrorKind, RelPath, Result, What, quote};
use crate::journal::Op;
use crate::review::{self, Conflict, Plan, Policy, Report, Selection, Settled};
use crate::session::Session;
use clap::{Args, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;

/// Make changes real
///
/// All of them, or those at or beneath the paths given together with what they need (new directories above them,
/// renames out of what is replaced). It is done whole or not at all. If a real file is no longer what it was when the
/// session first changed it, nothing is touched, the conflicts are listed, and the exit code is 3. What was applied
/// leaves the session; `undo` takes it back.
#[derive(Debug, Args)]
pub(super) struct ApplyArgs {
    #[command(flatten)]
    which: Which,
    /// Only show what would be done
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Merge text that both sides changed, line by line; lines that both changed get conflict markers in the session's
    /// file, and nothing is applied
    #[arg(long)]
    merge: bool,
    /// In a conflict, take this side: session (the real file is replaced) or real (the change is discarded); at or
    /// beneath a path, or everywhere
    #[arg(long, value_name = "SIDE[:PATH]")]
    take: Vec<OsString>,
    /// Refuse what changed since this token was given (by changes --json or diff --json)
    #[arg(long, value_name = "TOKEN")]
    reviewed: Option<String>,
    /// Whether changes of permission bits of real files are carried out
    #[arg(long, value_enum, default_value = "apply")]
    perms: Perms,
    /// Let set-uid and set-gid bits and file capabilities through, which are left out otherwise
    #[arg(long)]
    allow_privileged: bool,
    /// Do not ask
    #[arg(short = 'y', long)]
    yes: bool,
    #[command(flatten)]
    noise: Noise,
    /// Only changes at or beneath these
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
}

/// What `--perms` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Perms {
    /// As the session has them
    Apply,
    /// Ask once for all
    Ask,
    /// Leave the real ones; what only has another mode stays in the session
    Skip,
}

pub(super) fn run(args: ApplyArgs) -> Result<u8> {
    let mut opened = Opened::open(&args.which)?;
    let mut set = opened.settled()?;
    let policy = policy(&args, &set)?;
    if policy.perms == review::Perms::Skip {
        set.retain(|s| s.change.what != What::Meta || !only_mode(s));
    }
    if args.noise.no_ignored {
        set = Reviewed::new(&opened, set, &args.noise)?.set;
    }
    let selection = paths::select(&opened.session, &args.paths, &set)?;
    let mut plan = review::plan(&set, &selection)?;
    let name = opened.session.name.clone();
    if plan.changes.is_empty() {
        output::note(&format!("session {name} has no changes to apply"));
        return Ok(0);
    }
    if let Some(token) = &args.reviewed {
        let later = review::changed_since(token, &plan.changes)?;
        if !later.is_empty() {
            return refuse_unseen(&opened.session, &later);
        }
    }
    let sides = super::take::sides(&opened.session, &args.take, &set)?;
    let mut conflicts = super::take::conflicts(&opened, &plan.changes)?;
    if args.merge && !args.dry_run && !conflicts.is_empty() {
        let moved = super::rebase::move_bases(&mut opened, &set, &conflicts, true)?;
        if !moved.marked.is_empty() {
            return refuse_marked(&opened.session, &moved.marked);
        }
        if moved.solved > 0 {
            set = opened.settled()?;
            plan = review::plan(&set, &selection)?;
            conflicts = super::take::conflicts(&opened, &plan.changes)?;
        }
    }
    let taken = super::take::choose(conflicts, &sides, &plan.changes);
    if !taken.left.is_empty() {
        return refuse(&opened.session, &taken);
    }
    if !taken.real.is_empty() {
        if args.dry_run {
            output::note(&format!(
                "would throw away {} the real files are preferred to",
                output::count(taken.real.len(), "change", "changes")
            ));
        } else {
            let drop = Selection::Paths(taken.real.clone());
            opened
                .with_dropper(Op::Discarded, |roots, dropper| review::discard(roots, &set, &drop, dropper))?;
            opened.refold()?;
        }
        set.retain(|s| !taken.real.contains(&(s.change.root, s.change.path.clone())));
        plan = review::plan(&set, &selection)?;
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
    // The plan has what of it is applied: memory goes with the number of changes.
    drop(set);
    let report = carry_out(&mut opened, &plan, policy)?;
    tell(&opened.session, &what, &report);
    Ok(0)
}

fn carry_out(opened: &mut Opened, plan: &Plan, policy: Policy) -> Result<Report> {
    let progress = bar(plan.steps.len() as u64, "applying");
    let report = opened.with_dropper(Op::Applied, |roots, dropper| {
        let mut tell = |p: review::Progress<'_>| {
            progress.set_length(p.total as u64);
            progress.set_position(p.done as u64);
            progress.set_message(p.path.to_string());
        };
        review::apply_with(roots, plan, policy, dropper, &mut tell, &mut review::NoFault)
    });
    progress.finish_and_clear();
    report
}

fn policy(args: &ApplyArgs, set: &[Settled]) -> Result<Policy> {
    let perms = match args.perms {
        Perms::Apply => review::Perms::Apply,
        Perms::Skip => review::Perms::Skip,
        Perms::Ask => {
            let n = set.iter().filter(|s| s.meta.mode.is_some()).count();
            let question =
                format!("Change the permissions of {}?", output::count(n, "real file", "real files"));
            let yes = n == 0 || confirm(&question, false)?;
            if yes { review::Perms::Apply } else { review::Perms::Skip }
        }
    };
    Ok(Policy { perms, privileged: args.allow_privileged })
}

/// Whether the mode is all that differs.
fn only_mode(s: &Settled) -> bool {
    s.meta.mode.is_some() && s.meta.owner.is_none() && s.meta.xattrs.is_empty() && s.meta.mtime.is_none()
}

fn refuse_unseen(session: &Session, later: &[(u16, RelPath)]) -> Result<u8> {
    let mut out = Out::new();
    for (root, path) in later {
        let path = quote(&paths::shown(session, *root, path));
        out.line(&format!("not reviewed {path}: the session changed it since the token was given"))?;
    }
    out.flush()?;
    let n = output::count(later.len(), "change", "changes");
    output::note(&format!(
        "{n} came after the review; nothing was applied\nhint: look again, or apply other paths by name"
    ));
    Ok(ErrorKind::Conflict.exit_code())
}

fn refuse(session: &Session, taken: &Taken) -> Result<u8> {
    let mut out = Out::new();
    for c in &taken.left {
        let path = quote(&paths::shown(session, c.root, &c.path));
        let only_real = taken.only_real.contains(&(c.root, c.path.clone()));
        let end = if only_real { "; only --take real solves this" } else { "" };
        out.line(&format!("conflict {path}: {}{end}", c.why.sentence()))?;
    }
    out.flush()?;
    let n = output::count(taken.left.len(), "conflict", "conflicts");
    let ways = if taken.only_real.len() == taken.left.len() {
        "choose the real side of these with --take real:PATH"
    } else {
        "merge text with --merge, choose a side with --take"
    };
    output::note(&format!(
        "{n}: the real files are not what session {} was based on; nothing was applied\nhint: apply other paths by \
         name, {ways}, or drop these changes: sbx-fuse discard -s {} PATH...",
        session.name, session.name
    ));
    Ok(ErrorKind::Conflict.exit_code())
}

fn refuse_marked(session: &Session, marked: &[Conflict]) -> Result<u8> {
    let mut out = Out::new();
    for c in marked {
        let path = quote(&paths::shown(session, c.root, &c.path));
        out.line(&format!(
            "conflict {path}: both sides changed the same lines; its markers are in the session's file"
        ))?;
    }
    out.flush()?;
    output::note(&format!(
        "nothing was applied\nhint: resolve them in the session (sbx-fuse run -s {} -- EDITOR FILE), then apply again",
        session.name
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
    for (root, path) in &report.stripped {
        let path = quote(&paths::shown(session, *root, path));
        output::note(&format!(
            "warning: {path} was applied without its set-uid or set-gid bit or capabilities (--allow-privileged keeps them)"
        ));
    }
    for (root, path) in &report.kept {
        let path = quote(&paths::shown(session, *root, path));
        output::note(&format!("{path} was applied, and stays in the session: it changed again meanwhile"));
    }
    output::note(&format!("applied: {what} (session {})", session.name));
}
