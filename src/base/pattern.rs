//! Patterns of paths, followed name by name from `/` down, and the rules made of them.
//!
//! A pattern is a path in whose names `*`, `?`, `[a-z]` and `{a,b}` stand for any bytes, one byte, one of these and one
//! of those; `**` as a name of its own stands for any number of names. A `\` takes the meaning from what follows it.
//! What a pattern matches is matched with all that lies beneath it.

use globset::{Candidate, GlobBuilder, GlobMatcher};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The directories that every sandbox has of its own, empty at first, unless they lie in a root.
pub const PRIVATE_TEMPS: [&str; 2] = ["/tmp", "/var/tmp"];

/// What a rule does to the paths it matches; the later ones are stricter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// It can be read, not changed (`EACCES`).
    ReadOnly,
    /// It is there, and nothing can be done with it (`EACCES`).
    Deny,
    /// It is not there (`ENOENT`), and cannot be made.
    Hide,
}

/// One name of a pattern.
#[derive(Clone, Debug)]
enum Part {
    /// Any number of names, none included.
    Deep,
    Literal(Box<[u8]>),
    Glob(GlobMatcher),
}

impl Part {
    fn matches(&self, name: &[u8]) -> bool {
        match self {
            Part::Deep => true,
            Part::Literal(literal) => **literal == *name,
            Part::Glob(glob) => glob.is_match_candidate(&Candidate::new(Path::new(OsStr::from_bytes(name)))),
        }
    }
}

/// A pattern of absolute paths.
#[derive(Clone, Debug)]
pub struct Pattern {
    parts: Vec<Part>,
}

impl Pattern {
    /// The pattern `text` beneath the directory `base`, whose bytes mean themselves.
    ///
    /// # Errors
    /// A sentence on what is wrong with `text`.
    pub fn new(base: &Path, text: &str) -> Result<Pattern, String> {
        let mut parts: Vec<Part> = literals(base).map(|b| Part::Literal(b.into())).collect();
        for name in text.split('/').filter(|n| !n.is_empty() && *n != ".") {
            parts.push(match name {
                ".." => return Err(format!("'{text}' has a '..'; write the path without it")),
                "**" if matches!(parts.last(), Some(Part::Deep)) => continue,
                "**" => Part::Deep,
                _ if name.contains(GLOB) => Part::Glob(glob(text, name)?),
                _ => Part::Literal(unescape(name).into_boxed_slice()),
            });
        }
        Ok(Pattern { parts })
    }

    /// Whether `text` could be a pattern.
    ///
    /// # Errors
    /// As [`Pattern::new`].
    pub fn check(text: &str) -> Result<(), String> {
        Pattern::new(Path::new("/"), text).map(drop)
    }

    /// The pattern that matches this path alone.
    pub fn literal(path: &Path) -> Pattern {
        Pattern { parts: literals(path).map(|b| Part::Literal(b.into())).collect() }
    }

    /// The path that it matches, if that is one only.
    pub fn path(&self) -> Option<PathBuf> {
        let prefix = self.prefix();
        (prefix.1 == self.parts.len()).then_some(prefix.0)
    }

    /// The directory that all it matches lies in, and how many names that is.
    pub fn prefix(&self) -> (PathBuf, usize) {
        let mut path = PathBuf::from("/");
        let names = self.parts.iter().map_while(|p| match p {
            Part::Literal(name) => Some(name),
            Part::Deep | Part::Glob(_) => None,
        });
        let mut n = 0;
        for name in names {
            path.push(OsStr::from_bytes(name));
            n += 1;
        }
        (path, n)
    }

    /// The same pattern with its first `n` names replaced by those of `path`.
    #[must_use]
    pub fn rebased(&self, n: usize, path: &Path) -> Pattern {
        let head = literals(path).map(|b| Part::Literal(b.into()));
        Pattern { parts: head.chain(self.parts.iter().skip(n).cloned()).collect() }
    }
}

const GLOB: [char; 4] = ['*', '?', '[', '{'];

fn literals(path: &Path) -> impl Iterator<Item = &[u8]> {
    path.as_os_str().as_bytes().split(|&b| b == b'/').filter(|n| !n.is_empty())
}

