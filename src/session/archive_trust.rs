//! What an archive that was not written here may not decide here.

use super::meta::Meta;
use super::remove::remove_tree;
use super::store;
use crate::base::{Errno, Error, Result, quote};
use crate::sys::{dir, file};
use std::os::fd::AsFd;
use std::path::Path;

/// Takes from the session in `dir`, which is open as `top`, what would act here for whoever wrote the archive; says in
/// sentences what that was.
///
/// # Errors
/// When it cannot be taken away.
pub(super) fn distrust(top: &std::os::fd::OwnedFd, dir: &Path, meta: &mut Meta) -> Result<Vec<String>> {
    let mut said = Vec::new();
    if forget_applied(top)? {
        said.push(
            "what it had applied cannot be undone here: the log of that is only trusted where it was written"
                .into(),
        );
    }
    if !meta.policy.show.is_empty() {
        let shown = std::mem::take(&mut meta.policy.show).join(" ");
        said.push(format!(
            "it had {} shown to its commands, which is only taken where it was written",
            quote(shown.as_bytes())
        ));
        store::write_meta(dir, meta)?;
    }
    Ok(said)
}

/// Removes the log of what was applied and what that replaced: whoever could write it could have the next command do
/// to the real tree what the log calls taking back. Says whether there was an application.
fn forget_applied(session: &std::os::fd::OwnedFd) -> Result<bool> {
    let told = |e: Errno| Error::on_path("remove", &b"apply"[..], e);
    let had = match file::openat(session.as_fd(), b"apply", libc::O_RDONLY | libc::O_DIRECTORY, 0) {
        // Each in a directory with a number; beside them a lock and notes.
        Ok(dir) => dir::entries(dir.as_fd()).map_err(told)?.iter().any(|e| e.name[0].is_ascii_digit()),
        Err(Errno::ENOENT) => return Ok(false),
        Err(e) => return Err(told(e)),
    };
    remove_tree(session.as_fd(), b"apply").map_err(told)?;
    Ok(had)
}
