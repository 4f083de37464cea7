//! `sbx-fuse ls`: all sessions.

use super::output::{Color, Out, time};
use super::status::State;
use crate::base::Result;
use crate::session::{Archived, PathBytes, Session, Store};
use clap::Args;
use serde::Serialize;

/// List all sessions
#[derive(Debug, Args)]
pub(super) struct LsArgs {
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Row {
    name: String,
    state: State,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    created: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    roots: Vec<PathBytes>,
    command: Vec<PathBytes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    archive: Option<Archived>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

pub(super) fn run(args: LsArgs) -> Result<u8> {
    let mut rows = Vec::new();
    for (name, session) in Store::open()?.list()? {
        rows.push(match session.and_then(|s| row(&s)) {
            Ok(row) => row,
            Err(e) => Row {
                name,
                state: State::Broken,
                id: None,
                created: None,
                pid: None,
                roots: Vec::new(),
                command: Vec::new(),
                archive: None,
                error: Some(e.causes.last().unwrap_or(&e.message).clone()),
            },
        });
    }
    let mut out = Out::new();
    if args.json {
        out.json(&rows)?;
    } else {
        table(&mut out, &rows)?;
    }
    out.flush()?;
    Ok(0)
}

fn row(session: &Session) -> Result<Row> {
    let (state, holder) = State::of(session)?;
    let lost = session.archived.as_ref().is_some_and(|a| a.on_disk().is_none());
    Ok(Row {
        name: session.name.clone(),
        state,
        id: Some(session.meta.id.clone()),
        created: Some(session.meta.created),
        pid: holder.map(|h| h.pid),
        roots: session.meta.roots.iter().map(|r| r.path.clone()).collect(),
        command: session.meta.command.clone(),
        archive: session.archived.clone(),
        error: lost.then(|| "its archive is gone".to_owned()),
    })
}

fn table(out: &mut Out, rows: &[Row]) -> Result<()> {
    let width = rows.iter().map(|r| r.name.len()).max().unwrap_or(0);
    for row in rows {
        let roots: Vec<String> = row.roots.iter().map(PathBytes::to_string).collect();
        let made = row.created.map(time).unwrap_or_default();
        let made = made.get(..16).unwrap_or_default();
        let rest = row.error.clone().unwrap_or_else(|| roots.join(" "));
        let name = out.paint(Color::Bold, &format!("{:width$}", row.name));
        out.line(&format!("{name}  {:8} {made:16}  {rest}", row.state.word()))?;
    }
    Ok(())
}