fn glob(text: &str, name: &str) -> Result<GlobMatcher, String> {
    if name.matches('{').count() != name.matches('}').count() {
        return Err(format!("'{text}' is no pattern: a '{{…}}' must lie within one name"));
    }
    let glob =
        GlobBuilder::new(name).literal_separator(true).backslash_escape(true).empty_alternates(true).build();
    glob.map(|g| g.compile_matcher()).map_err(|e| format!("'{text}' is no pattern: {}", e.kind()))
}

fn unescape(name: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(name.len());
    let mut bytes = name.bytes();
    while let Some(b) = bytes.next() {
        out.push(if b == b'\\' { bytes.next().unwrap_or(b'\\') } else { b });
    }
    out
}

/// A pattern and what holds for the paths it matches.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Which paths.
    pub pattern: Pattern,
    /// What holds for them.
    pub access: Access,
}

/// Rules, ready to be followed name by name.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    rules: Vec<Rule>,
}

/// What the rules have still to say beneath a directory: which of them are alive there, and how far each has come.
/// Ordered, so that equal spots mean that a directory can move from one place to the other and nothing changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spot(Arc<[(u32, u32)]>);

impl Rules {
    /// Makes them ready.
    pub fn new(rules: Vec<Rule>) -> Rules {
        Rules { rules }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The paths that rules of this access name, those that match one path only.
    pub fn paths(&self, access: Access) -> impl Iterator<Item = PathBuf> {
        self.rules.iter().filter(move |r| r.access == access).filter_map(|r| r.pattern.path())
    }

    /// Those of at least this access.
    #[must_use]
    pub fn at_least(&self, access: Access) -> Rules {
        Rules::new(self.rules.iter().filter(|r| r.access >= access).cloned().collect())
    }

    /// What they say beneath `/`.
    pub fn top(&self) -> Option<Spot> {
        let starts = (0..self.rules.len()).map(|r| (r as u32, 0)).collect();
        self.spot(starts)
    }

    /// Follows `name` from `spot`: the strictest of the rules that match there, and what the rest say beneath.
    pub fn step(&self, spot: &Spot, name: &[u8]) -> (Option<Access>, Option<Spot>) {
        let (mut access, mut alive) = (None, Vec::new());
        for &(rule, at) in spot.0.iter() {
            let parts = self.parts(rule);
            let part = &parts[at as usize];
            let last = at as usize + 1 == parts.len();
            if !part.matches(name) {
                continue;
            }
            if last {
                access = access.max(Some(self.rules[rule as usize].access));
            } else if matches!(part, Part::Deep) {
                alive.push((rule, at));
            } else {
                alive.push((rule, at + 1));
            }
        }
        (access, self.spot(alive))
    }

    /// Follows all names of `path` from `/`: the strictest that matches it or what it lies in, and what the rules say
    /// beneath it.
    pub fn walk(&self, path: &Path) -> (Option<Access>, Option<Spot>) {
        let (mut access, mut spot) = (None, self.top());
        for name in literals(path) {
            let Some(at) = spot else {
                return (access, None);
            };
            let (here, beneath) = self.step(&at, name);
            access = access.max(here);
            spot = beneath;
        }
        (access, spot)
    }

    /// How the names that are next from `spot` are given.
    pub fn next_names(&self, spot: &Spot) -> Next<'_> {
        let mut next = Next::default();
        for &(rule, at) in spot.0.iter() {
            let parts = self.parts(rule);
            let last = at as usize + 1 == parts.len();
            match &parts[at as usize] {
                Part::Deep => next.deep = true,
                Part::Glob(_) => next.any = true,
                Part::Literal(name) if last => next.ends.push(name),
                Part::Literal(name) => next.ways.push(name),
            }
        }
        next
    }

    fn parts(&self, rule: u32) -> &[Part] {
        &self.rules[rule as usize].pattern.parts
    }

    /// The spot of these positions; a `**` may stand for no name at all.
    fn spot(&self, mut alive: Vec<(u32, u32)>) -> Option<Spot> {
        let mut i = 0;
        while let Some(&(rule, at)) = alive.get(i) {
            let parts = self.parts(rule);
            if matches!(parts.get(at as usize), Some(Part::Deep)) && at as usize + 1 < parts.len() {
                alive.push((rule, at + 1));
            }
            i += 1;
        }
        alive.retain(|&(rule, at)| (at as usize) < self.parts(rule).len());
        alive.sort_unstable();
        alive.dedup();
        (!alive.is_empty()).then(|| Spot(alive.into()))
    }
}

