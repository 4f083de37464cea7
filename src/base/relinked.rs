//! Which files changed only because names of theirs left a session.

use super::{Attr, Time};
use std::collections::BTreeMap;

/// Files with several names that were touched under one of them: device and inode, and their ctimes before the first and
/// after the last time. That is no change of the other names.
#[derive(Debug, Default)]
pub struct Relinked(BTreeMap<(u64, u64), (Time, Time)>);

impl Relinked {
    /// So many are remembered.
    const MANY: usize = 1 << 20;

    /// Whether nothing else happened to the file `attr` since its ctime was `seen`.
    pub fn explains(&self, attr: &Attr, seen: Time) -> bool {
        self.0.get(&(attr.dev, attr.ino)) == Some(&(seen, attr.ctime))
    }

    /// Notes that the file `was` was touched under one of its names, and that its ctime is `now`.
    pub fn note(&mut self, was: &Attr, now: Time) {
        if self.0.len() >= Relinked::MANY {
            self.0.clear();
        }
        let times = self.0.entry((was.dev, was.ino)).or_insert((was.ctime, now));
        // Somebody changed it in between: what was seen before that counts no more.
        *times = (if times.1 == was.ctime { times.0 } else { was.ctime }, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Kind;

    fn attr(ctime: i64) -> Attr {
        let time = |sec| Time { sec, nsec: 0 };
        Attr {
            ino: 7,
            dev: 1,
            size: 0,
            blocks: 0,
            atime: time(0),
            mtime: time(0),
            ctime: time(ctime),
            btime: time(0),
            kind: Kind::File,
            perm: 0o644,
            nlink: 3,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
        }
    }

    #[test]
    fn what_we_did_is_explained_and_what_others_did_is_not() {
        let at = |ctime| attr(ctime).ctime;
        let mut relinked = Relinked::default();
        assert!(!relinked.explains(&attr(1), at(1)));
        relinked.note(&attr(1), at(2));
        relinked.note(&attr(2), at(3));
        assert!(relinked.explains(&attr(3), at(1)));
        assert!(!relinked.explains(&attr(4), at(1)), "changed since");
        relinked.note(&attr(4), at(5));
        assert!(!relinked.explains(&attr(5), at(1)), "changed in between");
        assert!(relinked.explains(&attr(5), at(4)));
    }
}
