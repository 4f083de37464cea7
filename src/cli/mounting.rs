//! Which way of mounting this host allows, and what to do when it allows none.

use super::output::Out;
use crate::base::{Error, ErrorKind, Result};
use crate::sandbox::{Capability, Probe, Step, find_program, probe};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The hidden command that tries mounting in a process of its own.
pub(super) const PROBE: &str = "probe-mount";

/// How the view is mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// By ourselves; `own` after entering namespaces of our own.
    Direct {
        /// Whether the mount is seen by us and our children only.
        own: bool,
    },
    /// By the setuid helper `fusermount3`.
    Helper,
}

/// The hidden command: tries and prints the outcome.
pub(super) fn probe_here() -> Result<u8> {
    let mut out = Out::new();
    out.json_line(&crate::sandbox::probe_here())?;
    out.flush()?;
    Ok(0)
}

/// The way for `run`, whose mount only the sandbox needs to see: by ourselves, unless that does not work, or does not
/// work for what the roots hold.
///
/// In a user namespace of our own only we exist: files of other users or groups can neither be written to, even by
/// those whom their mode lets, nor be renamed or removed (the kernel refuses with `EACCES` and `EOVERFLOW`). So the
/// helper is taken for roots with such files at their top, where there is one.
///
/// # Errors
/// `Missing` with the remedy when there is none.
pub(super) fn for_run(roots: &[&Path]) -> Result<Way> {
    let probe = probe(PROBE)?;
    let helper = find_program("fusermount3", roots);
    let helper_works = helper.as_deref().is_some_and(is_setuid_root) && !device_fails(&probe);
    match probe.can {
        Capability::Privileged => Ok(Way::Direct { own: true }),
        Capability::OwnNamespace if helper_works && roots.iter().any(|r| holds_others(r)) => Ok(Way::Helper),
        Capability::OwnNamespace => Ok(Way::Direct { own: true }),
        Capability::None if helper.is_some() && !device_fails(&probe) => Ok(Way::Helper),
        Capability::None => Err(no_way(&probe, helper.is_some())),
    }
}

/// Whether a program is root's and set-uid: seen from a sandbox, no program is.
pub(super) fn is_setuid_root(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|m| m.uid() == 0 && m.mode() & 0o4000 != 0)
}

/// Whether the directory or one of its entries is another user's or group's. Only a sample: a walk of the whole tree
/// would cost more than the run.
fn holds_others(dir: &Path) -> bool {
    const SAMPLE: usize = 4096;
    let (uid, gid) = crate::sys::process::effective_ids();
    let is_others = |m: std::io::Result<std::fs::Metadata>| m.is_ok_and(|m| (m.uid(), m.gid()) != (uid, gid));
    let entries = std::fs::read_dir(dir).into_iter().flatten().take(SAMPLE);
    is_others(dir.symlink_metadata()) || entries.flatten().any(|e| is_others(e.metadata()))
}

/// The way for `mount`, whose mount everybody is to see.
///
/// # Errors
/// `Missing` with the remedy when there is none.
pub(super) fn for_mount(roots: &[&Path]) -> Result<Way> {
    let probe = probe(PROBE)?;
    match (probe.can, find_program("fusermount3", roots)) {
        (Capability::Privileged, _) => Ok(Way::Direct { own: false }),
        (_, Some(_)) if !device_fails(&probe) => Ok(Way::Helper),
        (Capability::OwnNamespace, None) => Err(Error::new(
            ErrorKind::Missing,
            "fusermount3 is not installed; without it only root can make a mount that other programs see",
        )
        .hint(format!("{FUSE3}; `sbx-fuse run` works without it"))),
        (Capability::None, helper) | (Capability::OwnNamespace, helper) => {
            Err(no_way(&probe, helper.is_some()))
        }
    }
}

fn device_fails(probe: &Probe) -> bool {
    matches!(probe.failed, Some((Step::OpenDevice, _)))
}

const FUSE3: &str = "run: sudo apt install fuse3   (Fedora: sudo dnf install fuse3)";

fn no_way(probe: &Probe, helper: bool) -> Error {
    let mut e = Error::new(ErrorKind::Missing, "this host allows no way of mounting");
    if let Some(why) = own_failure(probe) {
        e.causes.push(why);
    }
    if !helper && !device_fails(probe) {
        e.causes.push("fusermount3, the other way, is not installed".into());
    }
    let remedy = remedy(probe).or((!helper).then(|| FUSE3.to_owned()));
    e.hint(format!("{}; all checks: sbx-fuse doctor", remedy.unwrap_or_else(|| "see below".into())))
}

/// Why we cannot mount by ourselves, in a sentence; `None` when we can.
pub(super) fn own_failure(probe: &Probe) -> Option<String> {
    let (step, errno) = probe.failed?;
    let errno = crate::base::Errno(errno);
    Some(match step {
        Step::Namespace => format!("a user namespace of our own cannot be made: {errno}"),
        Step::OpenDevice => format!("/dev/fuse cannot be opened: {errno}"),
        Step::Mount => format!("mounting in a user namespace of our own is refused: {errno}"),
    })
}

/// What makes the failed step work; `None` when nothing failed.
pub(super) fn remedy(probe: &Probe) -> Option<String> {
    let (step, errno) = probe.failed?;
    Some(match step {
        Step::OpenDevice if errno == libc::ENOENT || errno == libc::ENXIO || errno == libc::ENODEV => {
            "run: sudo modprobe fuse   (in a container: start it with --device /dev/fuse)".into()
        }
        Step::OpenDevice => {
            "run: sudo chmod 0666 /dev/fuse   (in a container: start it with --device /dev/fuse)".into()
        }
        Step::Namespace | Step::Mount => namespace_remedy(),
    })
}

/// The value of a number under `/proc/sys`, when it is there.
pub(super) fn sysctl(name: &str) -> Option<u64> {
    std::fs::read_to_string(format!("/proc/sys/{name}")).ok()?.trim().parse().ok()
}

/// What lets an unprivileged process make user namespaces.
pub(super) fn namespace_remedy() -> String {
    if sysctl("kernel/apparmor_restrict_unprivileged_userns") == Some(1) {
        return "run: sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0".into();
    }
    if sysctl("kernel/unprivileged_userns_clone") == Some(0) {
        return "run: sudo sysctl -w kernel.unprivileged_userns_clone=1".into();
    }
    if sysctl("user/max_user_namespaces") == Some(0) {
        return "run: sudo sysctl -w user.max_user_namespaces=15000".into();
    }
    "allow user namespaces (in a container: run it with --security-opt seccomp=unconfined, or --privileged)"
        .into()
}

/// How to get fusermount3.
pub(super) fn helper_remedy() -> &'static str {
    FUSE3
}
