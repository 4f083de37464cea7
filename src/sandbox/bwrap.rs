//! The arguments of bwrap: what the sandbox sees, and what it may do.

use super::inside::PLACE;
use super::runtime;
use super::veil::{self, Step};
use crate::base::{Access, Error, ErrorKind, Net, PRIVATE_TEMPS, Result, Rules};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A root of the session: where its view is mounted, and where the sandbox shall see it.
#[derive(Clone, Debug)]
pub struct Bind {
    /// The view, e.g. `MNT/NAME`.
    pub from: PathBuf,
    /// The real path.
    pub to: PathBuf,
}

/// What to run and what it sees.
#[derive(Clone, Debug)]
pub struct Spec {
    /// The roots in order.
    pub binds: Vec<Bind>,
    /// Directories the sandbox must not see, canonical; an empty, private one stands in their place.
    pub hidden: Vec<PathBuf>,
    /// Of `hidden`, what the views themselves hide already where it lies in a root.
    pub hidden_in_view: Vec<PathBuf>,
    /// What of the host is hidden or denied. The views hold these rules themselves; this is for the rest.
    pub rules: Rules,
    /// Sockets that must not be reached, such as those of services that would act on the host for us.
    pub masked: Vec<PathBuf>,
    /// The working directory.
    pub cwd: PathBuf,
    /// What it may reach in the network.
    pub net: Net,
    /// Objects of the host, mostly sockets, that it sees all the same: from where, and at what path.
    pub shared: Vec<Bind>,
    /// Directories to be made in the views, for the command alone.
    pub made: Vec<PathBuf>,
    /// The whole environment of the command.
    pub env: Vec<(OsString, OsString)>,
    /// A variable that bwrap has and the command does not: by it the sandbox is found from outside.
    pub marker: (OsString, OsString),
    /// This program: its last step before the command runs inside.
    pub program: PathBuf,
    /// The command and its arguments; not empty.
    pub argv: Vec<OsString>,
}

impl Spec {
    /// The root that holds `path`, if one does.
    pub fn bind_of(&self, path: &Path) -> Option<&Bind> {
        let around = self.binds.iter().filter(|b| path.starts_with(&b.to));
        around.max_by_key(|b| b.to.components().count())
    }

    /// The private directories, outermost first: those of `hidden`, and `/tmp` and `/var/tmp` unless a root holds them.
    fn private_dirs(&self) -> Vec<&Path> {
        let temps = PRIVATE_TEMPS.map(Path::new).into_iter().filter(|t| self.bind_of(t).is_none());
        let hidden = self.hidden.iter().map(PathBuf::as_path);
        let shown = |p: &Path| self.bind_of(p).is_none() || !self.hidden_in_view.iter().any(|h| h == p);
        let mut all: Vec<&Path> = temps
            .chain(hidden.filter(|p| shown(p)))
            // bwrap cannot mount on a symlink, and cannot make a directory on a read-only tree.
            .filter(|p| p.symlink_metadata().is_ok_and(|m| m.is_dir()))
            .collect();
        all.sort_by_key(|p| p.components().count());
        all.dedup();
        all
    }

