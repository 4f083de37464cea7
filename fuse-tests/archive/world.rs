//! A person's project, state directories, and the program.

use crate::support;
use crate::support::tree::{self, Tree};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

pub struct World {
    dir: tempfile::TempDir,
}

impl World {
    /// A project with files, a directory and a hard link.
    pub fn new() -> World {
        let dir = tempfile::Builder::new().prefix("sbx-trip").tempdir().expect("a temporary directory");
        let world = World { dir };
        for sub in ["project", "home", "runtime"] {
            std::fs::create_dir(world.at(sub)).expect("a directory");
        }
        world.shell(
            "for i in 1 2 3 4 5 6; do echo file $i > f$i; done; mkdir -p d/sub gone; echo x > d/x; echo y > d/sub/y; \
             echo l > h1; ln h1 h2; echo z > gone/z",
        );
        world
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// `program` as the person starts it, with the state directory `state`.
    fn command(&self, program: &Path, state: &str) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(self.at("project"))
            .env("HOME", self.at("home"))
            .env("XDG_STATE_HOME", self.at(state))
            .env("XDG_RUNTIME_DIR", self.at("runtime"))
            .env("LC_ALL", "C")
            .env_remove("SBX_FUSE_SESSION")
            .stdin(std::process::Stdio::null());
        command
    }

    /// The program on the state directory `state`, to be started.
    pub fn program(&self, state: &str, args: &[&str]) -> Command {
        let mut command = self.command(&support::product(crate::BUILT), state);
        command.args(args);
        command
    }

    /// Runs the program on the state directory `state`.
    pub fn on(&self, state: &str, args: &[&str]) -> Output {
        self.program(state, args).output().expect("the program runs")
    }

    /// Runs the program, which must succeed; its stdout.
    pub fn sbx(&self, args: &[&str]) -> String {
        good(&self.on("state", args))
    }

    /// Runs `script` in the session `name`.
    pub fn bash(&self, name: &str, script: &str) {
        self.sbx(&["run", "-s", name, "--", "bash", "-ec", script]);
    }

    /// Runs the program, which must fail with `code`; its stderr.
    pub fn fails(&self, code: i32, args: &[&str]) -> String {
        let out = self.on("state", args);
        assert_eq!(out.status.code(), Some(code), "{args:?}: {}", text(&out.stderr));
        text(&out.stderr)
    }

    /// Runs a shell in the project.
    pub fn shell(&self, script: &str) -> String {
        let mut command = self.command(Path::new("/bin/bash"), "state");
        good(&command.args(["-ec", script]).output().expect("bash runs"))
    }

    /// The directory of a session.
    pub fn session(&self, state: &str, name: &str) -> PathBuf {
        self.at(state).join("sbx-fuse/sessions").join(name)
    }

    /// The archive of a session at the store's own place.
    pub fn archive(&self, name: &str) -> PathBuf {
        self.at("state/sbx-fuse/archives").join(format!("{name}.tar.zst"))
    }

    /// All of a session, but who has it and when its top was made.
    pub fn read_session(&self, state: &str, name: &str) -> Tree {
        let mut tree = tree::read(&self.session(state, name));
        for passing in ["", "lock", "mnt", "server.log"] {
            tree.remove(Path::new(passing));
        }
        tree
    }

    /// What is in the store `state`, hidden or not.
    pub fn entries(&self, state: &str) -> Vec<String> {
        let mut all = Vec::new();
        for sub in ["sessions", "archives"] {
            let Ok(dir) = std::fs::read_dir(self.at(state).join("sbx-fuse").join(sub)) else { continue };
            all.extend(dir.map(|e| e.expect("an entry").file_name().into_string().expect("UTF-8")));
        }
        all.sort();
        all
    }

    /// A small session that is archived; the archive's bytes.
    pub fn small_archive(&self) -> Vec<u8> {
        self.bash("small", "echo more >> f1; rm f2; ln f3 f7; ln -s f1 l");
        self.sbx(&["archive", "small"]);
        std::fs::read(self.archive("small")).expect("the archive can be read")
    }

    /// Tries to restore these bytes on a clean state directory; whether that worked. If not, nothing may be there.
    pub fn takes(&self, bytes: &[u8], more: &[&str]) -> (bool, String) {
        let file = self.at("tried.tar.zst");
        std::fs::write(&file, bytes).expect("a file can be written");
        let out = self.on("clean", &[&["restore", file.to_str().expect("UTF-8")], more].concat());
        let said = text(&out.stderr);
        assert!(!said.contains("panicked"), "{said}");
        if out.status.success() {
            let name = self.entries("clean").remove(0);
            good(&self.on("clean", &["rm", "-y", &name]));
            return (true, said);
        }
        assert_eq!(self.entries("clean"), Vec::<String>::new(), "left behind: {said}");
        (false, said)
    }
}

pub fn good(out: &Output) -> String {
    assert!(out.status.success(), "{}\n{}", out.status, text(&out.stderr));
    text(&out.stdout)
}

pub fn text(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string().replace("\\n", "\n").replace("\\'", "'").replace("\\\"", "\"")
}
