//! A user and mount namespace of our own: the way to mount without root and without a helper.

use crate::base::{Errno, Error, Result, Sys};
use crate::sys::{file, mount, process};
use nix::sched::{CloneFlags, setns};
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Command, Stdio};

/// One step on the way to a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Making the namespaces.
    Namespace,
    /// Opening `/dev/fuse` for reading and writing.
    OpenDevice,
    /// `mount(2)` of a FUSE file system.
    Mount,
}

/// What a process of ours could do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Capability {
    /// It is root and mounts without a user namespace.
    Privileged,
    /// It mounts in a user namespace of its own.
    OwnNamespace,
    /// It cannot mount by itself.
    None,
}

/// The outcome of trying to mount without a helper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    /// What works.
    pub can: Capability,
    /// The step that failed and its errno, when nothing works.
    pub failed: Option<(Step, i32)>,
}

/// Moves this process, which must have one thread only, into fresh namespaces in which it may mount. Root gets a mount
/// namespace; others a user namespace as well, in which they are who they were and nobody else exists. No mount made
/// here is seen outside.
///
/// # Errors
/// As `unshare(2)`, or as writing the id maps (user_namespaces(7)).
pub fn enter() -> Result<Capability> {
    try_enter().map_err(|e| Error::sys("make a namespace of our own", e).hint("see: sbx-fuse doctor"))
}

fn try_enter() -> Sys<Capability> {
    let (uid, gid) = process::effective_ids();
    let can = if uid == 0 && mount::unshare(libc::CLONE_NEWNS).is_ok() {
        Capability::Privileged
    } else {
        mount::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS)?;
        // setgroups must be given up before an unprivileged process may map its group.
        let write = |path: &str, text: String| std::fs::write(path, text).map_err(Errno::from);
        write("/proc/self/setgroups", "deny".into())?;
        write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
        write("/proc/self/gid_map", format!("{gid} {gid} 1"))?;
        Capability::OwnNamespace
    };
    mount::make_slave()?;
    Ok(can)
}

/// Moves this process, which must have one thread only, into the user and mount namespaces of process `pid`, one of the
/// same user: what that process mounted is seen here then.
///
/// # Errors
/// As `setns(2)`, or when the process is gone.
pub fn join(pid: u32) -> Result<()> {
    let enter = |kind: &str, flag: CloneFlags| -> Sys<()> {
        let theirs = file::open_path(format!("/proc/{pid}/ns/{kind}").as_bytes(), libc::O_RDONLY)?;
        let ours = file::open_path(format!("/proc/self/ns/{kind}").as_bytes(), libc::O_RDONLY)?;
        // A namespace that we are in cannot be entered again (setns(2), EINVAL).
        if file::stat(theirs.as_fd())?.ino == file::stat(ours.as_fd())?.ino {
            return Ok(());
        }
        Ok(setns(theirs, flag)?)
    };
    enter("user", CloneFlags::CLONE_NEWUSER)
        .and_then(|()| enter("mnt", CloneFlags::CLONE_NEWNS))
        .map_err(|e| Error::sys(&format!("enter the namespaces of process {pid}"), e))
}

/// Tries, in this process, all that a mount needs, and says how far it came. The process is of no other use afterwards.
pub fn probe_here() -> Probe {
    let failed = |step, e: Errno| Probe { can: Capability::None, failed: Some((step, e.0)) };
    let can = match try_enter() {
        Ok(can) => can,
        Err(e) => return failed(Step::Namespace, e),
    };
    let device = match file::open_path(b"/dev/fuse", libc::O_RDWR) {
        Ok(device) => device,
        Err(e) => return failed(Step::OpenDevice, e),
    };
    let (uid, gid) = process::effective_ids();
    let data = format!("fd={},rootmode=40000,user_id={uid},group_id={gid}", device.as_raw_fd());
    let flags = libc::MS_NOSUID | libc::MS_NODEV;
    // Any directory will do: the mount is seen by this process only, and gone with it.
    match mount::mount(b"sbx-fuse-probe", b"/proc", b"fuse", flags, data.as_bytes()) {
        Ok(()) => Probe { can, failed: None },
        Err(e) => failed(Step::Mount, e),
    }
}

/// Finds out, in a process of its own (this program with the argument `hidden`), whether we can mount by ourselves.
///
/// # Errors
/// When that process cannot be started or says nothing.
pub fn probe(hidden: &str) -> Result<Probe> {
    let out = Command::new("/proc/self/exe")
        .arg(hidden)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .map_err(|e| Error::sys("start a process to try mounting", e))?;
    serde_json::from_slice(&out.stdout)
        .map_err(|e| Error::failure(format!("the process that tried mounting said nothing useful: {e}")))
}
