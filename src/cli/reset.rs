//! `sbx-fuse reset`: a session as it was when nothing ran in it.

use super::context;
use super::output::{self, confirm};
use super::stop::{self, Grace};
use crate::base::Result;
use crate::session::{Store, empty_session};
use clap::Args;
use serde::Serialize;

/// End all processes of a session; with --hard also throw away what it changed
#[derive(Debug, Args)]
pub(super) struct ResetArgs {
    /// The session
    name: String,
    /// Throw away everything that it changed: it is as new then
    #[arg(long)]
    hard: bool,
    /// Do not ask, also when there are changes
    #[arg(short = 'y', long)]
    yes: bool,
    #[command(flatten)]
    grace: Grace,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Json<'a> {
    name: &'a str,
    /// How many processes were ended.
    ended: usize,
    /// Whether its changes are gone.
    hard: bool,
}

pub(super) fn run(args: ResetArgs) -> Result<u8> {
    let store = Store::open()?;
    let name = &args.name;
    let mut session = store.get(name)?;
    stop::wake(&session)?;
    context::heal(&session)?;
    let ended = stop::stop(&session, &args.grace)?.unwrap_or(0);
    let json = Json { name, ended, hard: args.hard };
    let ended = output::count(ended, "process", "processes");
    if !args.hard {
        output::note(&format!("session {name} rests; {ended} ended, its changes are kept"));
        output::answer(args.json, &json)?;
        return Ok(0);
    }
    session = store.get(name)?;
    let lock = session.lock()?;
    // What cannot be counted may be what this is for.
    let what = match context::count_changes(&mut session, &lock) {
        Ok(0) => None,
        Ok(n) => Some(output::count(n, "change", "changes")),
        Err(e) => {
            output::error(&e);
            Some("whatever it holds".to_owned())
        }
    };
    if let Some(what) = &what
        && !confirm(&format!("Throw away {what} of session {name}, not applied?"), args.yes)?
    {
        return Ok(1);
    }
    session.meta.command.clear();
    empty_session(&session, &lock)?;
    session.save_meta()?;
    output::note(&format!("session {name} is as new; {ended} ended"));
    output::answer(args.json, &json)?;
    Ok(0)
}
