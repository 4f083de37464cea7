//! `sbx-fuse restore`: an archived session brought back.

use super::archive::passphrase;
use super::context::Opened;
use super::{output, paths};
use crate::base::{Error, ErrorKind, RelPath, Result, quote};
use crate::review;
use crate::session::{ArchiveHeader, Key, Lock, LowerMatch, PathBytes, Restore, Role, Session, Store};
use clap::Args;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Bring an archived session back
///
/// By its name, or from an archive's file, also of another machine. The archive is verified whole before anything of it
/// becomes visible. The real directories must be those the session was made on; what changed in them since is told.
#[derive(Debug, Args)]
pub(super) struct RestoreArgs {
    /// The session, or the archive's file
    #[arg(value_name = "NAME|FILE")]
    what: PathBuf,
    /// Give it this name; the archive then stays
    #[arg(long = "as", value_name = "NAME")]
    name: Option<String>,
    /// Leave the archive where it is
    #[arg(long)]
    keep: bool,
    /// The file with the age identity that the archive was encrypted for
    #[arg(long, value_name = "FILE")]
    identity: Option<PathBuf>,
    /// Restore although a real directory is not the one it was made on
    #[arg(long)]
    force: bool,
    /// Take set-uid and set-gid files from an archive that was not written here
    #[arg(long)]
    setuid: bool,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Json {
    name: String,
    changes: usize,
    /// What is remarkable about its real directories, a sentence each.
    notes: Vec<String>,
    /// What changed in them since; `None` when that cannot be told.
    drift: Option<Vec<Drift>>,
}

/// A path where the real tree moved on, and how.
#[derive(Serialize)]
struct Drift {
    path: PathBytes,
    why: String,
}

pub(super) fn run(args: RestoreArgs) -> Result<u8> {
    crate::sys::process::raise_fd_limit().map_err(|e| Error::sys("raise the limit of open files", e))?;
    let store = Store::open()?;
    let stub = find_stub(&store, &args.what)?;
    let lock: Option<Lock> = stub.as_ref().map(|s| store.lock(&s.name, Role::Command)).transpose()?;
    let archived = stub.as_ref().and_then(|s| s.archived.clone());
    let file = archived.as_ref().map_or(args.what.clone(), |a| a.file.as_path().to_owned());
    if let Some(name) = &args.name
        && stub.as_ref().is_none_or(|s| s.name != *name)
        && store.get(name).is_ok()
    {
        return Err(Error::usage(format!("there is already a session {name}"))
            .hint("choose another name, or see: sbx-fuse ls"));
    }
    let mut progress = None;
    let mut said = Vec::new();
    let identity = args.identity.as_deref();
    let restored = store.restore(Restore {
        file,
        name: args.name.clone().or_else(|| stub.as_ref().map(|s| s.name.clone())),
        stub: stub.as_ref().zip(lock.as_ref()),
        setuid: args.setuid,
        key: &mut |by_passphrase| key(by_passphrase, identity),
        check: &mut |header| check_lowers(header, args.force, &mut said),
        progress: &mut |done, all| {
            progress.get_or_insert_with(|| output::byte_bar(all, "restoring")).set_position(done);
        },
    });
    if let Some(bar) = progress {
        bar.finish_and_clear();
    }
    let restored = restored.map_err(|e| match (e.kind, &e.hint) {
        (ErrorKind::Failure, None) => {
            e.hint("nothing was restored; copy the archive here again, or take another copy")
        }
        _ => e,
    })?;
    said.extend(restored.said);
    output::notes(&said);
    let session = restored.session;
    let same_name = stub.as_ref().is_some_and(|s| s.name == session.name);
    if let Some(archived) = archived.filter(|a| same_name && !args.keep && store.owns(a)) {
        std::fs::remove_file(archived.file.as_path())
            .map_err(|e| Error::on_path("remove the archive", archived.file.as_bytes(), e))?;
    }
    drop(lock);
    drop(restored.lock);
    let n = output::count(restored.header.changes, "change", "changes");
    output::note(&format!("session {} is back, with {n}", session.name));
    let name = session.name.clone();
    let drift = drift(session);
    match &drift {
        Ok(all) => {
            for Drift { path, why } in all.iter().take(10) {
                output::note(&format!("drift {path}: {why}"));
            }
            if let Some(more) = all.len().checked_sub(10).filter(|&n| n > 0) {
                output::note(&format!("and {more} more; see: sbx-fuse status -s {name}"));
            }
        }
        Err(e) => output::note(&format!("whether the real files changed since cannot be told: {e}")),
    }
    let changes = restored.header.changes;
    output::answer(args.json, &Json { name, changes, notes: said, drift: drift.ok() })?;
    Ok(0)
}

/// The archived session that `what` means by its name or by its archive's file.
fn find_stub(store: &Store, what: &Path) -> Result<Option<Session>> {
    let named = what.to_str().filter(|n| !n.contains('/'));
    let session = named.map(|name| store.get(name));
    match session {
        Some(Ok(session)) if session.archived.is_some() => return Ok(Some(session)),
        // A file of that name is meant, if there is one.
        Some(Ok(session)) if what.symlink_metadata().is_err() => {
            return Err(Error::usage(format!("session {} is not archived", session.name))
                .hint(format!("it is there: sbx-fuse show {}", session.name)));
        }
        Some(Err(e)) if what.symlink_metadata().is_err() => return Err(e),
        _ => {}
    }
    let Ok(file) = what.canonicalize() else { return Ok(None) };
    let mut all = store.list()?.into_iter().filter_map(|(_, s)| s.ok());
    Ok(all.find(|s| s.archived.as_ref().is_some_and(|a| a.file.as_path() == file)))
}

fn key(by_passphrase: bool, identity: Option<&Path>) -> Result<Key> {
    match (by_passphrase, identity) {
        (true, _) => Ok(Key::Passphrase(passphrase("Passphrase of the archive: ")?)),
        (false, Some(file)) => std::fs::read(file)
            .map(Key::Identities)
            .map_err(|e| Error::on_path("read", std::os::unix::ffi::OsStrExt::as_bytes(file.as_os_str()), e)),
        (false, None) => Err(Error::usage("the archive is encrypted for an age key")
            .hint("name the file with the identity: --identity FILE")),
    }
}

/// Refuses a real directory that is not what the session was made on.
fn check_lowers(header: &ArchiveHeader, force: bool, said: &mut Vec<String>) -> Result<()> {
    for lower in &header.lowers {
        let path = quote(lower.path.as_bytes());
        let why = match lower.compare()? {
            LowerMatch::Same => continue,
            LowerMatch::Alike(fit, of) => {
                said.push(format!(
                    "{path} is another directory than then; {fit} of {of} files are as they were"
                ));
                continue;
            }
            LowerMatch::Unknown => {
                said.push(format!(
                    "{path} is another directory than then; no file tells whether it is alike"
                ));
                continue;
            }
            LowerMatch::Missing => format!("its root {path} is not here"),
            LowerMatch::Other(fit, of) => {
                format!("{path} is not the directory it was made on: {fit} of {of} files are as they were")
            }
        };
        if !force {
            let e =
                Error::new(ErrorKind::Conflict, format!("session {} is not restored: {why}", header.name));
            return Err(e.hint("put the directory in its place, or restore all the same with --force"));
        }
        said.push(why);
    }
    Ok(())
}

/// What changed in the real directories since.
fn drift(session: Session) -> Result<Vec<Drift>> {
    let opened = Opened::of(session)?;
    let set = opened.settled()?;
    let replaced = |root: u16, path: &RelPath| opened.folded.replaced.get(&(root, path.clone())).cloned();
    let conflicts = review::check(&opened.roots, &set, &replaced)?;
    let told = conflicts.iter().map(|c| Drift {
        path: PathBytes(paths::shown(&opened.session, c.root, &c.path)),
        why: c.why.sentence(),
    });
    Ok(told.collect())
}
