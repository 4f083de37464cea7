//! A session suspended to one file, and brought back.
//!
//! An archived session keeps its name: its directory holds `meta.json` and `archived.json`, which says where the
//! archive is. Both ways the step that counts is one exchange of directories:
//!
//! | step of `archive` | killed here | who repairs it |
//! |---|---|---|
//! | write `.NAME.ID.part` | the session as it was, a part | `gc` removes it |
//! | rename to its place | the session as it was, and an archive | the next `archive` replaces it |
//! | exchange with the stub | archived | – |
//! | remove the files | archived, `.trash-` | the next new session, or `gc` |
//!
//! `restore` fills a hidden directory, verifies, and then exchanges it with the stub or gives it its name.

use super::archive_lower::{DirId, LowerId};
use super::archive_read::{self, Terms, Unpacked};
use super::archive_seal::{Seal, SealReader, SealWriter};
use super::archive_trust;
use super::archive_write::{self, Packer};
use super::lock::{Lock, Role};
use super::meta::{Meta, PathBytes};
use super::store::{self, Session, Store, cwd, make_dir, now, open_dir};
use super::{names, remove_tree, roots};
use crate::base::{Errno, Error, Result, quote};
use crate::layer::{self, WhiteoutForm};
use crate::sys::{data, file};
use nix::fcntl::Flock;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufReader, Read, Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The version of archives that this program writes.
const VERSION: u32 = 1;
/// The memory a decoder may take for its window, as a power of two: 128 MiB.
const WINDOW: u32 = 27;
/// The file beside `archived.json` with the real paths that the session changed, each ended by a NUL.
const CHANGED: &str = "changed";
/// The way out where an archive cannot be written.
const NAME_ANOTHER: &str = "name a file in a directory that is there and that you may write to: -o FILE";
/// How every file begins that age wrote.
const AGE: &[u8] = b"age-encryption.org/";

/// What an archive says of itself: its first entry, `sbx-fuse.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Header {
    /// The form of the archive.
    pub version: u32,
    /// The session's name.
    pub name: String,
    /// The session's id.
    pub id: String,
    /// When it was archived, nanoseconds since the epoch.
    pub at: u64,
    /// When it may be thrown away, nanoseconds since the epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<u64>,
    /// How many changes it had that were not applied.
    pub changes: usize,
    /// Bytes of content, not counting holes.
    pub content: u64,
    /// Who archived it.
    pub uid: u32,
    /// Their group.
    pub gid: u32,
    /// The real directories it was made on, in order.
    pub lowers: Vec<LowerId>,
}

impl Header {
    /// Reads the text of the first entry.
    ///
    /// # Errors
    /// `Failure` when it is none or of a later version.
    pub(super) fn parse(text: &[u8]) -> Result<Header> {
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let damaged = |e| Error::failure(format!("it is not an archive of a session: {e}"));
        let version: Version = serde_json::from_slice(text).map_err(damaged)?;
        if version.version != VERSION {
            return Err(Error::failure(format!(
                "the archive is of version {}, this program knows version {VERSION}",
                version.version
            ))
            .hint("use the sbx-fuse that made it"));
        }
        serde_json::from_slice(text).map_err(damaged)
    }
}

/// What an archived session's directory says: `archived.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Archived {
    /// Where the archive is.
    pub file: PathBytes,
    /// When it was archived, nanoseconds since the epoch.
    pub at: u64,
    /// When it may be thrown away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<u64>,
    /// How many changes it has that were not applied.
    pub changes: usize,
    /// Length of the archive, bytes.
    pub size: u64,
    /// Bytes of content in it.
    pub content: u64,
    /// BLAKE3 of the archive before it was encrypted and without its trailer, hexadecimal.
    pub checksum: String,
    /// Whether age encrypted it.
    pub encrypted: bool,
}

