//! Sessions on disk: where they are, making one, finding one, removing one.

use super::archive::Archived;
use super::archive_lower::DirId;
use super::config::{LimitsConfig, PolicyConfig, QuotaConfig};
use super::lock::{self, Holder, Lock, Role};
use super::meta::{META_VERSION, Meta, PathBytes, RootMeta};
use super::names;
use super::remove::remove_tree;
use super::roots::ChosenRoot;
use crate::base::{Errno, Error, ErrorKind, Result, quote};
use crate::layer;
use crate::sys::{dir, file};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The environment variable that names the session of a command.
pub const ENV_SESSION: &str = "SBX_FUSE_SESSION";

/// The one that tells a command in a sandbox the id of that session.
pub const ENV_SESSION_ID: &str = "SBX_FUSE_SESSION_ID";

/// How long to wait for others that make sessions at the same time.
const TURN: Duration = Duration::from_secs(60);

/// The way out where sessions cannot be kept.
const NO_STATE: &str =
    "set XDG_STATE_HOME to a directory of your own that can be written to, or see: sbx-fuse doctor";

/// The directory that holds all sessions of a user.
#[derive(Clone, Debug)]
pub struct Store {
    dir: PathBuf,
}

/// One session.
#[derive(Clone, Debug)]
pub struct Session {
    /// Its name: that of its directory.
    pub name: String,
    /// Its directory.
    pub dir: PathBuf,
    /// What `meta.json` says.
    pub meta: Meta,
    /// Where its archive is, when it is archived; its directory then holds nothing else.
    pub archived: Option<Archived>,
}

/// The places of one root of a session.
#[derive(Clone, Copy, Debug)]
pub struct Root<'a> {
    session: &'a Session,
    index: usize,
}

impl Store {
    /// The user's store: `$XDG_STATE_HOME/sbx-fuse`, by default `~/.local/state/sbx-fuse`. Nothing is made yet.
    ///
    /// # Errors
    /// `Usage` when neither variable says where; `Failure` when the directory is another user's.
    pub fn open() -> Result<Store> {
        let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
        // The XDG specification: a relative path is invalid and to be ignored.
        let state = absolute("XDG_STATE_HOME").or_else(|| absolute("HOME").map(|h| h.join(".local/state")));
        match state {
            Some(state) => Store::at(state.join("sbx-fuse")),
            None => Err(Error::usage("neither XDG_STATE_HOME nor HOME says where to keep sessions")
                .hint("set HOME, or XDG_STATE_HOME to an absolute path")),
        }
    }

    /// A store in `dir`.
    ///
    /// # Errors
    /// `Failure` when `dir` is another user's, whose sessions we would spoil (`sudo` with the user's HOME).
    pub fn at(dir: PathBuf) -> Result<Store> {
        let shown = dir.as_os_str().as_bytes();
        match file::stat_at(cwd(), shown) {
            Ok(attr) if attr.uid != crate::sys::process::effective_ids().0 => {
                Err(Error::failure(format!("{} belongs to the user with id {}", quote(shown), attr.uid))
                    .hint("run as that user, or set XDG_STATE_HOME to a directory of your own"))
            }
            Ok(_) | Err(Errno::ENOENT) => Ok(Store { dir }),
            Err(e) => Err(Error::on_path("use", shown, e).hint(NO_STATE)),
        }
    }

