//! `sbx-fuse stop`: everything that uses a session ended.

use super::context;
use super::output;
use crate::base::{Errno, Error, Result};
use crate::session::{Holder, Role, Session, Store, end_processes, let_go_on};
use crate::sys::proc;
use clap::Args;
use serde::Serialize;
use std::time::{Duration, Instant};

/// How long a mount may be in use after the last process of the session: its end is seen a little before its files are
/// closed, and commands that joined take a moment to leave.
const BUSY: Duration = Duration::from_secs(5);

/// How long a server may take to close its journal after its last process.
const PATIENCE: Duration = Duration::from_secs(30);

/// End all processes of sessions, and unmount them
///
/// Processes get SIGTERM, and SIGKILL if they do not end in time; none survives, also no daemon. What was changed stays in
/// the session.
#[derive(Debug, Args)]
pub(super) struct StopArgs {
    /// The sessions
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    #[command(flatten)]
    grace: Grace,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

/// What became of one session.
#[derive(Serialize)]
struct Stopped<'a> {
    name: &'a str,
    /// Whether anything used it.
    stopped: bool,
    /// How many processes were ended.
    ended: usize,
}

/// How long to wait before processes are killed.
#[derive(Debug, Args)]
pub(super) struct Grace {
    /// How many seconds processes have to end by themselves
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    grace: u64,
}

pub(super) fn run(args: StopArgs) -> Result<u8> {
    let store = Store::open()?;
    let mut all = Vec::new();
    for name in &args.names {
        let session = store.get(name)?;
        wake(&session)?;
        context::heal(&session)?;
        let ended = stop(&session, &args.grace)?;
        output::note(&match ended {
            None => format!("session {name} rests already"),
            Some(n) => {
                format!("session {name} is stopped; {} ended", output::count(n, "process", "processes"))
            }
        });
        all.push(Stopped { name, stopped: ended.is_some(), ended: ended.unwrap_or(0) });
    }
    output::answer(args.json, &all)?;
    Ok(0)
}

/// Lets a server go on that was stopped, so that it can be asked and can end.
///
/// # Errors
/// When it cannot be sent a signal.
pub(super) fn wake(session: &Session) -> Result<()> {
    match session.holder()? {
        Some(Holder { role: Role::Server, pid, .. }) if proc::is_stopped(pid) => let_go_on(pid),
        _ => Ok(()),
    }
}

/// Stops a session; returns how many processes were ended, or `None` when there was nothing to stop.
///
/// # Errors
/// When a process does not end, or a program that is not of the session uses its mount.
pub(super) fn stop(session: &Session, grace: &Grace) -> Result<Option<usize>> {
    let served = session.holder()?.is_some_and(|h| h.role == Role::Server);
    let ended = end_processes(&session.meta.id, Duration::from_secs(grace.grace))?;
    let name = &session.name;
    let start = Instant::now();
    let mut unmounted = false;
    while let Some(holder) = session.holder()?.filter(|h| h.role == Role::Server) {
        if !unmounted
            && session.meta.mountpoint.is_some()
            && let Some(mut client) = context::connect(session)?
        {
            match client.umount() {
                Ok(()) => unmounted = true,
                Err(e) if start.elapsed() > BUSY && e.errno == Some(Errno::EBUSY) => return Err(e),
                Err(e) if start.elapsed() > BUSY => {
                    return Err(e.context(format!("the mount of session {name} is in use")));
                }
                Err(_) => {}
            }
        }
        if start.elapsed() > PATIENCE {
            return Err(Error::failure(format!(
                "the server of session {name} (pid {}) does not end",
                holder.pid
            ))
            .hint(format!("programs may still have files of the mount open; or kill {}", holder.pid)));
        }
        // A command that was just starting when the others were ended.
        end_processes(&session.meta.id, Duration::ZERO)?;
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok((served || ended > 0).then_some(ended))
}
