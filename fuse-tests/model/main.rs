//! The union against a plain directory: random operations on both, then the whole trees are compared. No mount.

#![allow(clippy::unwrap_used)] // all of this is tests

#[cfg(debug_assertions)]
mod faults;
mod goes_on;
#[cfg(debug_assertions)]
mod killed;
mod leaving;
mod live;
mod names;
mod ops;
mod plain;
mod replaced;
mod script;
mod tree;
mod view;

use ops::Op;
use plain::Plain;
use proptest::prelude::*;
use sbx_fuse::base::{Change, ChangeSet, Kind};
use sbx_fuse::journal;
use sbx_fuse::layer::{LayerKind, WhiteoutForm};
use sbx_fuse::review::{self, Disagreement, Leave, Offline, RootDirs, Selection, Settled};
use std::fs;
use std::path::Path;
use tree::{Tree, differences};
use view::{Setup, View};

/// A place for trees, in memory where that has what we need, since copy-up syncs.
fn place() -> tempfile::TempDir {
    let builder = |dir: &Path| tempfile::Builder::new().prefix("sbxmodel-").tempdir_in(dir);
    if let Ok(dir) = builder(Path::new("/dev/shm"))
        && view::probe(dir.path()).xattr
    {
        return dir;
    }
    builder(&std::env::temp_dir()).unwrap()
}

/// Whether names of one object are to be names of one object in the real tree as well.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Links {
    Kept,
    OfFiles,
}

struct Both {
    plain: Plain,
    view: View,
    done: usize,
    /// No object of the lower has several names.
    exact_links: bool,
    tmp: tempfile::TempDir,
}

impl Both {
    fn new(lower: &[Op], form: Option<WhiteoutForm>, borrows: bool) -> Both {
        let tmp = place();
        let sub = |name: &str| {
            let path = tmp.path().join(name);
            fs::create_dir(&path).unwrap();
            path
        };
        let mut plain = Plain::new(sub("plain"));
        let mut real = Plain::new(sub("lower"));
        let mut exact_links = true;
        for (n, op) in lower.iter().enumerate() {
            if let Op::Link { from, .. } = op {
                // Hard links of anything but files come apart at a copy-up: there is nowhere to note their identity.
                if !fs::symlink_metadata(real.dir.join(from.join("/"))).is_ok_and(|m| m.is_file()) {
                    continue;
                }
                exact_links = false;
            }
            assert_eq!(plain.apply(n, op), real.apply(n, op));
        }
        let work = sub("work");
        let mut features = view::probe(&work);
        features.whiteout = form.unwrap_or(features.whiteout);
        let setup = Setup {
            upper: sub("upper"),
            work,
            journal: sub("journal"),
            lowers: vec![(real.dir.clone(), LayerKind::Plain)],
            features,
            borrows,
        };
        Both { plain, view: View::new(setup), done: lower.len(), exact_links, tmp }
    }

    fn apply(&mut self, ops: &[Op]) -> Result<(), TestCaseError> {
        for op in ops {
            let should = self.plain.apply(self.done, op);
            let does = self.view.apply(self.done, op);
            prop_assert_eq!(does, should, "{:?}", op);
            self.done += 1;
        }
        Ok(())
    }

    fn agree(&mut self, when: &str) -> Result<(), TestCaseError> {
        let different = differences(&self.plain.tree(), &self.view.tree(), self.exact_links);
        prop_assert!(different.is_empty(), "{}: {:#?}", when, different);
        let left = self.view.leftovers();
        prop_assert!(left.is_empty(), "{}: left in the work directory: {:?}", when, left);
        Ok(())
    }

    /// The journal tells the same changes as a scan of the upper.
    fn journal_agrees(&mut self) -> Result<(), TestCaseError> {
        self.view.stop();
        let (folded, scanned, differ) = disagreements(&self.view.setup);
        let words = |set: &[Settled]| -> Vec<String> {
            set.iter().map(|s| format!("{:?} {} {:?}", s.change.what, s.change.path, s.change.from)).collect()
        };
        let (fold, scan) = (words(&folded), words(&scanned));
        prop_assert!(differ.is_empty(), "{:#?}\njournal: {:#?}\nupper: {:#?}", differ, fold, scan);
        Ok(())
    }

