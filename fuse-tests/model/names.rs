//! Real files with several names: what changes under one of them is told, applied and discarded under all.

use crate::leaving::Leaver;
use crate::plain::Plain;
use crate::script::script;
use crate::tree::differences;
use crate::{Both, Links};
use sbx_fuse::base::Errno;
use sbx_fuse::journal;
use sbx_fuse::review::{self, RootDirs, Selection};
use sbx_fuse::union::{Caller, ROOT_ID};

/// What gives the upper several names of a real file, of which the kernel may know one only when the file is changed.
const CHANGED_UNDER_ONE: [&str; 7] = [
    "mv b t; mv t b; forget; write c 0 1",
    "walk; mv b t; mv t b; remount; chmod c 755",
    "walk; mv b t; mv t b; mv c d; forget; write d 0 1",
    "walk; mv c t; mv t c; mv b d; remount; truncate d 9",
    "walk; mkdir a; mv c a/c; forget; walk; truncate b 0",
    "walk; link b d; mv c t; mv t c; forget; write c 0 1",
    "walk; link b d; mv c t; mv t c; forget; write c 0 1; unlink c",
];

/// A session on a real file with the names `b` and `c`.
fn after(work: &'static str) -> Both {
    let mut both = Both::new(&script("create b 0; link b c"), None, false);
    both.apply(&script(work)).unwrap_or_else(|e| panic!("{work}: {e}"));
    both
}

/// All changes of a session in use are discarded: it shows the real tree, and journal and upper tell no change.
fn is_thrown_away_in_use(both: &mut Both, when: &str) {
    let (union, setup) = (both.view.union(), both.view.setup.clone());
    union.sync().unwrap();
    let roots = [RootDirs::open(&setup.lowers[0].0, &setup.upper, &setup.work, setup.features).unwrap()];
    let set = journal::fold_dir(&setup.journal).unwrap().set;
    let settled = review::settle(&roots, &set).unwrap();
    let mut leaver = Leaver::new(&both.view, &roots, &set, review::Leave::Discarded, false);
    let done = review::discard(&roots, &settled, &Selection::All, &mut leaver).unwrap();
    leaver.close();
    assert_eq!(done.kept, [], "{when}");
    let real = Plain::new(setup.lowers[0].0.clone()).tree();
    let different = differences(&real, &both.view.tree(), false);
    assert!(different.is_empty(), "{when}: {different:#?}");
    both.view.stop();
    let (folded, scanned, _) = crate::disagreements(&setup);
    assert!(folded.is_empty() && scanned.is_empty(), "{when}: {folded:#?} {scanned:#?}");
}

#[test]
fn a_change_under_one_name_is_told_and_applied_under_all() {
    for work in CHANGED_UNDER_ONE {
        after(work).journal_agrees().unwrap_or_else(|e| panic!("{work}: {e}"));
        after(work).applies(Links::Kept).unwrap_or_else(|e| panic!("{work}: {e}"));
    }
}

#[test]
fn a_change_under_one_name_is_discarded_under_all() {
    for work in CHANGED_UNDER_ONE {
        after(work).is_thrown_away().unwrap_or_else(|e| panic!("{work}: {e}"));
        is_thrown_away_in_use(&mut after(work), work);
    }
}

/// A verb that failed has brought the file up under a name of which no record would tell.
#[test]
fn a_name_that_only_a_failed_verb_knew_is_told() {
    for work in ["write c 0 1", "mv c d; forget; write d 0 1", "link c d; forget; write d 0 1"] {
        let brought_up = || {
            let mut both = after("mkdir x; walk");
            let union = both.view.union();
            let failed = union.rename(&Caller::default(), ROOT_ID, b"b", ROOT_ID, b"x", 0);
            assert_eq!(failed, Err(Errno::EISDIR));
            drop(union);
            both.apply(&script("forget")).unwrap();
            both.apply(&script(work)).unwrap_or_else(|e| panic!("{work}: {e}"));
            both
        };
        brought_up().journal_agrees().unwrap_or_else(|e| panic!("{work}: {e}"));
        brought_up().is_thrown_away().unwrap_or_else(|e| panic!("{work}: {e}"));
        is_thrown_away_in_use(&mut brought_up(), work);
    }
}
