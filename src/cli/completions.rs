//! `sbx-fuse completions`: what a shell needs to complete our arguments, the names of sessions included.

use super::Cli;
use super::output::Out;
use crate::base::Result;
use clap::{Args, Command, CommandFactory};
use clap_complete::Shell;

/// Print a completion script for a shell
///
/// For bash: eval "$(sbx-fuse completions bash)". It completes the names of sessions, too, as those for zsh and fish do.
#[derive(Debug, Args)]
pub(super) struct CompletionsArgs {
    /// Which shell
    shell: Shell,
}

pub(super) fn run(args: CompletionsArgs) -> Result<u8> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "sbx-fuse", &mut script);
    let script = with_names(args.shell, script);
    let mut out = Out::new();
    out.bytes(&script)?;
    out.flush()?;
    Ok(0)
}

/// What prints the names, one a line: a name has no blanks and needs no quoting.
const NAMES: &str = "sbx-fuse ls 2>/dev/null | cut -d ' ' -f 1";

/// The script, which knows what is written in our arguments only, with what there is when it runs.
fn with_names(shell: Shell, script: Vec<u8>) -> Vec<u8> {
    let Ok(text) = String::from_utf8(script) else { return Vec::new() };
    match shell {
        Shell::Bash => bash(&text),
        Shell::Zsh => zsh(&text),
        Shell::Fish => fish(text),
        _ => text,
    }
    .into_bytes()
}

/// The commands that take the name of a session without `-s`.
fn takers() -> Vec<String> {
    let names = |c: &&Command| {
        let ours = |a: &clap::Arg| ["name", "names", "target", "what"].contains(&a.get_id().as_str());
        c.get_name() != "new" && !c.is_hide_set() && c.get_positionals().any(ours)
    };
    Cli::command().get_subcommands().filter(names).map(|c| c.get_name().to_owned()).collect()
}

fn bash(text: &str) -> String {
    let mut out = format!("_sbx_fuse_sessions() {{\n    {NAMES}\n}}\n\n");
    let labels: Vec<String> = takers().iter().map(|c| format!("sbx__fuse__subcmd__{c})")).collect();
    let (mut takes, mut session) = (false, false);
    // clap_complete takes the two underscores that stand for our hyphen for a step to a subcommand, but only in labels:
    // no subcommand would be found.
    let text = text.replace("sbx__subcmd__fuse", "sbx__fuse");
    for line in text.lines() {
        let word = line.trim();
        let line = match word {
            // The words of a command follow its label, and what an option takes follows the option.
            _ if takes && word.starts_with("opts=\"") => {
                line.replacen("opts=\"", "opts=\"$(_sbx_fuse_sessions) ", 1)
            }
            "COMPREPLY=($(compgen -f \"${cur}\"))" if session => {
                line.replacen("-f \"${cur}\"", "-W \"$(_sbx_fuse_sessions)\" -- \"${cur}\"", 1)
            }
            _ => line.to_owned(),
        };
        takes = labels.iter().any(|l| l == word);
        session = matches!(word, "--session)" | "-s)");
        out.push_str(&line);
        out.push('\n');
    }
    out
}

fn zsh(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let session = line.starts_with("'-s+[") || line.starts_with("'--session=[");
        let named = ["':name -- ", "'::name -- ", "'*::names -- ", "':target -- ", "':what -- "]
            .iter()
            .any(|b| line.starts_with(b))
            && !line.contains("a readable random one");
        if session || named {
            let ours = line.replacen(":_default'", ":_sbx_fuse_sessions'", 1);
            out.push_str(&ours.replacen(":_files'", ":_sbx_fuse_sessions'", 1));
        } else {
            out.push_str(line);
        }
        out.push('\n');
        // Not before the first line, which says to the shell what the file is for.
        if line.starts_with("#compdef") {
            let names = format!("compadd -- ${{(f)\"$({NAMES})\"}}");
            out.push_str(&format!("\n_sbx_fuse_sessions() {{\n    {names}\n    _files\n}}\n"));
        }
    }
    out
}

fn fish(mut text: String) -> String {
    let with = |line: &str| match line.contains(" -l session ") {
        true => format!("{line} -f -a \"(__sbx_fuse_sessions)\"\n"),
        false => format!("{line}\n"),
    };
    text = text.lines().map(with).collect();
    for command in takers() {
        let when = format!("__fish_sbx_fuse_using_subcommand {command}");
        text.push_str(&format!("complete -c sbx-fuse -n \"{when}\" -a \"(__sbx_fuse_sessions)\"\n"));
    }
    format!("function __sbx_fuse_sessions\n\t{NAMES}\nend\n\n{text}")
}
