//! `sbx-fuse run`: a command on a private view.

use super::allowance::AllowanceArgs;
use super::job::{self, Confine, Job};
use super::{context, output};
use crate::base::{Error, Result};
use crate::sandbox::{self, Inherited};
use crate::session::{Lock, Role, Session, Store, choose_roots};
use clap::Args;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The exit code when we failed and not the command, as env(1) and others have it.
pub(super) const OUR_FAILURE: u8 = 125;

/// Run a command on a private, writable view of real directories
///
/// The command sees your files as they are; what it writes beneath the roots stays in the session, and everything else
/// is read-only. The network is off unless --net is given.
#[derive(Debug, Args)]
pub(super) struct RunArgs {
    /// A directory the command may write to; may be given several times [default: the enclosing git work tree, else
    /// the current directory]
    #[arg(long = "root", value_name = "PATH")]
    roots: Vec<PathBuf>,
    /// The session to go on with, or the name of a new one
    #[arg(short = 's', long, value_name = "NAME")]
    session: Option<String>,
    /// Throw the session away at the end, whatever changed
    #[arg(long)]
    rm: bool,
    #[command(flatten)]
    confine: Confine,
    #[command(flatten)]
    allowance: AllowanceArgs,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// The last step before the command, inside the sandbox.
#[derive(Debug, Args)]
pub(super) struct InsideArgs {
    #[arg(long)]
    ready: i32,
    #[arg(long, value_delimiter = ',')]
    default_signals: Vec<i32>,
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// The hidden command: becomes the command, or says why not with the exit code a shell gives.
pub(super) fn inside(args: InsideArgs) -> Result<u8> {
    sandbox::tell_ready(args.ready);
    let (code, why) = sandbox::exec(&args.default_signals, &args.command)?;
    output::note(&why);
    Ok(code)
}

pub(super) fn run(args: RunArgs) -> Result<u8> {
    let inherited = Inherited::note();
    let store = Store::open()?;
    let cwd = std::env::current_dir().map_err(|e| Error::sys("find the current directory", e))?;
    let (mut session, made) =
        find_or_make(&store, args.session.as_deref(), &args.roots, &cwd, args.allowance.exclusive)?;
    args.allowance.keep(&mut session)?;
    let mut lock = session.lock_as(Role::Server)?;
    let job = Job { confine: args.confine, command: args.command, cwd, inherited };
    match job::host(&job, &store, &mut session, &mut lock) {
        Ok((code, changes)) => {
            wind_up(&store, &session, &lock, args.rm, changes)?;
            Ok(code)
        }
        // A session that was made for nothing is not left behind.
        Err(e) if made => match store.remove(&session.name, &lock) {
            Ok(()) => Err(e),
            Err(also) => Err(Error { causes: [e.causes, vec![also.message]].concat(), ..e }),
        },
        Err(e) => Err(e),
    }
}

/// The session to run in, and whether it was made just now.
pub(super) fn find_or_make(
    store: &Store,
    name: Option<&str>,
    named: &[PathBuf],
    cwd: &Path,
    exclusive: bool,
) -> Result<(Session, bool)> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let existing = name.filter(|n| has(store, n));
    let Some(name) = existing else {
        let roots = choose_roots(named, cwd, home.as_deref(), store.dir())?;
        return Ok((store.create(name, &roots, exclusive)?, true));
    };
    let session = store.get(name)?;
    context::heal(&session)?;
    if exclusive && !session.meta.exclusive {
        return Err(Error::usage(format!("session {name} was made without --exclusive"))
            .hint("choose another name, which makes a new session"));
    }
    if !named.is_empty() {
        let roots = choose_roots(named, cwd, home.as_deref(), store.dir())?;
        let same =
            roots.iter().map(|r| r.path.as_path()).eq(session.meta.roots.iter().map(|r| r.path.as_path()));
        if !same {
            let has: Vec<String> = session.meta.roots.iter().map(|r| r.path.to_string()).collect();
            return Err(Error::usage(format!("session {name} has other roots: {}", has.join(" ")))
                .hint("leave --root out to go on with it, or choose another name"));
        }
    }
    Ok((session, false))
}

fn has(store: &Store, name: &str) -> bool {
    store.dir().join("sessions").join(name).symlink_metadata().is_ok()
}

/// Says what changed and what to do next; removes a session that is not wanted any more.
fn wind_up(
    store: &Store,
    session: &Session,
    lock: &Lock,
    rm: bool,
    (summary, n): (String, usize),
) -> Result<()> {
    let name = &session.name;
    if rm {
        store.remove(name, lock)?;
        output::note(&match n {
            0 => "no changes; the session is gone".into(),
            _ => format!("{summary}; thrown away with session {name} (--rm)"),
        });
    } else if n == 0 && !session.meta.named {
        store.remove(name, lock)?;
        output::note("no changes");
    } else if n == 0 {
        output::note(&format!("no changes in session {name}"));
    } else {
        output::note(&format!("{summary} in session {name}; see: sbx-fuse diff -s {name}"));
    }
    Ok(())
}
