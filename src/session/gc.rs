//! What may go: a plan from ages, sizes and what is in use, and what crashes left behind.

use super::archive::Archived;
use super::lock::{self, Lock};
use super::remove_tree;
use super::store::{Session, Store, cwd, now, open_dir};
use super::usage::of_directory;
use crate::base::{Errno, Error, Kind, Result, quote};
use crate::sys::{dir, file};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A hidden directory or part that nobody ever held is a leftover when it is as old as this, in seconds: making one and
/// taking its lock are two steps.
const GRACE: u64 = 60;

/// Something that takes space and may be let go.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Allocated bytes.
    pub bytes: u64,
    /// When it was last of use, nanoseconds since the epoch.
    pub last_used: u64,
    /// When it may be thrown away without asking, nanoseconds since the epoch.
    pub expires: Option<u64>,
    /// Whether age and size are reasons for it to go: not for an archive at a place that a person chose.
    pub counted: bool,
}

/// What stands against letting something go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holds {
    /// Nothing.
    Nothing,
    /// Somebody has it.
    Busy(String),
    /// So many changes that were not applied.
    Changes(usize),
    /// It cannot be told; why.
    Unknown(String),
}

/// Why something goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Its time to live is over.
    Expired,
    /// It was not used for long enough.
    Age,
    /// All together are too large, and it is the largest.
    Size,
}

/// What happens to a candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is within the limits.
    Stays,
    /// It goes.
    Goes(Reason),
    /// It should go, but something stands against it.
    Kept(Reason, Holds),
}

/// How much may stay.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// Nanoseconds since the last use.
    pub older_than: Option<u64>,
    /// Allocated bytes of all together.
    pub max_total: Option<u64>,
    /// Let go of what was not applied, too.
    pub unapplied: bool,
}

/// Decides, in this order: what is past its time to live; what is past the age; the largest ones until all together
/// are within the total. `holds` is asked only about what would go. The verdicts are in the order of `all`; the number
/// is what is left in bytes.
pub fn plan(
    all: &[Candidate],
    limits: &Limits,
    holds: &mut dyn FnMut(usize) -> Holds,
) -> (Vec<Verdict>, u64) {
    plan_at(now(), all, limits, holds)
}

fn plan_at(
    now: u64,
    all: &[Candidate],
    limits: &Limits,
    holds: &mut dyn FnMut(usize) -> Holds,
) -> (Vec<Verdict>, u64) {
    let mut verdicts = vec![Verdict::Stays; all.len()];
    let mut total: u64 = all.iter().map(|c| c.bytes).sum();
    let mut judge = |i: usize, reason: Reason, verdict: &mut Verdict| {
        let held = holds(i);
        let free = match &held {
            Holds::Nothing => true,
            Holds::Busy(_) => false,
            // Whoever gave it a time to live said yes to that.
            Holds::Changes(_) | Holds::Unknown(_) => limits.unapplied || reason == Reason::Expired,
        };
        *verdict = if free { Verdict::Goes(reason) } else { Verdict::Kept(reason, held) };
        if free { all[i].bytes } else { 0 }
    };
    for (i, c) in all.iter().enumerate() {
        if c.expires.is_some_and(|at| at <= now) {
            total -= judge(i, Reason::Expired, &mut verdicts[i]);
        } else if c.counted && limits.older_than.is_some_and(|age| now.saturating_sub(c.last_used) > age) {
            total -= judge(i, Reason::Age, &mut verdicts[i]);
        }
    }
    if let Some(max) = limits.max_total {
        let mut left: Vec<usize> = (0..all.len()).filter(|&i| verdicts[i] == Verdict::Stays).collect();
        left.sort_by_key(|&i| (std::cmp::Reverse(all[i].bytes), all[i].last_used, i));
        for i in left.into_iter().filter(|&i| all[i].counted) {
            if total <= max {
                break;
            }
            total -= judge(i, Reason::Size, &mut verdicts[i]);
        }
    }
    (verdicts, total)
}

/// Something that a crash left behind.
#[derive(Clone, Debug)]
pub struct Leftover {
    /// Where it is.
    pub path: PathBuf,
    /// Allocated bytes.
    pub bytes: u64,
}

/// An archive in the store's place that no session refers to.
#[derive(Clone, Debug)]
pub struct Stray {
    /// Where it is.
    pub path: PathBuf,
    /// Allocated bytes.
    pub bytes: u64,
    /// Last change of the file, nanoseconds since the epoch.
    pub written: u64,
    /// When it may be thrown away, where it says so.
    pub expires: Option<u64>,
    /// How many changes it says it has; `None` for one that cannot be read.
    pub changes: Option<usize>,
}