    /// After a repair the journal tells what a scan of the upper finds.
    fn is_repaired(&mut self) -> Result<(), TestCaseError> {
        let setup = &self.view.setup;
        let roots = [RootDirs::open(&setup.lowers[0].0, &setup.upper, &setup.work, setup.features).unwrap()];
        let (journal, _) = journal::Journal::open(&setup.journal).unwrap();
        let before = journal::fold_dir(&setup.journal).unwrap().set;
        review::repair(&roots, &setup.journal, &journal).unwrap();
        journal.close().unwrap();
        let after = journal::fold_dir(&setup.journal).unwrap().set;
        let differing = review::compare(&roots, &after).unwrap();
        prop_assert!(
            differing.paths.is_empty(),
            "{:#?} before {:?} after {:?} scan {:?}",
            differing.paths,
            short(&before),
            short(&after),
            short(&review::scan(&roots).unwrap())
        );
        Ok(())
    }

    /// What is applied of the journal's changes makes the real tree what the view was, and leaves nothing to apply.
    fn applies(&mut self, links: Links) -> Result<(), TestCaseError> {
        self.view.stop();
        let setup = &self.view.setup;
        let real = &setup.lowers[0].0;
        let roots = [RootDirs::open(real, &setup.upper, &setup.work, setup.features).unwrap()];
        let set = journal::fold_dir(&setup.journal).unwrap().set;
        let settled = review::settle(&roots, &set).unwrap();
        let conflicts = review::check(&roots, &settled, &|_, _| None).unwrap();
        prop_assert!(conflicts.is_empty(), "{:#?} of {:#?}", conflicts, short(&set));
        let plan = review::plan(&settled, &Selection::All).unwrap();
        let mut dropper = Offline::new(&roots, &set, Leave::Applied);
        let report = review::apply(&roots, &plan, &mut dropper, &mut |_| {});
        prop_assert!(report.is_ok(), "{:?} {:#?}", report.err(), set);
        let [should, is] = [&self.plain.dir, real].map(|dir| {
            let mut tree = Plain::new(dir.clone()).tree();
            for (path, object) in
                tree.iter_mut().filter(|(_, o)| links == Links::OfFiles && o.kind != Kind::File)
            {
                (object.nlink, object.same_as) = (1, path.clone());
            }
            tree
        });
        let different = differences(&should, &is, self.exact_links);
        prop_assert!(different.is_empty(), "applied: {:#?} {:#?}", different, set);
        let left = review::settle(&roots, &review::scan(&roots).unwrap()).unwrap();
        prop_assert!(left.is_empty(), "left: {:#?}", left);
        Ok(())
    }

    /// Throwing all of the journal's changes away leaves nothing that differs from the real tree.
    fn is_thrown_away(&mut self) -> Result<(), TestCaseError> {
        self.view.stop();
        let setup = &self.view.setup;
        let roots = [RootDirs::open(&setup.lowers[0].0, &setup.upper, &setup.work, setup.features).unwrap()];
        let set = journal::fold_dir(&setup.journal).unwrap().set;
        let settled = review::settle(&roots, &set).unwrap();
        let mut dropper = Offline::new(&roots, &set, Leave::Discarded);
        let done = review::discard(&roots, &settled, &Selection::All, &mut dropper);
        prop_assert!(done.is_ok_and(|d| d.kept.is_empty()), "{:#?}", set);
        let left = review::settle(&roots, &review::scan(&roots).unwrap()).unwrap();
        prop_assert!(left.is_empty(), "left: {:#?} of {:#?}", left, set);
        Ok(())
    }

    /// The upper becomes a layer below a fresh one.
    fn freeze(&mut self, n: usize) {
        self.view.stop();
        let mut setup = self.view.setup.clone();
        setup.lowers.insert(0, (setup.upper.clone(), LayerKind::Overlay));
        for (path, name) in
            [(&mut setup.upper, "upper"), (&mut setup.work, "work"), (&mut setup.journal, "journal")]
        {
            *path = self.tmp.path().join(format!("{name}{n}"));
            fs::create_dir(&*path).unwrap();
        }
        self.view = View::new(setup);
    }
}

