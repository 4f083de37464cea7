//! Planned failures of system calls, so that tests can see what every verb does when any of its calls fails.
//!
//! Every wrapper of this module asks [`point`] first. A plan belongs to one thread and to debug builds; in a release
//! build a point is nothing.

use crate::base::Sys;
#[cfg(any(test, debug_assertions))]
pub use planned::{Seen, counted, dying, failing, stopping};

/// What a wrapper asks before it calls the kernel.
///
/// # Errors
/// What the plan of this thread says about this call; without a plan, never.
#[cfg(any(test, debug_assertions))]
#[track_caller]
pub(super) fn point() -> Sys<()> {
    planned::point(std::panic::Location::caller())
}

/// What a wrapper asks before it calls the kernel.
///
/// # Errors
/// Never in a release build.
#[cfg(not(any(test, debug_assertions)))]
#[inline(always)]
pub(super) fn point() -> Sys<()> {
    Ok(())
}

#[cfg(any(test, debug_assertions))]
mod planned {
    use crate::base::{Errno, Sys};
    use std::cell::RefCell;
    use std::panic::Location;

    /// What became of a plan.
    #[derive(Clone, Copy, Debug, Default)]
    pub struct Seen {
        /// How many calls the thread made.
        pub calls: u64,
        /// The wrapper whose call was refused, if it came to that.
        pub hit: Option<&'static Location<'static>>,
    }

    #[derive(Clone, Copy)]
    enum End {
        Never,
        Fail(u64, Errno),
        Stop(u64),
        Die(u64),
    }

    struct Plan {
        end: End,
        seen: Seen,
    }

    thread_local! {
        static PLAN: RefCell<Option<Plan>> = const { RefCell::new(None) };
    }

    pub(super) fn point(at: &'static Location<'static>) -> Sys<()> {
        PLAN.with_borrow_mut(|plan| {
            let Some(plan) = plan else {
                return Ok(());
            };
            let call = plan.seen.calls;
            plan.seen.calls += 1;
            match plan.end {
                End::Fail(n, errno) if n == call => {
                    plan.seen.hit = Some(at);
                    if std::env::var_os("SBX_FUSE_FAULT_TRACE").is_some() {
                        eprintln!("{errno:?} at call {n}:\n{}", std::backtrace::Backtrace::force_capture());
                    }
                    Err(errno)
                }
                End::Stop(n) if call >= n => {
                    plan.seen.hit = plan.seen.hit.or(Some(at));
                    Err(Errno::EIO)
                }
                // SAFETY: raises a signal that cannot be handled; nothing of this process runs after it.
                End::Die(n) if n == call => unsafe {
                    libc::kill(libc::getpid(), libc::SIGKILL);
                    Err(Errno::EINTR)
                },
                _ => Ok(()),
            }
        })
    }

    /// Takes the plan away also when the test panics, since a thread may serve another test after it.
    struct Ended;

    impl Drop for Ended {
        fn drop(&mut self) {
            PLAN.set(None);
        }
    }

    fn with<T>(end: End, f: impl FnOnce() -> T) -> (T, Seen) {
        PLAN.set(Some(Plan { end, seen: Seen::default() }));
        let ended = Ended;
        let value = f();
        let seen = PLAN.with_borrow(|plan| plan.as_ref().map(|p| p.seen)).unwrap_or_default();
        drop(ended);
        (value, seen)
    }

    /// Does `f`; counts the calls that this thread makes in it.
    pub fn counted<T>(f: impl FnOnce() -> T) -> (T, Seen) {
        with(End::Never, f)
    }

    /// Does `f`, in which the `n`-th call of this thread, from 0, fails with `errno` and is not made. Those after it
    /// are made again.
    pub fn failing<T>(n: u64, errno: Errno, f: impl FnOnce() -> T) -> (T, Seen) {
        with(End::Fail(n, errno), f)
    }

