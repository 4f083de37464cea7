//! Sockets of the host that a command must not reach: whoever may connect to them has a service act for it, outside.

use crate::base::{Error, Net, Result};
use std::ffi::OsStr;
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Those that lead out of the sandbox altogether, since they run commands or containers; and directories of such. They
/// are out of reach with `--net`, too.
const COMMANDING: [&str; 20] = [
    "/run/docker.sock",
    "/run/docker",
    "/run/podman",
    "/run/containerd",
    "/run/buildkit",
    "/run/crio",
    "/run/dbus/system_bus_socket",
    "/run/systemd/private",
    "/run/snapd.socket",
    "/run/libvirt",
    "/run/incus",
    "/run/lxd",
    "/run/screen",
    "/run/tmux",
    "/run/WSL",
    "/run/host/run",
    "/var/lib/lxd/unix.socket",
    "/var/snap/lxd/common",
    "/var/lib/incus",
    "/var/lib/libvirt",
];

/// How old a socket is that will be there a moment later, too: what is gone when bwrap comes to cover it keeps the sandbox
/// from being made, and sockets of programs that just started come and go.
const SETTLED: Duration = Duration::from_secs(60);

/// Answers who is who, and nothing else.
const HARMLESS: &str = "/var/lib/sss/pipes/nss";

/// The sockets to be covered: without the network all that programs of this network namespace have had at a path for a
/// minute, with all of it those that run commands.
///
/// # Errors
/// When the kernel does not tell them.
pub(super) fn masked(net: &Net) -> Result<Vec<PathBuf>> {
    const LIST: &str = "/proc/net/unix";
    let listed = match std::fs::read(LIST) {
        Ok(text) => bound(&text),
        // A kernel without Unix sockets has none to hide.
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(e) => {
            let e = Error::on_path("read", LIST.as_bytes(), e);
            return Err(e.hint("by it the sockets of services are found, which a command must not reach"));
        }
    };
    let commanding = |path: &Path| COMMANDING.iter().any(|c| path.starts_with(c));
    // What a container was given of its host is in no list of this network namespace.
    let named = COMMANDING.iter().map(PathBuf::from);
    let mut all: Vec<PathBuf> = listed
        .into_iter()
        .chain(named)
        .filter_map(|path| path.canonicalize().ok())
        .filter_map(|path| Some((path.symlink_metadata().ok()?, path)))
        .filter(|(found, _)| !found.is_dir())
        .filter(|(found, path)| {
            commanding(path) || (*net != Net::All && path != Path::new(HARMLESS) && is_settled(found))
        })
        .map(|(_, path)| path)
        .collect();
    all.sort();
    all.dedup();
    Ok(all)
}

fn is_settled(found: &Metadata) -> bool {
    let age = found.modified().ok().and_then(|made| made.elapsed().ok());
    age.is_some_and(|age| age >= SETTLED)
}

/// The absolute paths in a list like `/proc/net/unix` (proc_pid_net(5)): a heading, then lines of eight fields, the last
/// of which is a path or the name of an abstract socket, or not there.
fn bound(text: &[u8]) -> Vec<PathBuf> {
    let path = |line: &[u8]| {
        let mut rest = line;
        for _ in 0..7 {
            let end = rest.iter().position(|&b| b == b' ')?;
            rest = rest[end..].trim_ascii_start();
        }
        rest.starts_with(b"/").then(|| PathBuf::from(OsStr::from_bytes(rest)))
    };
    text.split(|&b| b == b'\n').skip(1).filter_map(path).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_sockets_are_read_from_the_kernels_list() {
        let text = b"Num       RefCount Protocol Flags    Type St Inode Path\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 12345 /run/a b/c.sock\n\
            0000000000000000: 00000003 00000000 00000000 0001 03   345\n\
            0000000000000000: 00000002 00000000 00010000 0001 01  2345 @/tmp/abstract\n\
            0000000000000000: 00000002 00000000 00010000 0005 01  2346 ../relative\n";
        assert_eq!(bound(text), [PathBuf::from("/run/a b/c.sock")]);
    }
}
