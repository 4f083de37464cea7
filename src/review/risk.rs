//! What of a change set a person should look at first, and what they need not look at: one table of rules.
//!
//! A rule of [`RISKS`] always wins over noise. What counts as ignored is taken from the `.gitignore` files of the
//! *real* tree: a session cannot hide its changes by writing one. Build output (noise) that is only deleted or only
//! became executable is not held to be risky; that is what builds do.

use super::objects::Object;
use super::paths::ancestors;
use super::settle::Settled;
use super::{RootDirs, in_parts, root_of};
use crate::base::{Error, ErrorKind, Kind, RelPath, Result, What};
use globset::{Glob, GlobBuilder, GlobSet, GlobSetBuilder};
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::os::fd::AsFd;

/// Path patterns of what runs on the host, or decides what runs, without anybody starting it by name. A pattern holds
/// at any depth and for everything beneath what it names.
const RISKS: &[(&[&str], &str)] = &[
    (&[".sbx-fuse.toml"], "says what commands in a sandbox may do here"),
    (&[".git/hooks"], "git runs hooks on the host"),
    (
        &[".git/config", ".git/config.worktree", ".git/modules/**/config", ".gitconfig", ".config/git"],
        "git configuration can name programs that git runs",
    ),
    (
        &[".git/info/attributes", ".gitattributes", ".gitmodules"],
        "can make git run filters or fetch elsewhere",
    ),
    (
        &[".envrc", ".direnvrc", ".env", ".mise.toml", ".tool-versions"],
        "is loaded when a shell enters the directory",
    ),
    (
        &[
            ".bashrc",
            ".bash_profile",
            ".bash_login",
            ".bash_logout",
            ".bash_aliases",
            ".profile",
            ".zshrc",
            ".zshenv",
            ".zprofile",
            ".zlogin",
            ".config/fish",
            ".inputrc",
            ".xprofile",
            ".xinitrc",
            ".xsession",
        ],
        "is run when a shell or a desktop session starts",
    ),
    (
        &[".config/autostart", ".config/systemd", ".local/share/systemd", ".pam_environment", "crontab"],
        "is started by the system without being asked",
    ),
    (
        &[".ssh", ".gnupg", ".aws", ".netrc", ".npmrc", ".pypirc", ".docker/config.json", ".kube"],
        "holds or directs credentials",
    ),
    (
        &[
            ".github/workflows",
            ".github/actions",
            ".gitlab-ci.yml",
            ".circleci",
            ".travis.yml",
            "azure-pipelines.yml",
            "Jenkinsfile",
            ".drone.yml",
            ".woodpecker",
            ".woodpecker.yml",
            "bitbucket-pipelines.yml",
            ".buildkite",
        ],
        "continuous integration runs it, often with secrets",
    ),
    (
        &[
            ".vscode/tasks.json",
            ".vscode/launch.json",
            ".vscode/settings.json",
            ".vscode/extensions.json",
            ".idea",
            ".exrc",
            ".nvim.lua",
            ".nvimrc",
            ".vimrc",
            ".dir-locals.el",
            ".editorconfig",
            ".devcontainer",
            "*.code-workspace",
        ],
        "an editor may run what it says",
    ),
    (
        &[
            "package.json",
            ".pnpmfile.cjs",
            ".yarnrc",
            ".yarnrc.yml",
            "build.rs",
            ".cargo/config",
            ".cargo/config.toml",
            "rust-toolchain",
            "rust-toolchain.toml",
            "Makefile",
            "makefile",
            "GNUmakefile",
            "*.mk",
            "CMakeLists.txt",
            "justfile",
            "Justfile",
            "Taskfile.yml",
            "setup.py",
            "conftest.py",
            "*.pth",
            "sitecustomize.py",
            "Rakefile",
            "build.gradle",
            "build.gradle.kts",
            "settings.gradle",
            "gradlew",
            "pom.xml",
            "meson.build",
            "Dockerfile",
            "docker-compose.yml",
            "compose.yaml",
            ".pre-commit-config.yaml",
            ".husky",
            "lefthook.yml",
            "flake.nix",
        ],
        "a build tool or package manager runs what it says",
    ),
];

