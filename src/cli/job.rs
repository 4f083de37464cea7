//! A command in a session's sandbox: as its server, or joining the server that is there.

use super::allowance;
use super::changes::summary;
use super::context::{self, root_dirs, settle_down};
use super::display;
use super::mounting::{self, Way};
use super::output;
use super::serve::{ENDING, Served, What, runtime_dir};
use super::services;
use crate::base::{Error, ErrorKind, Net, PRIVATE_TEMPS, Result, Target, quote};
use crate::review;
use crate::sandbox::{
    self, Bind, Caught, Enforced, EnvRules, Inherited, Outcome, Spec, bwrap_missing, find_program,
};
use crate::session::{
    Client, Config, ENV_SESSION, ENV_SESSION_ID, Lock, MARKER, PathBytes, Place, Role, Session, Store,
    mounted,
};
use clap::Args;
use parking_lot::Mutex;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The exit code when the command does not exist.
const NOT_FOUND: u8 = 127;

/// How long a session that is just ending or just held by another command is waited for.
const PATIENCE: Duration = Duration::from_secs(30);

/// How a command is confined.
#[derive(Debug, Args)]
pub(super) struct Confine {
    /// Let the command use the network, and with it the services of this machine itself; with a list, only these hosts
    /// and ports, through a proxy
    #[arg(
        long,
        value_name = "HOST[:PORT],…",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "all",
        value_delimiter = ','
    )]
    net: Vec<NetArg>,
    /// Let the command draw on the screen: DISPLAY, WAYLAND_DISPLAY and what they lead to
    #[arg(long)]
    gui: bool,
    /// Give the command no variable but PATH, HOME and the like, and those named with --env
    #[arg(long)]
    env_clear: bool,
    /// Set a variable, or let one through that looks like a secret; may be given several times
    #[arg(long = "env", value_name = "KEY[=VALUE]")]
    env: Vec<OsString>,
}

/// One word of `--net`.
#[derive(Clone, Debug)]
enum NetArg {
    All,
    Only(Target),
}

impl std::str::FromStr for NetArg {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<NetArg, String> {
        if text == "all" { Ok(NetArg::All) } else { text.parse().map(NetArg::Only) }
    }
}

/// What a command may reach: what was asked for, within what the configuration lets.
fn net(asked: &[NetArg], config: &Config) -> Result<Net> {
    if asked.is_empty() {
        return Ok(Net::Off);
    }
    if config.network.forbid {
        return Err(
            Error::usage("the configuration forbids the network (network.forbid)").hint("leave --net out")
        );
    }
    let mut lists = config.net_lists.clone();
    let named: Option<Vec<Target>> = asked
        .iter()
        .map(|a| match a {
            NetArg::All => None,
            NetArg::Only(target) => Some(target.clone()),
        })
        .collect();
    lists.extend(named);
    Ok(if lists.is_empty() { Net::All } else { Net::Only(lists) })
}

/// What to run.
pub(super) struct Job {
    /// How it is confined.
    pub(super) confine: Confine,
    /// The command and its arguments; not empty.
    pub(super) command: Vec<OsString>,
    /// Where it shall run, if the sandbox has that.
    pub(super) cwd: PathBuf,
    /// What it inherits from our caller.
    pub(super) inherited: Inherited,
    /// What asks us to end, from our very beginning on.
    pub(super) signals: Caught,
}

/// The exit code, and what changed: the summary and how many changes that is.
pub(super) type Done = (u8, (String, usize));

/// Serves the session, whose lock is ours, and runs the job in it. Commands that join meanwhile are waited for.
///
/// # Errors
/// When the session cannot be served or the sandbox cannot be made.
pub(super) fn host(job: &Job, store: &Store, session: &mut Session, lock: &mut Lock) -> Result<Done> {
    let root_paths: Vec<PathBuf> = session.all_roots().map(|r| r.lower_dir().to_owned()).collect();
    let distrusted: Vec<&Path> = root_paths.iter().map(PathBuf::as_path).collect();
    let bwrap = find_program("bwrap", &distrusted).ok_or_else(bwrap_missing)?;
    let way = mounting::for_run(&distrusted)?;
    let dirs = root_dirs(session)?;
    output::notes(&settle_down(session, lock, &dirs)?.1);
    session.meta.command = words(&job.command);
    session.save_meta()?;
    if matches!(way, Way::Direct { own: true }) {
        sandbox::enter()?;
    }
    let mountpoint = session.mountpoint_dir();
    let spec = spec(job, store, session, &mountpoint)?;
    let limits = limits(session)?;
    let what = What { session, mountpoint: &mountpoint, way, allow_other: false };
    let served = Served::start(&what, lock, store)?;
    let code = run_in_sandbox(&bwrap, &spec, &limits, job, &Hosted { served: &served, spec: &spec });
    let name = &session.name;
    served.close(|guests| {
        let guests = output::count(guests, "other command runs", "other commands run");
        output::note(&format!(
            "{guests} in session {name}, which ends with the last; see: sbx-fuse ps -s {name}"
        ));
    });
    served.finish()?;
    let code = code?;
    let folded = crate::journal::fold_dir(&session.journal_dir())?;
    let set = review::settle(&dirs, &folded.set)?;
    Ok((code, (summary(&set), set.len())))
}

