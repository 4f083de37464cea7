//! A session served: union, mount, journal and control socket put together, and taken down again.

use super::allowance;
use super::idle;
use super::mounting::Way;
use super::output;
use crate::base::{Access, Errno, Error, ErrorKind, Name, RelPath, Result, Rules};
use crate::fuse::{self, How, Server};
use crate::journal::{Journal, Op};
use crate::layer::{LayerKind, partial};
use crate::session::{
    ControlServer, Handler, Holder, Leaving, LiveStatus, Lock, Merging, NewBase, PathBytes, Place, Role,
    Session, Store,
};
use crate::sys::{file, mount};
use crate::union::{Config, LayerConfig, Leave, RootConfig, Unfilled, Union, UpperConfig, View};
use parking_lot::{Condvar, Mutex};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long an unmount waits for programs that are just ending.
const PATIENCE: Duration = Duration::from_secs(10);

/// A session that is mounted and answers.
pub(super) struct Served {
    server: Arc<Server>,
    union: Arc<Union>,
    journal: Arc<Journal>,
    control: ControlServer,
    unmounter: Unmounter,
    guests: Arc<Guests>,
    /// Whether the mount is no longer at its place, or never to be taken away by us.
    gone: AtomicBool,
}

/// The commands that joined a served session; it does not end before them.
#[derive(Default)]
struct Guests {
    state: Mutex<Door>,
    left: Condvar,
}

#[derive(Default)]
struct Door {
    inside: usize,
    closed: bool,
}

impl Guests {
    fn count(&self) -> usize {
        self.state.lock().inside
    }

    /// False when the session is ending.
    fn enter(&self) -> bool {
        let mut door = self.state.lock();
        if !door.closed {
            door.inside += 1;
        }
        !door.closed
    }

    fn leave(&self) {
        self.state.lock().inside -= 1;
        self.left.notify_all();
    }

    /// Waits until all have left, and lets nobody in from then on.
    fn close(&self) {
        let mut door = self.state.lock();
        while door.inside > 0 {
            self.left.wait(&mut door);
        }
        door.closed = true;
    }
}

/// What can take a served mount down.
#[derive(Clone)]
pub(super) struct Unmounter {
    server: Weak<Server>,
    mountpoint: PathBuf,
    way: Way,
}

impl Unmounter {
    /// Takes the mount down, unless programs use it.
    ///
    /// # Errors
    /// With errno `EBUSY` when it is in use.
    pub(super) fn unmount(&self) -> Result<()> {
        let server = self.server.upgrade();
        match (self.way, &server) {
            (Way::Direct { .. }, Some(server)) => server.unmount()?,
            (Way::Direct { .. }, None) => {}
            // The server's own way with the helper is a lazy unmount, under which programs would lose their files.
            (Way::Helper, _) => crate::session::unmount_by_helper(&self.mountpoint, false)?,
        }
        if let Some(server) = server {
            server.note_taken_down();
        }
        Ok(())
    }
}

/// What is to be served, and how.
pub(super) struct What<'a> {
    /// The session; its lock is ours and nothing is left to repair.
    pub(super) session: &'a Session,
    /// Where.
    pub(super) mountpoint: &'a Path,
    /// By which way.
    pub(super) way: Way,
    /// Whether other users are let in.
    pub(super) allow_other: bool,
}

