//! The configuration: what a person set in `~/.config/sbx-fuse/config.toml`, and how the projects' own `.sbx-fuse.toml`
//! tightens it.
//!
//! ```toml
//! [quota]                       # of every new session
//! bytes = "10G"                 # K, M, G, T are powers of 1024
//! inodes = 100000
//!
//! [limits]                      # of every command, with all that it starts
//! memory = "4G"
//! cpus = 1.5                    # processors; needs a control group
//! pids = 512
//!
//! [policy]                      # paths and patterns (* ? [a-z] {a,b}, ** for any depth), in each root or, with ~/ and
//!                               # /, anywhere; what a path leads to or holds is meant with it
//! hide = ["**/.env", "~/notes"] # not there (ENOENT), also what is made later
//! deny = ["secrets"]            # there, and closed (EACCES)
//! read_only = ["vendor"]        # cannot be changed (EACCES)
//! show = ["~/.aws"]             # hidden by default otherwise
//!
//! [env]
//! clear = false                 # start with an empty environment
//! keep = ["CI_TOKEN"]           # kept although it looks like a secret
//! drop = ["*_COOKIE"]
//!
//! [network]
//! forbid = false                # refuse --net
//! allow = ["crates.io:443"]     # the most that --net lets through: HOST, HOST:PORT, *.HOST, addresses
//!
//! [undo]                        # what `gc` leaves of the originals that applying replaced, in each session
//! keep = 10                     # of the newest so many applications
//! days = 30                     # and not older
//! ```

use crate::base::{Errno, Error, ErrorKind, Pattern, Result, Target, quote};
use crate::sys::content::{BY_HAND, read_file};
use serde::de::{Error as _, IgnoredAny};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The name of a project's file, at the top of a root.
pub const PROJECT_FILE: &str = ".sbx-fuse.toml";

/// A number of bytes, written as `4096`, `"10G"` or `"1.5M"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

impl std::str::FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Size, String> {
        let wrong = || format!("'{text}' is not a size; write e.g. 500M, 10G or a number of bytes");
        let upper = text.trim().to_ascii_uppercase();
        let number = upper.trim_end_matches("IB").trim_end_matches('B');
        let (number, unit) = match number.strip_suffix(['K', 'M', 'G', 'T']) {
            Some(n) => (n, 1u64 << (10 * (1 + "KMGT".find(&number[n.len()..]).unwrap_or(0)))),
            None => (number, 1),
        };
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(unit).map(Size).ok_or_else(wrong);
        }
        let part: f64 = number.parse().map_err(|_| wrong())?;
        let bytes = part * unit as f64;
        if unit > 1 && (0.0..1e18).contains(&bytes) { Ok(Size(bytes as u64)) } else { Err(wrong()) }
    }
}

impl std::fmt::Display for Size {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let units = [(1u64 << 40, "T"), (1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")];
        match units.iter().find(|(unit, _)| self.0 >= *unit) {
            Some((unit, name)) if self.0.is_multiple_of(*unit) => write!(f, "{}{name}", self.0 / unit),
            Some((unit, name)) => write!(f, "{:.1}{name}", self.0 as f64 / *unit as f64),
            None => write!(f, "{}B", self.0),
        }
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        to.serialize_u64(self.0)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Number(u64),
            Text(String),
        }
        match Form::deserialize(from)? {
            Form::Number(n) => Ok(Size(n)),
            Form::Text(text) => text.parse().map_err(D::Error::custom),
        }
    }
}

/// Time of processors, in thousandths of one, written as `2`, `1.5` or `"1.5"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cpus(pub u64);

impl Cpus {
    fn of(number: f64) -> Option<Cpus> {
        // The kernel takes no less than a hundredth (cpu.max of 1 ms in 100 ms).
        (0.01..=1e6).contains(&number).then(|| Cpus((number * 1000.0).round() as u64))
    }
}

impl std::str::FromStr for Cpus {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Cpus, String> {
        let wrong = || format!("'{text}' is not a number of processors; write e.g. 2 or 0.5");
        text.trim().parse().ok().and_then(Cpus::of).ok_or_else(wrong)
    }
}

impl std::fmt::Display for Cpus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0 as f64 / 1000.0)
    }
}

impl Serialize for Cpus {
    fn serialize<S: Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        to.serialize_f64(self.0 as f64 / 1000.0)
    }
}

