//! Real programs on real input: each case runs twice on a plain copy and once through `sbx-fuse run` and `apply`.
//!
//! In between, the real tree must be untouched to the byte. After `apply` it must be what the plain runs left. What the
//! two plain runs do not agree on themselves (a timestamp of now, a random name) is not held against the third.

#[path = "../support/mod.rs"]
mod support;

use libtest_mimic::{Arguments, Failed, Trial};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output, Stdio};
use support::tree::{self, Tree};

const BUILT: &str = env!("CARGO_BIN_EXE_sbx-fuse");

/// A case: a shell script with two functions, `setup` (makes the project in the current directory) and `work`.
struct Case {
    name: &'static str,
    script: &'static str,
    /// Programs it cannot do without.
    needs: &'static [&'static str],
}

macro_rules! case {
    ($name:literal, $($needs:literal),*) => {
        Case { name: $name, script: include_str!(concat!("cases/", $name, ".sh")), needs: &[$($needs),*] }
    };
}

const CASES: &[Case] = &[
    case!("git", "git"),
    case!("cargo", "cargo"),
    case!("npm", "npm", "node"),
    case!("python", "python3"),
    case!("source-tree", "tar", "sed", "python3"),
    case!("sqlite", "sqlite3"),
    case!("rsync", "rsync"),
    case!("make", "make", "cc"),
];

fn main() -> ExitCode {
    if let Some(code) = support::as_unprivileged(BUILT) {
        return code;
    }
    let mut trials: Vec<Trial> =
        CASES.iter().map(|case| Trial::test(case.name, move || run_case(case))).collect();
    trials.push(Trial::test("killed-build", killed_build));
    libtest_mimic::run(&Arguments { test_threads: Some(1), ..Arguments::from_args() }, trials).exit_code()
}

struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Everything runs at the same path, since programs write their own path into what they make.
    fn project(&self) -> PathBuf {
        self.at("project")
    }

    fn script(&self, case: &Case, function: &str) -> String {
        format!("set -eu\n{}\ncd '{}'\n{function}\n", case.script, self.project().display())
    }

    fn environment(&self, command: &mut Command) {
        command
            .current_dir(self.project())
            .env("HOME", self.at("home"))
            .env("XDG_STATE_HOME", self.at("state"))
            .env("XDG_RUNTIME_DIR", self.at("runtime"))
            .env("CARGO_HOME", self.at("home/.cargo"))
            .env("LC_ALL", "C")
            .env("TZ", "UTC")
            .env_remove("SBX_FUSE_SESSION")
            // Both runs build into the project itself.
            .env_remove("CARGO_TARGET_DIR");
    }

    fn shell(&self, case: &Case, function: &str) {
        let mut command = Command::new("bash");
        command.arg("-c").arg(self.script(case, function));
        self.environment(&mut command);
        succeeds(&format!("{} on a plain copy", function), &command.output().expect("bash runs"));
    }

    fn product(&self, args: &[&str]) -> Output {
        let mut command = Command::new(support::product(BUILT));
        command.args(args);
        self.environment(&mut command);
        command.output().expect("the product runs")
    }
}

fn succeeds(what: &str, out: &Output) {
    assert!(
        out.status.success(),
        "{what} failed with {}:\n{}\n{}",
        out.status,
        out.stdout.escape_ascii(),
        String::from_utf8(out.stderr.clone()).unwrap_or_default()
    );
}

fn run_case(case: &Case) -> Result<(), Failed> {
    for program in case.needs {
        let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output()?;
        if !found.status.success() {
            return Err(format!("{program} is missing on this machine; ./scripts/test installs it").into());
        }
    }
    let dir = tempfile::Builder::new().prefix("sbx-real").tempdir()?;
    let place = Place { dir };
    for sub in ["project", "home", "runtime"] {
        std::fs::create_dir(place.at(sub))?;
    }
    place.shell(case, "setup");
    tree::copy(&place.project(), &place.at("base"));
    let mut plain = Vec::new();
    for run in ["plain-1", "plain-2"] {
        place.shell(case, "work");
        plain.push(tree::read(&place.project()));
        std::fs::rename(place.project(), place.at(run))?;
        tree::copy(&place.at("base"), &place.project());
    }
    let before = tree::read(&place.project());

    let script = place.script(case, "work");
    let ran = place.product(&["run", "--session", "real", "--", "bash", "-c", &script]);
    succeeds("sbx-fuse run", &ran);
    unchanged(&before, &place.project());
    succeeds("sbx-fuse verify", &place.product(&["verify", "-s", "real"]));
    // rsync copies a set-uid bit, which is only applied on demand.
    succeeds("sbx-fuse apply", &place.product(&["apply", "-s", "real", "-y", "--allow-privileged"]));
    let after = tree::read(&place.project());
    same(&plain[0], &plain[1], &after);
    let left = place.product(&["changes", "-s", "real"]);
    succeeds("sbx-fuse changes", &left);
    assert!(left.stdout.is_empty(), "changes are left after apply:\n{}", left.stdout.escape_ascii());
    place.shell(case, "check");
    Ok(())
}

