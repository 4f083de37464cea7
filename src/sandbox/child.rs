//! Starting bwrap, passing signals on, and learning what became of the command.

use super::bwrap::{self, Fds, Spec};
use super::limits::Enforced;
use super::proxy::Proxy;
use super::veil::Step;
use super::{inside, seccomp};
use crate::base::{Errno, Error, Net, Result};
use crate::sys::file;
use crate::sys::signal::{self, Disposition};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The command ended; its exit status, 128 + n when signal n ended it.
    Exited(u8),
    /// bwrap could not set the sandbox up and said why on stderr; its exit status.
    NotStarted(i32),
}

/// What the process was like before it became a server, and what the command shall inherit.
#[derive(Clone, Copy, Debug)]
pub struct Inherited {
    umask: u32,
    open_files: Option<(u64, u64)>,
}

impl Inherited {
    /// Takes note of this process's umask and soft limit of open files.
    pub fn note() -> Inherited {
        let umask = file::umask(0o077);
        file::umask(umask);
        Inherited { umask, open_files: getrlimit(Resource::RLIMIT_NOFILE).ok() }
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
/// While the command runs, SIGINT and SIGQUIT are left to it (the terminal sends them to the whole foreground group, so
/// we and bwrap ignore them), SIGTERM and SIGHUP are passed on.
///
/// # Errors
/// When bwrap cannot be started.
pub fn run(
    bwrap: &Path,
    spec: &Spec,
    limits: &Enforced,
    inherited: Inherited,
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

    let inner = Arc::new(AtomicI32::new(0));
    // bwrap would die of a Ctrl-C and take the command with it, whatever that does about the signal. So bwrap inherits
    // that it is ignored, and `inside` gives the command its own way back.
    let mut restore = Vec::new();
    for number in [SIGINT, SIGQUIT] {
        if !signal::set(number, Disposition::Ignore).map_err(told)? {
            restore.push(number);
        }
    }
    let mut signals = Signals::new(wanted_signals()).map_err(|e| told(e.into()))?;
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
    let mut command = Command::new(bwrap);
    // Not by bwrap's --setenv and --unsetenv: process 1 of the sandbox, whose environment the command can read, would
    // have what bwrap itself was started with.
    command.env_clear().envs(spec.env.iter().map(|(k, v)| (k, v))).env(&spec.marker.0, &spec.marker.1);
    command.arg("--args").arg(args.as_raw_fd().to_string()).arg("--").args(inside::argv(
        &spec.argv,
        ready_in.as_raw_fd(),
        &restore,
        limits.each(),
        way,
    ));
    limits.apply(&mut command).map_err(|e| Error::sys("limit the command", e))?;
    let mut child = inherited
        .during(|| command.spawn())
        .map_err(|e| Error::on_path("start", bwrap.as_os_str().as_encoded_bytes(), e))?;
    drop((status_in, ready_in, args, filter, empty));
    let proxy = door.map(|(ours, _)| Proxy::start(spec.net.clone(), ours)).transpose()?;
    events.started(child.id());

    let handle = signals.handle();
    let (outer, theirs) = (child.id() as i32, inner.clone());
    let forwarder = std::thread::spawn(move || {
        for signal in signals.forever() {
            forward(signal, outer, theirs.load(Ordering::SeqCst));
        }
    });
    let watcher = std::thread::spawn(move || watch(status_out, &inner));
    let ended = std::thread::scope(|scope| {
        scope.spawn(|| {
            // The end of the file without a byte: the sandbox never stood.
            if matches!(File::from(ready_out).read(&mut [0]), Ok(1)) {
                events.ready();
            }
        });
        wait(&mut child)
    });
    handle.close();
    for (target, times) in proxy.iter().flat_map(|p| p.close()) {
        events.refused(&target, times);
    }
    let told = watcher.join().map_err(|_| Error::failure("the thread that watches the sandbox panicked"))?;
    forwarder.join().map_err(|_| Error::failure("the thread that passes signals on panicked"))?;
    let ended = ended.map_err(|e| Error::sys("wait for the sandbox", e))?;
    Ok(match told {
        Some(code) => Outcome::Exited(code),
        None => Outcome::NotStarted(ended.code().or(ended.signal().map(|s| 128 + s)).unwrap_or(1)),
    })
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

fn wait(child: &mut Child) -> std::io::Result<std::process::ExitStatus> {
    loop {
        match child.wait() {
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            other => return other,
        }
    }
}

/// A file in memory with these bytes, which a child inherits.
fn inheritable(bytes: &[u8]) -> std::result::Result<OwnedFd, Errno> {
    let mut file = File::from(memfd_create(c"sbx-fuse", MFdFlags::empty())?);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file.into())
}

/// Reads bwrap's status documents: notes the first process inside, and returns the command's exit status.
fn watch(from: OwnedFd, inner: &AtomicI32) -> Option<u8> {
    let mut code = None;
    let documents = serde_json::Deserializer::from_reader(File::from(from)).into_iter::<serde_json::Value>();
    for document in documents.map_while(|d| d.ok()) {
        let number = |key: &str| document.get(key).and_then(serde_json::Value::as_i64);
        if let Some(pid) = number("child-pid").and_then(|p| i32::try_from(p).ok()) {
            inner.store(pid, Ordering::SeqCst);
        }
        if let Some(exit) = number("exit-code") {
            code = Some(u8::try_from(exit).unwrap_or(u8::MAX));
        }
    }
    code
}

/// Sends `signal` to the command: the first child of `init`, the sandbox's process 1, which is bwrap's and ignores
/// signals. Before there is one, to bwrap.
fn forward(signal: i32, bwrap: i32, init: i32) {
    let target = if init == 0 { bwrap } else { first_child(init).unwrap_or(bwrap) };
    match Signal::try_from(signal).and_then(|s| kill(Pid::from_raw(target), s)) {
        Ok(()) | Err(nix::errno::Errno::ESRCH) => {}
        Err(e) => tracing::warn!("cannot pass signal {signal} on to process {target}: {e}"),
    }
}

/// The process that `parent` started first, from `/proc`.
fn first_child(parent: i32) -> Option<i32> {
    let mut found: Option<(u64, i32)> = None;
    for entry in std::fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<i32>().ok()) else { continue };
        let Ok(stat) = std::fs::read(format!("/proc/{pid}/stat")) else { continue };
        // The name, field 2, is in parentheses and may hold any byte; fields are counted after the last one.
        let Some(end) = stat.iter().rposition(|&b| b == b')') else { continue };
        let fields: Vec<&[u8]> = stat[end + 1..].trim_ascii().split(|&b| b == b' ').collect();
        let field = |i: usize| fields.get(i).and_then(|f| std::str::from_utf8(f).ok()?.parse::<u64>().ok());
        let (ppid, start) = (field(1), field(19));
        if ppid == u64::try_from(parent).ok() {
            let start = start.unwrap_or(u64::MAX);
            if found.is_none_or(|(first, _)| start < first) {
                found = Some((start, pid));
            }
        }
    }
    found.map(|(_, pid)| pid)
}

/// The signals to pass on. One that our caller had ignored (a background job of a script) stays ignored, also by the
/// command; a handler of ours would end that.
fn wanted_signals() -> Vec<i32> {
    let ignored = std::fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|s| s.lines().find_map(|l| l.strip_prefix("SigIgn:").map(str::trim).map(str::to_owned)))
        .and_then(|hex| u64::from_str_radix(&hex, 16).ok())
        .unwrap_or(0);
    [SIGTERM, SIGHUP].into_iter().filter(|s| ignored & (1 << (s - 1)) == 0).collect()
}
