//! `sbx-fuse status`: what a session is.

use super::changes::{line, summary};
use super::context::Opened;
use super::output::{Color, Out, time};
use super::overlaps::overlaps;
use super::risk::{self, Noise, Ranked, Reviewed};
use super::state::{State, Told};
use super::{Which, paths};
use crate::base::{Result, What, quote};
use crate::review::{self, Conflict};
use crate::session::{PathBytes, Session};
use clap::Args;
use serde::Serialize;
use std::collections::BTreeMap;

/// Show what a session is: mounted or not, how much it changed, whether the real files moved on
#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    #[command(flatten)]
    which: Which,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Json {
    name: String,
    id: String,
    #[serde(flatten)]
    told: Told,
    created: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    mountpoint: Option<PathBytes>,
    command: Vec<PathBytes>,
    roots: Vec<PathBytes>,
    directory: PathBytes,
    changes: BTreeMap<What, usize>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    risk: Vec<Risk>,
    drift: Vec<Drift>,
    originals: Originals,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    overlaps: Vec<String>,
    repaired: Vec<String>,
}

/// What applying replaced and is kept for an undo.
#[derive(Serialize)]
struct Originals {
    applications: usize,
    bytes: u64,
}

#[derive(Serialize)]
struct Risk {
    path: PathBytes,
    why: Vec<String>,
}

#[derive(Serialize)]
struct Drift {
    path: PathBytes,
    why: String,
}

pub(super) fn run(args: StatusArgs) -> Result<u8> {
    let opened = Opened::open(&args.which)?;
    let set = opened.settled()?;
    let replaced =
        |root: u16, path: &crate::base::RelPath| opened.folded.replaced.get(&(root, path.clone())).cloned();
    let conflicts = review::check(&opened.roots, &set, &replaced)?;
    let reviewed = Reviewed::new(&opened, set, &Noise { no_ignored: false })?;
    let (set, ranked) = (&reviewed.set, reviewed.ranked().collect::<Vec<_>>());
    let session = &opened.session;
    let told = Told::of(session)?;
    let kept = review::kept(&session.applied_dir())?;
    let mut changes = BTreeMap::new();
    for s in set {
        *changes.entry(s.change.what).or_default() += 1;
    }
    let drift = |c: &Conflict| Drift {
        path: PathBytes(paths::shown(session, c.root, &c.path)),
        why: c.why.sentence(),
    };
    let risk = |r: &Ranked<'_>| Risk {
        path: PathBytes(paths::shown(session, r.settled.change.root, &r.settled.change.path)),
        why: r.class.reasons().to_vec(),
    };
    let json = Json {
        name: session.name.clone(),
        id: session.meta.id.clone(),
        told,
        created: session.meta.created,
        mountpoint: session.meta.mountpoint.clone(),
        command: session.meta.command.clone(),
        roots: session.meta.roots.iter().map(|r| r.path.clone()).collect(),
        directory: PathBytes::from(session.dir.as_path()),
        changes,
        overlaps: overlaps(session, set)?,
        risk: ranked.iter().filter(|r| !r.class.reasons().is_empty()).map(risk).collect(),
        drift: conflicts.iter().map(drift).collect(),
        originals: Originals { applications: kept.len(), bytes: kept.iter().map(|k| k.bytes).sum() },
        repaired: opened.repaired.clone(),
    };
    let mut out = Out::new();
    if args.json {
        out.json(&json)?;
    } else {
        show(&mut out, &json, &summary(set))?;
        show_ranked(&mut out, session, &ranked)?;
    }
    out.flush()?;
    Ok(0)
}

fn show(out: &mut Out, s: &Json, summary: &str) -> Result<()> {
    let pid = s.told.pid.map(|p| format!(" (pid {p})")).unwrap_or_default();
    let state = match (&s.told.state, &s.mountpoint) {
        (State::Mounted, Some(at)) => format!("mounted at {at}{pid}"),
        (state, _) => format!("{}{pid}: {}", state.word(), s.told.why),
    };
    let name = out.paint(Color::Bold, &s.name);
    out.line(&format!("session  {name}"))?;
    out.line(&format!("state    {state}"))?;
    out.line(&format!("way out  {}", s.told.way_out))?;
    out.line(&format!("made     {}", time(s.created).get(..19).unwrap_or_default()))?;
    for root in &s.roots {
        out.line(&format!("root     {root}"))?;
    }
    if !s.command.is_empty() {
        let words: Vec<String> = s.command.iter().map(PathBytes::to_string).collect();
        out.line(&format!("command  {}", words.join(" ")))?;
    }
    out.line(&format!("kept in  {}", s.directory))?;
    out.line(&format!("changes  {summary}"))?;
    if s.originals.applications > 0 {
        let n = super::output::count(s.originals.applications, "application", "applications");
        let size = super::amounts::bytes(s.originals.bytes);
        out.line(&format!("undo     {size} of originals are kept, of {n}"))?;
    }
    for overlap in &s.overlaps {
        out.line(&format!("overlap  {overlap}"))?;
    }
    if !s.drift.is_empty() {
        let n = super::output::count(s.drift.len(), "change", "changes");
        out.line(&format!("drift    {n} can no longer be applied as they are:"))?;
        for d in &s.drift {
            out.line(&format!("         {}: {}", quote(d.path.as_bytes()), d.why))?;
        }
    }
    Ok(())
}

/// Risky changes, all of them, and how much noise there is.
fn show_ranked(out: &mut Out, session: &Session, ranked: &[Ranked<'_>]) -> Result<()> {
    for (i, r) in ranked.iter().filter(|r| !r.class.reasons().is_empty()).enumerate() {
        let head = if i == 0 { "look at " } else { "        " };
        let text = format!("{head} {}{}", line(out, session, r.settled), risk::remark(out, r));
        out.line(&text)?;
    }
    for (i, text) in risk::noise_lines(ranked).into_iter().enumerate() {
        let head = if i == 0 { "noise   " } else { "        " };
        out.line(&format!("{head} {text}"))?;
    }
    Ok(())
}
