//! One processor for a program and its server, the other kept awake: for machines with two.
//!
//! A program that makes requests one after another leaves its processor idle while we serve, and we leave ours idle
//! while it works: each request then wakes a halted processor twice, which costs more than serving it, most of all in a
//! virtual machine. When both share one processor, a request is two switches of context and nothing else. The
//! scheduler does not let them, as long as it knows an idle processor. So during a burst of requests of one thread our
//! serving threads go to the processor of that thread, and a thread of our own keeps the other one busy.
//! It notices within microseconds when somebody wants that processor, and then everything is left to the scheduler
//! for a while; so it is when a second thread makes requests, since two keep both processors busy by themselves.
//! With more than two processors there is always an idle one, and this would not help.

use crate::base::{Error, Result};
use crate::sys::proc;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::{Pid, gettid};
use parking_lot::Mutex;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

/// How long a burst may pause and still be one; the longest that the thread spins for nothing.
const BURST: Duration = Duration::from_micros(200);
/// How long it spins for one request that is being served.
const SERVE: Duration = Duration::from_millis(1);
/// Requests in a row that make a burst.
const MANY: u32 = 8;
/// A gap in the spin that an interrupt does not explain: somebody else had the processor.
const GAP: Duration = Duration::from_micros(6);
/// So many gaps within `SPAN` mean that the processor is wanted, and so does one of `LONG`.
const GAPS: u32 = 4;
const SPAN: Duration = Duration::from_millis(1);
const LONG: Duration = Duration::from_micros(300);
/// For how long it does not spin then; doubled each time in a row, up to `REST_MOST`.
const REST: Duration = Duration::from_millis(4);
const REST_MOST: Duration = Duration::from_millis(128);
/// A spin that lasted this long was of use.
const USEFUL: Duration = Duration::from_millis(2);

thread_local! {
    static KNOWN: Cell<bool> = const { Cell::new(false) };
}

/// Shared by the serving threads of a mount and the one that spins.
pub(super) struct Pace {
    /// Requests that came in so far, and those answered.
    begun: AtomicU64,
    done: AtomicU64,
    /// Requests of the present burst.
    burst: AtomicU32,
    /// The thread that made the last request.
    client: AtomicI32,
    /// Another thread made one since the spin began.
    second: AtomicBool,
    spinning: AtomicBool,
    ended: AtomicBool,
    /// Nanoseconds after `start` of the last reply, and until when nobody spins.
    last: AtomicU64,
    rest: AtomicU64,
    start: Instant,
    /// The two processors that we may use.
    both: Option<[usize; 2]>,
    servers: Mutex<Vec<Pid>>,
    thread: OnceLock<Thread>,
}

/// A request that is being served; the pause after it begins when this is dropped.
pub(super) struct Turn<'a> {
    pace: &'a Pace,
    client: u32,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.pace.answered(self.client);
    }
}

/// How a spin ended.
#[derive(PartialEq, Eq)]
enum Spun {
    /// The burst is over.
    Over,
    /// Others want the processor.
    Crowded,
}

impl Pace {
    /// A pace for the processors that this process may use.
    pub fn new() -> Pace {
        Pace::over(<[usize; 2]>::try_from(mine()).ok())
    }

    fn over(both: Option<[usize; 2]>) -> Pace {
        Pace {
            begun: AtomicU64::new(0),
            done: AtomicU64::new(0),
            burst: AtomicU32::new(0),
            client: AtomicI32::new(0),
            second: AtomicBool::new(false),
            spinning: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            last: AtomicU64::new(0),
            rest: AtomicU64::new(0),
            start: Instant::now(),
            both,
            servers: Mutex::default(),
            thread: OnceLock::new(),
        }
    }

    /// Starts the thread that spins, if this machine is one where that helps.
    ///
    /// # Errors
    /// When no thread can be had.
    pub fn start(self: &Arc<Pace>) -> Result<Option<JoinHandle<()>>> {
        let Some(both) = self.both else {
            return Ok(None);
        };
        let pace = self.clone();
        let handle = std::thread::Builder::new()
            .name("pace".into())
            .spawn(move || pace.run(both))
            .map_err(|e| Error::sys("start a thread", e))?;
        if self.thread.set(handle.thread().clone()).is_err() {
            tracing::debug!("the pace was started twice");
        }
        Ok(Some(handle))
    }

