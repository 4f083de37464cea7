//! Commands, their arguments and their output.

mod allowance;
mod amounts;
mod apply;
mod archive;
mod background;
mod changes;
mod completions;
mod context;
mod diff;
mod discard;
mod display;
mod doctor;
mod exec;
mod export;
mod gc;
mod idle;
mod job;
mod log;
mod ls;
mod mount;
mod mounting;
mod new;
mod output;
mod overlaps;
mod overlay;
mod overlay_options;
mod paths;
mod ps;
mod rebase;
mod reconcile;
mod rename;
mod reset;
mod restore;
mod review;
mod risk;
mod rm;
mod run;
mod serve;
mod services;
mod show;
mod state;
mod status;
mod stop;
mod take;
mod umount;
mod undo;
mod usage;
mod verify;
mod wreckage;

use crate::base::{ErrorKind, Result};
use clap::{Args, Parser, Subcommand};
use std::process::ExitCode;

/// A private, writable view of your real directories: run anything on it, see exactly what it changed, and decide
/// afterwards what becomes real.
#[derive(Debug, Parser)]
#[command(name = "sbx-fuse", version, max_term_width = 100, disable_help_subcommand = true, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 done, 1 failure, 2 usage, 3 conflict, 4 session in use, 5 quota, 6 something is \
missing on this host. `run`, `exec` and `shell` exit with the command's own status, 125 when sbx-fuse itself failed, 126 when the command \
cannot be executed, 127 when it is not found.\n\nIn JSON a path is its own text. Only one that is no UTF-8, or begins with a double quote itself, is \
quoted as in C, and so begins with a double quote.";

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::RunArgs),
    New(new::NewArgs),
    Exec(exec::ExecArgs),
    Shell(exec::ShellArgs),
    Mount(mount::MountArgs),
    Umount(umount::UmountArgs),
    Overlay(overlay::OverlayArgs),
    Status(status::StatusArgs),
    Changes(changes::ChangesArgs),
    Diff(diff::DiffArgs),
    Apply(apply::ApplyArgs),
    Undo(undo::UndoArgs),
    Rebase(rebase::RebaseArgs),
    Review(review::ReviewArgs),
    Discard(discard::DiscardArgs),
    Export(export::ExportArgs),
    Log(log::LogArgs),
    Verify(verify::VerifyArgs),
    Ls(ls::LsArgs),
    Show(show::ShowArgs),
    Ps(ps::PsArgs),
    Stop(stop::StopArgs),
    Reset(reset::ResetArgs),
    Rename(rename::RenameArgs),
    Rm(rm::RmArgs),
    Archive(archive::ArchiveArgs),
    Restore(restore::RestoreArgs),
    Gc(gc::GcArgs),
    Usage(usage::UsageArgs),
    Doctor(doctor::DoctorArgs),
    Completions(completions::CompletionsArgs),
    #[command(hide = true)]
    Serve(mount::ServeArgs),
    #[command(name = mounting::PROBE, hide = true)]
    ProbeMount,
    #[command(name = crate::sandbox::INSIDE, hide = true)]
    Inside(run::InsideArgs),
}

/// Which session a command is about.
#[derive(Debug, Args)]
struct Which {
    /// The session [default: $SBX_FUSE_SESSION, else the newest one around the current directory]
    #[arg(short = 's', long = "session", value_name = "NAME")]
    session: Option<String>,
}

/// Runs the program: parses its arguments, does the command, and gives the exit code.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse_from(overlay::arguments(std::env::args_os().collect())) {
        Ok(cli) => cli,
        Err(e) => {
            // Help and version go to stdout with exit 0, mistakes to stderr with exit 2. When even that cannot be
            // printed nobody reads it.
            drop(e.print());
            return ExitCode::from(if e.use_stderr() { 2 } else { 0 });
        }
    };
    start_tracing();
    let is_run =
        matches!(cli.command, Command::Run(_) | Command::Exec(_) | Command::Shell(_) | Command::Inside(_));
    match dispatch(cli.command) {
        Ok(code) => ExitCode::from(code),
        Err(e) if e.kind == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(e) => {
            output::error(&e);
            ExitCode::from(if is_run { run::OUR_FAILURE } else { e.kind.exit_code() })
        }
    }
}

fn dispatch(command: Command) -> Result<u8> {
    match command {
        Command::Run(args) => run::run(args),
        Command::New(args) => new::run(args),
        Command::Exec(args) => exec::run(args),
        Command::Shell(args) => exec::shell(args),
        Command::Mount(args) => mount::run(args),
        Command::Umount(args) => umount::run(args),
        Command::Overlay(args) => overlay::run(args),
        Command::Status(args) => status::run(args),
        Command::Changes(args) => changes::run(args),
        Command::Diff(args) => diff::run(args),
        Command::Apply(args) => apply::run(args),
        Command::Rebase(args) => rebase::run(args),
        Command::Undo(args) => undo::run(args),
        Command::Review(args) => review::run(args),
        Command::Discard(args) => discard::run(args),
        Command::Export(args) => export::run(args),
        Command::Log(args) => log::run(args),
        Command::Verify(args) => verify::run(args),
        Command::Ls(args) => ls::run(args),
        Command::Show(args) => show::run(args),
        Command::Ps(args) => ps::run(args),
        Command::Stop(args) => stop::run(args),
        Command::Reset(args) => reset::run(args),
        Command::Rename(args) => rename::run(args),
        Command::Rm(args) => rm::run(args),
        Command::Archive(args) => archive::run(args),
        Command::Restore(args) => restore::run(args),
        Command::Gc(args) => gc::run(args),
        Command::Usage(args) => usage::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Completions(args) => completions::run(args),
        Command::Serve(args) => mount::serve(args),
        Command::ProbeMount => mounting::probe_here(),
        Command::Inside(args) => run::inside(args),
    }
}

/// Warnings and worse go to stderr; `SBX_FUSE_LOG` (e.g. `debug`, `sbx_fuse::union=trace`) asks for more.
fn start_tracing() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("SBX_FUSE_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("error,sbx_fuse=warn"));
    let builder =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    if let Err(e) = builder.with_ansi(output::stderr_colored()).try_init() {
        output::note(&format!("no log: {e}"));
    }
}