impl Archived {
    /// Reads `archived.json` of the session directory `dir`; `None` for a session that is not archived.
    pub(super) fn load(dir: &Path) -> Result<Option<Archived>> {
        let path = dir.join("archived.json");
        let told = |e: std::io::Error| Error::on_path("read", path.as_os_str().as_bytes(), e);
        match std::fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text)
                .map(Some)
                .map_err(|e| Error::failure(format!("its archived.json is damaged: {e}"))),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(told(e)),
        }
    }

    /// The length of the archive as it is on disk now, allocated bytes; `None` when it is gone or another file.
    pub fn on_disk(&self) -> Option<u64> {
        let attr = file::stat_at(cwd(), self.file.as_bytes()).ok()?;
        (attr.kind == crate::base::Kind::File && attr.size == self.size).then_some(attr.blocks * 512)
    }
}

impl Session {
    /// The real paths that an archived session changed, as far as they are known without its archive.
    pub fn archived_changes(&self) -> Vec<PathBuf> {
        let list = std::fs::read(self.dir.join(CHANGED)).unwrap_or_default();
        let paths = list.split(|&b| b == 0).filter(|p| !p.is_empty());
        paths.map(|p| PathBuf::from(std::ffi::OsStr::from_bytes(p))).collect()
    }
}

/// How an archive is encrypted.
pub enum Encryption {
    /// With a passphrase.
    Passphrase(String),
    /// For the holders of these age keys (`age1…`).
    Recipients(Vec<String>),
}

/// What opens an encrypted archive.
pub enum Key {
    /// A passphrase.
    Passphrase(String),
    /// The text of an age identity file.
    Identities(Vec<u8>),
}

/// How a session is suspended.
pub struct Suspend {
    /// Where to; by default the store's own place.
    pub file: Option<PathBuf>,
    /// When the archive may be thrown away, nanoseconds since the epoch.
    pub expires: Option<u64>,
    /// Whether and how to encrypt it.
    pub encryption: Option<Encryption>,
    /// How many changes the session has.
    pub changes: usize,
    /// Its real directories.
    pub lowers: Vec<LowerId>,
    /// The real paths that it changed, which others are told of while it is archived. Not kept beside an encrypted archive.
    pub changed: Vec<PathBuf>,
}

impl Store {
    /// Where archives are kept unless a person says otherwise.
    pub fn archives(&self) -> PathBuf {
        self.dir().join("archives")
    }

