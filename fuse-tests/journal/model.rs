//! The fold against a model: a whole merged tree in memory, changed by random operations that also write records. At the
//! end the model compares every object with the lower snapshot, and the fold must say the same.

use crate::{base, path, record};
use proptest::prelude::*;
use sbx_fuse::base::{BaseId, Change, ChangeSet, Kind, What};
use sbx_fuse::journal::{Entry, Op, Record, fold};
use std::collections::{BTreeMap, BTreeSet};

const LOWER: [(&str, Kind); 14] = [
    ("a", Kind::Dir),
    ("a/b", Kind::Dir),
    ("a/b/c", Kind::Dir),
    ("a/b/c/f", Kind::File),
    ("a/b/g", Kind::File),
    ("a/f", Kind::File),
    ("a/s", Kind::Symlink),
    ("b", Kind::Dir),
    ("b/f", Kind::File),
    ("c", Kind::Dir),
    ("f", Kind::File),
    ("f-x", Kind::File),
    ("g", Kind::File),
    ("s", Kind::Symlink),
];

#[derive(Clone, Debug)]
struct Object {
    kind: Kind,
    /// The lower path it was copied up from.
    origin: Option<String>,
    content: bool,
    meta: bool,
    last: u64,
    /// Names with the same number are names of one object; 0 where it has no other.
    group: u64,
}

struct Model {
    merged: BTreeMap<String, Object>,
    /// Lower objects whose base was told.
    told: BTreeSet<String>,
    log: Vec<Record>,
    /// The record that last removed the lower object, by lower path.
    seq: u64,
}

fn parent(at: &str) -> &str {
    at.rsplit_once('/').map_or("", |(dir, _)| dir)
}

fn name(at: &str) -> &str {
    at.rsplit('/').next().unwrap()
}

fn join(dir: &str, name: &str) -> String {
    if dir.is_empty() { name.to_owned() } else { format!("{dir}/{name}") }
}

