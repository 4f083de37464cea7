//! From selected changes to an ordered list of steps. Pure: nothing here touches a file.
//!
//! Order: moves and new directories from the top down (a move that is in another's way goes by a temporary name),
//! then files, then deletions from the bottom up, then attributes and times of directories. The paths of a step are
//! those of the real tree at the moment the step is taken; once its moves are done, the real tree has the names of
//! the merged view.

use super::paths::{Resolver, ancestors, is_new_dir, under};
use super::settle::{Settled, Twin};
use crate::base::{Error, Kind, RelPath, Result, What};
use std::collections::{BTreeMap, BTreeSet};

/// How the temporary name of a parked object begins.
const PARKED: &[u8] = b".sbx-fuse.parked-";

/// One effect on the real tree. As data, so that it can be shown and logged before it is taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Rename `from` to `to`; what is at `to` is set aside.
    Move {
        /// Which root.
        root: u16,
        /// Where the object is now.
        from: RelPath,
        /// Where it goes.
        to: RelPath,
        /// The change this carries out; `None` for a move to a temporary name.
        change: Option<usize>,
    },
    /// Make a directory; what else is there is set aside, a directory stays.
    Mkdir {
        /// Which root.
        root: u16,
        /// Where.
        path: RelPath,
        /// The change this carries out.
        change: usize,
    },
    /// Bring the session's object to `path`, in place of what is there. It is staged at `stage` beforehand.
    Put {
        /// Which root.
        root: u16,
        /// Where.
        path: RelPath,
        /// A directory that exists before the first step, on the way to `path`.
        stage: RelPath,
        /// The change this carries out.
        change: usize,
    },
    /// Write the session's content into the real file itself, which has other names.
    Rewrite {
        /// Which root.
        root: u16,
        /// Where.
        path: RelPath,
        /// The change this carries out.
        change: usize,
    },
    /// Make `path` a hard link of `to`, which an earlier step put there.
    Link {
        /// Which root.
        root: u16,
        /// Where.
        path: RelPath,
        /// The name that exists.
        to: RelPath,
        /// The change this carries out.
        change: usize,
    },
    /// Set the attributes that differ.
    Attr {
        /// Which root.
        root: u16,
        /// Where.
        path: RelPath,
        /// The change this carries out.
        change: usize,
    },
    /// Remove what is at `path`, with everything beneath.
    Remove {
        /// Which root.
        root: u16,
        /// Where.
        path: RelPath,
        /// The change this carries out.
        change: usize,
    },
}

/// Which changes to take.
#[derive(Clone, Debug, Default)]
pub enum Selection {
    /// All of them.
    #[default]
    All,
    /// Those at or beneath any of these paths (of a rename, its old path counts too).
    Paths(Vec<(u16, RelPath)>),
}

impl Selection {
    /// Whether it names this change.
    pub fn takes(&self, s: &Settled) -> bool {
        let c = &s.change;
        match self {
            Selection::All => true,
            Selection::Paths(paths) => paths.iter().any(|(root, p)| {
                *root == c.root
                    && (c.path.starts_with(p) || c.from.as_ref().is_some_and(|f| f.starts_with(p)))
            }),
        }
    }
}

/// What will be done, in order.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The steps; their `change` is an index into `changes`.
    pub steps: Vec<Step>,
    /// The selected changes and those they need.
    pub changes: Vec<Settled>,
    /// Those of `changes` that were not selected but are needed, by index.
    pub pulled: Vec<usize>,
}

/// Orders what `selection` takes of `set`, together with what it needs: new parent directories, and renames out of
/// what is moved, replaced or removed. `set` is in the order that `settle` gives.
///
/// # Errors
/// When the renames contradict each other, which no session can bring about.
pub fn plan(set: &[Settled], selection: &Selection) -> Result<Plan> {
    let chosen = close(set, selection);
    let mut plan = Plan::default();
    for i in &chosen {
        if !selection.takes(&set[*i]) {
            plan.pulled.push(plan.changes.len());
        }
        plan.changes.push(set[*i].clone());
    }
    let mut roots: Vec<u16> = plan.changes.iter().map(|s| s.change.root).collect();
    roots.dedup();
    for root in roots {
        let steps = steps_of(&plan.changes, root)?;
        plan.steps.extend(steps);
    }
    Ok(plan)
}