/// Directories and files that tools make anew.
const NOISE: &[&str] = &[
    "target/debug",
    "target/release",
    "target/.rustc_info.json",
    "target/CACHEDIR.TAG",
    "target/tmp",
    "target/doc",
    "target/package",
    "node_modules",
    "__pycache__",
    "*.pyc",
    ".pytest_cache",
    ".mypy_cache",
    ".ruff_cache",
    ".tox",
    ".cache",
    ".gradle",
    ".next",
    ".nuxt",
    ".parcel-cache",
    ".turbo",
    ".npm",
    ".ccache",
    ".sccache",
    ".DS_Store",
];

/// How many real objects beneath a moved directory are looked at for a name that is risky at its new place.
const LOOK_BENEATH: usize = 20_000;

/// What a change is to the one who reviews it; in the order they are shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Class {
    /// Why it could do harm, most serious first; never empty.
    Risk(Vec<String>),
    /// Anything else.
    Plain,
    /// Build output, caches, ignored files: the group it belongs to, as a path or a pattern.
    Noise(String),
}

impl Class {
    /// 0 for what comes first.
    pub fn rank(&self) -> u8 {
        match self {
            Class::Risk(_) => 0,
            Class::Plain => 1,
            Class::Noise(_) => 2,
        }
    }

    /// Why it is risky; empty when it is not.
    pub fn reasons(&self) -> &[String] {
        match self {
            Class::Risk(reasons) => reasons,
            _ => &[],
        }
    }
}

struct Rule {
    glob: Glob,
    shown: String,
    why: String,
}

/// The table of rules: ours, and those of the user's configuration.
pub struct Rules {
    risks: Table,
    noise: Table,
}

/// Rules of one sort, the first that matches wins; compiled to one automaton, as there may be many changes.
struct Table {
    rules: Vec<Rule>,
    set: GlobSet,
}

impl Table {
    fn new(rules: Vec<Rule>) -> Result<Table> {
        let mut builder = GlobSetBuilder::new();
        for rule in &rules {
            builder.add(rule.glob.clone());
        }
        let set =
            builder.build().map_err(|e| Error::failure(format!("cannot use the rules of risk: {e}")))?;
        Ok(Table { rules, set })
    }

    fn find(&self, path: &RelPath) -> Option<&Rule> {
        self.set.matches(path.as_path()).into_iter().min().and_then(|i| self.rules.get(i))
    }
}

#[derive(Deserialize)]
struct Config {
    #[serde(default)]
    risk: Vec<Added>,
    #[serde(default)]
    noise: Vec<Added>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Added {
    pattern: toml::Spanned<String>,
    #[serde(default)]
    why: Option<String>,
}

impl Rules {
    /// The table without a configuration.
    ///
    /// # Errors
    /// When a pattern of ours is no pattern, which a test excludes.
    pub fn builtin() -> Result<Rules> {
        Rules::new(Vec::new(), Vec::new())
    }

    /// Ours after the given ones.
    fn new(mut risks: Vec<Rule>, mut noise: Vec<Rule>) -> Result<Rules> {
        let failed = |e: globset::Error| Error::failure(e.to_string());
        for (patterns, why) in RISKS {
            for pattern in *patterns {
                risks.push(rule(pattern, why).map_err(failed)?);
            }
        }
        for pattern in NOISE {
            noise.push(rule(pattern, "").map_err(failed)?);
        }
        Ok(Rules { risks: Table::new(risks)?, noise: Table::new(noise)? })
    }

