//! `sbx-fuse new`: a session made, with nothing running in it.

use super::allowance::AllowanceArgs;
use super::output::Out;
use super::paths;
use crate::base::Result;
use crate::session::{Home, PathBytes, Store};
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;

/// Make a session, for `exec`, `shell` or `mount` to use
///
/// Prints its name.
#[derive(Debug, Args)]
pub(super) struct NewArgs {
    /// Its name [default: a readable random one]
    name: Option<String>,
    /// A directory that commands may write to; may be given several times [default: the enclosing git work tree, else
    /// the current directory]
    #[arg(long = "root", value_name = "PATH")]
    roots: Vec<PathBuf>,
    /// What becomes of what commands write in the home directory: `private`, the session has a home of its own that shows
    /// yours; `reviewed`, it is one more root
    #[arg(long, value_name = "private|reviewed")]
    home: Option<Home>,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    allowance: AllowanceArgs,
}

#[derive(Serialize)]
struct Json<'a> {
    name: &'a str,
    id: &'a str,
    roots: Vec<&'a PathBytes>,
}

pub(super) fn run(args: NewArgs) -> Result<u8> {
    let store = Store::open()?;
    let cwd = paths::cwd()?;
    args.allowance.policy()?;
    let roots = super::run::choose(&store, &args.roots, args.home, &cwd)?;
    let mut session = store.create(args.name.as_deref(), &roots, args.allowance.exclusive)?;
    // It was asked for as such, so that a run without changes does not throw it away.
    if !session.meta.named {
        let _lock = session.lock()?;
        session.meta.named = true;
        session.save_meta()?;
    }
    super::run::keep(&store, &args.allowance, &mut session, true)?;
    let mut out = Out::new();
    if args.json {
        let meta = &session.meta;
        let roots = meta.roots.iter().map(|r| &r.path).collect();
        out.json(&Json { name: &session.name, id: &meta.id, roots })?;
    } else {
        out.line(&session.name)?;
    }
    out.flush()?;
    Ok(0)
}
