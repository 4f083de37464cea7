//! `sbx-fuse overlay`: layers given by hand, mounted as fuse-overlayfs would mount them; a drop-in for container tools.

use super::background;
use super::output;
use super::overlay_options::Options;
use super::serve::threads;
use crate::base::{Errno, Error, Name, Result, quote};
use crate::fuse::{self, How, Server};
use crate::layer::{self, LayerKind};
use crate::sys::{dir, file, mount, process};
use crate::union::{Config, LayerConfig, RootConfig, Union, UpperConfig};
use clap::{Args, CommandFactory};
use nix::fcntl::{Flock, FlockArg};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

/// The name under which the program is this command, whatever its arguments.
const DROP_IN: &str = "fuse-overlayfs";

/// Mount layers as fuse-overlayfs does, for container tools
///
/// Takes fuse-overlayfs's command line, and is it when the program's own name is fuse-overlayfs. No session: what is
/// written stays in upperdir, as an overlayfs upper. The server goes to the background once the mount answers.
#[derive(Debug, Args)]
#[command(version, after_help = OPTIONS)]
pub(super) struct OverlayArgs {
    /// Options, comma-separated; may be given several times
    #[arg(short = 'o', value_name = "OPTIONS", allow_hyphen_values = true)]
    options: Vec<OsString>,
    /// Serve in the foreground, until interrupted
    #[arg(short = 'f', long)]
    foreground: bool,
    /// As --foreground (what it says is set by $SBX_FUSE_LOG)
    #[arg(short = 'd', long)]
    debug: bool,
    /// Accepted and ignored
    #[arg(short = 's', hide = true)]
    single_threaded: bool,
    /// The server in the background
    #[arg(long, hide = true)]
    answer: bool,
    /// Where; before it, optionally, what /proc/mounts is to show as the source
    #[arg(value_name = "[SOURCE] MOUNTPOINT", num_args = 1..=2, required = true)]
    places: Vec<PathBuf>,
}

