//! A session on temporary directories, mounted by this process; and small tools that every test needs.

use nix::unistd::geteuid;
use sbx_fuse::base::Name;
use sbx_fuse::fuse::{self, How, Options, Server};
use sbx_fuse::journal::Journal;
use sbx_fuse::layer::{self, LayerKind};
use sbx_fuse::sys::file;
use sbx_fuse::union::{Config, LayerConfig, RootConfig, Union, UpperConfig, View};
use std::fs;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// One test: where it lives, its name, what it does.
pub struct Case {
    pub module: &'static str,
    pub name: &'static str,
    pub run: fn(),
}

/// Lists the test functions of a file.
#[macro_export]
macro_rules! cases {
    ($($name:ident),+ $(,)?) => {
        /// The tests of this file.
        pub fn cases() -> Vec<$crate::harness::Case> {
            vec![$($crate::harness::Case { module: module_path!(), name: stringify!($name), run: $name }),+]
        }
    };
}

/// Whether the mounts are made as root: directly, with `allow_other`, for callers of any user.
pub static AS_ROOT: AtomicBool = AtomicBool::new(false);

pub fn as_root() -> bool {
    AS_ROOT.load(Ordering::Relaxed)
}

/// The session's directories of one mount.
#[derive(Clone)]
pub struct Dirs {
    pub lower: PathBuf,
    pub session: PathBuf,
    pub mnt: PathBuf,
}

impl Dirs {
    pub fn under(dir: &Path) -> Dirs {
        let dirs = Dirs { lower: dir.join("lower"), session: dir.join("session"), mnt: dir.join("mnt") };
        fs::create_dir_all(&dirs.lower).unwrap();
        dirs.prepare();
        dirs
    }

    pub fn prepare(&self) {
        for dir in ["upper", "work", "journal"] {
            fs::create_dir_all(self.session.join(dir)).unwrap();
        }
        fs::create_dir_all(&self.mnt).unwrap();
    }

    /// Builds the view and mounts it.
    pub fn mount(&self, root: bool) -> Mounted {
        let work = open_dir(&self.session.join("work"));
        let (journal, _) = Journal::open(&self.session.join("journal")).unwrap();
        let journal = Arc::new(journal);
        let features = layer::probe(work.as_fd()).unwrap();
        let config = Config {
            roots: vec![RootConfig {
                name: Name::new(b"root").unwrap(),
                real_path: self.lower.as_os_str().as_bytes().to_vec(),
                upper: Some(UpperConfig {
                    dir: open_dir(&self.session.join("upper")),
                    work,
                    features,
                    shared: false,
                }),
                lowers: vec![LayerConfig { dir: open_dir(&self.lower), kind: LayerKind::Plain }],
            }],
            single: true,
            hidden: Vec::new(),
            journal: Some(journal.clone()),
            multi_user: root,
            view: View::default(),
        };
        let union = Union::new(config).unwrap();
        let options = Options {
            how: if root { How::Direct } else { How::Helper },
            allow_other: root,
            fsname: "sbx-fuse-test".into(),
            subtype: "sbx-fuse".into(),
            flags: libc::MS_NOSUID | libc::MS_NODEV,
            extra: Vec::new(),
            threads: 2,
        };
        let server = fuse::mount(union.clone(), &self.mnt, &options).unwrap();
        Mounted { server: Some(server), union, journal, mnt: self.mnt.clone(), root }
    }
}

pub fn open_dir(path: &Path) -> OwnedFd {
    file::open_path(path.as_os_str().as_bytes(), libc::O_PATH | libc::O_DIRECTORY).unwrap()
}

/// A mount that goes away with this value, whatever the test did.
pub struct Mounted {
    server: Option<Server>,
    pub union: Arc<Union>,
    journal: Arc<Journal>,
    mnt: PathBuf,
    root: bool,
}

impl Mounted {
    /// Blocks until somebody unmounts.
    pub fn wait(&self) {
        self.server.as_ref().unwrap().wait().unwrap();
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let Some(server) = self.server.take() else {
            return;
        };
        // A child of another test that was just forked has our descriptors for a moment; a test that failed may have
        // left files open for good.
        let end = Instant::now() + Duration::from_secs(2);
        let mut done = server.unmount();
        while done.is_err() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
            done = server.unmount();
        }
        if let Err(e) = done {
            eprintln!("unmounting lazily: {e}");
            let mut lazy = if self.root { Command::new("umount") } else { Command::new("fusermount3") };
            lazy.args(if self.root { &["-l"][..] } else { &["-u", "-z"][..] });
            if let Err(e) = lazy.arg(&self.mnt).status() {
                eprintln!("no lazy unmount: {e}");
            }
        }
        if let Err(e) = server.join() {
            eprintln!("serving ended with: {e}");
        }
        for left in self.union.complete() {
            eprintln!("{} was not completed: {}", left.path, left.why);
        }
        if let Err(e) = self.journal.finish() {
            eprintln!("the journal was not closed: {e}");
        }
    }
}

/// A lower tree, a session over it, and its mount.
pub struct Bed {
    mounted: Option<Mounted>,
    pub dirs: Dirs,
    tmp: tempfile::TempDir,
}

impl Bed {
    /// `fill` makes the lower tree, before anything is mounted.
    pub fn new(fill: impl FnOnce(&Path)) -> Bed {
        let tmp = tempfile::Builder::new().prefix("sbxtest-").tempdir().unwrap();
        if as_root() {
            chmod(tmp.path(), 0o755);
        }
        let dirs = Dirs::under(tmp.path());
        fill(&dirs.lower);
        let mounted = Some(dirs.mount(as_root()));
        Bed { mounted, dirs, tmp }
    }