/// Runs the job in a session that exists, whatever its state. `None` of a summary when the session goes on living
/// without us.
///
/// # Errors
/// As [`host`]; `Locked` when another command has the session.
pub(super) fn enter(job: &Job, store: &Store, mut session: Session) -> Result<(u8, Option<(String, usize)>)> {
    let start = Instant::now();
    loop {
        let tried = match context::connect(&session)? {
            Some(mut client) => match client.join() {
                Ok(place) => return guest(job, store, &session, client, &place).map(|code| (code, None)),
                // Its lock is free in a moment.
                Err(e) if e.hint.as_deref() == Some(ENDING) => e,
                Err(e) => return Err(e),
            },
            None => match session.lock_as(Role::Server) {
                Ok(mut lock) => {
                    return host(job, store, &mut session, &mut lock).map(|(code, sum)| (code, Some(sum)));
                }
                // Somebody was faster, and may be a server that we can join.
                Err(e) if e.kind == ErrorKind::Locked => e,
                Err(e) => return Err(e),
            },
        };
        if start.elapsed() > PATIENCE || job.signals.interrupted().is_some() {
            return Err(tried);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Runs the job on the view of a live session. The session lives as long as `client`.
fn guest(job: &Job, store: &Store, session: &Session, client: Client, place: &Place) -> Result<u8> {
    let distrusted: Vec<PathBuf> = session.all_roots().map(|r| r.lower_dir().to_owned()).collect();
    let distrusted: Vec<&Path> = distrusted.iter().map(PathBuf::as_path).collect();
    let bwrap = find_program("bwrap", &distrusted).ok_or_else(bwrap_missing)?;
    if place.own {
        sandbox::join(place.pid)?;
    }
    let at = place.mountpoint.as_path();
    let source = session.fsname();
    // Were the view not there, the command would write to the directory beneath.
    if !mounted()?.iter().any(|m| m.at == at && m.source == source.as_bytes()) {
        return Err(Error::failure(format!("the view of session {} is not mounted any more", session.name))
            .hint(format!("end it with: sbx-fuse stop {}", session.name)));
    }
    let spec = spec(job, store, session, at)?;
    let limits = limits(session)?;
    let client = Mutex::new(client);
    run_in_sandbox(&bwrap, &spec, &limits, job, &Guest { client: &client, spec: &spec })
}

/// Where the temporary files of a session with a private home are, in that.
const TEMPS: &str = ".cache/tmp";

/// The person's home, when the session has one of its own.
fn private_home(session: &Session) -> Option<PathBuf> {
    let home = std::env::var_os("HOME").and_then(|h| PathBuf::from(h).canonicalize().ok())?;
    session.meta.private.iter().any(|r| r.path.as_path() == home).then_some(home)
}

fn words(command: &[OsString]) -> Vec<PathBytes> {
    command.iter().map(|w| PathBytes(w.as_bytes().to_vec())).collect()
}

/// What the session that we serve learns of the command.
struct Hosted<'a> {
    served: &'a Served,
    spec: &'a Spec,
}

impl sandbox::Events for Hosted<'_> {
    fn started(&self, pid: u32) {
        self.served.begin_command(pid, self.spec.argv.iter().map(|w| w.as_bytes()));
    }

    fn ready(&self) {
        self.served.hand_over();
    }

    fn refused(&self, target: &str, times: usize) {
        refused(target, times);
    }
}

/// What another's server learns of the command.
struct Guest<'a> {
    client: &'a Mutex<Client>,
    spec: &'a Spec,
}

impl sandbox::Events for Guest<'_> {
    fn started(&self, pid: u32) {
        if let Err(e) = self.client.lock().begin_command(pid, &words(&self.spec.argv)) {
            output::note(&format!("the journal will not name the command: {e}"));
        }
    }

    fn ready(&self) {}

    fn refused(&self, target: &str, times: usize) {
        refused(target, times);
    }
}

/// Makes ready what enforces the session's limits, and says how they are enforced.
fn limits(session: &Session) -> Result<Enforced> {
    let config = allowance::effective(session)?.limits;
    let limits = sandbox::Limits {
        memory: config.memory.map(|s| s.0),
        milli_cpus: config.cpus.map(|c| c.0),
        pids: config.pids,
    };
    let enforced = limits.enforce()?;
    match &enforced {
        Enforced::Nothing => {}
        Enforced::Group(_) => {
            output::note(&format!("limited to {config} for all processes together, by a control group"));
        }
        Enforced::Each(_, why) => {
            let alone = if config.memory.is_some() { ", memory for each process alone" } else { "" };
            output::note(&format!("limited to {config} by rlimits{alone}, as {why}"));
        }
    }
    Ok(enforced)
}

