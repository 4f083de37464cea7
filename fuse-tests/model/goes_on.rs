//! What was applied or discarded has left the session, and the session goes on: what it does from then on is told and
//! applied as if it had begun just then.

use crate::leaving::Leaver;
use crate::ops::{self, Op};
use crate::plain::Plain;
use crate::script::{at, script};
use crate::tree::differences;
use crate::{Both, disagreements, short};
use proptest::prelude::*;
use sbx_fuse::journal;
use sbx_fuse::review::{self, RootDirs, Selection};
use std::fs;

/// How changes leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct How {
    applied: bool,
    /// While the session is in use.
    live: bool,
    /// Then somebody looks at each change just before it leaves, when the real tree has all of them already.
    looks: bool,
}

const REST: How = How { applied: true, live: false, looks: false };

fn how() -> impl Strategy<Value = How> {
    any::<[bool; 3]>().prop_map(|[applied, live, looks]| How { applied, live, looks })
}

impl Both {
    /// Some of the changes leave: those at or beneath the paths of the changes that `choice` picks; all without one.
    fn some_leave(&mut self, how: How, choice: &[prop::sample::Index]) -> Result<(), TestCaseError> {
        let before = self.view.tree();
        if !how.live {
            self.view.stop();
        } else {
            self.view.union().sync().unwrap();
        }
        let setup = self.view.setup.clone();
        let roots = [RootDirs::open(&setup.lowers[0].0, &setup.upper, &setup.work, setup.features).unwrap()];
        let set = journal::fold_dir(&setup.journal).unwrap().set;
        let settled = review::settle(&roots, &set).unwrap();
        let selection = match choice {
            [] => Selection::All,
            _ if settled.is_empty() => Selection::All,
            picks => Selection::Paths(
                picks.iter().map(|i| i.get(&settled)).map(|s| (0, s.change.path.clone())).collect(),
            ),
        };
        let why = if how.applied { review::Leave::Applied } else { review::Leave::Discarded };
        let mut leaver = Leaver::new(&self.view, &roots, &set, why, how.looks);
        let told = format!("{:?} {selection:?} of {:#?}", how, short(&set));
        if how.applied {
            let plan = review::plan(&settled, &selection).unwrap();
            let conflicts = review::check(&roots, &plan.changes, &|_, _| None).unwrap();
            prop_assert!(conflicts.is_empty(), "{:#?} {}", conflicts, told);
            let report = review::apply(&roots, &plan, &mut leaver, &mut |_| {});
            prop_assert!(report.is_ok(), "{:?} {}", report.err(), told);
            let report = report.unwrap();
            prop_assert!(report.kept.is_empty() && report.warnings.is_empty(), "{:?} {}", report, told);
        } else {
            let done = review::discard(&roots, &settled, &selection, &mut leaver);
            // Some cannot go without others, which is said before anything is done.
            let refused = done.as_ref().is_err_and(|e| e.hint.is_some());
            prop_assert!(refused || done.as_ref().is_ok_and(|d| d.kept.is_empty()), "{:?} {}", done, told);
        }
        leaver.close();
        if !how.live {
            self.view.start();
        }
        if how.applied {
            let different = differences(&before, &self.view.tree(), self.exact_links);
            prop_assert!(different.is_empty(), "the view changed: {:#?} {}", different, told);
        }
        if how.live {
            self.view.union().sync().unwrap();
        } else {
            self.view.stop();
        }
        let (folded, scanned, differ) = disagreements(&setup);
        let count = (folded.len(), scanned.len());
        prop_assert!(differ.is_empty(), "{:?} {:#?} {}", count, differ, told);
        if !how.live {
            self.view.start();
        }
        Ok(())
    }

    /// More work in the session, whatever of it can be done there.
    fn works_on(&mut self, work: &[Op]) {
        for op in work {
            // Most of what is drawn fails: that is for the tests of verbs to judge.
            drop(self.view.apply(self.done, op));
            self.done += 1;
        }
    }

