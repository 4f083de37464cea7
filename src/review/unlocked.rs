//! Directories of ours that may not be written to by their mode, and can be for as long as a transaction is at work.

use super::intent::{Place, Space};
use super::paths;
use crate::base::{Attr, Kind};
use crate::sys::process;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// One of them.
pub(super) struct Unlocked {
    /// Where it is by now, or will be once the batch is done.
    pub at: Place,
    /// The mode that it gets back.
    pub perm: u32,
}

/// All of a transaction, by device and inode.
#[derive(Default)]
pub(super) struct UnlockedDirs(HashMap<(u64, u64), Unlocked>);

/// Whether its mode keeps us, its owner, from changing entries of the directory `attr`.
pub(super) fn is_locked(attr: &Attr) -> bool {
    let euid = process::effective_ids().0;
    // Root needs no leave; and of what is another's we may not change the mode.
    attr.kind == Kind::Dir && attr.perm & 0o300 != 0o300 && euid != 0 && attr.uid == euid
}

impl UnlockedDirs {
    /// The directory at `at` is writable from now on; false when it was already.
    pub fn add(&mut self, at: &Place, attr: &Attr) -> bool {
        match self.0.entry((attr.dev, attr.ino)) {
            Entry::Occupied(_) => false,
            Entry::Vacant(free) => {
                free.insert(Unlocked { at: at.clone(), perm: attr.perm });
                true
            }
        }
    }

    /// What is at `from` moves to `to`.
    pub fn follow(&mut self, from: &Place, to: &Place) {
        self.moved(&[(from, to)]);
    }

    /// What is at `one` and what is at `other` change places.
    pub fn swap(&mut self, one: &Place, other: &Place) {
        self.moved(&[(one, other), (other, one)]);
    }

    fn moved(&mut self, moves: &[(&Place, &Place)]) {
        for dir in self.0.values_mut() {
            let new = moves.iter().filter(|(from, _)| dir.at.is_in(from)).find_map(|(from, to)| {
                let rest = dir.at.path.strip_prefix(&from.path)?;
                Some(Place { space: to.space, path: paths::under(&to.path, &rest) })
            });
            if let Some(new) = new {
                dir.at = new;
            }
        }
        // Of what is kept the mode does not matter: should it come back, its inverse sees to that.
        self.0.retain(|_, dir| dir.at.space != Space::Kept);
    }

    /// Takes those at or beneath `within` out, the deepest first: the mode of a directory may forbid to look beneath it.
    pub fn take(&mut self, within: &Place) -> Vec<Unlocked> {
        let mut taken: Vec<_> =
            self.0.extract_if(|_, dir| dir.at.is_in(within)).map(|(_, dir)| dir).collect();
        taken.sort_by(|a, b| b.at.cmp(&a.at));
        taken
    }
}
