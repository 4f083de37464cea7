//! A session opened by a command: live, through its server, or resting, with its lock taken and what a crash left
//! repaired.

use super::reconcile::reconcile;
use super::state::put_back;
use super::{Which, output, paths};
use crate::base::{ChangeSet, Error, ErrorKind, RelPath, Result};
use crate::journal::{self, Folded, Journal, Op, Record};
use crate::review::{self, Dropper, Replaced, RootDirs, Settled};
use crate::session::{self, Client, Holder, Leaving, Lock, Merging, Role, Session, Store};
use crate::sys::owner::Rights;
use crate::sys::proc;
use std::time::{Duration, Instant};

/// How long a server may take from taking the lock to answering, on a machine that is busy.
const STARTING: Duration = Duration::from_secs(30);

/// A session that a command looks at or changes.
pub(super) struct Opened {
    /// The session.
    pub(super) session: Session,
    /// Its server, when it is live.
    pub(super) live: Option<Client>,
    /// Its lock, when it rests.
    lock: Option<Lock>,
    /// What its journal amounts to.
    pub(super) folded: Folded,
    /// Its directories.
    pub(super) roots: Vec<RootDirs>,
    /// What had to be repaired, in sentences; already told.
    pub(super) repaired: Vec<String>,
    /// To look at what a program made of mode 000 like at anything else.
    #[expect(dead_code, reason = "is had as long as the session is open")]
    rights: Rights,
}

/// The session a command means.
pub(super) fn select(which: &Which) -> Result<Session> {
    let store = Store::open()?;
    let session = match &which.session {
        Some(name) => store.get(name)?,
        None => {
            let cwd = paths::cwd()?;
            store.find_default(&cwd)?
        }
    };
    session.check_present()?;
    heal(&session)?;
    Ok(session)
}

/// Finishes or takes back an application that a crash left half-way, and says so. Costs next to nothing when there is
/// none; of a session that somebody else has, it is theirs to do.
///
/// # Errors
/// When it can neither be finished nor taken back.
pub(super) fn heal(session: &Session) -> Result<()> {
    let _rights = Rights::new();
    if session.archived.is_some() || !review::is_unfinished(&session.applied_dir())? {
        return Ok(());
    }
    let said = match connect(session)? {
        Some(mut client) => recover_live(session, &mut client, &root_dirs(session)?)?,
        None => {
            let _lock = match session.lock() {
                Ok(lock) => lock,
                Err(e) if e.kind == ErrorKind::Locked => return Ok(()),
                Err(e) => return Err(e),
            };
            let mut said = Vec::new();
            recover_resting(session, &root_dirs(session)?, &mut said)?;
            said.iter().map(|s| format!("session {}: {s}", session.name)).collect()
        }
    };
    output::notes(&said);
    Ok(())
}

impl Opened {
    /// Opens the session that `which` names.
    ///
    /// # Errors
    /// `Usage` when there is none, `Locked` when another command has it, else when it cannot be read or repaired.
    pub(super) fn open(which: &Which) -> Result<Opened> {
        Opened::of(select(which)?)
    }

    /// Opens this session.
    ///
    /// # Errors
    /// As [`Opened::open`].
    pub(super) fn of(mut session: Session) -> Result<Opened> {
        let rights = Rights::new();
        if let Some(mut client) = connect(&session)? {
            client.new_epoch()?;
            let roots = root_dirs(&session)?;
            let repaired = recover_live(&session, &mut client, &roots)?;
            output::notes(&repaired);
            let folded = journal::fold_dir(&session.journal_dir())?;
            let opened = Opened { session, live: Some(client), lock: None, folded, roots, repaired, rights };
            return opened.finished();
        }
        let lock = session.lock()?;
        let roots = root_dirs(&session)?;
        let (folded, repaired) = settle_down(&mut session, &lock, &roots)?;
        output::notes(&repaired);
        let opened = Opened { session, live: None, lock: Some(lock), folded, roots, repaired, rights };
        opened.finished()
    }

    fn finished(mut self) -> Result<Opened> {
        let said = super::review::finish_parts(&mut self)?;
        output::notes(&said);
        self.repaired.extend(said);
        Ok(self)
    }

    /// The lock of a session that rests.
    pub(super) fn lock(&self) -> Option<&Lock> {
        self.lock.as_ref()
    }

