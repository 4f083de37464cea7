//! `sbx-fuse rename`: another name for a session.

use super::{context, output};
use crate::base::Result;
use crate::session::Store;
use clap::Args;
use serde::Serialize;

/// Give a session another name
#[derive(Debug, Args)]
pub(super) struct RenameArgs {
    /// The session
    name: String,
    /// Its new name
    new_name: String,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Json<'a> {
    name: &'a str,
    was: &'a str,
}

pub(super) fn run(args: RenameArgs) -> Result<u8> {
    let store = Store::open()?;
    let session = store.get(&args.name)?;
    context::heal(&session)?;
    let lock = session.lock()?;
    let session = store.rename(session, &args.new_name, &lock)?;
    output::note(&format!("session {} is now {}", args.name, session.name));
    output::answer(args.json, &Json { name: &session.name, was: &args.name })?;
    Ok(0)
}