    /// All that is left is applied: the real tree is what the view was.
    fn the_rest_is_applied(&mut self) -> Result<(), TestCaseError> {
        let shown = self.view.tree();
        self.view.stop();
        let (folded, _, differ) = disagreements(&self.view.setup);
        let told: Vec<_> = folded.iter().map(|s| format!("{:?} {}", s.change.what, s.change.path)).collect();
        prop_assert!(differ.is_empty(), "in the end: {:#?} {:#?}", differ, told);
        self.view.start();
        self.some_leave(REST, &[])?;
        let real = Plain::new(self.view.setup.lowers[0].0.clone()).tree();
        let different = differences(&shown, &real, self.exact_links);
        prop_assert!(different.is_empty(), "applied: {:#?}", different);
        Ok(())
    }

    fn goes_on(&mut self, turns: &[Turn]) -> Result<(), TestCaseError> {
        for (work, how, choice) in turns {
            self.works_on(work);
            self.some_leave(*how, choice)?;
        }
        self.the_rest_is_applied()
    }
}

type Turn = (Vec<Op>, How, Vec<prop::sample::Index>);

fn turn() -> impl Strategy<Value = Turn> {
    let work = prop::collection::vec(ops::places(), 0..8).prop_map(|ops| ops.into_iter().flatten().collect());
    (work, how(), prop::collection::vec(any::<prop::sample::Index>(), 0..3))
}

/// Without hard links, of which those that leave one by one are not told.
fn single(turns: Vec<Turn>) -> Vec<Turn> {
    turns.into_iter().map(|(work, how, choice)| (crate::unlinked(work), how, choice)).collect()
}

proptest! {
    // Each turn is an application.
    #![proptest_config(ProptestConfig { cases: 200, ..crate::config() })]

    #[test]
    fn a_session_goes_on_after_changes_left(
        lower in prop::collection::vec(ops::building(), 0..15),
        turns in prop::collection::vec(turn(), 1..4),
    ) {
        Both::new(&crate::markable(lower), None, false).goes_on(&single(turns))?;
    }
}

#[test]
fn what_is_removed_after_it_was_applied_is_told() {
    let ways = [true, false].map(|live| How { live, ..REST });
    for how in ways {
        for (lower, work, more) in [
            ("", "mkdir z; create z/a 5", "unlink z/a"),
            ("", "mkdir z; create z/a 5", "unlink z/a; create z/a 7"),
            ("", "mkdir z; mkdir z/y; create z/y/a 5", "rm-r z/y"),
            ("mkdir d; create d/a 1", "mv d k; create k/b 5", "unlink k/b"),
            ("mkdir d; create d/a 1", "rm-r d; mkdir d; create d/b 5", "unlink d/b"),
            ("create a 1", "mkdir n; mv a n/a", "unlink n/a"),
        ] {
            let turns = [(script(work), how, vec![]), (script(more), how, vec![])];
            let mut both = Both::new(&script(lower), None, false);
            both.goes_on(&turns).unwrap_or_else(|e| panic!("{how:?} {work}; {more}: {e}"));
        }
    }
}

/// Whoever has a file open goes on in it when its directory was renamed, and that was applied.
#[test]
fn an_open_file_goes_on_in_a_renamed_directory() {
    let cases = [
        ("mkdir d; create d/c 4", "mv d x; hold x/c", "x/c"),
        ("mkdir d; create d/c 4", "hold d/c; mv d x", "x/c"),
        ("mkdir d; create d/c 4", "mv d x; hold x/c; write-held 4 4", "x/c"),
        ("mkdir d; create d/c 4", "hold d/c; write-held 4 4; mv d x", "x/c"),
        ("mkdir d; mkdir d/e; create d/e/c 4", "mv d x; hold x/e/c; write-held 4 4", "x/e/c"),
        ("mkdir d; mkdir d/e; create d/e/c 4", "mv d x; mv x/e x/f; hold x/f/c; write-held 4 4", "x/f/c"),
        ("mkdir d; mkdir d/e; create d/e/c 4", "mv d/e x; rm-r d; hold x/c; write-held 4 4", "x/c"),
        ("mkdir d; create d/c 4", "mkdir n; mv d n/x; hold n/x/c; write-held 4 4", "n/x/c"),
        ("mkdir d; create d/c 4", "mv d x; mkdir d; create d/c 9; hold x/c; write-held 4 4", "x/c"),
        ("mkdir d; create d/c 4; mkdir e; create e/c 2", "exchange d e; hold e/c; write-held 4 4", "e/c"),
        ("mkdir d; create d/c 4; mkdir e; create e/c 2", "exchange d e; hold e/c", "e/c"),
        ("mkdir d; create d/a 1", "mv d x; create x/c 4; hold x/c; write-held 4 4", "x/c"),
        ("mkdir d; create d/a 1; create c 4", "mv d x; mv c x/c; hold x/c; write-held 4 4", "x/c"),
    ];
    for ((lower, work, path), looks) in cases.into_iter().flat_map(|case| [(case, false), (case, true)]) {
        let mut both = Both::new(&script(lower), None, false);
        both.apply(&script(work)).unwrap_or_else(|e| panic!("{work}: {e}"));
        for turn in 0..3 {
            both.some_leave(How { live: true, looks, ..REST }, &[]).unwrap_or_else(|e| panic!("{work}: {e}"));
            let end = 8 + 4 * turn;
            let more = Op::HeldWrite { which: 0, offset: end, len: 4 };
            both.view.apply(0, &more).unwrap_or_else(|e| panic!("{work}: written later: {e}"));
            let (_, attr) = both.view.find(&at(path)).unwrap_or_else(|e| panic!("{work}: {path}: {e}"));
            assert_eq!(attr.size, u64::from(end) + 4, "{work}: what was written later is lost");
            let real = both.view.setup.lowers[0].0.join(path).metadata().unwrap().len();
            assert!(real <= end.into(), "{work}: what was written later is in the real tree");
        }
        both.the_rest_is_applied().unwrap_or_else(|e| panic!("{work}: {e}"));
    }
}

