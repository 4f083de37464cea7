//! How changes leave a session in these tests: as the command takes them out of one, in use or at rest.

use crate::view::View;
use sbx_fuse::base::{self, ChangeSet, Kind, RelPath};
use sbx_fuse::journal::{Journal, Op, Record};
use sbx_fuse::review::{self, Dropper, Offline, Replaced, RootDirs, Seen};
use sbx_fuse::union::{self, ROOT_ID, Union};
use std::sync::Arc;

/// Takes changes out of a session and has the journal note it.
pub struct Leaver<'a> {
    set: &'a ChangeSet,
    roots: &'a [RootDirs],
    op: Op,
    way: Way<'a>,
}

enum Way<'a> {
    Live { union: Arc<Union>, replaced: Replaced, looks: bool },
    Resting(Box<(Offline<'a>, Journal)>),
}

impl<'a> Leaver<'a> {
    /// Out of the session of `view`, in use if that runs, whose changes are `set`. With `looks`, somebody looks at each
    /// change just before it leaves, when the real tree has all of them already.
    pub fn new(
        view: &View,
        roots: &'a [RootDirs],
        set: &'a ChangeSet,
        why: review::Leave,
        looks: bool,
    ) -> Leaver<'a> {
        let op = if why == review::Leave::Applied { Op::Applied } else { Op::Discarded };
        let way = if view.is_running() {
            Way::Live { union: view.union(), replaced: Replaced::new(set, why), looks }
        } else {
            let journal = Journal::open(&view.setup.journal).unwrap().0;
            Way::Resting(Box::new((Offline::new(roots, set, why), journal)))
        };
        Leaver { set, roots, op, way }
    }

    /// Everything is on the disk.
    pub fn close(self) {
        match self.way {
            Way::Live { union, .. } => union.sync().unwrap(),
            Way::Resting(resting) => resting.1.close().unwrap(),
        }
    }
}

impl Dropper for Leaver<'_> {
    fn drop(&mut self, root: u16, path: &RelPath, seen: Option<Seen>) -> base::Result<bool> {
        let change = self.set.changes.iter().find(|c| (c.root, &c.path) == (root, path));
        match &mut self.way {
            Way::Live { union, replaced, looks } => {
                if *looks {
                    look(union, path);
                }
                let from = change.and_then(|c| c.from.as_ref()).map(|f| review::merged(self.set, root, f));
                let discarded = from.as_ref().filter(|_| self.op == Op::Discarded);
                for way in std::iter::once(path).chain(discarded) {
                    replaced.merge_way(&self.roots[0], way, |at, real| {
                        assert!(union.merge(root, at, real).unwrap(), "{at} was not merged");
                        Ok(())
                    })?;
                }
                let seen = seen.map(|s| (s.ino, s.ctime));
                let silent =
                    silent_above(self.set, path).chain(from.iter().flat_map(|f| silent_above(self.set, f)));
                let silent = silent.collect();
                let leave =
                    union::Leave { op: self.op, root, path: path.clone(), from: from.clone(), seen, silent };
                let left = union.leave(&leave).unwrap_or_else(|e| panic!("{leave:?}: {e}"));
                if left {
                    replaced.left(root, path);
                }
                Ok(left)
            }
            Way::Resting(resting) => {
                let (offline, journal) = &mut **resting;
                let left = offline.drop(root, path, seen)?;
                let kind = change.map_or(Kind::File, |c| c.kind);
                let (path, proc) = (path.clone(), journal.process(std::process::id()));
                let record =
                    Record { op: self.op, root, path, path2: None, kind, base: None, base2: None, proc };
                for record in offline.untold().into_iter().chain(left.then_some(record)) {
                    journal.append(&record).unwrap();
                }
                Ok(left)
            }
        }
    }
}

fn look(union: &Union, path: &RelPath) {
    let mut dir = ROOT_ID;
    for name in path.components() {
        match union.lookup(dir, name) {
            Ok(entry) if entry.id != 0 => dir = entry.id,
            _ => return,
        }
    }
}

/// As the command tells the server.
fn silent_above<'a>(set: &'a ChangeSet, path: &RelPath) -> impl Iterator<Item = RelPath> + 'a {
    let above = std::iter::successors(path.parent(), RelPath::parent);
    above.take_while(|dir| !dir.is_root() && !set.changes.iter().any(|c| c.path == *dir))
}
