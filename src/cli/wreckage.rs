//! What servers and commands that died left on this host: dead mounts, dead sockets, sessions that believe to be
//! mounted, unfinished archives.
//!
//! `doctor` counts it, `doctor --fix` takes it away. A session's own things are also cleaned by any command that uses it;
//! here is what no session of this store answers for as well.

use super::amounts::bytes;
use super::context;
use super::output;
use super::serve::runtime_dir;
use crate::base::{Error, Result, quote};
use crate::session::gc::Leftover;
use crate::session::{Mounted, Session, Store, is_dead, is_dead_socket, mounted, unmount_stale};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// What was left behind.
pub(super) struct Wreckage {
    mounts: Vec<Mounted>,
    sockets: Vec<PathBuf>,
    sessions: Vec<Session>,
    store: Store,
    leftovers: Vec<Leftover>,
}

impl Wreckage {
    /// Looks for it.
    ///
    /// # Errors
    /// When mounts, sessions or sockets cannot be listed.
    pub(super) fn find() -> Result<Wreckage> {
        let store = Store::open()?;
        let all: Vec<Session> = store.list()?.into_iter().filter_map(|(_, s)| s.ok()).collect();
        let (mut held, mut sessions) = (Vec::new(), Vec::new());
        for session in all {
            if session.holder()?.is_some() {
                held.push(session);
            } else if session.meta.mountpoint.is_some() {
                sessions.push(session);
            }
        }
        // A server that lives is not asked: one that is stopped would keep us waiting.
        let is_held = |m: &Mounted| held.iter().any(|s| s.fsname().as_bytes() == m.source);
        let mut mounts = mounted()?;
        mounts.retain(|m| !is_held(m) && is_dead(&m.at));
        let ids: Vec<String> = held.iter().map(|s| format!("{}.sock", s.meta.id)).collect();
        let mut sockets = sockets()?;
        sockets.retain(|p| !ids.iter().any(|id| p.ends_with(id)) && is_dead_socket(p));
        let leftovers = store.leftovers()?;
        Ok(Wreckage { mounts, sockets, sessions, store, leftovers })
    }

    /// What it is, the first few by name; `None` when there is nothing.
    pub(super) fn summary(&self) -> Option<String> {
        const SHOWN: usize = 8;
        let place = |what: &str, path: &Path| format!("{what} {}", quote(path.as_os_str().as_bytes()));
        let mounts = self.mounts.iter().map(|m| place("a dead mount at", &m.at));
        let sockets = self.sockets.iter().map(|p| place("a dead socket", p));
        let sessions = self.sessions.iter().map(|s| format!("session {}, whose server died", s.name));
        let leftover = |l: &Leftover| {
            let path = quote(l.path.as_os_str().as_bytes());
            format!("{path} ({}), whose maker died", bytes(l.bytes))
        };
        let leftovers = self.leftovers.iter().map(leftover);
        let mut said: Vec<String> = sessions.chain(mounts).chain(sockets).chain(leftovers).collect();
        let more = said.len().saturating_sub(SHOWN);
        said.truncate(SHOWN);
        if more > 0 {
            said.push(format!("and {more} more"));
        }
        (!said.is_empty()).then(|| said.join("; "))
    }

    /// Takes it away, as far as that is possible, and says so.
    pub(super) fn clear(self) {
        let done = |what: Result<String>| match what {
            Ok(what) => output::note(&what),
            Err(e) => output::error(&e),
        };
        for mut session in self.sessions {
            match repair(&mut session) {
                Ok(said) => output::notes(&said),
                Err(e) => output::error(&e),
            }
        }
        // The last mount at a place is the one on top. One that went with its session is not there any more.
        for mount in self.mounts.iter().rev().filter(|m| is_dead(&m.at)) {
            let shown = quote(mount.at.as_os_str().as_bytes());
            done(unmount_stale(&mount.at).map(|()| format!("took away the dead mount at {shown}")));
        }
        for leftover in &self.leftovers {
            let shown = quote(leftover.path.as_os_str().as_bytes());
            done(self.store.remove_leftover(leftover).map(|()| format!("removed {shown}, whose maker died")));
        }
        for socket in &self.sockets {
            let shown = socket.as_os_str().as_bytes();
            let removed = match std::fs::remove_file(socket) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::on_path("remove", shown, e)),
                _ => Ok(format!("removed the dead socket {}", quote(shown))),
            };
            done(removed);
        }
    }
}

fn repair(session: &mut Session) -> Result<Vec<String>> {
    let lock = session.lock()?;
    let roots = context::root_dirs(session)?;
    Ok(context::settle_down(session, &lock, &roots)?.1)
}

/// The sockets in our place for them.
fn sockets() -> Result<Vec<PathBuf>> {
    let Some(dir) = runtime_dir() else { return Ok(Vec::new()) };
    let entries = match std::fs::read_dir(&dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(Error::on_path("list", dir.as_os_str().as_bytes(), e)),
    };
    let paths = entries.flatten().map(|e| e.path());
    Ok(paths.filter(|p| p.extension().is_some_and(|e| e == "sock")).collect())
}