/// A file that went back to its place is the same whenever it is moved again.
#[test]
fn a_file_that_went_back_can_be_moved_again() {
    let discarded = How { applied: false, live: true, looks: false };
    for (work, more) in [
        ("mv a t; mkdir a; mv t a/a", "mv a b"),
        ("mv a t; mkdir a; mv t a/a", "write a 3 3"),
        ("hold a; write a 3 3; unlink a", "write a 2 2; unlink a"),
        ("hold a; write a 3 3; unlink a", "hold a; mv a b"),
        ("hold a; write a 3 3; unlink a; create a 5", "mv a b; create a 3"),
    ] {
        let turns = [work, more, more].map(|work| (script(work), discarded, vec![]));
        let mut both = Both::new(&script("create a 9"), None, false);
        both.goes_on(&turns).unwrap_or_else(|e| panic!("{work}; {more}: {e}"));
    }
}

/// Others made something in the real tree where the session has its own: when that goes, the journal knows what is hidden.
#[test]
fn what_came_to_be_hidden_is_told_when_what_hid_it_goes() {
    for (work, theirs, more, told) in [
        ("create d 2", "d", "mv d c", vec!["A c", "D d"]),
        ("create d 2", "d", "unlink d", vec!["D d"]),
        ("create e/d 2", "e/d", "unlink e/d", vec!["D e/d"]),
        ("create e/d 2", "e/d", "mv e/d e/c; create e/d 3", vec!["A e/c", "M e/d"]),
        ("create d 2; create k 1", "d", "mv k d; unlink d", vec!["D d"]),
        ("mkdir q", "q/", "rmdir q", vec!["D q"]),
    ] {
        let mut both = Both::new(&script("mkdir e"), None, false);
        both.works_on(&script(work));
        let real = both.view.setup.lowers[0].0.join(theirs);
        if theirs.ends_with('/') { fs::create_dir(real) } else { fs::write(real, "theirs") }.unwrap();
        both.works_on(&script(more));
        both.view.union().sync().unwrap();
        let (folded, _, differ) = disagreements(&both.view.setup);
        let words: Vec<_> =
            folded.iter().map(|s| format!("{} {}", s.change.what.letter(), s.change.path)).collect();
        assert_eq!((words, differ), (told.iter().map(|s| s.to_string()).collect(), vec![]), "{work}; {more}");
    }
}

/// Of symlinks alike, one that takes another's place leaves no mark of where it came from.
#[test]
fn symlinks_alike_that_change_places_are_no_disagreement() {
    for work in ["mv a d", "exchange a d", "unlink a; symlink a; mv a d"] {
        let mut both = Both::new(&script("symlink a; symlink d"), None, false);
        both.works_on(&script(work));
        both.view.stop();
        let (_, _, differ) = disagreements(&both.view.setup);
        assert_eq!(differ, [], "{work}");
    }
}
