//! `sbx-fuse completions`: what a shell needs to complete our arguments.

use super::Cli;
use super::output::Out;
use crate::base::Result;
use clap::{Args, CommandFactory};

/// Print a completion script for a shell
#[derive(Debug, Args)]
pub(super) struct CompletionsArgs {
    /// Which shell
    shell: clap_complete::Shell,
}

pub(super) fn run(args: CompletionsArgs) -> Result<u8> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "sbx-fuse", &mut script);
    let mut out = Out::new();
    out.bytes(&script)?;
    out.flush()?;
    Ok(0)
}