    /// The table with the `[[risk]]` and `[[noise]]` entries of a configuration file before ours. `name` is the file's,
    /// for messages.
    ///
    /// # Errors
    /// Kind `Usage`, naming the line, when the text is not TOML, an entry has no `pattern` or a key unknown to us, or a
    /// pattern is none.
    pub fn with_config(text: &str, name: &str) -> Result<Rules> {
        let wrong = |at: usize, what: &str| {
            let line = text.get(..at).unwrap_or(text).matches('\n').count() + 1;
            Error::new(ErrorKind::Usage, format!("{name}, line {line}: {what}"))
        };
        let config: Config =
            toml::from_str(text).map_err(|e| wrong(e.span().map_or(0, |s| s.start), e.message().trim()))?;
        let made = |entries: &[Added], default: &str| -> Result<Vec<Rule>> {
            let one = |a: &Added| {
                let why = a.why.as_deref().unwrap_or(default);
                rule(a.pattern.get_ref(), why).map_err(|e| wrong(a.pattern.span().start, &e.to_string()))
            };
            entries.iter().map(one).collect()
        };
        Rules::new(made(&config.risk, "your configuration names it")?, made(&config.noise, "")?)
    }

    fn named(&self, path: &RelPath, out: &mut Vec<String>) {
        // What git puts into a new repository; git runs no hook of such a name.
        if path.as_bytes().ends_with(b".sample") {
            return;
        }
        if let Some(rule) = self.risks.find(path).filter(|r| !out.contains(&r.why)) {
            out.push(rule.why.clone());
        }
    }

    fn is_named(&self, path: &RelPath) -> bool {
        self.risks.set.is_match(path.as_path())
    }

