//! Finding the host's own programs.

use std::path::{Path, PathBuf};

/// The program `name` on `$PATH`, leaving out places that are relative or beneath one of `distrusted`: what lies in a
/// root may be of a sandbox's making and never runs on the host.
pub fn find_program(name: &str, distrusted: &[&Path]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    std::env::split_paths(&path)
        .filter(|dir| dir.is_absolute())
        .filter_map(|dir| dir.join(name).canonicalize().ok().map(|real| (dir, real)))
        .filter(|(dir, real)| {
            !distrusted.iter().any(|d| *d != Path::new("/") && (dir.starts_with(d) || real.starts_with(d)))
        })
        .map(|(_, real)| real)
        .find(|real| {
            let fd = nix::fcntl::AT_FDCWD;
            let bytes = real.as_os_str().as_encoded_bytes();
            real.symlink_metadata().is_ok_and(|m| m.is_file())
                && crate::sys::file::access_at(fd, bytes, libc::X_OK).is_ok()
        })
}
