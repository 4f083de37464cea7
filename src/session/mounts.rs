//! Mounts of ours that are in this mount namespace, and taking away those that no server answers for.

use crate::base::{Errno, Error, Result};
use crate::sys::{file, mount};
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A mount whose source says that it is ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// Where.
    pub at: PathBuf,
    /// What it says to be, e.g. `sbx-fuse:brave-otter`.
    pub source: Vec<u8>,
}

/// All mounts of ours in this mount namespace, in the order they were made.
///
/// # Errors
/// When `/proc/self/mountinfo` cannot be read.
pub fn mounted() -> Result<Vec<Mounted>> {
    let text = std::fs::read("/proc/self/mountinfo")
        .map_err(|e| Error::on_path("read", "/proc/self/mountinfo", e))?;
    Ok(text.split(|&b| b == b'\n').filter_map(parse).collect())
}

/// One line of mountinfo (proc_pid_mountinfo(5)): the 5th field is the mount point; after a lone `-` come type and
/// source.
fn parse(line: &[u8]) -> Option<Mounted> {
    let mut fields = line.split(|&b| b == b' ');
    let at = unescape(fields.nth(4)?);
    fields.by_ref().find(|f| f == b"-")?;
    let kind = fields.next()?;
    let source = unescape(fields.next()?);
    (kind.starts_with(b"fuse") && source.starts_with(b"sbx-fuse"))
        .then(|| Mounted { at: PathBuf::from(OsString::from_vec(at)), source })
}

/// Undoes the `\ooo` escapes of mountinfo.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&b, tail)) = rest.split_first() {
        let octal = tail.get(..3).filter(|_| b == b'\\').and_then(|d| std::str::from_utf8(d).ok());
        match octal.and_then(|d| u8::from_str_radix(d, 8).ok()) {
            Some(byte) => {
                out.push(byte);
                rest = &tail[3..];
            }
            None => {
                out.push(b);
                rest = tail;
            }
        }
    }
    out
}

/// Whether no server answers any more for the mount at `at`.
///
/// Only statfs(2) tells: it asks the server each time, while stat(2) and listings of a dead mount may come from what the
/// kernel remembers. A server that lives and does not answer keeps the caller waiting.
pub fn is_dead(at: &Path) -> bool {
    let asked = file::open_path(at.as_os_str().as_bytes(), libc::O_PATH | libc::O_DIRECTORY)
        .and_then(|top| file::statfs(top.as_fd()));
    // The first while its server is dying, the second from then on.
    matches!(asked, Err(Errno(libc::ECONNABORTED | libc::ENOTCONN)))
}

/// Takes away a mount of ours at `at` whose server is dead. The caller holds the session's lock and so knows that.
///
/// # Errors
/// `Failure` with the command that a person can run, when neither `umount2(2)` nor `fusermount3` does it.
pub fn unmount_stale(at: &Path) -> Result<()> {
    match mount::umount(at.as_os_str().as_bytes(), true) {
        Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => return Ok(()),
        Err(_) => {}
    }
    unmount_by_helper(at, true)
}

/// Takes away the mount at `at` with the set-uid helper; one that is in use only when `lazy`.
///
/// # Errors
/// `Failure` with errno `EBUSY` when the mount is in use, else with what the helper said.
pub fn unmount_by_helper(at: &Path, lazy: bool) -> Result<()> {
    let mut command = Command::new("fusermount3");
    command.arg("-u").args(lazy.then_some("-z")).arg("--").arg(at).stdin(Stdio::null()).env("LC_ALL", "C");
    let shown = crate::base::quote(at.as_os_str().as_bytes());
    let mut e = Error::failure(format!("cannot unmount {shown}"));
    match command.output() {
        Ok(out) if out.status.success() => return Ok(()),
        Ok(out) => {
            let busy = out.stderr.windows(4).any(|w| w == b"busy");
            if busy {
                return Err(Error::on_path("unmount", at.as_os_str().as_bytes(), Errno::EBUSY)
                    .hint("end the programs that use it, then try again"));
            }
            e.causes.push(crate::base::quote(out.stderr.trim_ascii()));
        }
        Err(why) => e.causes.push(format!("fusermount3: {}", Errno::from(why))),
    }
    Err(e.hint(format!("run: fusermount3 -u -z {shown}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_lines_of_ours_are_found() {
        let line =
            b"36 35 0:52 / /mnt/a\\040b rw,nosuid shared:1 master:2 - fuse sbx-fuse:brave-otter rw,user_id=0";
        let m = parse(line).unwrap();
        assert_eq!(m.at, Path::new("/mnt/a b"));
        assert_eq!(m.source, b"sbx-fuse:brave-otter");
        assert_eq!(parse(b"36 35 0:52 / /x rw - ext4 /dev/vda rw"), None);
        assert_eq!(parse(b""), None);
        assert_eq!(parse(b"1 2 3:4 / /x rw -"), None);
    }
}
