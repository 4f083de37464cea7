//! The terminal: who has it, we or the command.
//!
//! The command has a process group of its own, so that `kill 0` inside reaches nothing outside; to read the terminal and
//! to get its Ctrl-C that group must be the terminal's foreground group for as long as ours would be. A shell that waits
//! for us knows nothing of that: when the command is stopped, we stop.

use crate::sys::signal;
use nix::sys::signal::{SigSet, Signal, kill, killpg, raise};
use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};
use parking_lot::Mutex;
use std::fs::File;

/// Our controlling terminal.
#[derive(Debug)]
pub(super) struct Terminal {
    tty: File,
    /// Our own process group.
    ours: Pid,
    /// Whether the command's group has what is ours.
    lent: Mutex<bool>,
}

impl Terminal {
    /// The terminal that controls us, if one does.
    pub(super) fn of_ours() -> Option<Terminal> {
        let tty = File::options().read(true).write(true).open("/dev/tty").ok()?;
        Some(Terminal { tty, ours: getpgrp(), lent: Mutex::new(false) })
    }

    fn is_ours(&self) -> bool {
        tcgetpgrp(&self.tty) == Ok(self.ours)
    }

    /// Whether the command is to take the terminal when it begins; it is then known to have it.
    pub(super) fn lend(&self) -> bool {
        *self.lent.lock() = self.is_ours();
        *self.lent.lock()
    }

    /// Makes our group the foreground group again, if the command's had that from us.
    pub(super) fn take_back(&self) {
        if std::mem::take(&mut *self.lent.lock()) {
            set(&self.tty, self.ours);
        }
    }

    /// The command, which leads the group `command`, was stopped: stops us, and whoever is in our group, until a shell lets
    /// us go on.
    pub(super) fn stop_with(&self, command: Pid) {
        self.take_back();
        // To this very thread, which stops before the last of these calls returns; should it have been stopped with the
        // group and gone on already, nothing is pending any more. In a group that no shell could let go on the kernel
        // drops the signals, and the command goes on at once.
        let mut stop = SigSet::empty();
        stop.add(Signal::SIGTSTP);
        told("hold a signal", stop.thread_block());
        told("stop", raise(Signal::SIGTSTP));
        if self.ours != Pid::this() {
            told("stop our group", kill(Pid::from_raw(0), Signal::SIGTSTP));
        }
        told("stop", stop.thread_unblock());
        self.go_on(command);
    }

    /// Lets the command's group go on, in the foreground if we are there.
    pub(super) fn go_on(&self, command: Pid) {
        let mut lent = self.lent.lock();
        if self.is_ours() {
            set(&self.tty, command);
            *lent = true;
        }
        told("let the command go on", killpg(command, Signal::SIGCONT));
    }
}

fn set(tty: &File, group: Pid) {
    told("pass the terminal on", tcsetpgrp(tty, group));
}

fn told(what: &str, done: nix::Result<()>) {
    if let Err(e) = done {
        tracing::debug!("cannot {what}: {e}");
    }
}

/// From inside: this process leads a process group of its own from now on; with `foreground` it is the one that has the
/// terminal.
pub fn lead(foreground: bool) -> crate::base::Result<()> {
    let error = |e| crate::base::Error::sys("give the command a process group", crate::base::Errno::from(e));
    let own = Pid::from_raw(0);
    nix::unistd::setpgid(own, own).map_err(error)?;
    if foreground && let Some(terminal) = Terminal::of_ours() {
        set(&terminal.tty, terminal.ours);
    }
    Ok(())
}

/// Until a program is told otherwise, what is not in the foreground may write to the terminal and pass it on: we and
/// bwrap must, and would be stopped. Returns whether the command is to have the usual way back.
pub(super) fn write_in_background() -> crate::base::Sys<bool> {
    signal::set(libc::SIGTTOU, signal::Disposition::Ignore).map(|was_ignored| !was_ignored)
}