impl Served {
    /// Mounts and serves; when this returns, mount and control socket answer.
    ///
    /// # Errors
    /// When the journal, a directory, the mount or the socket cannot be had.
    pub(super) fn start(what: &What<'_>, lock: &mut Lock, store: &Store) -> Result<Served> {
        let session = what.session;
        let (journal, opening) = Journal::open(&session.journal_dir())?;
        if !opening.clean {
            return Err(Error::failure(format!("the journal of session {} is not in order", session.name))
                .hint(format!("run: sbx-fuse verify -s {}", session.name)));
        }
        refuse_incomplete(session)?;
        let journal = Arc::new(journal);
        let allowed = allowance::effective(session)?;
        let rules = allowance::rules(session, &allowed, false)?;
        let union = Union::new(config(what, store, &rules, journal.clone())?)?;
        union.govern(rules);
        union.record_first(session.meta.roots.len());
        union.limit(allowance::limits(&allowed)).map_err(|e| allowance::no_room(session, e))?;
        let how = match what.way {
            Way::Direct { .. } => How::Direct,
            Way::Helper => How::Helper,
        };
        let options = fuse::Options {
            how,
            allow_other: what.allow_other,
            fsname: session.fsname(),
            subtype: "sbx-fuse".into(),
            flags: libc::MS_NOSUID | libc::MS_NODEV,
            extra: Vec::new(),
            threads: threads(),
        };
        let server = Arc::new(fuse::mount(union.clone(), what.mountpoint, &options)?);
        let unmounter = Unmounter {
            server: Arc::downgrade(&server),
            mountpoint: what.mountpoint.to_owned(),
            way: what.way,
        };
        let guests = Arc::new(Guests::default());
        let live = Live {
            name: session.name.clone(),
            union: union.clone(),
            journal: journal.clone(),
            guests: guests.clone(),
            handed_over: what.way == Way::Helper && what.mountpoint == session.mountpoint_dir(),
            unmounter: unmounter.clone(),
            status: LiveStatus {
                pid: std::process::id(),
                mountpoint: PathBytes::from(what.mountpoint),
                since: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64),
                command: session.meta.command.clone(),
            },
        };
        let started =
            ControlServer::start(&session.meta.id, &session.dir, Arc::new(live)).and_then(|control| {
                let socket = Some(PathBytes::from(control.path()));
                lock.tell(&Holder { pid: nix::unistd::getpid().as_raw(), role: Role::Server, socket })?;
                Ok(control)
            });
        match started {
            Ok(control) => {
                idle::start();
                let gone = AtomicBool::new(false);
                Ok(Served { server, union, journal, control, unmounter, guests, gone })
            }
            Err(e) => {
                // The error that is told is the first one.
                if let Err(also) = unmounter.unmount() {
                    output::error(&also);
                }
                Err(e)
            }
        }
    }

    /// Notes in the journal that process `pid` and what descends from it are the command `argv`.
    pub(super) fn begin_command<T: AsRef<[u8]>>(&self, pid: u32, argv: impl IntoIterator<Item = T>) {
        if let Err(e) = self.journal.begin_command(pid, argv) {
            output::note(&format!("the journal will not name the command: {e}"));
        }
    }

    /// Waits for the commands that joined the session, and lets no other join. `waiting` is called if there are some.
    pub(super) fn close(&self, waiting: impl FnOnce(usize)) {
        let guests = self.guests.count();
        if guests > 0 {
            waiting(guests);
        }
        self.guests.close();
    }

    /// With which a signal can end the mount.
    pub(super) fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    /// Blocks until the mount is gone, by whatever means.
    ///
    /// # Errors
    /// When serving ended with an error.
    pub(super) fn wait(&self) -> Result<()> {
        let ended = self.server.wait();
        self.gone.store(true, Ordering::Release);
        ended
    }

    /// A sandbox has the mount in its own mount namespace now. Where the helper made it, everybody sees it as well: it
    /// is taken away there, so that it goes with the sandbox and nothing stale is left, however we end.
    pub(super) fn hand_over(&self) {
        if self.unmounter.way != Way::Helper {
            return;
        }
        match self.detach() {
            Ok(()) => self.gone.store(true, Ordering::Release),
            Err(e) => tracing::warn!("{e}"),
        }
    }

    /// Takes the mount down, if it is still there, and closes the journal in good order.
    ///
    /// # Errors
    /// When the mount cannot be taken down, or the journal cannot be closed.
    pub(super) fn finish(self) -> Result<()> {
        let gone = self.gone.load(Ordering::Acquire) || self.unmount()?;
        drop(self.control);
        if let Some(server) = Arc::into_inner(self.server).filter(|_| gone) {
            server.join()?;
        }
        // What is not complete stays marked, and the next command tries again.
        tell_unfilled(&self.union.complete());
        if self.union.is_degraded() {
            // Left open, so that the next command compares it with the upper.
            output::note("the journal missed something; the next command will compare it with the files");
            return Ok(());
        }
        self.journal.finish().map_err(|e| Error::sys("close the journal", e))
    }

    /// Whether the mount is gone altogether; a mount that is in use all the same is taken out of sight only.
    fn unmount(&self) -> Result<bool> {
        let start = Instant::now();
        loop {
            match self.unmounter.unmount() {
                Ok(()) => return Ok(true),
                Err(e) if e.errno == Some(Errno::EBUSY) && start.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                Err(e) => return self.detach().map_err(|_| e).map(|()| false),
            }
        }
    }

    fn detach(&self) -> Result<()> {
        let at = self.unmounter.mountpoint.as_path();
        match self.unmounter.way {
            Way::Direct { .. } => mount::umount(at.as_os_str().as_bytes(), true)
                .map_err(|e| Error::on_path("unmount", at.as_os_str().as_bytes(), e)),
            Way::Helper => crate::session::unmount_by_helper(at, true),
        }
    }
}