/// Indices of what is selected and what that needs, in order.
fn close(set: &[Settled], selection: &Selection) -> BTreeSet<usize> {
    let resolver = Resolver::new(set.iter().map(|s| &s.change));
    let index = |root: u16, path: &RelPath| {
        set.binary_search_by(|s| (s.change.root, &s.change.path).cmp(&(root, path))).ok()
    };
    let mut todo: Vec<usize> = (0..set.len()).filter(|&i| selection.takes(&set[i])).collect();
    let mut chosen = BTreeSet::new();
    while let Some(i) = todo.pop() {
        if !chosen.insert(i) {
            continue;
        }
        let c = &set[i].change;
        for dir in ancestors(&c.path) {
            if resolver.at(c.root, &dir).is_some_and(is_new_dir) {
                todo.extend(index(c.root, &dir));
            }
        }
        // The real objects that leave their place: the one at the target, and the one that moves.
        let leaving = [resolver.slot(c.root, &c.path).filter(|_| leaves_place(&set[i])), c.from.clone()];
        for real in leaving.iter().flatten() {
            for to in resolver.claimed_within(c.root, real) {
                todo.extend(index(c.root, to));
            }
        }
    }
    chosen
}

/// Whether carrying out the change takes away what its target name holds in the real tree.
fn leaves_place(s: &Settled) -> bool {
    match s.change.what {
        What::Meta => false,
        What::Modified => s.change.kind != Kind::Dir,
        What::Added | What::Deleted | What::Renamed | What::Typed => true,
    }
}

fn steps_of(changes: &[Settled], root: u16) -> Result<Vec<Step>> {
    let mine: Vec<usize> = (0..changes.len()).filter(|&i| changes[i].change.root == root).collect();
    let mut steps = Vec::new();
    moves(changes, root, &mine, &mut steps)?;
    files(changes, root, &mine, &mut steps);
    for &i in mine.iter().rev().filter(|&&i| changes[i].change.what == What::Deleted) {
        steps.push(Step::Remove { root, path: changes[i].change.path.clone(), change: i });
    }
    let dirs = mine.iter().rev().filter(|&&i| changes[i].change.kind == Kind::Dir);
    for &i in dirs.filter(|&&i| needs_attr(&changes[i])) {
        steps.push(Step::Attr { root, path: changes[i].change.path.clone(), change: i });
    }
    Ok(steps)
}

/// Whether a directory's attributes are to be set at the end: those of a new one, or those that differ.
fn needs_attr(s: &Settled) -> bool {
    match s.change.what {
        What::Added | What::Typed => true,
        What::Deleted => false,
        What::Modified | What::Renamed | What::Meta => !s.meta.is_empty(),
    }
}

/// Renames and new directories that are still to be carried out, by target. A rename has the place where its object
/// is now; a directory to be made has none.
struct Pending {
    root: u16,
    todo: BTreeMap<RelPath, (usize, Option<RelPath>)>,
    places: BTreeSet<RelPath>,
}

impl Pending {
    /// A step is ready once its parent stands and nothing that is still to move lies at its target.
    fn is_ready(&self, to: &RelPath, at: Option<&RelPath>) -> bool {
        let parent_waits = ancestors(to).any(|dir| self.todo.contains_key(&dir));
        let occupied = self.places.contains(to) || beneath(&self.places, to).next().is_some();
        let into_itself = at.is_some_and(|at| to.starts_with(at));
        !parent_waits && !occupied && !into_itself
    }

    /// What moves with `from` is at its new place from now on.
    fn follow(&mut self, from: &RelPath, to: &RelPath) {
        for (_, at) in self.todo.values_mut() {
            if let Some(rest) = at.as_ref().and_then(|at| at.strip_prefix(from)) {
                *at = Some(under(to, &rest));
            }
        }
        self.places = self.todo.values().filter_map(|(_, at)| at.clone()).collect();
    }

    /// Takes every step that is ready, in order of target; whether there was one.
    fn pass(&mut self, steps: &mut Vec<Step>) -> bool {
        let root = self.root;
        let targets: Vec<RelPath> = self.todo.keys().cloned().collect();
        let before = steps.len();
        for to in targets {
            let Some((change, at)) = self.todo.get(&to).cloned() else { continue };
            if !self.is_ready(&to, at.as_ref()) {
                continue;
            }
            self.todo.remove(&to);
            match at {
                None => steps.push(Step::Mkdir { root, path: to, change }),
                Some(from) => {
                    self.follow(&from, &to);
                    steps.push(Step::Move { root, from, to, change: Some(change) });
                }
            }
        }
        steps.len() > before
    }
}