    /// The topmost part of `path` that a noise rule names.
    fn noise_group(&self, path: &RelPath) -> Option<String> {
        let mut at = RelPath::root();
        let depth = path.components().count();
        for (i, name) in path.components().enumerate() {
            at = at.join(name);
            if let Some(rule) = self.noise.find(&at) {
                let is_file = i + 1 == depth && rule.shown.contains('*');
                return Some(if is_file { rule.shown.clone() } else { at.to_string() });
            }
        }
        None
    }
}

/// A pattern holds at any depth, unless it begins with a slash, and for all beneath what it names.
fn rule(pattern: &str, why: &str) -> std::result::Result<Rule, globset::Error> {
    let bare = pattern.trim_end_matches('/');
    let whole = match bare.strip_prefix('/') {
        Some(from_root) => format!("{{{from_root},{from_root}/**}}"),
        None => format!("{{{bare},{bare}/**,**/{bare},**/{bare}/**}}"),
    };
    // Alone first: a mistake is then told in the words the user wrote.
    GlobBuilder::new(bare).build()?;
    let glob = GlobBuilder::new(&whole).literal_separator(true).backslash_escape(true).build()?;
    Ok(Rule { glob, shown: pattern.to_owned(), why: why.to_owned() })
}

/// The class of each change of `set`, in its order.
///
/// # Errors
/// When a symlink or a directory of the real tree cannot be read.
pub fn classify(rules: &Rules, roots: &[RootDirs], set: &[Settled]) -> Result<Vec<Class>> {
    in_parts(set, |part| classify_part(rules, roots, part))
}

fn classify_part(rules: &Rules, roots: &[RootDirs], set: &[Settled]) -> Result<Vec<Class>> {
    let mut ignored: BTreeMap<u16, Ignored<'_>> = BTreeMap::new();
    let mut classes = Vec::with_capacity(set.len());
    for s in set {
        let c = &s.change;
        let dirs = root_of(roots, c.root)?;
        let ignored = ignored.entry(c.root).or_insert_with(|| Ignored { dirs, known: BTreeMap::new() });
        let mut why = Vec::new();
        for path in std::iter::once(&c.path).chain(&c.from) {
            rules.named(path, &mut why);
        }
        if c.kind == Kind::Dir && c.what == What::Renamed {
            moved_names(rules, dirs, s, &mut why)?;
        }
        always(dirs, s, &mut why)?;
        let group = match why.is_empty() {
            true => match rules.noise_group(&c.path) {
                Some(group) => Some(group),
                None => ignored.group(&c.path, c.kind == Kind::Dir)?,
            },
            false => None,
        };
        let class = match group {
            Some(group) => Class::Noise(group),
            None => {
                unless_noise(s, &mut why);
                if why.is_empty() { Class::Plain } else { Class::Risk(why) }
            }
        };
        classes.push(class);
    }
    Ok(classes)
}

/// A directory that was moved carries files to names where they run.
fn moved_names(rules: &Rules, dirs: &RootDirs, s: &Settled, why: &mut Vec<String>) -> Result<()> {
    let c = &s.change;
    let Some(from) = &c.from else { return Ok(()) };
    let mut todo = vec![from.clone()];
    let mut seen = 0;
    while let Some(dir) = todo.pop() {
        let read = |e| Error::on_path("read", dir.as_bytes(), e);
        for name in super::objects::names(dirs.real.as_fd(), &dir).map_err(read)? {
            let child = dir.join(&name);
            let Some(rest) = child.strip_prefix(from) else { continue };
            seen += 1;
            if seen > LOOK_BENEATH {
                return Ok(());
            }
            if rules.is_named(&c.path.join(rest.as_bytes())) {
                why.push(format!("it brings {rest} there, which the host may run"));
                return Ok(());
            }
            let is_dir = super::objects::stat(dirs.real.as_fd(), &child).map_err(read)?;
            if is_dir.is_some_and(|a| a.kind == Kind::Dir) {
                todo.push(child);
            }
        }
    }
    Ok(())
}

/// What is risky anywhere.
fn always(dirs: &RootDirs, s: &Settled, why: &mut Vec<String>) -> Result<()> {
    let Some(upper) = s.upper.filter(|_| s.change.what != What::Deleted) else { return Ok(()) };
    let moved = matches!(s.change.what, What::Renamed | What::Typed);
    if s.change.path.file_name() == Some(b".git") && (upper.kind != Kind::Dir || moved) {
        why.push("tells git where its repository is".into());
    }
    let had = s.real.map_or(0, |a| a.perm);
    if upper.kind == Kind::File && upper.perm & 0o6000 != 0 && (s.content || upper.perm & 0o6000 & !had != 0)
    {
        why.push("runs with the rights of its owner or group (set-uid or set-gid)".into());
    }
    if matches!(upper.kind, Kind::Char | Kind::Block) {
        why.push("is a device".into());
    }
    // Whatever these are: nothing tells where, but a walk of everything.
    let others = s.real.filter(|_| s.same_file).map_or(0, |real| real.nlink.saturating_sub(1));
    if others > 0 {
        let names = if others == 1 { "name" } else { "names" };
        why.push(format!("changes the file under {others} other {names}, too"));
    }
    if upper.kind == Kind::Symlink && s.content {
        let path = &s.change.path;
        let read = |e| Error::on_path("read", path.as_bytes(), e);
        let target = match Object::find(dirs.upper.as_fd(), path).map_err(read)? {
            Some(object) if object.attr.kind == Kind::Symlink => object.target().map_err(read)?,
            _ => Vec::new(),
        };
        if leads_out(path, &target) {
            why.push("is a symlink that points out of the root".into());
        }
    }
    Ok(())
}

/// What is risky where it is not build output.
fn unless_noise(s: &Settled, why: &mut Vec<String>) {
    let c = &s.change;
    if c.what == What::Deleted {
        return why.push("is deleted".into());
    }
    let executable = |perm: u32| perm & 0o111 != 0;
    if let Some(upper) = s.upper.filter(|a| a.kind == Kind::File && executable(a.perm)) {
        let was = s.real.is_some_and(|r| r.kind == Kind::File && executable(r.perm));
        if !was {
            why.push(if c.what == What::Added { "is a new executable" } else { "became executable" }.into());
        } else if s.content && c.what == What::Modified && upper.size > 0 {
            why.push("is an executable with other content".into());
        }
    }
}

/// Whether a link at `path` leads out of the root by its text alone.
fn leads_out(path: &RelPath, target: &[u8]) -> bool {
    if target.starts_with(b"/") {
        return true;
    }
    let mut depth = path.components().count() as i64 - 1;
    for part in target.split(|&b| b == b'/') {
        match part {
            b"" | b"." => {}
            b".." => depth -= 1,
            _ => depth += 1,
        }
        if depth < 0 {
            return true;
        }
    }
    false
}

/// The `.gitignore` files of a real tree, read as they are needed.
struct Ignored<'a> {
    dirs: &'a RootDirs,
    /// Per directory: its rules, and the group that it, being ignored itself, gives to all beneath.
    known: BTreeMap<RelPath, (Option<Gitignore>, Option<String>)>,
}

