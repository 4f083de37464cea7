//! `sbx-fuse gc`: what may go, goes.

use super::amounts::{self, bytes};
use super::context;
use super::output::{self, Out};
use crate::base::{Error, ErrorKind, Result, quote};
use crate::review::{self, KeepLimits};
use crate::session::gc::{Candidate, Holds, Limits, Reason, Stray, Verdict, archive_holds, plan};
use crate::session::{Config, PathBytes, Role, Session, Store};
use clap::Args;
use serde::Serialize;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Throw away old and large sessions, and what crashes left behind
///
/// First archives past their time to live, then what was not used for --older-than, then the largest until all together
/// take less than --max-total. Archives and kept originals count. A session with changes that were not applied is kept unless
/// --yes is given; one in use is always kept. What applying replaced is kept for an undo, in each session as `[undo]` of
/// the configuration says. Without limits only expired archives and leftovers go.
#[derive(Debug, Args)]
pub(super) struct GcArgs {
    /// What was not used for this long, e.g. 24h or 30d
    #[arg(long, value_name = "DURATION", value_parser = amounts::duration)]
    older_than: Option<Duration>,
    /// The largest ones, until the total is below this, e.g. 50G
    #[arg(long, value_name = "SIZE", value_parser = amounts::size)]
    max_total: Option<u64>,
    /// Only show what would go
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Let go of changes that were not applied, too
    #[arg(short = 'y', long)]
    yes: bool,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// Something to be judged.
enum Thing {
    Session(Box<Session>),
    /// A session that cannot be read.
    Broken(String),
    Stray(Stray),
}

impl Thing {
    fn kind(&self) -> &'static str {
        match self {
            Thing::Session(s) if s.archived.is_some() => "archive",
            Thing::Session(_) | Thing::Broken(_) => "session",
            Thing::Stray(_) => "stray",
        }
    }

    fn shown(&self) -> String {
        match self {
            Thing::Session(s) => s.name.clone(),
            Thing::Broken(name) => name.clone(),
            Thing::Stray(s) => PathBytes::from(s.path.as_path()).to_string(),
        }
    }
}

#[derive(Serialize)]
struct Item {
    kind: &'static str,
    name: String,
    bytes: u64,
    why: String,
}

#[derive(Serialize)]
struct Json {
    dry_run: bool,
    removed: Vec<Item>,
    kept: Vec<Item>,
    before: u64,
    after: u64,
}

pub(super) fn run(args: GcArgs) -> Result<u8> {
    let store = Store::open()?;
    let (things, candidates) = gather(&store)?;
    let leftovers = store.leftovers()?;
    let left_bytes: u64 = leftovers.iter().map(|l| l.bytes).sum();
    let limits = Limits {
        older_than: args.older_than.map(amounts::nanos),
        max_total: args.max_total,
        unapplied: args.yes,
    };
    let (verdicts, _) = plan(&candidates, &limits, &mut |i| holds(&store, &things[i]));
    let before = candidates.iter().map(|c| c.bytes).sum::<u64>() + left_bytes;
    let mut json =
        Json { dry_run: args.dry_run, removed: Vec::new(), kept: Vec::new(), before, after: before };
    let mut failed = !originals(&things, args.dry_run, &mut json)?;
    for leftover in &leftovers {
        let name = PathBytes::from(leftover.path.as_path()).to_string();
        let done = if args.dry_run { Ok(()) } else { store.remove_leftover(leftover) };
        match done {
            Ok(()) => json.gone("leftover", name, leftover.bytes, "left by a crash"),
            Err(e) => {
                output::error(&e);
                failed = true;
            }
        }
    }
    for ((thing, candidate), verdict) in things.iter().zip(&candidates).zip(verdicts) {
        let (reason, mut against) = match verdict {
            Verdict::Stays => continue,
            Verdict::Goes(reason) => (reason, Holds::Nothing),
            Verdict::Kept(reason, holds) => (reason, holds),
        };
        if against == Holds::Nothing && !args.dry_run {
            match remove(&store, thing, args.yes || reason == Reason::Expired, reason) {
                Ok(holds) => against = holds,
                Err(e) => {
                    output::error(&e);
                    failed = true;
                    continue;
                }
            }
        }
        if against == Holds::Nothing {
            json.gone(thing.kind(), thing.shown(), candidate.bytes, word(reason));
        } else {
            let why = against_word(&against);
            json.kept.push(Item { kind: thing.kind(), name: thing.shown(), bytes: candidate.bytes, why });
        }
    }
    tell(&args, &json)?;
    let over = args.max_total.is_some_and(|max| json.after > max);
    Ok(if failed || over { ErrorKind::Failure.exit_code() } else { 0 })
}

impl Json {
    fn gone(&mut self, kind: &'static str, name: String, bytes: u64, why: &str) {
        self.after = self.after.saturating_sub(bytes);
        self.removed.push(Item { kind, name, bytes, why: why.to_owned() });
    }
}

/// Lets go of originals by the policy of the configuration; false when that failed somewhere.
fn originals(things: &[Thing], dry_run: bool, json: &mut Json) -> Result<bool> {
    const DAY: u64 = 86_400_000_000_000;
    let policy = Config::load(&[], |_| {})?.undo;
    let limits = KeepLimits { keep: policy.keep, age: policy.days.map(|d| u64::from(d).saturating_mul(DAY)) };
    if limits == KeepLimits::default() {
        return Ok(true);
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos());
    let now = u64::try_from(now).unwrap_or(u64::MAX);
    let mut good = true;
    let sessions = things.iter().filter_map(|t| match t {
        Thing::Session(s) if s.archived.is_none() => Some(s),
        _ => None,
    });
    for session in sessions {
        match review::let_go(&session.applied_dir(), &limits, now, dry_run) {
            Ok(gone) if gone.is_empty() => {}
            Ok(gone) => {
                let bytes = gone.iter().map(|k| k.bytes).sum();
                let n = output::count(gone.len(), "application", "applications");
                let why = format!("{n} beyond [undo] of the configuration");
                json.gone("originals", format!("of {}", session.name), bytes, &why);
            }
            Err(e) => {
                output::error(&e);
                good = false;
            }
        }
    }
    Ok(good)
}

