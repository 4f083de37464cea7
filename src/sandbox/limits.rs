//! What a command, with all that descends from it, may use of the machine.
//!
//! A control group (cgroups(7), version 2) of its own limits all of its processes together. It can be made where our own
//! group was delegated to us, or beneath a group that hands the controllers on and that we may write to. Elsewhere the
//! limits of each process (setrlimit(2)) must do: memory is then each process's address space, the number of processes is
//! counted in the sandbox's own user namespace, and processor time cannot be limited at all.

use crate::base::{Errno, Error, ErrorKind, Result};
use crate::sys::process;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::fs::File;
use std::io::ErrorKind as Io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// How a group of ours is called: this, our process id, and a number.
const PREFIX: &str = "sbx-fuse-";
/// The group that we move to when ours is to hand controllers on: such a one cannot have processes itself.
const ASIDE: &str = "sbx-fuse-server";
/// The period in which processor time is counted, microseconds; the kernel's default.
const PERIOD: u64 = 100_000;
/// bwrap itself and process 1 of the sandbox, which the limit of processes does not mean.
const OWN_PROCESSES: u64 = 2;
/// How long processes of an ended sandbox may take to vanish.
const VANISH: Duration = Duration::from_secs(10);

/// What the processes of a command may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// Thousandths of a processor.
    pub milli_cpus: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u64>,
}

/// How the limits of one command are enforced.
#[derive(Debug)]
pub enum Enforced {
    /// There are none.
    Nothing,
    /// By a control group, for all processes together; it is gone when this is dropped.
    Group(Group),
    /// By limits of each process, and why there is no group, in half a sentence.
    Each(EachProcess, String),
}

/// Limits that each process has for itself, set as the last thing before the command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EachProcess {
    /// `RLIMIT_AS`, bytes.
    pub memory: Option<u64>,
    /// `RLIMIT_NPROC`.
    pub pids: Option<u64>,
}

/// A control group of ours.
#[derive(Debug)]
pub struct Group {
    dir: PathBuf,
}

impl Limits {
    fn controllers(&self) -> Vec<&'static str> {
        let all = [
            ("memory", self.memory.is_some()),
            ("cpu", self.milli_cpus.is_some()),
            ("pids", self.pids.is_some()),
        ];
        all.into_iter().filter_map(|(name, wanted)| wanted.then_some(name)).collect()
    }

    /// Makes ready what enforces these limits for a command that is about to start.
    ///
    /// # Errors
    /// `Missing` with the remedy when there can be no group and limits of each process do not do.
    pub fn enforce(&self) -> Result<Enforced> {
        if *self == Limits::default() {
            return Ok(Enforced::Nothing);
        }
        let why = match hierarchy().and_then(|(top, own)| self.group(&top, &own)) {
            Ok(group) => return Ok(Enforced::Group(group)),
            Err(why) => why,
        };
        let refused = |what: &str| {
            let mut e = Error::new(ErrorKind::Missing, format!("{what}, and {why}"));
            e.hint = Some(format!("{REMEDY}; or leave the limit out"));
            e
        };
        if self.milli_cpus.is_some() {
            return Err(refused("processor time can only be limited by a control group"));
        }
        // The kernel lets root have any number of processes whatever the limit says.
        if self.pids.is_some() && process::effective_ids().0 == 0 {
            return Err(refused("the number of root's processes can only be limited by a control group"));
        }
        let pids = self.pids.map(|n| n.saturating_add(1));
        Ok(Enforced::Each(EachProcess { memory: self.memory, pids }, why))
    }

    /// A group with these limits, as near to our own group `own` as one can be made; `top` is the whole hierarchy's.
    fn group(&self, top: &Path, own: &Path) -> std::result::Result<Group, String> {
        let wanted = self.controllers();
        let mut why = format!("no control group hands {} on", wanted.join(", "));
        for dir in own.ancestors().take_while(|d| d.starts_with(top)) {
            let hands_on =
                has(dir, "cgroup.subtree_control", &wanted) || (dir == own && hand_on(dir, &wanted));
            if !hands_on {
                continue;
            }
            sweep(dir);
            match self.make_in(dir) {
                Ok(group) => return Ok(group),
                Err(e) => why = format!("no control group can be made here: {e}"),
            }
        }
        Err(why)
    }

    fn make_in(&self, parent: &Path) -> std::result::Result<Group, Errno> {
        let number = process::coarse_nanos();
        let dir = parent.join(format!("{PREFIX}{}-{number:x}", std::process::id()));
        std::fs::create_dir(&dir)?;
        // From here on it is removed again when something fails.
        let group = Group { dir };
        if let Some(bytes) = self.memory {
            group.set("memory.max", &bytes.to_string())?;
            match group.set("memory.swap.max", "0") {
                // A kernel without swap accounting.
                Err(Errno::ENOENT) => {}
                other => other?,
            }
        }
        if let Some(milli) = self.milli_cpus {
            group.set("cpu.max", &format!("{} {PERIOD}", (milli * PERIOD / 1000).max(1000)))?;
        }
        if let Some(pids) = self.pids {
            group.set("pids.max", &pids.saturating_add(OWN_PROCESSES).to_string())?;
        }
        Ok(group)
    }
}

