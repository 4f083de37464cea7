//! `sbx-fuse mount`: a view for other programs, served in the background.

use super::allowance::AllowanceArgs;
use super::background;
use super::context::{root_dirs, settle_down};
use super::mounting;
use super::output;
use super::paths;
use super::run::{find_or_make, keep};
use super::serve::{Served, What};
use crate::base::{Error, ErrorKind, Result, quote};
use crate::session::{PathBytes, Role, Session, Store, is_dead, mounted};
use clap::Args;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const ELSEWHERE: &str = "choose an empty directory elsewhere, e.g. one that mktemp -d makes";

/// Mount a private, writable view of real directories, for any program to use
///
/// With one root its content is shown at MOUNTPOINT, with several a directory for each. The server goes to the
/// background once the mount answers.
#[derive(Debug, Args)]
pub(super) struct MountArgs {
    /// A directory to show; may be given several times [default: the enclosing git work tree, else the current
    /// directory]
    #[arg(long = "root", value_name = "PATH")]
    roots: Vec<PathBuf>,
    /// The session to go on with, or the name of a new one
    #[arg(short = 's', long, value_name = "NAME")]
    session: Option<String>,
    /// Serve in the foreground, until interrupted
    #[arg(long)]
    foreground: bool,
    /// Let all users in; who is not root needs `user_allow_other` in /etc/fuse.conf
    #[arg(long)]
    allow_other: bool,
    #[command(flatten)]
    allowance: AllowanceArgs,
    /// An empty directory
    mountpoint: PathBuf,
}

/// The server in the background; started by `mount`.
#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    #[arg(long)]
    session: String,
    #[arg(long)]
    allow_other: bool,
    mountpoint: PathBuf,
}

pub(super) fn run(args: MountArgs) -> Result<u8> {
    let store = Store::open()?;
    let cwd = paths::cwd()?;
    let mountpoint = check_mountpoint(&args.mountpoint)?;
    args.allowance.policy()?;
    let (mut session, made) =
        find_or_make(&store, args.session.as_deref(), (&args.roots, None), &cwd, args.allowance.exclusive)?;
    keep(&store, &args.allowance, &mut session, made)?;
    let name = session.name.clone();
    let done = check_apart(&session, &mountpoint, store.dir()).and_then(|()| {
        if args.foreground {
            let ready = || output::note(&format!("session {name} is mounted at {}", shown(&mountpoint)));
            serve_until_unmounted(&store, session.clone(), &mountpoint, args.allow_other, ready)
        } else {
            start_server(&session, &mountpoint, args.allow_other)
        }
    });
    match done {
        Ok(0) => {
            if !args.foreground {
                output::note(&format!(
                    "session {name} is mounted at {}; end it with: sbx-fuse umount {name}",
                    shown(&mountpoint)
                ));
            }
            Ok(0)
        }
        failed => {
            if made && !args.foreground {
                let lock = session.lock()?;
                store.remove(&name, &lock)?;
            }
            failed
        }
    }
}

fn shown(path: &Path) -> String {
    quote(path.as_os_str().as_bytes())
}

/// The canonical path of an empty directory.
fn check_mountpoint(path: &Path) -> Result<PathBuf> {
    let no_place = |e: std::io::Error| Error {
        kind: ErrorKind::Usage,
        ..Error::on_path("mount at", path.as_os_str().as_bytes(), e)
    };
    let dead = || {
        Error::usage(format!("a dead mount is at {}", shown(path)))
            .hint(format!("take it away with: sbx-fuse umount {}", shown(path)))
    };
    let told = |e: std::io::Error| match e.raw_os_error() {
        // The first while its server is dying, the second from then on.
        Some(libc::ECONNABORTED | libc::ENOTCONN) => dead(),
        Some(libc::ENOENT) => no_place(e).hint(format!("make it first: mkdir -p {}", shown(path))),
        _ => no_place(e).hint(ELSEWHERE),
    };
    let real = path.canonicalize().map_err(told)?;
    if let Some(mount) = mounted()?.iter().rfind(|m| m.at == real) {
        if is_dead(&real) {
            return Err(dead());
        }
        let what = quote(mount.source.strip_prefix(b"sbx-fuse:").unwrap_or(&mount.source));
        return Err(Error::usage(format!("session {what} is mounted at {} already", shown(path)))
            .hint(format!("take that down first: sbx-fuse umount {}; or {ELSEWHERE}", shown(path))));
    }
    let mut entries = std::fs::read_dir(&real).map_err(told)?;
    if entries.next().is_some() {
        return Err(Error::usage(format!("{} is not empty: what it holds would be covered", shown(path)))
            .hint(ELSEWHERE));
    }
    Ok(real)
}

