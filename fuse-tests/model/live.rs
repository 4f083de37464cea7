//! The real tree changes while the session lives. A model of the kernel keeps all it was told, for as long as it may,
//! and drops what it is told to drop; after each burst of changes it must show what a server would that starts just
//! then.

use crate::ops::{self, Op};
use crate::plain::{Plain, object};
use crate::script::{at, script};
use crate::tree::{Tree, differences};
use crate::view::{Setup, View};
use parking_lot::{Condvar, Mutex};
use proptest::prelude::*;
use sbx_fuse::base::{Attr, Errno, Kind, Name, Sys};
use sbx_fuse::layer::LayerKind;
use sbx_fuse::union::{Config, LayerConfig, NodeId, Notify, ROOT_ID, RootConfig, Union};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What the kernel knows of an inode: attributes, what a listing gave, content or target, xattrs.
#[derive(Default)]
struct Inode {
    attr: Option<Attr>,
    names: Option<Vec<String>>,
    content: Option<Vec<u8>>,
}

/// The kernel's caches, as far as they outlive an operation.
#[derive(Default)]
struct Caches {
    /// `None` for a name that is known not to be there.
    entries: HashMap<(NodeId, Vec<u8>), Option<NodeId>>,
    inodes: HashMap<NodeId, Inode>,
    /// Names of the root that were dropped, and those after which the root itself was.
    dropped: Vec<Vec<u8>>,
    told: HashSet<Vec<u8>>,
}

impl Caches {
    /// As the kernel does: with all that hangs below.
    fn drop_entry(&mut self, parent: NodeId, name: &[u8]) {
        if let Some(Some(id)) = self.entries.remove(&(parent, name.to_vec())) {
            let below: Vec<_> = self.entries.keys().filter(|(dir, _)| *dir == id).cloned().collect();
            for (dir, name) in below {
                self.drop_entry(dir, &name);
            }
        }
    }
}

#[derive(Default)]
struct Shared {
    caches: Mutex<Caches>,
    changed: Condvar,
}

struct Told(Arc<Shared>);

impl Notify for Told {
    fn entry(&self, parent: NodeId, name: &[u8]) {
        let mut caches = self.0.caches.lock();
        caches.drop_entry(parent, name);
        if parent == ROOT_ID {
            caches.dropped.push(name.to_vec());
        }
    }

    fn inode(&self, id: NodeId) {
        let mut caches = self.0.caches.lock();
        caches.inodes.remove(&id);
        if id == ROOT_ID {
            // The last that a change of a name does.
            let dropped = std::mem::take(&mut caches.dropped);
            caches.told.extend(dropped);
            self.0.changed.notify_all();
        }
    }
}

/// A union and what the kernel knows of it.
struct Kernel {
    union: Arc<Union>,
    shared: Arc<Shared>,
}

impl Kernel {
    fn new(union: Arc<Union>) -> Kernel {
        let shared = Arc::new(Shared::default());
        union.set_notify(Box::new(Told(shared.clone())));
        Kernel { union, shared }
    }

    /// What the session itself does, the kernel knows; here it forgets all instead.
    fn clear(&self) {
        let mut caches = self.shared.caches.lock();
        caches.entries.clear();
        caches.inodes.clear();
    }

    /// Waits until the kernel was told of `name` in the root.
    fn wait_for(&self, name: &str) {
        let mut caches = self.shared.caches.lock();
        while !caches.told.contains(name.as_bytes()) {
            let late = self.shared.changed.wait_for(&mut caches, Duration::from_secs(120)).timed_out();
            assert!(!late, "the change of {name} was never told");
        }
    }

    fn known<T: Clone>(&self, id: NodeId, part: impl Fn(&mut Inode) -> &mut Option<T>) -> Option<T> {
        part(self.shared.caches.lock().inodes.entry(id).or_default()).clone()
    }

