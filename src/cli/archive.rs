//! `sbx-fuse archive`: a session suspended to one file.

use super::amounts::{self, bytes};
use super::context::{self, Opened};
use super::{Which, output, overlaps};
use crate::base::{Error, Result};
use crate::session::{Encryption, LowerId, PathBytes, Store, Suspend};
use clap::Args;
use serde::Serialize;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

/// Suspend a session to one compressed file, and free its disk space
///
/// The file holds everything the session is: what it changed, its journal, what was there before. `sbx-fuse restore`
/// brings it back, here or on another machine. Until then the session is listed as archived. A session that is in use
/// is refused.
#[derive(Debug, Args)]
pub(super) struct ArchiveArgs {
    #[command(flatten)]
    which: Which,
    /// The session
    #[arg(value_name = "NAME", conflicts_with = "session")]
    name: Option<String>,
    /// Where to write it [default: the state directory, as archives/NAME.tar.zst]
    #[arg(short = 'o', long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// After this time, e.g. 30d, `sbx-fuse gc` throws the archive away, applied or not
    #[arg(long, value_name = "DURATION", value_parser = amounts::duration)]
    ttl: Option<Duration>,
    /// Encrypt it with a passphrase, asked for on the terminal
    #[arg(long)]
    encrypt: bool,
    /// Encrypt it for the holder of this age key (age1…); may be given several times
    #[arg(long, value_name = "AGE_KEY")]
    recipient: Vec<String>,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Json<'a> {
    name: &'a str,
    file: &'a PathBytes,
    changes: usize,
    /// Bytes on disk before, and of the archive.
    before: u64,
    size: u64,
    /// When it may go, in nanoseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<u64>,
}

pub(super) fn run(args: ArchiveArgs) -> Result<u8> {
    let which = Which { session: args.name.or(args.which.session) };
    let session = context::select(&which)?;
    if let Some(holder) = session.holder()?.filter(|h| h.role == crate::session::Role::Server) {
        return Err(session.in_use(Some(&holder)));
    }
    let encryption = match (args.encrypt, args.recipient.is_empty()) {
        (_, false) => Some(Encryption::Recipients(args.recipient)),
        (true, true) => Some(Encryption::Passphrase(new_passphrase()?)),
        (false, true) => None,
    };
    crate::sys::process::raise_fd_limit().map_err(|e| Error::sys("raise the limit of open files", e))?;
    let opened = Opened::of(session)?;
    let Some(lock) = opened.lock() else {
        return Err(opened.session.in_use(None));
    };
    // Where one cannot be compared (a directory without permissions), what the journal says is at least as many.
    let changes = opened.settled().map_or(opened.folded.set.changes.len(), |set| set.len());
    let mut lowers = Vec::new();
    for (i, root) in opened.session.meta.roots.iter().enumerate() {
        let of_root = opened.folded.set.changes.iter().filter(|c| usize::from(c.root) == i);
        lowers.push(LowerId::of(&root.path, of_root)?);
    }
    let expires = args.ttl.map(|ttl| now().saturating_add(amounts::nanos(ttl)));
    let changes_of = |c| overlaps::real_paths(&opened.session, c);
    let changed = opened.folded.set.changes.iter().flat_map(changes_of).collect();
    let how = Suspend { file: args.output, expires, encryption, changes, lowers, changed };
    let mut progress = None;
    let before = opened.session.usage()?.total();
    let archived = Store::open()?.archive(&opened.session, lock, how, &mut |done, all| {
        progress.get_or_insert_with(|| output::byte_bar(all, "archiving")).set_position(done);
    });
    if let Some(bar) = progress {
        bar.finish_and_clear();
    }
    let archived = archived?;
    output::note(&format!(
        "session {} is archived in {}: {}, {} became {}",
        opened.session.name,
        archived.file,
        output::count(changes, "change", "changes"),
        bytes(before),
        bytes(archived.size)
    ));
    let (name, file, size) = (&opened.session.name, &archived.file, archived.size);
    output::answer(args.json, &Json { name, file, changes, before, size, expires })?;
    Ok(0)
}

fn now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, amounts::nanos)
}

/// Asks twice for a passphrase that shall encrypt.
fn new_passphrase() -> Result<String> {
    let text = passphrase("Passphrase for the archive: ")?;
    if text.is_empty() {
        return Err(Error::usage("an empty passphrase protects nothing")
            .hint("give one, or encrypt for a key: --recipient age1…"));
    }
    if passphrase("The same once more: ")? != text {
        return Err(Error::usage("the two passphrases differ").hint("start again"));
    }
    Ok(text)
}

/// Asks for a passphrase on the terminal.
///
/// # Errors
/// `Usage` without a terminal.
pub(super) fn passphrase(prompt: &str) -> Result<String> {
    if !std::io::stdin().is_terminal() {
        return Err(Error::usage("a passphrase is asked for on a terminal, and there is none")
            .hint("use age keys: --recipient to archive, --identity FILE to restore"));
    }
    rpassword::prompt_password(prompt).map_err(|e| Error::sys("read the passphrase", e))
}
