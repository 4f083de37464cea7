//! Dispositions of signals. Handlers are left to `signal-hook`; these two need none.

use super::fault::point;
use super::last;
use crate::base::Sys;

/// What a signal does to this process, and to programs it executes (execve(2) keeps both of these).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// `SIG_DFL`.
    Default,
    /// `SIG_IGN`.
    Ignore,
}

/// `signal(2)`: sets what `signal` does; returns whether it was ignored before.
///
/// # Errors
/// `EINVAL` for a signal that cannot be changed.
pub fn set(signal: i32, to: Disposition) -> Sys<bool> {
    point()?;
    let handler = match to {
        Disposition::Default => libc::SIG_DFL,
        Disposition::Ignore => libc::SIG_IGN,
    };
    // SAFETY: neither disposition runs code of ours.
    let old = unsafe { libc::signal(signal, handler) };
    if old == libc::SIG_ERR { Err(last()) } else { Ok(old == libc::SIG_IGN) }
}
