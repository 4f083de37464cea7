//! The processes of a session, found from outside, and ending them.
//!
//! Every sandbox is a process namespace whose process 1 is bwrap's and carries [`MARKER`] in the environment it was
//! started with, which nothing inside can change. What loses its parent in such a namespace becomes a child of its
//! process 1 or of one that descends from it (pid_namespaces(7)), so the descendants of process 1 are all there are,
//! daemons included.

use super::meta::PathBytes;
use crate::base::{Errno, Error, Result};
use crate::sys::proc::{self, Stat};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The variable that bwrap is started with: the id of the session. Programs inside do not inherit it.
pub const MARKER: &str = "SBX_FUSE_SANDBOX";

/// How long processes may take to vanish after SIGKILL.
const VANISH: Duration = Duration::from_secs(10);

/// Lets process `pid` go on.
///
/// # Errors
/// As `kill(2)`; that it is gone is none.
pub fn let_go_on(pid: i32) -> Result<()> {
    send(pid, Signal::SIGCONT)
}

/// One process of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Process {
    /// Process id, as seen from here.
    pub pid: i32,
    /// Its parent's.
    pub parent: i32,
    /// Its id inside of the sandbox; 1 is the sandbox's own.
    pub inside: i32,
    /// Process 1 of its sandbox, as seen from here.
    pub sandbox: i32,
    /// One letter, as in proc_pid_stat(5).
    pub state: char,
    /// When it was started, nanoseconds since the epoch.
    pub started: u64,
    /// The name of its program, at most 15 bytes.
    pub comm: PathBytes,
    /// Its arguments.
    pub argv: Vec<PathBytes>,
}

/// All processes of the session with the id `id`, by process id. Those that end meanwhile are left out.
///
/// # Errors
/// When `/proc` cannot be listed.
pub fn processes(id: &str) -> Result<Vec<Process>> {
    let stats: BTreeMap<i32, Stat> = proc::all()?.collect();
    let inits: Vec<i32> = stats.keys().copied().filter(|&pid| is_init_of(pid, id)).collect();
    let boot = boot_time();
    let mut all = Vec::new();
    for (&pid, stat) in &stats {
        let Some(sandbox) = above(pid, &stats).find(|at| inits.contains(at)) else { continue };
        all.push(Process {
            pid,
            parent: stat.parent,
            inside: inside_pids(pid).last().copied().unwrap_or(0),
            sandbox,
            state: stat.state.into(),
            started: boot + stat.start.saturating_mul(10_000_000),
            comm: PathBytes(stat.comm.clone()),
            argv: argv(pid),
        });
    }
    Ok(all)
}

/// Ends all processes of the session with the id `id`: SIGTERM, and SIGKILL to those that are left after `grace`.
/// Returns how many there were, without the sandboxes' own.
///
/// # Errors
/// When one of them does not vanish.
pub fn end_processes(id: &str, grace: Duration) -> Result<usize> {
    let all = processes(id)?;
    let theirs: Vec<&Process> = all.iter().filter(|p| p.pid != p.sandbox).collect();
    let count = theirs.len();
    for process in theirs {
        send(process.pid, Signal::SIGTERM)?;
        // Until it goes on it would not notice.
        if proc::is_stopped(process.pid) {
            send(process.pid, Signal::SIGCONT)?;
        }
    }
    let start = Instant::now();
    let mut killed = None;
    loop {
        let left = processes(id)?;
        if left.iter().all(|p| p.state == 'Z') {
            return Ok(count);
        }
        if killed.is_none() && start.elapsed() >= grace {
            killed = Some(Instant::now());
        }
        if let Some(since) = killed {
            // With its process 1 all of a namespace dies, also what was started meanwhile.
            for init in left.iter().filter(|p| p.pid == p.sandbox) {
                send(init.pid, Signal::SIGKILL)?;
            }
            if since.elapsed() > VANISH {
                let pids: Vec<String> = left.iter().map(|p| p.pid.to_string()).collect();
                return Err(Error::failure(format!("these processes do not end: {}", pids.join(" ")))
                    .hint("they may wait for a device or a network file system"));
            }
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn send(pid: i32, signal: Signal) -> Result<()> {
    match kill(Pid::from_raw(pid), signal) {
        Ok(()) | Err(nix::errno::Errno::ESRCH) => Ok(()),
        Err(e) => Err(Error::sys(&format!("send a signal to process {pid}"), Errno::from(e))),
    }
}

/// `pid` and what it descends from.
fn above(pid: i32, stats: &BTreeMap<i32, Stat>) -> impl Iterator<Item = i32> {
    let parent = move |at: &i32| stats.get(at).map(|s| s.parent).filter(|p| *p > 0);
    // Parents may change while they are read; a circle must not keep us.
    std::iter::successors(Some(pid), parent).take(4096)
}

/// Whether a process is process 1 of a sandbox of that session.
fn is_init_of(pid: i32, id: &str) -> bool {
    let wanted = format!("{MARKER}={id}");
    let marked = || {
        std::fs::read(format!("/proc/{pid}/environ"))
            .is_ok_and(|env| env.split(|&b| b == 0).any(|v| v == wanted.as_bytes()))
    };
    let pids = inside_pids(pid);
    pids.len() > 1 && pids.last() == Some(&1) && marked()
}

/// The ids of a process in its namespaces, ours first.
fn inside_pids(pid: i32) -> Vec<i32> {
    proc::status(pid, "NSpid").unwrap_or_default()
}

fn argv(pid: i32) -> Vec<PathBytes> {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let line = line.strip_suffix(&[0]).unwrap_or(&line);
    if line.is_empty() {
        return Vec::new();
    }
    line.split(|&b| b == 0).map(|word| PathBytes(word.to_vec())).collect()
}

/// When the machine started, nanoseconds since the epoch; a tick of `/proc` is 10 ms since (USER_HZ is 100).
fn boot_time() -> u64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let seconds =
        stat.lines().find_map(|l| l.strip_prefix("btime ")).and_then(|s| s.trim().parse::<u64>().ok());
    seconds.unwrap_or(0).saturating_mul(1_000_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_process_has_arguments_and_belongs_to_no_session() {
        assert!(!argv(i32::try_from(std::process::id()).unwrap()).is_empty());
        assert_eq!(processes("no-such-id").unwrap(), []);
    }
}
