//! What several kinds of tests share: running as a person without privileges.
#![allow(dead_code)]

pub mod tree;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// The account that tests run as when they are started by root.
pub const USER: &str = "sbxtest";

/// Started by root: prepares the machine, runs this test binary again as [`USER`] and returns its exit code.
/// Started by anybody else: `None`, go on.
pub fn as_unprivileged(product: &str) -> Option<ExitCode> {
    if !nix::unistd::geteuid().is_root() {
        return None;
    }
    let user = account();
    // The checkout may lie where others cannot look: the binaries go where they can.
    let bin = readable_dir();
    let product = copy_to(Path::new(product), bin.path());
    let mut command = ourselves(&user, bin.path());
    command.args(std::env::args_os().skip(1)).env("SBX_FUSE_BIN", product);
    share_toolchain(&mut command);
    let status = command.status().expect("setpriv runs");
    Some(ExitCode::from(status.code().unwrap_or(101) as u8))
}

/// Started by root: runs the one test `name` of this binary as [`USER`], and is true when it passed. Started by anybody
/// else: `None`, go on.
pub fn test_as_unprivileged(name: &str) -> Option<bool> {
    if !nix::unistd::geteuid().is_root() {
        return None;
    }
    let bin = readable_dir();
    let status = ourselves(&account(), bin.path()).args(["--exact", name, "--nocapture"]).status();
    Some(status.expect("setpriv runs").success())
}

/// Prepares the machine for [`USER`], who is made if need be.
fn account() -> nix::unistd::User {
    std::fs::set_permissions("/dev/fuse", std::fs::Permissions::from_mode(0o666))
        .expect("/dev/fuse can be opened up");
    let user = nix::unistd::User::from_name(USER).expect("the account database can be read");
    user.unwrap_or_else(|| {
        let made = Command::new("useradd").args(["--create-home", "--shell", "/bin/bash", USER]).status();
        assert!(made.expect("useradd runs").success(), "the account {USER} cannot be made");
        nix::unistd::User::from_name(USER).expect("readable").expect("the account was just made")
    })
}

/// A directory that everybody may look into.
fn readable_dir() -> tempfile::TempDir {
    let dir = tempfile::Builder::new().prefix("sbx-fuse-bin").tempdir().expect("a temporary directory");
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755))
        .expect("permissions can be set");
    dir
}

/// This test binary, copied to `bin`, to be run as `user`.
fn ourselves(user: &nix::unistd::User, bin: &Path) -> Command {
    let own = copy_to(&std::env::current_exe().expect("our own path"), bin);
    let mut command = Command::new("setpriv");
    command
        .arg(format!("--reuid={}", user.uid))
        .arg(format!("--regid={}", user.gid))
        .args(["--init-groups", "--"])
        .arg(own)
        .env("HOME", &user.dir)
        .env("USER", USER)
        .env("LOGNAME", USER)
        .env_remove("XDG_RUNTIME_DIR")
        .env_remove("XDG_STATE_HOME")
        .current_dir("/");
    command
}

fn copy_to(from: &Path, dir: &Path) -> PathBuf {
    let to = dir.join(from.file_name().expect("a file name"));
    std::io::copy(
        &mut std::fs::File::open(from).expect("a binary can be read"),
        &mut std::fs::File::create(&to).expect("a binary can be written"),
    )
    .expect("a binary can be copied");
    std::fs::set_permissions(&to, std::fs::Permissions::from_mode(0o755)).expect("permissions can be set");
    to
}

/// Lets the account use the Rust toolchain of the one who runs the tests: it may lie in a home directory that others
/// may not search, so that one account is let through (an ACL, which needs setfacl).
fn share_toolchain(command: &mut Command) {
    let Ok(out) = Command::new("rustc").args(["--print", "sysroot"]).output() else {
        return;
    };
    let Ok(text) = String::from_utf8(out.stdout) else {
        return;
    };
    let sysroot = PathBuf::from(text.trim());
    for dir in sysroot.ancestors() {
        let open = std::fs::metadata(dir).is_ok_and(|m| m.permissions().mode() & 0o1 != 0);
        if !open {
            let acl = Command::new("setfacl").args(["-m", &format!("u:{USER}:x")]).arg(dir).status();
            assert!(acl.expect("setfacl runs").success(), "cannot let {USER} through {}", dir.display());
        }
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut dirs = vec![sysroot.join("bin")];
    dirs.extend(std::env::split_paths(&path));
    command.env("PATH", std::env::join_paths(dirs).expect("a search path"));
    command.env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO_HOME").env_remove("RUSTUP_HOME");
}

/// The product under test.
pub fn product(built: &str) -> PathBuf {
    std::env::var_os("SBX_FUSE_BIN").map_or_else(|| PathBuf::from(built), PathBuf::from)
}