    /// The directories of services, which a command without the network does not see, unless a root holds them.
    fn service_dirs(&self) -> Vec<&'static Path> {
        if self.net == Net::All {
            return Vec::new();
        }
        let all = runtime::DIRS.into_iter().map(Path::new);
        all.filter(|d| self.bind_of(d).is_none() && d.symlink_metadata().is_ok_and(|m| m.is_dir())).collect()
    }

    /// What of those it sees all the same.
    fn kept_of_services(&self) -> Vec<PathBuf> {
        runtime::kept(&self.rules.at_least(Access::Deny))
    }

    /// Whether the sandbox sees the host's object at `path`: it lies in a root, or beneath nothing private.
    pub fn sees(&self, path: &Path) -> bool {
        if self.rules.walk(path).0 > Some(Access::ReadOnly)
            && !self.binds.iter().any(|b| path.starts_with(&b.to))
        {
            return false;
        }
        match self.bind_of(path) {
            Some(_) => !self.hidden.iter().any(|h| path.starts_with(h) && self.bind_of(h).is_some()),
            None if self.private_dirs().iter().any(|h| path.starts_with(h)) => false,
            None if self.service_dirs().iter().any(|d| path.starts_with(d)) => {
                self.kept_of_services().iter().any(|k| path.starts_with(k))
            }
            None => true,
        }
    }

    /// The mounts that hold the rules outside of the roots.
    ///
    /// # Errors
    /// `Usage` for a rule that cannot be held there.
    pub(super) fn veil(&self) -> Result<Vec<Step>> {
        let rules = self.rules.at_least(Access::Deny);
        let private = self.private_dirs();
        let services = self.service_dirs();
        let elsewhere = |dir: &Path| {
            self.bind_of(dir).is_some() || private.iter().chain(&services).any(|p| dir.starts_with(p))
        };
        veil::steps(&rules, &elsewhere)
    }

    /// bwrap's arguments up to the command, for `--args`. `fds` are descriptors bwrap inherits.
    pub(super) fn arguments(&self, veil: &[Step], fds: &Fds) -> Vec<OsString> {
        let mut args = Args::default();
        for namespace in ["user", "pid", "ipc", "uts", "cgroup-try"] {
            args.flag(&format!("--unshare-{namespace}"));
        }
        if self.net != Net::All {
            args.flag("--unshare-net");
        }
        args.flag("--die-with-parent").words(["--cap-drop", "ALL"]);
        args.words(["--json-status-fd", &fds.status.to_string()]);
        match fds.filter {
            Some(fd) => args.words(["--seccomp", &fd.to_string()]),
            // Without a filter a terminal of its own is the one protection against TIOCSTI.
            None => args.flag("--new-session"),
        };
        self.places(veil, &fds.empty, &mut args);
        args.flag("--unsetenv").word(&self.marker.0);
        args.flag("--chdir").word(&self.cwd);
        args.0
    }

    fn places(&self, veil: &[Step], empty: &[i32], args: &mut Args) {
        let top = self.binds.iter().find(|b| b.to == Path::new("/"));
        match top {
            Some(top) => args.flag("--bind").word(&top.from).word("/"),
            None => args.words(["--ro-bind", "/", "/"]),
        };
        args.words(["--dev", "/dev", "--dev-bind-try", "/dev/fuse", "/dev/fuse", "--proc", "/proc"]);
        args.flag("--ro-bind").word(&self.program).word(PLACE);
        if top.is_some() {
            args.words(["--ro-bind", "/sys", "/sys"]);
        }
        let (within, outside): (Vec<_>, Vec<_>) =
            self.private_dirs().into_iter().partition(|p| self.bind_of(p).is_some());
        let services = self.service_dirs();
        args.services(&services, &self.kept_of_services());
        args.veil(veil, empty);
        let mut done: Vec<&Path> = Vec::new();
        for dir in outside {
            if !done.iter().any(|d| dir.starts_with(d)) {
                args.private(dir);
                done.push(dir);
            }
        }
        // A root may lie in another.
        let mut binds: Vec<&Bind> = self.binds.iter().filter(|b| b.to != Path::new("/")).collect();
        binds.sort_by_key(|b| b.to.components().count());
        for bind in binds {
            args.flag("--bind").word(&bind.from).word(&bind.to);
        }
        for dir in within {
            args.private(dir);
        }
        for dir in &self.made {
            args.words(["--perms", "0700", "--dir"]).word(dir);
        }
        for bind in &self.shared {
            args.flag("--ro-bind").word(&bind.from).word(&bind.to);
        }
        // In a root, the view's sockets lead nowhere; of services, those that are kept are harmless.
        let reached = |f: &Path| self.bind_of(f).is_none() && !services.iter().any(|d| f.starts_with(d));
        let shared = |f: &Path| self.shared.iter().any(|s| s.to == f);
        for file in self.masked.iter().filter(|f| reached(f) && !shared(f) && self.sees(f)) {
            args.flag("--ro-bind").word("/dev/null").word(file);
        }
        // Last: mount points are made in covers.
        for dir in services {
            args.flag("--remount-ro").word(dir);
        }
        for step in veil {
            if let Step::Cover(dir, _) | Step::DeniedDir(dir) = step {
                args.flag("--remount-ro").word(dir);
            }
        }
    }
}

/// Descriptors that bwrap inherits.
#[derive(Debug, Default)]
pub(super) struct Fds {
    /// Where it writes what becomes of the child.
    pub status: i32,
    /// The system call filter.
    pub filter: Option<i32>,
    /// Empty files, one for each [`Step::DeniedFile`].
    pub empty: Vec<i32>,
}

#[derive(Default)]
struct Args(Vec<OsString>);

impl Args {
    fn word(&mut self, word: impl AsRef<OsStr>) -> &mut Self {
        self.0.push(word.as_ref().to_owned());
        self
    }

    fn flag(&mut self, flag: &str) -> &mut Self {
        self.word(flag)
    }

    fn words<const N: usize>(&mut self, words: [&str; N]) -> &mut Self {
        for word in words {
            self.word(word);
        }
        self
    }

    fn veil(&mut self, steps: &[Step], empty: &[i32]) {
        let mut empty = empty.iter();
        for step in steps {
            match step {
                Step::Cover(dir, mode) => {
                    self.words(["--perms", &format!("{mode:04o}"), "--tmpfs"]).word(dir)
                }
                // What is just gone need not be there.
                Step::Bind(path) => self.flag("--ro-bind-try").word(path).word(path),
                Step::Link(path, target) => self.flag("--symlink").word(target).word(path),
                Step::DeniedDir(path) => self.words(["--perms", "0000", "--tmpfs"]).word(path),
                Step::DeniedFile(path) => match empty.next() {
                    Some(fd) => self.words(["--perms", "0000", "--ro-bind-data", &fd.to_string()]).word(path),
                    None => self.flag("--ro-bind").word("/dev/null").word(path),
                },
            };
        }
    }

