//! Mounting a union, serving it, and taking it down.

use super::adapter::{Adapter, Closed};
use super::convert::KernelCaches;
use super::helper;
use super::pace::Pace;
use crate::base::{Error, ErrorKind, Result};
use crate::sys::{self, file};
use crate::union::Union;
use fuser::{Config, Session, SessionACL};
use parking_lot::{Condvar, Mutex};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a mount that was taken down is served for those who have a copy of it in their own mount namespace.
const GRACE: Duration = Duration::from_secs(1);

/// By which way the mount is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// `mount(2)` right here: we have the capability, be it as root or in a user namespace of our own.
    Direct,
    /// The set-uid helper `fusermount3`.
    Helper,
}

/// What the mount is like.
#[derive(Clone, Debug)]
pub struct Options {
    /// By which way.
    pub how: How,
    /// Whether users other than the one who mounts are let in.
    pub allow_other: bool,
    /// What `/proc/mounts` shows as the source.
    pub fsname: String,
    /// What it shows as the type, after `fuse.`.
    pub subtype: String,
    /// `MS_*` flags of mount(2).
    pub flags: u64,
    /// Further options of the file system, each with a leading comma (a label's `,context="…"`). Only `How::Direct`.
    pub extra: Vec<u8>,
    /// Threads that serve requests, at least one.
    pub threads: usize,
}

/// A mounted union that is being served by threads of this process.
pub struct Server {
    mountpoint: PathBuf,
    how: How,
    state: Arc<(Mutex<State>, Condvar)>,
    closed: Arc<Closed>,
    thread: JoinHandle<()>,
}

/// How far serving has come.
#[derive(Default)]
struct State {
    ended: bool,
    /// Why it ended, until somebody asks.
    error: Option<Error>,
    /// When the mount was taken down.
    taken_down: Option<Instant>,
}

/// Mounts `union` at `mountpoint` and serves it; when this returns, the mount answers.
///
/// # Errors
/// `ErrorKind::Missing` when `/dev/fuse` or `fusermount3` is not usable, else the failure of the mount.
pub fn mount(union: Arc<Union>, mountpoint: &Path, options: &Options) -> Result<Server> {
    // Modes come from the caller with its umask; ours must not take bits away (see `union::dir`).
    file::umask(0);
    let mut config = Config::default();
    config.n_threads = Some(options.threads.max(1));
    config.clone_fd = options.threads > 1;
    // The kernel admits who may come (or `allow_other`); a second check by uid would refuse other user namespaces.
    config.acl = SessionACL::All;
    let fd = match options.how {
        How::Direct => mount_direct(mountpoint, options)?,
        // Not by the library: when its session ends it unmounts by path, and may hit the next mount there.
        How::Helper => helper::mount(mountpoint, options)?,
    };
    let pace = Arc::new(Pace::new());
    let closed = Arc::new(Closed::default());
    let adapter = Adapter::new(union.clone(), pace.clone(), closed.clone());
    let session = Session::from_fd(adapter, fd, SessionACL::All, config)
        .map_err(|e| Error::sys("greet the kernel over /dev/fuse", e))?;
    let spinner = pace.start()?;
    union.set_notify(Box::new(KernelCaches(session.notifier())));
    drop(union);
    let state = Arc::new((Mutex::new(State::default()), Condvar::new()));
    let signal = state.clone();
    let thread = std::thread::Builder::new()
        .name("serve".into())
        .spawn(move || {
            let mut ended = session.run().map_err(|e| Error::sys("serve the mount", e));
            pace.end();
            if spinner.is_some_and(|s| s.join().is_err()) {
                ended = ended.and(Err(Error::failure("the pace ended by a defect of ours")));
            }
            let mut state = signal.0.lock();
            (state.ended, state.error) = (true, ended.err());
            signal.1.notify_all();
        })
        .map_err(|e| Error::sys("start the serving thread", e))?;
    Ok(Server { mountpoint: mountpoint.to_owned(), how: options.how, state, closed, thread })
}

fn mount_direct(mountpoint: &Path, options: &Options) -> Result<OwnedFd> {
    let fd = file::open_path(b"/dev/fuse", libc::O_RDWR).map_err(|e| {
        let mut error = Error::on_path("open", "/dev/fuse", e).hint(
            "load the fuse module ('modprobe fuse'), and see 'sbx-fuse doctor' for the device's permissions",
        );
        error.kind = ErrorKind::Missing;
        error
    })?;
    let (uid, gid) = sys::process::effective_ids();
    let other = if options.allow_other { ",allow_other" } else { "" };
    let mut data = format!(
        "fd={},rootmode=40000,user_id={uid},group_id={gid},default_permissions{other}",
        fd.as_raw_fd()
    )
    .into_bytes();
    data.extend_from_slice(&options.extra);
    let target = mountpoint.as_os_str().as_bytes();
    let fstype = format!("fuse.{}", options.subtype);
    sys::mount::mount(options.fsname.as_bytes(), target, fstype.as_bytes(), options.flags, &data).map_err(
        |e| Error::on_path("mount at", target, e).hint("see 'sbx-fuse doctor' for what this host lacks"),
    )?;
    Ok(fd)
}

impl Server {
    /// Blocks until the mount is gone, by whatever means; after [`Server::note_taken_down`], not much longer.
    ///
    /// # Errors
    /// When serving ended with an error.
    pub fn wait(&self) -> Result<()> {
        let (state, changed) = &*self.state;
        let mut state = state.lock();
        loop {
            if state.ended {
                return state.error.take().map_or(Ok(()), Err);
            }
            match state.taken_down.map(|at| at + GRACE) {
                None => changed.wait(&mut state),
                Some(until) if Instant::now() < until => _ = changed.wait_until(&mut state, until),
                Some(_) => break,
            }
        }
        drop(state);
        *self.closed.write() = true;
        Ok(())
    }

    /// Tells that the mount was taken down while no program used it. A mount namespace that was made while it was there
    /// (another sandbox's) may have a copy that does not go with it, and the kernel has requests as long as that lives.
    pub fn note_taken_down(&self) {
        self.state.0.lock().taken_down = Some(Instant::now());
        self.state.1.notify_all();
    }

    /// Unmounts; requests under way are answered first.
    ///
    /// # Errors
    /// `EBUSY` while programs use the mount; the helper takes it out of sight instead.
    pub fn unmount(&self) -> Result<()> {
        let target = self.mountpoint.as_os_str().as_bytes();
        match self.how {
            How::Direct => sys::mount::umount(target, false).map_err(|e| {
                Error::on_path("unmount", target, e).hint("end the programs that use it, then try again")
            }),
            How::Helper => helper::unmount(&self.mountpoint),
        }
    }

    /// Waits for the serving threads to end after the mount is gone. Where only a copy of it is left, they stay, and
    /// answer `ENOTCONN`.
    ///
    /// # Errors
    /// When serving ended with an error, or a thread of ours panicked.
    pub fn join(self) -> Result<()> {
        self.wait()?;
        if *self.closed.read() {
            return Ok(());
        }
        self.thread.join().map_err(|_| Error::failure("the serving thread ended by a defect of ours"))
    }
}