    /// What is known, or what the server says, which is then known.
    fn get<T: Clone>(
        &self,
        id: NodeId,
        part: impl Fn(&mut Inode) -> &mut Option<T>,
        ask: impl FnOnce() -> Sys<T>,
    ) -> Sys<T> {
        if let Some(known) = self.known(id, &part) {
            return Ok(known);
        }
        let value = ask()?;
        *part(self.shared.caches.lock().inodes.entry(id).or_default()) = Some(value.clone());
        Ok(value)
    }

    fn lookup(&self, dir: NodeId, name: &str) -> Sys<NodeId> {
        let key = (dir, name.as_bytes().to_vec());
        if let Some(known) = self.shared.caches.lock().entries.get(&key) {
            return known.ok_or(Errno::ENOENT);
        }
        let entry = self.union.lookup(dir, name.as_bytes())?;
        let found = (entry.id != 0).then_some(entry.id);
        let mut caches = self.shared.caches.lock();
        // What may be kept for a moment only is asked again each time.
        if entry.ttl > Duration::from_secs(60) {
            caches.entries.insert(key, found);
        }
        if let Some(id) = found {
            caches.inodes.entry(id).or_default().attr = Some(entry.attr);
        }
        found.ok_or(Errno::ENOENT)
    }

    fn tree(&self) -> Tree {
        let (mut tree, mut first) = (Tree::new(), HashMap::new());
        self.walk(ROOT_ID, "", &mut tree, &mut first).unwrap_or_else(|e| panic!("the root: {e}"));
        tree
    }

    fn walk(&self, dir: NodeId, prefix: &str, tree: &mut Tree, first: &mut HashMap<u64, String>) -> Sys<()> {
        let union = &self.union;
        let list = || {
            let mut names = Vec::new();
            union.readdir(dir, 0, false, |item| {
                names.push(String::from_utf8(item.name.to_vec()).unwrap());
                true
            })?;
            names.retain(|n| n != "." && n != "..");
            names.sort();
            Ok(names)
        };
        // A name that is known not to be there stays so until the kernel is told.
        for name in ["a", "b", "c"] {
            self.lookup(dir, name).map_or_else(|e| assert_eq!(e, Errno::ENOENT), drop);
        }
        for name in self.get(dir, |i| &mut i.names, list)? {
            let shown = format!("{prefix}{name}");
            let found = self.lookup(dir, &name).and_then(|id| {
                let attr = self.get(id, |i| &mut i.attr, || Ok(union.getattr(id)?.0))?;
                Ok((id, attr))
            });
            let (id, attr) = found.unwrap_or_else(|e| panic!("{shown} is listed: {e}"));
            let content = self.get(
                id,
                |i| &mut i.content,
                || {
                    let mut content = Vec::new();
                    match attr.kind {
                        Kind::File => union.read(id, 0, 100_000, &mut content)?,
                        Kind::Symlink => content = union.readlink(id)?,
                        _ => {}
                    }
                    Ok(content)
                },
            );
            let content = content.unwrap_or_else(|e| panic!("reading {shown}: {e}"));
            let same_as = first.entry(attr.ino).or_insert_with(|| shown.clone()).clone();
            tree.insert(shown.clone(), object(&attr, content, BTreeMap::new(), same_as));
            if attr.kind == Kind::Dir {
                self.walk(id, &format!("{shown}/"), tree, first)?;
            }
        }
        Ok(())
    }
}

/// What a server that starts now would show: the upper as a layer over the real tree as it is.
fn truth(setup: &Setup) -> Tree {
    let layer = |dir, kind| LayerConfig { dir: crate::view::open(dir), kind };
    let root = RootConfig {
        name: Name::new(b"root").unwrap(),
        real_path: b"/root".to_vec(),
        upper: None,
        lowers: vec![layer(&setup.upper, LayerKind::Overlay), layer(&setup.lowers[0].0, LayerKind::Plain)],
    };
    let config = Config {
        roots: vec![root],
        single: true,
        hidden: Vec::new(),
        journal: None,
        multi_user: false,
        view: sbx_fuse::union::View::default(),
    };
    Kernel::new(Union::new(config).unwrap()).tree()
}