const OPTIONS: &str = r"Options (escape ':' and ',' in paths with '\'):
  lowerdir=A:B:…                 the layers, topmost first
  upperdir=DIR,workdir=DIR       where writes go, and scratch space on the same file system; without: read-only
  uidmapping=ID:SHOWN:COUNT:…    show users on disk with other ids; gidmapping likewise
  squash_to_root, squash_to_uid=ID, squash_to_gid=ID   show all files with one owner
  static_nlink                   link count 1 for all directories
  noacl                          no ACLs
  xattr_permissions=1|2          owners and modes are in an attribute: 1 root's, 2 anybody's
  volatile, fsync=0              nothing is made durable
  allow_other                    let all users in (root's default)
  ro, nosuid, nodev, noexec, …   as for mount(8); fsname=NAME";

/// The arguments, with the command put in when the program goes by the drop-in's name, and when mount(8) calls it for
/// `mount -t fuse.NAME`: PROGRAM SOURCE MOUNTPOINT -o OPTIONS.
pub(super) fn arguments(mut args: Vec<OsString>) -> Vec<OsString> {
    if is_drop_in(&args) || is_call_of_mount(&args) {
        args.insert(1, "overlay".into());
    }
    args
}

fn is_call_of_mount(args: &[OsString]) -> bool {
    let [_, source, _, o, options] = args else { return false };
    let names_layers = options.as_bytes().windows(9).any(|w| w == b"lowerdir=");
    o == "-o" && names_layers && super::Cli::command().find_subcommand(source).is_none()
}

fn is_drop_in(args: &[OsString]) -> bool {
    args.first().and_then(|a| Path::new(a).file_name()) == Some(OsStr::new(DROP_IN))
}

pub(super) fn run(args: OverlayArgs) -> Result<u8> {
    let root = process::effective_ids().0 == 0;
    let options = Options::new(root).read(args.options.iter().map(OsString::as_os_str))?;
    if args.answer {
        return background::answer(|ready| serve(&args, options, ready));
    }
    if args.foreground || args.debug || options.foreground {
        return serve(&args, options, &mut || {});
    }
    let own = arguments(std::env::args_os().collect());
    let mut command = Command::new("/proc/self/exe");
    command.arg0(own.first().map_or(OsStr::new("sbx-fuse"), OsString::as_os_str));
    if !is_drop_in(&own) {
        command.arg("overlay");
    }
    // Whoever reads our stderr to its end does not wait for the server.
    command.arg("--answer").args(own.iter().skip(2)).stderr(Stdio::null());
    background::start(command, None)
}

fn serve(args: &OverlayArgs, mut options: Options, ready: &mut dyn FnMut()) -> Result<u8> {
    let Some(place) = args.places.last() else {
        return Err(
            Error::usage("the mount point is missing").hint("how it is called: sbx-fuse overlay --help")
        );
    };
    let mountpoint = place.canonicalize().map_err(|e| Error::on_path("mount at", bytes(place), e))?;
    if options.upper.is_none() {
        options.flags |= libc::MS_RDONLY;
    }
    let (config, _scratch) = config(&options)?;
    let union = Union::new(config)?;
    // Not in a directory that somebody may want to unmount.
    std::env::set_current_dir("/").map_err(|e| Error::sys("go to /", e))?;
    let name = if is_drop_in(&std::env::args_os().collect::<Vec<_>>()) { DROP_IN } else { "sbx-fuse" };
    let source = args.places.split_last().and_then(|(_, before)| before.first()).map(|s| s.as_os_str());
    let source = source
        .map(|s| {
            s.to_str().ok_or_else(|| {
                Error::usage("SOURCE must be text").hint("leave it out, or give any UTF-8 name")
            })
        })
        .transpose()?;
    let how = fuse::Options {
        how: How::Direct,
        allow_other: options.allow_other,
        fsname: options.fsname.as_deref().or(source).unwrap_or(name).to_owned(),
        subtype: name.to_owned(),
        flags: options.flags,
        extra: options.labels,
        threads: threads(),
    };
    let server = Arc::new(mount_somehow(&union, &mountpoint, how)?);
    unmount_on_signals(&server, &mountpoint)?;
    ready();
    let ended = server.wait();
    if let Some(server) = Arc::into_inner(server) {
        server.join()?;
    }
    if !union.is_volatile() {
        union.sync().map_err(|e| Error::sys("write back the upper", e))?;
    }
    ended.map(|()| 0)
}

/// By ourselves where that is allowed, else with the helper.
fn mount_somehow(union: &Arc<Union>, mountpoint: &Path, options: fuse::Options) -> Result<Server> {
    match fuse::mount(union.clone(), mountpoint, &options) {
        Err(e) if e.errno == Some(Errno::EPERM) => {
            fuse::mount(union.clone(), mountpoint, &fuse::Options { how: How::Helper, ..options })
        }
        done => done,
    }
}

/// SIGTERM, SIGINT and SIGHUP take the mount out of sight; what programs have open keeps it, and us, alive until
/// they end.
fn unmount_on_signals(server: &Arc<Server>, mountpoint: &Path) -> Result<()> {
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT, SIGHUP])
        .map_err(|e| Error::sys("wait for signals", e))?;
    let (server, mountpoint) = (Arc::downgrade(server), mountpoint.to_owned());
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            for _ in signals.forever() {
                let Some(server) = server.upgrade() else { return };
                let gone = match server.unmount() {
                    Err(e) if e.errno == Some(Errno::EBUSY) => mount::umount(bytes(&mountpoint), true)
                        .map_err(|e| Error::on_path("unmount", bytes(&mountpoint), e)),
                    done => done,
                };
                if let Err(e) = gone {
                    output::error(&e);
                }
            }
        })
        .map(drop)
        .map_err(|e| Error::sys("start a thread", e))
}

fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

