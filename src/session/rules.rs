//! The rules of a session: what the defaults, the configuration and the command line hide, deny and keep from being
//! written, as patterns of real paths.

use super::config::{Config, PolicyConfig};
use crate::base::{Access, Error, PRIVATE_TEMPS, Pattern, Result, Rule, Rules, quote};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// What is hidden by default, in the home directory: keys, credentials, keyrings, and what browsers know.
const SECRETS: [&str; 39] = [
    ".ssh",
    ".gnupg",
    ".aws",
    ".azure",
    ".kube",
    ".docker",
    ".config/gh",
    ".config/gcloud",
    ".config/op",
    ".netrc",
    ".git-credentials",
    ".config/git/credentials",
    ".npmrc",
    ".pypirc",
    ".cargo/credentials",
    ".cargo/credentials.toml",
    ".pgpass",
    ".password-store",
    ".local/share/keyrings",
    ".local/share/kwalletd",
    ".mozilla",
    ".thunderbird",
    ".config/google-chrome",
    ".config/chromium",
    ".config/BraveSoftware",
    ".config/microsoft-edge",
    ".config/vivaldi",
    ".config/opera",
    "snap/firefox",
    "snap/chromium",
    ".config/sbx-fuse",
    // Agents for keys, and machines that run commands: by their sockets.
    ".1password",
    ".bitwarden-ssh-agent.sock",
    ".colima",
    ".lima",
    ".rd",
    ".orbstack",
    ".screen",
    ".local/share/containers/podman/machine",
];

/// Hidden as well unless the command may draw on the screen.
const DISPLAY_SECRETS: [&str; 2] = [".Xauthority", ".ICEauthority"];

/// What rules are made of.
#[derive(Clone, Copy, Debug)]
pub struct Sources<'a> {
    /// The configuration that holds for the session.
    pub config: &'a Config,
    /// The real directories of its roots.
    pub roots: &'a [&'a Path],
    /// The person's home.
    pub home: Option<&'a Path>,
    /// Whether the command may draw on the screen.
    pub gui: bool,
}

impl Sources<'_> {
    /// The rules.
    ///
    /// # Errors
    /// `Usage` for one that cannot be understood or hides a root that was asked for.
    pub fn rules(&self) -> Result<Rules> {
        let mut rules = Vec::new();
        let policy = &self.config.policy;
        let shown = self.patterns(&policy.show, self.roots)?;
        let shown: Vec<PathBuf> = shown.iter().filter_map(Pattern::path).collect();
        let mut useful = vec![false; shown.len()];
        let mut hide = self.defaults();
        hide.extend(self.kept_from(&policy.hide, self.roots)?);
        for pattern in hide {
            let path = pattern.path();
            let by = shown.iter().position(|s| path.as_ref().is_some_and(|p| p.starts_with(s)));
            match by {
                Some(i) => useful[i] = true,
                None => rules.push(Rule { pattern, access: Access::Hide }),
            }
        }
        if let Some(i) = useful.iter().position(|u| !u) {
            let what = quote(shown[i].as_os_str().as_bytes());
            let hint = if PRIVATE_TEMPS.iter().any(|t| shown[i].starts_with(t)) {
                "/tmp and /var/tmp are the sandbox's own; a directory in them is seen as a root: --root DIR"
            } else {
                "name what is hidden, e.g. --show ~/.aws; README lists it"
            };
            return Err(
                Error::usage(format!("nothing is hidden at {what} that --show could show")).hint(hint)
            );
        }
        self.add(&mut rules, policy, self.roots)?;
        for (root, project) in &self.config.projects {
            let root = [root.as_path()];
            for pattern in self.kept_from(&project.hide, &root)? {
                rules.push(Rule { pattern, access: Access::Hide });
            }
            self.add(&mut rules, project, &root)?;
        }
        self.check_roots(&rules)?;
        Ok(Rules::new(rules))
    }

    fn add(&self, rules: &mut Vec<Rule>, policy: &PolicyConfig, roots: &[&Path]) -> Result<()> {
        for (texts, access) in [(&policy.deny, Access::Deny), (&policy.read_only, Access::ReadOnly)] {
            rules.extend(self.kept_from(texts, roots)?.into_iter().map(|pattern| Rule { pattern, access }));
        }
        Ok(())
    }

    /// What is hidden without having been named. What a root lies in, or is, was asked for.
    fn defaults(&self) -> Vec<Pattern> {
        let Some(home) = self.home.and_then(|h| h.canonicalize().ok()) else {
            return Vec::new(); // no home, no secrets in it
        };
        let display = DISPLAY_SECRETS.iter().filter(|_| !self.gui);
        let all = SECRETS.iter().chain(display).flat_map(|s| real(Pattern::literal(&home.join(s))));
        all.filter(|p| !p.path().is_some_and(|p| self.roots.iter().any(|r| r.starts_with(&p)))).collect()
    }

    /// The patterns of `texts`: from `/`, from the home directory (`~/`), or from each of `roots`.
    fn patterns(&self, texts: &[String], roots: &[&Path]) -> Result<Vec<Pattern>> {
        let mut all = Vec::new();
        for text in texts {
            let new = |base: &Path, rest: &str| Pattern::new(base, rest).map_err(no_pattern);
            if text.starts_with('/') {
                all.extend(real(new(Path::new("/"), text)?));
            } else if text == "~" || text.starts_with("~/") {
                let home = self.home.ok_or_else(|| {
                    Error::usage(format!("'{text}' means the home directory, and HOME is not set"))
                        .hint("set HOME, or write the whole path")
                })?;
                all.extend(real(new(home, &text[1..])?));
            } else {
                for root in roots {
                    all.extend(real(new(root, text)?));
                }
            }
        }
        Ok(all)
    }

    /// As [`Sources::patterns`], of rules that keep something from commands.
    fn kept_from(&self, texts: &[String], roots: &[&Path]) -> Result<Vec<Pattern>> {
        let all = self.patterns(texts, roots)?;
        if all.iter().any(|p| p.path().as_deref() == Some(Path::new("/"))) {
            return Err(Error::usage("/ as a whole cannot be hidden, denied or made read-only")
                .hint("name what lies in it; outside of the roots nothing can be written anyway"));
        }
        Ok(all)
    }

    fn check_roots(&self, rules: &[Rule]) -> Result<()> {
        for rule in rules.iter().filter(|r| r.access > Access::ReadOnly) {
            if let Some(root) = rule.pattern.path().filter(|p| self.roots.contains(&p.as_path())) {
                let what = quote(root.as_os_str().as_bytes());
                return Err(Error::usage(format!("{what} is a root and cannot be hidden or denied"))
                    .hint("leave it out of the rules, or of --root"));
            }
        }
        Ok(())
    }
}

