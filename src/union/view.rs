//! How the view differs from what is on disk: owners, link counts, and what is left out.

use super::Union;
use super::node::Node;
use crate::base::{Attr, Errno, Kind, Sys};
use crate::layer::StatXattr;
use std::sync::atomic::Ordering;

/// The id that stands for one without a place in a mapping (`/proc/sys/kernel/overflowuid`).
const OVERFLOW: u32 = 65534;

/// Ids on disk from `host` on are shown as those from `shown` on, `len` of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdRange {
    /// First id on disk.
    pub host: u32,
    /// First id in the view.
    pub shown: u32,
    /// How many.
    pub len: u32,
}

/// How user or group ids on disk are shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ids {
    /// The ranges; empty: as they are.
    pub ranges: Vec<IdRange>,
    /// Everything is shown with this one; what is stored is what programs ask for.
    pub squash: Option<u32>,
}

impl Ids {
    /// The id that the view shows for `host`; one outside of the ranges is shown as nobody's (65534).
    pub fn show(&self, host: u32) -> u32 {
        if let Some(id) = self.squash {
            return id;
        }
        self.map(host, |r| (r.host, r.shown)).unwrap_or(OVERFLOW)
    }

    /// The id on disk for `shown`, `None` outside of the ranges.
    pub fn store(&self, shown: u32) -> Option<u32> {
        self.map(shown, |r| (r.shown, r.host))
    }

    fn map(&self, id: u32, ends: impl Fn(&IdRange) -> (u32, u32)) -> Option<u32> {
        if self.ranges.is_empty() {
            return Some(id);
        }
        self.ranges.iter().find_map(|range| {
            let (from, to) = ends(range);
            let off = id.checked_sub(from).filter(|off| *off < range.len)?;
            to.checked_add(off)
        })
    }
}

/// How the view differs from what is on disk.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// Users.
    pub uids: Ids,
    /// Groups.
    pub gids: Ids,
    /// Directories have link count 1.
    pub static_nlink: bool,
    /// There are no ACLs.
    pub no_acl: bool,
    /// Nothing is made durable: a crash of the host may cost the upper.
    pub volatile: bool,
    /// Whose owners and modes are shown.
    pub stats: Stats,
}

/// Where owner, mode and type of objects are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stats {
    /// In the objects themselves.
    #[default]
    Own,
    /// As well, but for layers whose root directory has such an attribute: in that.
    Marked,
    /// In this attribute, where an object has one; all that is written to the upper gets one. Such an upper has no
    /// ACLs: they would be about the owner and mode on disk.
    Kept(StatXattr),
}

impl Union {
    /// Whether objects may have ACLs.
    pub fn has_acls(&self) -> bool {
        self.has_acls
    }

    /// Whether nothing need be made durable.
    pub fn is_volatile(&self) -> bool {
        self.view.volatile
    }

    /// The attributes of an object on disk as the merged view shows them.
    pub(crate) fn show(&self, node: &Node, mut attr: Attr) -> Attr {
        // While a piece is filled in, the file's times are not what programs set.
        if let Some(still) = self.partial_of(node).and_then(|p| p.attr().ok()) {
            attr = still;
        }
        // The kernel fixes the number of the mount's own root, but shows the `st_ino` that getattr gives.
        attr.ino = if node.id == super::ROOT_ID { node.ident.ino } else { node.id };
        let place = node.place.read();
        if place.gone {
            attr.nlink = 0;
        } else if node.kind == Kind::Dir {
            if (place.upper && !place.lowers.is_empty()) || self.view.static_nlink {
                attr.nlink = 1; // not counted, as overlayfs reports merged directories
            }
            if let Some(owner) = place.owner.filter(|_| place.upper && !place.lowers.is_empty()) {
                (attr.uid, attr.gid) = owner;
            }
        } else {
            attr.nlink = attr.nlink.saturating_add_signed(place.nlink_adj);
        }
        drop(place);
        if node.kind == Kind::File {
            node.maybe_suid.store(attr.perm & 0o6000 != 0, Ordering::Relaxed);
        }
        if node.read_only.load(Ordering::Acquire) {
            attr.perm &= !0o222; // so that the kernel refuses what we would
        }
        (attr.uid, attr.gid) = (self.view.uids.show(attr.uid), self.view.gids.show(attr.gid));
        attr
    }

    /// Owner and group of the real directory `real` when a copy of it could not be given them.
    pub(crate) fn owner_of_others(&self, real: &Attr) -> Option<(u32, u32)> {
        let apart = self.multi_user || self.keeps_stats;
        let others = !apart && real.uid != crate::sys::process::effective_ids().0;
        others.then_some((real.uid, real.gid))
    }

    /// The ids on disk for an owner that somebody asks for.
    ///
    /// # Errors
    /// `EINVAL` for one that the mapping has no place for.
    pub(crate) fn owner_to_store(&self, uid: Option<u32>, gid: Option<u32>) -> Sys<(u32, u32)> {
        let id =
            |ids: &Ids, id: Option<u32>| id.map_or(Some(u32::MAX), |id| ids.store(id)).ok_or(Errno::EINVAL);
        Ok((id(&self.view.uids, uid)?, id(&self.view.gids, gid)?))
    }

    /// The ids on disk of what a caller makes; one that the mapping has no place for makes nobody's.
    pub(crate) fn ids_of_caller(&self, uid: u32, gid: u32) -> (u32, u32) {
        let (uids, gids) = (&self.view.uids, &self.view.gids);
        (uids.store(uid).unwrap_or(OVERFLOW), gids.store(gid).unwrap_or(OVERFLOW))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(ranges: &[(u32, u32, u32)]) -> Ids {
        let ranges = ranges.iter().map(|&(host, shown, len)| IdRange { host, shown, len }).collect();
        Ids { ranges, squash: None }
    }

    #[test]
    fn ids_map_both_ways_and_outsiders_are_nobody() {
        let map = ids(&[(0, 1000, 1), (1, 110_000, 65_536)]);
        for (host, shown) in [(0, 1000), (1, 110_000), (65_536, 175_535)] {
            assert_eq!(map.show(host), shown);
            assert_eq!(map.store(shown), Some(host));
        }
        assert_eq!(map.show(65_537), OVERFLOW);
        assert_eq!(map.store(0), None);
        assert_eq!(ids(&[(5, u32::MAX, 2)]).show(6), OVERFLOW);
    }

    #[test]
    fn squashing_shows_one_id_and_stores_what_is_asked() {
        let map = Ids { squash: Some(7), ..Ids::default() };
        assert_eq!((map.show(0), map.show(1000)), (7, 7));
        assert_eq!(map.store(1000), Some(1000));
    }
}
