//! The directories in which a machine's services have their sockets, `/run` above all.
//!
//! Neither a read-only mount nor a network namespace keeps a program from connecting to a socket that has a path: it is
//! the file that counts. So a command without the network does not see these directories, but for what programs read
//! in them.

use crate::base::{Access, Rules};
use std::path::{Path, PathBuf};

/// Where it is; the second is the first on all but old systems.
pub(super) const DIRS: [&str; 2] = ["/run", "/var/run"];

/// What programs read there, and nothing that would act for them: how names are resolved, what the machine is made of,
/// and file systems of the user's that are mounted there.
const KEPT: [&str; 35] = [
    // What /etc/resolv.conf leads to. The sockets beside these files would resolve names outside of the sandbox.
    "/run/systemd/resolve/resolv.conf",
    "/run/systemd/resolve/stub-resolv.conf",
    "/run/resolvconf/resolv.conf",
    "/run/NetworkManager/resolv.conf",
    "/run/NetworkManager/no-stub-resolv.conf",
    "/run/connman/resolv.conf",
    "/run/netconfig/resolv.conf",
    // Users that are in no file: asked for by every getpwuid(3).
    "/run/systemd/userdb",
    "/run/userdb",
    "/run/nslcd/socket",
    // NixOS and Guix: all programs.
    "/run/current-system",
    "/run/booted-system",
    "/run/opengl-driver",
    "/run/opengl-driver-32",
    "/run/wrappers",
    "/run/privileged",
    "/run/setuid-programs",
    // Devices.
    "/run/udev/data",
    "/run/udev/tags",
    "/run/nvidia",
    // Disks and shares.
    "/run/media",
    "/run/mount",
    // What containers are told by, and what toolbox and flatpak show of their host.
    "/run/.containerenv",
    "/run/.toolboxenv",
    "/run/host/container-manager",
    "/run/host/etc",
    "/run/host/usr",
    "/run/host/os-release",
    "/run/host/fonts",
    "/run/host/user-fonts",
    "/run/utmp",
    "/run/lock",
    "/run/log",
    "/run/ostree-booted",
    "/run/shm",
];

/// Files elsewhere that may be symlinks to files in such a directory.
const LEAD_THERE: [&str; 5] =
    ["/etc/resolv.conf", "/etc/hosts", "/etc/hostname", "/etc/localtime", "/etc/machine-id"];

/// What of these directories is there and kept. Where a rule says something about what lies beneath, that is not: what
/// is brought back is so as it is on the host.
pub(super) fn kept(rules: &Rules) -> Vec<PathBuf> {
    let led = LEAD_THERE.iter().filter_map(|p| Path::new(p).canonicalize().ok());
    let is_file = |p: &Path| p.symlink_metadata().is_ok_and(|m| m.is_file());
    let led = led.filter(|p| is_file(p) && DIRS.iter().any(|d| p.starts_with(d)));
    let mut all: Vec<PathBuf> = KEPT.iter().map(PathBuf::from).chain(led).collect();
    all.retain(|path| {
        let (access, beneath) = rules.walk(path);
        path.symlink_metadata().is_ok() && access < Some(Access::Deny) && beneath.is_none()
    });
    all.sort();
    all.dedup();
    // What lies in another comes with that.
    let outer = all.clone();
    all.retain(|path| !outer.iter().any(|o| o != path && path.starts_with(o)));
    all
}
