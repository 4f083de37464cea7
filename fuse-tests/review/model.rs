//! Random sessions: a model of the merged view is changed at random and written down as an upper; whatever is then
//! applied, discarded or printed must come to the same as the model.

use crate::world::{World, copy_tree, rel, run, tree};
use sbx_fuse::review::{Leave, Offline, Selection, Step, apply, check, discard};
use std::collections::BTreeMap;
use std::fs;

#[derive(Clone, Debug)]
pub struct Node {
    /// Where it is in the real tree; nothing for what the session made.
    origin: Option<String>,
    body: Body,
}

#[derive(Clone, Debug)]
pub enum Body {
    File { content: String, touched: bool },
    Dir(BTreeMap<String, Node>),
}

pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

pub type Dir = BTreeMap<String, Node>;

fn dir_at<'a>(top: &'a mut Dir, path: &str) -> Option<&'a mut Dir> {
    let mut at = top;
    for part in path.split('/').filter(|p| !p.is_empty()) {
        match &mut at.get_mut(part)?.body {
            Body::Dir(children) => at = children,
            Body::File { .. } => return None,
        }
    }
    Some(at)
}

fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

fn all_paths(dir: &Dir, prefix: &str, out: &mut Vec<(String, bool)>) {
    for (name, node) in dir {
        let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}/{name}") };
        match &node.body {
            Body::Dir(children) => {
                out.push((path.clone(), true));
                all_paths(children, &path, out);
            }
            Body::File { .. } => out.push((path, false)),
        }
    }
}

const NAMES: [&str; 5] = ["a", "b", "c", "a-b", "d"];

fn initial(r: &mut Random, w: &World) -> Dir {
    let mut top = Dir::new();
    for n in 0..6 + r.below(10) {
        let mut path = String::new();
        let depth = r.below(3);
        for level in 0..=depth {
            let (dir, name) = (path.clone(), NAMES[r.below(NAMES.len())]);
            path = format!("{dir}/{name}").trim_start_matches('/').to_owned();
            let Some(at) = dir_at(&mut top, &dir) else { break };
            if at.contains_key(name) {
                continue;
            }
            let content = format!("real {n}\nline\n{path}\n");
            let body = if level == depth {
                w.has(&path, &content);
                Body::File { content, touched: false }
            } else {
                w.has(&format!("{path}/"), "");
                Body::Dir(Dir::new())
            };
            at.insert(name.into(), Node { origin: Some(path.clone()), body });
        }
    }
    top
}

fn step(r: &mut Random, top: &mut Dir, n: usize) {
    let mut paths = Vec::new();
    all_paths(top, "", &mut paths);
    let dirs: Vec<String> =
        paths.iter().filter(|p| p.1).map(|p| p.0.clone()).chain([String::new()]).collect();
    let free = format!("{}/{}", dirs[r.below(dirs.len())], NAMES[r.below(NAMES.len())]);
    let target = free.trim_start_matches('/').to_owned();
    let (target_dir, target_name) = split(&target);
    let some = (!paths.is_empty()).then(|| paths[r.below(paths.len())].clone());
    match (r.below(12), some) {
        (0, _) => {
            let dir = dir_at(top, target_dir).unwrap();
            dir.entry(target_name.into()).or_insert(Node { origin: None, body: Body::Dir(Dir::new()) });
        }
        (1, _) => {
            let body = Body::File { content: format!("new {n}\n"), touched: true };
            let dir = dir_at(top, target_dir).unwrap();
            dir.entry(target_name.into()).or_insert(Node { origin: None, body });
        }
        (2 | 3, Some((path, false))) => {
            let (dir, name) = split(&path);
            let node = dir_at(top, dir).unwrap().get_mut(name).unwrap();
            if let Body::File { content, touched } = &mut node.body {
                content.push_str(&format!("more {n}\n"));
                *touched = true;
            }
        }
        (4, Some((path, _))) => {
            let (dir, name) = split(&path);
            dir_at(top, dir).unwrap().remove(name);
        }
        (10 | 11, Some((path, true))) => into_its_replacement(r, top, &path),
        (_, Some((path, _))) => {
            // Rename, over whatever is there as rename(2) allows.
            let into_itself = target == path || target.starts_with(&format!("{path}/"));
            let (dir, name) = split(&path);
            let node = dir_at(top, dir).unwrap().get(name).unwrap().clone();
            let there = dir_at(top, target_dir).unwrap().get(target_name);
            let allowed = match (there.map(|t| &t.body), &node.body) {
                (None, _) => true,
                (Some(Body::Dir(children)), Body::Dir(_)) => children.is_empty(),
                (Some(Body::File { .. }), Body::File { .. }) => true,
                _ => false,
            };
            if allowed && !into_itself && !path.starts_with(&format!("{target}/")) {
                dir_at(top, dir).unwrap().remove(name);
                dir_at(top, target_dir).unwrap().insert(target_name.into(), node);
            }
        }
        _ => {}
    }
}

