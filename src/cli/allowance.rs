//! What a session is allowed: its options on the command line, kept in the session, and the configuration's part.

use super::paths;
use crate::base::{Error, ErrorKind, Result, Rules};
use crate::session::{Config, Cpus, PolicyConfig, Session, Size, Sources, from_command_line};
use crate::union::Limits;
use clap::Args;
use std::ffi::OsString;
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
    /// A path, or pattern of paths, that is not there for commands, also if it is made later; `**/` means at any depth of
    /// the roots; may be given several times
    #[arg(long, value_name = "PATH")]
    hide: Vec<OsString>,
    /// A path, or pattern of paths, that is there and that nothing can be done with
    #[arg(long, value_name = "PATH")]
    deny: Vec<OsString>,
    /// A path, or pattern of paths, that cannot be changed
    #[arg(long, value_name = "PATH")]
    read_only: Vec<OsString>,
    /// A path that is hidden by default and shall be seen, e.g. ~/.aws
    #[arg(long, value_name = "PATH")]
    show: Vec<OsString>,
}

impl AllowanceArgs {
    fn given(&self) -> bool {
        self.quota_bytes.is_some()
            || self.quota_inodes.is_some()
            || self.limits()
            || self.policies().iter().any(|p| !p.is_empty())
    }

    fn limits(&self) -> bool {
        self.memory.is_some() || self.cpus.is_some() || self.pids.is_some()
    }

    fn policies(&self) -> [&Vec<OsString>; 4] {
        [&self.hide, &self.deny, &self.read_only, &self.show]
    }

    /// The rules that were given.
    ///
    /// # Errors
    /// `Usage` for what is no pattern.
    pub(super) fn policy(&self) -> Result<PolicyConfig> {
        let cwd = paths::cwd()?;
        let [hide, deny, read_only, show] = self
            .policies()
            .map(|texts| texts.iter().map(|t| from_command_line(t, &cwd)).collect::<Result<Vec<String>>>());
        Ok(PolicyConfig { hide: hide?, deny: deny?, read_only: read_only?, show: show? })
    }

    /// Keeps in the session what was given.
    ///
    /// # Errors
    /// `Locked` when the session is in use: what it is allowed is settled when it starts. `Usage` for what cannot hold
    /// in this session, of which nothing is kept then.
    pub(super) fn keep(&self, session: &mut Session) -> Result<()> {
        if !self.given() {
            return Ok(());
        }
        let given = self.policy()?;
        let _lock = session.lock()?;
        let meta = &mut session.meta;
        meta.quota.bytes = self.quota_bytes.or(meta.quota.bytes);
        meta.quota.inodes = self.quota_inodes.or(meta.quota.inodes);
        meta.limits.memory = self.memory.or(meta.limits.memory);
        meta.limits.cpus = self.cpus.or(meta.limits.cpus);
        meta.limits.pids = self.pids.or(meta.limits.pids);
        meta.policy.add(given);
        rules(session, &effective(session)?, false)?;
        session.save_meta()
    }
}

/// What holds for a session now: the configuration, what was kept with the session over it, and the projects' own files.
///
/// # Errors
/// `Usage` for a mistake in a file, and for limits with which nothing can run.
pub(super) fn effective(session: &Session) -> Result<Config> {
    let roots: Vec<&Path> = session.meta.roots.iter().map(|r| r.path.as_path()).collect();
    let meta = &session.meta;
    let config = Config::load(&roots, |config| {
        config.quota.bytes = meta.quota.bytes.or(config.quota.bytes);
        config.quota.inodes = meta.quota.inodes.or(config.quota.inodes);
        config.limits.memory = meta.limits.memory.or(config.limits.memory);
        config.limits.cpus = meta.limits.cpus.or(config.limits.cpus);
        config.limits.pids = meta.limits.pids.or(config.limits.pids);
        config.policy.add(meta.policy.clone());
    })?;
    config.limits.check()?;
    Ok(config)
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

/// The rules for the sandboxes of a session.
///
/// # Errors
/// `Usage` for a rule that cannot be understood or held.
pub(super) fn rules(session: &Session, config: &Config, gui: bool) -> Result<Rules> {
    let home = std::env::var_os("HOME").map(PathBuf::from).filter(|h| h.is_absolute());
    let roots: Vec<&Path> = session.all_roots().map(|r| r.lower_dir()).collect();
    Sources { config, roots: &roots, home: home.as_deref(), gui }.rules()
}
