//! How commands talk to the server of a live session: one JSON object a line, over a Unix socket.
//!
//! The socket is `$XDG_RUNTIME_DIR/sbx-fuse/ID.sock`, or `control.sock` in the session's directory where there is no
//! such place; the lock file names it. Only processes of the same user are answered (`SO_PEERCRED`).

use super::meta::PathBytes;
use crate::base::{BaseId, Errno, Error, ErrorKind, RelPath, Result, Time, quote};
use crate::sys::file;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{Shutdown, getsockopt, shutdown, sockopt::PeerCredentials};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// The longest line either side takes, in bytes: a path of 4096 bytes, each four characters when quoted, and room.
const LINE_MAX: u64 = 64 << 10;
/// How long a server may take to answer.
const ANSWER_TIME: Duration = Duration::from_secs(60);
/// How long it may take to answer to [`Client::ping`], for which it has nothing to do.
const PING_TIME: Duration = Duration::from_secs(5);

/// What an object was when somebody looked at it, so that it is dropped only if it still is that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// Inode number of the upper object.
    pub ino: u64,
    /// Its last change.
    pub ctime: Time,
}

/// One change that is to leave a live session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaving {
    /// Whether the real tree has it now; else it was discarded.
    pub applied: bool,
    /// Which root.
    pub root: u16,
    /// Where it is in the merged view.
    pub path: RelPath,
    /// Of a rename, where in the merged view the object was.
    pub from: Option<RelPath>,
    /// What its object in the upper was when somebody looked.
    pub seen: Option<Seen>,
    /// Directories above it, or above where it was, that are no change themselves, each before the one above it.
    pub silent: Vec<RelPath>,
}

/// A file of a live session of which a part was applied: it is a change of the real file as that is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewBase {
    /// Which root.
    pub root: u16,
    /// Where it is in the merged view.
    pub path: RelPath,
    /// Where the real file is.
    pub real: RelPath,
    /// Inode number of its object in the upper.
    pub ino: u64,
    /// The real file.
    pub base: BaseId,
}

/// A directory of a live session, made anew over a real one, that is to be merged with that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merging {
    /// Which root.
    pub root: u16,
    /// Where it is in the merged view.
    pub path: RelPath,
    /// Where the real directory is.
    pub real: RelPath,
}

/// What a server says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveStatus {
    /// Process id.
    pub pid: u32,
    /// Where the view is mounted; for `run` only its own processes see that place.
    pub mountpoint: PathBytes,
    /// Since when, nanoseconds since the epoch.
    pub since: u64,
    /// The command that runs in it, if one does.
    pub command: Vec<PathBytes>,
}

/// Where a command that joins a live session finds its view.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The server.
    pub pid: u32,
    /// Where the view is mounted.
    pub mountpoint: PathBytes,
    /// Whether only the server's own mount namespace has it.
    pub own: bool,
}