impl<'de> Deserialize<'de> for Cpus {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Number(f64),
            Text(String),
        }
        match Form::deserialize(from)? {
            Form::Number(n) => n.to_string().parse().map_err(D::Error::custom),
            Form::Text(text) => text.parse().map_err(D::Error::custom),
        }
    }
}

/// How much room a session may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct QuotaConfig {
    /// Bytes on the disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<Size>,
    /// Objects on the disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inodes: Option<u64>,
}

/// What a sandbox may use of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsConfig {
    /// Bytes of memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Size>,
    /// Processors' time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<Cpus>,
    /// Processes and threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids: Option<u64>,
}

impl LimitsConfig {
    /// Less than this no program has room to start in.
    const LEAST_MEMORY: Size = Size(16 << 20);

    /// Refuses limits with which nothing can run.
    ///
    /// # Errors
    /// `Usage`.
    pub fn check(&self) -> Result<()> {
        if let Some(memory) = self.memory.filter(|m| *m < Self::LEAST_MEMORY) {
            return Err(Error::usage(format!("no program can run in {memory} of memory"))
                .hint(format!("allow {} or more: --memory, or limits.memory", Self::LEAST_MEMORY)));
        }
        if self.pids == Some(0) {
            return Err(
                Error::usage("no command can run without a process").hint("allow 1 or more: limits.pids")
            );
        }
        Ok(())
    }
}

impl std::fmt::Display for LimitsConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let all = [
            self.memory.map(|m| format!("{m} of memory")),
            self.cpus.map(|c| format!("{c} processors")),
            self.pids.map(|n| format!("{n} processes")),
        ];
        f.write_str(&all.into_iter().flatten().collect::<Vec<_>>().join(", "))
    }
}

/// Which paths a sandbox sees, and how. Each is a pattern.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PolicyConfig {
    /// Not there (`ENOENT`), also what is made later.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hide: Vec<String>,
    /// There, but neither readable nor writable (`EACCES`).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<String>,
    /// Not writable (`EACCES`).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub read_only: Vec<String>,
    /// Shown although hidden by default.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub show: Vec<String>,
}

impl PolicyConfig {
    /// Adds what `other` says.
    pub fn add(&mut self, other: PolicyConfig) {
        self.hide.extend(other.hide);
        self.deny.extend(other.deny);
        self.read_only.extend(other.read_only);
        self.show.extend(other.show);
    }
}

/// What a command inherits of our environment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EnvConfig {
    /// Nothing but what is kept.
    pub clear: bool,
    /// Names that are kept although they look like secrets.
    pub keep: Vec<String>,
    /// Patterns of further names to drop.
    pub drop: Vec<String>,
}

/// What a sandbox may reach.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NetworkConfig {
    /// `--net` is refused.
    pub forbid: bool,
    /// The most that it lets through.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow: Option<Vec<String>>,
}

/// How long what applying replaced is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UndoConfig {
    /// Of so many applications of a session.
    pub keep: Option<usize>,
    /// For so many days.
    pub days: Option<u32>,
}

/// A configuration file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// See [`QuotaConfig`].
    pub quota: QuotaConfig,
    /// See [`LimitsConfig`].
    pub limits: LimitsConfig,
    /// See [`PolicyConfig`].
    pub policy: PolicyConfig,
    /// See [`EnvConfig`].
    pub env: EnvConfig,
    /// See [`NetworkConfig`].
    pub network: NetworkConfig,
    /// See [`UndoConfig`].
    pub undo: UndoConfig,
    /// What the projects' own files add to the policy, each with its root.
    #[serde(skip)]
    pub projects: Vec<(PathBuf, PolicyConfig)>,
    /// `network.allow` of every file that has it: each must let a connection through.
    #[serde(skip)]
    pub net_lists: Vec<Vec<Target>>,
    /// Rules of the review, which reads them itself.
    risk: Option<Ignored>,
    /// As `risk`.
    noise: Option<Ignored>,
}

#[derive(Clone, Debug)]
struct Ignored;

impl<'de> Deserialize<'de> for Ignored {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        IgnoredAny::deserialize(from).map(|_| Ignored)
    }
}

