//! A person with a home, a project and the program.

use crate::support;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The world of one test: `home/project` with `a.txt` and `dir/b.txt`.
pub struct World {
    dir: TempDir,
}

impl World {
    pub fn new() -> World {
        World::of(TempDir::with_prefix("sbx-fuse-session").expect("a temporary directory"))
    }

    /// A world that sandboxes see: its directory is not beneath `/tmp` or `/var/tmp`.
    pub fn visible() -> World {
        let place = std::env::home_dir().expect("a home directory");
        World::of(TempDir::with_prefix_in("sbx-fuse-session", place).expect("a temporary directory"))
    }

    fn of(dir: TempDir) -> World {
        let world = World { dir };
        for name in ["home", "home/project", "home/project/dir", "run", "mnt"] {
            std::fs::create_dir(world.at(name)).expect("mkdir");
        }
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        std::fs::set_permissions(world.at("run"), private).expect("chmod");
        world.write("home/project/a.txt", "one\n");
        world.write("home/project/dir/b.txt", "b\n");
        world
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) {
        std::fs::write(self.at(name), text).expect("a file can be written");
    }

    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.at(name)).expect("a file can be read")
    }

    /// The program with these arguments, in the project.
    pub fn sbx(&self, args: &[&str]) -> Command {
        let mut command = Command::new(support::product(crate::BUILT));
        command.args(args).current_dir(self.at("home/project")).env_clear().stdin(Stdio::null());
        command.env("PATH", "/usr/local/bin:/usr/bin:/bin").env("HOME", self.at("home"));
        command.env("XDG_RUNTIME_DIR", self.at("run")).env("LC_ALL", "C").env("TZ", "UTC");
        command.env("TMPDIR", self.dir.path());
        command
    }

    /// Runs it: exit code, stdout, stderr.
    pub fn run(&self, args: &[&str]) -> (i32, String, String) {
        said(&self.sbx(args).output().expect("the program starts"))
    }

    /// Runs it; it must succeed. Returns its stdout.
    pub fn ok(&self, args: &[&str]) -> String {
        let (code, out, err) = self.run(args);
        assert_eq!(code, 0, "{args:?}: {out}{err}");
        out
    }

    /// Runs it; it must fail with `code`. Returns its stderr.
    pub fn fails(&self, code: i32, args: &[&str]) -> String {
        let (got, out, err) = self.run(args);
        assert_eq!(got, code, "{args:?}: {out}{err}");
        err
    }

    pub fn json(&self, args: &[&str]) -> serde_json::Value {
        serde_json::from_str(&self.ok(args)).expect("JSON")
    }

    /// Starts it in the background.
    pub fn start(&self, args: &[&str]) -> Child {
        let mut command = self.sbx(args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("the program starts")
    }

    pub fn state(&self, name: &str) -> String {
        let all = self.json(&["ls", "--json"]);
        let rows = all.as_array().expect("an array");
        let row =
            rows.iter().find(|r| r["name"] == name).unwrap_or_else(|| panic!("no session {name}: {all}"));
        row["state"].as_str().expect("a word").to_owned()
    }

    /// Whether a command of the session has written something to `file`. Not asked by `exec`, which may come first and
    /// would then serve the session, and wait for the command it was to wait for.
    pub fn has(&self, name: &str, file: &str) -> bool {
        std::fs::metadata(self.upper(name).join(file)).is_ok_and(|m| m.len() > 0)
    }

    /// The upper of the first root.
    pub fn upper(&self, name: &str) -> PathBuf {
        self.at(&format!("home/.local/state/sbx-fuse/sessions/{name}/roots/0/upper"))
    }
}

impl Drop for World {
    /// A test that failed may leave its mount, without which the directory could not be removed.
    fn drop(&mut self) {
        let gone = Command::new("fusermount3").args(["-u", "-q", "-z"]).arg(self.at("mnt")).output();
        if std::thread::panicking() {
            eprintln!("clean-up: {gone:?}");
        }
    }
}

pub fn said(out: &Output) -> (i32, String, String) {
    let text = |b: &[u8]| String::from_utf8(b.to_vec()).expect("output is UTF-8");
    (out.status.code().unwrap_or(-1), text(&out.stdout), text(&out.stderr))
}

/// Waits until `ready` says so.
pub fn until(what: &str, mut ready: impl FnMut() -> bool) {
    let start = Instant::now();
    while !ready() {
        assert!(start.elapsed() < Duration::from_secs(300), "not in time: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