    /// Suspends a resting session, whose lock is ours, to one file, and frees its disk space. `progress` gets the bytes
    /// done and the bytes in all.
    ///
    /// # Errors
    /// `Usage` when the file is there already; else when something cannot be read or written; the session is then as
    /// it was.
    pub fn archive(
        &self,
        session: &Session,
        _lock: &Lock,
        how: Suspend,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Archived> {
        let own = how.file.is_none();
        let to = match &how.file {
            Some(file) => canonical(file)?,
            None => {
                make_dir(&self.archives())?;
                let ending = if how.encryption.is_some() { "tar.zst.age" } else { "tar.zst" };
                self.archives().join(format!("{}.{ending}", session.name))
            }
        };
        let shown = to.as_os_str().as_bytes();
        if file::stat_at(cwd(), shown).is_ok() {
            // Of a crash between the archive and the stub: the session is here, so that file is of no use.
            let ours = own && self.peek(&to).is_ok_and(|h| h.id == session.meta.id);
            if !ours {
                return Err(Error::usage(format!("{} is there already", quote(shown)))
                    .hint("move it away, or choose another place with -o FILE"));
            }
            std::fs::remove_file(&to).map_err(|e| Error::on_path("replace", shown, e))?;
        }
        let content = archive_write::measure(open_dir(&session.dir)?)?;
        let (uid, gid) = crate::sys::process::effective_ids();
        let header = Header {
            version: VERSION,
            name: session.name.clone(),
            id: session.meta.id.clone(),
            at: now(),
            expires: how.expires,
            changes: how.changes,
            content,
            uid,
            gid,
            lowers: how.lowers,
        };
        let encrypted = how.encryption.is_some();
        let (size, seal) = write(&to, session, &header, how.encryption, &mut |done| progress(done, content))?;
        let archived = Archived {
            file: PathBytes::from(to.as_path()),
            at: header.at,
            expires: header.expires,
            changes: header.changes,
            size,
            content,
            checksum: hex(&seal),
            encrypted,
        };
        let changed = if encrypted { Vec::new() } else { how.changed };
        self.exchange_for_stub(session, &archived, &changed)?;
        Ok(archived)
    }

    /// Puts a directory that only says where the archive is in the place of the session's.
    fn exchange_for_stub(&self, session: &Session, archived: &Archived, changed: &[PathBuf]) -> Result<()> {
        let temp = format!(".stub-{}", names::random_hex::<8>()?);
        let dir = self.sessions().join(&temp);
        make_dir(&dir)?;
        let _held = Lock::take(&dir.join("lock"), &session.name, Role::Command)?;
        store::write_meta(&dir, &session.meta)?;
        store::write_json(&dir, "archived.json", archived)?;
        if !changed.is_empty() {
            let list: Vec<u8> =
                changed.iter().flat_map(|p| p.as_os_str().as_bytes().iter().copied().chain([0])).collect();
            std::fs::write(dir.join(CHANGED), list)
                .map_err(|e| Error::on_path("write", dir.as_os_str().as_bytes(), e))?;
        }
        self.swap(&temp, &session.name)
    }

    /// Exchanges `temp` with the session `name` and throws away what was there.
    fn swap(&self, temp: &str, name: &str) -> Result<()> {
        let parent = open_dir(&self.sessions())?;
        let told = |e: Errno| Error::on_path("put in place the session", name, e);
        let (a, b) = (temp.as_bytes(), name.as_bytes());
        file::renameat(parent.as_fd(), a, parent.as_fd(), b, libc::RENAME_EXCHANGE).map_err(told)?;
        data::fsync(parent.as_fd(), false).map_err(told)?;
        let trash = format!(".trash-{name}-{}", names::random_hex::<8>()?);
        file::renameat(parent.as_fd(), a, parent.as_fd(), trash.as_bytes(), 0).map_err(told)?;
        // From here on it is done; what is left is swept away another time.
        if let Err(e) = remove_tree(parent.as_fd(), trash.as_bytes()) {
            tracing::warn!("{trash} was left behind: {e}");
        }
        Ok(())
    }

    /// What the archive `path`, which is not encrypted, says of itself. Nothing is verified.
    ///
    /// # Errors
    /// `Failure` when it is no archive or encrypted.
    pub fn peek(&self, path: &Path) -> Result<Header> {
        let file = open_archive(path)?;
        let decoder = decoder(SealReader::new(file))?;
        archive_read::about(decoder)
    }
}

/// The absolute path of a file that need not be there, its directory's symlinks resolved.
fn canonical(file: &Path) -> Result<PathBuf> {
    let shown = file.as_os_str().as_bytes();
    let name = file.file_name().ok_or_else(|| {
        Error::usage(format!("{} cannot be a file", quote(shown)))
            .hint("name a file that is not there yet: -o FILE")
    })?;
    let dir = match file.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    let dir = dir.canonicalize().map_err(|e| Error::on_path("write", shown, e).hint(NAME_ANOTHER))?;
    Ok(dir.join(name))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

enum Outer {
    Plain(File),
    Age(Box<age::stream::StreamWriter<File>>),
}

impl Write for Outer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Outer::Plain(to) => to.write(bytes),
            Outer::Age(to) => to.write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        match self {
            Outer::Plain(to) => to.flush(),
            Outer::Age(to) => to.flush(),
        }
    }
}

