//! `sbx-fuse ps`: the processes of sessions.

use super::output::{Out, time};
use super::{Which, context};
use crate::base::Result;
use crate::session::{Process, Session, Store, processes};
use clap::Args;
use serde::Serialize;

/// List the processes of a session, daemons included
#[derive(Debug, Args)]
pub(super) struct PsArgs {
    #[command(flatten)]
    which: Which,
    /// Of all sessions
    #[arg(short, long, conflicts_with = "session")]
    all: bool,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Row {
    session: String,
    #[serde(flatten)]
    process: Process,
}

/// The processes that a session's commands started: the sandboxes' own are left out.
pub(super) fn of(session: &Session) -> Result<Vec<Process>> {
    Ok(processes(&session.meta.id)?.into_iter().filter(|p| p.pid != p.sandbox).collect())
}

pub(super) fn run(args: PsArgs) -> Result<u8> {
    let sessions: Vec<Session> = if args.all {
        Store::open()?.list()?.into_iter().filter_map(|(_, s)| s.ok()).collect()
    } else {
        vec![context::select(&args.which)?]
    };
    let mut rows = Vec::new();
    for session in &sessions {
        rows.extend(of(session)?.into_iter().map(|process| Row { session: session.name.clone(), process }));
    }
    let mut out = Out::new();
    if args.json {
        out.json(&rows)?;
    } else if !rows.is_empty() {
        let width = rows.iter().map(|r| r.session.len()).max().unwrap_or(0).max(7);
        out.line(&format!(
            "{:width$}  {:>7}  {:>7}  S  {:19}  COMMAND",
            "SESSION", "PID", "PARENT", "STARTED"
        ))?;
        for Row { session, process: p } in &rows {
            let started = time(p.started);
            let started = started.get(..19).unwrap_or_default();
            let words: Vec<String> = p.argv.iter().map(|w| w.to_string()).collect();
            let command = if words.is_empty() { format!("[{}]", p.comm) } else { words.join(" ") };
            let line = format!(
                "{session:width$}  {:>7}  {:>7}  {}  {started:19}  {command}",
                p.pid, p.parent, p.state
            );
            out.line(&line)?;
        }
    }
    out.flush()?;
    Ok(0)
}
