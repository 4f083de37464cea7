//! A person without privileges, with a home and a project, and a transcript of what they did.

use std::fmt::Write;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use tempfile::TempDir;

/// Who the person is when the tests run as root: an account that exists, since fusermount3 asks for its name.
fn person() -> u32 {
    static ID: OnceLock<u32> = OnceLock::new();
    *ID.get_or_init(|| {
        let user = nix::unistd::User::from_name(USER).expect("the account database can be read");
        user.unwrap_or_else(|| panic!("there is no account {USER}; scripts/test makes it")).uid.as_raw()
    })
}

/// The account that tests run as when they are started by root.
const USER: &str = "sbxtest";

/// The program, where that person can read it.
pub fn program() -> &'static Path {
    static PLACE: OnceLock<PathBuf> = OnceLock::new();
    PLACE.get_or_init(|| {
        if is_root() {
            let open = std::fs::Permissions::from_mode(0o666);
            std::fs::set_permissions("/dev/fuse", open).expect("/dev/fuse can be opened up");
        }
        sweep();
        let dir = std::env::temp_dir().join(format!("{PROGRAM_DIR}{}", std::process::id()));
        std::fs::create_dir(&dir).expect("a temporary directory");
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755)).expect("chmod");
        let at = dir.join("sbx-fuse");
        let mut from = std::fs::File::open(env!("CARGO_BIN_EXE_sbx-fuse")).expect("the program is built");
        let mut to = std::fs::File::create(&at).expect("it can be copied");
        std::io::copy(&mut from, &mut to).expect("it can be copied");
        std::fs::set_permissions(&at, std::fs::Permissions::from_mode(0o755)).expect("chmod");
        at
    })
}

/// What the directory of a test process's copy of the program begins with; its process id follows.
const PROGRAM_DIR: &str = "sbx-fuse-cli-bin.";

/// Removes the copies of test processes that have ended: nothing runs at the end of a process that could.
fn sweep() {
    for entry in std::fs::read_dir(std::env::temp_dir()).expect("a temporary directory").flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|n| n.strip_prefix(PROGRAM_DIR));
        if pid.is_some_and(|pid| Path::new("/proc").join(pid).symlink_metadata().is_err())
            && let Err(e) = std::fs::remove_dir_all(entry.path())
        {
            eprintln!("{name:?} was left: {e}");
        }
    }
}

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// The world of one test.
pub struct World {
    dir: TempDir,
    /// The transcript so far.
    text: String,
    path: String,
}

impl World {
    /// A home with a project in it: `a.txt`, `dir/b.txt`, `gone.txt`.
    pub fn new() -> World {
        let dir = TempDir::with_prefix("sbx-fuse-cli").expect("a temporary directory");
        let world = World { dir, text: String::new(), path: "/usr/local/bin:/usr/bin:/bin".into() };
        std::fs::set_permissions(world.dir.path(), std::fs::Permissions::from_mode(0o755)).expect("chmod");
        for name in ["", "home", "home/project", "home/project/dir", "run", "mnt"] {
            let at = world.dir.path().join(name);
            if !name.is_empty() {
                std::fs::create_dir(&at).expect("mkdir");
            }
            world.give(&at);
        }
        std::fs::set_permissions(world.at("run"), std::fs::Permissions::from_mode(0o700)).expect("chmod");
        world.write("home/project/a.txt", "one\ntwo\nthree\n");
        world.write("home/project/dir/b.txt", "b\n");
        world.write("home/project/gone.txt", "gone\n");
        world
    }

    fn give(&self, path: &Path) {
        if is_root() {
            chown(path, Some(person()), Some(person())).expect("chown");
        }
    }

    /// A path of this world.
    pub fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a file of the person's.
    pub fn write(&self, name: &str, text: &str) {
        let at = self.at(name);
        std::fs::write(&at, text).expect("a file can be written");
        self.give(&at);
    }

    /// Gives an object to root and its group; false when the tests do not run as root, who alone may.
    pub fn give_to_root(&self, name: &str) -> bool {
        if is_root() {
            chown(self.at(name), Some(0), Some(0)).expect("chown");
        }
        is_root()
    }

