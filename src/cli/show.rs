//! `sbx-fuse show`: everything about a session that costs no look at its changes.

use super::output::{Color, Out, count, time};
use super::state::Told;
use super::{Which, allowance, context, ps};
use crate::base::{Error, Result, quote};
use crate::layer::{Usage, add_usage};
use crate::session::{LimitsConfig, PathBytes, PolicyConfig, QuotaConfig, Session, Size};
use crate::sys::file;
use clap::Args;
use serde::Serialize;
use std::collections::HashSet;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;

/// Show a session: its state, why, and the way out; its directories, limits and processes
///
/// What it changed is told by `status` and `changes`.
#[derive(Debug, Args)]
pub(super) struct ShowArgs {
    /// The session [default: $SBX_FUSE_SESSION, else the newest one around the current directory]
    name: Option<String>,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Json<'a> {
    name: &'a str,
    id: &'a str,
    #[serde(flatten)]
    told: Told,
    created: u64,
    roots: Vec<&'a PathBytes>,
    command: &'a [PathBytes],
    directory: PathBytes,
    processes: usize,
    /// What the uppers take on the disk.
    used: Usage,
    quota: QuotaConfig,
    limits: LimitsConfig,
    /// What holds beside the defaults, from the command line and the configuration.
    policy: PolicyConfig,
}

pub(super) fn run(args: ShowArgs) -> Result<u8> {
    let session: Session = context::select(&Which { session: args.name })?;
    let meta = &session.meta;
    let allowed = allowance::effective(&session)?;
    let mut policy = allowed.policy;
    for (_, project) in allowed.projects {
        policy.add(project);
    }
    let json = Json {
        name: &session.name,
        id: &meta.id,
        told: Told::of(&session)?,
        created: meta.created,
        roots: meta.roots.iter().map(|r| &r.path).collect(),
        command: &meta.command,
        directory: PathBytes::from(session.dir.as_path()),
        processes: ps::of(&session)?.len(),
        used: used(&session)?,
        quota: allowed.quota,
        limits: allowed.limits,
        policy,
    };
    let mut out = Out::new();
    if args.json {
        out.json(&json)?;
    } else {
        text(&mut out, &json)?;
    }
    out.flush()?;
    Ok(0)
}

fn used(session: &Session) -> Result<Usage> {
    let (mut seen, mut usage) = (HashSet::new(), Usage::default());
    for root in session.roots() {
        let upper = root.upper_dir();
        let path = upper.as_os_str().as_bytes();
        file::open_path(path, libc::O_PATH | libc::O_DIRECTORY)
            .and_then(|dir| add_usage(dir.as_fd(), &mut seen, &mut usage))
            .map_err(|e| Error::on_path("measure", path, e))?;
    }
    Ok(usage)
}

fn text(out: &mut Out, s: &Json<'_>) -> Result<()> {
    let name = out.paint(Color::Bold, s.name);
    out.line(&format!("session    {name}"))?;
    let pid = s.told.pid.map(|p| format!(" (pid {p})")).unwrap_or_default();
    out.line(&format!("state      {}{pid}: {}", s.told.state.word(), s.told.why))?;
    out.line(&format!("way out    {}", s.told.way_out))?;
    out.line(&format!("made       {}", time(s.created).get(..19).unwrap_or_default()))?;
    for root in &s.roots {
        out.line(&format!("root       {root}"))?;
    }
    out.line(&format!("processes  {}", count(s.processes, "process", "processes")))?;
    let of = |limit: Option<String>| limit.map(|l| format!(" of {l}")).unwrap_or_default();
    let (bytes, inodes) =
        (of(s.quota.bytes.map(|b| b.to_string())), of(s.quota.inodes.map(|n| n.to_string())));
    out.line(&format!(
        "used       {}{bytes}, {} files and directories{inodes}",
        Size(s.used.bytes),
        s.used.inodes
    ))?;
    if s.limits != LimitsConfig::default() {
        out.line(&format!("limits     each command: {}", s.limits))?;
    }
    let rules = [
        ("hidden", &s.policy.hide),
        ("denied", &s.policy.deny),
        ("read-only", &s.policy.read_only),
        ("shown", &s.policy.show),
    ];
    for (what, patterns) in rules {
        for pattern in patterns {
            out.line(&format!("{what:<9}  {}", quote(pattern.as_bytes())))?;
        }
    }
    out.line(&format!("kept in    {}", s.directory))
}