    /// The store's directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub(super) fn sessions(&self) -> PathBuf {
        self.dir.join("sessions")
    }

    /// Makes a session over `roots`, with a readable random name unless one is given. An `exclusive` one reserves its
    /// roots: while it exists no other session has a root in or around them.
    ///
    /// # Errors
    /// `Usage` for a name that cannot be one or is taken; `Locked` naming the session that has a root reserved, or that
    /// has one where this one would reserve it; else as making files.
    pub fn create(&self, name: Option<&str>, roots: &[ChosenRoot], exclusive: bool) -> Result<Session> {
        if let Some(name) = name {
            names::check(name.as_bytes())?;
        }
        let parent = self.make_dirs()?;
        self.sweep();
        let _alone = self.alone()?;
        let places: Vec<&Path> = roots.iter().filter(|r| !r.private).map(|r| r.path.as_path()).collect();
        self.check_reserved(&places, exclusive, None)?;
        let id = names::random_hex::<16>()?;
        let temp = format!(".new-{id}");
        let path = self.sessions().join(&temp);
        let built = self.build(&path, id, name.is_some(), (roots, exclusive)).and_then(|meta| {
            let mut attempt = 0;
            loop {
                let suggested = names::suggest(attempt)?;
                let to = name.unwrap_or(&suggested);
                let flags = libc::RENAME_NOREPLACE;
                match file::renameat(parent.as_fd(), temp.as_bytes(), parent.as_fd(), to.as_bytes(), flags) {
                    Ok(()) => return Ok((to.to_owned(), meta)),
                    Err(Errno::EEXIST) if name.is_none() && attempt < 64 => attempt += 1,
                    Err(Errno::EEXIST) => {
                        return Err(Error::usage(format!("there is already a session {to}"))
                            .hint("choose another name, or see: sbx-fuse ls"));
                    }
                    Err(e) => return Err(Error::on_path("make the session", to, e)),
                }
            }
        });
        match built {
            Ok((name, meta)) => Ok(Session { dir: self.sessions().join(&name), name, meta, archived: None }),
            Err(e) => match remove_tree(parent.as_fd(), temp.as_bytes()) {
                Ok(()) => Err(e),
                Err(also) => {
                    let mut e = e;
                    e.causes.push(format!("and {} was left behind: {also}", quote(temp.as_bytes())));
                    Err(e)
                }
            },
        }
    }

    /// Until this is dropped no other command makes, names or brings back a session: between the look at the others and
    /// the moment in which they see this one, nobody else may look.
    ///
    /// # Errors
    /// As [`Lock::take`].
    pub(super) fn alone(&self) -> Result<Lock> {
        Lock::take_within(TURN, &self.dir.join("create.lock"), "store", Role::Command)
    }

    /// Refuses roots that lie in or around those of a session, but the one called `except`, if either is exclusive. To
    /// be called while [`Store::alone`].
    ///
    /// # Errors
    /// `Locked` naming the session.
    pub(super) fn check_reserved(
        &self,
        roots: &[&Path],
        exclusive: bool,
        except: Option<&str>,
    ) -> Result<()> {
        for (name, session) in self.list()? {
            let Ok(session) = session else { continue };
            if !exclusive && !session.meta.exclusive || except == Some(name.as_str()) {
                continue;
            }
            let mut theirs = session.meta.roots.iter().map(|r| r.path.as_path());
            let meets = |a: &Path| roots.iter().any(|b| a.starts_with(b) || b.starts_with(a));
            if let Some(taken) = theirs.find(|a| meets(a)) {
                let shown = quote(taken.as_os_str().as_bytes());
                let why = if session.meta.exclusive {
                    format!("session {name} has {shown} for itself alone (--exclusive)")
                } else {
                    format!("session {name} has a root at {shown} already, so that it cannot be reserved")
                };
                return Err(Error::new(ErrorKind::Locked, why).hint(format!(
                    "go on with it: sbx-fuse exec {name} -- CMD; or throw it away: sbx-fuse rm {name}"
                )));
            }
        }
        Ok(())
    }

    pub(super) fn make_dirs(&self) -> Result<std::os::fd::OwnedFd> {
        let mut ancestors: Vec<&Path> = self.dir.ancestors().skip(1).collect();
        ancestors.reverse();
        for dir in ancestors {
            make_dir(dir)?;
        }
        make_dir(&self.dir)?;
        make_dir(&self.sessions())?;
        for dir in [&self.dir, &self.sessions()] {
            let fd = open_dir(dir)?;
            let closed = file::stat(fd.as_fd()).and_then(|a| match a.perm & 0o077 {
                0 => Ok(()),
                _ => file::chmod_fd(fd.as_fd(), 0o700),
            });
            closed.map_err(|e| Error::on_path("make private", dir.as_os_str().as_bytes(), e))?;
        }
        open_dir(&self.sessions())
    }

    /// Fills the new directory `path` with what a session has.
    fn build(
        &self,
        path: &Path,
        id: String,
        named: bool,
        (roots, exclusive): (&[ChosenRoot], bool),
    ) -> Result<Meta> {
        for dir in ["", "journal", "roots", "mnt"] {
            make_dir(&path.join(dir))?;
        }
        let (mut metas, mut private) = (Vec::new(), Vec::new());
        // Where roots are is told by their place in the list, so that those that a review shows come first.
        let ordered = roots.iter().filter(|r| !r.private).chain(roots.iter().filter(|r| r.private));
        for (i, root) in ordered.enumerate() {
            let dir = path.join("roots").join(i.to_string());
            make_dir(&dir)?;
            make_dir(&dir.join("upper"))?;
            make_dir(&dir.join("work"))?;
            let work = open_dir(&dir.join("work"))?;
            let features = layer::probe(work.as_fd())
                .map_err(|e| Error::on_path("use", dir.as_os_str().as_bytes(), e))?;
            let id = match DirId::at(&root.path) {
                Ok(id) if !root.private => Some(id),
                Ok(_) | Err(Errno::ENOENT) => None,
                Err(e) => return Err(Error::on_path("use the root", root.path.as_os_str().as_bytes(), e)),
            };
            let list = if root.private { &mut private } else { &mut metas };
            list.push(RootMeta {
                path: PathBytes::from(root.path.as_path()),
                name: PathBytes(root.name.clone()),
                features,
                id,
            });
        }
        let created = now();
        let meta = Meta {
            version: META_VERSION,
            id,
            created,
            named,
            roots: metas,
            private,
            command: Vec::new(),
            quota: QuotaConfig::default(),
            limits: LimitsConfig::default(),
            policy: PolicyConfig::default(),
            exclusive,
            mountpoint: None,
        };
        write_meta(path, &meta)?;
        Ok(meta)
    }

    /// The session called `name`.
    ///
    /// # Errors
    /// `Usage` when there is none; `Failure` when it cannot be read.
    pub fn get(&self, name: &str) -> Result<Session> {
        names::check(name.as_bytes())?;
        let dir = self.sessions().join(name);
        match file::stat_at(cwd(), dir.as_os_str().as_bytes()) {
            Ok(_) => self.load(name.to_owned(), dir),
            Err(Errno::ENOENT | Errno::ENOTDIR) => {
                Err(Error::usage(format!("there is no session {name}")).hint("see: sbx-fuse ls"))
            }
            Err(e) => Err(Error::on_path("open", dir.as_os_str().as_bytes(), e)),
        }
    }

    fn load(&self, name: String, dir: PathBuf) -> Result<Session> {
        let path = dir.join("meta.json");
        let (meta, archived) = std::fs::read(&path)
            .map_err(|e| Error::on_path("read", path.as_os_str().as_bytes(), e))
            .and_then(|bytes| Meta::parse(&bytes))
            .and_then(|meta| Ok((meta, Archived::load(&dir)?)))
            .map_err(|e| {
                let hint = e.hint.clone();
                let told = e.context(format!("session {name} cannot be read"));
                told.hint(hint.unwrap_or_else(|| format!("throw it away with: sbx-fuse rm {name}")))
            })?;
        Ok(Session { name, dir, meta, archived })
    }

    /// All sessions, by name; one that cannot be read is an error beside its name.
    ///
    /// # Errors
    /// When the store cannot be listed.
    pub fn list(&self) -> Result<Vec<(String, Result<Session>)>> {
        let path = self.sessions();
        let flags = libc::O_RDONLY | libc::O_DIRECTORY;
        let fd = match file::open_path(path.as_os_str().as_bytes(), flags) {
            Ok(fd) => fd,
            Err(Errno::ENOENT) => return Ok(Vec::new()),
            Err(e) => return Err(Error::on_path("list", path.as_os_str().as_bytes(), e)),
        };
        let entries =
            dir::entries(fd.as_fd()).map_err(|e| Error::on_path("list", path.as_os_str().as_bytes(), e))?;
        let mut all: Vec<_> = entries
            .iter()
            .filter_map(|e| names::check(&e.name).ok())
            .map(|name| (name.to_owned(), self.load(name.to_owned(), path.join(name))))
            .collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(all)
    }

    /// The session a command in the directory `cwd` means: the one `$SBX_FUSE_SESSION` names, else the newest that
    /// is mounted around `cwd` or has a root around it. In a sandbox the variable names the session around it, which is
    /// none of this store.
    ///
    /// # Errors
    /// `Usage` when there is none.
    pub fn find_default(&self, cwd: &Path) -> Result<Session> {
        if let Some(name) = std::env::var_os(ENV_SESSION).filter(|n| !n.is_empty()) {
            let name = names::check(name.as_bytes())?;
            let around = std::env::var_os(ENV_SESSION_ID).is_some()
                && file::stat_at(self::cwd(), self.sessions().join(name).as_os_str().as_bytes())
                    == Err(Errno::ENOENT);
            if !around {
                return self.get(name).map_err(|e| e.context(format!("{ENV_SESSION} is set to {name}")));
            }
        }
        let here = cwd.canonicalize().unwrap_or_else(|_| cwd.to_owned());
        let holds = |s: &Session| {
            let mounted = s.meta.mountpoint.iter().any(|m| here.starts_with(m.as_path()));
            mounted || s.meta.roots.iter().any(|r| here.starts_with(r.path.as_path()))
        };
        let all = self.list()?;
        let some = !all.is_empty();
        let newest = all
            .into_iter()
            .filter_map(|(_, s)| s.ok())
            .filter(holds)
            // An archived one is meant only where no other can be.
            .max_by_key(|s| (s.archived.is_none(), s.meta.created, s.name.clone()));
        newest.ok_or_else(|| {
            let hint = if some {
                "name one with -s NAME; see: sbx-fuse ls"
            } else {
                "make one with: sbx-fuse run -- CMD"
            };
            let shown = quote(here.as_os_str().as_bytes());
            Error::usage(format!("no session has a root that holds {shown}")).hint(hint)
        })
    }

    /// Removes a session with all it holds. Its lock must be ours; after the first step, a rename, nobody finds the
    /// session any more, and what a crash leaves is swept away later.
    ///
    /// # Errors
    /// As renaming and removing files.
    pub fn remove(&self, name: &str, _lock: &Lock) -> Result<()> {
        names::check(name.as_bytes())?;
        let told = |e: Errno| Error::on_path("remove the session", name, e);
        let parent = open_dir(&self.sessions())?;
        let trash = format!(".trash-{name}-{}", names::random_hex::<8>()?);
        file::renameat(parent.as_fd(), name.as_bytes(), parent.as_fd(), trash.as_bytes(), 0).map_err(told)?;
        remove_tree(parent.as_fd(), trash.as_bytes()).map_err(told)
    }

    /// Gives a session the name `to`; its lock must be ours.
    ///
    /// # Errors
    /// `Usage` for a name that cannot be one or is taken; else as `rename(2)`.
    pub fn rename(&self, session: Session, to: &str, _lock: &Lock) -> Result<Session> {
        names::check(to.as_bytes())?;
        // Who lists the sessions meanwhile could meet neither name.
        let _alone = self.alone()?;
        let parent = open_dir(&self.sessions())?;
        let (from, flags) = (session.name.as_bytes(), libc::RENAME_NOREPLACE);
        match file::renameat(parent.as_fd(), from, parent.as_fd(), to.as_bytes(), flags) {
            Ok(()) => Ok(Session { name: to.to_owned(), dir: self.sessions().join(to), ..session }),
            Err(Errno::EEXIST) => Err(Error::usage(format!("there is already a session {to}"))
                .hint("choose another name, or see: sbx-fuse ls")),
            Err(e) => Err(Error::on_path("rename the session", &session.name, e)),
        }
    }

    /// Removes what interrupted removals left. Failures are left to the next time: nobody waits for this.
    fn sweep(&self) {
        let Ok(parent) = open_dir(&self.sessions()) else { return };
        for entry in dir::entries(parent.as_fd()).unwrap_or_default() {
            if entry.name.starts_with(b".trash-")
                && let Err(e) = remove_tree(parent.as_fd(), &entry.name)
            {
                tracing::warn!("cannot sweep {}: {e}", quote(&entry.name));
            }
        }
    }

    /// Takes the lock of the session directory called `name`, also one that cannot be read.
    ///
    /// # Errors
    /// As [`Session::lock`].
    pub fn lock(&self, name: &str, role: Role) -> Result<Lock> {
        names::check(name.as_bytes())?;
        Lock::take(&self.sessions().join(name).join("lock"), name, role)
    }
}

