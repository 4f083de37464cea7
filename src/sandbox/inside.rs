//! The last step before the command, inside the sandbox: this program again, which becomes the command.

use super::limits::EachProcess;
use crate::base::{Errno, Error, Result, quote};
use crate::sys::signal::{self, Disposition};
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The hidden command that is this step.
pub const INSIDE: &str = "inside-sandbox";

/// Where this program is in the sandbox: `/dev` is the one directory that is made anew in every sandbox.
pub(super) const PLACE: &str = "/dev/.sbx-fuse";

/// What bwrap executes: this step, which leads a process group, the terminal's if it is to be in the `foreground`, writes to
/// the descriptor `ready` that the sandbox stands, sets the signals `restore` back to their default, takes the limits
/// `each`, goes the `way` to the network, and becomes the command.
pub(super) fn argv(
    command: &[OsString],
    ready: i32,
    (foreground, restore): (bool, &[i32]),
    each: EachProcess,
    way: Way,
) -> Vec<OsString> {
    let mut argv: Vec<OsString> = vec![PLACE.into(), INSIDE.into(), format!("--ready={ready}").into()];
    if foreground {
        argv.push("--foreground".into());
    }
    if !restore.is_empty() {
        let numbers: Vec<String> = restore.iter().map(i32::to_string).collect();
        argv.push(format!("--default-signals={}", numbers.join(",")).into());
    }
    for (option, limit) in [("--memory", each.memory), ("--pids", each.pids)] {
        argv.extend(limit.map(|n| format!("{option}={n}").into()));
    }
    match way {
        Way::AsItIs => {}
        Way::Scoped => argv.push("--scoped".into()),
        Way::By(door) => {
            argv.push(format!("--door={}", door.fd).into());
            if door.host_loopback {
                argv.push("--host-loopback".into());
            }
        }
    }
    argv.push("--".into());
    argv.extend(command.iter().cloned());
    argv
}

/// What this step does about the network.
#[derive(Clone, Copy, Debug)]
pub(super) enum Way {
    /// Nothing.
    AsItIs,
    /// Leaves the abstract Unix sockets of the host, whose network the command has, out of reach.
    Scoped,
    /// Opens a door to a proxy.
    By(Door),
}

/// The way to a proxy outside.
#[derive(Clone, Copy, Debug)]
pub struct Door {
    /// A socket that takes the descriptor of the one that programs connect to.
    pub fd: i32,
    /// Whether a loopback address means the host's.
    pub host_loopback: bool,
}

impl Door {
    /// Opens it; returns the variables by which programs find it.
    ///
    /// # Errors
    /// When there is no loopback, or nobody takes the socket: the command must not run without what it was promised.
    pub fn open(self) -> Result<Vec<(OsString, OsString)>> {
        let told = |e| Error::sys("make the way to the network proxy", e);
        crate::sys::socket::inherited(self.fd)
            .and_then(|out| super::proxy::open_door(out, self.host_loopback))
            .map_err(told)
    }
}

/// Says on the descriptor `ready` that the sandbox stands, and closes it.
///
/// # Errors
/// When nobody listens: who made the sandbox was killed before the sandbox was bound to its life, and nobody would ever
/// end it.
pub fn tell_ready(ready: i32) -> Result<()> {
    std::fs::OpenOptions::new()
        .write(true)
        .open(format!("/proc/self/fd/{ready}"))
        .and_then(|mut pipe| pipe.write_all(b"."))
        .map_err(Errno::from)
        .and_then(|()| nix::unistd::close(ready).map_err(Errno::from))
        .map_err(|e| Error::sys("tell that the sandbox stands", e))
}

/// Leaves the abstract Unix sockets of the host out of reach, where the kernel can do that: a screen, a bus or a container
/// service that listens there takes orders from whoever has the host's network, and is none of the network.
///
/// # Errors
/// When the kernel could and does not.
pub fn leave_abstract_sockets() -> Result<()> {
    let told = |e| Error::sys("keep the command from abstract sockets of the host", e);
    if !crate::sys::process::leave_abstract_sockets().map_err(told)? {
        tracing::debug!("this kernel has no Landlock that knows of abstract sockets");
    }
    Ok(())
}

/// Becomes `command`, with the variables `env` and with the signals `restore` set to their default. Returns only when that fails: the exit code that
/// a shell gives then, 127 for what is not there and 126 for what cannot be executed, and a sentence.
///
/// # Errors
/// When a signal cannot be set or there is no command.
pub fn exec(restore: &[i32], env: Vec<(OsString, OsString)>, command: &[OsString]) -> Result<(u8, String)> {
    for &number in restore {
        signal::set(number, Disposition::Default)
            .map_err(|e| Error::sys("give the command its signals", e))?;
    }
    crate::sys::process::leave_keyring().map_err(|e| Error::sys("leave the keyring of the session", e))?;
    let (program, args) = command.split_first().ok_or_else(|| Error::usage("there is no command"))?;
    let shown = quote(program.as_bytes());
    let e = Errno::from(Command::new(program).args(args).envs(env).exec());
    // execvp(3) says EACCES, too, when a directory of $PATH may not be searched and the command is nowhere.
    Ok(match e {
        Errno::EACCES if !program.as_bytes().contains(&b'/') && !on_path(program) => {
            (127, format!("{shown}: command not found"))
        }
        Errno::ENOENT | Errno::ENOTDIR if program.as_bytes().contains(&b'/') => {
            (127, format!("{shown}: {e}"))
        }
        Errno::ENOENT | Errno::ENOTDIR => (127, format!("{shown}: command not found")),
        e => (126, format!("cannot run {shown}: {e}")),
    })
}

fn on_path(program: &OsStr) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).symlink_metadata().is_ok())
}