/// Opens the directory that an option names.
fn open(option: &str, path: &Path) -> Result<OwnedFd> {
    file::open_path(bytes(path), libc::O_PATH | libc::O_DIRECTORY).map_err(|e| {
        Error::on_path("open", bytes(path), e)
            .hint(format!("name directories that are there: -o {option}=DIR"))
    })
}

/// Refuses a workdir that is the upperdir, or if one of them lies in the other: scratch files would show in the view,
/// or be taken for what was written. Told by device and inode, since a directory may be mounted in several places.
fn check_apart(upper: &Path, work: &Path) -> Result<()> {
    let id = |path: &Path| file::stat_at(nix::fcntl::AT_FDCWD, bytes(path)).map(|a| (a.dev, a.ino));
    let told = |path: &Path, e: Errno| Error::on_path("use", bytes(path), e);
    for (inner, outer) in [(upper, work), (work, upper)] {
        let inner = inner.canonicalize().map_err(|e| told(inner, e.into()))?;
        let outer = outer.canonicalize().map_err(|e| told(outer, e.into()))?;
        let outer_id = id(&outer).map_err(|e| told(&outer, e))?;
        if inner.ancestors().any(|dir| id(dir) == Ok(outer_id)) {
            let (upper, work) = (quote(bytes(upper)), quote(bytes(work)));
            return Err(Error::usage(format!("upperdir {upper} and workdir {work} are not apart"))
                .hint("give an empty directory beside upperdir as workdir, on the same file system"));
        }
    }
    Ok(())
}

/// The union, and what keeps its scratch space ours.
fn config(options: &Options) -> Result<(Config, Option<Flock<OwnedFd>>)> {
    let (mut upper, mut lock) = (None, None);
    if let (Some(dir), Some(work)) = (&options.upper, &options.work) {
        let told = |e| Error::on_path("use the workdir", bytes(work), e);
        let (upper_dir, work_dir) = (open("upperdir", dir)?, open("workdir", work)?);
        check_apart(dir, work)?;
        let (scratch, held) = scratch(work_dir).map_err(told)?;
        let features = layer::probe(scratch.as_fd()).map_err(told)?;
        lock = held;
        upper = Some(UpperConfig { dir: upper_dir, work: scratch, features, shared: true });
    }
    let lowers = options
        .lowers
        .iter()
        .map(|l| Ok(LayerConfig { dir: open("lowerdir", l)?, kind: LayerKind::Overlay }));
    let root = RootConfig {
        name: Name::new(b"overlay").map_err(|e| Error::sys("name the root", e))?,
        real_path: options.lowers.first().map(|l| bytes(l).to_vec()).unwrap_or_default(),
        upper,
        lowers: lowers.collect::<Result<_>>()?,
    };
    let config = Config {
        roots: vec![root],
        single: true,
        hidden: Vec::new(),
        journal: None,
        multi_user: process::effective_ids().0 == 0,
        view: options.view.clone(),
    };
    Ok((config, lock))
}

/// A directory of our own in the workdir, cleared of what a killed server left; not if another one still uses it.
fn scratch(work: OwnedFd) -> crate::base::Sys<(OwnedFd, Option<Flock<OwnedFd>>)> {
    const OURS: &[u8] = b"sbx-fuse";
    match file::mkdirat(work.as_fd(), OURS, 0o700) {
        Ok(()) | Err(Errno::EEXIST) => {}
        Err(e) => return Err(e),
    }
    let fd = file::openat(work.as_fd(), OURS, libc::O_RDONLY | libc::O_DIRECTORY, 0)?;
    let listed = fd.try_clone().map_err(Errno::from)?;
    let lock = Flock::lock(fd, FlockArg::LockExclusiveNonblock).ok();
    if lock.is_some() {
        for entry in dir::entries(listed.as_fd())?.iter().filter(|e| e.name.starts_with(b"#")) {
            crate::session::remove_tree(listed.as_fd(), &entry.name)?;
        }
    }
    Ok((file::reopen(listed.as_fd(), libc::O_PATH | libc::O_DIRECTORY)?, lock))
}
