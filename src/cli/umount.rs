//! `sbx-fuse umount`: a mount ended.

use super::context;
use super::output;
use crate::base::{Error, Result, quote};
use crate::session::{Session, Store};
use clap::Args;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a server may take to close its journal after the unmount.
const PATIENCE: Duration = Duration::from_secs(30);

/// Unmount a session
///
/// Its changes stay in the session.
#[derive(Debug, Args)]
pub(super) struct UmountArgs {
    /// The mount point, or the session's name
    #[arg(value_name = "MOUNTPOINT|NAME")]
    target: PathBuf,
}

pub(super) fn run(args: UmountArgs) -> Result<u8> {
    let mut session = find(&Store::open()?, &args.target)?;
    let name = session.name.clone();
    context::heal(&session)?;
    match context::connect(&session)? {
        Some(mut client) => {
            if session.meta.mountpoint.is_none() {
                return Err(Error::failure(format!(
                    "session {name} runs a command and is not mounted for others"
                ))
                .hint("it ends with its command"));
            }
            client.umount()?;
            drop(client);
            wait_for_end(&session)?;
            output::note(&format!("session {name} is unmounted"));
        }
        None => {
            let lock = session.lock()?;
            let roots = context::root_dirs(&session)?;
            let said = context::settle_down(&mut session, &lock, &roots)?.1;
            if said.is_empty() {
                return Err(Error::usage(format!("session {name} is not mounted"))
                    .hint("what is mounted: sbx-fuse ls"));
            }
            output::notes(&said);
        }
    }
    Ok(0)
}

/// By name; or by where it is mounted.
fn find(store: &Store, target: &Path) -> Result<Session> {
    let text = target.as_os_str().as_bytes();
    let is_name = !text.contains(&b'/') && !text.starts_with(b".");
    let named = target.to_str().filter(|_| is_name).map(|name| store.get(name));
    if let Some(Ok(session)) = named {
        return Ok(session);
    }
    // A dead mount cannot be looked at: make the path absolute by itself then.
    let at =
        target.canonicalize().or_else(|_| std::path::absolute(target)).unwrap_or_else(|_| target.to_owned());
    let all = store.list()?;
    let mounted = |s: &Session| s.meta.mountpoint.as_ref().is_some_and(|m| m.as_path() == at);
    all.into_iter().filter_map(|(_, s)| s.ok()).find(mounted).ok_or_else(|| {
        Error::usage(format!("{} is neither a session nor the mount point of one", quote(text)))
            .hint("see: sbx-fuse ls")
    })
}

fn wait_for_end(session: &Session) -> Result<()> {
    let start = Instant::now();
    while session.holder()?.is_some() {
        if start.elapsed() > PATIENCE {
            return Err(Error::failure(format!("the server of session {} does not end", session.name))
                .hint("programs may still have files of the mount open"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