/// The server's side: what it does when asked. Called from threads of the control socket.
pub trait Handler: Send + Sync {
    /// Who it is.
    fn status(&self) -> LiveStatus;
    /// Somebody is about to look: from now on each write is recorded anew, also to a file that has a record already,
    /// and the uppers' files are whole until [`Handler::looked`].
    ///
    /// # Errors
    /// When the journal cannot be written.
    fn new_epoch(&self) -> Result<()>;
    /// Takes one [`Handler::new_epoch`] back: who looked is gone.
    fn looked(&self);
    /// Takes a change out of the session; false when it is no longer what was seen.
    ///
    /// # Errors
    /// As the file operations on the upper.
    fn drop_change(&self, change: &Leaving) -> Result<bool>;
    /// Merges a directory made anew with the real one of its place; false when it is no such directory.
    ///
    /// # Errors
    /// As the file operations on the upper.
    fn merge(&self, dir: &Merging) -> Result<bool>;
    /// Notes on what a file is based from now on; false when something else is at its path.
    ///
    /// # Errors
    /// When the upper cannot be looked at.
    fn based_on(&self, file: &NewBase) -> Result<bool>;
    /// Unmounts; the server ends after that.
    ///
    /// # Errors
    /// When the mount is busy.
    fn umount(&self) -> Result<()>;
    /// One more command is about to run in the session, which therefore lives until [`Handler::leave`].
    ///
    /// # Errors
    /// `Locked` when the session is just ending, or has no view that others could use.
    fn join(&self) -> Result<Place>;
    /// A command that joined has ended.
    fn leave(&self);
    /// Process `pid` and what descends from it are the command `argv`.
    fn begin_command(&self, pid: u32, argv: &[PathBytes]);
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
enum Request {
    Ping,
    Status,
    NewEpoch,
    Drop {
        applied: bool,
        root: u16,
        path: PathBytes,
        from: Option<PathBytes>,
        seen: Option<Seen>,
        #[serde(default)]
        silent: Vec<PathBytes>,
    },
    Merge {
        root: u16,
        path: PathBytes,
        real: PathBytes,
    },
    BasedOn {
        root: u16,
        path: PathBytes,
        real: PathBytes,
        ino: u64,
        base: BaseId,
    },
    Umount,
    Join,
    Command {
        pid: u32,
        argv: Vec<PathBytes>,
    },
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Done,
    Dropped(bool),
    Status(LiveStatus),
    Joined(Place),
    Error { exit: u8, message: String, causes: Vec<String>, hint: Option<String> },
}

impl Answer {
    fn error(e: Error) -> Answer {
        Answer::Error { exit: e.kind.exit_code(), message: e.message, causes: e.causes, hint: e.hint }
    }
}

/// A running server end; gone when dropped, with every request answered that was taken.
pub struct ControlServer {
    listener: Arc<UnixListener>,
    path: PathBuf,
    thread: Option<JoinHandle<Vec<Peer>>>,
}

/// A connection, and the thread that answers it.
struct Peer {
    stream: UnixStream,
    thread: JoinHandle<()>,
}

impl ControlServer {
    /// Listens for the session with the id `id`, whose directory is `dir`, and answers with `handler`. The session's
    /// lock must be ours: a socket that is there already is a dead server's.
    ///
    /// # Errors
    /// When no socket can be made.
    pub fn start(id: &str, dir: &Path, handler: Arc<dyn Handler>) -> Result<ControlServer> {
        let path = runtime_dir().map(|d| d.join(format!("{id}.sock"))).unwrap_or(dir.join("control.sock"));
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::on_path("replace the socket", path.as_os_str().as_bytes(), e));
            }
            _ => {}
        }
        let told = |e| Error::on_path("make the socket", path.as_os_str().as_bytes(), e);
        let listener = by_short_name(&path, |short| UnixListener::bind(short)).map_err(told)?;
        let listener = Arc::new(listener);
        let theirs = listener.clone();
        let thread = std::thread::Builder::new()
            .name("control".into())
            .spawn(move || accept(&theirs, &handler))
            .map_err(told)?;
        Ok(ControlServer { listener, path, thread: Some(thread) })
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        // Wakes accept(2), which then fails for good.
        let woken = shutdown(self.listener.as_raw_fd(), Shutdown::Both).is_ok();
        if let Err(e) = std::fs::remove_file(&self.path) {
            tracing::debug!("control socket: {e}");
        }
        let Some(thread) = self.thread.take().filter(|_| woken) else { return };
        let Ok(peers) = thread.join() else {
            tracing::error!("the control thread panicked");
            return;
        };
        for peer in peers {
            // No further request is read; the answer to the last one, perhaps to the unmount that ends us, is still
            // written.
            let cut = peer.stream.shutdown(std::net::Shutdown::Read);
            if cut.is_ok() && peer.thread.join().is_err() {
                tracing::error!("a control thread panicked");
            }
        }
    }
}

/// Takes connections until the listener is shut down; returns those that may still be open.
fn accept(listener: &UnixListener, handler: &Arc<dyn Handler>) -> Vec<Peer> {
    let mut peers: Vec<Peer> = Vec::new();
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(e) if matches!(e.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ECONNABORTED)) => {
                std::thread::sleep(Duration::from_millis(50));
                continue;
            }
            Err(_) => return peers,
        };
        peers.retain(|p| !p.thread.is_finished());
        match answer_in_thread(stream, handler.clone()) {
            Ok(peer) => peers.push(peer),
            Err(e) => tracing::warn!("control: {e}"),
        }
    }
}

fn answer_in_thread(stream: UnixStream, handler: Arc<dyn Handler>) -> std::io::Result<Peer> {
    let theirs = stream.try_clone()?;
    let thread = std::thread::Builder::new().name("control-peer".into()).spawn(move || {
        // Closing this end alone would not hang up: `Peer` has the connection open, too.
        let hang_up = theirs.try_clone();
        let served = serve(theirs, &*handler);
        let hung_up = hang_up.and_then(|s| s.shutdown(std::net::Shutdown::Both));
        if let Err(e) = served.and(hung_up) {
            tracing::debug!("control: {e}");
        }
    })?;
    Ok(Peer { stream, thread })
}