/// A longer `.gitignore` is not read.
const IGNORE_MAX: u64 = 1 << 20;

impl Ignored<'_> {
    /// The group of `path`: the topmost ignored directory above it, or the pattern that ignores the file.
    fn group(&mut self, path: &RelPath, is_dir: bool) -> Result<Option<String>> {
        let Some(parent) = path.parent() else { return Ok(None) };
        self.learn(&parent)?;
        if let Some((_, Some(group))) = self.known.get(&parent) {
            return Ok(Some(group.clone()));
        }
        Ok(self.matched(path, is_dir))
    }

    fn learn(&mut self, dir: &RelPath) -> Result<()> {
        let mut above: Vec<RelPath> = ancestors(dir).collect();
        above.reverse();
        for at in above.into_iter().chain([dir.clone()]) {
            if self.known.contains_key(&at) {
                continue;
            }
            let inherited = at.parent().and_then(|p| self.known.get(&p)).and_then(|(_, group)| group.clone());
            let group = inherited.or_else(|| if at.is_root() { None } else { self.matched(&at, true) });
            let rules = if group.is_none() { self.read(&at)? } else { None };
            self.known.insert(at, (rules, group));
        }
        Ok(())
    }

    /// What the files above `path` say of it, the nearest first.
    fn matched(&self, path: &RelPath, is_dir: bool) -> Option<String> {
        for dir in ancestors(path) {
            let Some((Some(rules), _)) = self.known.get(&dir) else { continue };
            let Some(rest) = path.strip_prefix(&dir) else { continue };
            match rules.matched(rest.as_path(), is_dir) {
                ignore::Match::Ignore(_) if is_dir => return Some(path.to_string()),
                ignore::Match::Ignore(glob) => return Some(crate::base::quote(glob.original().as_bytes())),
                ignore::Match::Whitelist(_) => return None,
                ignore::Match::None => {}
            }
        }
        None
    }

    fn read(&self, dir: &RelPath) -> Result<Option<Gitignore>> {
        let mut builder = GitignoreBuilder::new(".");
        let mut any = false;
        let names: &[&[u8]] =
            if dir.is_root() { &[b".git/info/exclude", b".gitignore"] } else { &[b".gitignore"] };
        for name in names {
            let path = dir.join(name);
            let found = Object::find(self.dirs.real.as_fd(), &path);
            let Some(object) = found.map_err(|e| Error::on_path("read", path.as_bytes(), e))? else {
                continue;
            };
            if object.attr.kind != Kind::File || object.attr.size > IGNORE_MAX {
                continue;
            }
            // One that may not be read ignores nothing: everything is then shown.
            let Ok(text) = super::diff::read_all(&object) else { continue };
            for line in text.split(|&b| b == b'\n').filter_map(|l| std::str::from_utf8(l).ok()) {
                // A line that is no pattern ignores nothing.
                any |= builder.add_line(None, line.trim_end_matches('\r')).is_ok();
            }
        }
        Ok(if any { builder.build().ok() } else { None })
    }
}