fn beneath(at: &str, dir: &str) -> bool {
    at.strip_prefix(dir).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn lower_kind(at: &str) -> Option<Kind> {
    LOWER.iter().find(|(l, _)| *l == at).map(|(_, kind)| *kind)
}

fn lower_base(at: &str) -> BaseId {
    let i = LOWER.iter().position(|(l, _)| *l == at).unwrap();
    base(LOWER[i].1, 100 + i as u64)
}

impl Model {
    fn new() -> Model {
        let merged = LOWER
            .iter()
            .map(|(at, kind)| {
                let origin = Some(at.to_string());
                (
                    at.to_string(),
                    Object { kind: *kind, origin, content: false, meta: false, last: 0, group: 0 },
                )
            })
            .collect();
        Model { merged, told: BTreeSet::new(), log: Vec::new(), seq: 0 }
    }

    /// The base to tell for what is at `at`: of a lower object that was not changed before.
    fn tell(&mut self, at: &str) -> Option<BaseId> {
        let origin = self.merged.get(at)?.origin.clone()?;
        self.told.insert(origin.clone()).then(|| lower_base(&origin))
    }

    fn write(&mut self, op: Op, kind: Kind, at: &str, to: Option<&str>) {
        let base =
            if matches!(op, Op::Create | Op::Mkdir | Op::Symlink | Op::Link) { None } else { self.tell(at) };
        let base2 = match op {
            Op::Rename | Op::Exchange => to.and_then(|to| self.tell(to)),
            _ => None,
        };
        self.log.push(Record { base, base2, proc: 1, ..record(op, kind, at, to) });
        self.seq += 1;
    }

    /// The group of the names of one object, a new one where it had one name so far.
    fn group_of(&mut self, at: &str) -> u64 {
        let object = self.merged.get_mut(at).unwrap();
        if object.group == 0 {
            object.group = self.seq;
        }
        object.group
    }

    fn is_dir(&self, at: &str) -> bool {
        at.is_empty() || self.merged.get(at).is_some_and(|o| o.kind == Kind::Dir)
    }

    fn is_empty(&self, at: &str) -> bool {
        !self.merged.keys().any(|k| k != at && beneath(k, at))
    }

    fn take(&mut self, top: &str) -> Vec<(String, Object)> {
        let keys: Vec<String> = self.merged.keys().filter(|k| beneath(k, top)).cloned().collect();
        keys.into_iter().map(|k| (k[top.len()..].to_owned(), self.merged.remove(&k).unwrap())).collect()
    }

    fn give(&mut self, top: &str, subtree: Vec<(String, Object)>) {
        self.merged.extend(subtree.into_iter().map(|(rest, object)| (format!("{top}{rest}"), object)));
        self.merged.get_mut(top).unwrap().last = self.seq;
    }

    /// Does one operation if it is possible; says whether.
    fn step(&mut self, op: Op, at: &str, to: &str) -> bool {
        let here = self.merged.get(at).cloned();
        match op {
            Op::Create | Op::Mkdir | Op::Symlink | Op::Link => {
                let source = self.merged.get(to).filter(|o| o.kind == Kind::File);
                if here.is_some() || !self.is_dir(parent(at)) || (op == Op::Link && source.is_none()) {
                    return false;
                }
                let kind = match op {
                    Op::Mkdir => Kind::Dir,
                    Op::Symlink => Kind::Symlink,
                    _ => Kind::File,
                };
                self.write(op, kind, at, (op == Op::Link).then_some(to));
                let last = self.seq;
                let group = if op == Op::Link { self.group_of(to) } else { 0 };
                let object = Object { kind, origin: None, content: false, meta: false, last, group };
                self.merged.insert(at.to_owned(), object);
            }
            Op::Unlink | Op::Rmdir => {
                let Some(object) = here else { return false };
                if (object.kind == Kind::Dir) != (op == Op::Rmdir) || !self.is_empty(at) {
                    return false;
                }
                self.write(op, object.kind, at, None);
                self.merged.remove(at);
            }
            Op::Write | Op::SetAttr => {
                let Some(object) = here else { return false };
                if op == Op::Write && object.kind != Kind::File {
                    return false;
                }
                self.write(op, object.kind, at, None);
                let names = self.merged.iter_mut().filter(|(name, other)| {
                    name.as_str() == at || (object.group != 0 && other.group == object.group)
                });
                for (_, name) in names {
                    name.content |= op == Op::Write;
                    name.meta |= op == Op::SetAttr;
                    name.last = self.seq;
                }
            }
            Op::Rename => {
                let Some(object) = here else { return false };
                let fits = self
                    .merged
                    .get(to)
                    .is_none_or(|t| (t.kind == Kind::Dir) == (object.kind == Kind::Dir) && self.is_empty(to));
                if beneath(to, at) || beneath(at, to) || !self.is_dir(parent(to)) || !fits {
                    return false;
                }
                self.write(op, object.kind, at, Some(to));
                self.merged.remove(to);
                let subtree = self.take(at);
                self.give(to, subtree);
            }
            _ => {
                let Some(object) = here else { return false };
                if !self.merged.contains_key(to) || beneath(to, at) || beneath(at, to) {
                    return false;
                }
                self.write(Op::Exchange, object.kind, at, Some(to));
                let (a, b) = (self.take(at), self.take(to));
                self.give(to, a);
                self.give(at, b);
            }
        }
        true
    }

    /// Where each lower object is now.
    fn whereabouts(&self) -> BTreeMap<&str, &str> {
        let found = self.merged.iter().filter_map(|(at, o)| Some((o.origin.as_deref()?, at.as_str())));
        found.chain([("", "")]).collect()
    }

    fn origin_of(&self, dir: &str) -> Option<&str> {
        if dir.is_empty() { Some("") } else { self.merged[dir].origin.as_deref() }
    }

    /// What is different, and the bases that renamed objects replaced.
    fn changes(&self) -> (Vec<Change>, BTreeMap<String, BaseId>) {
        let places = self.whereabouts();
        let (mut out, mut replaced) = (Vec::new(), BTreeMap::new());
        // What came back to its old path: where its change is, and that of the directory that lost it.
        let (mut back, mut homes) = (Vec::new(), Vec::new());
        for (at, object) in &self.merged {
            // What the lower has beneath this very name, seen from its directory.
            let under = self.origin_of(parent(at)).map(|dir| join(dir, name(at)));
            let hidden = under.as_deref().filter(|l| lower_kind(l).is_some());
            let mut change = Change {
                root: 0,
                path: path(at),
                what: What::Added,
                from: None,
                kind: object.kind,
                base: object.origin.as_deref().filter(|o| self.told.contains(*o)).map(lower_base),
                content: object.content,
                meta: object.meta,
                opaque: false,
                last: Default::default(),
            };
            change.last.seq = object.last;
            match (&object.origin, hidden) {
                (None, None) => change.content = true,
                (None, Some(lower)) => {
                    let same = lower_kind(lower) == Some(object.kind);
                    change.what = if same { What::Modified } else { What::Typed };
                    change.base = Some(lower_base(lower));
                    change.content = true;
                    change.meta = true;
                    change.opaque = object.kind == Kind::Dir;
                }
                (Some(origin), _) if under.as_ref() == Some(origin) => match (object.content, object.meta) {
                    (false, false) => continue,
                    (true, _) => change.what = What::Modified,
                    (false, true) => change.what = What::Meta,
                },
                // At its old path, in a directory that the session made there; in one that was renamed to there, both move.
                (Some(origin), _) if origin == at && self.origin_of(parent(at)).is_none() => {
                    change.what = What::Modified;
                    change.content |= object.kind != Kind::Dir;
                    change.meta |= object.kind != Kind::Dir;
                    back.push((out.len(), path(at)));
                }
                (Some(origin), _) => {
                    change.what = What::Renamed;
                    change.from = Some(path(origin));
                    if let Some(lower) = hidden.filter(|l| !places.contains_key(l)) {
                        replaced.insert(at.clone(), lower_base(lower));
                    }
                }
            }
            out.push(change);
        }
        for (lower, kind) in LOWER {
            let Some(dir) = places.get(parent(lower)) else { continue };
            let at = join(dir, name(lower));
            // No rename tells that what came back to its old path left its own directory.
            let left = places.get(lower).is_none_or(|place| {
                *place == lower && at != lower && self.origin_of(parent(lower)).is_none()
            });
            if !left {
                continue;
            }
            if !self.merged.contains_key(&at) {
                homes.extend(places.contains_key(lower).then(|| (out.len(), path(lower))));
                let change = Change {
                    root: 0,
                    path: path(&at),
                    what: What::Deleted,
                    from: None,
                    kind,
                    base: Some(lower_base(lower)),
                    content: false,
                    meta: false,
                    opaque: false,
                    last: Default::default(),
                };
                out.push(change);
            }
        }
        // Unless its real directory moved on: then it is a rename, which tells that too.
        let renamed = ChangeSet::rename_left_behind(&mut out, back);
        for (i, _) in homes.iter().rev().filter(|(_, at)| renamed.contains(at)) {
            out.swap_remove(*i);
        }
        out.sort_by(|a, b| a.path.cmp(&b.path));
        (out, replaced)
    }
}

const OPS: [Op; 12] = [
    Op::Create,
    Op::Mkdir,
    Op::Symlink,
    Op::Link,
    Op::Unlink,
    Op::Rmdir,
    Op::Write,
    Op::SetAttr,
    Op::Rename,
    Op::Rename,
    Op::Rename,
    Op::Exchange,
];

/// One operation by numbers: which, on which present object or new name in a directory, and the same for the other path.
type Choice = (usize, usize, usize, usize, usize);

fn pick(model: &Model, i: usize, fresh: usize) -> String {
    const NAMES: [&str; 6] = ["a", "b", "c", "f", "g", "n"];
    let present: Vec<&String> = model.merged.keys().collect();
    if fresh.is_multiple_of(2) && !present.is_empty() {
        return present[i % present.len()].clone();
    }
    let dirs: Vec<&str> =
        present.iter().map(|p| p.as_str()).filter(|p| model.is_dir(p)).chain([""]).collect();
    join(dirs[i % dirs.len()], NAMES[fresh / 2 % NAMES.len()])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_fold_says_what_a_comparison_of_whole_trees_says(
        choices in proptest::collection::vec(any::<Choice>(), 1..60),
    ) {
        let mut model = Model::new();
        for (op, i, fresh, j, fresh2) in choices {
            let (at, to) = (pick(&model, i, fresh), pick(&model, j, fresh2));
            model.step(OPS[op % OPS.len()], &at, &to);
        }
        let log = model.log.clone();
        let entries = log.iter().cloned().zip(1u64..).map(|(record, seq)| Entry::Record { seq, time: seq, record });
        let folded = fold(entries);
        let (want, replaced) = model.changes();
        let mut got = folded.set.changes.clone();
        for change in &mut got {
            // The model does not remember which record deleted what.
            change.last = if change.what == What::Deleted { Default::default() } else { change.last };
            change.last.time = 0;
            change.last.proc = 0;
        }
        prop_assert_eq!(&got, &want, "after {:#?}", log);
        let got: BTreeMap<String, BaseId> = folded
            .replaced
            .into_iter()
            .map(|((_, at), base)| (String::from_utf8(at.as_bytes().to_vec()).unwrap(), base))
            .collect();
        prop_assert_eq!(got, replaced, "after {:#?}", log);
        prop_assert_eq!(folded.last_seq, log.len() as u64);
    }

    /// Records in no sensible order, also those of recovery and apply: the fold neither panics nor hangs.
    #[test]
    fn any_records_fold(
        records in proptest::collection::vec((1u8..=20, "[abc](/[abc]){0,3}", "[abc](/[abc]){0,3}", 1u8..4, any::<(bool, bool, bool)>()), 0..80),
    ) {
        let entries = records.into_iter().zip(1u64..).map(|((op, at, to, kind, (two, b1, b2)), seq)| {
            let (op, kind) = (Op::from_u8(op).unwrap(), Kind::from_u8(kind).unwrap());
            let mut record = record(op, kind, &at, two.then_some(to.as_str()));
            record.base = b1.then(|| base(kind, seq));
            record.base2 = b2.then(|| base(kind, seq + 1000));
            Entry::Record { seq, time: seq, record }
        });
        let folded = fold(entries);
        let paths: Vec<_> = folded.set.changes.iter().map(|c| c.path.clone()).collect();
        let unique: BTreeSet<_> = paths.iter().cloned().collect();
        prop_assert_eq!(paths.len(), unique.len());
        prop_assert!(paths.is_sorted());
    }
}