    /// Empty directories over those of services, with what is kept of them.
    fn services(&mut self, dirs: &[&Path], kept: &[PathBuf]) {
        for dir in dirs {
            self.words(["--perms", "0755", "--tmpfs"]).word(dir);
        }
        for path in kept.iter().filter(|k| dirs.iter().any(|d| k.starts_with(d))) {
            match std::fs::read_link(path) {
                Ok(target) => self.flag("--symlink").word(target).word(path),
                // What is just gone need not be there.
                Err(_) => self.flag("--ro-bind-try").word(path).word(path),
            };
        }
    }

    fn private(&mut self, dir: &Path) {
        let shared = PRIVATE_TEMPS.iter().any(|t| dir == Path::new(t));
        let perms = if shared { "1777" } else { "0700" };
        self.words(["--perms", perms, "--tmpfs"]).word(dir);
    }
}

/// The error that bwrap is not there, with the way to get it.
pub fn bwrap_missing() -> Error {
    Error::new(
        ErrorKind::Missing,
        "bwrap is not installed, and nothing runs without a sandbox (package: bubblewrap)",
    )
    .hint("run: sudo apt install bubblewrap   (Fedora: sudo dnf install bubblewrap)")
}

/// Arguments as `--args FD` reads them: each ended by a NUL.
pub(super) fn nul_separated(args: &[OsString]) -> Vec<u8> {
    args.iter().flat_map(|a| a.as_bytes().iter().copied().chain([0])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(roots: &[&str], hidden: &[&str]) -> Spec {
        let binds = roots
            .iter()
            .enumerate()
            .map(|(i, r)| Bind { from: format!("/mnt/{i}").into(), to: (*r).into() })
            .collect();
        let hidden: Vec<PathBuf> = hidden.iter().map(PathBuf::from).collect();
        Spec {
            binds,
            hidden_in_view: hidden.clone(),
            hidden,
            rules: Rules::default(),
            masked: vec![],
            cwd: "/".into(),
            net: Net::Off,
            shared: vec![],
            made: vec![],
            env: vec![],
            marker: ("MARK".into(), "1".into()),
            program: "/bin/true".into(),
            argv: vec!["true".into()],
        }
    }

    fn joined(spec: &Spec) -> String {
        let fds = Fds { status: 9, filter: Some(10), empty: vec![] };
        spec.arguments(&spec.veil().unwrap(), &fds).join(OsStr::new(" ")).into_string().unwrap()
    }

    #[test]
    fn roots_come_after_what_is_private_around_them() {
        let args = joined(&spec(&["/tmp/p"], &[]));
        let tmpfs = args.find("--tmpfs /tmp").unwrap();
        let bind = args.find("--bind /mnt/0 /tmp/p").unwrap();
        assert!(args.find("--ro-bind / /").unwrap() < tmpfs && tmpfs < bind, "{args}");
        assert!(args.contains("--unshare-net") && args.contains("--die-with-parent"));
        assert!(args.contains("--cap-drop ALL") && args.contains("--seccomp 10"));
    }

    #[test]
    fn services_are_not_seen_without_the_network_and_roots_among_them_are() {
        let mut s = spec(&["/run/media/me/disk"], &[]);
        let args = joined(&s);
        let place = |what: &str| args.find(what).unwrap_or_else(|| panic!("{what}: {args}"));
        assert!(place("--ro-bind / /") < place("--perms 0755 --tmpfs /run "));
        assert!(place("--tmpfs /run ") < place("--bind /mnt/0 /run/media/me/disk"));
        assert!(place("--bind /mnt/0") < place("--remount-ro /run "));
        assert!(!s.sees(Path::new("/run/docker.sock")) && s.sees(Path::new("/run/media/me/disk/x")));
        s.net = Net::All;
        assert!(!joined(&s).contains("--tmpfs /run") && s.sees(Path::new("/run/docker.sock")));
        // A root that holds them shows them, as files of its own.
        assert!(!joined(&spec(&["/"], &[])).contains("--tmpfs /run"));
    }

    #[test]
    fn a_root_that_holds_tmp_is_not_covered() {
        let s = spec(&["/"], &["/usr"]);
        let args = joined(&s);
        assert!(args.contains("--bind /mnt/0 / ") && !args.contains("--tmpfs"), "{args}");
        assert!(!s.sees(Path::new("/usr/bin/env")));
    }

    #[test]
    fn what_is_hidden_is_not_seen_unless_a_root_lies_in_it() {
        let s = spec(&["/tmp/p", "/usr/share"], &["/usr"]);
        assert!(!s.sees(Path::new("/tmp/q")) && s.sees(Path::new("/tmp/p/q")));
        assert!(!s.sees(Path::new("/usr/bin")) && s.sees(Path::new("/usr/share/x")));
    }
}
