//! A running bwrap: passing signals on, and learning what becomes of the command.

use super::child::{Events, Outcome};
use super::signals::{Caught, exit_code, is_ending};
use super::terminal::Terminal;
use crate::base::{Error, Result};
use crate::sys::proc;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use parking_lot::{Condvar, Mutex};
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::time::Duration;

/// How often to look whether the command was stopped. Its parent, which the kernel would tell, is process 1 of the
/// sandbox; only a person at a terminal waits for us to see it.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// bwrap, which leads a process group of its own, and what it runs.
pub(super) struct Sandbox {
    bwrap: Pid,
    terminal: Option<Terminal>,
    stage: Mutex<Stage>,
    /// When `stage` changes.
    changed: Condvar,
}

/// How far the sandbox has come.
#[derive(Default)]
struct Stage {
    /// Its process 1, once bwrap has told it.
    init: Option<Pid>,
    /// The command, which leads a process group of its own: once the sandbox stands.
    command: Option<Pid>,
    /// The sandbox stood. From then on it is the command that ends, whatever bwrap says of its own end.
    stood: bool,
    /// bwrap has said all that it will.
    silent: bool,
    ended: bool,
}

impl Sandbox {
    pub(super) fn new(child: &Child, terminal: Option<Terminal>) -> Sandbox {
        // A process id is never out of an i32.
        let bwrap = Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX));
        Sandbox { bwrap, terminal, stage: Mutex::default(), changed: Condvar::new() }
    }

    /// Waits for the end of `child`, which writes its status documents to the first descriptor and whose last step says on
    /// the second that the sandbox stands.
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub(super) fn attend(
        &self,
        child: &mut Child,
        (status, ready): (OwnedFd, OwnedFd),
        signals: &Caught,
        events: &dyn Events,
    ) -> Result<Outcome> {
        let (ended, code) = std::thread::scope(|scope| {
            let watcher = scope.spawn(|| self.watch(status));
            scope.spawn(|| {
                // The end of the file without a byte: the sandbox never stood.
                if matches!(File::from(ready).read(&mut [0]), Ok(1)) {
                    self.stands();
                    events.ready();
                }
            });
            scope.spawn(|| {
                for signal in signals.wait().forever() {
                    self.signal(signal, signals);
                }
            });
            if let Some(terminal) = &self.terminal {
                scope.spawn(|| self.stop_with_the_command(terminal));
            }
            let ended = wait(child);
            self.clear_away();
            signals.close();
            (ended, watcher.join())
        });
        if let Some(terminal) = &self.terminal {
            terminal.take_back();
        }
        let code = code.map_err(|_| Error::failure("the thread that watches the sandbox panicked"))?;
        let ended = ended.map_err(|e| Error::sys("wait for the sandbox", e))?;
        let of_bwrap = ended.code().or(ended.signal().map(|s| exit_code(s).into())).unwrap_or(1);
        Ok(match (code, signals.interrupted()) {
            (Some(code), _) => Outcome::Exited(code),
            // Which had bwrap killed, although the sandbox may have come to stand at that very moment.
            (None, Some(signal)) => Outcome::Exited(exit_code(signal)),
            (None, None) if self.stage.lock().stood => {
                Outcome::Exited(u8::try_from(of_bwrap).unwrap_or(u8::MAX))
            }
            (None, None) => Outcome::NotStarted(of_bwrap),
        })
    }

    /// Ends what bwrap may have left when something killed it: a process 1 that waits for bwrap for ever.
    fn clear_away(&self) {
        self.change(|stage| stage.ended = true);
        tell(self.bwrap, killpg(self.bwrap, Signal::SIGKILL), "end what is left of bwrap");
    }

    fn change(&self, change: impl FnOnce(&mut Stage)) {
        change(&mut self.stage.lock());
        self.changed.notify_all();
    }

    /// Reads bwrap's status documents: notes the first process inside, and returns the command's exit status.
    fn watch(&self, from: OwnedFd) -> Option<u8> {
        let mut code = None;
        let documents =
            serde_json::Deserializer::from_reader(File::from(from)).into_iter::<serde_json::Value>();
        for document in documents.map_while(|d| d.ok()) {
            let number = |key: &str| document.get(key).and_then(serde_json::Value::as_i64);
            if let Some(pid) = number("child-pid").and_then(|p| i32::try_from(p).ok()) {
                self.change(|stage| stage.init = Some(Pid::from_raw(pid)));
            }
            if let Some(exit) = number("exit-code") {
                code = Some(u8::try_from(exit).unwrap_or(u8::MAX));
            }
        }
        self.change(|stage| stage.silent = true);
        code
    }

    /// The sandbox stands, and its process 1 has one child: what becomes the command.
    fn stands(&self) {
        let mut stage = self.stage.lock();
        stage.stood = true;
        while stage.init.is_none() && !stage.silent {
            self.changed.wait(&mut stage);
        }
        stage.command = stage.init.and_then(first_child);
        drop(stage);
        self.changed.notify_all();
    }

    /// Passes a signal on; before the sandbox stands, one that asks for the end takes down what there is of it.
    fn signal(&self, signal: i32, signals: &Caught) {
        let stage = self.stage.lock();
        match stage.command {
            Some(command) if signal == libc::SIGCONT => match &self.terminal {
                Some(terminal) => terminal.go_on(command),
                None => tell(command, killpg(command, Signal::SIGCONT), "let go on"),
            },
            Some(command) => {
                let sent = Signal::try_from(signal)
                    .and_then(|s| if is_ending(signal) { killpg(command, s) } else { kill(command, s) });
                tell(command, sent, "pass a signal on to");
            }
            None if is_ending(signal) && !stage.ended => {
                signals.note(signal);
                tell(self.bwrap, killpg(self.bwrap, Signal::SIGKILL), "end");
            }
            None => {}
        }
    }

    /// A shell that waits for us is to see that the command was stopped.
    fn stop_with_the_command(&self, terminal: &Terminal) {
        let mut stage = self.stage.lock();
        while !stage.ended {
            match stage.command {
                Some(command) if proc::is_stopped(command.as_raw()) => {
                    drop(stage);
                    terminal.stop_with(command);
                    stage = self.stage.lock();
                }
                Some(_) => drop(self.changed.wait_for(&mut stage, LOOK_EVERY)),
                None => self.changed.wait(&mut stage),
            }
        }
    }
}

fn wait(child: &mut Child) -> std::io::Result<ExitStatus> {
    loop {
        match child.wait() {
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            other => return other,
        }
    }
}

fn tell(pid: Pid, done: nix::Result<()>, what: &str) {
    match done {
        Ok(()) | Err(Errno::ESRCH) => {}
        Err(e) => tracing::warn!("cannot {what} process {pid}: {e}"),
    }
}

/// The process that `parent` started first.
fn first_child(parent: Pid) -> Option<Pid> {
    let children = proc::all().ok()?.filter(|(_, stat)| stat.parent == parent.as_raw());
    children.map(|(pid, stat)| (stat.start, pid)).min().map(|(_, pid)| Pid::from_raw(pid))
}
