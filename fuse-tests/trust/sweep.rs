//! A failure, and a death, before every single thing that applying, undoing and recovering do.

use crate::world::{World, rel};
use sbx_fuse::base::{ChangeSet, Errno, Sys};
use sbx_fuse::layer::{Features, WhiteoutForm};
use sbx_fuse::review::{
    self, Conflict, Fault, Leave, NoFault, Offline, Policy, RootDirs, Selection, Undone, apply_with, check,
    plan, recover, scan, settle, undo,
};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

/// Names the world of a child process: its directory, where old content is kept, what to do, and when to die.
const CHILD: &str = "SBX_FUSE_TRUST_CHILD";

/// Where worlds are made that everything is done to step by step: in memory where that has what it takes, since every
/// step is synced.
pub fn place() -> &'static Path {
    static PLACE: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
    PLACE.get_or_init(|| {
        let shm = Path::new("/dev/shm");
        let fit = tempfile::tempdir_in(shm).is_ok_and(|dir| {
            use std::os::fd::AsFd;
            let fd = fs::File::open(dir.path()).unwrap();
            sbx_fuse::layer::probe(fd.as_fd()).is_ok_and(|features| features.xattr)
        });
        if fit { shm.to_owned() } else { std::env::temp_dir() }
    })
}

/// A world with every kind of change, and all of them in ways that get in each other's way.
pub fn full() -> World {
    let w = World::within(place());
    for name in ["mod", "del", "old", "typed", "perm", "todir/x", "swap1", "swap2", "hard", "times", "over"] {
        w.has(name, name);
    }
    w.has("dir/a", "1").has("dir/b", "1").has("dir/c", "1").has("gone/x/y", "1").has("link", "-> a");
    w.has("opq/keep", "1").has("opq/sub/x", "1").has("c/f", "f").has("locked/f", "l").has("emptied/", "");
    fs::hard_link(w.real("hard"), w.real("hard2")).unwrap();
    w.set_xattr(&w.real("mod"), "user.old", "x");
    fs::set_permissions(w.real("locked"), fs::Permissions::from_mode(0o555)).unwrap();
    w.copy_up("mod", "mod", Some("2")).whiteout("del").copy_up("new", "old", Some("x")).whiteout("old");
    w.put("typed/in", "1").put("todir", "f").put("added/deep/f", "1").put("empty/", "").put("link", "-> b");
    w.copy_up("perm", "perm", None).copy_up("hard", "hard", Some("harder")).copy_up("times", "times", None);
    fs::set_permissions(w.upper("perm"), fs::Permissions::from_mode(0o755)).unwrap();
    w.redirect("dir2", "dir").whiteout("dir").copy_up("dir2/a", "dir/a", Some("2")).whiteout("dir2/b");
    w.whiteout("gone").put("opq/keep", "2").put("opq/new/n", "n").opaque("opq").whiteout("emptied");
    w.copy_up("swap1", "swap2", None).copy_up("swap2", "swap1", None);
    w.put("c/", "").opaque("c").redirect("c/d", "c").copy_up("c/d/f", "c/f", Some("g"));
    w.put("names/one", "linked");
    fs::hard_link(w.upper("names/one"), w.upper("names/two")).unwrap();
    fs::hard_link(w.upper("perm"), w.upper("names/perm")).unwrap();
    w.put("locked/f", "L");
    w.set_xattr(&w.upper("mod"), "user.new", "y");
    let then = UNIX_EPOCH + Duration::new(1_000_000, 123_456_789);
    fs::File::open(w.upper("times")).unwrap().set_modified(then).unwrap();
    fs::File::open(w.upper("opq")).unwrap().set_modified(then).unwrap();
    nix::unistd::mkfifo(&w.upper("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    w.has("dmode/in", "1")
        .has("dattr/in", "1")
        .has("tolink", "f")
        .has("fromlink", "-> a")
        .has("deadlink", "-> x");
    w.put("dmode/", "").put("dattr/", "").put("tolink", "-> b").put("fromlink", "f").whiteout("deadlink");
    w.put("newlink", "-> nowhere");
    fs::set_permissions(w.upper("dmode"), fs::Permissions::from_mode(0o700)).unwrap();
    w.set_xattr(&w.upper("dattr"), "user.dir", "z");
    nix::unistd::mkfifo(&w.real("deadfifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    w.whiteout("deadfifo");
    top_changes(&w);
    w
}

/// The root itself gets another mode.
fn top_changes(w: &World) {
    use std::os::fd::AsFd;
    fs::set_permissions(w.real(""), fs::Permissions::from_mode(0o755)).unwrap();
    let (real, upper) = (fs::File::open(w.real("")).unwrap(), fs::File::open(w.upper("")).unwrap());
    let attr = sbx_fuse::sys::file::stat(real.as_fd()).unwrap();
    let base = sbx_fuse::base::BaseId::of(&attr);
    let origin = sbx_fuse::layer::Origin { path: sbx_fuse::base::RelPath::root(), base, btime: attr.btime };
    assert!(sbx_fuse::layer::write_origin(upper.as_fd(), &origin).unwrap());
    fs::set_permissions(w.upper(""), fs::Permissions::from_mode(0o750)).unwrap();
}

/// All that can be seen of a tree. Times of directories only where they are to be kept.
pub fn picture(top: &Path, dir_times: bool) -> Vec<String> {
    let mut lines = Vec::new();
    for entry in walkdir::WalkDir::new(top).sort_by_file_name() {
        let entry = entry.unwrap();
        let meta = entry.path().symlink_metadata().unwrap();
        let path = entry.path().strip_prefix(top).unwrap().display().to_string();
        let time = match meta.is_dir() && !dir_times {
            true => String::new(),
            false => format!("{}.{}", meta.mtime(), meta.mtime_nsec()),
        };
        let links = if meta.is_dir() { 0 } else { meta.nlink() };
        let content = match meta.file_type() {
            t if t.is_file() => {
                use std::os::fd::AsFd;
                let file = fs::File::open(entry.path()).unwrap();
                let names = sbx_fuse::sys::xattr::list(file.as_fd()).unwrap();
                let names: Vec<_> = names.iter().map(|n| sbx_fuse::base::quote(n)).collect();
                format!("{} {names:?}", fs::read_to_string(entry.path()).unwrap())
            }
            t if t.is_symlink() => fs::read_link(entry.path()).unwrap().display().to_string(),
            _ => String::new(),
        };
        lines.push(format!("{path} {:o} {links} {time} {content}", meta.mode()));
    }
    lines
}

/// Where old content is kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kept {
    /// Beside the upper, on the file system of the real tree.
    Near,
    /// On another file system.
    Far,
}

/// A directory on another file system than the tests' temporary files, if this machine has one.
pub fn far() -> Option<tempfile::TempDir> {
    let here = fs::metadata(place()).unwrap().dev();
    let other = [PathBuf::from("/dev/shm"), std::env::temp_dir()];
    let far = other.iter().find(|at| fs::metadata(at).is_ok_and(|m| m.dev() != here));
    far.and_then(|at| tempfile::tempdir_in(at).ok())
}

pub fn roots(dir: &Path, features: Features, kept: &Path) -> Vec<RootDirs> {
    let mut root =
        RootDirs::open(&dir.join("real"), &dir.join("upper"), &dir.join("work"), features).unwrap();
    root.kept = kept.to_owned();
    vec![root]
}

fn changes(roots: &[RootDirs]) -> ChangeSet {
    scan(roots).unwrap()
}

std::thread_local! {
    /// What recoveries said since somebody looked.
    static SAID: std::cell::RefCell<Vec<String>> = const { std::cell::RefCell::new(Vec::new()) };
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum What {
    Apply,
    Undo,
    Recover,
}

/// Does one thing to a world; true when it came to an end without an error.
fn act(what: What, roots: &[RootDirs], set: &ChangeSet, fault: &mut dyn Fault) -> bool {
    match what {
        What::Apply => {
            let plan = plan(&settle(roots, set).unwrap(), &Selection::All).unwrap();
            let mut dropper = Offline::new(roots, set, Leave::Applied);
            apply_with(roots, &plan, Policy::default(), &mut dropper, &mut |_| {}, fault).is_ok()
        }
        What::Undo => matches!(undo(roots, &[], false, &mut |_| {}, fault), Ok(Undone::Done { .. })),
        What::Recover => {
            let recovery = recover(roots, &roots[0].kept, fault).unwrap();
            if let Some(mut recovery) = recovery {
                SAID.with_borrow_mut(|said| said.append(&mut recovery.said));
                let mut dropper = Offline::new(roots, set, Leave::Applied);
                recovery.drop_with(roots, &|_, _| true, &mut dropper).unwrap();
            }
            true
        }
    }
}

/// Counts what is done, and fails or dies at one of them.
struct At {
    seen: usize,
    end: Option<usize>,
    dies: bool,
    error: Errno,
}

impl At {
    fn dies(end: usize) -> At {
        At { seen: 0, end: Some(end), dies: true, error: Errno::ENOSPC }
    }

    fn fails(end: usize, error: Errno) -> At {
        At { seen: 0, end: Some(end), dies: false, error }
    }

    fn counts() -> At {
        At { seen: 0, end: None, dies: false, error: Errno::ENOSPC }
    }
}

/// What is tried at every step.
const ERRORS: [Errno; 3] = [Errno::ENOSPC, Errno::EACCES, Errno::EIO];

impl Fault for At {
    fn at(&mut self, _what: &str) -> Sys<()> {
        self.seen += 1;
        match self.end {
            Some(end) if self.seen == end + 1 && self.dies => std::process::exit(77),
            Some(end) if self.seen == end + 1 => Err(self.error),
            _ => Ok(()),
        }
    }
}

/// What a child process of this test does: one thing to one world, and dies in the middle of it.
#[test]
fn child() {
    let Some(order) = std::env::var_os(CHILD) else { return };
    let order = order.into_string().unwrap();
    let words: Vec<&str> = order.split('\n').collect();
    let [dir, kept, what, end, xattr, prefix] = words[..] else { panic!("{words:?}") };
    let what = match what {
        "Apply" => What::Apply,
        "Undo" => What::Undo,
        _ => What::Recover,
    };
    let whiteout = if prefix == "true" { WhiteoutForm::Prefix } else { WhiteoutForm::Device };
    let features = Features { whiteout, xattr: xattr == "true", reflink: false };
    let roots = roots(Path::new(dir), features, Path::new(kept));
    let mut at = At::dies(end.parse().unwrap());
    let set = if what == What::Undo { ChangeSet::default() } else { changes(&roots) };
    act(what, &roots, &set, &mut at);
    std::process::exit(0);
}

/// Lets a child do it, to die at `end`; whether it died.
fn die(what: What, w: &World, kept: &Path, end: usize) -> bool {
    let order = [
        w.dir.path().to_str().unwrap().to_owned(),
        kept.to_str().unwrap().to_owned(),
        format!("{what:?}"),
        end.to_string(),
        w.features.xattr.to_string(),
        (w.features.whiteout == WhiteoutForm::Prefix).to_string(),
    ];
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "sweep::child", "--nocapture"])
        .env(CHILD, order.join("\n"))
        .stdout(std::process::Stdio::null())
        .status()
        .unwrap();
    assert!(matches!(status.code(), Some(0 | 77)), "{what:?} at {end}: {status}");
    status.code() == Some(77)
}

fn assert_nothing_left(w: &World, context: &str) {
    for entry in walkdir::WalkDir::new(w.real("")) {
        let name = entry.unwrap().file_name().to_str().unwrap().to_owned();
        assert!(!name.starts_with(".sbx-fuse."), "left behind {context}: {name}");
    }
    assert_eq!(fs::read_dir(w.dir.path().join("work")).unwrap().count(), 0, "{context}");
}

struct Stage {
    w: World,
    far: Option<tempfile::TempDir>,
    old: Vec<String>,
    set: ChangeSet,
}

impl Stage {
    fn new(make: fn() -> World, kept: Kept) -> Option<Stage> {
        let w = make();
        let far = if kept == Kept::Far { Some(far()?) } else { None };
        let old = picture(&w.real(""), true);
        let set = w.scan();
        Some(Stage { w, far, old, set })
    }

    fn kept(&self) -> PathBuf {
        self.far.as_ref().map_or(self.w.dir.path().join("apply"), |far| far.path().join("apply"))
    }

    fn roots(&self) -> Vec<RootDirs> {
        roots(self.w.dir.path(), self.w.features, &self.kept())
    }

    fn act(&self, what: What, fault: &mut dyn Fault) -> bool {
        act(what, &self.roots(), &self.set, fault)
    }

    fn conflicts(&self) -> Vec<Conflict> {
        let roots = self.roots();
        let settled = settle(&roots, &self.set).unwrap();
        check(&roots, &settled, &|_, _| None).unwrap()
    }

    fn now(&self, dir_times: bool) -> Vec<String> {
        picture(&self.w.real(""), dir_times)
    }

    /// The upper as a walk sees it now, against the changes it began with.
    fn is_old(&self, context: &str) {
        assert_eq!(self.now(true), self.old, "{context}");
        assert_eq!(self.w.scan(), self.set, "{context}: the session lost something");
        assert_eq!(
            self.conflicts(),
            [],
            "{context}: what we did ourselves is taken for somebody else's work"
        );
        assert_nothing_left(&self.w, context);
    }

    fn is_new(&self, names: &[String], context: &str) {
        assert_eq!(self.w.tree(), names, "{context}");
        assert_eq!(self.w.changes(), [""; 0], "{context}");
        assert_nothing_left(&self.w, context);
    }
}

fn new_tree(make: fn() -> World) -> (Vec<String>, usize) {
    let stage = Stage::new(make, Kept::Near).unwrap();
    let mut count = At::counts();
    assert!(stage.act(What::Apply, &mut count));
    assert_eq!(stage.w.changes(), [""; 0]);
    assert!(stage.w.upper_is_empty(), "{:?}", crate::world::tree(&stage.w.upper("")));
    (stage.w.tree(), count.seen)
}

/// An error before any step: the tree is as it was, down to the times of directories, and nothing is kept.
#[test]
fn an_error_anywhere_takes_everything_back() {
    assert!(fails_anywhere(full) > 100);
}

/// Applies the changes of worlds like this with an error at every step, and returns how many there are.
pub fn fails_anywhere(make: fn() -> World) -> usize {
    let (new, count) = new_tree(make);
    let near = ERRORS.map(|error| (Kept::Near, 0, 1, error));
    for (kept, from, by, error) in near.into_iter().chain([(Kept::Far, 1, 4, Errno::EIO)]) {
        for end in (from..).step_by(by) {
            let Some(stage) = Stage::new(make, kept) else { break };
            let mut at = At::fails(end, error);
            let context = format!("{error:?} at {end}, {kept:?}");
            if stage.act(What::Apply, &mut at) {
                // From the commit on, a failure is only a warning, and the rest is for the next command.
                stage.act(What::Recover, &mut NoFault);
                stage.is_new(&new, &context);
                if at.seen <= end {
                    break;
                }
            } else {
                stage.is_old(&context);
                let left = fs::read_dir(stage.kept()).unwrap().map(|e| e.unwrap().file_name());
                let left: Vec<_> = left.filter(|name| name != "lock" && name != "touched").collect();
                assert!(left.is_empty(), "{context}: {left:?}");
            }
        }
    }
    count
}

/// A death before any step, and the next command: all old or all new. It dies again at times while it recovers.
#[test]
fn a_death_anywhere_is_finished_or_taken_back() {
    let (olds, news) = dies_anywhere(full);
    assert!(olds > 100 && news > 20, "{olds} {news}");
}

/// Applies the changes of worlds like this with a death at every step; returns how many left the old and how many the
/// new tree.
pub fn dies_anywhere(make: fn() -> World) -> (usize, usize) {
    let (new, _) = new_tree(make);
    let (mut olds, mut news) = (0, 0);
    for (kept, from, by) in [(Kept::Near, 0, 1), (Kept::Far, 1, 4)] {
        for end in (from..).step_by(by) {
            let Some(stage) = Stage::new(make, kept) else { break };
            let died = die(What::Apply, &stage.w, &stage.kept(), end);
            let context = format!("death at {end}, {kept:?}");
            let told = end % 3 != 0;
            if !told {
                for again in [2, 9, 0, 30] {
                    die(What::Recover, &stage.w, &stage.kept(), again);
                }
            }
            SAID.take();
            stage.act(What::Recover, &mut NoFault);
            let said = SAID.take();
            let is_old = stage.now(true) == stage.old;
            if is_old {
                olds += 1;
                stage.is_old(&context);
            } else {
                news += 1;
                stage.is_new(&new, &context);
            }
            if died {
                let word = if is_old { "took it back" } else { "finished it" };
                // A recovery that was interrupted itself may have come to the end already.
                let expected = said.len() == 1 && said[0].contains(word) || !told && said.is_empty();
                assert!(expected, "{context}: {said:?}");
                let stuck = fs::read_dir(stage.kept()).unwrap().map(|e| e.unwrap().file_name());
                let stuck: Vec<_> = stuck.filter(|n| n.to_str().is_some_and(|n| n.contains('.'))).collect();
                assert!(stuck.is_empty(), "{context}: {stuck:?}");
            }
            stage.act(What::Recover, &mut NoFault);
            if !died {
                break;
            }
        }
    }
    (olds, news)
}

/// The same for an undo: the applied tree, or the one before.
#[test]
fn an_undo_fails_or_dies_anywhere() {
    undo_fails_or_dies_anywhere(full);
}

/// Undoes the changes of worlds like this with an error or a death at every few steps.
pub fn undo_fails_or_dies_anywhere(make: fn() -> World) {
    let sweeps = [
        (Kept::Near, false, 0, 2),
        (Kept::Near, true, 1, 2),
        (Kept::Far, false, 2, 5),
        (Kept::Far, true, 0, 5),
    ];
    for (kept, dies, from, by) in sweeps {
        for end in (from..).step_by(by) {
            let Some(stage) = Stage::new(make, kept) else { break };
            assert!(stage.act(What::Apply, &mut NoFault));
            let applied = stage.now(true);
            let context = format!("undo ends at {end}, dies: {dies}, {kept:?}");
            let ended = if dies {
                let died = die(What::Undo, &stage.w, &stage.kept(), end);
                if end % 3 == 0 {
                    die(What::Recover, &stage.w, &stage.kept(), 3);
                }
                SAID.take();
                stage.act(What::Recover, &mut NoFault);
                let said = SAID.take();
                let expected = said.len() == 1 || end % 3 == 0 && said.is_empty();
                assert!(!died || expected, "{context}: {said:?}");
                !died
            } else {
                stage.act(What::Undo, &mut At::fails(end, ERRORS[end / 2 % 3]))
            };
            assert_nothing_left(&stage.w, &context);
            let now = stage.now(true);
            assert!(now == applied || now == stage.old, "{context}: {now:#?} {:#?} {applied:#?}", stage.old);
            if ended {
                assert_eq!(now, stage.old, "{context}");
                break;
            }
            if now != stage.old {
                assert!(stage.act(What::Undo, &mut NoFault), "{context}: not undone afterwards");
                assert_eq!(stage.now(true), stage.old, "{context}");
            }
        }
    }
}

/// Twenty thousand changes: the log is written in few batches, and everything can be taken back.
#[test]
fn many_changes_are_applied_and_undone() {
    let w = World::within(place());
    for i in 0..20_000 {
        let at = w.upper(&format!("d{}/f{i}", i / 500));
        if i % 500 == 0 {
            fs::create_dir(at.parent().unwrap()).unwrap();
        }
        fs::write(at, "x").unwrap();
    }
    let kept = w.dir.path().join("apply");
    let roots = roots(w.dir.path(), w.features, &kept);
    let mut calls = 0;
    let set = changes(&roots);
    let plan = review::plan(&settle(&roots, &set).unwrap(), &Selection::All).unwrap();
    let mut dropper = Offline::new(&roots, &set, Leave::Applied);
    let report = review::apply(&roots, &plan, &mut dropper, &mut |p| {
        assert!(p.done <= p.total);
        calls += 1;
    });
    assert_eq!(report.unwrap().applied.len(), 20_040);
    assert!(calls > 20_000);
    assert_eq!(fs::read(w.real("d7/f3999")).unwrap(), b"x");
    assert!(act(What::Undo, &roots, &set, &mut NoFault));
    assert_eq!(w.tree(), [""; 0]);
    assert_eq!(rel("a").as_bytes(), b"a");
}

/// A part of a file: an error or a death at any step leaves the real file old or with the part, and the session's whole.
#[test]
fn a_part_of_a_file_is_applied_or_not() {
    use sbx_fuse::review::partial::{Part, apply_parts, clear_parts, has_parts, left_over};
    let mut applied = 0;
    for error in ERRORS {
        for end in 0.. {
            let w = World::within(place());
            w.has("f", "1\n2\n3\n4\n5\n6\n7\n8\n9\n").copy_up(
                "f",
                "f",
                Some("one\n2\n3\n4\n5\n6\n7\n8\nnine\n"),
            );
            let (old, settled) = (picture(&w.real(""), true), w.settled());
            let part = Part { settled: &settled[0], content: b"one\n2\n3\n4\n5\n6\n7\n8\n9\n".to_vec() };
            let mut at = At::fails(end, error);
            let done = apply_parts(&w.roots(), vec![part], true, &mut |_| {}, &mut at);
            let context = format!("{error:?} at {end}");
            // Until the journal is told, whoever comes next finds what was applied, and only that.
            assert_eq!(has_parts(&w.roots()).unwrap(), done.is_ok(), "{context}");
            let found = left_over(&w.roots(), &w.settled(), true).unwrap();
            let bases = |moved: &[sbx_fuse::review::partial::Moved]| -> Vec<_> {
                moved.iter().map(|m| (m.path.clone(), m.ino, m.base.clone())).collect()
            };
            assert_eq!(bases(&found), done.as_ref().map_or(vec![], |(_, moved)| bases(moved)), "{context}");
            clear_parts(&w.roots()).unwrap();
            assert_nothing_left(&w, &context);
            assert_eq!(fs::read(w.upper("f")).unwrap(), b"one\n2\n3\n4\n5\n6\n7\n8\nnine\n", "{context}");
            match done {
                Ok(_) => {
                    assert!(w.tree()[0].starts_with("f = \"one\\n2"), "{context}: {:?}", w.tree());
                    assert_eq!(w.changes(), ["M f"], "{context}");
                    applied += 1;
                }
                Err(_) => assert_eq!(picture(&w.real(""), true), old, "{context}"),
            }
            if at.seen <= end {
                break;
            }
        }
    }
    assert!(applied >= ERRORS.len());
}
