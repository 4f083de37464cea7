//! The README is kept true: every command in its `console` blocks is run, in order, in one fresh directory, as a person
//! without privileges, and must print what the README shows. `[..]` stands for anything within a line; `? N` after the
//! output is the exit code when it is not 0.

#[path = "../support/mod.rs"]
mod support;

use std::process::{Command, ExitCode};

const BUILT: &str = env!("CARGO_BIN_EXE_sbx-fuse");
const README: &str = include_str!("../../README.md");

/// A command with the output and the exit code that the README promises.
struct Step {
    command: String,
    output: Vec<String>,
    code: i32,
}

fn main() -> ExitCode {
    if let Some(code) = support::as_unprivileged(BUILT) {
        return code;
    }
    let trials = vec![libtest_mimic::Trial::test("readme", || {
        run_all();
        Ok(())
    })];
    libtest_mimic::run(&libtest_mimic::Arguments::from_args(), trials).exit_code()
}

fn steps() -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut inside = false;
    for line in README.lines() {
        match line {
            "```console" => inside = true,
            "```" => inside = false,
            _ if !inside => {}
            _ => match (line.strip_prefix("$ "), line.strip_prefix("? "), steps.last_mut()) {
                (Some(command), ..) => {
                    steps.push(Step { command: command.into(), output: Vec::new(), code: 0 })
                }
                (None, Some(code), Some(step)) => step.code = code.parse().expect("an exit code"),
                (None, None, Some(step)) => step.output.push(line.into()),
                (None, _, None) => panic!("output before any command: {line}"),
            },
        }
    }
    steps
}

fn run_all() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let project = dir.path().join("project");
    for sub in ["project", "home", "runtime"] {
        std::fs::create_dir(dir.path().join(sub)).expect("a directory");
    }
    let product = support::product(BUILT);
    let mut path = vec![product.parent().expect("the product lies in a directory").to_path_buf()];
    path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    let steps = steps();
    assert!(steps.len() > 10, "the README has its examples");
    for step in steps {
        let out = Command::new("bash")
            .args(["-c", &format!("exec 2>&1; {}", step.command)])
            .current_dir(&project)
            .env("PATH", std::env::join_paths(&path).expect("a search path"))
            .env("HOME", dir.path().join("home"))
            .env("XDG_STATE_HOME", dir.path().join("state"))
            .env("XDG_RUNTIME_DIR", dir.path().join("runtime"))
            .env("LC_ALL", "C.UTF-8")
            .env("TZ", "UTC")
            .output()
            .expect("bash runs");
        let text = String::from_utf8(out.stdout).expect("the output is text");
        let lines: Vec<&str> = text.lines().collect();
        let same = lines.len() == step.output.len()
            && lines.iter().zip(&step.output).all(|(have, want)| matches(want, have));
        assert!(
            same && out.status.code() == Some(step.code),
            "$ {}\nthe README shows:\n{}\n? {}\nit printed:\n{text}\n? {:?}",
            step.command,
            step.output.join("\n"),
            step.code,
            out.status.code()
        );
    }
}

/// Whether a line is as `want`, in which `[..]` stands for anything.
fn matches(want: &str, have: &str) -> bool {
    let mut parts = want.split("[..]");
    let Some(mut rest) = parts.next().and_then(|first| have.strip_prefix(first)) else {
        return false;
    };
    let mut last = "";
    for part in parts {
        let Some(at) = rest.find(part) else {
            return false;
        };
        rest = &rest[at + part.len()..];
        last = part;
    }
    rest.is_empty() || (last.is_empty() && want.ends_with("[..]"))
}