/// What the journal of a session that is not served tells, what a scan of its upper finds, and where they disagree.
fn disagreements(setup: &Setup) -> (Vec<Settled>, Vec<Settled>, Vec<Disagreement>) {
    let dirs = RootDirs::open(&setup.lowers[0].0, &setup.upper, &setup.work, setup.features).unwrap();
    let roots = [dirs];
    let scanned = review::settle(&roots, &review::scan(&roots).unwrap()).unwrap();
    let folded = review::settle(&roots, &journal::fold_dir(&setup.journal).unwrap().set).unwrap();
    let differ = review::agree(&folded, &scanned);
    (folded, scanned, differ)
}

/// What a session does to names without making second ones.
fn unlinked(ops: impl IntoIterator<Item = Op>) -> Vec<Op> {
    ops.into_iter().filter(|op| !matches!(op, Op::Link { .. })).collect()
}

/// A lower tree of what can hold xattrs.
fn xattrs_held(ops: Vec<Op>) -> Vec<Op> {
    ops.into_iter().filter(|op| !matches!(op, Op::Symlink { .. } | Op::Fifo { .. })).collect()
}

/// A lower tree of what can hold a mark of where it was.
fn markable(ops: Vec<Op>) -> Vec<Op> {
    xattrs_held(unlinked(ops))
}

/// The changes without what makes them long.
fn short(set: &ChangeSet) -> Vec<String> {
    let one = |c: &Change| {
        format!("{:?} {} {:?} {:?}", c.what, c.path, c.from.as_ref().map(ToString::to_string), c.kind)
    };
    set.changes.iter().map(one).collect()
}

/// Everything that must not change in the real tree.
fn fingerprint(dir: &Path) -> Vec<String> {
    use std::os::unix::fs::MetadataExt;
    let mut all: Vec<String> = walkdir::WalkDir::new(dir)
        .into_iter()
        .map(|e| {
            let e = e.unwrap();
            let m = fs::symlink_metadata(e.path()).unwrap();
            let (path, ino, mode, links) = (e.path().display(), m.ino(), m.mode(), m.nlink());
            format!(
                "{path} {ino} {mode:o} {links} {}.{} {}.{}",
                m.mtime(),
                m.mtime_nsec(),
                m.ctime(),
                m.ctime_nsec()
            )
        })
        .collect();
    all.sort();
    all
}

fn session(
    lower: &[Op],
    work: &[Op],
    form: Option<WhiteoutForm>,
    borrows: bool,
) -> Result<(), TestCaseError> {
    let mut both = Both::new(lower, form, borrows);
    let real = both.tmp.path().join("lower");
    let before = fingerprint(&real);
    both.apply(work)?;
    both.agree("after the operations")?;
    both.view.apply(0, &Op::Forget).unwrap();
    both.agree("after the kernel forgot all")?;
    both.view.remount();
    both.agree("after a remount")?;
    prop_assert_eq!(fingerprint(&real), before, "the real tree was changed");
    Ok(())
}

