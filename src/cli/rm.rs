//! `sbx-fuse rm`: sessions thrown away.

use super::context;
use super::output::{self, confirm};
use crate::base::Result;
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
    let mut gone = Vec::new();
    for name in &args.names {
        let session = store.get(name);
        if let Err(e) = &session
            && e.kind == crate::base::ErrorKind::Usage
        {
            return session.map(|_| 0);
        }
        let lock = store.lock(name, Role::Command)?;
        // A session that cannot be read holds who knows what: ask, too.
        let archived = session.as_ref().ok().filter(|s| s.archived.is_some()).cloned();
        let count = |mut s: Session| match &s.archived {
            Some(archived) => Ok(archived.changes),
            None => context::count_changes(&mut s, &lock),
        };
        let what = match session.and_then(count) {
            Ok(0) => None,
            Ok(n) => Some(output::count(n, "change", "changes")),
            Err(e) => {
                output::error(&e);
                Some("whatever it holds".to_owned())
            }
        };
        if let Some(what) = what
            && !confirm(&format!("Throw session {name} away, with {what} not applied?"), args.yes)?
        {
            continue;
        }
        match &archived {
            Some(session) => store.remove_with_archive(session, &lock, false)?,
            None => store.remove(name, &lock)?,
        }
        output::note(&format!("session {name} is gone"));
        gone.push(name);
    }
    output::answer(args.json, &gone)?;
    Ok(0)
}
