//! Directories that lost their place in an upper, in the work directories until a quiet moment.
//!
//! A removed directory holds a whiteout for each name that was removed in it before. Nobody sees them any more, and
//! `rm -rf` need not wait for their removal. What a killed server leaves of them is cleared as all of a work directory
//! is.

use super::copy_up::clear;
use crate::base::{Errno, Error, Result};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long nothing must have come before the rest is cleared.
const QUIET: Duration = Duration::from_millis(20);
/// So many directories at most wait for that.
const MANY: usize = 1024;

/// The directories that wait, and the thread that clears them.
pub(crate) struct Trash {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Work directories, and names in them.
    waiting: Vec<(Arc<OwnedFd>, Vec<u8>)>,
    last: Option<Instant>,
    clearing: bool,
    ended: bool,
}

impl Trash {
    /// An empty one, and its thread.
    ///
    /// # Errors
    /// When no thread can be had.
    pub fn new() -> Result<Trash> {
        let shared = Arc::new(Shared::default());
        let theirs = shared.clone();
        let thread = std::thread::Builder::new()
            .name("trash".into())
            .spawn(move || theirs.run())
            .map_err(|e| Error::sys("start the thread that clears work directories", Errno::from(e)))?;
        Ok(Trash { shared, thread: Some(thread) })
    }

    /// `name` of the work directory `work` is to be cleared some time.
    pub fn put(&self, work: &Arc<OwnedFd>, name: Vec<u8>) {
        let mut state = self.shared.state.lock();
        state.waiting.push((work.clone(), name));
        state.last = Some(Instant::now());
        // In between the thread waits for quiet, not to be woken.
        if state.waiting.len() == 1 || state.waiting.len() >= MANY {
            self.shared.changed.notify_all();
        }
    }

    /// Clears all that waits, and returns when it is gone.
    pub fn empty(&self) {
        let mut state = self.shared.state.lock();
        self.shared.clear(&mut state);
        while state.clearing {
            self.shared.changed.wait(&mut state);
        }
    }
}

impl Drop for Trash {
    fn drop(&mut self) {
        self.shared.state.lock().ended = true;
        self.shared.changed.notify_all();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::warn!("the thread that clears work directories ended early");
        }
    }
}

impl Shared {
    fn run(&self) {
        let mut state = self.state.lock();
        loop {
            let due = state.last.map(|last| last + QUIET);
            match due.filter(|_| !state.waiting.is_empty()) {
                None if state.ended => return,
                None => self.changed.wait(&mut state),
                Some(due) if state.ended || state.waiting.len() >= MANY || Instant::now() >= due => {
                    self.clear(&mut state);
                }
                Some(due) => drop(self.changed.wait_until(&mut state, due)),
            }
        }
    }

    /// Clears all that waits now, with the lock released meanwhile.
    fn clear(&self, state: &mut MutexGuard<'_, State>) {
        while state.clearing {
            self.changed.wait(state);
        }
        let waiting = std::mem::take(&mut state.waiting);
        if waiting.is_empty() {
            return;
        }
        state.clearing = true;
        MutexGuard::unlocked(state, || waiting.iter().for_each(|(work, name)| clear(work.as_fd(), name)));
        state.clearing = false;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A work directory with directories of whiteouts in it, and their names.
    fn bed(names: &[&str]) -> (tempfile::TempDir, Arc<OwnedFd>) {
        let tmp = tempfile::tempdir().unwrap();
        for name in names {
            let dir = tmp.path().join(name);
            fs::create_dir(&dir).unwrap();
            fs::write(dir.join(".wh.a"), "").unwrap();
        }
        let work = OwnedFd::from(fs::File::open(tmp.path()).unwrap());
        (tmp, Arc::new(work))
    }

    fn left(tmp: &tempfile::TempDir) -> usize {
        fs::read_dir(tmp.path()).unwrap().count()
    }

    #[test]
    fn what_waits_goes_when_asked_for() {
        let (tmp, work) = bed(&["#1", "#2"]);
        let trash = Trash::new().unwrap();
        trash.put(&work, b"#1".into());
        trash.put(&work, b"#2".into());
        trash.empty();
        assert_eq!(left(&tmp), 0);
        trash.empty();
    }

    #[test]
    fn what_waits_goes_by_itself() {
        let (tmp, work) = bed(&["#1"]);
        let trash = Trash::new().unwrap();
        trash.put(&work, b"#1".into());
        let deadline = Instant::now() + Duration::from_secs(60);
        while left(&tmp) > 0 {
            assert!(Instant::now() < deadline, "nobody cleared it");
            std::thread::yield_now();
        }
    }

    #[test]
    fn what_waits_goes_with_the_mount() {
        let (tmp, work) = bed(&["#1", "#2", "#3"]);
        let trash = Trash::new().unwrap();
        for name in ["#1", "#2", "#3"] {
            trash.put(&work, name.into());
        }
        drop(trash);
        assert_eq!(left(&tmp), 0);
    }
}