/// Indices of `classes` in the order of showing: risky, then plain, then noise by group; else as they were.
pub fn order(classes: &[Class]) -> Vec<usize> {
    let mut all: Vec<usize> = (0..classes.len()).collect();
    let group = |i: usize| match classes.get(i) {
        Some(Class::Noise(group)) => group.as_str(),
        _ => "",
    };
    let rank = |i: usize| classes.get(i).map_or(1, Class::rank);
    all.sort_by(|&a, &b| (rank(a), group(a)).cmp(&(rank(b), group(b))));
    all
}

/// `set` without its noise, but for what other changes need: directories above them, and moves.
pub fn without_noise(set: Vec<Settled>, classes: &[Class]) -> Vec<Settled> {
    let mut needed = std::collections::BTreeSet::new();
    for (s, class) in set.iter().zip(classes) {
        if !matches!(class, Class::Noise(_)) {
            needed.extend(ancestors(&s.change.path).map(|dir| (s.change.root, dir)));
        }
    }
    let stays = |s: &Settled, class: &Class| {
        !matches!(class, Class::Noise(_))
            || s.change.what == What::Renamed
            || needed.contains(&(s.change.root, s.change.path.clone()))
    };
    set.into_iter().zip(classes).filter(|(s, class)| stays(s, class)).map(|(s, _)| s).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rel(path: &str) -> RelPath {
        RelPath::new(path.as_bytes()).unwrap()
    }

    #[test]
    fn the_table_names_what_runs_at_any_depth() {
        let rules = Rules::builtin().unwrap();
        for path in [
            ".git/hooks/pre-commit",
            "sub/.git/config",
            "a/b/.envrc",
            ".bashrc",
            ".github/workflows/ci.yml",
            ".vscode/tasks.json",
            "package.json",
            "x/build.rs",
            "Makefile",
            "a/rules.mk",
            ".config/fish/config.fish",
            "a/.sbx-fuse.toml",
        ] {
            assert!(rules.is_named(&rel(path)), "{path}");
        }
        for path in ["src/main.rs", "hooks/pre-commit", "Makefile.txt", "git/config", "my.envrc"] {
            assert!(!rules.is_named(&rel(path)), "{path}");
        }
        assert_eq!(rules.noise_group(&rel("a/node_modules/x/y.js")).as_deref(), Some("a/node_modules"));
        assert_eq!(rules.noise_group(&rel("a/b.pyc")).as_deref(), Some("*.pyc"));
        assert_eq!(rules.noise_group(&rel("src/target.rs")), None);
    }

    #[test]
    fn a_configuration_adds_rules_and_its_mistakes_have_a_line() {
        let rules =
            Rules::with_config("[[risk]]\npattern = \"*.lua\"\nwhy = \"our game runs it\"\n", "c").unwrap();
        let mut why = Vec::new();
        rules.named(&rel("mods/x.lua"), &mut why);
        assert_eq!(why, ["our game runs it"]);
        for (text, line) in [
            ("[[risk]]\npattern = \"[\"\n", "c, line 2"),
            ("\n[[noise]]\nwhy = \"x\"\n", "c, line 2"),
            ("[[risk]]\npattern = \"a\"\nwhat = 1\n", "c, line 3"),
            ("[[risk]\n", "c, line 1"),
        ] {
            let error = Rules::with_config(text, "c").err().unwrap();
            assert!(error.message.starts_with(line), "{error}");
        }
    }

    #[test]
    fn a_symlink_that_leads_out_is_seen() {
        assert!(leads_out(&rel("a"), b"/etc/passwd"));
        assert!(leads_out(&rel("d/a"), b"../../x"));
        assert!(!leads_out(&rel("d/a"), b"../x"));
        assert!(leads_out(&rel("a"), b"b/../../x/y"));
    }
}
