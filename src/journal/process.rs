//! Which process did it: pids to ids of the journal, through `/proc`.

use super::record::Process;
use crate::sys::proc;
use crate::sys::process::coarse_nanos;
use std::collections::HashMap;

/// How long a look at `/proc` holds, nanoseconds: a pid is not reused and a program not replaced unseen for longer.
const FRESH: u64 = 20_000_000;

/// How many pids are remembered before old ones are dropped.
const LIMIT: usize = 8192;

/// How far up the ancestry is followed.
const DEPTH: usize = 64;

/// What `/proc` says of a process. All zero and empty when it is gone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    /// The process a thread belongs to; the pid itself when that is unknown.
    pid: u32,
    start: u64,
    comm: Vec<u8>,
    exe: Vec<u8>,
    /// Pid and start time of it and its ancestors, nearest first.
    line: Vec<(u32, u64)>,
}

impl Seen {
    /// Start time in clock ticks since boot; 0 when unknown.
    pub(super) fn start(&self) -> u64 {
        self.start
    }
}

fn stat(pid: u32) -> Option<proc::Stat> {
    proc::stat(i32::try_from(pid).ok()?)
}

/// The process that the thread `pid` belongs to: FUSE names the thread.
fn leader(pid: u32) -> Option<u32> {
    proc::status(i32::try_from(pid).ok()?, "Tgid")?.pop()
}

/// Looks `pid` up in `/proc`.
pub(super) fn look(pid: u32) -> Seen {
    let gone = Seen { pid, ..Seen::default() };
    let Some(thread) = stat(pid) else { return gone };
    let tgid = leader(pid).unwrap_or(pid);
    let Some(own) = (if tgid == pid { Some(thread) } else { stat(tgid) }) else { return gone };
    let exe = std::fs::read_link(format!("/proc/{tgid}/exe"))
        .map_or_else(|_| Vec::new(), |path| std::os::unix::ffi::OsStringExt::into_vec(path.into_os_string()));
    let mut line = vec![(tgid, own.start)];
    let mut parent = own.parent;
    while parent > 1 && line.len() < DEPTH {
        let Some(up) = proc::stat(parent) else { break };
        line.push((parent.unsigned_abs(), up.start));
        parent = up.parent;
    }
    Seen { pid: tgid, start: own.start, comm: own.comm, exe, line }
}

struct Cached {
    id: u32,
    seen: u64,
}

struct Active {
    id: u32,
    pid: u32,
    start: u64,
}

/// The processes that this writer has given ids.
pub(super) struct Processes {
    /// By thread id.
    cache: HashMap<u32, Cached>,
    /// What was last said of a process, by pid.
    said: HashMap<u32, Process>,
    active: Vec<Active>,
    last_id: u32,
    last_command: u32,
}

impl Processes {
    /// Ids go on after the last ones of the log.
    pub(super) fn new(last_id: u32, last_command: u32) -> Processes {
        Processes { cache: HashMap::new(), said: HashMap::new(), active: Vec::new(), last_id, last_command }
    }

    /// The id of `pid` if it was looked at within the last 20 ms.
    pub(super) fn fresh(&self, pid: u32) -> Option<u32> {
        let cached = self.cache.get(&pid)?;
        (coarse_nanos().saturating_sub(cached.seen) < FRESH).then_some(cached.id)
    }

    /// The id of the thread `pid`, of which `seen` is known; and the process when it must be written to the log first.
    pub(super) fn intern(&mut self, pid: u32, seen: Seen) -> (u32, Option<Process>) {
        let now = coarse_nanos();
        if let Some(cached) = self.cache.get_mut(&pid) {
            // Gone between its request and our look: it is still the one that asked.
            if seen.start == 0 {
                cached.seen = now;
                return (cached.id, None);
            }
        }
        let same = self
            .said
            .get(&seen.pid)
            .filter(|p| p.start == seen.start && p.comm == seen.comm && p.exe == seen.exe)
            .map(|p| p.id);
        let (id, new) = match same {
            Some(id) => (id, None),
            None => {
                let process = self.introduce(seen.clone());
                (process.id, Some(process))
            }
        };
        self.make_room(now);
        self.cache.insert(pid, Cached { id, seen: now });
        (id, new)
    }