/// Writes the archive beside its place, and gives it its name when all of it is on disk.
fn write(
    to: &Path,
    session: &Session,
    header: &Header,
    encryption: Option<Encryption>,
    progress: &mut dyn FnMut(u64),
) -> Result<(u64, Seal)> {
    let shown = to.as_os_str().as_bytes();
    let (Some(dir), Some(name)) = (to.parent(), to.file_name()) else {
        return Err(Error::usage(format!("{} cannot be a file's name", quote(shown))));
    };
    let parent = open_dir(dir)?;
    let mut temp = [b".", name.as_bytes()].concat();
    temp.truncate(200);
    temp.extend(format!(".{}.part", names::random_hex::<8>()?).into_bytes());
    let path = dir.join(std::ffi::OsStr::from_bytes(&temp));
    let done = write_part(&path, session, header, encryption, progress).and_then(|(done, _held)| {
        let flags = libc::RENAME_NOREPLACE;
        file::renameat(parent.as_fd(), &temp, parent.as_fd(), name.as_bytes(), flags)
            .and_then(|()| data::fsync(parent.as_fd(), false))
            .map_err(|e| Error::on_path("write", shown, e))?;
        Ok(done)
    });
    if done.is_err()
        && let Err(e) = file::unlinkat(parent.as_fd(), &temp)
        && e != Errno::ENOENT
    {
        tracing::warn!("{} was left behind: {e}", quote(&temp));
    }
    done
}

fn write_part(
    path: &Path,
    session: &Session,
    header: &Header,
    encryption: Option<Encryption>,
    progress: &mut dyn FnMut(u64),
) -> Result<((u64, Seal), Flock<std::fs::File>)> {
    let told = |e: std::io::Error| Error::on_path("write", path.as_os_str().as_bytes(), e);
    let plain = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let part = plain.map_err(|e| told(e).hint(NAME_ANOTHER))?;
    // Held until it has its name, so that `gc` knows that somebody is at work on it.
    let held = part.try_clone().map_err(told)?;
    let held = Flock::lock(held, nix::fcntl::FlockArg::LockExclusiveNonblock)
        .map_err(|(_, e)| Error::sys("lock the archive", e))?;
    let outer = match encryption {
        None => Outer::Plain(part),
        Some(how) => Outer::Age(Box::new(encryptor(how)?.wrap_output(part).map_err(told)?)),
    };
    let level = zstd::DEFAULT_COMPRESSION_LEVEL;
    let encoder = zstd::stream::write::Encoder::new(SealWriter::new(outer), level).map_err(told)?;
    let text = serde_json::to_vec_pretty(header).map_err(|e| Error::failure(e.to_string()))?;
    let encoder = Packer::new(encoder, &text, progress)?.all(open_dir(&session.dir)?)?;
    let (outer, seal) = encoder.finish().and_then(SealWriter::finish).map_err(told)?;
    let part = match outer {
        Outer::Plain(part) => part,
        Outer::Age(part) => part.finish().map_err(told)?,
    };
    part.sync_all().map_err(told)?;
    let size = part.metadata().map_err(told)?.len();
    Ok(((size, seal), held))
}

fn encryptor(how: Encryption) -> Result<age::Encryptor> {
    let keys = match how {
        Encryption::Passphrase(text) => {
            return Ok(age::Encryptor::with_user_passphrase(age::secrecy::SecretString::from(text)));
        }
        Encryption::Recipients(keys) => keys,
    };
    let mut recipients: Vec<age::x25519::Recipient> = Vec::new();
    for key in &keys {
        recipients.push(key.parse().map_err(|e: &str| {
            Error::usage(format!("{} is no age key: {e}", quote(key.as_bytes())))
                .hint("give what `age-keygen` calls the public key: age1…")
        })?);
    }
    age::Encryptor::with_recipients(recipients.iter().map(|r| r as &dyn age::Recipient))
        .map_err(|e| Error::usage(format!("cannot encrypt: {e}")))
}

fn open_archive(path: &Path) -> Result<File> {
    let told = |e: std::io::Error| Error::on_path("open the archive", path.as_os_str().as_bytes(), e);
    // A fifo would hang here; NONBLOCK does nothing to a file.
    let file =
        std::fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(told)?;
    if !file.metadata().map_err(told)?.is_file() {
        return Err(Error::usage(format!("{} is not a file", quote(path.as_os_str().as_bytes())))
            .hint("name the archive: sbx-fuse restore FILE"));
    }
    Ok(file)
}