fn refused(target: &str, times: usize) {
    output::note(&format!(
        "refused {} to {target} (--net)",
        output::count(times, "connection", "connections")
    ));
}

fn run_in_sandbox(
    bwrap: &Path,
    spec: &Spec,
    limits: &Enforced,
    job: &Job,
    events: &dyn sandbox::Events,
) -> Result<u8> {
    let outcome = sandbox::run(bwrap, spec, limits, (&job.inherited, &job.signals), events)?;
    output::notes(&limits.met());
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

fn spec(job: &Job, store: &Store, session: &Session, mnt: &Path) -> Result<Spec> {
    let cwd = job.cwd.as_path();
    let program = std::env::current_exe().map_err(|e| Error::sys("find our own program", e))?;
    let single = session.all_roots().count() == 1;
    let from = |name: &PathBytes| if single { mnt.to_owned() } else { mnt.join(name.as_path()) };
    let binds: Vec<Bind> = session
        .all_roots()
        .map(|r| Bind { from: from(&r.meta().name), to: r.lower_dir().to_owned() })
        .collect();
    // What is not there, or cannot be reached, need not be hidden.
    let real = |p: PathBuf| p.canonicalize().ok();
    let state = real(store.dir().to_owned());
    let sockets = runtime_dir().and_then(real);
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|p| p.is_absolute());
    let uid = crate::sys::process::effective_ids().0;
    let usual = PathBuf::from(format!("/run/user/{uid}"));
    let allowed = allowance::effective(session)?;
    let rules = allowance::rules(session, &allowed, job.confine.gui)?;
    let private = private_home(session);
    let hidden_in_view: Vec<PathBuf> = state.into_iter().chain(sockets).collect();
    let runtimes = runtime.into_iter().chain([usual]).filter_map(real);
    let hidden = hidden_in_view.iter().cloned().chain(runtimes).collect();
    let net = net(&job.confine.net, &allowed)?;
    let masked = services::masked(&net)?;
    let mut spec = Spec {
        binds,
        hidden,
        hidden_in_view,
        masked,
        rules,
        cwd: cwd.to_owned(),
        net,
        shared: if job.confine.gui { display::shared()? } else { Vec::new() },
        made: private.iter().map(|h| h.join(TEMPS)).collect(),
        env: environment(&job.confine, &allowed, session, private.as_deref())?,
        marker: (MARKER.into(), OsString::from(&session.meta.id)),
        program,
        argv: job.command.clone(),
    };
    if !spec.sees(cwd) {
        // Nothing is at this path in the sandbox.
        let first = session.roots().next().map(|r| r.lower_dir().to_owned());
        spec.cwd = first.unwrap_or_else(|| PathBuf::from("/"));
        let temps = PRIVATE_TEMPS.iter().any(|t| cwd.starts_with(t));
        output::note(&format!(
            "{} is not visible in the sandbox{}; running in {}",
            quote(cwd.as_os_str().as_bytes()),
            if temps { ", which has a /tmp and a /var/tmp of its own (to see it: --root)" } else { "" },
            quote(OsStr::as_bytes(spec.cwd.as_os_str()))
        ));
    }
    Ok(spec)
}

/// What the command inherits, what was asked for, and what tells it where it is.
fn environment(
    confine: &Confine,
    config: &Config,
    session: &Session,
    private: Option<&Path>,
) -> Result<Vec<(OsString, OsString)>> {
    let mut rules = EnvRules {
        clear: confine.env_clear || config.env.clear,
        keep: config.env.keep.iter().map(OsString::from).collect(),
        drop: config.env.drop.clone(),
        set: Vec::new(),
    };
    for word in &confine.env {
        let bytes = word.as_bytes();
        match bytes.iter().position(|&b| b == b'=') {
            Some(0) => {
                return Err(Error::usage(format!("--env {} names no variable", quote(bytes)))
                    .hint("write --env KEY to let a variable through, --env KEY=VALUE to set it"));
            }
            Some(at) => {
                let (key, value) = (OsStr::from_bytes(&bytes[..at]), OsStr::from_bytes(&bytes[at + 1..]));
                rules.set.push((key.to_owned(), value.to_owned()));
            }
            None => rules.keep.push(word.clone()),
        }
    }
    if confine.gui {
        rules.keep.extend(display::VARIABLES.map(OsString::from));
        rules.set.extend(display::variables());
    } else {
        rules.drop.extend(display::VARIABLES.map(String::from));
    }
    if let Some(home) = private {
        rules.set.push(("TMPDIR".into(), home.join(TEMPS).into()));
    }
    rules.set.push((ENV_SESSION.into(), OsString::from(&session.name)));
    rules.set.push((ENV_SESSION_ID.into(), OsString::from(&session.meta.id)));
    Ok(rules.apply(std::env::vars_os()))
}