fn no_pattern(why: String) -> Error {
    Error::usage(why).hint("to mean one of *?[]{} itself, put a backslash before it; ** stands for any depth")
}

/// The pattern with what of its directories exists made canonical: rules are about real paths. A name that is a symlink
/// is meant with what it leads to.
fn real(pattern: Pattern) -> Vec<Pattern> {
    let (prefix, n) = pattern.prefix();
    let (dir, last) = match (pattern.path(), prefix.parent(), prefix.file_name()) {
        (Some(_), Some(parent), Some(name)) => (parent.to_owned(), Some(name.to_owned())),
        _ => (prefix.clone(), None),
    };
    let place = canonical(&dir);
    let Some(name) = last else {
        return vec![pattern.rebased(n, &place)];
    };
    let here = place.join(name);
    let target = here.canonicalize().ok().filter(|t| *t != here);
    std::iter::once(here).chain(target).map(|p| Pattern::literal(&p)).collect()
}

/// `path` with what of it exists made canonical.
fn canonical(path: &Path) -> PathBuf {
    for dir in path.ancestors() {
        if let (Ok(real), Ok(rest)) = (dir.canonicalize(), path.strip_prefix(dir)) {
            return if rest == Path::new("") { real } else { real.join(rest) };
        }
    }
    path.to_owned()
}