    /// Does `f`, in which no call of this thread is made from the `n`-th on: they fail with `EIO`. To the disk that is
    /// as if the process had died there.
    pub fn stopping<T>(n: u64, f: impl FnOnce() -> T) -> (T, Seen) {
        with(End::Stop(n), f)
    }

    /// Does `f`, in which this process is killed (`SIGKILL`) before the `n`-th call of this thread, from 0.
    pub fn dying<T>(n: u64, f: impl FnOnce() -> T) -> (T, Seen) {
        with(End::Die(n), f)
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;
    use crate::base::Errno;
    use crate::sys::file;
    use std::fs;
    use std::os::fd::AsFd;
    use std::path::Path;

    #[test]
    fn the_planned_call_fails_and_no_other() {
        let dir = fs::File::open("/").unwrap();
        let stat = || file::stat(dir.as_fd()).map(drop);
        let three = || [stat(), stat(), stat()];
        assert_eq!(counted(three).1.calls, 3);
        let (done, seen) = failing(1, Errno::EIO, three);
        assert_eq!(done, [Ok(()), Err(Errno::EIO), Ok(())]);
        assert!(seen.hit.is_some_and(|at| at.file().ends_with("file.rs")));
        assert!(failing(3, Errno::EIO, three).1.hit.is_none());
        assert_eq!(stat(), Ok(()));
    }

    #[test]
    fn a_plan_is_one_threads_and_ends_with_a_panic() {
        let dir = fs::File::open("/").unwrap();
        let stat = || file::stat(dir.as_fd()).map(drop);
        let (other, seen) = failing(0, Errno::EIO, || std::thread::scope(|s| s.spawn(stat).join().unwrap()));
        assert_eq!((other, seen.calls), (Ok(()), 0));
        let panics = || failing(0, Errno::EIO, || std::panic::resume_unwind(Box::new(())));
        assert!(std::panic::catch_unwind(panics).is_err());
        assert_eq!(stat(), Ok(()));
    }

    /// What calls the kernel and cannot fail, or is not a step of its own.
    const CANNOT_FAIL: [&str; 9] = [
        "join_group_before_exec",
        "die_with_us",
        "trim",
        "umask",
        "effective_ids",
        "coarse_nanos",
        "local",
        "drop",
        "bytes",
    ];

    /// The functions of a file: name and text. Those of a test module are left out.
    fn functions(text: &str) -> Vec<(&str, &str)> {
        let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        let starts: Vec<usize> = text.match_indices("fn ").map(|(i, _)| i).collect();
        let ends = starts.iter().skip(1).copied().chain([text.len()]);
        let whole = |(start, end): (&usize, usize)| {
            let body = &text[*start + 3..end];
            (body.split(['(', '<']).next().unwrap_or_default(), body)
        };
        starts.iter().zip(ends).map(whole).collect()
    }

    #[test]
    fn every_wrapper_asks_before_it_calls() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/sys");
        let mut wrappers = 0;
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            // A second try with the owner's rights is not a step of its own.
            if path.ends_with("fault.rs") || path.ends_with("owner.rs") {
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            for (name, body) in functions(&text) {
                let calls = body.contains("unsafe {") || body.contains("socketpair(");
                if calls && !CANNOT_FAIL.contains(&name) {
                    wrappers += 1;
                    let call = body.find("unsafe {").unwrap_or(usize::MAX);
                    // What is tried again with the owner's rights may have its caller ask, once for both.
                    let tried = format!("or_as_owner({name}(");
                    let mut callers =
                        functions(&text).into_iter().map(|f| f.1).filter(|b| b.contains(&tried));
                    let by_caller = text.contains(&tried)
                        && callers.all(|b| b.find("point()?") < b.find(&tried) && b.contains("point()?"));
                    let asks = by_caller || body.find("point()?").is_some_and(|at| at < call);
                    assert!(asks, "{name} in {} has no fault point before its call", path.display());
                }
            }
        }
        assert!(wrappers > 40, "{wrappers}");
    }
}
