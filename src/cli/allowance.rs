//! What a session is allowed: its options on the command line, kept in the session, and the configuration's part.

use crate::base::{Error, ErrorKind, Result, quote};
use crate::session::{Config, Cpus, PolicyConfig, Session, Size};
use crate::union::Limits;
use clap::Args;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// What a session may use and see; kept with the session.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Kept with the session")]
pub(super) struct AllowanceArgs {
    /// How much room on the disk the changes may take, e.g. 500M; a write beyond it fails with EDQUOT
    #[arg(long, value_name = "SIZE")]
    quota_bytes: Option<Size>,
    /// How many files, directories and deletions the changes may have
    #[arg(long, value_name = "N")]
    quota_inodes: Option<u64>,
    /// How much memory each command, with all that it starts, may take, e.g. 4G
    #[arg(long, value_name = "SIZE")]
    memory: Option<Size>,
    /// How many processors' time each command may take, e.g. 1.5
    #[arg(long, value_name = "N")]
    cpus: Option<Cpus>,
    /// How many processes and threads each command may have
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pids: Option<u64>,
    /// Reserve the roots: while this session exists, no other may have a root in or around them
    #[arg(long)]
    pub(super) exclusive: bool,
    /// A file or directory that commands must not see; may be given several times
    #[arg(long, value_name = "PATH")]
    hide: Vec<String>,
    /// A file or directory that is hidden by default and shall be seen, e.g. ~/.aws
    #[arg(long, value_name = "PATH")]
    show: Vec<String>,
}

impl AllowanceArgs {
    fn given(&self) -> bool {
        self.quota_bytes.is_some() || self.quota_inodes.is_some() || self.limits() || self.hides()
    }

    fn limits(&self) -> bool {
        self.memory.is_some() || self.cpus.is_some() || self.pids.is_some()
    }

    fn hides(&self) -> bool {
        !self.hide.is_empty() || !self.show.is_empty()
    }

    /// Keeps in the session what was given.
    ///
    /// # Errors
    /// `Locked` when the session is in use: what it is allowed is settled when it starts.
    pub(super) fn keep(&self, session: &mut Session) -> Result<()> {
        if !self.given() {
            return Ok(());
        }
        let _lock = session.lock()?;
        let meta = &mut session.meta;
        meta.quota.bytes = self.quota_bytes.or(meta.quota.bytes);
        meta.quota.inodes = self.quota_inodes.or(meta.quota.inodes);
        meta.limits.memory = self.memory.or(meta.limits.memory);
        meta.limits.cpus = self.cpus.or(meta.limits.cpus);
        meta.limits.pids = self.pids.or(meta.limits.pids);
        meta.policy.hide.extend(self.hide.iter().cloned());
        meta.policy.show.extend(self.show.iter().cloned());
        session.save_meta()
    }
}

/// What holds for a session now: the configuration, what was kept with the session over it, and the projects' own files.
///
/// # Errors
/// `Usage` for a mistake in a file.
pub(super) fn effective(session: &Session) -> Result<Config> {
    let roots: Vec<&Path> = session.meta.roots.iter().map(|r| r.path.as_path()).collect();
    let meta = &session.meta;
    Config::load(&roots, |config| {
        config.quota.bytes = meta.quota.bytes.or(config.quota.bytes);
        config.quota.inodes = meta.quota.inodes.or(config.quota.inodes);
        config.limits.memory = meta.limits.memory.or(config.limits.memory);
        config.limits.cpus = meta.limits.cpus.or(config.limits.cpus);
        config.limits.pids = meta.limits.pids.or(config.limits.pids);
        config.policy.add(PolicyConfig { ..meta.policy.clone() });
    })
}

/// The quota as the union takes it.
pub(super) fn limits(config: &Config) -> Limits {
    Limits { bytes: config.quota.bytes.map(|s| s.0), inodes: config.quota.inodes }
}

/// The error that a session has no room for what it is about to do.
pub(super) fn no_room(session: &Session, e: crate::base::Errno) -> Error {
    let mut error = Error::sys(&format!("measure what session {} takes", session.name), e);
    if e == crate::base::Errno::EDQUOT {
        error.kind = ErrorKind::Quota;
    }
    error
}

/// What is hidden by default, in the home directory: keys, credentials, and what browsers know.
const SECRETS: [&str; 17] = [
    ".ssh",
    ".gnupg",
    ".aws",
    ".azure",
    ".kube",
    ".docker",
    ".config/gh",
    ".config/gcloud",
    ".netrc",
    ".git-credentials",
    ".config/google-chrome",
    ".config/chromium",
    ".config/BraveSoftware",
    ".mozilla",
    ".password-store",
    ".local/share/keyrings",
    ".config/sbx-fuse",
];

/// The real paths that the sandboxes of a session must not see.
///
/// # Errors
/// `Usage` for a path to hide that is not there, and so could not be kept hidden; and for rules that this version
/// cannot enforce.
pub(super) fn hidden(session: &Session, config: &Config) -> Result<Vec<PathBuf>> {
    let policy = &config.policy;
    let unknown = [("deny", &policy.deny), ("read_only", &policy.read_only)];
    if let Some((rule, _)) = unknown.iter().find(|(_, paths)| !paths.is_empty()) {
        return Err(Error::usage(format!(
            "the rule policy.{rule} cannot be enforced yet, and nothing runs without it"
        ))
        .hint("use policy.hide, or take the rule out"));
    }
    let home = std::env::var_os("HOME").map(PathBuf::from).filter(|h| h.is_absolute());
    let base = session.meta.roots.first().map(|r| r.path.as_path().to_owned()).unwrap_or_default();
    let absolute = |text: &str| match (text.strip_prefix("~/"), &home) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => base.join(text),
    };
    let real = |path: &Path| path.canonicalize().ok();
    let mut shown = Vec::new();
    for text in &policy.show {
        shown.extend(real(&absolute(text)));
    }
    let mut all = Vec::new();
    for text in &policy.hide {
        if text.contains(['*', '?', '[', '{']) {
            return Err(Error::usage(format!("'{text}' is a pattern; only paths can be hidden yet"))
                .hint("name the paths one by one"));
        }
        let path = absolute(text);
        let found = real(&path).ok_or_else(|| {
            Error::usage(format!(
                "{} is not there, and so cannot be hidden",
                quote(path.as_os_str().as_bytes())
            ))
            .hint("take it out of --hide and policy.hide, or make it first")
        })?;
        all.push(found);
    }
    if let Some(home) = &home {
        // What is in a root by itself was asked for; what lies in one is not.
        let is_root = |p: &PathBuf| session.meta.roots.iter().any(|r| r.path.as_path().starts_with(p));
        all.extend(SECRETS.iter().filter_map(|s| real(&home.join(s))).filter(|p| !is_root(p)));
    }
    all.retain(|p| !shown.iter().any(|s| p.starts_with(s)));
    all.sort();
    all.dedup();
    Ok(all)
}