    /// Ends the thread.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// To be called by a serving thread when a request of thread `client` came in.
    pub fn begin(&self, client: u32) -> Turn<'_> {
        if self.both.is_some() && client != 0 {
            if self.client.swap(client as i32, Ordering::Relaxed) != client as i32 {
                self.burst.store(0, Ordering::Relaxed);
                self.second.store(true, Ordering::Relaxed);
            }
            if !self.spinning.load(Ordering::Relaxed) {
                self.before_spin();
            }
        }
        self.begun.fetch_add(1, Ordering::Relaxed);
        Turn { pace: self, client }
    }

    fn before_spin(&self) {
        if self.now().saturating_sub(self.last.load(Ordering::Relaxed)) > nanos(BURST) {
            self.burst.store(0, Ordering::Relaxed);
        }
        if !KNOWN.replace(true) {
            self.servers.lock().push(gettid());
        }
    }

    fn answered(&self, client: u32) {
        self.done.fetch_add(1, Ordering::Relaxed);
        if self.both.is_none() || client == 0 || self.spinning.load(Ordering::Relaxed) {
            return;
        }
        let now = self.now();
        self.last.store(now, Ordering::Relaxed);
        if self.burst.fetch_add(1, Ordering::Relaxed) < MANY || now < self.rest.load(Ordering::Relaxed) {
            return;
        }
        self.second.store(false, Ordering::Relaxed);
        if !self.spinning.swap(true, Ordering::AcqRel)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }

    /// A request moves so many bytes that program and server gain by running at the same time.
    pub fn heavy(&self) {
        self.burst.store(0, Ordering::Relaxed);
    }

    fn now(&self) -> u64 {
        nanos(self.start.elapsed())
    }

    fn run(&self, both: [usize; 2]) {
        let mut rest = REST;
        while !self.ended.load(Ordering::Acquire) {
            if !self.spinning.load(Ordering::Acquire) {
                std::thread::park();
                continue;
            }
            let began = self.now();
            let spun = self.together(both);
            let now = self.now();
            if now - began > nanos(USEFUL) {
                rest = REST;
            }
            if spun == Spun::Crowded {
                self.rest.store(now + nanos(rest), Ordering::Relaxed);
                rest = (rest * 2).min(REST_MOST);
            }
            self.last.store(now, Ordering::Relaxed);
            self.burst.store(0, Ordering::Relaxed);
            self.spinning.store(false, Ordering::Release);
        }
    }

    /// Spins on one processor with the serving threads on the other, where the program is.
    fn together(&self, both: [usize; 2]) -> Spun {
        let Some(theirs) = processor_of(self.client.load(Ordering::Relaxed)).filter(|c| both.contains(c))
        else {
            return Spun::Crowded;
        };
        let other = if both[0] == theirs { both[1] } else { both[0] };
        let servers = self.servers.lock().clone();
        let placed = place(gettid(), &[other]) && servers.iter().all(|&tid| place(tid, &[theirs]));
        let spun = if placed { self.spin() } else { Spun::Crowded };
        for &tid in servers.iter().chain([&gettid()]) {
            place(tid, &both);
        }
        spun
    }

    /// Keeps this processor busy until the burst is over or somebody else wants it.
    fn spin(&self) -> Spun {
        let mut at = self.now();
        let mut until = at + nanos(BURST);
        let (mut gaps, mut span) = (0, at);
        let mut seen = self.done.load(Ordering::Relaxed);
        loop {
            for _ in 0..8 {
                std::hint::spin_loop();
            }
            let now = self.now();
            if now - at > nanos(GAP) {
                if now - span > nanos(SPAN) {
                    (gaps, span) = (0, now);
                }
                gaps += 1;
                if gaps >= GAPS || now - at > nanos(LONG) {
                    return Spun::Crowded;
                }
            }
            if self.second.load(Ordering::Relaxed) {
                return Spun::Crowded;
            }
            at = now;
            let done = self.done.load(Ordering::Relaxed);
            if done != seen {
                seen = done;
                until = at + nanos(BURST);
            } else if at > until && self.begun.load(Ordering::Relaxed) != done && at < until + nanos(SERVE) {
                // Still at work for the last one.
            } else if at > until {
                return Spun::Over;
            }
        }
    }
}

/// The processors that this process may use; none when the kernel does not tell.
fn mine() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(Pid::from_raw(0)) else {
        return Vec::new();
    };
    (0..CpuSet::count()).filter(|&c| set.is_set(c).unwrap_or(false)).collect()
}

fn nanos(time: Duration) -> u64 {
    time.as_nanos() as u64
}

/// Where thread `tid` ran last.
fn processor_of(tid: i32) -> Option<usize> {
    proc::stat(tid).map(|s| s.processor)
}

/// Lets thread `tid` run on `cpus` only; whether that was done.
fn place(tid: Pid, cpus: &[usize]) -> bool {
    let mut set = CpuSet::new();
    cpus.iter().all(|&c| set.set(c).is_ok()) && sched_setaffinity(tid, &set).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_starts_the_spin_and_leaves_every_thread_where_it_may_run() {
        let before = mine();
        let both = [before[0], *before.get(1).unwrap_or(&before[0])];
        let pace = Arc::new(Pace::over(Some(both)));
        let spinner = pace.start().unwrap().unwrap();
        let client = gettid().as_raw() as u32;
        let deadline = Instant::now() + Duration::from_secs(60);
        // However slow the machine is, at some time it serves `MANY` requests in a row.
        while !pace.spinning.load(Ordering::Acquire) {
            drop(pace.begin(client));
            assert!(Instant::now() < deadline, "no burst was noticed");
        }
        pace.end();
        spinner.join().unwrap();
        assert_eq!(pace.begun.load(Ordering::Relaxed), pace.done.load(Ordering::Relaxed));
        let mut after = mine();
        after.dedup();
        let mut expected = both.to_vec();
        expected.dedup();
        assert_eq!(after, expected);
    }

    #[test]
    fn a_pause_ends_a_burst() {
        let pace = Pace::over(Some([0, 1]));
        for _ in 0..MANY {
            drop(pace.begin(1));
        }
        pace.last.store(0, Ordering::Relaxed);
        while pace.now() <= nanos(BURST) {
            std::hint::spin_loop();
        }
        let turn = pace.begin(1);
        assert_eq!(pace.burst.load(Ordering::Relaxed), 0);
        drop(turn);
        assert!(!pace.spinning.load(Ordering::Relaxed));
    }

    #[test]
    fn a_thread_is_found_on_its_processor() {
        let at = processor_of(gettid().as_raw()).unwrap();
        assert!(mine().contains(&at));
        assert_eq!(processor_of(i32::MAX), None);
    }
}