fn decoder<R: Read>(from: R) -> Result<zstd::stream::read::Decoder<'static, BufReader<R>>> {
    let mut decoder =
        zstd::stream::read::Decoder::new(from).map_err(|e| Error::sys("start the decoder", e))?;
    decoder.window_log_max(WINDOW).map_err(|e| Error::sys("start the decoder", e))?;
    Ok(decoder)
}

trait ReadSeek: Read + Seek {}
impl<T: Read + Seek> ReadSeek for T {}

fn no_identities(what: &str, e: &dyn std::fmt::Display) -> Error {
    Error::usage(format!("the file of age identities cannot be {what}: {e}"))
        .hint("give --identity a file that `age-keygen` wrote")
}

/// Opens an archive, through age where it is encrypted.
fn open_plain(path: &Path, key: &mut dyn FnMut(bool) -> Result<Key>) -> Result<(Box<dyn ReadSeek>, bool)> {
    let told = |e: std::io::Error| Error::on_path("read", path.as_os_str().as_bytes(), e);
    let mut file = open_archive(path)?;
    let mut begin = Vec::new();
    (&mut file).take(AGE.len() as u64).read_to_end(&mut begin).map_err(told)?;
    file.rewind().map_err(told)?;
    if begin != AGE {
        return Ok((Box::new(file), false));
    }
    let locked = |e: age::DecryptError| {
        Error::failure(format!("the archive cannot be decrypted: {e}"))
            .hint("give the passphrase, or the identity (--identity FILE), that it was made for")
    };
    let decryptor = age::Decryptor::new_buffered(BufReader::new(file)).map_err(locked)?;
    let identities: Vec<Box<dyn age::Identity>> = match key(decryptor.is_scrypt())? {
        Key::Passphrase(text) => {
            vec![Box::new(age::scrypt::Identity::new(age::secrecy::SecretString::from(text)))]
        }
        Key::Identities(text) => age::IdentityFile::from_buffer(&text[..])
            .map_err(|e| no_identities("read", &e))?
            .into_identities()
            .map_err(|e| no_identities("used", &e))?,
    };
    let plain = decryptor.decrypt(identities.iter().map(|i| &**i)).map_err(locked)?;
    Ok((Box::new(plain), true))
}

/// How a session is brought back.
pub struct Restore<'a> {
    /// The archive.
    pub file: PathBuf,
    /// The name it gets; by default the one it had.
    pub name: Option<String>,
    /// The stub of the session that is brought back, with its lock: what takes its place.
    pub stub: Option<(&'a Session, &'a Lock)>,
    /// Take set-uid and set-gid files of an archive that this store did not write.
    pub setuid: bool,
    /// Asked for what opens an encrypted archive, with whether a passphrase does.
    pub key: &'a mut dyn FnMut(bool) -> Result<Key>,
    /// Sees what the archive says of itself once its checksum is good, before anything is made.
    pub check: &'a mut dyn FnMut(&Header) -> Result<()>,
    /// Gets the bytes done and the bytes in all.
    pub progress: &'a mut dyn FnMut(u64, u64),
}

/// A session that was brought back.
pub struct Restored {
    /// The session.
    pub session: Session,
    /// What its archive said.
    pub header: Header,
    /// What a person should know, in sentences.
    pub said: Vec<String>,
    /// Its lock.
    pub lock: Lock,
}