    /// Reads the journal again, after something left the session.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(super) fn refold(&mut self) -> Result<()> {
        self.folded = journal::fold_dir(&self.session.journal_dir())?;
        Ok(())
    }

    /// The changes, compared with the real objects.
    ///
    /// # Errors
    /// When an object cannot be read.
    pub(super) fn settled(&self) -> Result<Vec<Settled>> {
        review::settle(&self.roots, &self.folded.set)
    }

    /// Calls `f` with what takes changes out of this session, as `op`.
    ///
    /// # Errors
    /// What `f` returns, or when the journal cannot be written.
    pub(super) fn with_dropper<T>(
        &mut self,
        op: Op,
        f: impl FnOnce(&[RootDirs], &mut dyn Dropper) -> Result<T>,
    ) -> Result<T> {
        let set = &self.folded.set;
        let why = if op == Op::Applied { review::Leave::Applied } else { review::Leave::Discarded };
        if let Some(client) = &mut self.live {
            let replaced = Replaced::new(set, why);
            return f(&self.roots, &mut Live { client, roots: &self.roots, set, why, replaced });
        }
        let (journal, _) = Journal::open(&self.session.journal_dir())?;
        let offline = review::Offline::new(&self.roots, set, why);
        let value = f(&self.roots, &mut Resting { offline, journal: &journal, set, op });
        journal.close().map_err(|e| Error::sys("close the journal", e))?;
        value
    }
}

