//! A token that pins what was reviewed: applying with it refuses what changed afterwards.
//!
//! It holds the last sequence number of the journal, which every operation on the merged view moves on, and the newest
//! ctime among the session's objects, which repeated writes to a file that is open move on without a record.

use super::settle::Settled;
use crate::base::{Error, Kind, RelPath, Result, Time};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The kernel's clock for files may be this much behind (a tick of the slowest configuration, doubled).
const TICK: Duration = Duration::from_millis(20);

/// The token for `set` as it is now, `seq` being the journal's last sequence number. Waits for the tick of the clock to end in
/// which the last change was made, so that any later change is seen to be later.
pub fn token(seq: u64, set: &[Settled]) -> String {
    let newest = set.iter().filter_map(ctime).max().unwrap_or_default();
    let at = UNIX_EPOCH + Duration::new(u64::try_from(newest.sec).unwrap_or(0), newest.nsec);
    if SystemTime::now().duration_since(at).is_ok_and(|age| age < TICK) {
        std::thread::sleep(TICK);
    }
    format!("r{seq}-{}.{:09}", newest.sec, newest.nsec)
}

/// The changes among `set` that are not as they were when `token` was given.
///
/// # Errors
/// `Usage` when it is no token.
pub fn changed_since<'a>(
    token: &str,
    set: impl IntoIterator<Item = &'a Settled>,
) -> Result<Vec<(u16, RelPath)>> {
    let (seq, newest) = parse(token).ok_or_else(|| {
        Error::usage(format!("{} is no token of a review", crate::base::quote(token.as_bytes())))
            .hint("take one from: sbx-fuse changes --json, or sbx-fuse diff --json")
    })?;
    let later = |s: &&Settled| s.change.last.seq > seq || ctime(s).is_some_and(|time| time > newest);
    Ok(set.into_iter().filter(later).map(|s| (s.change.root, s.change.path.clone())).collect())
}

/// A directory's ctime moves with every entry: for directories the journal has to do.
fn ctime(s: &Settled) -> Option<Time> {
    s.upper.filter(|a| a.kind != Kind::Dir).map(|a| a.ctime)
}

fn parse(token: &str) -> Option<(u64, Time)> {
    let (seq, time) = token.strip_prefix('r')?.split_once('-')?;
    let (sec, nsec) = time.split_once('.')?;
    Some((seq.parse().ok()?, Time { sec: sec.parse().ok()?, nsec: nsec.parse().ok()? }))
}