/// A server that is killed in the middle of a build, again and again at other places: the next command recovers, the
/// journal and the files agree, the real tree is untouched, and in the end the build can be finished and applied.
fn killed_build() -> Result<(), Failed> {
    let case = CASES.iter().find(|c| c.name == "make").ok_or("the make case is gone")?;
    let dir = tempfile::Builder::new().prefix("sbx-killed").tempdir()?;
    let place = Place { dir };
    for sub in ["project", "home", "runtime"] {
        std::fs::create_dir(place.at(sub))?;
    }
    place.shell(case, "setup");
    let before = tree::read(&place.project());
    for objects in [1, 7, 16, 27, 36] {
        let mut command = Command::new(support::product(BUILT));
        command.args(["run", "--session", "killed", "--", "make", "-s", "-j2"]);
        place.environment(&mut command);
        let mut build = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        while count_objects(&place) < objects && build.try_wait()?.is_none() {
            std::thread::yield_now();
        }
        build.kill()?;
        build.wait()?;
        succeeds("sbx-fuse verify after the kill", &place.product(&["verify", "-s", "killed"]));
        succeeds("sbx-fuse verify again", &place.product(&["verify", "-s", "killed"]));
        unchanged(&before, &place.project());
    }
    // From scratch (-B): a killed compiler leaves half an object file, here as anywhere.
    succeeds(
        "the build in the end",
        &place.product(&["run", "--session", "killed", "--", "make", "-s", "-B"]),
    );
    succeeds("sbx-fuse apply", &place.product(&["apply", "-s", "killed", "-y"]));
    place.shell(case, "check");
    Ok(())
}

/// How many object files the session has, by what `changes` says of the running session.
fn count_objects(place: &Place) -> usize {
    let out = place.product(&["changes", "-s", "killed"]);
    out.stdout.split(|b| *b == b'\n').filter(|line| line.ends_with(b".o")).count()
}

fn unchanged(before: &Tree, project: &Path) {
    let lines = tree::differences(before, &tree::read(project), |_, _| false);
    assert!(lines.is_empty(), "the real tree changed before apply:\n{}", head(&lines));
}

/// What `after` must have, except where two plain runs differ from each other.
fn same(one: &Tree, two: &Tree, after: &Tree) {
    let mut excused: BTreeSet<(PathBuf, &str)> = BTreeSet::new();
    for path in one.keys().chain(two.keys()) {
        match (one.get(path), two.get(path)) {
            (Some(a), Some(b)) => excused.extend(tree::aspects(a, b).into_iter().map(|w| (path.clone(), w))),
            _ => {
                excused.insert((path.clone(), "presence"));
            }
        }
    }
    // A directory in which names are random gets other random names the third time.
    let random: BTreeSet<PathBuf> = excused
        .iter()
        .filter(|(_, what)| *what == "presence")
        .filter_map(|(path, _)| path.parent().map(Path::to_path_buf))
        .collect();
    let lines = tree::differences(one, after, |path, what| {
        excused.contains(&(path.to_path_buf(), what))
            || (what == "presence" && path.ancestors().skip(1).any(|dir| random.contains(dir)))
    });
    assert!(lines.is_empty(), "apply did not make what the plain runs made:\n{}", head(&lines));
}

fn head(lines: &[String]) -> String {
    let shown: Vec<&str> = lines.iter().take(20).map(String::as_str).collect();
    format!("{}\n({} differences)", shown.join("\n"), lines.len())
}