    fn introduce(&mut self, seen: Seen) -> Process {
        self.last_id += 1;
        let command = self.command_of(&seen);
        let process = Process {
            id: self.last_id,
            pid: seen.pid,
            start: seen.start,
            comm: seen.comm,
            exe: seen.exe,
            command,
        };
        self.said.insert(process.pid, process.clone());
        process
    }

    /// The command among its ancestors, or one that an ancestor was found to belong to; else the only active command:
    /// a daemon has left its parents, but somebody in the session started it.
    fn command_of(&self, seen: &Seen) -> u32 {
        for &(pid, start) in &seen.line {
            if let Some(active) = self.active.iter().rev().find(|a| a.pid == pid && a.start == start) {
                return active.id;
            }
            let known = self.said.get(&pid).filter(|p| p.start == start && p.command != 0);
            if let Some(known) = known {
                return known.command;
            }
        }
        let mut alive =
            self.active.iter().filter(|a| a.start != 0 && stat(a.pid).is_some_and(|s| s.start == a.start));
        match (alive.next(), alive.next(), self.active.as_slice()) {
            (Some(one), None, _) | (None, None, [one]) => one.id,
            _ => 0,
        }
    }

    /// The id that the next command will have.
    pub(super) fn next_command(&self) -> u32 {
        self.last_command + 1
    }

    /// Takes the command `id`, started as `pid`, into account for processes looked at from now on.
    pub(super) fn begin(&mut self, id: u32, pid: u32, start: u64) {
        self.last_command = id;
        self.active.push(Active { id, pid, start });
        // What was said of its first process before is no longer right.
        self.forget();
    }

    /// Forgets what was said, so that it is said again.
    pub(super) fn forget(&mut self) {
        self.cache.clear();
        self.said.clear();
    }

    fn make_room(&mut self, now: u64) {
        if self.cache.len() >= LIMIT {
            self.cache.retain(|_, c| now.saturating_sub(c.seen) < 50 * FRESH);
        }
        if self.cache.len() >= LIMIT || self.said.len() >= 4 * LIMIT {
            self.forget();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::{Entry, Journal, read};
    use std::process::Command;

    #[test]
    fn a_process_is_named_once_and_knows_its_command() {
        let dir = tempfile::tempdir().unwrap();
        let (journal, _) = Journal::open(dir.path()).unwrap();
        let own = std::process::id();
        assert_eq!(journal.process(0), 0);
        let before = journal.process(own);
        assert_eq!(journal.process(own), before);
        let mut shell = Command::new("sh")
            .args(["-c", "sleep 60 & echo $!; wait"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let command = journal.begin_command(shell.id(), [b"sh".as_slice(), b"-c"]).unwrap();
        let mut line = String::new();
        let mut out = std::io::BufReader::new(shell.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut out, &mut line).unwrap();
        let sleeper: u32 = line.trim().parse().unwrap();
        let child = journal.process(sleeper);
        let parent = journal.process(shell.id());
        Command::new("kill").arg(sleeper.to_string()).status().unwrap();
        shell.wait().unwrap();
        // Gone now, but it is still the same process.
        std::thread::sleep(std::time::Duration::from_millis(30));
        assert_eq!(journal.process(shell.id()), parent);
        assert_ne!(journal.process(u32::MAX - 7), 0, "a pid unknown to /proc is noted as such");
        drop(journal);
        let processes: Vec<Process> = read(dir.path())
            .unwrap()
            .into_iter()
            .filter_map(|e| match e {
                Entry::Process(p) => Some(p),
                _ => None,
            })
            .collect();
        let find = |id: u32| processes.iter().find(|p| p.id == id).unwrap();
        assert_eq!((find(before).pid, find(before).command), (own, 0));
        assert_eq!((find(parent).pid, find(parent).command), (shell.id(), command));
        assert_eq!((find(child).pid, find(child).command), (sleeper, command));
        assert!(!find(before).exe.is_empty() && find(before).start > 0);
        assert_eq!(processes.len(), 4);
    }

    #[test]
    fn a_thread_is_its_process() {
        let dir = tempfile::tempdir().unwrap();
        let (journal, _) = Journal::open(dir.path()).unwrap();
        let own = journal.process(std::process::id());
        let id = std::thread::scope(|s| {
            s.spawn(|| {
                let link = std::fs::read_link("/proc/thread-self").unwrap();
                journal.process(link.file_name().unwrap().to_str().unwrap().parse().unwrap())
            })
            .join()
            .unwrap()
        });
        assert_eq!(id, own);
    }
}
