//! The union through a real mount. A file per verb.
//!
//! Started as root, everything runs twice: first without privileges (this program once more, as user `sbxtest`, with
//! `fusermount3`), then as root with a direct mount that lets other users in.

#![allow(clippy::unwrap_used)] // all of this is tests

mod attr;
mod create;
mod harness;
mod helper;
mod link;
mod live;
mod locks;
mod lookup;
mod mapping;
mod partial;
mod policy;
mod read_write;
mod readdir;
mod remove;
mod rename;
mod space;
mod users;
mod xattr;

use libtest_mimic::{Arguments, Trial};
use std::process::{Command, ExitCode};
use std::sync::atomic::Ordering;

const USER: &str = "sbxtest";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|a| a == "helper") {
        return ExitCode::from(u8::try_from(helper::run(&args[1..])).unwrap_or(u8::MAX));
    }
    // A core dump of a process that serves its own mount may never end.
    nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_CORE, 0, 0).unwrap();
    let arguments = Arguments::from_args();
    let root = nix::unistd::geteuid().is_root();
    harness::AS_ROOT.store(root, Ordering::Relaxed);
    let trials = all()
        .into_iter()
        .map(|case| {
            let file = case.module.rsplit("::").next().unwrap_or_default();
            let section = if root { "root: " } else { "" };
            Trial::test(format!("{section}{file}::{}", case.name), move || {
                (case.run)();
                Ok(())
            })
        })
        .collect();
    let unprivileged = !root || run_as_user(&args);
    let done = libtest_mimic::run(&arguments, trials);
    if unprivileged { done.exit_code() } else { ExitCode::from(101) }
}

fn all() -> Vec<harness::Case> {
    let files = [
        attr::cases,
        create::cases,
        link::cases,
        live::cases,
        locks::cases,
        lookup::cases,
        partial::cases,
        policy::cases,
        read_write::cases,
        readdir::cases,
        remove::cases,
        rename::cases,
        space::cases,
        users::cases,
        xattr::cases,
    ];
    files.iter().flat_map(|cases| cases()).collect()
}

/// Runs this program again without privileges; false when a test failed there.
fn run_as_user(args: &[String]) -> bool {
    std::fs::set_permissions("/dev/fuse", std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    if nix::unistd::User::from_name(USER).unwrap().is_none() {
        // fusermount3 looks its caller up.
        assert!(Command::new("useradd").args(["--system", USER]).status().unwrap().success());
    }
    let user = nix::unistd::User::from_name(USER).unwrap().unwrap();
    let status = Command::new("setpriv")
        .args([&format!("--reuid={}", user.uid), &format!("--regid={}", user.gid), "--clear-groups", "--"])
        // By descriptor: the user need not be able to reach the build directory.
        .arg("/proc/self/fd/0")
        .stdin(std::fs::File::open("/proc/self/exe").unwrap())
        .args(args)
        .env_remove("TMPDIR")
        .status()
        .unwrap();
    status.success()
}
