//! Every system call of every verb fails once: the caller gets the errno and the old state stays whole, or the verb is
//! done whole because the step was one it can do without. Journal and upper agree, and the same verb works afterwards.

use crate::fingerprint;
use crate::ops::{Op, Path};
use crate::plain::Plain;
use crate::script::{at, script};
use crate::view::{Setup, View};
use sbx_fuse::base::{BaseId, Errno, Kind, SetAttr, SetTime, Sys, Time, What};
use sbx_fuse::layer::{LayerKind, WhiteoutForm};
use sbx_fuse::sys::fault;
use sbx_fuse::union::{Caller, NodeId, ROOT_ID, Range};
use std::collections::BTreeMap;
use std::fs;

/// The real tree of every scenario.
const LOWER: &str = "mkdir d; create d/f 90; setxattr d/f; create d/o 50; create d/w 20; create d/y 30; mkdir d/e; \
     mkdir d/t; create d/t/x 10; symlink d/l; fifo d/p; create d/h 40; setxattr d/h; link d/h d/i; create d/j 4; \
     link d/j d/k; mkdir m; create m/f 60; setxattr m/f; mkdir v; mkdir r; create r/f 7; mkdir b; mkdir k; create k/big 20000; \
     setxattr k/big; create k/o 5";

/// What is done under a fault.
#[derive(Clone)]
enum Act {
    Op(Op),
    Own(&'static str, Path),
}

/// What the session did before, and what it does then.
#[derive(Clone)]
struct Scenario {
    name: String,
    before: &'static str,
    act: Act,
    /// Whether nodes and descriptors are known from before.
    warm: bool,
    form: Option<WhiteoutForm>,
    /// Whether files are copied block by block.
    borrows: bool,
}

fn text(text: String) -> &'static str {
    Box::leak(text.into_boxed_str())
}