impl Session {
    /// Where the journal is.
    pub fn journal_dir(&self) -> PathBuf {
        self.dir.join("journal")
    }

    /// Where what is applied is logged, and what that replaced is kept.
    pub fn applied_dir(&self) -> PathBuf {
        self.dir.join("apply")
    }

    /// Which changes a person marked as reviewed.
    pub fn reviewed_path(&self) -> PathBuf {
        self.dir.join("reviewed")
    }

    /// Where `run` mounts.
    pub fn mountpoint_dir(&self) -> PathBuf {
        self.dir.join("mnt")
    }

    /// Where a server in the background writes what it has to say.
    pub fn log_path(&self) -> PathBuf {
        self.dir.join("server.log")
    }

    /// What the session's mounts name as their source.
    pub fn fsname(&self) -> String {
        format!("sbx-fuse:{}", self.name)
    }

    /// The places of root `i`, which is less than `meta.roots.len()`.
    pub fn root(&self, i: usize) -> Root<'_> {
        Root { session: self, index: i }
    }

    /// All roots in order.
    pub fn roots(&self) -> impl Iterator<Item = Root<'_>> {
        (0..self.meta.roots.len()).map(|i| self.root(i))
    }

    /// The roots, and after them the directories of which it has a private version.
    pub fn all_roots(&self) -> impl Iterator<Item = Root<'_>> {
        let all = self.meta.roots.len() + self.meta.private.len();
        (0..all).map(|index| Root { session: self, index })
    }

    /// Takes the session for a moment, to change it without a server.
    ///
    /// # Errors
    /// `Locked` naming the holder's pid; `Failure` when the lock file cannot be used.
    pub fn lock(&self) -> Result<Lock> {
        self.lock_as(Role::Command)
    }

    /// Takes the session as `role`.
    ///
    /// # Errors
    /// As [`Session::lock`].
    pub fn lock_as(&self, role: Role) -> Result<Lock> {
        self.check_present()?;
        Lock::take(&self.dir.join("lock"), &self.name, role)
    }

    /// Refuses a session whose files are in an archive.
    ///
    /// # Errors
    /// `Failure` with the way out.
    pub fn check_present(&self) -> Result<()> {
        match &self.archived {
            None => Ok(()),
            Some(archived) => {
                Err(Error::failure(format!("session {} is archived in {}", self.name, archived.file))
                    .hint(format!("bring it back with: sbx-fuse restore {}", self.name)))
            }
        }
    }

    /// Who holds the session now.
    ///
    /// # Errors
    /// When the lock file cannot be opened.
    pub fn holder(&self) -> Result<Option<Holder>> {
        lock::holder(&self.dir.join("lock"))
    }

    /// The error that this session is held by `holder`.
    pub fn in_use(&self, holder: Option<&Holder>) -> Error {
        lock::in_use(&self.name, holder)
    }

    /// Writes `meta.json` anew, atomically. The lock must be ours.
    ///
    /// # Errors
    /// As writing a file.
    pub fn save_meta(&self) -> Result<()> {
        write_meta(&self.dir, &self.meta)
    }
}