fn beneath<'a>(set: &'a BTreeSet<RelPath>, dir: &'a RelPath) -> impl Iterator<Item = &'a RelPath> {
    set.range(dir..)
        .take_while(move |p| p.as_bytes().starts_with(dir.as_bytes()))
        .filter(move |p| p.starts_with(dir))
}

/// Renames and new directories in an order that works; when all wait for each other, one is moved out of the way, to
/// the top of the tree where it can be in nobody's way again.
fn moves(changes: &[Settled], root: u16, mine: &[usize], steps: &mut Vec<Step>) -> Result<()> {
    let mut pending = Pending { root, todo: BTreeMap::new(), places: BTreeSet::new() };
    for &i in mine {
        let c = &changes[i].change;
        let makes_dir = c.kind == Kind::Dir && matches!(c.what, What::Added | What::Typed);
        if c.what == What::Renamed || makes_dir {
            pending.todo.insert(c.path.clone(), (i, c.from.clone()));
        }
    }
    pending.places = pending.todo.values().filter_map(|(_, at)| at.clone()).collect();
    let mut parked = 0;
    while !pending.todo.is_empty() {
        if pending.pass(steps) {
            continue;
        }
        let is_parked = |at: &RelPath| at.as_bytes().starts_with(PARKED) && !at.as_bytes().contains(&b'/');
        let next = pending.todo.values().filter_map(|(_, at)| at.clone()).find(|at| !is_parked(at));
        let Some(from) = next else {
            let stuck = pending.todo.keys().next().cloned().unwrap_or_default();
            return Err(Error::failure(format!("the renames around {stuck} cannot be put in order")));
        };
        let to = RelPath::root().join(&[PARKED, format!("{parked}.tmp").as_bytes()].concat());
        parked += 1;
        pending.follow(&from, &to);
        steps.push(Step::Move { root, from, to, change: None });
    }
    Ok(())
}

fn files(changes: &[Settled], root: u16, mine: &[usize], steps: &mut Vec<Step>) {
    let resolver = Resolver::new(changes.iter().map(|s| &s.change));
    let mut first_of_group: BTreeMap<(u64, u64), RelPath> = BTreeMap::new();
    for &i in mine {
        let s = &changes[i];
        let path = s.change.path.clone();
        let puts = match s.change.what {
            What::Deleted | What::Meta => false,
            _ if s.change.kind == Kind::Dir => false,
            What::Renamed => s.content,
            What::Added | What::Modified | What::Typed => true,
        };
        if !puts {
            if s.change.kind != Kind::Dir && s.change.what != What::Deleted && !s.meta.is_empty() {
                steps.push(Step::Attr { root, path, change: i });
            }
            continue;
        }
        let stands = |twin: &&Twin| !twin.changed || resolver.at(root, &twin.path).is_some();
        if let Some(twin) = s.twin.as_ref().filter(stands) {
            steps.push(Step::Link { root, path, to: twin.path.clone(), change: i });
            continue;
        }
        if let Some(to) = s.link_group.and_then(|group| first_of_group.get(&group)) {
            steps.push(Step::Link { root, path, to: to.clone(), change: i });
            continue;
        }
        if let Some(group) = s.link_group {
            first_of_group.insert(group, path.clone());
        }
        let has_links = s.same_file && s.real.is_some_and(|r| r.nlink > 1);
        if has_links && matches!(s.change.what, What::Modified | What::Renamed) {
            steps.push(Step::Rewrite { root, path, change: i });
        } else {
            let stage = stage_dir(&resolver, root, &path);
            steps.push(Step::Put { root, path, stage, change: i });
        }
    }
}