impl Store {
    /// Brings a session back from an archive. Its checksum is verified before anything is made, and once more with what
    /// was made; nothing is visible before that.
    ///
    /// # Errors
    /// `Usage` when the name is taken; `Failure` when the archive is damaged or holds what is not taken. Nothing is
    /// left then.
    pub fn restore(&self, want: Restore<'_>) -> Result<Restored> {
        let refused = |e: std::io::Error| {
            let shown = quote(want.file.as_os_str().as_bytes());
            Error::failure(format!("the archive {shown} is refused: {e}"))
        };
        let (from, _) = open_plain(&want.file, want.key)?;
        let (mut from, seal) = SealReader::new(from).check(&mut |_| {}).map_err(refused)?;
        from.rewind().map_err(refused)?;
        let own = want.stub.and_then(|(s, _)| s.archived.as_ref()).is_some_and(|a| a.checksum == hex(&seal));

        let parent = self.make_dirs()?;
        let temp = format!(".restore-{}", names::random_hex::<8>()?);
        let dir = self.sessions().join(&temp);
        make_dir(&dir)?;
        let trust = Trust { own, setuid: own || want.setuid };
        let filled = self.fill(&dir, from, seal, trust, want.check, want.progress);
        let placed = filled.and_then(|(header, mut meta, said, lock)| {
            let name = want.name.clone().unwrap_or_else(|| header.name.clone());
            names::check(name.as_bytes())?;
            let _alone = self.alone()?;
            let place = want.stub.map(|(stub, _)| stub.name.as_str()).filter(|n| *n == name);
            let roots: Vec<&Path> = meta.roots.iter().map(|r| r.path.as_path()).collect();
            self.check_reserved(&roots, meta.exclusive, place)?;
            let others = self.list()?.into_iter().filter_map(|(_, s)| s.ok());
            if others.filter(|s| s.archived.is_none()).any(|s| s.meta.id == meta.id) {
                meta.id = names::random_hex::<16>()?;
                store::write_meta(&dir, &meta)?;
            }
            match want.stub {
                Some((stub, _)) if stub.name == name => self.swap(&temp, &name)?,
                _ => self.name_it(&temp, &name)?,
            }
            let dir = self.sessions().join(&name);
            let session = Session { name, dir, meta, archived: None };
            Ok(Restored { session, header, said, lock })
        });
        if placed.is_err()
            && let Err(e) = remove_tree(parent.as_fd(), temp.as_bytes())
        {
            tracing::warn!("{temp} was left behind: {e}");
        }
        placed
    }

    fn name_it(&self, temp: &str, name: &str) -> Result<()> {
        let parent = open_dir(&self.sessions())?;
        let flags = libc::RENAME_NOREPLACE;
        match file::renameat(parent.as_fd(), temp.as_bytes(), parent.as_fd(), name.as_bytes(), flags) {
            Ok(()) => data::fsync(parent.as_fd(), false).map_err(|e| Error::on_path("restore", name, e)),
            Err(Errno::EEXIST) => Err(Error::usage(format!("there is already a session {name}"))
                .hint("give it another name with --as NAME, or see: sbx-fuse ls")),
            Err(e) => Err(Error::on_path("make the session", name, e)),
        }
    }