/// Whether a group with all kinds of limits can be made here; else why not, in half a sentence. Makes one, and takes it
/// away again.
///
/// # Errors
/// The reason.
pub fn can_group() -> std::result::Result<(), String> {
    let all = Limits { memory: Some(1 << 30), milli_cpus: Some(1000), pids: Some(1000) };
    hierarchy().and_then(|(top, own)| all.group(&top, &own)).map(drop)
}

/// What lets an unprivileged person have a group, where systemd runs.
pub const REMEDY: &str =
    "where systemd runs, start it with: systemd-run --user --scope -p Delegate=yes -- sbx-fuse …";

impl Enforced {
    /// Lets the child of `command` begin its life under the limits.
    pub(super) fn apply(&self, command: &mut Command) -> std::result::Result<(), Errno> {
        if let Enforced::Group(group) = self {
            let procs = File::options().write(true).open(group.dir.join("cgroup.procs"))?;
            process::join_group_before_exec(command, procs.into());
        }
        Ok(())
    }

    /// What the command's last step is to set for itself.
    pub(super) fn each(&self) -> EachProcess {
        match self {
            Enforced::Each(each, _) => *each,
            _ => EachProcess::default(),
        }
    }

    /// What the kernel did because of the limits, in sentences; to be asked when the command has ended.
    pub fn met(&self) -> Vec<String> {
        let Enforced::Group(group) = self else { return Vec::new() };
        let mut said = Vec::new();
        if group.event("memory.events", "oom_kill") > 0 {
            said.push("the limit of memory was met, and the kernel ended processes".to_owned());
        }
        if group.event("pids.events", "max") > 0 {
            said.push("the limit of processes was met, and some were not started".to_owned());
        }
        said
    }
}

impl EachProcess {
    /// Sets the limits for this process and what it becomes; one that is lower already stays.
    ///
    /// # Errors
    /// As `getrlimit(2)` and `setrlimit(2)`.
    pub fn set(&self) -> Result<()> {
        for (resource, limit) in [(Resource::RLIMIT_AS, self.memory), (Resource::RLIMIT_NPROC, self.pids)] {
            if let Some(limit) = limit {
                let set = getrlimit(resource).and_then(|(soft, hard)| {
                    let hard = limit.min(hard);
                    setrlimit(resource, soft.min(hard), hard)
                });
                set.map_err(|e| {
                    let what = format!("limit the command ({resource:?} of {limit})");
                    Error::sys(&what, Errno::from(e))
                })?;
            }
        }
        Ok(())
    }
}

impl Group {
    fn set(&self, name: &str, value: &str) -> std::result::Result<(), Errno> {
        Ok(std::fs::write(self.dir.join(name), value)?)
    }