/// The server of a live session; `None` when it rests. One that is just starting is waited for.
///
/// # Errors
/// When a server has the session and does not answer.
pub(super) fn connect(session: &Session) -> Result<Option<Client>> {
    let start = Instant::now();
    loop {
        match session.holder()? {
            Some(Holder { role: Role::Server, pid, .. }) if proc::is_stopped(pid) => {
                return Err(suspended(&session.name, pid));
            }
            Some(Holder { role: Role::Server, socket: Some(socket), .. }) => {
                // The kernel still takes connections for a process that is being killed: only an answer counts.
                let answered = Client::connect(socket.as_path()).and_then(|mut c| c.ping().map(|()| c));
                match answered {
                    Ok(client) => return Ok(Some(client)),
                    // It may just have ended; then the lock is free in a moment.
                    Err(e) if start.elapsed() > STARTING => return Err(e),
                    Err(_) => {}
                }
            }
            Some(holder @ Holder { role: Role::Server, socket: None, .. }) => {
                if start.elapsed() > STARTING {
                    return Err(session.in_use(Some(&holder)));
                }
            }
            Some(Holder { role: Role::Command, .. }) | None => return Ok(None),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The error that a server was stopped, by Ctrl-Z for example, and answers nobody until it goes on.
fn suspended(name: &str, pid: i32) -> Error {
    let why = format!("session {name} is suspended: its server, process {pid}, is stopped");
    Error::new(ErrorKind::Locked, why).hint(format!(
        "let it go on with `fg` in its terminal, or with: kill -CONT {pid}; or end it: sbx-fuse stop {name}"
    ))
}

/// The directories of all roots, for `review`.
///
/// # Errors
/// When one cannot be opened.
pub(super) fn root_dirs(session: &Session) -> Result<Vec<RootDirs>> {
    session
        .roots()
        .map(|r| {
            let told = |e: Error| {
                let hint = e.hint.clone().unwrap_or_else(|| put_back(&session.name));
                e.context(format!("session {} cannot be used", session.name)).hint(hint)
            };
            let (real, note) = r.open_lower().map_err(told)?;
            if let Some(note) = note {
                output::note(&format!("session {}: {note}", session.name));
            }
            let (upper, work) = (r.upper_dir(), r.work_dir());
            let mut dirs = RootDirs::open(r.lower_dir(), &upper, &work, r.meta().features).map_err(told)?;
            // The path may lead elsewhere since.
            dirs.real = real;
            dirs.root = u16::try_from(r.index()).unwrap_or(u16::MAX);
            dirs.kept = session.applied_dir();
            Ok(dirs)
        })
        .collect()
}

/// Repairs what a server that died left of a session whose lock is ours, and folds its journal. The sentences say what
/// was repaired. For that it reads what programs made of mode 000 like anything else, also in a process that is to be
/// the next server, but is none yet.
///
/// # Errors
/// When something cannot be repaired or read.
pub(super) fn settle_down(
    session: &mut Session,
    lock: &Lock,
    roots: &[RootDirs],
) -> Result<(Folded, Vec<String>)> {
    let _rights = Rights::new();
    let mut said = session::recover(session, lock)?;
    recover_resting(session, roots, &mut said)?;
    let folded = reconcile(session, roots, &mut said)?;
    let named = |s: String| format!("session {}: {s}", session.name);
    Ok((folded, said.into_iter().map(named).collect()))
}

fn has(set: &ChangeSet, root: u16, path: &RelPath) -> bool {
    set.changes.binary_search_by(|c| (c.root, &c.path).cmp(&(root, path))).is_ok()
}

/// Finishes or takes back an interrupted application. Before journal and upper are compared: they are compared by way
/// of the real tree.
fn recover_resting(session: &Session, roots: &[RootDirs], said: &mut Vec<String>) -> Result<()> {
    let Some(mut recovery) = review::recover(roots, &session.applied_dir(), &mut review::NoFault)? else {
        return Ok(());
    };
    said.append(&mut recovery.said);
    if !recovery.has_leavers() {
        return Ok(());
    }
    // Not closed in good order: what the crash left unnoted is found by comparing.
    let (journal, _) = Journal::open(&session.journal_dir())?;
    let set = journal::fold_dir(&session.journal_dir())?.set;
    let offline = review::Offline::new(roots, &set, review::Leave::Applied);
    let mut dropper = Resting { offline, journal: &journal, set: &set, op: Op::Applied };
    recovery.drop_with(roots, &|root, path| has(&set, root, path), &mut dropper)?;
    journal.sync().map_err(|e| Error::sys("write the journal", e))
}

fn recover_live(session: &Session, client: &mut Client, roots: &[RootDirs]) -> Result<Vec<String>> {
    let Some(mut recovery) = review::recover(roots, &session.applied_dir(), &mut review::NoFault)? else {
        return Ok(Vec::new());
    };
    if recovery.has_leavers() {
        let set = journal::fold_dir(&session.journal_dir())?.set;
        let why = review::Leave::Applied;
        let mut dropper = Live { client, roots, set: &set, why, replaced: Replaced::new(&set, why) };
        recovery.drop_with(roots, &|root, path| has(&set, root, path), &mut dropper)?;
    }
    let named = |s: &String| format!("session {}: {s}", session.name);
    Ok(recovery.said.iter().map(named).collect())
}

/// How many changes a session has that rests and whose lock is ours.
///
/// # Errors
/// As [`settle_down`].
pub(super) fn count_changes(session: &mut Session, lock: &Lock) -> Result<usize> {
    let _rights = Rights::new();
    let roots = root_dirs(session)?;
    let (folded, said) = settle_down(session, lock, &roots)?;
    output::notes(&said);
    Ok(review::settle(&roots, &folded.set)?.len())
}

/// The directories from `path` up to the first that is a change itself.
fn silent_above(set: &ChangeSet, root: u16, path: &RelPath) -> Vec<RelPath> {
    let above = std::iter::successors(path.parent(), RelPath::parent);
    above.take_while(|dir| !dir.is_root() && !has(set, root, dir)).collect()
}

/// Drops through the server.
struct Live<'a> {
    client: &'a mut Client,
    roots: &'a [RootDirs],
    set: &'a ChangeSet,
    why: review::Leave,
    replaced: Replaced,
}

impl Live<'_> {
    /// Has the server merge the directories that stand between `path` and the real tree.
    fn merge_way(&mut self, root: u16, path: &RelPath) -> Result<()> {
        let Live { client, roots, replaced, .. } = self;
        let Some(dirs) = roots.iter().find(|r| r.root == root) else { return Ok(()) };
        replaced.merge_way(dirs, path, |at, real| {
            client.merge(&Merging { root, path: at.clone(), real: real.clone() }).map(drop)
        })
    }
}

impl Dropper for Live<'_> {
    fn drop(&mut self, root: u16, path: &RelPath, seen: Option<review::Seen>) -> Result<bool> {
        let at = self.set.changes.binary_search_by(|c| (c.root, &c.path).cmp(&(root, path)));
        let from = at.ok().and_then(|i| self.set.changes[i].from.as_ref());
        let from = from.map(|f| review::merged(self.set, root, f));
        self.merge_way(root, path)?;
        if let Some(from) = from.as_ref().filter(|_| self.why == review::Leave::Discarded) {
            self.merge_way(root, from)?;
        }
        let mut silent = silent_above(self.set, root, path);
        silent.extend(from.iter().flat_map(|from| silent_above(self.set, root, from)));
        let left = self.client.drop_change(&Leaving {
            applied: self.why == review::Leave::Applied,
            root,
            path: path.clone(),
            from,
            seen: seen.map(|s| session::Seen { ino: s.ino, ctime: s.ctime }),
            silent,
        })?;
        if left {
            self.replaced.left(root, path);
        }
        Ok(left)
    }
}

/// Drops by editing the upper, and notes it in the journal.
struct Resting<'a> {
    offline: review::Offline<'a>,
    journal: &'a Journal,
    set: &'a ChangeSet,
    op: Op,
}

impl Dropper for Resting<'_> {
    fn drop(&mut self, root: u16, path: &RelPath, seen: Option<review::Seen>) -> Result<bool> {
        let left = self.offline.drop(root, path, seen);
        // Also what a failure left half-way.
        for record in self.offline.untold() {
            self.note(&record)?;
        }
        if !left? {
            return Ok(false);
        }
        let at = self.set.changes.binary_search_by(|c| (c.root, &c.path).cmp(&(root, path)));
        let kind = at.map_or(crate::base::Kind::File, |i| self.set.changes[i].kind);
        let record = Record {
            op: self.op,
            root,
            path: path.clone(),
            path2: None,
            kind,
            base: None,
            base2: None,
            proc: self.journal.process(std::process::id()),
        };
        self.note(&record).map(|()| true)
    }
}

impl Resting<'_> {
    fn note(&self, record: &Record) -> Result<()> {
        let told = |e| Error::on_path("note in the journal", record.path.as_bytes(), e);
        self.journal.append(record).map(drop).map_err(told)
    }
}