/// Answers one peer until it hangs up.
fn serve(stream: UnixStream, handler: &dyn Handler) -> std::io::Result<()> {
    let peer = getsockopt(&stream, PeerCredentials)?;
    if peer.uid() != crate::sys::process::effective_ids().0 {
        return Err(std::io::Error::other(format!("refused a peer with uid {}", peer.uid())));
    }
    stream.set_write_timeout(Some(ANSWER_TIME))?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut writer = stream;
    let mut joined = Joined { handler, times: 0, looks: 0 };
    while let Some(line) = read_line(&mut reader)? {
        if has_hung_up(&writer)? {
            return Ok(());
        }
        let answer = match serde_json::from_slice::<Request>(&line) {
            Ok(request) => handle(request, &mut joined).unwrap_or_else(Answer::error),
            Err(e) => Answer::error(Error::usage(format!("not a request: {e}"))),
        };
        write_line(&mut writer, &answer)?;
    }
    Ok(())
}

/// Whether a peer does not wait for an answer any more: it was killed, perhaps long before we, having been stopped, came
/// to read what it asked.
fn has_hung_up(peer: &UnixStream) -> std::io::Result<bool> {
    let mut fds = [PollFd::new(peer.as_fd(), PollFlags::empty())];
    poll(&mut fds, PollTimeout::ZERO)?;
    Ok(fds[0].revents().is_some_and(|r| r.contains(PollFlags::POLLHUP)))
}

/// What a peer joined it leaves when it hangs up, however it does that.
struct Joined<'a> {
    handler: &'a dyn Handler,
    times: usize,
    looks: usize,
}

impl Drop for Joined<'_> {
    fn drop(&mut self) {
        for _ in 0..self.times {
            self.handler.leave();
        }
        for _ in 0..self.looks {
            self.handler.looked();
        }
    }
}

fn relative(p: &PathBytes) -> Result<RelPath> {
    RelPath::new(p.as_bytes()).map_err(|e| Error::on_path("use the path", p.as_bytes(), e))
}

fn handle(request: Request, joined: &mut Joined<'_>) -> Result<Answer> {
    let handler = joined.handler;
    Ok(match request {
        Request::Join => {
            let place = handler.join()?;
            joined.times += 1;
            Answer::Joined(place)
        }
        Request::Command { pid, argv } => {
            handler.begin_command(pid, &argv);
            Answer::Done
        }
        Request::Ping => Answer::Done,
        Request::Status => Answer::Status(handler.status()),
        Request::NewEpoch => {
            handler.new_epoch()?;
            joined.looks += 1;
            Answer::Done
        }
        Request::Drop { applied, root, path, from, seen, silent } => {
            let from = from.as_ref().map(relative).transpose()?;
            let silent = silent.iter().map(relative).collect::<Result<_>>()?;
            let change = Leaving { applied, root, path: relative(&path)?, from, seen, silent };
            Answer::Dropped(handler.drop_change(&change)?)
        }
        Request::Merge { root, path, real } => {
            let dir = Merging { root, path: relative(&path)?, real: relative(&real)? };
            Answer::Dropped(handler.merge(&dir)?)
        }
        Request::BasedOn { root, path, real, ino, base } => {
            let file = NewBase { root, path: relative(&path)?, real: relative(&real)?, ino, base };
            Answer::Dropped(handler.based_on(&file)?)
        }
        Request::Umount => {
            handler.umount()?;
            Answer::Done
        }
    })
}

fn read_line(reader: &mut impl BufRead) -> std::io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    reader.take(LINE_MAX).read_until(b'\n', &mut line)?;
    match line.pop() {
        None => Ok(None),
        Some(b'\n') => Ok(Some(line)),
        Some(_) => Err(std::io::Error::other("a line without end")),
    }
}

fn write_line(writer: &mut impl Write, value: &impl Serialize) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    writer.write_all(&line)
}

/// Whether nobody listens at a socket that is there, as its server died.
pub fn is_dead_socket(path: &Path) -> bool {
    let tried = by_short_name(path, |short| UnixStream::connect(short));
    tried.is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionRefused)
}