    /// A figure of a file of lines `NAME NUMBER`; 0 when it is not there.
    fn event(&self, file: &str, name: &str) -> u64 {
        let text = std::fs::read_to_string(self.dir.join(file)).unwrap_or_default();
        let value = text.lines().find_map(|l| l.strip_prefix(name)?.trim().parse().ok());
        value.unwrap_or(0)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The sandbox has ended; what the kernel is just taking away goes at once.
        if let Err(e) = self.set("cgroup.kill", "1")
            && e != Errno::ENOENT
        {
            tracing::debug!("cannot end the group's processes: {e}");
        }
        let start = Instant::now();
        loop {
            match std::fs::remove_dir(&self.dir) {
                Ok(()) => return,
                Err(e) if e.kind() == Io::ResourceBusy && start.elapsed() < VANISH => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(e) => return tracing::warn!("the control group {} stays: {e}", self.dir.display()),
            }
        }
    }
}

/// The top of the hierarchy of version 2, and our own group in it.
fn hierarchy() -> std::result::Result<(PathBuf, PathBuf), String> {
    let read = |path: &str| std::fs::read_to_string(path).map_err(|e| format!("{path} cannot be read: {e}"));
    let none = || "this host has no control groups of version 2".to_owned();
    let (mounts, groups) = (read("/proc/self/mountinfo")?, read("/proc/self/cgroup")?);
    let (root, at) = mounts.lines().find_map(mount_of_version_2).ok_or_else(none)?;
    let own = groups.lines().find_map(|l| l.strip_prefix("0::")).ok_or_else(none)?;
    let below = Path::new(own).strip_prefix(root).map_err(|_| "our own control group is not seen here")?;
    if below.components().any(|c| c == std::path::Component::ParentDir) {
        return Err("our own control group is not seen here".to_owned());
    }
    Ok((at.into(), Path::new(at).join(below)))
}

/// Of a line of mountinfo (proc_pid_mountinfo(5)) for such a hierarchy: what of it is mounted, and where.
fn mount_of_version_2(line: &str) -> Option<(&str, &str)> {
    let (mount, kind) = line.split_once(" - ")?;
    let mut fields = mount.split(' ').skip(3);
    kind.starts_with("cgroup2 ").then_some((fields.next()?, fields.next()?))
}

/// Whether the file `name` of a group lists all of `wanted`.
fn has(group: &Path, name: &str, wanted: &[&str]) -> bool {
    let text = std::fs::read_to_string(group.join(name)).unwrap_or_default();
    wanted.iter().all(|w| text.split_whitespace().any(|has| has == *w))
}

/// Lets our own group, if we are alone in it, hand controllers on to groups beneath: moves us to one beneath. False when
/// that cannot be; everything is then as it was.
fn hand_on(own: &Path, wanted: &[&str]) -> bool {
    let ourselves = std::process::id().to_string();
    let procs = std::fs::read_to_string(own.join("cgroup.procs")).unwrap_or_default();
    if procs.trim() != ourselves || !has(own, "cgroup.controllers", wanted) {
        return false;
    }
    let aside = own.join(ASIDE);
    match std::fs::create_dir(&aside) {
        Err(e) if e.kind() != Io::AlreadyExists => return false,
        _ => {}
    }
    let enable: Vec<String> = wanted.iter().map(|w| format!("+{w}")).collect();
    let done = std::fs::write(aside.join("cgroup.procs"), &ourselves)
        .and_then(|()| std::fs::write(own.join("cgroup.subtree_control"), enable.join(" ")));
    if let Err(e) = done {
        tracing::debug!("the control group {} does not hand on: {e}", own.display());
        let back =
            std::fs::write(own.join("cgroup.procs"), &ourselves).and_then(|()| std::fs::remove_dir(&aside));
        if let Err(e) = back {
            tracing::warn!("the control group {} stays: {e}", aside.display());
        }
        return false;
    }
    true
}