    /// The content of a file.
    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.at(name)).expect("a file can be read")
    }

    /// Makes a directory of the person's.
    pub fn mkdir(&self, name: &str) {
        let at = self.at(name);
        let made = self.command(Path::new("/bin/mkdir"), &["-p", "--", at.to_str().expect("UTF-8")]).status();
        assert!(made.expect("mkdir starts").success(), "{name}");
    }

    /// Another search path for what follows.
    pub fn set_path(&mut self, path: &str) {
        self.path = path.into();
    }

    /// `program args…` as the person would start it, in the project.
    pub fn command(&self, program: &Path, args: &[&str]) -> Command {
        let mut command = if is_root() {
            let mut command = Command::new("/usr/bin/setpriv");
            let id = person();
            command.args([&format!("--reuid={id}"), &format!("--regid={id}"), "--clear-groups", "--"]);
            command.arg(program);
            command
        } else {
            Command::new(program)
        };
        command.args(args).current_dir(self.at("home/project")).env_clear().stdin(Stdio::null());
        command.env("PATH", &self.path).env("HOME", self.at("home")).env("XDG_RUNTIME_DIR", self.at("run"));
        command.envs([("LC_ALL", "C"), ("TZ", "UTC"), ("COLUMNS", "100"), ("TERM", "dumb")]);
        command
    }

    /// Our program with these arguments, as a command to be started by the test.
    pub fn sbx(&self, args: &[&str]) -> Command {
        self.command(program(), args)
    }

    /// Runs our program and adds what it said to the transcript; returns its exit code.
    pub fn run(&mut self, args: &[&str]) -> i32 {
        let out = self.sbx(args).output().expect("the program starts");
        self.note(args, &out);
        out.status.code().unwrap_or(-1)
    }

    /// As [`World::run`], with one more variable in the environment.
    pub fn run_with(&mut self, key: &str, value: &str, args: &[&str]) -> i32 {
        let out = self.sbx(args).env(key, value).output().expect("the program starts");
        self.note(args, &out);
        out.status.code().unwrap_or(-1)
    }

    /// Runs our program outside of the transcript; it must succeed. Returns its stdout.
    pub fn quietly(&self, args: &[&str]) -> String {
        let out = self.sbx(args).output().expect("the program starts");
        assert!(out.status.success(), "{args:?}: {}", utf8(&out.stderr));
        utf8(&out.stdout)
    }

    /// Runs a shell script as the person; it must succeed.
    pub fn shell(&self, script: &str) -> String {
        let out = self.command(Path::new("/bin/sh"), &["-ec", script]).output().expect("sh starts");
        assert!(out.status.success(), "{script}: {}", utf8(&out.stderr));
        utf8(&out.stdout)
    }

    fn note(&mut self, args: &[&str], out: &Output) {
        let words: Vec<String> = args
            .iter()
            .map(|a| if a.is_empty() || a.contains([' ', '\'']) { format!("{a:?}") } else { (*a).to_owned() })
            .collect();
        writeln!(self.text, "$ sbx-fuse {}", words.join(" ")).expect("text");
        self.text.push_str(&utf8(&out.stdout));
        let said = utf8(&out.stderr);
        for line in said.lines() {
            writeln!(self.text, "! {line}").expect("text");
        }
        match out.status.code() {
            Some(0) => {}
            code => writeln!(self.text, "[exit {}]", code.unwrap_or(-1)).expect("text"),
        }
        self.text.push('\n');
    }

    /// The process id of the server of session `name`.
    pub fn server_pid(&self, name: &str) -> i32 {
        let json: serde_json::Value =
            serde_json::from_str(&self.quietly(&["status", "-s", name, "--json"])).expect("JSON");
        i32::try_from(json["pid"].as_i64().expect("a pid")).expect("a pid")
    }

    /// The transcript, with what differs from run to run replaced.
    pub fn transcript(&self) -> String {
        let dir = self.dir.path().to_str().expect("UTF-8");
        // A diff names absolute paths without the slash in front.
        self.text.replace(dir, "[TMP]").replace(dir.trim_start_matches('/'), "[TMP]")
    }
}

impl Drop for World {
    /// A test that failed may leave its mount, without which the directory could not be removed.
    fn drop(&mut self) {
        let mnt = self.at("mnt");
        let mnt = mnt.to_str().expect("UTF-8");
        let gone = self.command(Path::new("fusermount3"), &["-u", "-q", "-z", mnt]).output();
        if std::thread::panicking() {
            eprintln!("{}\nclean-up: {gone:?}", self.transcript());
        }
    }
}

fn utf8(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("output is UTF-8")
}

/// Compares a transcript with the snapshot of the test that calls it.
#[macro_export]
macro_rules! same_as_before {
    ($world:expr) => {
        insta::with_settings!({
            omit_expression => true,
            prepend_module_to_snapshot => true,
            filters => vec![
                (r"\(pid \d+\)", "(pid [PID])"),
                (r#""pid": \d+"#, r#""pid": "[PID]""#),
                (r#""(time|created)": \d+"#, r#""$1": "[TIME]""#),
                (
                    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}  \d+ (\S+) +(\S+) +",
                    "[TIME]  [PID] $1  $2  "
                ),
                (r"\d{4}-\d\d-\d\d \d\d:\d\d(:\d\d)?", "[TIME]"),
                (r#""[0-9a-f]{32}""#, r#""[ID]""#),
                (r#""token": "r\d+-\d+\.\d{9}""#, r#""token": "[TOKEN]""#),
            ]
        }, { insta::assert_snapshot!($world.transcript()) });
    };
}
