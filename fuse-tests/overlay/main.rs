//! The drop-in for fuse-overlayfs: its command line, layers that others wrote, and uppers that others can mount.

#![allow(clippy::unwrap_used)]

#[path = "../support/mod.rs"]
mod support;

mod bench;
mod command;
mod exchange;
mod layers;
mod permissions;

use libtest_mimic::{Arguments, Trial};
use std::process::ExitCode;

const BUILT: &str = env!("CARGO_BIN_EXE_sbx-fuse");

fn main() -> ExitCode {
    let args = Arguments::from_args();
    let root = nix::unistd::geteuid().is_root();
    let mut trials: Vec<Trial> = Vec::new();
    for (name, test) in
        command::TESTS.iter().chain(layers::TESTS).chain(exchange::TESTS).chain(permissions::TESTS)
    {
        // What root may do more than others is tried as root; all of it as a person without privileges.
        if !root || layers::AS_ROOT_TOO.contains(name) || permissions::AS_ROOT_TOO.contains(name) {
            let name = if root { format!("{name}_as_root") } else { (*name).to_owned() };
            trials.push(Trial::test(name, || {
                test();
                Ok(())
            }));
        }
    }
    let ended = libtest_mimic::run(&args, trials).exit_code();
    match support::as_unprivileged(BUILT) {
        Some(code) if ended == ExitCode::SUCCESS => code,
        _ => ended,
    }
}
