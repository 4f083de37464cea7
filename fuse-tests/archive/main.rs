//! Sessions suspended, brought back, measured and let go, through the program and as a person without privileges.
//!
//! The sessions are made by `sbx-fuse run`, so that journal and upper are real ones.

// Without the harness clippy does not see that these are tests.
#![allow(clippy::unwrap_used)]

#[path = "../support/mod.rs"]
mod support;

mod hostile;
mod space;
mod trip;
mod world;

use libtest_mimic::{Arguments, Trial};
use std::process::ExitCode;

/// The program under test.
pub const BUILT: &str = env!("CARGO_BIN_EXE_sbx-fuse");

/// A test and its name.
pub type Case = (&'static str, fn());

fn main() -> ExitCode {
    if let Some(code) = support::as_unprivileged(BUILT) {
        return code;
    }
    let cases = [trip::CASES, hostile::CASES, space::CASES].concat();
    let trial = |(name, test): Case| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    };
    let args = Arguments { test_threads: Some(2), ..Arguments::from_args() };
    libtest_mimic::run(&args, cases.into_iter().map(trial).collect()).exit_code()
}
