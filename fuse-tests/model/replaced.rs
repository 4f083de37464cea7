//! Directories that the session made anew over real ones: each change beneath one leaves alone, of a session at rest as of
//! one in use, and takes no other with it.

use crate::leaving::Leaver;
use crate::script::{at, script};
use crate::view::View;
use crate::{Both, disagreements};
use sbx_fuse::base::{Kind, RelPath, What};
use sbx_fuse::journal;
use sbx_fuse::layer::WhiteoutForm;
use sbx_fuse::review::{self, Dropper, Leave, RootDirs, Selection, Settled};
use std::fs;

/// A session that made `p` and `p/s` anew, with every kind of change in them.
fn session(form: Option<WhiteoutForm>) -> Both {
    let lower = "mkdir p; create p/a 3; create p/b 4; create p/t 1; mkdir p/s; create p/s/x 5; create p/s/y 6; \
                 mkdir p/e; create p/e/z 1";
    let mut both = Both::new(&script(lower), form, false);
    let work =
        "rm-r p; mkdir p; create p/a 9; create p/n 2; mkdir p/t; create p/t/i 1; mkdir p/s; create p/s/x 7";
    both.apply(&script(work)).unwrap();
    both
}

/// Without the times of directories, which may differ or not within one tick of the clock.
fn words(set: &[Settled]) -> Vec<String> {
    let told = set.iter().filter(|s| s.change.what != What::Meta);
    told.map(|s| format!("{} {}", s.change.what.letter(), s.change.path)).collect()
}

/// Takes the changes at and beneath `path` out of the session, and returns those that are left, of which journal and upper
/// agree.
fn leaves(both: &mut Both, live: bool, why: Leave, path: &str) -> Vec<String> {
    let setup = both.view.setup.clone();
    if live {
        both.view.union().sync().unwrap()
    } else {
        both.view.stop()
    }
    let roots = [RootDirs::open(&setup.lowers[0].0, &setup.upper, &setup.work, setup.features).unwrap()];
    let set = journal::fold_dir(&setup.journal).unwrap().set;
    let settled = review::settle(&roots, &set).unwrap();
    let selection = Selection::Paths(vec![(0, RelPath::new(path.as_bytes()).unwrap())]);
    let run = |dropper: &mut dyn Dropper| match why {
        Leave::Applied => {
            let plan = review::plan(&settled, &selection).unwrap();
            drop(review::apply(&roots, &plan, dropper, &mut |_| {}).unwrap());
        }
        Leave::Discarded => drop(review::discard(&roots, &settled, &selection, dropper).unwrap()),
    };
    let mut leaver = Leaver::new(&both.view, &roots, &set, why, false);
    run(&mut leaver);
    leaver.close();
    if !live {
        both.view.start();
    }
    let (folded, scanned, differ) = disagreements(&setup);
    let what = format!("{path}: journal {:#?}, upper {:#?}", words(&folded), words(&scanned));
    assert!(differ.is_empty(), "{differ:#?} {what}");
    words(&folded)
}

/// What the view shows at `path`: the size of a file, or nothing of a directory but that it is there.
fn shown(view: &mut View, path: &'static str) -> Option<u64> {
    view.find(&at(path)).ok().map(|(_, attr)| if attr.kind == Kind::File { attr.size } else { 0 })
}

const FILES: [&str; 9] = ["p/a", "p/b", "p/n", "p/t", "p/t/i", "p/s/x", "p/s/y", "p/e", "p/e/z"];

#[test]
fn one_change_in_a_replaced_directory_leaves_alone() {
    let all = ["D p/b", "D p/e", "D p/s/y", "M p/a", "M p/s/x", "A p/n", "T p/t"];
    for form in [None, Some(WhiteoutForm::Prefix)] {
        for (live, why) in
            [false, true].into_iter().flat_map(|l| [(l, Leave::Applied), (l, Leave::Discarded)])
        {
            for change in all {
                let path = &change[2..];
                let what = format!("{form:?} {live} {why:?} {change}");
                let mut both = session(form);
                let before = FILES.map(|p| shown(&mut both.view, p));
                let left = leaves(&mut both, live, why, path);
                let beneath = |l: &str| l == path || l.starts_with(&format!("{path}/"));
                for other in all.iter().filter(|o| !beneath(&o[2..])) {
                    assert!(left.iter().any(|l| l == other), "{what}: {other} is lost: {left:?}");
                }
                assert!(!left.iter().any(|l| beneath(&l[2..])), "{what}: {left:?}");
                for (file, was) in FILES.into_iter().zip(before) {
                    let is = shown(&mut both.view, file);
                    if beneath(file) && why == Leave::Discarded {
                        let real = fs::symlink_metadata(both.view.setup.lowers[0].0.join(file)).ok();
                        let real = real.map(|m| if m.is_file() { m.len() } else { 0 });
                        assert_eq!(is, real, "{what}: {file}");
                    } else {
                        assert_eq!(is, was, "{what}: {file}");
                    }
                }
                // What is left leaves as well.
                leaves(&mut both, live, why, "p");
                both.view.stop();
                let (folded, _, _) = disagreements(&both.view.setup);
                assert_eq!(words(&folded), [""; 0], "{what}");
            }
        }
    }
}

/// Who is in a directory that is merged goes on in it, and sees what others make there.
#[test]
fn a_merged_directory_is_the_one_it_was() {
    let mut both = session(None);
    let (id, _) = both.view.find(&at("p")).unwrap();
    leaves(&mut both, true, Leave::Discarded, "p/b");
    assert_eq!(both.view.find(&at("p")).unwrap().0, id);
    both.view.apply(0, &script("create p/later 3")[0]).unwrap();
    assert_eq!(both.view.union().lookup(id, b"later").unwrap().attr.size, 3);
    for (n, op) in script("mv p/a p/c; mv p q; unlink q/n; unlink q/b").iter().enumerate() {
        both.view.apply(n, op).unwrap_or_else(|e| panic!("{op:?}: {e}"));
    }
    both.view.stop();
    let (_, _, differ) = disagreements(&both.view.setup);
    assert_eq!(differ, []);
}
