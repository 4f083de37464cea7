//! Servers killed, the machine started anew, the disk full: what was acknowledged is there, and nothing stale stays.

use crate::world::{World, said, until};
use std::process::Command;

/// Writes files, each safe on the disk before the next.
const WRITE: &str = "
import os
for i in range(20):
    fd = os.open('safe%d' % i, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    os.write(fd, b'content %d' % i); os.fsync(fd); os.close(fd)
os.unlink('a.txt'); os.rename('dir', 'moved')
fd = os.open('.', os.O_RDONLY); os.fsync(fd)
";

/// What all that is, as `changes` tells it.
fn all_there(w: &World, name: &str) {
    let changes = w.ok(&["changes", "-s", name]);
    for i in 0..20 {
        assert!(changes.contains(&format!("A safe{i}\n")), "{changes}");
        assert_eq!(
            std::fs::read(w.upper(name).join(format!("safe{i}"))).unwrap(),
            format!("content {i}").as_bytes()
        );
    }
    assert!(changes.contains("D a.txt\n") && changes.contains("moved"), "{changes}");
    w.ok(&["verify", "-s", name]);
}

fn pid(w: &World, name: &str) -> String {
    w.json(&["show", name, "--json"])["pid"].to_string()
}

/// What `doctor` says was left behind, and on stderr. Other tests may leave things of theirs meanwhile.
fn left_behind(w: &World, args: &[&str]) -> (String, String) {
    let (_, out, err) = w.run(&[&["doctor", "--json"], args].concat());
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    let check =
        json["checks"].as_array().unwrap().iter().find(|c| c["name"] == "left behind").unwrap().clone();
    (check["found"].as_str().unwrap().to_owned(), err)
}

fn is_mounted(at: &std::path::Path) -> bool {
    std::fs::read_to_string("/proc/self/mounts").unwrap().contains(at.to_str().unwrap())
}

pub fn a_killed_server_loses_nothing_and_doctor_cleans_up() {
    let w = World::new();
    let (mnt, sockets) = (w.at("mnt"), w.at("run/sbx-fuse"));
    let (at, session) = (mnt.to_str().unwrap(), "session s, whose server died");
    w.ok(&["mount", "-s", "s", at]);
    let out = Command::new("python3").args(["-c", WRITE]).current_dir(&mnt).output().unwrap();
    assert!(out.status.success(), "{}", out.stderr.escape_ascii());
    let told = left_behind(&w, &["--fix"]).0;
    assert!(!told.contains(at) && is_mounted(&mnt), "a live mount is no wreckage: {told}");
    let kill = || {
        assert!(Command::new("kill").args(["-KILL", &pid(&w, "s")]).status().unwrap().success());
        until("the server is gone", || w.state("s") == "resting");
    };
    kill();
    assert!(w.ok(&["show", "s"]).contains("its server died"));
    let told = left_behind(&w, &[]).0;
    assert!(told.contains(sockets.to_str().unwrap()) && told.contains(session), "{told}");
    let (told, said) = left_behind(&w, &["--fix"]);
    assert!(!told.contains(at) && !told.contains("session s") && !is_mounted(&mnt), "{told} {said}");
    assert_eq!(std::fs::read_dir(&mnt).unwrap().count(), 0);
    assert_eq!(std::fs::read_dir(&sockets).unwrap().count(), 0);
    all_there(&w, "s");
    w.ok(&["mount", "-s", "s", at]);
    assert_eq!(w.read("mnt/safe7"), "content 7");
    kill();
    // As of a state directory that was thrown away by hand: no session knows the mount.
    std::fs::rename(w.at("home/.local"), w.at("home/.thrown")).unwrap();
    until("the kernel has noticed", || {
        let (told, said) = left_behind(&w, &["--fix"]);
        !is_mounted(&mnt) && !told.contains(sockets.to_str().unwrap()) && !said.contains("cannot")
    });
    assert_eq!(std::fs::read_dir(&sockets).unwrap().count(), 0);
}

/// As after a reboot: all processes, mounts and the runtime directory are gone, `meta.json` and the lock file say what
/// was.
pub fn after_a_reboot_everything_is_there() {
    let w = World::new();
    let mnt = w.at("mnt");
    w.ok(&["mount", "-s", "s", mnt.to_str().unwrap()]);
    let out = Command::new("python3").args(["-c", WRITE]).current_dir(&mnt).output().unwrap();
    assert!(out.status.success(), "{}", out.stderr.escape_ascii());
    let child = w.start(&[
        "run",
        "-s",
        "t",
        "--",
        "sh",
        "-c",
        &format!("python3 -c \"{WRITE}\"; echo up > up; sleep 1000"),
    ]);
    until("it runs", || w.has("t", "up"));
    let running = child.id().to_string();
    assert!(Command::new("kill").args(["-KILL", &pid(&w, "s"), &running]).status().unwrap().success());
    child.wait_with_output().unwrap();
    until("nobody has them", || w.state("s") == "resting" && w.state("t") == "resting");
    let gone = Command::new("fusermount3").args(["-u", "-z"]).arg(&mnt).status().unwrap();
    // Another test's clean-up takes away what no session of its own knows.
    assert!(gone.success() || !is_mounted(&mnt));
    std::fs::remove_dir_all(w.at("run")).unwrap();
    std::fs::create_dir(w.at("run")).unwrap();
    all_there(&w, "s");
    all_there(&w, "t");
    assert_eq!(w.ok(&["exec", "t", "--", "cat", "safe3", "up"]), "content 3up\n");
}

/// In namespaces of our own anybody may mount a small disk for the state directory.
pub fn a_full_disk_loses_nothing_that_was_acknowledged() {
    let w = World::new();
    std::fs::create_dir_all(w.at("home/.local/state")).unwrap();
    let product = crate::support::product(crate::BUILT);
    let script = r#"
set -e
mount -t tmpfs -o size=6m disk ~/.local/state
full='import os
done = open("/dev/null", "wb")
for i in range(10000):
    try:
        fd = os.open("f%d" % i, os.O_WRONLY | os.O_CREAT, 0o644)
        n = os.write(fd, b"%d " % i * 20000); os.fsync(fd); os.close(fd)
        if n != len(b"%d " % i * 20000): break
        print(i, flush=True)
    except OSError as e:
        assert e.errno == 28, e
        break
'
"$SBX" run -s s -- python3 -c "$full" > acknowledged || true
df --output=avail ~/.local/state | tail -n1 > avail
[ -s acknowledged ]
"$SBX" ls
# A command that needs room says so or goes without; none invents or loses a file.
"$SBX" changes -s s > changes || { "$SBX" changes -s s || true; }
echo
for i in $(cat acknowledged); do
    [ "$(head -c 20 ~/.local/state/sbx-fuse/sessions/s/roots/0/upper/f$i | cut -d' ' -f1)" = "$i" ]
    grep -qx "A f$i" changes
done
last=$(tail -n1 acknowledged)
"$SBX" exec s -- sh -c 'rm -f f1 f2 f3 f4 f5 f6 f7 f8 f9 f10; echo fits > new; cat new'
"$SBX" verify -s s
"$SBX" exec s -- head -c 1 f$last > /dev/null
"$SBX" changes -s s | grep -x 'A new'
"$SBX" rm -y s
"#;
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-current-user", "--mount", "--keep-caps", "bash", "-c", script]);
    command
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("HOME", w.at("home"))
        .env("SBX", product);
    command.env("XDG_RUNTIME_DIR", w.at("run")).env("LC_ALL", "C").current_dir(w.at("home/project"));
    let (code, out, err) = said(&command.output().unwrap());
    assert_eq!(code, 0, "{out}\n{err}");
    assert!(out.contains("A new"), "{out}\n{err}");
}