/// A directory moves into one that is made in its place, and something of it comes back to where it was.
fn into_its_replacement(r: &mut Random, top: &mut Dir, path: &str) {
    let (dir, name) = split(path);
    let mut old = dir_at(top, dir).unwrap().remove(name).unwrap();
    let mut new = Dir::new();
    if let Body::Dir(children) = &mut old.body
        && !children.is_empty()
    {
        let back = children.keys().nth(r.below(children.len())).unwrap().clone();
        new.insert(back.clone(), children.remove(&back).unwrap());
    }
    new.entry(NAMES[r.below(NAMES.len())].into()).or_insert(old);
    dir_at(top, dir).unwrap().insert(name.into(), Node { origin: None, body: Body::Dir(new) });
}

/// Writes the directory down as an upper: what a union makes of such a session.
fn write_upper(w: &World, dir: &Dir, path: &str, lower: Option<&str>) {
    let join = |a: &str, b: &str| if a.is_empty() { b.to_owned() } else { format!("{a}/{b}") };
    for (name, node) in dir {
        let here = join(path, name);
        let below = lower.map(|l| join(l, name)).filter(|b| w.real(b).symlink_metadata().is_ok());
        let in_place = node.origin.is_some() && node.origin == lower.map(|l| join(l, name));
        match (&node.body, &node.origin) {
            (Body::File { touched: false, .. }, Some(_)) if in_place => {}
            (Body::File { content, touched }, Some(from)) => {
                w.copy_up(&here, from, touched.then_some(content.as_str()));
            }
            (Body::File { content, .. }, None) => {
                w.put(&here, content);
            }
            (Body::Dir(children), Some(from)) => {
                if !in_place {
                    w.redirect(&here, from);
                }
                write_upper(w, children, &here, Some(from));
            }
            (Body::Dir(children), None) => {
                w.put(&format!("{here}/"), "");
                if below.is_some() {
                    w.opaque(&here);
                }
                write_upper(w, children, &here, None);
            }
        }
    }
    let Some(lower) = lower else { return };
    for entry in fs::read_dir(w.real(lower)).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if !dir.contains_key(&name) {
            w.whiteout(&join(path, &name));
        }
    }
}

/// Whether something is at its real path again, in a directory made in the session. What is there like in the real tree is
/// no change, and nothing that is applied or discarded: it may stay in the upper.
fn comes_back(dir: &Dir, path: &str, in_place: bool) -> bool {
    dir.iter().any(|(name, node)| {
        let here = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
        let stays = node.origin.as_ref() == Some(&here);
        let inside = matches!(&node.body, Body::Dir(children) if comes_back(children, &here, stays));
        (stays && !in_place) || inside
    })
}

pub fn model_tree(top: &Dir) -> Vec<String> {
    fn walk(dir: &Dir, prefix: &str, out: &mut Vec<(Vec<String>, String)>) {
        for (name, node) in dir {
            let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}/{name}") };
            let key = path.split('/').map(str::to_owned).collect();
            match &node.body {
                Body::Dir(children) => {
                    out.push((key, format!("{path}/")));
                    walk(children, &path, out);
                }
                Body::File { content, .. } => {
                    out.push((key, format!("{path} = {}", sbx_fuse::base::quote(content.as_bytes()))));
                }
            }
        }
    }
    let mut out = Vec::new();
    walk(top, "", &mut out);
    out.sort();
    out.into_iter().map(|(_, line)| line).collect()
}

pub fn session(seed: u64) -> (World, Dir, Random) {
    let mut r = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    for _ in 0..8 {
        r.below(2);
    }
    let w = if seed.is_multiple_of(2) { World::new() } else { World::prefixed() };
    let mut top = initial(&mut r, &w);
    for n in 0..1 + r.below(14) {
        step(&mut r, &mut top, n);
    }
    write_upper(&w, &top, "", Some(""));
    (w, top, r)
}

fn seeds() -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|n| n.parse().ok());
    match number("SBX_FUSE_SEED") {
        Some(one) => one..one + 1,
        None => 0..number("SBX_FUSE_SEEDS").unwrap_or(60),
    }
}

#[test]
fn applying_everything_comes_to_the_merged_view() {
    for seed in seeds() {
        let (w, top, _) = session(seed);
        let changes = w.changes();
        w.apply(&[]);
        assert_eq!(w.tree(), model_tree(&top), "seed {seed}: {changes:#?}");
        assert_eq!(w.changes(), [""; 0], "seed {seed}: {changes:#?}");
        let left = tree(&w.upper(""));
        assert!(comes_back(&top, "", true) || left.is_empty(), "seed {seed}: {left:?} {changes:#?}");
    }
}