/// What the session and, after it, others do in the real tree.
type Round = (Vec<Op>, Vec<Op>);

/// A real tree, and a session on it that did nothing yet.
fn begin(lower: &[Op]) -> (tempfile::TempDir, Plain, View) {
    let tmp = crate::place();
    let sub = |name: &str| {
        let path = tmp.path().join(name);
        fs::create_dir(&path).unwrap();
        path
    };
    let mut real = Plain::new(sub("lower"));
    for (n, op) in lower.iter().enumerate() {
        drop(real.apply(n, op));
    }
    let work = sub("work");
    let features = crate::view::probe(&work);
    let view = View::new(Setup {
        upper: sub("upper"),
        work,
        journal: sub("journal"),
        lowers: vec![(real.dir.clone(), LayerKind::Plain)],
        features,
        borrows: false,
    });
    (tmp, real, view)
}

fn converges(lower: &[Op], rounds: &[Round]) -> Result<(), TestCaseError> {
    let (_tmp, mut real, mut view) = begin(lower);
    // There are only so many watchers for one user.
    let end = Instant::now() + Duration::from_secs(120);
    while !view.union().watches() {
        assert!(Instant::now() < end, "no inotify instance is free");
        std::thread::sleep(Duration::from_millis(5));
        view.remount();
    }
    let kernel = Kernel::new(view.union());
    for (n, (session, others)) in rounds.iter().enumerate() {
        for (i, op) in session.iter().enumerate() {
            let done = view.apply(1000 * n + i, op);
            prop_assert!(done != Err(Errno::EIO), "round {}: {:?}: {:?}", n, op, done);
        }
        kernel.clear();
        drop(kernel.tree());
        for (i, op) in others.iter().enumerate() {
            drop(real.apply(1000 * n + 500 + i, op));
        }
        // Changes are told in order: when this one was, all were.
        let sign = format!("sign{n}");
        fs::write(real.dir.join(&sign), "").unwrap();
        kernel.wait_for(&sign);
        let different = differences(&truth(&view.setup), &kernel.tree(), true);
        prop_assert!(different.is_empty(), "round {}: {:#?}", n, different);
    }
    Ok(())
}

