//! `sbx-fuse doctor`: what this host has and lacks, each with its remedy.

use super::mounting::{self, helper_remedy, own_failure, remedy, sysctl};
use super::output::{Color, Out};
use super::wreckage::Wreckage;
use crate::base::{Errno, ErrorKind, Result, quote};
use crate::layer::{self, WhiteoutForm};
use crate::sandbox::{self, Capability, Probe, Step, bwrap_missing, find_program, probe};
use crate::session::{Store, remove_tree};
use crate::sys::file;
use clap::Args;
use nix::sys::resource::{Resource, getrlimit};
use serde::Serialize;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Check everything this host must have, and say how to get what it lacks
///
/// Exits with 6 when `run` does not work here.
#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    /// Take away what servers that died left: dead mounts and sockets, unfinished archives; and repair their sessions
    #[arg(long)]
    fix: bool,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    /// As it should be.
    Ok,
    /// Something works less well, or one of several ways does not.
    Warn,
    /// Something does not work at all.
    Fail,
}

#[derive(Debug, Serialize)]
struct Check {
    name: &'static str,
    verdict: Verdict,
    found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

#[derive(Serialize)]
struct Json {
    run: bool,
    mount: bool,
    checks: Vec<Check>,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Check {
        Check { name, verdict: Verdict::Ok, found: found.into(), remedy: None }
    }