/// Each origin of `origins` (what is done first, and a path) with each act of `acts` (what is done first, and the act
/// itself, with `P` for the path).
fn cross(origins: &[(&str, &'static str)], acts: &[(&str, &str)]) -> Vec<Scenario> {
    let mut all = Vec::new();
    for (made, path) in origins {
        for (first, act) in acts {
            let place = |t: &str| {
                let words = t.split(' ').map(|w| match w {
                    "P" => (*path).to_owned(),
                    "P;" => format!("{path};"),
                    _ => w.to_owned(),
                });
                text(words.collect::<Vec<_>>().join(" "))
            };
            let (first, act) = (place(first), place(act));
            let own = act.strip_prefix('!').and_then(|a| a.split_once(' '));
            let done = match own {
                Some((what, path)) => Act::Own(what, at(path)),
                None => Act::Op(script(act).remove(0)),
            };
            all.push(Scenario {
                name: format!("{made}; {first}; {act}"),
                before: text(format!("{made}; {first}")),
                act: done,
                warm: false,
                form: None,
                borrows: false,
            });
        }
    }
    all
}

/// A regular file, by where it comes from.
const FILES: [(&str, &str); 11] = [
    ("", "d/f"),
    ("write d/f 0 5", "d/f"),
    ("create d/n 30; setxattr d/n", "d/n"),
    ("unlink d/f; create d/f 20; setxattr d/f", "d/f"),
    ("", "d/h"),
    ("write d/h 0 5", "d/h"),
    ("write d/h 0 5; forget", "d/i"),
    ("create d/n 30; setxattr d/n; link d/n d/n2", "d/n"),
    ("mv m g", "g/f"),
    ("mv d/f r/n", "r/n"),
    ("mkdir q; create q/n 10; setxattr q/n", "q/n"),
];

const FILE_ACTS: [(&str, &str); 28] = [
    ("", "write P 10 20"),
    ("", "truncate P 0"),
    ("", "truncate P 40"),
    ("", "chmod P 700"),
    ("", "setxattr P"),
    ("", "removexattr P"),
    ("", "!chown P"),
    ("", "!utimens P"),
    ("", "!fallocate P"),
    ("", "!copy_range P"),
    ("", "!fsync P"),
    ("", "!read P"),
    ("", "!getxattr P"),
    ("", "unlink P"),
    ("hold P", "unlink P"),
    ("hold P; unlink P", "write-held 3 5"),
    ("", "link P d/z"),
    ("unlink d/w", "link P d/w"),
    ("", "mv P d/z"),
    ("unlink d/w", "mv P d/w"),
    ("", "mv P d/o"),
    ("create d/u 5", "mv P d/u"),
    ("write d/y 0 3", "mv P d/y"),
    ("", "mv P d/k"),
    ("", "mv P v/z"),
    ("hold d/o", "mv P d/o"),
    ("", "exchange P d/o"),
    ("", "exchange P d/t"),
];

/// A file of several blocks that borrows what was not written, or is about to.
const BORROWERS: [(&str, &str); 5] = [
    ("", "k/big"),
    ("write k/big 5000 100", "k/big"),
    ("truncate k/big 9000; truncate k/big 15000", "k/big"),
    ("write k/big 21000 10; mv k/big d/z", "d/z"),
    ("mv k u; chmod u/big 755", "u/big"),
];

const BORROWER_ACTS: [(&str, &str); 17] = [
    ("", "write P 4096 4096"),
    ("", "write P 8000 5000"),
    ("", "write P 19990 30"),
    ("", "truncate P 0"),
    ("", "truncate P 6000"),
    ("", "truncate P 30000"),
    ("write P 10000 10", "complete"),
    ("write P 0 4096; write P 9000 10", "complete"),
    ("write P 9 10", "!fallocate P"),
    ("write P 9 10", "!punch P"),
    ("write P 9 10", "!seek P"),
    ("write P 9 10", "!utimens P"),
    ("write P 9 10", "chmod P 700"),
    ("write P 9 10; hold P", "unlink P"),
    ("write P 9 10", "link P d/y2"),
    ("write P 9 10", "mv P d/o"),
    ("write P 9 10", "exchange P d/o"),
];

const OTHERS: [(&str, &str); 4] =
    [("", "d/l"), ("chmod d 755", "d/l"), ("", "d/p"), ("unlink d/l; fifo d/l", "d/l")];

const OTHER_ACTS: [(&str, &str); 9] = [
    ("", "!chown P"),
    ("", "!utimens P"),
    ("", "!getattr P"),
    ("", "unlink P"),
    ("", "link P d/z"),
    ("unlink d/w", "mv P d/w"),
    ("", "mv P d/o"),
    ("", "mv P v/z"),
    ("", "exchange P d/e"),
];

/// A directory that is empty in the view.
const DIRS: [(&str, &str); 7] = [
    ("", "d/e"),
    ("unlink d/t/x", "d/t"),
    ("mkdir d/q", "d/q"),
    ("rmdir d/e; mkdir d/e", "d/e"),
    ("mv v d/q", "d/q"),
    ("mv m d/q; unlink d/q/f", "d/q"),
    ("rm-r d/t; mkdir d/t", "d/t"),
];

const DIR_ACTS: [(&str, &str); 12] = [
    ("", "rmdir P"),
    ("", "chmod P 700"),
    ("", "setxattr P"),
    ("", "!list P"),
    ("", "mv P d/z"),
    ("unlink d/w", "mv P d/w"),
    ("mkdir u", "mv P u"),
    ("", "mv P v"),
    ("unlink r/f", "mv P r"),
    ("rmdir b; mkdir b", "mv P b"),
    ("", "exchange P d/o"),
    ("", "exchange P r"),
];

/// A directory with something in it.
const FULL: [(&str, &str); 4] =
    [("", "d/t"), ("mv m d/t2", "d/t2"), ("mkdir d/q; create d/q/f 3", "d/q"), ("create d/t/n 3", "d/t")];

const FULL_ACTS: [(&str, &str); 6] = [
    ("", "mv P z"),
    ("", "mv P d/z"),
    ("rmdir v", "mv P v"),
    ("", "mv P v"),
    ("unlink r/f", "mv P r"),
    ("", "exchange P r"),
];

/// A name that is free.
const VACANT: [(&str, &str); 8] = [
    ("", "d/z"),
    ("", "d/t/z"),
    ("unlink d/w", "d/w"),
    ("rmdir d/e", "d/e"),
    ("rm-r d/t", "d/t"),
    ("mkdir q", "q/z"),
    ("mv m g", "g/z"),
    ("mv m g; unlink g/f", "g/f"),
];

const MAKES: [(&str, &str); 4] = [("", "create P 0"), ("", "mkdir P"), ("", "symlink P"), ("", "fifo P")];

/// What of a picture must be the same as before. How many names of a real file were removed is not kept beyond a forget,
/// and the times of what is new are never the same twice.
#[derive(Clone, Copy, PartialEq)]
struct Exact {
    /// Modification times, but those of directories.
    times: bool,
    /// Link counts, but those of directories.
    links: bool,
}

struct World {
    view: View,
    _tmp: tempfile::TempDir,
}

impl World {
    fn new(scenario: &Scenario) -> World {
        let tmp = crate::place();
        let sub = |name: &str| {
            let path = tmp.path().join(name);
            fs::create_dir(&path).unwrap();
            path
        };
        let mut real = Plain::new(sub("lower"));
        for (n, op) in script(LOWER).iter().enumerate() {
            real.apply(n, op).unwrap();
        }
        let work = sub("work");
        let mut features = crate::view::probe(&work);
        features.whiteout = scenario.form.unwrap_or(features.whiteout);
        let setup = Setup {
            upper: sub("upper"),
            work,
            journal: sub("journal"),
            lowers: vec![(real.dir, LayerKind::Plain)],
            features,
            borrows: scenario.borrows,
        };
        let mut world = World { view: View::new(setup), _tmp: tmp };
        for (n, op) in script(scenario.before).iter().enumerate() {
            world.view.apply(100 + n, op).unwrap_or_else(|e| panic!("{}: {op:?}: {e}", scenario.name));
        }
        world
    }

    fn act(&mut self, act: &Act) -> Sys<()> {
        match act {
            Act::Op(op) => self.view.apply(7, op).map(drop),
            Act::Own(what, path) => self.own(what, path),
        }
    }

    fn own(&mut self, what: &str, path: &Path) -> Sys<()> {
        let caller = Caller { pid: std::process::id(), ..Caller::default() };
        let union = self.view.union();
        let (id, attr) = self.view.find(path)?;
        let set = |set: SetAttr| union.setattr(&caller, id, &set).map(drop);
        match what {
            "chown" => set(SetAttr { uid: Some(attr.uid), gid: Some(attr.gid), ..SetAttr::default() }),
            "utimens" => {
                let time = Some(SetTime::At(Time { sec: 1000, nsec: 7 }));
                set(SetAttr { atime: time, mtime: time, ..SetAttr::default() })
            }
            "fallocate" => union.fallocate(&caller, id, Range { offset: 5, len: 300 }, 0),
            "punch" => {
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                union.fallocate(&caller, id, Range { offset: 4000, len: 9000 }, mode)
            }
            "seek" => union.lseek(id, 0, libc::SEEK_HOLE).and_then(|at| {
                union.lseek(id, at as i64, libc::SEEK_DATA).map(drop).or_else(|e| match e {
                    Errno::ENXIO => Ok(()),
                    e => Err(e),
                })
            }),
            "copy_range" => {
                let (from, _) = self.view.find(&at("r/f"))?;
                union.copy_range(&caller, (from, 0), (id, 1), 7).map(drop)
            }
            "fsync" => union.fsync(id, false),
            "read" => union.read(id, 0, 100, &mut Vec::new()),
            "getattr" => union.getattr(id).map(drop),
            "getxattr" => union.listxattr(id).and_then(|_| union.getxattr(id, b"user.n0")).map(drop),
            "list" => union.readdir(id, 0, true, |_| true).map(drop),
            other => panic!("no act {other}"),
        }
    }

    /// All that a program can see, one line a name.
    fn picture(&mut self, exact: Exact) -> Result<Vec<String>, String> {
        let mut lines = Vec::new();
        self.walk(ROOT_ID, "", exact, &mut lines)?;
        if let Ok(held) = self.view.apply(0, &Op::HeldRead { which: 0 }) {
            lines.push(format!("held: {held:?}"));
        }
        Ok(lines)
    }

    fn walk(&mut self, dir: NodeId, prefix: &str, exact: Exact, out: &mut Vec<String>) -> Result<(), String> {
        let union = self.view.union();
        let mut names = Vec::new();
        let told = |what: &str, at: &str, e: Errno| format!("{what} {at}: {e}");
        union
            .readdir(dir, 0, false, |item| {
                names.push(String::from_utf8(item.name.to_vec()).unwrap());
                true
            })
            .map_err(|e| told("list", prefix, e))?;
        names.retain(|n| n != "." && n != "..");
        names.sort();
        for name in names {
            let shown = format!("{prefix}{name}");
            let (id, attr) = self.view.step(dir, &name).map_err(|e| told("look up", &shown, e))?;
            let again = union.getattr(id).map_err(|e| told("stat", &shown, e))?.0;
            if attr != again {
                return Err(format!("{shown}: lookup {attr:?}, getattr {again:?}"));
            }
            let mut content = Vec::new();
            match attr.kind {
                Kind::File => {
                    union.read(id, 0, 100_000, &mut content).map_err(|e| told("read", &shown, e))?;
                }
                Kind::Symlink => content = union.readlink(id).map_err(|e| told("readlink", &shown, e))?,
                _ => {}
            }
            let mut xattrs = BTreeMap::new();
            if matches!(attr.kind, Kind::File | Kind::Dir) {
                let list = union.listxattr(id).map_err(|e| told("listxattr", &shown, e))?;
                for name in list.split(|b| *b == 0).filter(|n| n.starts_with(b"user.")) {
                    xattrs.insert(name.to_vec(), union.getxattr(id, name).unwrap_or_default());
                }
            }
            let links = if attr.kind == Kind::Dir || !exact.links { 0 } else { attr.nlink };
            let time = if exact.times && attr.kind != Kind::Dir { attr.mtime } else { Time::default() };
            let content = blake3::hash(&content).to_hex().split_at(8).0.to_owned();
            let (kind, perm, size) =
                (attr.kind, attr.perm, if attr.kind == Kind::Dir { 0 } else { attr.size });
            out.push(format!(
                "{shown} {kind:?} {perm:o} {links} {} {} {size} {time:?} {content} {xattrs:?}",
                attr.uid, attr.gid
            ));
            if attr.kind == Kind::Dir {
                self.walk(id, &format!("{shown}/"), exact, out)?;
            }
        }
        Ok(())
    }

    /// What the session is found to have changed, by path; the server has ended. An error when journal and upper
    /// disagree.
    fn changes(&self) -> Result<BTreeMap<String, (What, Option<BaseId>)>, String> {
        let (folded, _, differ) = crate::disagreements(&self.view.setup);
        // A known limit of the journal: a write through one of several names.
        if let Some(d) = differ.iter().find(|d| d.fold != d.scan) {
            return Err(format!("journal and upper differ at {}: {:?}, {:?}", d.path, d.fold, d.scan));
        }
        Ok(folded.into_iter().map(|s| (s.change.path.to_string(), (s.change.what, s.change.base))).collect())
    }
}

/// How a scenario ends without a fault.
struct Reference {
    /// With link counts, and without.
    after: [Vec<String>; 2],
    changes: BTreeMap<String, (What, Option<BaseId>)>,
    /// Known limits of the journal make it disagree with the upper here even without a fault.
    disagrees: bool,
    /// Which of its names a change of an object with several is told by depends on which was looked up last.
    linked: bool,
    /// What holds no xattr keeps its identity only while the kernel knows it.
    unmarked: bool,
}

fn reference(scenario: &Scenario) -> Reference {
    let mut world = World::new(scenario);
    world.act(&scenario.act).unwrap_or_else(|e| panic!("{}: {e}", scenario.name));
    let after = [true, false].map(|links| world.picture(Exact { times: false, links }).unwrap());
    world.view.stop();
    let changes = world.changes();
    let disagrees = changes.is_err();
    let linked = ["d/h", "d/i", "d/k", "d/n2"].iter().any(|name| scenario.name.contains(name));
    let unmarked = ["d/l", "d/p"].iter().any(|name| scenario.name.contains(name));
    Reference { after, changes: changes.unwrap_or_default(), disagrees, linked, unmarked }
}

fn first_difference(should: &[String], is: &[String]) -> String {
    let missing = should.iter().find(|l| !is.contains(l));
    let extra = is.iter().find(|l| !should.contains(l));
    format!("should have {missing:?}, has {extra:?}")
}

/// Whether nothing differs but counts of links that are lower than without the fault: that of a real file need not drop
/// when a name of it is removed, but it may, when a fault has made the server look again.
fn only_true_links(should: &[String], is: &[String]) -> bool {
    let split = |line: &str| -> (Vec<String>, u32) {
        let mut fields: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let links = fields.get_mut(3).map(std::mem::take).and_then(|l| l.parse().ok());
        (fields, links.unwrap_or_default())
    };
    should.len() == is.len()
        && should.iter().zip(is).all(|(a, b)| {
            let ((a, links), (b, fewer)) = (split(a), split(b));
            a == b && fewer <= links && (fewer > 0 || links == 0)
        })
}

const NOW: &str = "right after it";

/// One run of a scenario with a fault at call `n`; `None` when it makes fewer calls. What is wrong, if something is.
fn faulted(scenario: &Scenario, reference: &Reference, n: u64, errno: Errno) -> Option<Result<(), String>> {
    let mut world = World::new(scenario);
    let real = world.view.setup.lowers[0].0.clone();
    let real_before = fingerprint(&real);
    let before = [true, false].map(|links| world.picture(Exact { times: true, links }).unwrap());
    if !scenario.warm {
        world.view.apply(0, &Op::Forget).unwrap();
    }
    let (done, seen) = fault::failing(n, errno, || world.act(&scenario.act));
    let hit = seen.hit?;
    let mut check = || -> Result<(), String> {
        if done.is_err_and(|e| e != errno) {
            return Err(format!("the caller got {done:?}"));
        }
        let looks_right = |world: &mut World, when: &str| -> Result<(), String> {
            let (should, times) = if done.is_ok() { (&reference.after, false) } else { (&before, true) };
            let links = when == NOW;
            let should = &should[usize::from(!links)];
            let is = world.picture(Exact { times, links }).map_err(|e| format!("{when}: {e}"))?;
            if is != *should && !(done.is_ok() && links && only_true_links(should, &is)) {
                return Err(format!("{when}, {done:?}: {}", first_difference(should, &is)));
            }
            Ok(())
        };
        looks_right(&mut world, NOW)?;
        let left = world.view.leftovers();
        if done.is_err() && !left.is_empty() {
            return Err(format!("left in the work directory: {left:?}"));
        }
        world.view.apply(0, &Op::Forget).unwrap();
        looks_right(&mut world, "after a forget")?;
        let held = scenario.before.contains("hold");
        // In turn: the server ends right after the failure, or it goes on.
        let ends = !held && (n + u64::from(errno == Errno::EIO)).is_multiple_of(2);
        if ends {
            if !settles(&mut world, reference, (done.is_ok(), true), hit.file())? {
                return Ok(()); // the next opening reconciles them
            }
            world.view.start();
            looks_right(&mut world, "after a restart")?;
        }
        if done.is_err() {
            world.act(&scenario.act).map_err(|e| format!("the same again: {e:?}"))?;
        }
        let now = Exact { times: false, links: false };
        let is = world.picture(now).map_err(|e| format!("the same again: {e}"))?;
        if is != reference.after[1] {
            return Err(format!("the same again: {}", first_difference(&reference.after[1], &is)));
        }
        settles(&mut world, reference, (true, !(ends && done.is_err())), hit.file())?;
        if fingerprint(&real) != real_before {
            return Err("the real tree was changed".into());
        }
        Ok(())
    };
    Some(check().map_err(|what| format!("{errno:?} at {n} ({}:{}): {what}", hit.file(), hit.line())))
}

/// Ends the server: journal and upper agree, and with the operation done, the changes are those of the reference, with
/// what the real objects were (`based`; over a restart only the upper remembers that). False when the journal could not be told.
fn settles(
    world: &mut World,
    reference: &Reference,
    (done, based): (bool, bool),
    hit: &str,
) -> Result<bool, String> {
    if !world.view.end() {
        // Only the journal itself may have failed.
        let journals = hit.ends_with("map.rs") || hit.ends_with("data.rs");
        return if journals { Ok(false) } else { Err("the session is marked as degraded".into()) };
    }
    if reference.disagrees {
        return Ok(true);
    }
    let changes = world.changes()?;
    if !done || reference.linked {
        return Ok(true);
    }
    for (path, (what, base)) in &reference.changes {
        match changes.get(path) {
            Some((is, _)) if is != what => return Err(format!("{path} is {is:?}, should be {what:?}")),
            Some((_, None)) if based && !reference.unmarked && base.is_some() => {
                return Err(format!("{path}: its base was lost"));
            }
            Some(_) => {}
            None => return Err(format!("{path} is no change, should be {what:?}")),
        }
    }
    match changes.keys().find(|p| !reference.changes.contains_key(*p)) {
        Some(path) => Err(format!("{path} is a change of its own")),
        None => Ok(true),
    }
}

/// How thoroughly to sweep: 1 is everything. CI takes a sample that is the same each time.
fn stride() -> usize {
    std::env::var("SBX_FUSE_SWEEP").ok().and_then(|n| n.parse().ok()).unwrap_or(12)
}

fn sweep(scenarios: Vec<Scenario>) {
    let (stride, only) = (stride(), std::env::var("SBX_FUSE_ONLY").ok());
    let (mut runs, mut wrong) = (0, Vec::new());
    let mut all = Vec::new();
    for (i, scenario) in scenarios.into_iter().enumerate() {
        let prefixed = Scenario { form: Some(WhiteoutForm::Prefix), ..scenario.clone() };
        let variants = [scenario.clone(), Scenario { warm: true, ..scenario }, prefixed];
        all.extend(variants.into_iter().enumerate().map(|(v, s)| (i * 3 + v, s)));
    }
    for (i, scenario) in all {
        let unwanted = only.as_ref().is_some_and(|o| !scenario.name.contains(o.as_str()));
        if unwanted || (only.is_none() && !i.is_multiple_of(stride)) {
            continue;
        }
        let reference = reference(&scenario);
        for (e, errno) in [Errno::EIO, Errno::ENOSPC, Errno::EDQUOT, Errno::EMFILE].into_iter().enumerate() {
            // In a sample, every call fails with EIO and some with the others.
            let (first, step) = if stride == 1 || e == 0 { (0, 1) } else { (e as u64 + i as u64 % 7, 11) };
            for n in (first..).step_by(step) {
                let Some(found) = faulted(&scenario, &reference, n, errno) else { break };
                runs += 1;
                if let Err(what) = found {
                    wrong.push(format!(
                        "{} [warm {}, {:?}]: {what}",
                        scenario.name, scenario.warm, scenario.form
                    ));
                }
            }
        }
    }
    let some: Vec<_> = wrong.iter().take(60).collect();
    assert!(wrong.is_empty(), "{} of {runs} faults left something wrong: {some:#?}", wrong.len());
    assert!(runs > 100 || only.is_some(), "only {runs} faults");
    eprintln!("{runs} faults");
}

#[test]
fn faults_in_verbs_on_files() {
    sweep(cross(&FILES, &FILE_ACTS));
}

#[test]
fn faults_in_copies_that_borrow() {
    let mut all = cross(&BORROWERS, &BORROWER_ACTS);
    all.iter_mut().for_each(|scenario| scenario.borrows = true);
    sweep(all);
}

#[test]
fn faults_in_verbs_on_directories() {
    sweep(cross(&DIRS, &DIR_ACTS));
}

#[test]
fn faults_in_verbs_on_full_directories() {
    sweep(cross(&FULL, &FULL_ACTS));
}

#[test]
fn faults_in_verbs_on_other_kinds() {
    sweep(cross(&OTHERS, &OTHER_ACTS));
}

#[test]
fn faults_in_making() {
    sweep(cross(&VACANT, &MAKES));
}
