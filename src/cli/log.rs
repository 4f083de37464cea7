//! `sbx-fuse log`: the journal, record by record.

use super::output::{self, Out};
use super::{Which, context, paths};
use crate::base::{Error, Kind, RelPath, Result, quote};
use crate::journal::{Command, Entry, Log, Op, Process, Record};
use crate::session::{PathBytes, Session};
use clap::Args;
use serde::Serialize;
use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

/// How often a followed journal is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Show the journal: when, which process, what
#[derive(Debug, Args)]
pub(super) struct LogArgs {
    #[command(flatten)]
    which: Which,
    /// Print a JSON object a line
    #[arg(long)]
    json: bool,
    /// Go on as records are added, until interrupted
    #[arg(short = 'f', long)]
    follow: bool,
    /// Only records at or beneath these
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
}

#[derive(Serialize)]
struct Json {
    seq: u64,
    time: u64,
    op: Op,
    root: PathBytes,
    path: PathBytes,
    #[serde(skip_serializing_if = "Option::is_none")]
    path2: Option<PathBytes>,
    kind: Kind,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    comm: Option<PathBytes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    exe: Option<PathBytes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<Vec<PathBytes>>,
}

struct Printer<'a> {
    session: &'a Session,
    json: bool,
    only: Vec<(u16, RelPath)>,
    processes: HashMap<u32, Process>,
    commands: HashMap<u32, Command>,
    out: Out,
}

pub(super) fn run(args: LogArgs) -> Result<u8> {
    let session = context::select(&args.which)?;
    // Of a live session the journal may lag behind by what was written since a file's first record; ask for anew.
    if let Some(mut client) = context::connect(&session)? {
        client.new_epoch()?;
    }
    let only: Vec<Vec<_>> = args.paths.iter().map(|p| paths::locate(&session, p)).collect::<Result<_>>()?;
    let mut printer = Printer {
        session: &session,
        json: args.json,
        only: only.concat(),
        processes: HashMap::new(),
        commands: HashMap::new(),
        out: Out::new(),
    };
    let dir = session.journal_dir();
    let mut offset = 0;
    loop {
        let mut entries = Vec::new();
        if dir.join("log").symlink_metadata().is_ok() {
            let log = Log::from(&dir, offset)?;
            (offset, entries) = (log.offset, log.entries);
        }
        // One that is followed may come to have some.
        if !args.follow {
            check_named(&session, &args.paths, &only, &entries)?;
        }
        for entry in entries {
            printer.take(entry)?;
        }
        printer.out.flush()?;
        if !args.follow {
            return Ok(0);
        }
        if session.dir.symlink_metadata().is_err() {
            return Err(Error::failure(format!("session {} was removed", session.name))
                .hint("there is nothing more to follow"));
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Whether a record is of something at or beneath a place.
fn is_at(r: &Record, (root, dir): &(u16, RelPath)) -> bool {
    *root == r.root && (r.path.starts_with(dir) || r.path2.as_ref().is_some_and(|p| p.starts_with(dir)))
}

/// Refuses a path that no record is of.
fn check_named(
    session: &Session,
    paths: &[PathBuf],
    places: &[Vec<(u16, RelPath)>],
    entries: &[Entry],
) -> Result<()> {
    let told =
        |place| entries.iter().any(|e| matches!(e, Entry::Record { record, .. } if is_at(record, place)));
    match paths.iter().zip(places).find(|(_, places)| !places.iter().any(told)) {
        None => Ok(()),
        Some((path, _)) => {
            let shown = quote(path.as_os_str().as_bytes());
            Err(Error::usage(format!("the journal of session {} has nothing of {shown}", session.name))
                .hint(format!("see all of it: sbx-fuse log -s {}", session.name)))
        }
    }
}

impl Printer<'_> {
    fn take(&mut self, entry: Entry) -> Result<()> {
        match entry {
            Entry::Process(p) => {
                self.processes.insert(p.id, p);
            }
            Entry::Command(c) => {
                self.commands.insert(c.id, c);
            }
            Entry::Record { seq, time, record } => {
                if self.wants(&record) {
                    return if self.json {
                        self.print_json(seq, time, &record)
                    } else {
                        self.print(time, &record)
                    };
                }
            }
            Entry::Opened { .. } | Entry::Closed => {}
        }
        Ok(())
    }

    fn wants(&self, r: &Record) -> bool {
        self.only.is_empty() || self.only.iter().any(|place| is_at(r, place))
    }

    fn print_json(&mut self, seq: u64, time: u64, r: &Record) -> Result<()> {
        let bytes = |p: &RelPath| PathBytes(p.as_bytes().to_vec());
        let process = self.processes.get(&r.proc);
        let command = process.and_then(|p| self.commands.get(&p.command));
        let root = self.session.meta.roots.get(usize::from(r.root)).map(|r| r.path.clone());
        let json = Json {
            seq,
            time,
            op: r.op,
            root: root.unwrap_or(PathBytes(Vec::new())),
            path: bytes(&r.path),
            path2: r.path2.as_ref().map(bytes),
            kind: r.kind,
            pid: process.map(|p| p.pid),
            comm: process.map(|p| PathBytes(p.comm.clone())),
            exe: process.filter(|p| !p.exe.is_empty()).map(|p| PathBytes(p.exe.clone())),
            command: command.map(|c| c.argv.iter().map(|w| PathBytes(w.clone())).collect()),
        };
        self.out.json_line(&json)
    }

    fn print(&mut self, time: u64, r: &Record) -> Result<()> {
        let show = |p: &RelPath| quote(&paths::shown(self.session, r.root, p));
        let who = match self.processes.get(&r.proc) {
            Some(p) => format!("{} {}", p.pid, quote(&p.comm)),
            None => "-".into(),
        };
        let mut text = format!("{}  {who:<22}  {:<10} {}", output::time(time), word(r.op), show(&r.path));
        if let Some(second) = &r.path2 {
            // For a link the second path is what there was before.
            let arrow = if matches!(r.op, Op::Link | Op::FoundPresent) { "<-" } else { "->" };
            text.push_str(&format!(" {arrow} {}", show(second)));
        }
        self.out.line(&text)
    }
}

fn word(op: Op) -> &'static str {
    match op {
        Op::Create => "create",
        Op::Mkdir => "mkdir",
        Op::Symlink => "symlink",
        Op::Link => "link",
        Op::Unlink => "unlink",
        Op::Rmdir => "rmdir",
        Op::Rename => "rename",
        Op::Exchange => "exchange",
        Op::Write => "write",
        Op::Truncate => "truncate",
        Op::SetAttr => "setattr",
        Op::SetXattr => "setxattr",
        Op::Applied => "applied",
        Op::Discarded => "discarded",
        Op::FoundPresent => "found",
        Op::FoundGone => "found-gone",
        Op::FoundSame => "found-same",
        Op::Restated => "restated",
        Op::Merged => "merged",
        Op::Hidden => "hidden",
    }
}
