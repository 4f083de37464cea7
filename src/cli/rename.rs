//! `sbx-fuse rename`: another name for a session.

use super::{context, output};
use crate::base::Result;
use crate::session::Store;
use clap::Args;

/// Give a session another name
#[derive(Debug, Args)]
pub(super) struct RenameArgs {
    /// The session
    name: String,
    /// Its new name
    new_name: String,
}

pub(super) fn run(args: RenameArgs) -> Result<u8> {
    let store = Store::open()?;
    let session = store.get(&args.name)?;
    context::heal(&session)?;
    let lock = session.lock()?;
    let session = store.rename(session, &args.new_name, &lock)?;
    output::note(&format!("session {} is now {}", args.name, session.name));
    Ok(0)
}
