//! `sbx-fuse run`: a command on a private view.

use super::changes::summary;
use super::context::{root_dirs, settle_down};
use super::mounting::{self, Way};
use super::output;
use super::serve::{Served, What, runtime_dir};
use crate::base::{Error, Result, quote};
use crate::review;
use crate::sandbox::{self, Bind, Inherited, Outcome, Spec, bwrap_missing, find_program};
use crate::session::{Lock, PathBytes, Role, Session, Store, choose_roots};
use clap::Args;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The exit code when we failed and not the command, as env(1) and others have it.
pub(super) const OUR_FAILURE: u8 = 125;

/// The exit code when the command does not exist.
const NOT_FOUND: u8 = 127;

/// Sockets of services that would act on the host for whoever may connect to them.
const SERVICES: [&str; 8] = [
    "/run/docker.sock",
    "/run/podman/podman.sock",
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/dbus/system_bus_socket",
    "/run/snapd.socket",
    "/run/libvirt/libvirt-sock",
    "/var/lib/lxd/unix.socket",
];

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
    /// Let the command use the network
    #[arg(long)]
    net: bool,
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
    let (mut session, made) = find_or_make(&store, args.session.as_deref(), &args.roots, &cwd)?;
    let mut lock = session.lock_as(Role::Server)?;
    let done = serve_and_run(&args, &store, &mut session, &mut lock, &cwd, inherited);
    match done {
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
) -> Result<(Session, bool)> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let existing = name.filter(|n| has(store, n));
    let Some(name) = existing else {
        let roots = choose_roots(named, cwd, home.as_deref(), store.dir())?;
        return Ok((store.create(name, &roots)?, true));
    };
    let session = store.get(name)?;
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

/// The exit code, and what changed: the summary and how many changes that is.
type Done = (u8, (String, usize));

fn serve_and_run(
    args: &RunArgs,
    store: &Store,
    session: &mut Session,
    lock: &mut Lock,
    cwd: &Path,
    inherited: Inherited,
) -> Result<Done> {
    let root_paths: Vec<PathBuf> = session.roots().map(|r| r.lower_dir().to_owned()).collect();
    let distrusted: Vec<&Path> = root_paths.iter().map(PathBuf::as_path).collect();
    let bwrap = find_program("bwrap", &distrusted).ok_or_else(bwrap_missing)?;
    let way = mounting::for_run(&distrusted)?;
    let dirs = root_dirs(session)?;
    output::notes(&settle_down(session, lock, &dirs)?.1);
    session.meta.command = args.command.iter().map(|w| PathBytes(w.as_bytes().to_vec())).collect();
    session.save_meta()?;
    if matches!(way, Way::Direct { own: true }) {
        sandbox::enter()?;
    }
    let spec = spec(args, store, session, cwd)?;
    let mountpoint = session.mountpoint_dir();
    let what = What { session, mountpoint: &mountpoint, way, allow_other: false };
    let served = Served::start(&what, lock, store)?;
    let code = run_in_sandbox(&bwrap, &spec, inherited, &served);
    served.finish()?;
    let code = code?;
    let folded = crate::journal::fold_dir(&session.journal_dir())?;
    let set = review::settle(&dirs, &folded.set)?;
    Ok((code, (summary(&set), set.len())))
}

/// What the served session learns of its command.
struct Watched<'a> {
    served: &'a Served,
    spec: &'a Spec,
}

impl sandbox::Events for Watched<'_> {
    fn started(&self, pid: u32) {
        self.served.begin_command(pid, self.spec.argv.iter().map(|w| w.as_bytes()));
    }

    fn ready(&self) {
        self.served.hand_over();
    }
}

fn run_in_sandbox(bwrap: &Path, spec: &Spec, inherited: Inherited, served: &Served) -> Result<u8> {
    let outcome = sandbox::run(bwrap, spec, inherited, &Watched { served, spec })?;
    let code = match outcome {
        Outcome::Exited(code) => code,
        Outcome::NotStarted(code) => {
            return Err(Error::failure(format!("bwrap could not make the sandbox (it ended with {code})"))
                .hint("see what it said above, and: sbx-fuse doctor"));
        }
    };
    let at = spec.argv.first().map(|c| spec.cwd.join(c)).unwrap_or_default();
    let is_path = spec.argv.first().is_some_and(|c| c.as_bytes().contains(&b'/'));
    if code == NOT_FOUND && is_path && !spec.sees(&at) && at.symlink_metadata().is_ok() {
        output::note(&format!(
            "hint: {} lies in a directory that is private in the sandbox; make it visible with --root",
            quote(at.as_os_str().as_bytes())
        ));
    }
    Ok(code)
}

fn spec(args: &RunArgs, store: &Store, session: &Session, cwd: &Path) -> Result<Spec> {
    let program = std::env::current_exe().map_err(|e| Error::sys("find our own program", e))?;
    let mnt = session.mountpoint_dir();
    let single = session.meta.roots.len() == 1;
    let from = |name: &PathBytes| if single { mnt.clone() } else { mnt.join(name.as_path()) };
    let binds: Vec<Bind> =
        session.roots().map(|r| Bind { from: from(&r.meta().name), to: r.lower_dir().to_owned() }).collect();
    // What is not there, or cannot be reached, need not be hidden.
    let real = |p: PathBuf| p.canonicalize().ok();
    let state = real(store.dir().to_owned());
    let sockets = runtime_dir().and_then(real);
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|p| p.is_absolute());
    let uid = crate::sys::process::effective_ids().0;
    let usual = PathBuf::from(format!("/run/user/{uid}"));
    let hidden_in_view: Vec<PathBuf> = state.into_iter().chain(sockets).collect();
    let runtimes = runtime.into_iter().chain([usual]).filter_map(real);
    let hidden = hidden_in_view.iter().cloned().chain(runtimes).collect();
    let masked = SERVICES.iter().filter_map(|s| real(PathBuf::from(s))).collect();
    let mut spec = Spec {
        binds,
        hidden,
        hidden_in_view,
        masked,
        cwd: cwd.to_owned(),
        net: args.net,
        env: vec![
            ("SBX_FUSE_SESSION".into(), OsString::from(&session.name)),
            ("SESSION_ID".into(), OsString::from(&session.meta.id)),
        ],
        program,
        argv: args.command.clone(),
    };
    if !spec.sees(cwd) {
        // Nothing is at this path in the sandbox.
        let first = session.roots().next().map(|r| r.lower_dir().to_owned());
        spec.cwd = first.unwrap_or_else(|| PathBuf::from("/"));
        output::note(&format!(
            "{} is not visible in the sandbox; running in {}",
            quote(cwd.as_os_str().as_bytes()),
            quote(OsStr::as_bytes(spec.cwd.as_os_str()))
        ));
    }
    Ok(spec)
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