fn config() -> ProptestConfig {
    ProptestConfig {
        cases: 3000,
        max_shrink_iters: 20_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_session_does_what_a_plain_directory_does(
        lower in prop::collection::vec(ops::building(), 0..25),
        work in prop::collection::vec(ops::working(), 0..40),
        borrows: bool,
    ) {
        session(&lower, &work, None, borrows)?;
    }

    #[test]
    fn also_with_whiteouts_as_prefixed_files(
        lower in prop::collection::vec(ops::building(), 0..25),
        work in prop::collection::vec(ops::working(), 0..40),
    ) {
        session(&lower, &work, Some(WhiteoutForm::Prefix), false)?;
    }

    /// A scan cannot follow what holds no xattr to where it moved, and cannot tell which name of a file is the new one: so
    /// without symlinks and fifos in the lower, and without links made in the session.
    #[test]
    fn the_journal_tells_what_a_scan_finds(
        lower in prop::collection::vec(ops::building(), 0..25),
        work in prop::collection::vec(ops::working(), 0..40),
        prefixed: bool,
        borrows: bool,
    ) {
        let lower = xattrs_held(lower);
        let work = unlinked(work);
        let mut both = Both::new(&lower, prefixed.then_some(WhiteoutForm::Prefix), borrows);
        both.apply(&work)?;
        both.journal_agrees()?;
    }

    #[test]
    fn what_changed_places_is_told_and_applied(
        lower in prop::collection::vec(ops::building(), 0..25),
        work in prop::collection::vec(ops::places(), 0..15),
        prefixed: bool,
        applied: bool,
    ) {
        let lower = markable(lower);
        let work = unlinked(work.into_iter().flatten());
        let mut both = Both::new(&lower, prefixed.then_some(WhiteoutForm::Prefix), false);
        both.apply(&work)?;
        both.journal_agrees()?;
        if applied { both.applies(Links::Kept)? } else { both.is_thrown_away()? }
    }

    /// Names that the session gave to real files and to its own are links in the real tree, too.
    #[test]
    fn links_of_a_session_are_applied_as_such(
        lower in prop::collection::vec(ops::building(), 0..15),
        work in prop::collection::vec(ops::linking(), 0..20),
        prefixed: bool,
    ) {
        let lower = markable(lower);
        let mut both = Both::new(&lower, prefixed.then_some(WhiteoutForm::Prefix), false);
        both.apply(&work)?;
        both.applies(Links::Kept)?;
    }

    /// Also with what an upper cannot tell, but the journal can.
    #[test]
    fn whatever_a_session_did_is_applied(
        lower in prop::collection::vec(ops::building(), 0..25),
        work in prop::collection::vec(ops::places(), 0..25),
        prefixed: bool,
        applied: bool,
    ) {
        // Of a real file that was changed and removed under one name, the others are known only once they were looked at.
        let walked = |op: Op| match op {
            Op::Forget | Op::Remount => vec![op, Op::Walk],
            op => vec![op],
        };
        let work: Vec<Op> = [Op::Walk].into_iter().chain(work.into_iter().flatten().flat_map(walked)).collect();
        let mut both = Both::new(&lower, prefixed.then_some(WhiteoutForm::Prefix), false);
        both.apply(&work)?;
        // Nothing marks a new name of a real symlink or fifo.
        if applied { both.applies(Links::OfFiles)? } else { both.is_thrown_away()? }
    }

    /// As after a crash of the machine, which the journal's last records need not survive.
    #[test]
    fn a_journal_that_lost_its_end_is_repaired(
        lower in prop::collection::vec(ops::building(), 0..25),
        work in prop::collection::vec(ops::places(), 0..10),
        lost in prop::collection::vec(ops::places(), 1..4),
        prefixed: bool,
    ) {
        let lower = markable(lower);
        let mut both = Both::new(&lower, prefixed.then_some(WhiteoutForm::Prefix), false);
        both.apply(&unlinked(work.into_iter().flatten()))?;
        both.view.stop();
        let log = both.view.setup.journal.join("log");
        let end = fs::metadata(&log).unwrap().len();
        let before = fs::read(&log).unwrap();
        both.plain.apply(0, &Op::Remount).unwrap();
        both.view.start();
        both.apply(&unlinked(lost.into_iter().flatten()))?;
        both.view.stop();
        prop_assert!(fs::metadata(&log).unwrap().len() >= end);
        fs::write(&log, before).unwrap();
        both.is_repaired()?;
        both.applies(Links::Kept)?;
    }

    #[test]
    fn also_over_layers_that_were_uppers(
        lower in prop::collection::vec(ops::building(), 0..20),
        work in prop::collection::vec(prop::collection::vec(ops::working(), 0..15), 2..4),
    ) {
        // The names of a lower hard link that the upper does not have follow the index, which stays behind.
        let (lower, work) = (unlinked(lower), work.into_iter().map(unlinked).collect::<Vec<_>>());
        let mut both = Both::new(&lower, None, false);
        for (n, ops) in work.iter().enumerate() {
            both.apply(ops)?;
            both.agree("before the upper was frozen")?;
            both.plain.apply(0, &Op::Remount).unwrap();
            both.freeze(n);
            both.agree("after the upper was frozen")?;
        }
    }
}

fn at(path: &'static str) -> ops::Path {
    path.split('/').collect()
}

fn mv(from: &'static str, to: &'static str, how: ops::How) -> Op {
    Op::Rename { from: at(from), to: at(to), how }
}

/// The index leads the second name of a changed file to the session's copy; what it was is the real file.
#[test]
fn a_second_name_that_is_moved_was_the_real_file() {
    let lower = [Op::Create { at: at("b"), len: 0 }, Op::Link { from: at("b"), to: at("c") }];
    let work = [Op::Write { at: at("c"), offset: 0, len: 1 }, mv("b", "d", ops::How::Replace)];
    let mut both = Both::new(&lower, None, false);
    both.apply(&work).unwrap();
    both.applies(Links::Kept).unwrap();
}

/// A directory that moved into its own replacement, in which it has left one behind, moves on with all of it.
#[test]
fn what_was_left_behind_is_seen_where_its_directory_goes() {
    let lower = [Op::Mkdir { at: at("b") }, Op::Mkdir { at: at("b/a") }, Op::Mkdir { at: at("b/a/a") }];
    let into = |dir, t, new, from, to| {
        let r = ops::How::Replace;
        vec![mv(dir, t, r), Op::Mkdir { at: at(dir) }, mv(t, new, r), mv(from, to, r)]
    };
    let first = into("b/a", "t", "b/a/b", "b/a/b/a", "b/a/a");
    let second = into("b", "t", "b/a", "b/a/c", "b/c");
    for work in [first.clone(), [first, second].concat()] {
        let mut both = Both::new(&lower, None, false);
        both.apply(&work).unwrap();
        both.journal_agrees().unwrap();
        both.applies(Links::Kept).unwrap();
    }
}

/// A file that is back under its own name, in a directory made there since, is still the one that has another name, too.
#[test]
fn a_file_that_came_back_has_its_other_name() {
    let mkdir = |path| Op::Mkdir { at: at(path) };
    let mv = |from, to| mv(from, to, ops::How::Replace);
    let lower = [mkdir("b"), Op::Create { at: at("a"), len: 0 }, Op::Link { from: at("a"), to: at("b/b") }];
    let write = Op::Write { at: at("a"), offset: 0, len: 1 };
    let work = [Op::Walk, mv("b", "t"), mkdir("b"), mv("t", "b/a"), mv("b/a/b", "b/b"), write];
    let mut both = Both::new(&lower, None, false);
    both.apply(&work).unwrap();
    both.applies(Links::Kept).unwrap();
}

/// A directory that is in the upper already, for the sake of an operation in it that failed, is exchanged with a file.
#[test]
fn an_exchange_tells_that_a_directory_is_one() {
    let lower =
        [Op::Mkdir { at: at("c") }, Op::Create { at: at("c/c"), len: 3 }, Op::Create { at: at("a"), len: 1 }];
    let nothing = mv("b", "c/x", ops::How::Replace);
    let failing = mv("c/c", "c", ops::How::Replace);
    let exchange = mv("a", "c", ops::How::Exchange);
    let unlink = Op::Unlink { at: at("a/c") };
    let mut both = Both::new(&lower, None, false);
    both.apply(&[nothing, failing, mv("a", "c/y", ops::How::Replace), mv("c/y", "a", ops::How::Replace)])
        .unwrap();
    both.apply(&[Op::Forget, exchange, unlink]).unwrap();
    both.view.stop();
    let set = journal::fold_dir(&both.view.setup.journal).unwrap().set;
    assert_eq!(
        short(&set),
        ["Renamed a Some(\"c\") Dir", "Deleted a/c None File", "Renamed c Some(\"a\") File"]
    );
    both.applies(Links::Kept).unwrap();
}

/// The name that a real file was changed under goes: the change is told by another one.
#[test]
fn a_change_outlives_the_name_it_was_made_under() {
    let lower = [
        Op::Create { at: at("b"), len: 0 },
        Op::Link { from: at("b"), to: at("c") },
        Op::Create { at: at("x"), len: 5 },
    ];
    let write = |name| Op::Write { at: at(name), offset: 0, len: 3 };
    let unlink = || Op::Unlink { at: at("b") };
    for work in [
        vec![Op::Walk, write("b"), unlink()],
        vec![Op::Walk, write("b"), mv("x", "b", ops::How::Replace)],
        vec![write("b"), unlink(), write("c")],
        vec![Op::Walk, Op::Chmod { at: at("b"), mode: 0o755 }, unlink(), Op::Forget, Op::Walk],
    ] {
        let mut both = Both::new(&lower, None, false);
        both.apply(&work).unwrap();
        both.applies(Links::Kept).unwrap();
    }
}

#[test]
fn an_object_comes_back_to_its_path_while_its_directory_moves() {
    let lower = [Op::Mkdir { at: at("a") }, Op::Create { at: at("a/a"), len: 0 }];
    let work =
        [Op::Mkdir { at: at("c") }, mv("a/a", "c/a", ops::How::Replace), mv("c", "a", ops::How::Exchange)];
    let mut both = Both::new(&lower, None, false);
    both.apply(&work).unwrap();
    both.journal_agrees().unwrap();
}

/// Its directory and another one of the real tree change places, and it ends where it was, in the other one.
#[test]
fn an_object_comes_to_its_path_in_another_directory_of_the_real_tree() {
    for (object, new) in [
        (Op::Mkdir { at: at("b/b") }, Op::Mkdir { at: at("b/b") }),
        (Op::Create { at: at("b/b"), len: 3 }, Op::Create { at: at("b/b"), len: 4 }),
    ] {
        let lower = [Op::Mkdir { at: at("b") }, object, Op::Mkdir { at: at("c") }];
        let there = mv("b/b", "c/b", ops::How::Replace);
        let exchange = mv("c", "b", ops::How::Exchange);
        for work in [vec![there.clone(), new, exchange.clone()], vec![there, exchange]] {
            let mut both = Both::new(&lower, None, false);
            both.apply(&work).unwrap();
            both.journal_agrees().unwrap();
        }
    }
}

#[test]
fn a_directory_that_replaced_a_real_one_is_removed() {
    let work = [
        Op::Mkdir { at: at("a/b") },
        mv("a/b", "b", ops::How::Replace),
        mv("b", "a", ops::How::Replace),
        Op::Rmdir { at: at("a") },
    ];
    let mut both = Both::new(&[Op::Mkdir { at: at("a") }], None, false);
    both.apply(&work).unwrap();
    both.journal_agrees().unwrap();
}

/// A verb that fails has copied the object up already; what it was is still told, with the next one that works.
#[test]
fn what_an_object_was_is_told_although_the_kernel_forgot_it_meanwhile() {
    for made in
        [Op::Symlink { at: at("l"), n: 1 }, Op::Fifo { at: at("l") }, Op::Create { at: at("l"), len: 9 }]
    {
        for then in [mv("l", "m", ops::How::Replace), Op::Unlink { at: at("l") }] {
            let lower = [made.clone(), Op::Mkdir { at: at("d") }];
            let mut both = Both::new(&lower, None, false);
            let real = fs::symlink_metadata(both.tmp.path().join("lower/l")).unwrap();
            let work = [Op::Walk, mv("l", "d", ops::How::Replace), Op::Forget, Op::Walk, then];
            both.apply(&work).unwrap();
            both.view.stop();
            let set = journal::fold_dir(&both.view.setup.journal).unwrap().set;
            let base = set.changes[0].base.as_ref().map(|b| (b.ino, b.mtime.sec));
            let (ino, mtime) = {
                use std::os::unix::fs::MetadataExt;
                (real.ino(), real.mtime())
            };
            assert_eq!((set.changes.len(), base), (1, Some((ino, mtime))), "{set:?}");
        }
    }
}

#[test]
fn a_write_to_one_name_of_a_link_changes_the_other() {
    let lower = [Op::Create { at: at("b"), len: 0 }];
    let work =
        [Op::Link { from: at("b"), to: at("a") }, Op::Forget, Op::Write { at: at("a"), offset: 0, len: 1 }];
    let mut both = Both::new(&lower, None, false);
    both.apply(&work).unwrap();
    both.journal_agrees().unwrap();
}

#[test]
fn an_empty_session_is_the_real_tree() {
    let mut both = Both::new(&[], None, false);
    assert_eq!(both.view.tree(), Tree::new());
}