impl Config {
    /// The configuration for a session over `roots`: the person's, changed by `more` (the command line), and then
    /// tightened by the file of each root.
    ///
    /// # Errors
    /// `Usage` naming file and line of a mistake, or what a project may not do.
    pub fn load(roots: &[&Path], more: impl FnOnce(&mut Config)) -> Result<Config> {
        let mut config = match user_file() {
            Some(path) => match read_config(&path)? {
                Some(text) => parse_at(&text, &path)?,
                None => Config::default(),
            },
            None => Config::default(),
        };
        more(&mut config);
        for root in roots {
            let path = root.join(PROJECT_FILE);
            if let Some(text) = read_config(&path)? {
                refuse_loosening(&text, &path)?;
                config.tighten(parse_at(&text, &path)?, root);
            }
        }
        Ok(config)
    }

    /// Takes over what is tighter in the file of the project at `root`.
    fn tighten(&mut self, project: Config, root: &Path) {
        fn least<T: Ord>(a: Option<T>, b: Option<T>) -> Option<T> {
            match (a, b) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            }
        }
        self.quota.bytes = least(self.quota.bytes, project.quota.bytes);
        self.quota.inodes = least(self.quota.inodes, project.quota.inodes);
        self.limits.memory = least(self.limits.memory, project.limits.memory);
        self.limits.cpus = least(self.limits.cpus, project.limits.cpus);
        self.limits.pids = least(self.limits.pids, project.limits.pids);
        self.projects.push((root.to_owned(), project.policy));
        self.env.clear |= project.env.clear;
        self.env.drop.extend(project.env.drop);
        self.network.forbid |= project.network.forbid;
        self.net_lists.extend(project.net_lists);
    }
}

/// `$XDG_CONFIG_HOME/sbx-fuse/config.toml`, by default below `~/.config`.
pub fn user_file() -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let config = absolute("XDG_CONFIG_HOME").or_else(|| absolute("HOME").map(|h| h.join(".config")))?;
    Some(config.join("sbx-fuse/config.toml"))
}

/// The text of a configuration file; `None` when there is none.
///
/// # Errors
/// `Usage` for what cannot be one; a file that cannot be read may hold a rule that protects.
pub fn read_config(path: &Path) -> Result<Option<String>> {
    let bytes = match read_file("read the configuration", path, BY_HAND) {
        Ok(bytes) => bytes,
        Err(e) if matches!(e.errno, Some(Errno::ENOENT | Errno::ENOTDIR)) => return Ok(None),
        Err(e) if e.hint.is_none() => return Err(e.hint("make it readable, or take it away")),
        Err(e) => return Err(e),
    };
    String::from_utf8(bytes).map(Some).map_err(|e| {
        let (shown, valid) = (quote(path.as_os_str().as_bytes()), e.utf8_error().valid_up_to());
        let line = e.as_bytes().iter().take(valid).filter(|&&b| b == b'\n').count() + 1;
        Error::usage(format!("{shown}, line {line}: not UTF-8")).hint("correct that line")
    })
}

fn parse_at(text: &str, path: &Path) -> Result<Config> {
    let shown = quote(path.as_os_str().as_bytes());
    parse(text).map_err(|(line, why)| {
        Error::new(ErrorKind::Usage, format!("{shown}, line {line}: {why}"))
            .hint("correct the line, or take the file away")
    })
}

/// Refuses a project's file that would allow more than the person does.
fn refuse_loosening(text: &str, path: &Path) -> Result<()> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Project {
        policy: Policy,
        env: Env,
        undo: Option<toml::Spanned<IgnoredAny>>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Policy {
        show: Option<toml::Spanned<IgnoredAny>>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Env {
        keep: Option<toml::Spanned<IgnoredAny>>,
    }
    // Any other mistake is told by who reads the file for what it says.
    let project = toml::from_str::<Project>(text).unwrap_or_default();
    let loosens =
        [(project.policy.show, "policy.show"), (project.env.keep, "env.keep"), (project.undo, "undo")];
    let Some((at, what)) = loosens.into_iter().find_map(|(at, what)| Some((at?, what))) else {
        return Ok(());
    };
    let (shown, line) = (quote(path.as_os_str().as_bytes()), line_of(text, at.span().start));
    Err(Error::usage(format!(
        "{shown}, line {line}: a project may not set {what}, it can only tighten what you allow"
    ))
    .hint("set it in ~/.config/sbx-fuse/config.toml, or on the command line"))
}

/// The line that holds byte `at`.
fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes()[..at.min(text.len())].iter().filter(|&&b| b == b'\n').count() + 1
}