    fn warn(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Check {
        Check { name, verdict: Verdict::Warn, found: found.into(), remedy: Some(remedy.into()) }
    }

    fn fail(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Check {
        Check { verdict: Verdict::Fail, ..Check::warn(name, found, remedy) }
    }
}

pub(super) fn run(args: DoctorArgs) -> Result<u8> {
    if args.fix {
        Wreckage::find()?.clear();
    }
    let probe = probe(mounting::PROBE)?;
    let device = device(&probe);
    let helper = helper();
    let helper_works = helper.verdict == Verdict::Ok && device.verdict == Verdict::Ok;
    let own = probe.can != Capability::None;
    let (bwrap, state) = (bwrap(), state());
    let kept = state.verdict != Verdict::Fail;
    let json = Json {
        run: kept && (own || helper_works) && bwrap.verdict == Verdict::Ok,
        mount: kept && (probe.can == Capability::Privileged || helper_works),
        checks: vec![
            device,
            namespaces(&probe),
            apparmor(&probe),
            helper,
            allow_other(),
            bwrap,
            state,
            open_files(),
            inotify(),
            limits(),
            wreckage(),
        ],
    };
    let mut out = Out::new();
    if args.json {
        out.json(&json)?;
    } else {
        show(&mut out, &json)?;
    }
    out.flush()?;
    Ok(if json.run { 0 } else { ErrorKind::Missing.exit_code() })
}

fn show(out: &mut Out, json: &Json) -> Result<()> {
    for check in &json.checks {
        let (word, color) = match check.verdict {
            Verdict::Ok => ("ok  ", Color::Green),
            Verdict::Warn => ("warn", Color::Yellow),
            Verdict::Fail => ("FAIL", Color::Red),
        };
        let word = out.paint(color, word);
        out.line(&format!("{word}  {:<15}  {}", check.name, check.found))?;
        if let Some(remedy) = &check.remedy {
            out.line(&format!("{:23}{remedy}", ""))?;
        }
    }
    let can = |yes: bool| if yes { "works" } else { "does not work here" };
    out.line(&format!("sbx-fuse run {}; sbx-fuse mount {}", can(json.run), can(json.mount)))
}

fn device(probe: &Probe) -> Check {
    const NAME: &str = "/dev/fuse";
    match file::open_path(b"/dev/fuse", libc::O_RDWR) {
        Ok(_) => Check::ok(NAME, "can be opened"),
        Err(e) => {
            let at_open = Probe { failed: Some((Step::OpenDevice, e.0)), ..*probe };
            Check::fail(NAME, format!("cannot be opened: {e}"), remedy(&at_open).unwrap_or_default())
        }
    }
}

fn namespaces(probe: &Probe) -> Check {
    const NAME: &str = "own mounts";
    match (probe.can, probe.failed) {
        (Capability::Privileged, _) => Check::ok(NAME, "we are root and mount directly"),
        (Capability::OwnNamespace, _) => Check::ok(NAME, "a mount in a user namespace of our own works"),
        (Capability::None, Some((Step::OpenDevice, _))) => {
            Check::warn(NAME, "not tried further: /dev/fuse cannot be opened", "see /dev/fuse")
        }
        (Capability::None, _) => Check::warn(
            NAME,
            own_failure(probe).unwrap_or_else(|| "do not work".into()),
            remedy(probe).unwrap_or_default(),
        ),
    }
}

fn apparmor(probe: &Probe) -> Check {
    const NAME: &str = "AppArmor";
    match sysctl("kernel/apparmor_restrict_unprivileged_userns") {
        Some(1) if probe.can == Capability::None => Check::warn(
            NAME,
            "restricts unprivileged user namespaces",
            "run: sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
        ),
        Some(1) => Check::ok(NAME, "restricts unprivileged user namespaces, but not ours"),
        _ => Check::ok(NAME, "does not restrict user namespaces"),
    }
}

fn helper() -> Check {
    const NAME: &str = "fusermount3";
    let Some(path) = find_program(NAME, &[]) else {
        return Check::warn(
            NAME,
            "is not installed; only root can make mounts that other programs see",
            helper_remedy(),
        );
    };
    let shown = quote(path.as_os_str().as_bytes());
    let root = crate::sys::process::effective_ids().0 == 0;
    match path.symlink_metadata() {
        Ok(_) if root || mounting::is_setuid_root(&path) => Check::ok(NAME, format!("is {shown}")),
        Ok(m) if m.uid() == 0 => {
            let remedy = format!("run: sudo chmod u+s {shown}");
            Check::warn(NAME, format!("{shown} is not set-uid and cannot mount"), remedy)
        }
        Ok(_) => Check::warn(
            NAME,
            format!("{shown} is not root's here: we are in a user namespace or a sandbox"),
            "mount outside of it; `sbx-fuse run` needs no helper",
        ),
        Err(e) => {
            Check::warn(NAME, format!("{shown} cannot be looked at: {}", Errno::from(e)), helper_remedy())
        }
    }
}

fn allow_other() -> Check {
    const NAME: &str = "allow_other";
    let conf = std::fs::read_to_string("/etc/fuse.conf").unwrap_or_default();
    if crate::sys::process::effective_ids().0 == 0 {
        Check::ok(NAME, "root may use --allow-other")
    } else if conf.lines().any(|l| l.trim() == "user_allow_other") {
        Check::ok(NAME, "user_allow_other is set in /etc/fuse.conf")
    } else {
        let how = "to use `mount --allow-other`: echo user_allow_other | sudo tee -a /etc/fuse.conf";
        Check { remedy: Some(how.into()), ..Check::ok(NAME, "user_allow_other is not set in /etc/fuse.conf") }
    }
}

fn bwrap() -> Check {
    const NAME: &str = "bwrap";
    let Some(path) = find_program(NAME, &[]) else {
        let e = bwrap_missing();
        return Check::fail(NAME, "is not installed (package bubblewrap)", e.hint.unwrap_or_default());
    };
    let mut command = Command::new(&path);
    command.args([
        "--ro-bind",
        "/",
        "/",
        "--dev",
        "/dev",
        "--proc",
        "/proc",
        "--unshare-user",
        "--unshare-pid",
    ]);
    command.args(["--unshare-net", "--die-with-parent", "--", "true"]).stdin(Stdio::null());
    match command.output() {
        Ok(out) if out.status.success() => {
            Check::ok(NAME, format!("{} makes a sandbox", quote(path.as_os_str().as_bytes())))
        }
        Ok(out) => {
            let said = quote(out.stderr.split(|&b| b == b'\n').next().unwrap_or_default());
            // A container's /proc has parts covered, and the kernel then lets nobody mount another one.
            let remedy = if said.contains("mount proc") {
                "start the container with --security-opt unmask=ALL   (docker: systempaths=unconfined)".into()
            } else {
                mounting::namespace_remedy()
            };
            Check::fail(NAME, format!("cannot make a sandbox: {said}"), remedy)
        }
        Err(e) => Check::fail(NAME, format!("cannot be started: {}", Errno::from(e)), "install it anew"),
    }
}

/// What the file system that holds our sessions can do, tried in a directory that is removed again.
fn state() -> Check {
    const NAME: &str = "state directory";
    let store = match Store::open() {
        Ok(store) => store,
        Err(e) => return Check::fail(NAME, e.message, e.hint.unwrap_or_default()),
    };
    let Some(dir) = store.dir().ancestors().find(|d| d.symlink_metadata().is_ok()) else {
        return Check::fail(NAME, "cannot be found", "set XDG_STATE_HOME to a directory of your own");
    };
    let shown = quote(store.dir().as_os_str().as_bytes());
    match probe_dir(dir) {
        Ok(found) => {
            let form = match found.whiteout {
                WhiteoutForm::Device => "device whiteouts",
                WhiteoutForm::Prefix => "whiteouts as files",
            };
            let has = |yes: bool, what: &str| format!("{}{what}", if yes { "" } else { "no " });
            let xattr = has(found.xattr, "xattrs");
            let text = format!("{shown}: {form}, {xattr}, {}", has(found.reflink, "reflinks"));
            if found.xattr {
                Check::ok(NAME, text)
            } else {
                Check::warn(
                    NAME,
                    text,
                    "renames of directories need xattrs: set XDG_STATE_HOME to a place on ext4, xfs or btrfs",
                )
            }
        }
        Err(e) => Check::fail(
            NAME,
            format!("{shown} cannot be used: {e}"),
            "set XDG_STATE_HOME to a directory you may write to",
        ),
    }
}

fn probe_dir(dir: &Path) -> std::result::Result<layer::Features, Errno> {
    let parent = file::open_path(dir.as_os_str().as_bytes(), libc::O_RDONLY | libc::O_DIRECTORY)?;
    let name = format!(".sbx-fuse-doctor-{}", std::process::id());
    file::mkdirat(parent.as_fd(), name.as_bytes(), 0o700)?;
    let found = file::openat(parent.as_fd(), name.as_bytes(), libc::O_RDONLY | libc::O_DIRECTORY, 0)
        .and_then(|work| layer::probe(work.as_fd()));
    remove_tree(parent.as_fd(), name.as_bytes())?;
    found
}

fn wreckage() -> Check {
    const NAME: &str = "left behind";
    match Wreckage::find().map(|w| w.summary()) {
        Ok(None) => Check::ok(NAME, "nothing: no dead mounts, no dead sockets, nothing unfinished"),
        Ok(Some(what)) => Check::warn(NAME, what, "run: sbx-fuse doctor --fix"),
        Err(e) => Check::warn(NAME, e.message, e.hint.unwrap_or_default()),
    }
}

/// Whether memory, processes and processor time of a command can be limited together.
fn limits() -> Check {
    const NAME: &str = "limits";
    match sandbox::can_group() {
        Ok(()) => Check::ok(NAME, "a control group of our own can be made: memory, processors, processes"),
        Err(why) => {
            let found = format!("rlimits only, and none of processors: {why}");
            Check { remedy: Some(sandbox::LIMITS_REMEDY.into()), ..Check::ok(NAME, found) }
        }
    }
}

fn open_files() -> Check {
    const NAME: &str = "open files";
    /// Enough for the descriptors a large build keeps in use.
    const ENOUGH: u64 = 16 << 10;
    match getrlimit(Resource::RLIMIT_NOFILE) {
        Ok((_, hard)) if hard >= ENOUGH => Check::ok(NAME, format!("up to {hard}")),
        Ok((_, hard)) => Check::warn(
            NAME,
            format!("only up to {hard}: large trees will be slower"),
            "raise the hard limit: 'nofile' in /etc/security/limits.conf",
        ),
        Err(e) => Check::warn(NAME, format!("the limit cannot be read: {}", Errno::from(e)), ""),
    }
}

fn inotify() -> Check {
    const NAME: &str = "inotify watches";
    /// Directories that a session may look into before it must ask the real tree again and again.
    const ENOUGH: u64 = 32 << 10;
    match sysctl("fs/inotify/max_user_watches") {
        Some(n) if n >= ENOUGH => Check::ok(NAME, format!("up to {n}")),
        Some(n) => Check::warn(
            NAME,
            format!("only up to {n}: directories beyond are looked at anew all the time"),
            "run: sudo sysctl -w fs.inotify.max_user_watches=524288",
        ),
        None => Check::warn(NAME, "the kernel has none", "use a kernel with CONFIG_INOTIFY_USER"),
    }
}
