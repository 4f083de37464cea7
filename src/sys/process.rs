//! Processes and their limits.

use super::fault::point;
use super::{check, last};
use crate::base::{Errno, Sys};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Raises the soft limit of open files to the hard one; returns the limit now in force.
///
/// # Errors
/// As `setrlimit(2)`.
pub fn raise_fd_limit() -> Sys<u64> {
    point()?;
    let mut lim = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `lim` is valid for both calls.
    unsafe {
        check(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut lim))?;
        lim.rlim_cur = lim.rlim_max;
        check(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const lim))?;
    }
    Ok(lim.rlim_cur)
}

/// Leaves the session keyring that this process was started with for an empty one of its own (keyrings(7)), where the
/// host has keyrings and lets them be used.
///
/// # Errors
/// As `KEYCTL_JOIN_SESSION_KEYRING` other than `ENOSYS`, `EPERM` and `EACCES`, with which no key can be had either.
pub fn leave_keyring() -> Sys<()> {
    const JOIN_SESSION_KEYRING: libc::c_long = 1; // linux/keyctl.h
    point()?;
    // SAFETY: the name is null, which the kernel takes for an anonymous keyring.
    let ret =
        unsafe { libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, std::ptr::null::<libc::c_char>()) };
    match if ret < 0 { last() } else { return Ok(()) } {
        Errno::ENOSYS | Errno::EPERM | Errno::EACCES => Ok(()),
        e => Err(e),
    }
}

/// Confines this process and all it starts by Landlock: they reach no abstract Unix socket (unix(7)) of a process that
/// is not so confined by this very call. Mounting and namespaces are as before. False where the kernel has no Landlock
/// or none that knows of sockets (before Linux 6.12).
///
/// # Errors
/// As `landlock_create_ruleset(2)` and `landlock_restrict_self(2)`; `EPERM` when the process may gain privileges.
pub fn leave_abstract_sockets() -> Sys<bool> {
    /// `struct landlock_ruleset_attr`, linux/landlock.h.
    #[repr(C)]
    struct Attributes {
        handled_access_fs: u64,
        handled_access_net: u64,
        scoped: u64,
    }
    const VERSION: libc::c_long = 1; // LANDLOCK_CREATE_RULESET_VERSION
    const ABSTRACT_UNIX_SOCKET: u64 = 1; // LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET
    const KNOWS_SCOPES: libc::c_long = 6;
    point()?;
    let nothing = std::ptr::null::<Attributes>();
    // SAFETY: asked for its version the kernel takes no attributes.
    if unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, nothing, 0, VERSION) } < KNOWS_SCOPES {
        return Ok(false);
    }
    let attributes = Attributes { handled_access_fs: 0, handled_access_net: 0, scoped: ABSTRACT_UNIX_SOCKET };
    let len = size_of::<Attributes>();
    // SAFETY: `attributes` is valid for `len` bytes; the descriptor that comes back is nobody else's.
    let ruleset = unsafe {
        let fd = libc::syscall(libc::SYS_landlock_create_ruleset, &raw const attributes, len, 0);
        OwnedFd::from_raw_fd(check(fd as libc::c_int)?)
    };
    // SAFETY: the call has no memory arguments.
    let ret = unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0) };
    if ret < 0 { Err(last()) } else { Ok(true) }
}

/// Asks the kernel to send this process `signal` when its parent dies (prctl(2), `PR_SET_PDEATHSIG`).
///
/// # Errors
/// As `prctl(2)`.
pub fn die_with_parent(signal: i32) -> Sys<()> {
    point()?;
    // SAFETY: the call has no memory arguments.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal) }).map(drop)
}

/// Has the child of `command` die with the thread that starts it, from before it becomes its program on.
pub fn die_with_us(command: &mut Command) {
    let us = std::process::id();
    let bind = move || {
        // SAFETY: neither call has memory arguments.
        let (bound, parent) =
            unsafe { (libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL), libc::getppid()) };
        match check(bound) {
            // We died before.
            Ok(_) if u32::try_from(parent) != Ok(us) => Err(std::io::Error::from_raw_os_error(libc::ESRCH)),
            Ok(_) => Ok(()),
            Err(e) => Err(e.into()),
        }
    };
    // SAFETY: between fork and exec the closure only calls prctl(2) and getppid(2), which is safe there, and makes errors
    // that allocate nothing.
    unsafe {
        command.pre_exec(bind);
    }
}

/// `setsid(2)`: leaves the controlling terminal.
///
/// # Errors
/// `EPERM` for a process group leader.
pub fn setsid() -> Sys<()> {
    point()?;
    // SAFETY: the call has no memory arguments.
    check(unsafe { libc::setsid() }).map(drop)
}

/// Has the child of `command` write itself into a control group, whose `cgroup.procs` is open as `procs`, before it
/// becomes its program; when that fails the child is not started.
pub fn join_group_before_exec(command: &mut Command, procs: OwnedFd) {
    let join = move || match nix::unistd::write(&procs, b"0") {
        Ok(_) => Ok(()),
        Err(e) => Err(std::io::Error::from(e)),
    };
    // SAFETY: between fork and exec the closure only calls write(2), which is safe there, on a descriptor that it owns.
    unsafe {
        command.pre_exec(join);
    }
}

/// Effective user and group id.
pub fn effective_ids() -> (u32, u32) {
    // SAFETY: the calls cannot fail.
    unsafe { (libc::geteuid(), libc::getegid()) }
}

/// Nanoseconds of `CLOCK_MONOTONIC_COARSE`: a few milliseconds coarse, and cheap enough for every operation.
pub fn coarse_nanos() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is valid for the call, which cannot fail with a clock that every kernel since 2.6.32 has.
    unsafe {
        libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut t);
    }
    (t.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(t.tv_nsec as u64)
}
