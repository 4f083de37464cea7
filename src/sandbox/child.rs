//! Starting bwrap.

use super::attend::Sandbox;
use super::bwrap::{self, Fds, Spec};
use super::input::Input;
use super::limits::Enforced;
use super::proxy::Proxy;
use super::signals::{Caught, exit_code};
use super::terminal::{self, Terminal};
use super::veil::Step;
use super::{inside, seccomp};
use crate::base::{Errno, Error, Net, Result};
use crate::sys::{descriptors, file, process};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::fs::File;
use std::io::{Seek, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The command ended; its exit status, 128 + n when signal n ended it, also before it had begun.
    Exited(u8),
    /// bwrap could not set the sandbox up and said why on stderr; its exit status.
    NotStarted(i32),
}

/// What the process was like before it became a server, and what the command shall inherit.
#[derive(Debug)]
pub struct Inherited {
    umask: u32,
    open_files: Option<(u64, u64)>,
    input: Option<Input>,
}

impl Inherited {
    /// Takes note of this process's umask, soft limit of open files and standard input. Of its other descriptors but the
    /// standard streams, the command gets the pipes only.
    ///
    /// # Errors
    /// `Usage` when a standard stream leads out of the sandbox.
    pub fn note() -> Result<Inherited> {
        let umask = file::umask(0o077);
        file::umask(umask);
        let input = Input::of_ours()?;
        descriptors::pass_on_pipes_only()
            .map_err(|e| Error::sys("close what the command shall not have", e))?;
        Ok(Inherited { umask, open_files: getrlimit(Resource::RLIMIT_NOFILE).ok(), input })
    }

    /// Calls `f` with umask and limit as they were noted. Nothing may use the mount meanwhile: its server would make
    /// files with the wrong mode.
    fn during<T>(&self, f: impl FnOnce() -> T) -> T {
        let umask = file::umask(self.umask);
        let now = getrlimit(Resource::RLIMIT_NOFILE).ok();
        set_open_files(self.open_files);
        let value = f();
        set_open_files(now);
        file::umask(umask);
        value
    }
}

fn set_open_files(limits: Option<(u64, u64)>) {
    if let Some((soft, hard)) = limits
        && let Err(e) = setrlimit(Resource::RLIMIT_NOFILE, soft, hard)
    {
        tracing::warn!("cannot set the limit of open files: {e}");
    }
}

/// What is to be known of a run before its end.
pub trait Events: Send + Sync {
    /// bwrap runs, as process `pid`.
    fn started(&self, pid: u32);
    /// The sandbox stands: what was mounted for it is in its own mount namespace now. Called from another thread.
    fn ready(&self);
    /// What the proxy refused: a host with its port, and how often.
    fn refused(&self, target: &str, times: usize);
}

/// Runs the command of `spec` under `bwrap` (its path) and waits for it. Must be called from the main thread: the sandbox dies with the thread that made it.
///
/// bwrap and the command have process groups of their own, the command that of the terminal while ours would be: what is
/// sent to our group reaches us alone, and `signals` are passed on.
///
/// # Errors
/// When bwrap cannot be started.
pub fn run(
    bwrap: &Path,
    spec: &Spec,
    limits: &Enforced,
    (inherited, signals): (&Inherited, &Caught),
    events: &dyn Events,
) -> Result<Outcome> {
    let told = |e: Errno| Error::sys("prepare the sandbox", e);
    let (status_out, status_in) = pipe().map_err(told)?;
    let (ready_out, ready_in) = pipe().map_err(told)?;
    let filter = seccomp::program().map(|bytes| inheritable(&bytes)).transpose().map_err(told)?;
    let veil = spec.veil()?;
    let denied = veil.iter().filter(|s| matches!(s, Step::DeniedFile(_)));
    let empty = denied.map(|_| inheritable(b"")).collect::<std::result::Result<Vec<_>, _>>().map_err(told)?;
    let fds = Fds {
        status: status_in.as_raw_fd(),
        filter: filter.as_ref().map(AsRawFd::as_raw_fd),
        empty: empty.iter().map(AsRawFd::as_raw_fd).collect(),
    };
    let args = spec.arguments(&veil, &fds);
    let args = inheritable(&bwrap::nul_separated(&args)).map_err(told)?;

    let door = match spec.net {
        Net::Only(_) => Some(pair().map_err(told)?),
        Net::Off | Net::All => None,
    };
    let way = match &door {
        Some((_, theirs)) => {
            inside::Way::By(inside::Door { fd: theirs.as_raw_fd(), host_loopback: spec.net.names_loopback() })
        }
        // The screen, if it may use it, can be an abstract socket.
        None if spec.net == Net::All && spec.shared.is_empty() => inside::Way::Scoped,
        None => inside::Way::AsItIs,
    };
    let restore = if terminal::write_in_background().map_err(told)? { vec![libc::SIGTTOU] } else { vec![] };
    if let Some(signal) = signals.interrupted() {
        return Ok(Outcome::Exited(exit_code(signal)));
    }
    // Without the filter the command has a terminal session of its own, and so no terminal.
    let tty = filter.as_ref().and_then(|_| Terminal::of_ours());
    let foreground = tty.as_ref().is_some_and(Terminal::lend);
    let mut command = Command::new(bwrap);
    // Not by bwrap's --setenv and --unsetenv: process 1 of the sandbox, whose environment the command can read, would
    // have what bwrap itself was started with.
    command.env_clear().envs(spec.env.iter().map(|(k, v)| (k, v))).env(&spec.marker.0, &spec.marker.1);
    command.arg("--args").arg(args.as_raw_fd().to_string()).arg("--").args(inside::argv(
        &spec.argv,
        ready_in.as_raw_fd(),
        (foreground, &restore),
        limits.each(),
        way,
    ));
    limits.apply(&mut command).map_err(|e| Error::sys("limit the command", e))?;
    if let Some(input) = &inherited.input {
        command.stdin(input.stdio()?);
    }
    command.process_group(0);
    process::die_with_us(&mut command);
    let mut child = inherited
        .during(|| command.spawn())
        .map_err(|e| Error::on_path("start", bwrap.as_os_str().as_encoded_bytes(), e))?;
    drop((status_in, ready_in, args, filter, empty));
    let proxy = door.map(|(ours, _)| Proxy::start(spec.net.clone(), ours)).transpose()?;
    events.started(child.id());
    let sandbox = Sandbox::new(&child, tty);
    let ended = sandbox.attend(&mut child, (status_out, ready_out), signals, events)?;
    if let Some(input) = &inherited.input {
        input.go_on_behind();
    }
    for (target, times) in proxy.iter().flat_map(|p| p.close()) {
        events.refused(&target, times);
    }
    Ok(ended)
}

/// Two connected sockets: ours, and one that a child inherits.
fn pair() -> std::result::Result<(OwnedFd, OwnedFd), Errno> {
    let (ours, theirs) = crate::sys::socket::pair()?;
    nix::fcntl::fcntl(&theirs, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty()))?;
    Ok((ours, theirs))
}

/// A pipe: our end, and one that a child inherits.
fn pipe() -> std::result::Result<(OwnedFd, OwnedFd), Errno> {
    let (ours, theirs) = nix::unistd::pipe()?;
    nix::fcntl::fcntl(&ours, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::FD_CLOEXEC))?;
    Ok((ours, theirs))
}

/// A file in memory with these bytes, which a child inherits.
fn inheritable(bytes: &[u8]) -> std::result::Result<OwnedFd, Errno> {
    let mut file = File::from(memfd_create(c"sbx-fuse", MFdFlags::empty())?);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file.into())
}