/// Without hard links: which names of the real tree are one file is kept beside the upper, where a server that only
/// reads does not look. Without what keeps files open.
fn ops(ops: Vec<Op>) -> Vec<Op> {
    let left_out = |op: &Op| {
        matches!(
            op,
            Op::Link { .. }
                | Op::Remount
                | Op::Hold { .. }
                | Op::HeldWrite { .. }
                | Op::HeldRead { .. }
                | Op::SetXattr { .. }
                | Op::RemoveXattr { .. }
        )
    };
    ops.into_iter().filter(|op| !left_out(op)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        max_shrink_iters: 3000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn what_others_do_is_seen_at_once(
        lower in prop::collection::vec(ops::building(), 0..25),
        rounds in prop::collection::vec(
            (prop::collection::vec(ops::working(), 0..12), prop::collection::vec(ops::working(), 0..6)),
            1..4,
        ),
    ) {
        let rounds: Vec<Round> = rounds.into_iter().map(|(s, o)| (ops(s), ops(o))).collect();
        converges(&ops(lower), &rounds)?;
    }
}

/// Others exchange two real directories. What the session has in one of them stays at its path, and whatever becomes of
/// it there, who has it open still has it.
#[test]
fn what_is_in_an_exchanged_directory_is_not_lost() {
    for then in ["walk", "mv b/c c", "unlink b/c", "mv b d; mv d/c c"] {
        let (_tmp, mut real, mut view) = begin(&script("mkdir a; mkdir b"));
        view.apply(0, &script("create b/c 3")[0]).unwrap();
        let (id, _) = view.find(&at("b/c")).unwrap();
        real.apply(0, &script("exchange a b")[0]).unwrap();
        for op in script(then) {
            view.apply(0, &op).unwrap_or_else(|e| panic!("{then}: {op:?}: {e}"));
        }
        view.union().getattr(id).unwrap_or_else(|e| panic!("{then}: {e}"));
        view.tree();
    }
}

/// Of two real objects that others exchange, and exchange again, each is sought where it was last seen.
#[test]
fn what_came_back_is_found_under_its_former_name() {
    for lower in ["symlink b; mkdir c", "create b 3; create c 4", "fifo b; create c 4"] {
        let exchanged = (Vec::new(), script("exchange b c"));
        converges(&script(lower), &[exchanged.clone(), exchanged]).unwrap();
    }
}

/// Others bring a real directory back to where the session had something in it that has moved since.
#[test]
fn a_directory_that_came_back_is_not_what_the_session_moved_from_there() {
    let lower = script("mkdir c; mkdir c/a; mkdir a");
    let exchanged = |session| (script(session), script("exchange a c"));
    converges(&lower, &[exchanged("create c/a/a 1"), exchanged("mv c/a d")]).unwrap();
}

/// Others bring a real directory back to where the session has made something in the one that was there meanwhile.
#[test]
fn a_directory_that_came_back_has_what_the_session_made_in_its_place() {
    let (tmp, real, mut view) = begin(&script("mkdir c; mkdir c/a"));
    let (there, away) = (real.dir.join("c"), tmp.path().join("away"));
    view.find(&at("c/a")).unwrap();
    fs::rename(&there, &away).unwrap();
    fs::create_dir(&there).unwrap();
    view.apply(0, &script("create c/b 1")[0]).unwrap();
    fs::remove_dir(&there).unwrap();
    fs::rename(&away, &there).unwrap();
    for name in ["c/a", "c/b"] {
        view.find(&at(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

/// Others move a real file; the session removes it there; with its directory it comes back.
#[test]
fn what_was_removed_under_its_second_name_comes_back_whole() {
    let lower = script("mkdir a; mkdir b; create b/a 0");
    let others = |text| (Vec::new(), script(text));
    let removed = (script("unlink a/a"), Vec::new());
    converges(&lower, &[others("mv b/a a/a"), removed, others("mv a b/a")]).unwrap();
}

/// Others move a real directory that the session shows elsewhere, or a real file, and change what they moved before
/// anybody looks there.
#[test]
fn what_changes_after_a_move_is_seen() {
    let lower = script("mkdir b; create b/b 0; mkdir b/c; create b/c/a 0; create d 0");
    for (session, others) in [
        ("mv b c", "mv b a; write a/b 0 1"),
        ("mv b c", "mv b a; mv a/b a/a; write a/a 0 1"),
        ("mv b c", "mv b a; write a/c/a 0 1"),
        ("mv b/c c", "mv b a; write a/b 0 1; write a/c/a 0 1"),
        ("mv b c", "mkdir a; mv b a/b; write a/b/b 0 1"),
        // Another directory has its name then.
        ("mv b c", "mv b a; mkdir b; create b/b 2; write a/b 0 1"),
        ("mv b c", "mkdir a; create a/b 2; exchange a b; write a/b 0 1"),
        ("mv b c", "mkdir a; mv b/b a/b; write a/b 0 1"),
        ("mv b c", "mv b a; mv d a/a; write a/a 0 1"),
        ("", "mkdir a; mv b/b a/b; write a/b 0 1"),
        // To where the session has made a directory.
        ("mkdir a", "mv b a"),
        ("mkdir a; create a/x 1", "mv b a; write a/b 0 1"),
    ] {
        let seen = converges(&lower, &[(script(session), script(others))]);
        seen.unwrap_or_else(|e| panic!("{session}, {others}: {e}"));
    }
}
