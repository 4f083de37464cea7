//! `sbx-fuse run`: a command on a private view.

use super::allowance::AllowanceArgs;
use super::job::{self, Confine, Job};
use super::{context, output, paths};
use crate::base::{Error, ErrorKind, Result};
use crate::sandbox::{self, Caught, EachProcess, Inherited, exit_code};
use crate::session::{ChosenRoot, Home, Lock, Role, Session, Store, add_home, choose_roots};
use clap::Args;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The exit code when we failed and not the command, as env(1) and others have it.
pub(super) const OUR_FAILURE: u8 = 125;

/// Run a command on a private, writable view of real directories
///
/// The command sees your files as they are; what it writes beneath the roots stays in the session, and everything else
/// is read-only. /tmp and /var/tmp are its own, empty at first. The network is off unless --net is given.
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
    /// What becomes of what is written in the home directory, which is read-only otherwise: `private`, the session has a
    /// home of its own that shows yours; `reviewed`, it is one more root
    #[arg(long, value_name = "private|reviewed")]
    home: Option<Home>,
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
    #[arg(long)]
    foreground: bool,
    #[arg(long, value_delimiter = ',')]
    default_signals: Vec<i32>,
    #[arg(long)]
    memory: Option<u64>,
    #[arg(long)]
    pids: Option<u64>,
    #[arg(long)]
    door: Option<i32>,
    #[arg(long)]
    host_loopback: bool,
    #[arg(long)]
    scoped: bool,
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// The hidden command: becomes the command, or says why not with the exit code a shell gives.
pub(super) fn inside(args: InsideArgs) -> Result<u8> {
    // Before it is told: from then on signals are sent to that group.
    sandbox::lead(args.foreground)?;
    sandbox::tell_ready(args.ready)?;
    if args.scoped {
        sandbox::leave_abstract_sockets()?;
    }
    let door = args.door.map(|fd| sandbox::Door { fd, host_loopback: args.host_loopback });
    let env = door.map_or_else(|| Ok(Vec::new()), sandbox::Door::open)?;
    // After the door's helper was started, which the limits are not meant for.
    EachProcess { memory: args.memory, pids: args.pids }.set()?;
    let (code, why) = sandbox::exec(&args.default_signals, env, &args.command)?;
    output::note(&why);
    Ok(code)
}

pub(super) fn run(args: RunArgs) -> Result<u8> {
    let signals = Caught::begin()?;
    let inherited = Inherited::note()?;
    let store = Store::open()?;
    let cwd = paths::cwd()?;
    args.allowance.policy()?;
    let (mut session, made) = find_or_make(
        &store,
        args.session.as_deref(),
        (&args.roots, args.home),
        &cwd,
        args.allowance.exclusive,
    )?;
    let name = session.name.clone();
    let joins = |e: Error| match e.kind {
        ErrorKind::Locked => e.hint(format!("run in it with: sbx-fuse exec {name} -- CMD")),
        _ => e,
    };
    keep(&store, &args.allowance, &mut session, made).map_err(joins)?;
    let mut lock = session.lock_as(Role::Server).map_err(joins)?;
    let job = Job { confine: args.confine, command: args.command, cwd, inherited, signals };
    match job::host(&job, &store, &mut session, &mut lock) {
        Ok((code, changes)) => {
            wind_up(&store, &session, &lock, args.rm, changes)?;
            Ok(code)
        }
        Err(e) => {
            let e = if made { remove_if_unchanged(&store, &mut session, &lock, e) } else { e };
            // A signal to our whole group may have ended what we waited for.
            job.signals.interrupted().map(exit_code).ok_or(e)
        }
    }
}

/// Keeps with the session what it is allowed; one that was made just now is taken away when that cannot be.
///
/// # Errors
/// As [`AllowanceArgs::keep`].
pub(super) fn keep(
    store: &Store,
    allowance: &AllowanceArgs,
    session: &mut Session,
    made: bool,
) -> Result<()> {
    match allowance.keep(session) {
        Err(e) if made => {
            let lock = session.lock()?;
            Err(remove_if_unchanged(store, session, &lock, e))
        }
        kept => kept,
    }
}

/// A session that was made for nothing is not left behind; one that has any change is, whatever went wrong. Returns what
/// went wrong altogether.
pub(super) fn remove_if_unchanged(store: &Store, session: &mut Session, lock: &Lock, e: Error) -> Error {
    let also = match context::count_changes(session, lock) {
        Ok(0) => match store.remove(&session.name, lock) {
            Ok(()) => return e,
            Err(also) => also.message,
        },
        Ok(_) => format!("what had changed is in session {}", session.name),
        Err(also) => format!("session {} stays: {}", session.name, also.message),
    };
    Error { causes: [e.causes, vec![also]].concat(), ..e }
}

/// The session to run in, and whether it was made just now.
pub(super) fn find_or_make(
    store: &Store,
    name: Option<&str>,
    (named, home_mode): (&[PathBuf], Option<Home>),
    cwd: &Path,
    exclusive: bool,
) -> Result<(Session, bool)> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let existing = name.filter(|n| has(store, n));
    let Some(name) = existing else {
        let roots = choose(store, named, home_mode, cwd)?;
        return match store.create(name, &roots, exclusive) {
            Ok(session) => Ok((session, true)),
            // Another command made it just now.
            Err(_) if name.is_some_and(|n| has(store, n)) => {
                find_or_make(store, name, (named, home_mode), cwd, exclusive)
            }
            Err(e) => Err(e),
        };
    };
    let session = store.get(name)?;
    context::heal(&session)?;
    if exclusive && !session.meta.exclusive {
        return Err(Error::usage(format!("session {name} was made without --exclusive"))
            .hint("choose another name, which makes a new session"));
    }
    if home_mode.is_some() {
        return Err(Error::usage(format!("session {name} exists, and --home is settled when one is made"))
            .hint("leave --home out, or choose another name"));
    }
    if !named.is_empty() {
        let roots = choose_roots(named, cwd, home.as_deref(), store.dir())?;
        let theirs: Vec<&Path> = session.meta.roots.iter().map(|r| r.path.as_path()).collect();
        let same = roots.iter().map(|r| r.path.as_path()).eq(theirs.iter().copied());
        if !same {
            let has: Vec<String> = session.meta.roots.iter().map(|r| r.path.to_string()).collect();
            return Err(Error::usage(format!("session {name} has other roots: {}", has.join(" ")))
                .hint("leave --root out to go on with it, or choose another name"));
        }
    }
    Ok((session, false))
}

/// The roots of a new session.
pub(super) fn choose(
    store: &Store,
    named: &[PathBuf],
    home_mode: Option<Home>,
    cwd: &Path,
) -> Result<Vec<ChosenRoot>> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let mut roots = choose_roots(named, cwd, home.as_deref(), store.dir())?;
    if let Some(mode) = home_mode {
        let names = ["XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"];
        let xdg: Vec<PathBuf> = names
            .iter()
            .filter_map(|n| std::env::var_os(n).map(PathBuf::from))
            .filter(|p| p.is_absolute())
            .collect();
        add_home(&mut roots, mode, home.as_deref(), &xdg, store.dir())?;
    }
    Ok(roots)
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
