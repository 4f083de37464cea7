//! The screen, for `--gui`: the sockets of the display servers, and the variables that lead to them.

use crate::base::{Error, ErrorKind, Result, quote};
use crate::sandbox::Bind;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The variables that programs find the screen by.
pub(super) const VARIABLES: [&str; 4] = ["DISPLAY", "WAYLAND_DISPLAY", "WAYLAND_SOCKET", "XAUTHORITY"];

/// Where the sandbox has the key to the X server: `/dev` is made anew in every sandbox.
const KEY: &str = "/dev/.sbx-fuse-xauthority";

/// What the sandbox must see of the host.
///
/// # Errors
/// `Usage` when there is no screen, `Missing` when its socket is not there.
pub(super) fn shared() -> Result<Vec<Bind>> {
    let (x11, wayland) = (x11_socket(), wayland_socket());
    if x11.is_none() && wayland.is_none() {
        return Err(Error::usage(
            "there is no screen for --gui: neither WAYLAND_DISPLAY nor a local DISPLAY is set",
        )
        .hint("leave --gui out, or run it in a graphical session"));
    }
    let mut binds = Vec::new();
    for socket in x11.into_iter().chain(wayland) {
        if socket.symlink_metadata().is_err() {
            let shown = quote(socket.as_os_str().as_bytes());
            return Err(Error::new(ErrorKind::Missing, format!("the screen's socket {shown} is not there"))
                .hint("correct DISPLAY or WAYLAND_DISPLAY, or leave --gui out"));
        }
        binds.push(Bind { from: socket.clone(), to: socket });
    }
    binds.extend(key().map(|from| Bind { from, to: KEY.into() }));
    Ok(binds)
}

/// The variables that are other inside.
pub(super) fn variables() -> Option<(OsString, OsString)> {
    key().map(|_| ("XAUTHORITY".into(), KEY.into()))
}

fn key() -> Option<PathBuf> {
    let named = std::env::var_os("XAUTHORITY").map(PathBuf::from);
    let usual = || std::env::var_os("HOME").map(|h| PathBuf::from(h).join(".Xauthority"));
    named.or_else(usual)?.canonicalize().ok()
}

/// `[unix]:NUMBER[.SCREEN]`; a display with a host is reached by the network.
fn x11_socket() -> Option<PathBuf> {
    let display = std::env::var("DISPLAY").ok()?;
    let number = display.strip_prefix("unix").unwrap_or(&display).strip_prefix(':')?.split('.').next()?;
    let number: u32 = number.parse().ok()?;
    Some(PathBuf::from(format!("/tmp/.X11-unix/X{number}")))
}

/// A name in `$XDG_RUNTIME_DIR`, or a path.
fn wayland_socket() -> Option<PathBuf> {
    let display = std::env::var_os("WAYLAND_DISPLAY").filter(|d| !d.is_empty())?;
    if Path::new(&display).is_absolute() {
        return Some(display.into());
    }
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|p| p.is_absolute())?;
    Some(runtime.join(display))
}
