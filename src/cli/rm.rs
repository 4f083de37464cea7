//! `sbx-fuse rm`: sessions thrown away.

use super::context;
use super::output::{self, confirm};
use crate::base::{ErrorKind, Result};
use crate::session::{Role, Session, Store};
use clap::Args;

/// Throw sessions away, with everything they changed
///
/// The real directories are not touched. A session that is in use is refused. Of an archived one the archive goes, too,
/// unless it was written elsewhere with -o.
#[derive(Debug, Args)]
pub(super) struct RmArgs {
    /// The sessions
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// Do not ask, also when there are changes
    #[arg(short = 'y', long)]
    yes: bool,
    /// Print a JSON array of the names of those that are gone
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: RmArgs) -> Result<u8> {
    let store = Store::open()?;
    let mut names: Vec<&str> = Vec::new();
    for name in &args.names {
        // A session that cannot be read can be thrown away; only a name that is none is a mistake.
        if let Err(e) = store.get(name)
            && e.kind == ErrorKind::Usage
        {
            return Err(e);
        }
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    let mut gone = Vec::new();
    let done = names.into_iter().try_for_each(|name| {
        if throw_away(&store, name, args.yes)? {
            output::note(&format!("session {name} is gone"));
            gone.push(name);
        }
        Ok(())
    });
    // Also when one could not be: the others are gone all the same.
    output::answer(args.json, &gone)?;
    done.map(|()| 0)
}

/// Whether the session is gone: a person may say no.
fn throw_away(store: &Store, name: &str, yes: bool) -> Result<bool> {
    let session = store.get(name);
    let lock = store.lock(name, Role::Command)?;
    let archived = session.as_ref().ok().filter(|s| s.archived.is_some()).cloned();
    let count = |mut s: Session| match &s.archived {
        Some(archived) => Ok(archived.changes),
        None => context::count_changes(&mut s, &lock),
    };
    // A session that cannot be read holds who knows what: ask, too.
    let what = match session.and_then(count) {
        Ok(0) => None,
        Ok(n) => Some(output::count(n, "change", "changes")),
        Err(e) => {
            output::error(&e);
            Some("whatever it holds".to_owned())
        }
    };
    if let Some(what) = what
        && !confirm(&format!("Throw session {name} away, with {what} not applied?"), yes)?
    {
        return Ok(false);
    }
    match &archived {
        Some(session) => store.remove_with_archive(session, &lock, false)?,
        None => store.remove(name, &lock)?,
    }
    Ok(true)
}