/// The configuration, or the line of the mistake and what is wrong.
fn parse(text: &str) -> std::result::Result<Config, (usize, String)> {
    let config: Config = toml::from_str(text)
        .map_err(|e| (line_of(text, e.span().map_or(0, |s| s.start)), e.message().replace('\n', ", ")))?;
    check_patterns(text)?;
    Ok(Config { net_lists: targets(text)?.into_iter().collect(), ..config })
}

/// What `network.allow` says.
fn targets(text: &str) -> std::result::Result<Option<Vec<Target>>, (usize, String)> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Places {
        network: Network,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Network {
        allow: Option<Vec<toml::Spanned<String>>>,
    }
    // What is wrong otherwise has been told.
    let Some(allow) = toml::from_str::<Places>(text).unwrap_or_default().network.allow else {
        return Ok(None);
    };
    let target =
        |t: &toml::Spanned<String>| t.get_ref().parse().map_err(|why| (line_of(text, t.span().start), why));
    allow.iter().map(target).collect::<std::result::Result<_, _>>().map(Some)
}

/// Refuses a rule that is no pattern.
fn check_patterns(text: &str) -> std::result::Result<(), (usize, String)> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Places {
        policy: BTreeMap<String, Vec<toml::Spanned<String>>>,
    }
    // What is wrong otherwise has been told.
    let places = toml::from_str::<Places>(text).unwrap_or_default();
    for pattern in places.policy.values().flatten() {
        Pattern::check(pattern.get_ref()).map_err(|why| (line_of(text, pattern.span().start), why))?;
    }
    Ok(())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The configuration that a file with this text is.
    pub(in super::super) fn parsed(text: &str) -> Config {
        parse(text).unwrap()
    }

    #[test]
    fn a_mistake_is_told_with_its_line() {
        let (line, why) = parse("[quota]\nbytes = \"1G\"\nbites = 7\n").unwrap_err();
        assert!(line == 3 && why.contains("bites"), "{line} {why}");
        let (line, why) = parse("\n[quota]\nbytes = \"many\"\n").unwrap_err();
        assert!(line == 3 && why.contains("size"), "{line} {why}");
        let (line, why) = parse("[policy]\nhide = [\n  'a',\n  'b[',\n]\n").unwrap_err();
        assert!(line == 4 && why.contains("'b['"), "{line} {why}");
        assert!(parse("[nosuch]\n").is_err());
        assert!(parse("[[risk]]\nglob = '*'\n[[noise]]\nx = 1\n").is_ok());
    }

    #[test]
    fn sizes_are_read_and_shown() {
        let size = |t: &str| t.parse::<Size>().map(|s| s.0);
        assert_eq!(size("4096"), Ok(4096));
        assert_eq!((size("10k"), size("1.5M"), size("2GiB")), (Ok(10240), Ok(1_572_864), Ok(2 << 30)));
        assert!(
            size("").is_err() && size("1.5").is_err() && size("-1").is_err() && size("99999999T").is_err()
        );
        assert_eq!((Size(10240).to_string(), Size(1_572_864).to_string()), ("10K".into(), "1.5M".into()));
    }

    #[test]
    fn processors_are_read_and_shown() {
        let cpus =
            |t: &str| parse(&format!("[limits]\ncpus = {t}")).map(|c| c.limits.cpus.unwrap().to_string());
        assert_eq!(
            (cpus("2"), cpus("1.5"), cpus("'0.25'")),
            (Ok("2".into()), Ok("1.5".into()), Ok("0.25".into()))
        );
        assert!(cpus("0").is_err() && cpus("-1").is_err() && cpus("nan").is_err() && cpus("'x'").is_err());
    }

    #[test]
    fn a_project_can_only_tighten() {
        let mut user = parse("[quota]\nbytes = 10\n[policy]\nshow = ['~/.aws']").unwrap();
        let root = Path::new("/p");
        user.tighten(parse("[quota]\nbytes = 20\ninodes = 5\n[policy]\nhide = ['x']").unwrap(), root);
        assert_eq!((user.quota.bytes, user.quota.inodes), (Some(Size(10)), Some(5)));
        assert_eq!((user.projects[0].0.as_path(), &user.projects[0].1.hide), (root, &vec!["x".to_owned()]));
        let at = Path::new("/p/.sbx-fuse.toml");
        let e = refuse_loosening("[env]\nclear = true\n[policy]\nshow = ['~/.ssh']\n", at).unwrap_err();
        assert!(e.message.contains("line 4: a project may not set policy.show"), "{e}");
        refuse_loosening("[policy]\nhide = ['x']\n", at).unwrap();
    }
}