/// A mount must be neither in a root nor around one, nor among our own files.
fn check_apart(session: &Session, mountpoint: &Path, state: &Path) -> Result<()> {
    for root in session.roots() {
        let root = root.lower_dir();
        let (at, real) = (shown(mountpoint), shown(root));
        let why = if mountpoint.starts_with(root) {
            format!("the mount point {at} lies in the root {real}, and would show itself in itself")
        } else if root.starts_with(mountpoint) {
            format!("the root {real} lies in the mount point {at}, and would be covered")
        } else {
            continue;
        };
        return Err(Error::usage(why).hint(ELSEWHERE));
    }
    let state = state.canonicalize().unwrap_or_else(|_| state.to_owned());
    if mountpoint.starts_with(&state) {
        return Err(Error::usage(format!("the mount point {} lies among our own files", shown(mountpoint)))
            .hint(ELSEWHERE));
    }
    Ok(())
}

/// Starts this program again as a server in the background and waits until it answers.
fn start_server(session: &Session, mountpoint: &Path, allow_other: bool) -> Result<u8> {
    let log = session.log_path();
    let told = |e| Error::on_path("write", log.as_os_str().as_bytes(), e);
    let stderr =
        std::fs::OpenOptions::new().append(true).create(true).mode(0o600).open(&log).map_err(told)?;
    let mut command = Command::new("/proc/self/exe");
    command.args(["serve", "--session", &session.name]);
    if allow_other {
        command.arg("--allow-other");
    }
    // Not in a directory that somebody may want to unmount.
    command.arg("--").arg(mountpoint).current_dir("/");
    command.stderr(stderr);
    background::start(command, Some(&log))
}

/// The hidden command: serves in the background.
pub(super) fn serve(args: ServeArgs) -> Result<u8> {
    background::answer(|ready| {
        let store = Store::open()?;
        let session = store.get(&args.session)?;
        serve_until_unmounted(&store, session, &args.mountpoint, args.allow_other, ready)
    })
}

fn serve_until_unmounted(
    store: &Store,
    mut session: Session,
    mountpoint: &Path,
    allow_other: bool,
    ready: impl FnOnce(),
) -> Result<u8> {
    let roots: Vec<PathBuf> = session.roots().map(|r| r.lower_dir().to_owned()).collect();
    let way = mounting::for_mount(&roots.iter().map(PathBuf::as_path).collect::<Vec<_>>())?;
    let mut lock = session.lock_as(Role::Server)?;
    let dirs = root_dirs(&session)?;
    output::notes(&settle_down(&mut session, &lock, &dirs)?.1);
    session.meta.mountpoint = Some(PathBytes::from(mountpoint));
    session.save_meta()?;
    let what = What { session: &session, mountpoint, way, allow_other };
    let served = Served::start(&what, &mut lock, store);
    let ended = served.and_then(|served| {
        unmount_on_signals(&served)?;
        ready();
        let ended = served.wait();
        let finished = served.finish();
        ended.and(finished)
    });
    session.meta.mountpoint = None;
    session.save_meta()?;
    ended.map(|()| 0)
}

/// SIGTERM, SIGINT and SIGHUP unmount; what programs have open keeps the mount, and us, alive until they end.
fn unmount_on_signals(served: &Served) -> Result<()> {
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT, SIGHUP])
        .map_err(|e| Error::sys("wait for signals", e))?;
    let unmounter = served.unmounter();
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            for _ in signals.forever() {
                if let Err(e) = unmounter.unmount() {
                    drop(writeln!(std::io::stderr().lock(), "sbx-fuse: {e}"));
                }
            }
        })
        .map(drop)
        .map_err(|e| Error::sys("start a thread", e))
}