fn tell_unfilled(unfilled: &[Unfilled]) {
    for Unfilled { path, why } in unfilled {
        output::note(&format!("the copy of {path} is not complete: {why}"));
    }
}

/// How many threads serve a mount.
pub(super) fn threads() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from).clamp(2, 4)
}

/// A server would show the missing parts of an incomplete copy as zeros.
fn refuse_incomplete(session: &Session) -> Result<()> {
    for root in session.roots() {
        let work = root.work_dir();
        let bytes = work.as_os_str().as_bytes();
        let fd = file::open_path(bytes, libc::O_PATH | libc::O_DIRECTORY);
        let fd = fd.map_err(|e| Error::on_path("open", bytes, e))?;
        if partial::has_incomplete(fd.as_fd()).map_err(|e| Error::on_path("list", bytes, e))? {
            let name = &session.name;
            let why = format!("a file of session {name} is not complete, see above");
            let hint =
                format!("make room on its disk, or drop the file with: sbx-fuse discard -s {name} PATH");
            return Err(Error::failure(why).hint(hint));
        }
    }
    Ok(())
}

fn config(what: &What<'_>, store: &Store, rules: &Rules, journal: Arc<Journal>) -> Result<Config> {
    let open = |path: &Path| -> Result<OwnedFd> {
        let bytes = path.as_os_str().as_bytes();
        file::open_path(bytes, libc::O_PATH | libc::O_DIRECTORY).map_err(|e| Error::on_path("open", bytes, e))
    };
    let mut roots = Vec::new();
    for root in what.session.all_roots() {
        let meta = root.meta();
        let name = Name::new(meta.name.as_bytes())
            .map_err(|e| Error::on_path("use the name", meta.name.as_bytes(), e))?;
        // A private one has no real directory that anything is applied to.
        let lower = match root.index() < what.session.meta.roots.len() {
            true => root.open_lower()?.0,
            false => open(root.lower_dir())?,
        };
        roots.push(RootConfig {
            name,
            real_path: meta.path.as_bytes().to_vec(),
            upper: Some(UpperConfig {
                dir: open(&root.upper_dir())?,
                work: open(&root.work_dir())?,
                features: meta.features,
                shared: false,
            }),
            lowers: vec![LayerConfig { dir: lower, kind: LayerKind::Plain }],
        });
    }
    let mut hidden = Vec::new();
    for dir in [Some(store.dir().to_owned()), runtime_dir()].into_iter().flatten() {
        match open(&dir) {
            Ok(fd) => {
                let attr = file::stat(fd.as_fd())
                    .map_err(|e| Error::on_path("look at", dir.as_os_str().as_bytes(), e))?;
                hidden.push((attr.dev, attr.ino));
            }
            Err(e) if e.errno == Some(Errno::ENOENT) => {}
            Err(e) => return Err(e),
        }
    }
    // What is hidden by its path is hidden by all other names that it has now.
    for path in rules.paths(Access::Hide) {
        let bytes = path.as_os_str().as_bytes();
        match file::stat_at(nix::fcntl::AT_FDCWD, bytes) {
            Ok(attr) => hidden.push((attr.dev, attr.ino)),
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::EACCES) => {} // by its name, should it come
            Err(e) => return Err(Error::on_path("hide", bytes, e)),
        }
    }
    Ok(Config {
        single: roots.len() == 1,
        roots,
        hidden,
        journal: Some(journal),
        multi_user: what.allow_other,
        view: View::default(),
    })
}