impl Store {
    /// What crashes left behind in the store and nobody is at work on.
    ///
    /// # Errors
    /// When the store cannot be listed.
    pub fn leftovers(&self) -> Result<Vec<Leftover>> {
        let mut found = Vec::new();
        for (name, attr) in hidden(&self.sessions())? {
            let path = self.sessions().join(std::ffi::OsStr::from_bytes(&name));
            let trash = name.starts_with(b".trash-");
            let ours = [&b".new-"[..], b".stub-", b".restore-"].iter().any(|p| name.starts_with(p));
            let lock = path.join("lock");
            // Who wrote down that it has the lock, and has it no more, is dead.
            let was_held = || lock.symlink_metadata().is_ok_and(|m| m.len() > 0);
            let held = || lock::holder(&lock).is_ok_and(|h| h.is_some());
            if attr.kind == Kind::Dir && (trash || (ours && (old(&attr) || was_held()) && !held())) {
                let bytes = of_directory(&path)?.total();
                found.push(Leftover { path, bytes });
            }
        }
        for (name, attr) in hidden(&self.archives())? {
            let path = self.archives().join(std::ffi::OsStr::from_bytes(&name));
            // The first byte is written under the lock.
            let begun = old(&attr) || attr.size > 0;
            if attr.kind == Kind::File && name.ends_with(b".part") && begun && !is_locked(&path) {
                found.push(Leftover { path, bytes: attr.blocks * 512 });
            }
        }
        Ok(found)
    }

    /// Removes a leftover.
    ///
    /// # Errors
    /// As removing files.
    pub fn remove_leftover(&self, leftover: &Leftover) -> Result<()> {
        remove_at(&leftover.path)
    }

    /// The archives in the store's place that no session of `sessions` refers to.
    ///
    /// # Errors
    /// When they cannot be listed.
    pub fn strays<'a>(&self, sessions: impl Iterator<Item = &'a Session>) -> Result<Vec<Stray>> {
        let known: Vec<Vec<u8>> =
            sessions.filter_map(|s| s.archived.as_ref()).map(|a| a.file.as_bytes().to_vec()).collect();
        let mut found = Vec::new();
        for (name, attr) in list(&self.archives())? {
            let path = self.archives().join(std::ffi::OsStr::from_bytes(&name));
            let archive = name.ends_with(b".tar.zst") || name.ends_with(b".tar.zst.age");
            if name.starts_with(b".") || !archive || known.iter().any(|k| k == path.as_os_str().as_bytes()) {
                continue;
            }
            let header = self.peek(&path).ok();
            found.push(Stray {
                bytes: attr.blocks * 512,
                written: u64::try_from(attr.mtime.sec).unwrap_or(0) * 1_000_000_000,
                expires: header.as_ref().and_then(|h| h.expires),
                changes: header.map(|h| h.changes),
                path,
            });
        }
        Ok(found)
    }

    /// Removes a stray archive.
    ///
    /// # Errors
    /// As removing a file.
    pub fn remove_stray(&self, stray: &Stray) -> Result<()> {
        remove_at(&stray.path)
    }

    /// Whether an archive is at the store's own place, so that it goes with its session.
    pub fn owns(&self, archived: &Archived) -> bool {
        archived.file.as_path().parent() == Some(&self.archives())
    }

    /// Removes a session with its archive, if it has one that the store keeps or `file_too`; its lock is ours. A file
    /// that is not the one that was written is left.
    ///
    /// # Errors
    /// As [`Store::remove`].
    pub fn remove_with_archive(&self, session: &Session, lock: &Lock, file_too: bool) -> Result<()> {
        self.remove(&session.name, lock)?;
        match &session.archived {
            Some(a) if (file_too || self.owns(a)) && a.on_disk().is_some() => remove_at(a.file.as_path()),
            _ => Ok(()),
        }
    }
}

fn remove_at(path: &Path) -> Result<()> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
    let parent = open_dir(dir)?;
    remove_tree(parent.as_fd(), name.as_bytes())
        .map_err(|e| Error::on_path("remove", path.as_os_str().as_bytes(), e))
}

fn old(attr: &crate::base::Attr) -> bool {
    let now = (now() / 1_000_000_000) as i64;
    now.saturating_sub(attr.mtime.sec) > GRACE as i64
}

fn is_locked(path: &Path) -> bool {
    let Ok(file) = std::fs::File::open(path) else { return false };
    nix::fcntl::Flock::lock(file, nix::fcntl::FlockArg::LockSharedNonblock).is_err()
}

