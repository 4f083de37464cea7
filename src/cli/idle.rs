//! A server that rests gives back memory.
//!
//! A busy time leaves an allocator with pages that are free but ours. A hundred sessions over one tree are idle most of
//! the time, and what each keeps counts a hundredfold; so a server that was busy and then used no processor time for a
//! while trims its heap, once.

use super::output;
use crate::sys::memory;
use nix::sys::resource::{UsageWho, getrusage};
use std::time::Duration;

/// How often to look.
const LOOK_EVERY: Duration = Duration::from_secs(20);
/// Processor time between two looks below which a server is idle.
const IDLE: Duration = Duration::from_millis(10);
/// Processor time since the last trim from which on another is worth it.
const BUSY: Duration = Duration::from_millis(30);
/// The thread's stack: it does next to nothing.
const STACK: usize = 64 << 10;

/// Starts the thread that looks; it ends with the process.
pub(super) fn start() {
    let started = std::thread::Builder::new().name("idle".into()).stack_size(STACK).spawn(|| {
        let mut last = used();
        let mut trimmed = Duration::ZERO;
        loop {
            std::thread::sleep(LOOK_EVERY);
            let now = used();
            if is_time(now, last, trimmed) {
                memory::trim();
                trimmed = used();
            }
            last = now;
        }
    });
    if let Err(e) = started {
        output::note(&format!("this server will not give memory back when it is idle: {e}"));
    }
}

fn is_time(now: Duration, last: Duration, trimmed: Duration) -> bool {
    now.saturating_sub(last) < IDLE && now.saturating_sub(trimmed) >= BUSY
}

/// Processor time of this process.
fn used() -> Duration {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) else { return Duration::ZERO };
    let of = |t: nix::sys::time::TimeVal| Duration::new(t.tv_sec().unsigned_abs(), t.tv_usec() as u32 * 1000);
    of(usage.user_time()) + of(usage.system_time())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_trimmed_once_after_it_was_busy() {
        let ms = Duration::from_millis;
        assert!(!is_time(ms(500), ms(100), ms(0)), "it is busy");
        assert!(is_time(ms(505), ms(500), ms(0)));
        assert!(!is_time(ms(510), ms(505), ms(505)), "again for nothing");
        assert!(is_time(ms(900), ms(899), ms(505)));
        assert!(used() <= used() && !used().is_zero());
    }
}