    /// Makes the session in the hidden directory `dir`, verified and on disk.
    fn fill(
        &self,
        dir: &Path,
        from: Box<dyn ReadSeek>,
        seal: Seal,
        trust: Trust,
        check: &mut dyn FnMut(&Header) -> Result<()>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(Header, Meta, Vec<String>, Lock)> {
        let lock = Lock::take(&dir.join("lock"), "that is restored", Role::Command)?;
        let top = open_dir(dir)?;
        let here = layer::probe(top.as_fd()).map_err(|e| Error::sys("use the state directory", e))?;
        let terms = Terms { setuid: trust.setuid, whiteout: here.whiteout };
        let mut total = 0;
        let mut check = |header: &Header| {
            total = header.content;
            let space = file::statfs(top.as_fd()).map_err(|e| Error::sys("look at the free space", e))?;
            if space.bavail.saturating_mul(u64::from(space.frsize)) < header.content {
                return Err(Error::on_path("restore into", dir.as_os_str().as_bytes(), Errno::ENOSPC));
            }
            check(header)
        };
        let sealed = decoder(SealReader::new(from))?;
        let (mut rest, header, unpacked) = {
            let into = open_dir(dir)?;
            let all = std::cell::Cell::new(0);
            let mut check = |h: &Header| {
                all.set(h.content);
                check(h)
            };
            archive_read::unpack(sealed, into, &terms, &mut check, &mut |done| progress(done, all.get()))?
        };
        let ended = "the archive is refused: something follows its end, or it changed while it was read";
        let mut tail = Vec::new();
        let drained = (&mut rest).take(1 << 20).read_to_end(&mut tail);
        let mut inner = rest.finish();
        let end = inner.read(&mut [0]);
        let good = drained.is_ok() && tail.iter().all(|&b| b == 0) && matches!(end, Ok(0));
        if !good || inner.get_ref().seal() != Some(seal) {
            return Err(Error::failure(ended));
        }
        let (mut meta, mut said) = self.finish(dir, &header, here, &unpacked)?;
        if !trust.own {
            said.append(&mut archive_trust::distrust(&top, dir, &mut meta)?);
        }
        data::syncfs(top.as_fd()).map_err(|e| Error::sys("write the session", e))?;
        Ok((header, meta, said, lock))
    }

    /// Checks what the archive says the session is, adapts it to this host, and adds what is not archived.
    fn finish(
        &self,
        dir: &Path,
        header: &Header,
        here: layer::Features,
        unpacked: &Unpacked,
    ) -> Result<(Meta, Vec<String>)> {
        let text = std::fs::read(dir.join("meta.json"))
            .map_err(|e| Error::failure(format!("the archive is refused: it has no meta.json ({e})")))?;
        let mut meta = Meta::parse(&text)?;
        let before = meta.clone();
        let odd = |what: &str| Error::failure(format!("the archive is refused: {what}"));
        let plain_id = (1..=64).contains(&meta.id.len()) && meta.id.bytes().all(|b| b.is_ascii_hexdigit());
        if !plain_id || meta.id != header.id {
            return Err(odd("its id is none"));
        }
        if !header.lowers.iter().map(|l| &l.path).eq(meta.roots.iter().map(|r| &r.path)) {
            return Err(odd("it does not say what it was made on"));
        }
        let all = meta.roots.iter().chain(&meta.private);
        let paths: Vec<&Path> = all.map(|r| r.path.as_path()).collect();
        for (i, path) in paths.iter().enumerate() {
            let why = "the archive is refused: a root of it cannot be one";
            roots::check_place(path, self.dir()).map_err(|e| e.context(why))?;
            for other in &paths[..i] {
                roots::check_distinct(other, path).map_err(|e| e.context(why))?;
            }
        }
        for (i, root) in meta.roots.iter_mut().chain(&mut meta.private).enumerate() {
            if !is_canonical(root.path.as_path()) || !archive_read::is_name(root.name.as_bytes()) {
                return Err(odd("a root of it cannot be one"));
            }
            let at = dir.join("roots").join(i.to_string());
            for part in ["upper", "work"] {
                open_dir(&at.join(part))
                    .map_err(|e| e.context("the archive is refused: a root is missing"))?;
            }
            if unpacked.converted > 0 {
                root.features.whiteout = WhiteoutForm::Prefix;
            }
            if root.features.xattr && !here.xattr {
                return Err(odd("it needs a file system with user xattrs, which this is not"));
            }
            root.features.reflink = here.reflink;
        }
        // Whoever restores was asked whether these are the right ones; what is not there is known by its path only.
        for root in &mut meta.roots {
            root.id = DirId::at(root.path.as_path()).ok();
        }
        let mut said = Vec::new();
        if unpacked.disowned > 0 {
            said.push(format!("{} of its objects belonged to others, and are yours now", unpacked.disowned));
        }
        meta.mountpoint = None;
        make_dir(&dir.join("mnt"))?;
        if meta != before {
            store::write_meta(dir, &meta)?;
        }
        Ok((meta, said))
    }
}

/// How far an archive is trusted.
#[derive(Clone, Copy)]
struct Trust {
    /// This store wrote it, as its checksum says.
    own: bool,
    /// Set-uid and set-gid files are taken.
    setuid: bool,
}

/// Whether a path is absolute and has neither `.`, `..` nor empty parts.
fn is_canonical(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes();
    bytes.strip_prefix(b"/").is_some_and(|rest| crate::base::RelPath::new(rest).is_ok())
}
