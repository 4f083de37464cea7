//! `sbx-fuse exec` and `sbx-fuse shell`: one more command in a session that exists.

use super::job::{self, Confine, Job};
use super::{context, output, paths};
use crate::base::Result;
use crate::sandbox::{Caught, Inherited, exit_code};
use crate::session::Store;
use clap::Args;
use std::ffi::OsString;

/// Run one more command in a session, be it running, mounted or resting
///
/// Several can run at once; all see the same files. The session is not thrown away at the end.
#[derive(Debug, Args)]
pub(super) struct ExecArgs {
    /// The session
    name: String,
    #[command(flatten)]
    confine: Confine,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Open a shell in a session
///
/// It is $SHELL, or /bin/sh.
#[derive(Debug, Args)]
pub(super) struct ShellArgs {
    /// The session
    name: String,
    #[command(flatten)]
    confine: Confine,
}

pub(super) fn run(args: ExecArgs) -> Result<u8> {
    enter(&args.name, args.confine, args.command)
}

pub(super) fn shell(args: ShellArgs) -> Result<u8> {
    let shell = std::env::var_os("SHELL").filter(|s| !s.is_empty()).unwrap_or_else(|| "/bin/sh".into());
    enter(&args.name, args.confine, vec![shell])
}

fn enter(name: &str, confine: Confine, command: Vec<OsString>) -> Result<u8> {
    let signals = Caught::begin()?;
    let inherited = Inherited::note()?;
    let store = Store::open()?;
    let session = store.get(name)?;
    context::heal(&session)?;
    let cwd = paths::cwd()?;
    let job = Job { confine, command, cwd, inherited, signals };
    let (code, summary) = match job::enter(&job, &store, session) {
        Ok(done) => done,
        // A signal to our whole group may have ended what we waited for.
        Err(e) => return job.signals.interrupted().map(exit_code).ok_or(e),
    };
    match summary {
        Some((_, 0)) => output::note(&format!("no changes in session {name}")),
        Some((summary, _)) => {
            output::note(&format!("{summary} in session {name}; see: sbx-fuse diff -s {name}"));
        }
        None => {}
    }
    Ok(code)
}