/// The names that rules look for in one directory.
#[derive(Debug, Default)]
pub struct Next<'a> {
    /// A rule may match at any depth beneath.
    pub deep: bool,
    /// A rule looks for names by a pattern.
    pub any: bool,
    /// Names that a rule matches.
    pub ends: Vec<&'a [u8]>,
    /// Names of directories in which a rule goes on.
    pub ways: Vec<&'a [u8]>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(all: &[(&str, Access)]) -> Rules {
        let rule = |(text, access): &(&str, Access)| Rule {
            pattern: Pattern::new(Path::new("/"), text).unwrap(),
            access: *access,
        };
        Rules::new(all.iter().map(rule).collect())
    }

    #[test]
    fn patterns_match_names_and_what_lies_beneath() {
        let r = rules(&[
            ("/h/.ssh", Access::Hide),
            ("/h/*.pem", Access::Deny),
            ("/h/p/**/.env{,.local}", Access::Hide),
            ("/h/p/out/**", Access::ReadOnly),
        ]);
        let access = |p: &str| r.walk(Path::new(p)).0;
        assert_eq!(access("/h/.ssh"), Some(Access::Hide));
        assert_eq!(access("/h/.ssh/id"), Some(Access::Hide));
        assert_eq!(access("/h/.sshx"), None);
        assert_eq!(access("/h/a.pem"), Some(Access::Deny));
        assert_eq!(access("/h/d/a.pem"), None);
        for hidden in ["/h/p/.env", "/h/p/a/b/.env.local"] {
            assert_eq!(access(hidden), Some(Access::Hide), "{hidden}");
        }
        assert_eq!(access("/h/p/.environment"), None);
        assert_eq!((access("/h/p/out"), access("/h/p/out/a/b")), (None, Some(Access::ReadOnly)));
        assert_eq!(access("/h/p/out/a/.env"), Some(Access::Hide));
    }

    #[test]
    fn names_are_bytes_and_a_backslash_takes_the_meaning_away() {
        let r = rules(&[("/a\\*b", Access::Hide), ("/x?y", Access::Deny)]);
        assert_eq!(r.walk(Path::new("/a*b")).0, Some(Access::Hide));
        assert_eq!(r.walk(Path::new("/aab")).0, None);
        assert_eq!(r.walk(Path::new(OsStr::from_bytes(b"/x\xffy"))).0, Some(Access::Deny));
        let odd = Path::new(OsStr::from_bytes(b"/o\xff[1]"));
        let r = Rules::new(vec![Rule { pattern: Pattern::literal(odd), access: Access::Hide }]);
        assert_eq!(r.walk(odd).0, Some(Access::Hide));
        assert_eq!(Pattern::literal(odd).path().as_deref(), Some(odd));
    }

    #[test]
    fn rules_that_are_dead_cost_nothing_and_equal_spots_are_equal() {
        let r = rules(&[("/h/.ssh", Access::Hide), ("/h/p/**/k", Access::Hide)]);
        assert_eq!(r.walk(Path::new("/h/q")).1, None);
        let (a, b) = (r.walk(Path::new("/h/p/a")).1, r.walk(Path::new("/h/p/b/c")).1);
        assert!(a.is_some() && a == b && a != r.walk(Path::new("/h")).1);
    }

    #[test]
    fn what_is_no_pattern_is_told() {
        for bad in ["a/../b", "a[", "{a/b}", "a{b"] {
            assert!(Pattern::check(bad).is_err(), "{bad}");
        }
        Pattern::check("a/**/**/b").unwrap();
    }

    #[test]
    fn a_pattern_moves_to_the_real_place_of_its_directory() {
        let p = Pattern::new(Path::new("/h"), ".c/*/x").unwrap();
        let (prefix, n) = p.prefix();
        assert_eq!((prefix.as_path(), n, p.path()), (Path::new("/h/.c"), 2, None));
        let r = Rules::new(vec![Rule { pattern: p.rebased(n, Path::new("/d")), access: Access::Hide }]);
        assert_eq!(r.walk(Path::new("/d/1/x")).0, Some(Access::Hide));
    }
}