/// The client's side: a connection to a live server.
pub struct Client {
    reader: BufReader<UnixStream>,
    writer: UnixStream,
}

impl Client {
    /// Connects to the server that listens at `socket`.
    ///
    /// # Errors
    /// `Failure` when nobody answers.
    pub fn connect(socket: &Path) -> Result<Client> {
        let told = |e| Error::on_path("reach the session's server at", socket.as_os_str().as_bytes(), e);
        let writer = by_short_name(socket, |short| UnixStream::connect(short)).map_err(told)?;
        writer.set_read_timeout(Some(ANSWER_TIME)).map_err(told)?;
        let reader = BufReader::new(writer.try_clone().map_err(told)?);
        Ok(Client { reader, writer })
    }

    fn ask(&mut self, request: &Request) -> Result<Answer> {
        let told = |e: std::io::Error| Error::sys("talk to the session's server", e);
        write_line(&mut self.writer, request).map_err(told)?;
        let line = read_line(&mut self.reader)
            .map_err(told)?
            .ok_or_else(|| lost("the session's server hung up".into()))?;
        understand(&line)
    }

    fn expect_done(&mut self, request: &Request) -> Result<()> {
        match self.ask(request)? {
            Answer::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Whether it answers.
    ///
    /// # Errors
    /// When it does not.
    pub fn ping(&mut self) -> Result<()> {
        let within = |stream: &UnixStream, time| {
            stream.set_read_timeout(Some(time)).map_err(|e| Error::sys("talk to the session's server", e))
        };
        within(&self.writer, PING_TIME)?;
        self.expect_done(&Request::Ping)?;
        within(&self.writer, ANSWER_TIME)
    }

    /// Who it is.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn status(&mut self) -> Result<LiveStatus> {
        match self.ask(&Request::Status)? {
            Answer::Status(status) => Ok(status),
            other => Err(unexpected(&other)),
        }
    }

    /// As [`Handler::new_epoch`].
    ///
    /// # Errors
    /// The handler's, or when it does not answer.
    pub fn new_epoch(&mut self) -> Result<()> {
        self.expect_done(&Request::NewEpoch)
    }

    /// As [`Handler::drop_change`].
    ///
    /// # Errors
    /// The handler's, or when it does not answer.
    pub fn drop_change(&mut self, change: &Leaving) -> Result<bool> {
        let text = |p: &RelPath| PathBytes(p.as_bytes().to_vec());
        let request = Request::Drop {
            applied: change.applied,
            root: change.root,
            path: text(&change.path),
            from: change.from.as_ref().map(text),
            seen: change.seen,
            silent: change.silent.iter().map(text).collect(),
        };
        match self.ask(&request)? {
            Answer::Dropped(dropped) => Ok(dropped),
            other => Err(unexpected(&other)),
        }
    }

    /// As [`Handler::merge`].
    ///
    /// # Errors
    /// The handler's, or when it does not answer.
    pub fn merge(&mut self, dir: &Merging) -> Result<bool> {
        let text = |p: &RelPath| PathBytes(p.as_bytes().to_vec());
        match self.ask(&Request::Merge { root: dir.root, path: text(&dir.path), real: text(&dir.real) })? {
            Answer::Dropped(merged) => Ok(merged),
            other => Err(unexpected(&other)),
        }
    }

    /// As [`Handler::based_on`].
    ///
    /// # Errors
    /// The handler's, or when it does not answer.
    pub fn based_on(&mut self, file: &NewBase) -> Result<bool> {
        let text = |p: &RelPath| PathBytes(p.as_bytes().to_vec());
        let (path, real, base) = (text(&file.path), text(&file.real), file.base.clone());
        match self.ask(&Request::BasedOn { root: file.root, path, real, ino: file.ino, base })? {
            Answer::Dropped(noted) => Ok(noted),
            other => Err(unexpected(&other)),
        }
    }

    /// As [`Handler::join`]; the session lives until this connection is dropped.
    ///
    /// # Errors
    /// The handler's, or when it does not answer.
    pub fn join(&mut self) -> Result<Place> {
        match self.ask(&Request::Join)? {
            Answer::Joined(place) => Ok(place),
            other => Err(unexpected(&other)),
        }
    }

    /// As [`Handler::begin_command`].
    ///
    /// # Errors
    /// When it does not answer.
    pub fn begin_command(&mut self, pid: u32, argv: &[PathBytes]) -> Result<()> {
        self.expect_done(&Request::Command { pid, argv: argv.to_vec() })
    }

    /// As [`Handler::umount`]. The server may end before it has answered; that it hangs up is an answer as well.
    ///
    /// # Errors
    /// The handler's, or when it cannot be asked.
    pub fn umount(&mut self) -> Result<()> {
        let told = |e: std::io::Error| Error::sys("talk to the session's server", e);
        write_line(&mut self.writer, &Request::Umount).map_err(told)?;
        match read_line(&mut self.reader) {
            Ok(None) => Ok(()),
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => Ok(()),
            Ok(Some(line)) => match understand(&line)? {
                Answer::Done => Ok(()),
                other => Err(unexpected(&other)),
            },
            Err(e) => Err(told(e)),
        }
    }
}

/// The error that there is no talking to a server: it has died, or is another version of this program.
fn lost(what: String) -> Error {
    Error::failure(what).hint("see whether it still runs, and end it if so: sbx-fuse ls; sbx-fuse stop NAME")
}

/// An answer, which is an error when it tells one.
fn understand(line: &[u8]) -> Result<Answer> {
    let answer = serde_json::from_slice(line)
        .map_err(|e| lost(format!("the session's server answered with something unknown: {e}")))?;
    match answer {
        Answer::Error { exit, message, causes, hint } => {
            let kinds = [
                ErrorKind::Usage,
                ErrorKind::Conflict,
                ErrorKind::Locked,
                ErrorKind::Quota,
                ErrorKind::Missing,
            ];
            let kind = kinds.into_iter().find(|k| k.exit_code() == exit).unwrap_or(ErrorKind::Failure);
            Err(Error { kind, message, causes, hint, errno: None })
        }
        other => Ok(other),
    }
}

fn unexpected(answer: &Answer) -> Error {
    lost(format!("the session's server answered with something else: {answer:?}"))
}

/// `$XDG_RUNTIME_DIR/sbx-fuse`, made if need be; `None` where there is no such directory that is ours alone.
fn runtime_dir() -> Option<PathBuf> {
    let base = PathBuf::from(std::env::var_os("XDG_RUNTIME_DIR")?);
    let (uid, _) = crate::sys::process::effective_ids();
    let ours =
        |p: &Path| p.symlink_metadata().is_ok_and(|m| m.is_dir() && m.uid() == uid && m.mode() & 0o077 == 0);
    if !base.is_absolute() || !ours(&base) {
        return None;
    }
    let dir = base.join("sbx-fuse");
    match std::fs::DirBuilder::new().mode(0o700).create(&dir) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => None,
        _ => Some(dir).filter(|d| ours(d)),
    }
}