fn hidden(path: &Path) -> Result<Vec<(Box<[u8]>, crate::base::Attr)>> {
    let mut all = list(path)?;
    all.retain(|(name, _)| name.starts_with(b"."));
    Ok(all)
}

/// The entries of a directory of the store, by name; none when there is no such directory.
fn list(path: &Path) -> Result<Vec<(Box<[u8]>, crate::base::Attr)>> {
    let shown = path.as_os_str().as_bytes();
    match file::stat_at(cwd(), shown) {
        Ok(_) => {}
        Err(Errno::ENOENT) => return Ok(Vec::new()),
        Err(e) => return Err(Error::on_path("list", shown, e)),
    }
    let fd = open_dir(path)?;
    let entries = dir::entries(fd.as_fd()).map_err(|e| Error::on_path("list", shown, e))?;
    let stat = |e: dir::DirEntry| Some((e.name.clone(), file::stat_at(fd.as_fd(), &e.name).ok()?));
    let mut all: Vec<_> = entries.into_iter().filter_map(stat).collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(all)
}

/// What stands against letting an archived session go.
pub fn archive_holds(archived: &Archived) -> Holds {
    match (archived.on_disk(), archived.changes) {
        (None, _) => Holds::Unknown(format!("its archive {} is not there", quote(archived.file.as_bytes()))),
        (Some(_), 0) => Holds::Nothing,
        (Some(_), n) => Holds::Changes(n),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn item(bytes: u64, last_used: u64) -> Candidate {
        Candidate { bytes, last_used, expires: None, counted: true }
    }

    #[test]
    fn the_old_go_first_and_then_the_largest_until_it_fits() {
        let all = [item(10, 1000), item(50, 10), item(30, 990), item(40, 995), item(30, 980)];
        let limits = Limits { older_than: Some(100), max_total: Some(50), unapplied: false };
        let (verdicts, left) = plan_at(1000, &all, &limits, &mut |_| Holds::Nothing);
        use Verdict::{Goes, Stays};
        // 50 is old; of the rest 40 is largest, then the older 30.
        assert_eq!(verdicts, [Stays, Goes(Reason::Age), Stays, Goes(Reason::Size), Goes(Reason::Size)]);
        assert_eq!(left, 40);
    }

    #[test]
    fn work_that_was_not_applied_stays_unless_said_and_what_is_in_use_stays_always() {
        let all = [item(10, 0), item(20, 0), Candidate { expires: Some(5), ..item(5, 1000) }];
        let mut holds = |i: usize| [Holds::Changes(3), Holds::Busy("x".into()), Holds::Changes(1)][i].clone();
        let mut limits = Limits { older_than: Some(1), max_total: None, unapplied: false };
        let (verdicts, left) = plan_at(1000, &all, &limits, &mut holds);
        assert!(matches!(verdicts[0], Verdict::Kept(Reason::Age, Holds::Changes(3))));
        assert!(matches!(verdicts[1], Verdict::Kept(..)));
        assert_eq!((&verdicts[2], left), (&Verdict::Goes(Reason::Expired), 30));
        limits.unapplied = true;
        let (verdicts, left) = plan_at(1000, &all, &limits, &mut holds);
        assert_eq!((&verdicts[0], left), (&Verdict::Goes(Reason::Age), 20));
        assert!(matches!(verdicts[1], Verdict::Kept(..)));
    }

    proptest! {
        #[test]
        fn the_total_is_met_unless_something_stands_against_it(
            sizes in prop::collection::vec((0u64..100, 0u64..1000, any::<bool>()), 0..20), max in 0u64..1000
        ) {
            let all: Vec<_> = sizes.iter().map(|s| item(s.0, s.1)).collect();
            let limits = Limits { older_than: None, max_total: Some(max), unapplied: false };
            let mut holds = |i: usize| if sizes[i].2 { Holds::Changes(1) } else { Holds::Nothing };
            let (verdicts, left) = plan_at(1000, &all, &limits, &mut holds);
            let kept = |v: &Verdict| !matches!(v, Verdict::Goes(_));
            let sum: u64 = all.iter().zip(&verdicts).filter(|(_, v)| kept(v)).map(|(c, _)| c.bytes).sum();
            prop_assert_eq!(sum, left);
            for (i, v) in verdicts.iter().enumerate() {
                prop_assert!(!(sizes[i].2 && matches!(v, Verdict::Goes(_))));
                // What stays within the limits stays only when they are met.
                prop_assert!(left <= max || *v != Verdict::Stays);
            }
        }
    }
}
