//! `sbx-fuse status`: what a session is.

use super::changes::{line, summary};
use super::context::Opened;
use super::output::{Color, Out, time};
use super::risk::{self, Noise, Ranked, Reviewed};
use super::{Which, paths};
use crate::base::{Result, What, quote};
use crate::review::{self, Conflict};
use crate::session::{Holder, PathBytes, Role, Session};
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

/// What a session is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    /// A command runs in it.
    Running,
    /// It is mounted for people to use.
    Mounted,
    /// Nobody has it.
    Resting,
    /// Its files are in an archive.
    Archived,
    /// It cannot be read.
    Broken,
}

impl State {
    /// The state of a session and who holds it.
    pub(super) fn of(session: &Session) -> Result<(State, Option<Holder>)> {
        if session.archived.is_some() {
            return Ok((State::Archived, None));
        }
        let holder = session.holder()?.filter(|h| h.role == Role::Server);
        let state = match (&holder, &session.meta.mountpoint) {
            (None, _) => State::Resting,
            (Some(_), Some(_)) => State::Mounted,
            (Some(_), None) => State::Running,
        };
        Ok((state, holder))
    }

    /// The word for it.
    pub(super) fn word(self) -> &'static str {
        match self {
            State::Running => "running",
            State::Mounted => "mounted",
            State::Resting => "resting",
            State::Archived => "archived",
            State::Broken => "broken",
        }
    }
}

#[derive(Serialize)]
struct Json {
    name: String,
    id: String,
    state: State,
    created: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mountpoint: Option<PathBytes>,
    command: Vec<PathBytes>,
    roots: Vec<PathBytes>,
    directory: PathBytes,
    changes: BTreeMap<What, usize>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    risk: Vec<Risk>,
    drift: Vec<Drift>,
    repaired: Vec<String>,
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
    let (state, holder) = State::of(session)?;
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
        state,
        created: session.meta.created,
        pid: holder.map(|h| h.pid),
        mountpoint: session.meta.mountpoint.clone(),
        command: session.meta.command.clone(),
        roots: session.meta.roots.iter().map(|r| r.path.clone()).collect(),
        directory: PathBytes::from(session.dir.as_path()),
        changes,
        risk: ranked.iter().filter(|r| !r.class.reasons().is_empty()).map(risk).collect(),
        drift: conflicts.iter().map(drift).collect(),
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
    let pid = s.pid.map(|p| format!(" (pid {p})")).unwrap_or_default();
    let state = match (&s.state, &s.mountpoint) {
        (State::Mounted, Some(at)) => format!("mounted at {at}{pid}"),
        (state, _) => format!("{}{pid}", state.word()),
    };
    let name = out.paint(Color::Bold, &s.name);
    out.line(&format!("session  {name}"))?;
    out.line(&format!("state    {state}"))?;
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