/// Removes groups of ours whose maker is dead; those that still have processes stay.
fn sweep(parent: &Path) {
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let maker =
            name.to_str().and_then(|n| n.strip_prefix(PREFIX)?.split_once('-')?.0.parse::<u32>().ok());
        let Some(maker) = maker else { continue };
        if Path::new(&format!("/proc/{maker}")).symlink_metadata().is_err()
            && let Err(e) = std::fs::remove_dir(entry.path())
        {
            tracing::debug!("the control group {} stays: {e}", entry.path().display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Limits = Limits { memory: Some(1 << 20), milli_cpus: Some(1500), pids: Some(7) };

    /// Directories and files like those of a hierarchy: `groups` with what each hands on.
    fn hierarchy_of(groups: &[(&str, &str)]) -> tempfile::TempDir {
        let top = tempfile::tempdir().unwrap();
        for (group, hands_on) in groups {
            let dir = top.path().join(group);
            std::fs::create_dir_all(&dir).unwrap();
            std::fs::write(dir.join("cgroup.subtree_control"), hands_on).unwrap();
            std::fs::write(dir.join("cgroup.controllers"), "cpu io memory pids\n").unwrap();
            std::fs::write(dir.join("cgroup.procs"), "1\n2\n").unwrap();
        }
        top
    }

    fn text(dir: &Path, name: &str) -> String {
        std::fs::read_to_string(dir.join(name)).unwrap()
    }

    /// Plain files are no group: they must go before it can be removed.
    fn clear(group: Group) {
        for entry in std::fs::read_dir(&group.dir).unwrap() {
            std::fs::remove_file(entry.unwrap().path()).unwrap();
        }
    }

    #[test]
    fn the_nearest_group_that_hands_on_is_taken_and_gets_the_limits() {
        let top = hierarchy_of(&[("", "memory"), ("user", "cpu memory pids"), ("user/shell", "memory")]);
        let group = ALL.group(top.path(), &top.path().join("user/shell")).unwrap();
        assert_eq!(group.dir.parent(), Some(top.path().join("user").as_path()));
        assert_eq!(text(&group.dir, "memory.max"), "1048576");
        assert_eq!(text(&group.dir, "memory.swap.max"), "0");
        assert_eq!(text(&group.dir, "cpu.max"), "150000 100000");
        assert_eq!(text(&group.dir, "pids.max"), "9");
        clear(group);
        let memory = Limits { memory: Some(1), ..Limits::default() };
        let group = memory.group(top.path(), &top.path().join("user/shell")).unwrap();
        assert_eq!(group.dir.parent(), Some(top.path().join("user/shell").as_path()));
        clear(group);
    }

    #[test]
    fn a_group_that_is_ours_alone_hands_on_and_we_step_aside() {
        let top = hierarchy_of(&[("", ""), ("scope", "")]);
        let (scope, pid) = (top.path().join("scope"), std::process::id().to_string());
        let e = ALL.group(top.path(), &scope).unwrap_err();
        assert!(e.contains("memory, cpu, pids"), "{e}");
        std::fs::write(scope.join("cgroup.procs"), format!("{pid}\n")).unwrap();
        let group = ALL.group(top.path(), &scope).unwrap();
        assert_eq!(text(&scope, "cgroup.subtree_control"), "+memory +cpu +pids");
        assert_eq!(text(&scope.join(ASIDE), "cgroup.procs"), pid);
        clear(group);
    }

    #[test]
    fn groups_of_the_dead_are_swept() {
        let top = hierarchy_of(&[("", "pids")]);
        for name in ["sbx-fuse-4194305-1", "sbx-fuse-1-1", "other-4194305-1"] {
            std::fs::create_dir(top.path().join(name)).unwrap();
        }
        sweep(top.path());
        let there = |name: &str| top.path().join(name).symlink_metadata().is_ok();
        assert!(!there("sbx-fuse-4194305-1") && there("sbx-fuse-1-1") && there("other-4194305-1"));
    }

    #[test]
    fn lines_of_mountinfo() {
        let line = "35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw";
        assert_eq!(mount_of_version_2(line), Some(("/", "/sys/fs/cgroup")));
        assert_eq!(mount_of_version_2("36 24 0:31 / /x rw - cgroup cgroup rw,cpu"), None);
    }

    #[test]
    fn no_limits_need_nothing() {
        assert!(matches!(Limits::default().enforce(), Ok(Enforced::Nothing)));
    }
}