/// Everything in the store that may be let go.
fn gather(store: &Store) -> Result<(Vec<Thing>, Vec<Candidate>)> {
    let (mut things, mut candidates) = (Vec::new(), Vec::new());
    let all = store.usage()?;
    let strays = store.strays(all.iter().filter_map(|(_, s, _)| s.as_ref().ok()))?;
    for (name, session, usage) in all {
        let bytes = usage.total();
        match session {
            Ok(s) => {
                let counted = s.archived.as_ref().is_none_or(|a| store.owns(a));
                let expires = s.archived.as_ref().and_then(|a| a.expires);
                let bytes = if counted { bytes } else { bytes - usage.archive };
                candidates.push(Candidate { bytes, last_used: s.last_used(), expires, counted });
                things.push(Thing::Session(Box::new(s)));
            }
            Err(_) => {
                // Its age cannot be told: only its size is a reason.
                candidates.push(Candidate { bytes, last_used: u64::MAX, expires: None, counted: true });
                things.push(Thing::Broken(name));
            }
        }
    }
    for stray in strays {
        let (bytes, last_used, expires) = (stray.bytes, stray.written, stray.expires);
        candidates.push(Candidate { bytes, last_used, expires, counted: true });
        things.push(Thing::Stray(stray));
    }
    Ok((things, candidates))
}

/// What stands against letting it go.
fn holds(store: &Store, thing: &Thing) -> Holds {
    let busy = |e: Error| match e.kind {
        ErrorKind::Locked => Holds::Busy(e.message),
        _ => Holds::Unknown(e.message),
    };
    match thing {
        Thing::Stray(stray) => match stray.changes {
            Some(0) => Holds::Nothing,
            Some(n) => Holds::Changes(n),
            None => Holds::Unknown("it cannot be read, or is encrypted".into()),
        },
        Thing::Broken(name) => match store.lock(name, Role::Command) {
            Ok(_) => Holds::Unknown("it cannot be read".into()),
            Err(e) => busy(e),
        },
        Thing::Session(session) => match store.lock(&session.name, Role::Command) {
            Ok(lock) => session_holds(session, &lock),
            Err(e) => busy(e),
        },
    }
}

fn session_holds(session: &Session, lock: &crate::session::Lock) -> Holds {
    if let Some(archived) = &session.archived {
        return archive_holds(archived);
    }
    match context::count_changes(&mut session.clone(), lock) {
        Ok(0) => Holds::Nothing,
        Ok(n) => Holds::Changes(n),
        Err(e) => Holds::Unknown(e.message),
    }
}

/// Removes it, unless by now something stands against that.
fn remove(store: &Store, thing: &Thing, unapplied: bool, reason: Reason) -> Result<Holds> {
    match thing {
        Thing::Stray(stray) => store.remove_stray(stray)?,
        Thing::Broken(name) => {
            let lock = store.lock(name, Role::Command)?;
            store.remove(name, &lock)?;
        }
        Thing::Session(session) => {
            context::heal(session)?;
            let lock = match store.lock(&session.name, Role::Command) {
                Ok(lock) => lock,
                Err(e) if e.kind == ErrorKind::Locked => return Ok(Holds::Busy(e.message)),
                Err(e) => return Err(e),
            };
            let now = store.get(&session.name)?;
            if now.archived != session.archived {
                return Ok(Holds::Busy("it was archived or restored meanwhile".into()));
            }
            if !unapplied {
                let against = session_holds(&now, &lock);
                if against != Holds::Nothing {
                    return Ok(against);
                }
            }
            store.remove_with_archive(&now, &lock, reason == Reason::Expired)?;
        }
    }
    Ok(Holds::Nothing)
}

fn word(reason: Reason) -> &'static str {
    match reason {
        Reason::Expired => "past its time to live",
        Reason::Age => "not used for long",
        Reason::Size => "the largest",
    }
}

fn against_word(holds: &Holds) -> String {
    match holds {
        Holds::Nothing => String::new(),
        Holds::Busy(why) => why.clone(),
        Holds::Changes(n) => {
            format!("{} not applied; --yes takes it too", output::count(*n, "change", "changes"))
        }
        Holds::Unknown(why) => format!("{why}; --yes takes it too"),
    }
}

fn tell(args: &GcArgs, json: &Json) -> Result<()> {
    let mut out = Out::new();
    if args.json {
        out.json(json)?;
        return out.flush();
    }
    let verb = if json.dry_run { "would remove" } else { "removed" };
    for item in &json.removed {
        out.line(&format!("{verb} {} {} ({}, {})", item.kind, item.name, bytes(item.bytes), item.why))?;
    }
    for item in &json.kept {
        out.line(&format!("kept {} {} ({}): {}", item.kind, item.name, bytes(item.bytes), item.why))?;
    }
    out.flush()?;
    let freed = bytes(json.before - json.after);
    let would = if json.dry_run { "would free" } else { "freed" };
    output::note(&format!("{would} {freed}; {} in use", bytes(json.after)));
    if let Some(max) = args.max_total.filter(|&max| json.after > max) {
        output::note(&format!(
            "that is still more than {}: what is left must be kept",
            quote(bytes(max).as_bytes())
        ));
    }
    Ok(())
}
