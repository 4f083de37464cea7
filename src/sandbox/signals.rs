//! The signals that reach us while we run a command.

use crate::base::{Errno, Error, Result};
use crate::sys::proc;
use nix::unistd::Pid;
use parking_lot::{Mutex, MutexGuard};
use signal_hook::consts::{
    SIGALRM, SIGCONT, SIGHUP, SIGINT, SIGPROF, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGVTALRM, SIGWINCH,
};
use signal_hook::iterator::{Handle, Signals};

/// What asks a command to end: for all of its process group, as a terminal and timeout(1) mean it.
const ENDING: [i32; 4] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM];
/// What is the command's own affair, and would end a child of its that does not know of it.
const OTHERS: [i32; 6] = [SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGWINCH];

/// From its making on these signals no longer do to us what they do by default; they wait to be asked for.
#[derive(Debug)]
pub struct Caught {
    signals: Mutex<Signals>,
    handle: Handle,
    /// The first one that asked for the end before there was a command that could be told.
    first: Mutex<Option<i32>>,
}

impl Caught {
    /// Catches signals from now on. One that our caller had ignored (a background job of a script) stays ignored, also by
    /// the command; a handler of ours would end that.
    ///
    /// # Errors
    /// As `sigaction(2)`.
    pub fn begin() -> Result<Caught> {
        let ignored = proc::status::<String>(Pid::this().as_raw(), "SigIgn")
            .and_then(|hex| u64::from_str_radix(hex.first()?, 16).ok())
            .unwrap_or(0);
        let wanted = ENDING.into_iter().chain(OTHERS).filter(|s| ignored & (1 << (s - 1)) == 0);
        let signals =
            Signals::new(wanted.chain([SIGCONT])).map_err(|e| Error::sys("catch signals", Errno::from(e)))?;
        Ok(Caught { handle: signals.handle(), signals: Mutex::new(signals), first: Mutex::new(None) })
    }

    /// Which signal asked for the end, if one did while there was no command to tell.
    pub fn interrupted(&self) -> Option<i32> {
        // Who waits for them notes them, too.
        if let Some(mut signals) = self.signals.try_lock() {
            for signal in signals.pending().filter(|s| is_ending(*s)) {
                self.note(signal);
            }
        }
        *self.first.lock()
    }

    pub(super) fn note(&self, signal: i32) {
        self.first.lock().get_or_insert(signal);
    }

    /// To wait for them, until [`Caught::close`].
    pub(super) fn wait(&self) -> MutexGuard<'_, Signals> {
        self.signals.lock()
    }

    pub(super) fn close(&self) {
        self.handle.close();
    }
}

pub(super) fn is_ending(signal: i32) -> bool {
    ENDING.contains(&signal)
}

/// The exit code of what a signal ended.
pub fn exit_code(signal: i32) -> u8 {
    u8::try_from(signal).unwrap_or_default().saturating_add(128)
}
