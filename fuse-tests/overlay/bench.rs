//! A place with layers, mounts on it, and looks at them.

use crate::support;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A place for layers and mounts; on the way out its mounts are taken down.
pub struct Bench {
    dir: tempfile::TempDir,
}

impl Drop for Bench {
    fn drop(&mut self) {
        // Overlayfs's work directory keeps its owner out.
        self.shell("umount m 2>/dev/null || fusermount3 -u m 2>/dev/null || true; chmod -R u+rwX . 2>/dev/null || true");
    }
}

impl Bench {
    /// With empty directories `l1` to `l3` (layers), `u` (upper), `w` (work) and `m` (mount point).
    pub fn new() -> Bench {
        let bench =
            Bench { dir: tempfile::Builder::new().prefix("sbx-overlay").tempdir().expect("a directory") };
        bench.shell("mkdir l1 l2 l3 u w m");
        bench
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs a script here and gives what it printed.
    pub fn shell(&self, script: &str) -> String {
        succeeds(script, Command::new("bash").args(["-euc", script]).current_dir(self.dir.path()))
    }

    /// Runs a script in a user and mount namespace in which we are who we are, but may mount.
    pub fn in_namespace(&self, script: &str) -> String {
        let mut unshare = Command::new("unshare");
        unshare.args(["-U", "--map-current-user", "--keep-caps", "-m", "bash", "-euc", script]);
        succeeds(script, unshare.current_dir(self.dir.path()))
    }

    /// The product under the drop-in's name.
    pub fn drop_in(&self) -> PathBuf {
        let link = self.at("fuse-overlayfs");
        if link.symlink_metadata().is_err() {
            symlink(support::product(crate::BUILT), &link).expect("a link to the product");
        }
        link
    }

    /// Runs `sbx-fuse overlay` here.
    pub fn overlay(&self, args: &[&str]) -> Output {
        let mut command = Command::new(support::product(crate::BUILT));
        command.arg("overlay").args(args).current_dir(self.dir.path()).output().expect("the product runs")
    }

    /// Mounts at `m` and does `then`, and takes the mount down again.
    pub fn mounted<T>(&self, options: &str, then: impl FnOnce(&Path) -> T) -> T {
        let out = self.overlay(&["-o", options, "m"]);
        assert!(out.status.success(), "overlay -o {options}: {}", text(&out.stderr));
        let done = then(&self.at("m"));
        self.shell("umount m 2>/dev/null || fusermount3 -u m");
        done
    }

    /// A shell function `look` for scripts: all that can be seen of the tree in a directory.
    pub fn with_look(script: &str) -> String {
        format!("{LOOK}\n{script}")
    }
}

/// `look DIR`: names, types, modes, owners, times of non-directories, targets, content, attributes.
const LOOK: &str = r#"
look() { (
    cd "$1"
    find . -mindepth 1 '(' -type d -printf '%P %y %m %U:%G\n' -o -printf '%P %y %m %U:%G %s %l %T@\n' ')' | sort
    find . -type f -exec md5sum {} + | sort -k2
    find . '(' -type f -o -type d ')' -exec getfattr -d -m '^user\.' {} + 2>/dev/null | sort
) }
# As `look`, without times: for comparing one run of a work with another.
look_timeless() { look "$1" | sed -E 's/ [0-9]+\.[0-9]{10}$//'; }
"#;

fn succeeds(what: &str, command: &mut Command) -> String {
    let out = command.output().expect("bash runs");
    assert!(out.status.success(), "{} in:\n{what}\n{}{}", out.status, text(&out.stdout), text(&out.stderr));
    text(&out.stdout)
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

/// Fails with the lines in which two looks differ.
pub fn same(what: &str, want: &str, have: &str) {
    let differ: Vec<String> = want
        .lines()
        .filter(|l| !have.lines().any(|h| h == *l))
        .map(|l| format!("-{l}"))
        .chain(have.lines().filter(|l| !want.lines().any(|w| w == *l)).map(|l| format!("+{l}")))
        .collect();
    assert!(want == have, "{what}:\n{}", differ.join("\n"));
}