    /// Unmounts and builds everything anew from the same directories.
    pub fn remount(&mut self) {
        self.mounted = None;
        self.mounted = Some(self.dirs.mount(as_root()));
    }

    pub fn union(&self) -> &Arc<Union> {
        &self.mounted.as_ref().unwrap().union
    }

    /// The paths that the journal says are changed.
    pub fn fold(&self) -> Vec<String> {
        self.mounted.as_ref().unwrap().journal.sync().unwrap();
        let folded = sbx_fuse::journal::fold_dir(&self.dirs.session.join("journal")).unwrap();
        folded.set.changes.iter().map(|c| c.path.to_string()).collect()
    }

    /// A path as the mount shows it.
    pub fn at(&self, rel: impl AsRef<Path>) -> PathBuf {
        self.dirs.mnt.join(rel)
    }

    /// The same path in the real tree.
    pub fn lower(&self, rel: impl AsRef<Path>) -> PathBuf {
        self.dirs.lower.join(rel)
    }

    /// The same path in the upper.
    pub fn upper(&self, rel: impl AsRef<Path>) -> PathBuf {
        self.dirs.session.join("upper").join(rel)
    }

    /// A place on the same file system outside of everything.
    pub fn outside(&self, rel: impl AsRef<Path>) -> PathBuf {
        self.tmp.path().join(rel)
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.mounted = None;
        // The standard library's way fails on paths over PATH_MAX and on directories that keep even us out.
        let dir = self.tmp.path().to_owned();
        for (program, args) in [("chmod", ["-Rf", "u+rwx"].as_slice()), ("rm", ["-rf"].as_slice())] {
            if let Err(e) = Command::new(program).args(args).arg(&dir).stderr(Stdio::null()).status() {
                eprintln!("{program} {}: {e}", dir.display());
            }
        }
    }
}

pub fn put(path: impl AsRef<Path>, bytes: impl AsRef<[u8]>) {
    fs::write(path.as_ref(), bytes).unwrap_or_else(|e| panic!("write {}: {e}", path.as_ref().display()));
}

pub fn get(path: impl AsRef<Path>) -> Vec<u8> {
    fs::read(path.as_ref()).unwrap_or_else(|e| panic!("read {}: {e}", path.as_ref().display()))
}

pub fn text(path: impl AsRef<Path>) -> String {
    String::from_utf8(get(path)).unwrap()
}

pub fn mkdir(path: impl AsRef<Path>) {
    fs::create_dir_all(path.as_ref()).unwrap_or_else(|e| panic!("mkdir {}: {e}", path.as_ref().display()));
}

pub fn chmod(path: impl AsRef<Path>, mode: u32) {
    fs::set_permissions(path.as_ref(), fs::Permissions::from_mode(mode)).unwrap();
}

pub fn stat(path: impl AsRef<Path>) -> fs::Metadata {
    fs::symlink_metadata(path.as_ref()).unwrap_or_else(|e| panic!("stat {}: {e}", path.as_ref().display()))
}

pub fn gone(path: impl AsRef<Path>) -> bool {
    matches!(fs::symlink_metadata(path), Err(e) if e.raw_os_error() == Some(libc::ENOENT))
}

pub fn ls(path: impl AsRef<Path>) -> Vec<String> {
    let entries =
        fs::read_dir(path.as_ref()).unwrap_or_else(|e| panic!("ls {}: {e}", path.as_ref().display()));
    let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The errno that an operation failed with; 0 when it did not.
pub fn errno<T>(result: std::io::Result<T>) -> i32 {
    match result {
        Ok(_) => 0,
        Err(e) => e.raw_os_error().unwrap_or(-1),
    }
}

/// The errno of a nix call, 0 for success.
pub fn nix_errno<T>(result: nix::Result<T>) -> i32 {
    result.map_or_else(|e| e as i32, |_| 0)
}

/// Waits until `done` holds: what the real tree does reaches the mount by way of inotify, soon but not at once.
pub fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !done() {
        assert!(Instant::now() < end, "never came true: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Another process that does `what` (see `helper.rs`); it says `ready` when it has, and ends when told.
pub struct Other {
    child: Child,
}

/// Runs `what` in a process of its own and returns its exit code (an errno, or 0).
pub fn in_process(what: &[&str]) -> i32 {
    let mut command = helper_command(what);
    command.status().unwrap().code().unwrap_or(-1)
}

/// As [`in_process`], as another user.
pub fn as_user(uid: u32, what: &[&str]) -> i32 {
    assert!(geteuid().is_root());
    let mut command = Command::new("setpriv");
    command.args([&format!("--reuid={uid}"), &format!("--regid={uid}"), "--clear-groups", "--"]);
    command.arg("/proc/self/fd/0").stdin(fs::File::open("/proc/self/exe").unwrap());
    command.arg("helper").args(what);
    command.status().unwrap().code().unwrap_or(-1)
}

fn helper_command(what: &[&str]) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg("helper").args(what);
    command
}

impl Other {
    pub fn start(what: &[&str]) -> Other {
        let mut child = helper_command(what).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut ready = [0; 6];
        child.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
        assert_eq!(&ready, b"ready\n");
        Other { child }
    }

    pub fn end(mut self) {
        self.child.stdin.take().unwrap().write_all(b"end\n").unwrap();
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        if let Err(e) = self.child.wait() {
            eprintln!("waiting for a helper: {e}");
        }
    }
}