/// `text` as it was given in the directory `cwd`: a relative path begins there, a pattern for any depth (`**/`) in each
/// root.
///
/// # Errors
/// `Usage` for what is no pattern, or no UTF-8.
pub fn from_command_line(text: &OsStr, cwd: &Path) -> Result<String> {
    let shown = quote(text.as_bytes());
    let utf8 = |bytes: &OsStr| {
        bytes.to_str().map(str::to_owned).ok_or_else(|| {
            Error::usage(format!("{shown} is not UTF-8")).hint("write a ? for each byte that is not")
        })
    };
    let text = utf8(text)?;
    if text.is_empty() {
        return Err(Error::usage("an empty text names no path")
            .hint("name a path, or a pattern of paths such as '**/.env'"));
    }
    if text.starts_with('/') || text == "~" || text.starts_with("~/") || text.starts_with("**/") {
        Pattern::check(&text).map_err(no_pattern)?;
        return Ok(text);
    }
    // The shell's own directory has no symlink in it, so that a way up is a way back.
    let (mut base, mut rest) = (cwd, text.as_str());
    loop {
        if let Some(up) = rest.strip_prefix("..").filter(|r| r.is_empty() || r.starts_with('/')) {
            (base, rest) = (base.parent().unwrap_or(base), up.trim_start_matches('/'));
        } else if let Some(here) = rest.strip_prefix("./") {
            rest = here.trim_start_matches('/');
        } else {
            break;
        }
    }
    Pattern::check(rest).map_err(no_pattern)?;
    let mut escaped = String::new();
    for c in utf8(base.as_os_str())?.chars() {
        if "*?[]{}\\".contains(c) {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    Ok(format!("{}/{rest}", escaped.trim_end_matches('/')))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(config: &str, home: &Path, roots: &[&Path], path: &Path) -> Option<Access> {
        let config = super::super::config::tests::parsed(config);
        let rules = Sources { config: &config, roots, home: Some(home), gui: false }.rules().unwrap();
        rules.walk(path).0
    }

    #[test]
    fn rules_begin_at_the_root_the_home_or_each_root() {
        let tmp = tempfile::tempdir().unwrap();
        let home = tmp.path().canonicalize().unwrap();
        let (a, b) = (home.join("a"), home.join("b"));
        std::fs::create_dir_all(&a).unwrap();
        std::fs::create_dir_all(&b).unwrap();
        let text = "[policy]\nhide = ['x', '~/y', '/z', '**/.env']\nread_only = ['r']\ndeny = ['d*']";
        let said = |path: &Path| access(text, &home, &[&a, &b], path);
        for path in [a.join("x"), b.join("x"), home.join("y"), "/z".into(), b.join("c/.env")] {
            assert_eq!(said(&path), Some(Access::Hide), "{path:?}");
        }
        assert_eq!(said(&a.join("r")), Some(Access::ReadOnly));
        assert_eq!(said(&b.join("dd")), Some(Access::Deny));
        assert_eq!((said(&home.join("x")), said(&home.join("c/.env"))), (None, None));
        assert_eq!(said(&home.join(".ssh/id")), Some(Access::Hide));
    }

    #[test]
    fn symlinks_are_followed_and_hidden_themselves() {
        let tmp = tempfile::tempdir().unwrap();
        let home = tmp.path().canonicalize().unwrap();
        std::fs::create_dir_all(home.join("data/keys")).unwrap();
        std::os::unix::fs::symlink("data/keys", home.join(".ssh")).unwrap();
        std::os::unix::fs::symlink("data", home.join("link")).unwrap();
        let said = |path: &str| access("[policy]\nhide = ['~/link/q']", &home, &[], &home.join(path));
        assert_eq!(said(".ssh"), Some(Access::Hide));
        assert_eq!(said("data/keys/id"), Some(Access::Hide));
        assert_eq!(said("data/q"), Some(Access::Hide));
        assert_eq!(said("data"), None);
    }

    #[test]
    fn showing_and_roots_take_defaults_away() {
        let tmp = tempfile::tempdir().unwrap();
        let home = tmp.path().canonicalize().unwrap();
        let root = home.join(".aws/project");
        std::fs::create_dir_all(&root).unwrap();
        assert_eq!(access("", &home, &[&root], &root.join("f")), None);
        assert_eq!(access("[policy]\nshow = ['~/.ssh']", &home, &[], &home.join(".ssh")), None);
        let config =
            super::super::config::tests::parsed("[policy]\nshow = ['~/nothing']\nhide = ['~/.aws/project']");
        let sources = Sources { config: &config, roots: &[&root], home: Some(&home), gui: false };
        assert!(sources.rules().unwrap_err().message.contains("--show"));
        let config = super::super::config::tests::parsed("[policy]\nhide = ['~/.aws/project']");
        assert!(Sources { config: &config, ..sources }.rules().unwrap_err().message.contains("is a root"));
    }

    #[test]
    fn relative_paths_of_the_command_line_begin_where_it_was_given() {
        let given = |t: &str| from_command_line(OsStr::new(t), Path::new("/a*b")).unwrap();
        assert_eq!(given("x/*.key"), "/a\\*b/x/*.key");
        assert_eq!(
            (given("../x"), given("./../../.."), given("..x")),
            ("/x".into(), "/".into(), "/a\\*b/..x".into())
        );
        assert_eq!((given("**/x"), given("~/x"), given("/x")), ("**/x".into(), "~/x".into(), "/x".into()));
        assert!(from_command_line(OsStr::new("a["), Path::new("/")).is_err());
    }
}
