//! Mounting with the set-uid helper `fusermount3` (fusermount3(1)): it mounts for us and hands the device over.

use super::mount::Options;
use crate::base::{Error, ErrorKind, Result, quote};
use crate::sys::socket;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};

const PROGRAM: &str = "fusermount3";

/// Mounts at `mountpoint`; gives the device, on which the kernel has sent its greeting.
///
/// # Errors
/// `ErrorKind::Missing` when there is no helper, else what it said.
pub(super) fn mount(mountpoint: &Path, options: &Options) -> Result<OwnedFd> {
    let (ours, theirs) = socket::pair().map_err(|e| Error::sys("make a pair of sockets", e))?;
    let child = Command::new(PROGRAM)
        .arg("-o")
        .arg(words(options))
        .arg("--")
        .arg(mountpoint)
        // Which descriptor to send the device to.
        .env("_FUSE_COMMFD", "0")
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| failed(mountpoint, &e.to_string(), e.kind() == std::io::ErrorKind::NotFound))?;
    let device = socket::receive_fd(ours.as_fd()).map_err(|e| Error::sys("hear from fusermount3", e))?;
    let out = child.wait_with_output().map_err(|e| Error::sys("wait for fusermount3", e))?;
    device.ok_or_else(|| failed(mountpoint, &quote(out.stderr.trim_ascii()), false))
}

fn failed(mountpoint: &Path, why: &str, missing: bool) -> Error {
    let at = quote(mountpoint.as_os_str().as_bytes());
    let mut error = Error::failure(format!("cannot mount at {at} with {PROGRAM}: {why}")).hint(
        "mount at a directory that is yours and that you may write to; what this host lacks: sbx-fuse doctor",
    );
    if missing {
        error.kind = ErrorKind::Missing;
        error.hint = Some("install the package 'fuse3'".into());
    }
    error
}

/// The options in the helper's words. It adds `nosuid` and `nodev` for who is not root.
fn words(options: &Options) -> String {
    let escaped = |text: &str| text.replace('\\', "\\\\").replace(',', "\\,");
    let mut words = format!(
        "fsname={},subtype={},default_permissions",
        escaped(&options.fsname),
        escaped(&options.subtype)
    );
    let flags = [
        (libc::MS_RDONLY, "ro"),
        (libc::MS_NOSUID, "nosuid"),
        (libc::MS_NODEV, "nodev"),
        (libc::MS_NOEXEC, "noexec"),
        (libc::MS_NOATIME, "noatime"),
        (libc::MS_SYNCHRONOUS, "sync"),
        (libc::MS_DIRSYNC, "dirsync"),
    ];
    let set = flags.iter().filter(|(flag, _)| options.flags & flag != 0).map(|(_, word)| *word);
    for word in set.chain(options.allow_other.then_some("allow_other")) {
        words.push(',');
        words.push_str(word);
    }
    words
}

/// Takes the mount at `mountpoint` out of sight; programs that use it go on.
///
/// # Errors
/// With what the helper said.
pub(super) fn unmount(mountpoint: &Path) -> Result<()> {
    let out = Command::new(PROGRAM)
        .args(["-u", "-z", "--"])
        .arg(mountpoint)
        .stdin(Stdio::null())
        .output()
        .map_err(|e| Error::sys("start fusermount3", e))?;
    if out.status.success() {
        return Ok(());
    }
    let at = quote(mountpoint.as_os_str().as_bytes());
    Err(Error::failure(format!("cannot unmount {at}: {}", quote(out.stderr.trim_ascii()))))
}