/// Calls `f` with a name for `path` that is short enough for `sun_path` (108 bytes, unix(7)), whatever its length: the
/// directory is opened and named through `/proc/self/fd`.
fn by_short_name<T>(path: &Path, f: impl FnOnce(&Path) -> std::io::Result<T>) -> std::io::Result<T> {
    if path.as_os_str().len() < 100 {
        return f(path);
    }
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(std::io::Error::from(Errno::EINVAL));
    };
    let dir: OwnedFd = file::open_path(dir.as_os_str().as_bytes(), libc::O_PATH | libc::O_DIRECTORY)?;
    let short = [&file::proc_path(dir.as_fd())[..], b"/", name.as_bytes()].concat();
    f(Path::new(std::ffi::OsStr::from_bytes(&short)))
}

impl std::fmt::Debug for ControlServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ControlServer({})", quote(self.path.as_os_str().as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fake;
    impl Handler for Fake {
        fn status(&self) -> LiveStatus {
            LiveStatus { pid: 7, mountpoint: PathBytes(b"/m".into()), since: 1, command: vec![] }
        }
        fn new_epoch(&self) -> Result<()> {
            Ok(())
        }
        fn looked(&self) {}
        fn drop_change(&self, change: &Leaving) -> Result<bool> {
            assert_eq!((change.root, change.path.as_bytes()), (3, &b"a/\xff\n"[..]));
            assert_eq!(change.from.as_ref().unwrap().as_bytes(), b"b");
            Ok(change.applied && change.seen.is_none())
        }
        fn merge(&self, dir: &Merging) -> Result<bool> {
            Ok((dir.root, dir.path.as_bytes(), dir.real.as_bytes()) == (2, &b"d"[..], &b"e"[..]))
        }
        fn based_on(&self, file: &NewBase) -> Result<bool> {
            Ok(file.ino == 9 && file.real.as_bytes() == b"b" && file.base.size == 5)
        }
        fn umount(&self) -> Result<()> {
            Err(Error::new(ErrorKind::Locked, "busy").hint("wait"))
        }
        fn join(&self) -> Result<Place> {
            Ok(Place { pid: 7, mountpoint: PathBytes(b"/m".into()), own: true })
        }
        fn leave(&self) {
            LEFT.lock().unwrap().send(()).unwrap();
        }
        fn begin_command(&self, pid: u32, argv: &[PathBytes]) {
            assert_eq!((pid, argv[0].as_bytes()), (9, &b"make"[..]));
        }
    }

    type Sender = std::sync::LazyLock<std::sync::Mutex<std::sync::mpsc::Sender<()>>>;
    static LEFT: Sender = std::sync::LazyLock::new(|| {
        let (sender, receiver) = std::sync::mpsc::channel();
        *HEARD.lock().unwrap() = Some(receiver);
        std::sync::Mutex::new(sender)
    });
    static HEARD: std::sync::Mutex<Option<std::sync::mpsc::Receiver<()>>> = std::sync::Mutex::new(None);

    #[test]
    fn requests_are_answered_also_over_a_socket_with_a_long_name() {
        let tmp = tempfile::tempdir().unwrap();
        let dir = tmp.path().join("d".repeat(120));
        std::fs::create_dir(&dir).unwrap();
        let server = ControlServer::start("id-of-a-test", &dir, Arc::new(Fake)).unwrap();
        let mut client = Client::connect(server.path()).unwrap();
        client.ping().unwrap();
        client.new_epoch().unwrap();
        assert_eq!(client.status().unwrap().pid, 7);
        let path = RelPath::new(b"a/\xff\n").unwrap();
        let from = Some(RelPath::new(b"b").unwrap());
        let mut change = Leaving { applied: true, root: 3, path, from, seen: None, silent: vec![] };
        assert!(client.drop_change(&change).unwrap());
        change.seen = Some(Seen { ino: 1, ctime: Time::default() });
        assert!(!client.drop_change(&change).unwrap());
        let [path, real] = [&b"d"[..], b"e"].map(|p| RelPath::new(p).unwrap());
        assert!(client.merge(&Merging { root: 2, path, real }).unwrap());
        let base = BaseId {
            kind: crate::base::Kind::File,
            perm: 0,
            uid: 0,
            gid: 0,
            size: 5,
            dev: 0,
            ino: 0,
            nlink: 1,
            mtime: Time::default(),
            ctime: Time::default(),
            hash: Some([7; 32]),
        };
        let (path, real) = (change.path.clone(), RelPath::new(b"b").unwrap());
        assert!(client.based_on(&NewBase { root: 0, path, real, ino: 9, base }).unwrap());
        let e = client.umount().unwrap_err();
        assert_eq!((e.kind, e.hint.as_deref()), (ErrorKind::Locked, Some("wait")));
        std::sync::LazyLock::force(&LEFT);
        assert!(client.join().unwrap().own);
        client.begin_command(9, &[PathBytes(b"make".into())]).unwrap();
        drop(client);
        // Who hangs up has left.
        let heard = HEARD.lock().unwrap().take().unwrap();
        heard.recv_timeout(Duration::from_secs(60)).unwrap();
        let at = server.path().to_owned();
        drop(server);
        assert!(Client::connect(&at).is_err());
    }

    #[test]
    fn nonsense_is_answered_with_an_error_and_an_endless_line_is_cut() {
        let tmp = tempfile::tempdir().unwrap();
        let server = ControlServer::start("id-of-a-test-2", tmp.path(), Arc::new(Fake)).unwrap();
        let mut stream = by_short_name(server.path(), |p| UnixStream::connect(p)).unwrap();
        stream.write_all(b"{\"op\":\"fly\"}\n\xff\xff\n").unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        for _ in 0..2 {
            let line = read_line(&mut reader).unwrap().unwrap();
            assert!(matches!(serde_json::from_slice(&line).unwrap(), Answer::Error { exit: 2, .. }));
        }
        let long = vec![b'x'; 2 * LINE_MAX as usize];
        // The server hangs up in the middle of it.
        drop(stream.write_all(&long));
        assert!(!matches!(read_line(&mut reader), Ok(Some(_))));
    }
}