/// The nearest directory above `path` that the real tree has before the first step.
fn stage_dir(resolver: &Resolver<'_>, root: u16, path: &RelPath) -> RelPath {
    ancestors(path)
        .filter(|dir| resolver.at(root, dir).is_none_or(|c| c.what != What::Typed))
        .find_map(|dir| resolver.real_of(root, &dir))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::settle::for_test;
    use super::*;

    fn lines(set: &[Settled], selection: &Selection) -> Vec<String> {
        let mut set = set.to_vec();
        set.sort_by(|a, b| a.change.path.cmp(&b.change.path));
        plan(&set, selection)
            .unwrap()
            .steps
            .iter()
            .map(|s| match s {
                Step::Move { from, to, .. } => format!("move {from} {to}"),
                Step::Mkdir { path, .. } => format!("mkdir {path}"),
                Step::Put { path, stage, .. } => format!("put {path} from {:?}", stage),
                Step::Rewrite { path, .. } => format!("rewrite {path}"),
                Step::Link { path, to, .. } => format!("link {path} {to}"),
                Step::Attr { path, .. } => format!("attr {path}"),
                Step::Remove { path, .. } => format!("remove {path}"),
            })
            .collect()
    }

    fn only(path: &str) -> Selection {
        Selection::Paths(vec![(0, RelPath::new(path.as_bytes()).unwrap())])
    }

    #[test]
    fn a_chain_of_renames_starts_at_its_end() {
        let set = [
            for_test("b", What::Renamed, Kind::File, Some("a")),
            for_test("c", What::Renamed, Kind::File, Some("b")),
        ];
        assert_eq!(lines(&set, &Selection::All), ["move b c", "move a b"]);
        assert_eq!(lines(&set, &only("c")), ["move b c"]);
    }

    #[test]
    fn a_swap_goes_by_a_temporary_name() {
        let set = [
            for_test("a", What::Renamed, Kind::File, Some("b")),
            for_test("b", What::Renamed, Kind::File, Some("a")),
        ];
        let park = "move b .sbx-fuse.parked-0.tmp";
        assert_eq!(lines(&set, &Selection::All), [park, "move a b", "move .sbx-fuse.parked-0.tmp a"]);
        assert_eq!(lines(&set, &only("a")).len(), 3, "one half of a swap needs the other");
    }

    #[test]
    fn a_directory_moves_into_its_own_replacement() {
        let set = [
            for_test("a", What::Added, Kind::Dir, None),
            for_test("a/b", What::Renamed, Kind::Dir, Some("a")),
            for_test("a/b/f", What::Modified, Kind::File, None),
        ];
        assert_eq!(
            lines(&set, &Selection::All),
            [
                "move a .sbx-fuse.parked-0.tmp",
                "mkdir a",
                "move .sbx-fuse.parked-0.tmp a/b",
                "put a/b/f from a",
                "attr a"
            ]
        );
    }

    #[test]
    fn renames_out_of_a_removed_directory_come_first_and_are_pulled_in() {
        let set = [
            for_test("d", What::Deleted, Kind::Dir, None),
            for_test("g", What::Renamed, Kind::Dir, Some("d/sub")),
        ];
        assert_eq!(lines(&set, &only("d")), ["move d/sub g", "remove d"]);
        assert_eq!(lines(&set, &only("g")), ["move d/sub g"]);
    }

    #[test]
    fn new_parents_are_pulled_in_and_deletions_are_last_and_deepest_first() {
        let set = [
            for_test("n", What::Added, Kind::Dir, None),
            for_test("n/f", What::Added, Kind::File, None),
            for_test("n/g", What::Added, Kind::File, None),
            for_test("a", What::Deleted, Kind::File, None),
            for_test("a2/b", What::Deleted, Kind::File, None),
        ];
        assert_eq!(lines(&set, &only("n/f")), ["mkdir n", "put n/f from \"\"", "attr n"]);
        assert_eq!(
            lines(&set, &Selection::All),
            ["mkdir n", "put n/f from \"\"", "put n/g from \"\"", "remove a2/b", "remove a", "attr n"]
        );
    }

    #[test]
    fn moves_inside_a_moved_directory_follow_it() {
        let set = [
            for_test("d2", What::Renamed, Kind::Dir, Some("d1")),
            for_test("d2/y", What::Renamed, Kind::File, Some("d1/x")),
            for_test("out", What::Renamed, Kind::File, Some("d1/z")),
        ];
        assert_eq!(lines(&set, &Selection::All), ["move d1 d2", "move d2/x d2/y", "move d2/z out"]);
        assert_eq!(lines(&set, &only("out")), ["move d1/z out"]);
    }
}
