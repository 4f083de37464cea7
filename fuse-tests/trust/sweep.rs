//! A failure, and a death, before every single thing that applying, undoing and recovering do.

use crate::world::{World, rel};
use sbx_fuse::base::{ChangeSet, Errno, Sys};
use sbx_fuse::layer::{Features, WhiteoutForm};
use sbx_fuse::review::{
    self, Fault, Leave, NoFault, Offline, Policy, RootDirs, Selection, Undone, apply_with, plan, recover,
    scan, settle, undo,
};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

/// Names the world of a child process: its directory, where old content is kept, what to do, and when to die.
const CHILD: &str = "SBX_FUSE_TRUST_CHILD";

/// A world with every kind of change, and all of them in ways that get in each other's way.
pub fn full() -> World {
    let w = World::new();
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
    w.put("locked/f", "L");
    w.set_xattr(&w.upper("mod"), "user.new", "y");
    let then = UNIX_EPOCH + Duration::new(1_000_000, 123_456_789);
    fs::File::open(w.upper("times")).unwrap().set_modified(then).unwrap();
    fs::File::open(w.upper("opq")).unwrap().set_modified(then).unwrap();
    nix::unistd::mkfifo(&w.upper("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    w
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
    let shm = Path::new("/dev/shm");
    let tmp = fs::metadata(std::env::temp_dir()).unwrap();
    let far = fs::metadata(shm).ok().filter(|m| m.dev() != tmp.dev());
    far.and_then(|_| tempfile::tempdir_in(shm).ok())
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
}

impl Fault for At {
    fn at(&mut self, _what: &str) -> Sys<()> {
        self.seen += 1;
        match self.end {
            Some(end) if self.seen == end + 1 && self.dies => std::process::exit(77),
            Some(end) if self.seen == end + 1 => Err(Errno::ENOSPC),
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
    let mut at = At { seen: 0, end: Some(end.parse().unwrap()), dies: true };
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
    fn new(kept: Kept) -> Option<Stage> {
        let w = full();
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

    fn now(&self, dir_times: bool) -> Vec<String> {
        picture(&self.w.real(""), dir_times)
    }

    /// The upper as a walk sees it now, against the changes it began with.
    fn is_old(&self, context: &str) {
        assert_eq!(self.now(true), self.old, "{context}");
        assert_eq!(self.w.scan(), self.set, "{context}: the session lost something");
        assert_nothing_left(&self.w, context);
    }

    fn is_new(&self, names: &[String], context: &str) {
        assert_eq!(self.w.tree(), names, "{context}");
        assert_eq!(self.w.changes(), [""; 0], "{context}");
        assert_nothing_left(&self.w, context);
    }
}

fn new_tree() -> (Vec<String>, usize) {
    let stage = Stage::new(Kept::Near).unwrap();
    let mut count = At { seen: 0, end: None, dies: false };
    assert!(stage.act(What::Apply, &mut count));
    assert_eq!(stage.w.changes(), [""; 0]);
    assert!(stage.w.upper_is_empty(), "{:?}", crate::world::tree(&stage.w.upper("")));
    (stage.w.tree(), count.seen)
}

/// An error before any step: the tree is as it was, down to the times of directories, and nothing is kept.
#[test]
fn an_error_anywhere_takes_everything_back() {
    let (new, count) = new_tree();
    assert!(count > 100, "{count}");
    for (kept, from, by) in [(Kept::Near, 0, 1), (Kept::Far, 1, 4)] {
        for end in (from..).step_by(by) {
            let Some(stage) = Stage::new(kept) else { break };
            let mut at = At { seen: 0, end: Some(end), dies: false };
            let context = format!("error at {end}, {kept:?}");
            if stage.act(What::Apply, &mut at) {
                // From the commit on, a failure is only a warning, and the rest is for the next command.
                stage.act(What::Recover, &mut NoFault);
                stage.is_new(&new, &context);
                if at.seen <= end {
                    break;
                }
            } else {
                stage.is_old(&context);
                let left = fs::read_dir(stage.kept()).unwrap().count();
                assert_eq!(left, 1, "{context}: only the lock stays");
            }
        }
    }
}

/// A death before any step, and the next command: all old or all new. It dies again at times while it recovers.
#[test]
fn a_death_anywhere_is_finished_or_taken_back() {
    let (new, _) = new_tree();
    let (mut olds, mut news) = (0, 0);
    for (kept, from, by) in [(Kept::Near, 0, 1), (Kept::Far, 1, 4)] {
        for end in (from..).step_by(by) {
            let Some(stage) = Stage::new(kept) else { break };
            let died = die(What::Apply, &stage.w, &stage.kept(), end);
            let context = format!("death at {end}, {kept:?}");
            if end % 3 == 0 {
                for again in [2, 0, 5] {
                    die(What::Recover, &stage.w, &stage.kept(), again);
                }
            }
            stage.act(What::Recover, &mut NoFault);
            if stage.now(true) == stage.old {
                olds += 1;
                stage.is_old(&context);
            } else {
                news += 1;
                stage.is_new(&new, &context);
            }
            stage.act(What::Recover, &mut NoFault);
            if !died {
                break;
            }
        }
    }
    assert!(olds > 100 && news > 20, "{olds} {news}");
}

/// The same for an undo: the applied tree, or the one before.
#[test]
fn an_undo_fails_or_dies_anywhere() {
    let sweeps = [
        (Kept::Near, false, 0, 2),
        (Kept::Near, true, 1, 2),
        (Kept::Far, false, 2, 5),
        (Kept::Far, true, 0, 5),
    ];
    for (kept, dies, from, by) in sweeps {
        for end in (from..).step_by(by) {
            let Some(stage) = Stage::new(kept) else { break };
            assert!(stage.act(What::Apply, &mut NoFault));
            let applied = stage.now(true);
            let context = format!("undo ends at {end}, dies: {dies}, {kept:?}");
            let ended = if dies {
                let died = die(What::Undo, &stage.w, &stage.kept(), end);
                if end % 3 == 0 {
                    die(What::Recover, &stage.w, &stage.kept(), 3);
                }
                stage.act(What::Recover, &mut NoFault);
                !died
            } else {
                stage.act(What::Undo, &mut At { seen: 0, end: Some(end), dies })
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
    let w = World::new();
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