impl<'a> Root<'a> {
    /// Its index.
    pub fn index(&self) -> usize {
        self.index
    }

    /// What the session says about it.
    pub fn meta(&self) -> &'a RootMeta {
        let meta = &self.session.meta;
        meta.roots.get(self.index).unwrap_or_else(|| &meta.private[self.index - meta.roots.len()])
    }

    /// The session.
    pub(super) fn session(&self) -> &'a Session {
        self.session
    }

    /// The real directory.
    pub fn lower_dir(&self) -> &'a Path {
        self.meta().path.as_path()
    }

    /// Where its writes land.
    pub fn upper_dir(&self) -> PathBuf {
        self.session.dir.join("roots").join(self.index.to_string()).join("upper")
    }

    /// Temporary files on the same file system, and `index/` for hard links.
    pub fn work_dir(&self) -> PathBuf {
        self.session.dir.join("roots").join(self.index.to_string()).join("work")
    }
}

/// For absolute paths; a relative one is meant from the current directory.
pub(super) fn cwd() -> std::os::fd::BorrowedFd<'static> {
    nix::fcntl::AT_FDCWD
}

pub(super) fn make_dir(path: &Path) -> Result<()> {
    let bytes = path.as_os_str().as_bytes();
    match file::mkdirat(cwd(), bytes, 0o700) {
        Ok(()) | Err(Errno::EEXIST) => Ok(()),
        // A read-only or foreign ancestor is no obstacle when it is there already.
        Err(_) if file::stat_at(cwd(), bytes).is_ok() => Ok(()),
        Err(e) => Err(Error::on_path("make the directory", bytes, e).hint(NO_STATE)),
    }
}

pub(super) fn open_dir(path: &Path) -> Result<std::os::fd::OwnedFd> {
    let bytes = path.as_os_str().as_bytes();
    file::open_path(bytes, libc::O_RDONLY | libc::O_DIRECTORY).map_err(|e| Error::on_path("open", bytes, e))
}

/// The time, nanoseconds since the epoch.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64)
}

pub(super) fn write_meta(dir: &Path, meta: &Meta) -> Result<()> {
    write_json(dir, "meta.json", meta)
}

/// Writes `value` to the file `name` in `dir`, atomically.
pub(super) fn write_json(dir: &Path, name: &str, value: &impl serde::Serialize) -> Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let (temp, path) = (dir.join(format!("{name}.new")), dir.join(name));
    let mut text = serde_json::to_vec_pretty(value).map_err(|e| Error::failure(e.to_string()))?;
    text.push(b'\n');
    std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temp)
        .and_then(|mut f| f.write_all(&text).and_then(|()| f.sync_all()))
        .and_then(|()| std::fs::rename(&temp, &path))
        .map_err(|e| Error::on_path("write", path.as_os_str().as_bytes(), e))
}