/// Where our control sockets are.
pub(super) fn runtime_dir() -> Option<PathBuf> {
    let base = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|p| p.is_absolute())?;
    Some(base.join("sbx-fuse"))
}

/// What the control socket asks of a served session.
struct Live {
    name: String,
    union: Arc<Union>,
    journal: Arc<Journal>,
    guests: Arc<Guests>,
    /// Whether only the sandbox of the first command has the mount.
    handed_over: bool,
    unmounter: Unmounter,
    status: LiveStatus,
}

impl Handler for Live {
    fn status(&self) -> LiveStatus {
        self.status.clone()
    }

    fn new_epoch(&self) -> Result<()> {
        self.union.new_epoch();
        tell_unfilled(&self.union.begin_look());
        Ok(())
    }

    fn looked(&self) {
        self.union.end_look();
    }

    fn drop_change(&self, change: &Leaving) -> Result<bool> {
        let leave = Leave {
            op: if change.applied { Op::Applied } else { Op::Discarded },
            root: change.root,
            path: change.path.clone(),
            from: change.from.clone(),
            seen: change.seen.map(|s| (s.ino, s.ctime)),
            silent: change.silent.clone(),
        };
        let told = |e| Error::on_path("take out of the session", RelPath::as_bytes(&change.path), e);
        self.union.leave(&leave).map_err(told)
    }

    fn merge(&self, dir: &Merging) -> Result<bool> {
        let told = |e| Error::on_path("merge the directory", dir.path.as_bytes(), e);
        self.union.merge(dir.root, &dir.path, &dir.real).map_err(told)
    }

    fn based_on(&self, file: &NewBase) -> Result<bool> {
        self.union
            .based_on(file.root, &file.path, file.ino, (&file.real, file.base.clone()))
            .map_err(|e| Error::on_path("note the new base of", file.path.as_bytes(), e))
    }

    fn umount(&self) -> Result<()> {
        let name = &self.name;
        match self.guests.count() {
            0 => self.unmounter.unmount(),
            n => {
                let n = output::count(n, "command", "commands");
                Err(Error::new(ErrorKind::Locked, format!("{n} of `exec` run in session {name}"))
                    .hint(format!("wait for their end, or end them with: sbx-fuse stop {name}")))
            }
        }
    }

    fn join(&self) -> Result<Place> {
        let name = &self.name;
        if self.handed_over {
            let why = format!("session {name} runs a command on a mount that no other command can see");
            return Err(Error::new(ErrorKind::Locked, why).hint(format!(
                "a root holds files of other users, so the mount had to be made by fusermount3; wait for the \
                 command's end, or mount the session instead: sbx-fuse mount -s {name} MOUNTPOINT"
            )));
        }
        if !self.guests.enter() {
            return Err(ending(name));
        }
        let own = self.unmounter.way == Way::Direct { own: true };
        Ok(Place { pid: std::process::id(), mountpoint: self.status.mountpoint.clone(), own })
    }

    fn leave(&self) {
        self.guests.leave();
    }

    fn begin_command(&self, pid: u32, argv: &[PathBytes]) {
        if let Err(e) = self.journal.begin_command(pid, argv.iter().map(PathBytes::as_bytes)) {
            tracing::warn!("the journal will not name a command: {e}");
        }
    }
}

/// The error that a session cannot be joined because it is ending; it can be had again in a moment.
fn ending(name: &str) -> Error {
    let mut e = Error::new(ErrorKind::Locked, format!("session {name} is just ending"));
    e.hint = Some(ENDING.into());
    e
}

/// The hint of [`ending`], by which a client knows it.
pub(super) const ENDING: &str = "try again";