#[test]
fn applying_in_parts_comes_to_the_merged_view() {
    for seed in seeds() {
        let (w, top, mut r) = session(seed);
        let before = w.changes();
        for _ in 0..3 {
            let settled = w.settled();
            if !settled.is_empty() {
                let one = settled[r.below(settled.len())].change.path.clone();
                let name = std::str::from_utf8(one.as_bytes()).unwrap();
                let changes = w.changes();
                let result = w.try_apply(&[name]);
                let report = result.unwrap_or_else(|e| panic!("seed {seed}, {one}: {e} {changes:#?}"));
                assert!(report.warnings.is_empty(), "seed {seed}, {one}: {:?} {changes:#?}", report.warnings);
            }
        }
        let changes = w.changes();
        w.apply(&[]);
        assert_eq!(w.tree(), model_tree(&top), "seed {seed}: {before:#?} then {changes:#?}");
        assert_eq!(w.changes(), [""; 0], "seed {seed}: {before:#?} then {changes:#?}");
    }
}

#[test]
fn discarding_everything_leaves_an_empty_upper() {
    for seed in seeds() {
        let (w, top, _) = session(seed);
        let (real, changes) = (w.tree(), w.changes());
        let roots = w.roots();
        let scanned = w.scan();
        let mut dropper = Offline::new(&roots, &scanned, Leave::Discarded);
        discard(&roots, &w.settled(), &Selection::All, &mut dropper).unwrap();
        assert_eq!(w.tree(), real, "seed {seed}");
        let left = tree(&w.upper(""));
        assert_eq!(w.changes(), [""; 0], "seed {seed}: {left:?} {changes:#?}");
        assert!(comes_back(&top, "", true) || left.is_empty(), "seed {seed}: {left:?} {changes:#?}");
    }
}

#[test]
fn what_is_left_after_discarding_a_part_does_not_name_it() {
    for seed in seeds() {
        let (w, _, mut r) = session(seed);
        let settled = w.settled();
        if settled.is_empty() {
            continue;
        }
        let one = settled[r.below(settled.len())].change.path.clone();
        let selection = Selection::Paths(vec![(0, rel(std::str::from_utf8(one.as_bytes()).unwrap()))]);
        let expected: Vec<_> = settled
            .iter()
            .filter(|s| !selection.takes(s))
            .map(|s| (s.change.path.clone(), s.change.from.clone()))
            .collect();
        let roots = w.roots();
        let changes = w.changes();
        let scanned = w.scan();
        let mut dropper = Offline::new(&roots, &scanned, Leave::Discarded);
        if discard(&roots, &settled, &selection, &mut dropper).is_ok() {
            let left: Vec<_> =
                w.settled().iter().map(|s| (s.change.path.clone(), s.change.from.clone())).collect();
            assert_eq!(left, expected, "seed {seed} without {one}: {changes:#?}");
        }
        w.apply(&[]);
    }
}

#[test]
fn git_applies_the_diff_of_every_session() {
    for seed in seeds() {
        let (w, top, _) = session(seed);
        let diff = w.diff();
        if !diff.windows(4).any(|at| at == b"diff") {
            continue;
        }
        let copy = w.dir.path().join("copy");
        copy_tree(&w.real(""), &copy);
        fs::write(w.dir.path().join("d.patch"), &diff).unwrap();
        let (ok, said) = run(&copy, "git", &["apply", "../d.patch"]);
        let text = String::from_utf8(diff).unwrap();
        assert!(ok, "seed {seed}: {said}\n{text}");
        let files = |lines: Vec<String>| lines.into_iter().filter(|l| !l.ends_with('/')).collect::<Vec<_>>();
        assert_eq!(files(tree(&copy)), files(model_tree(&top)), "seed {seed}:\n{text}");
    }
}

#[test]
fn a_failure_at_any_step_leaves_the_real_tree_and_the_session_as_they_were() {
    for seed in seeds() {
        let (w, _, mut r) = session(seed);
        let mut plan = w.plan(&[]);
        if plan.steps.is_empty() {
            continue;
        }
        let (real, upper) = (w.tree(), tree(&w.upper("")));
        let at = r.below(plan.steps.len() + 1);
        plan.steps.insert(at, Step::Remove { root: 0, path: rel("not there"), change: 0 });
        let roots = w.roots();
        let scanned = w.scan();
        let mut dropper = Offline::new(&roots, &scanned, Leave::Applied);
        let error = apply(&roots, &plan, &mut dropper, &mut |_| {}).unwrap_err();
        assert!(error.causes.is_empty(), "seed {seed} at {at}: {error} {:#?}", plan.steps);
        assert_eq!(w.tree(), real, "seed {seed} at {at}: {:#?}", plan.steps);
        assert_eq!(tree(&w.upper("")), upper, "seed {seed} at {at}");
        drop(dropper);
        w.apply(&[]);
    }
}

#[test]
fn a_real_tree_that_nobody_touched_has_no_conflicts() {
    for seed in seeds() {
        let (w, ..) = session(seed);
        let found = check(&w.roots(), &w.settled(), &|_, _| None).unwrap();
        assert_eq!(found, [], "seed {seed}: {:#?}", w.changes());
    }
}
