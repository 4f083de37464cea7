//! What a sandbox sees and inherits, which roots are reserved, and the ways out that are closed.

use crate::world::{World, said};

pub fn secrets_are_hidden_by_default() {
    let w = World::new();
    for dir in ["home/.ssh", "home/.aws", "home/project/private"] {
        std::fs::create_dir(w.at(dir)).unwrap();
        w.write(&format!("{dir}/key"), "secret\n");
    }
    w.write("home/.netrc", "secret\n");
    let script = "cat ~/.ssh/key ~/.aws/key ~/.netrc private/key 2>/dev/null; ls -A ~/.ssh; true";
    let out = w.ok(&["run", "-s", "s", "--hide", "private", "--", "sh", "-c", script]);
    assert_eq!(out, "");
    // In a root it is not there at all.
    let home = w.at("home");
    let home = home.to_str().unwrap();
    let script = "cd ~; ls -Ad .ssh .netrc .aws 2>/dev/null; cat .aws/key";
    let out = w.ok(&["run", "--rm", "--root", home, "--show", "~/.aws", "--", "sh", "-c", script]);
    assert_eq!(out, ".aws\nsecret\n");
    // What was given is kept with the session.
    assert_ne!(w.run(&["exec", "s", "--", "cat", "private/key"]).0, 0);
    assert!(!w.at("home/.gnupg").exists(), "something was made on the host");
}

pub fn rules_hold_in_roots_through_the_binary() {
    let w = World::new();
    w.write("home/project/.env", "secret\n");
    w.write("home/project/dir/.env", "secret\n");
    w.write("home/project/vendor", "v\n");
    let script = "ls -A . dir; cat dir/.env; echo x > .env; echo y >> vendor; cat a.txt; ls -ld a.txt; cat vendor; echo z > later";
    let args = [
        "run",
        "-s",
        "s",
        "--hide",
        "**/.env",
        "--hide",
        "later",
        "--deny",
        "a.txt",
        "--read-only",
        "vendor",
    ];
    let (code, out, err) = w.run(&[args.as_slice(), &["--", "sh", "-c", script]].concat());
    assert_eq!(out, ".:\na.txt\ndir\nvendor\n\ndir:\nb.txt\nv\n");
    for refused in ["dir/.env: No such file", "create .env: Permission", "create vendor: Permission"] {
        assert!(err.contains(refused), "{refused}: {err}");
    }
    assert!(err.contains("a.txt: Permission denied") && code != 0, "{code} {err}");
    assert!(err.contains("create later: Permission"), "{err}");
    // Kept with the session, and told as they are.
    assert!(
        w.run(&["exec", "s", "--", "sh", "-c", "cat vendor; echo x > vendor"])
            .2
            .contains("Permission denied")
    );
    assert!(!w.run(&["status", "-s", "s"]).1.contains(".env"));
    let err = w.fails(125, &["run", "--hide", "x[", "true"]);
    assert!(err.contains("no pattern"), "{err}");
    let err = w.fails(125, &["run", "--hide", ".", "true"]);
    assert!(err.contains("is a root"), "{err}");
    let err = w.fails(125, &["run", "--show", "nothing", "true"]);
    assert!(err.contains("nothing is hidden at") && err.contains("hint:"), "{err}");
}

pub fn rules_hold_outside_of_roots() {
    // Not beneath /tmp, which the sandbox has of its own.
    let w = World::visible();
    for dir in [".ssh", ".config/gh", ".config/git", "notes", "closed"] {
        std::fs::create_dir_all(w.at("home").join(dir)).unwrap();
        w.write(&format!("home/{dir}/key"), "content\n");
    }
    w.write("home/shut.txt", "secret\n");
    w.write("home/plain.txt", "plain\n");
    std::os::unix::fs::symlink("plain.txt", w.at("home/link")).unwrap();
    let before = tree(&w.at("home"));
    let script = "cd ~; ls -A . .config; cat plain.txt link notes/key .config/git/key; cat .ssh/key; cat shut.txt; \
                  ls closed; cat closed/key; touch made; touch closed/made; echo >> shut.txt; rm -rf .config/git; true";
    let args = ["run", "-s", "s", "--deny", "../closed", "--deny", "~/shut.txt", "--hide", "~/not*"];
    let (code, out, err) = w.run(&[args.as_slice(), &["--", "sh", "-c", script]].concat());
    assert_eq!(code, 0, "{err}");
    assert_eq!(
        out,
        ".:\n.config\n.local\nclosed\nlink\nplain.txt\nproject\nshut.txt\n\n.config:\ngit\nplain\nplain\ncontent\n"
    );
    for refused in [
        ".ssh/key: No such file",
        "notes/key: No such file",
        "shut.txt: Permission",
        "'closed': Permission",
        "'made': Read-only",
    ] {
        assert!(err.contains(refused), "{refused}: {err}");
    }
    assert_eq!(tree(&w.at("home")), before, "something was made on the host");
    // What appears while the command runs is as hidden, and a guest sees the same.
    let mut child = w.start(&[
        "exec",
        "s",
        "--",
        "sh",
        "-c",
        "touch dir/up; until [ -e dir/on ]; do sleep 0.05; done; cat ~/.netrc ~/.aws/key",
    ]);
    crate::world::until("the command runs", || w.upper("s").join("dir/up").symlink_metadata().is_ok());
    w.write("home/.netrc", "secret\n");
    std::fs::create_dir(w.at("home/.aws")).unwrap();
    w.write("home/.aws/key", "secret\n");
    assert_eq!(w.run(&["exec", "s", "--", "sh", "-c", "cat ~/.netrc ~/.aws/key; touch dir/on"]).1, "");
    let mut out = String::new();
    std::io::Read::read_to_string(child.stdout.as_mut().unwrap(), &mut out).unwrap();
    child.wait().unwrap();
    assert_eq!(out, "");
    // For any depth outside of the roots it cannot be held, and so does not run.
    let err = w.fails(125, &["run", "--hide", "~/**/key", "true"]);
    assert!(err.contains("outside of the roots") && err.contains("--root"), "{err}");
}

/// All names beneath a directory but our own, sorted.
fn tree(dir: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut all: Vec<_> = walkdir::WalkDir::new(dir)
        .into_iter()
        .map(|e| e.unwrap().into_path())
        .filter(|p| !p.starts_with(dir.join(".local")))
        .collect();
    all.sort();
    all
}

pub fn a_projects_file_tightens_only() {
    let w = World::new();
    w.write("home/project/.sbx-fuse.toml", "[policy]\nhide = ['**/.env']\n[network]\nforbid = true\n");
    w.write("home/project/dir/.env", "secret\n");
    assert_eq!(w.ok(&["run", "--rm", "--", "ls", "-A", "dir"]), "b.txt\n");
    assert!(w.fails(125, &["run", "--rm", "--net", "true"]).contains("network.forbid"));
    w.write("home/project/.sbx-fuse.toml", "[env]\nclear = true\n\n[policy]\nshow = ['~/.ssh']\n");
    let err = w.fails(125, &["run", "--rm", "true"]);
    assert!(
        err.contains("line 5: a project may not set policy.show") && err.contains("config.toml"),
        "{err}"
    );
    w.write("home/project/.sbx-fuse.toml", "[policy]\nhide = [\n 'a',\n 'b[']\n");
    let err = w.fails(125, &["run", "--rm", "true"]);
    assert!(err.contains("line 4: 'b['"), "{err}");
}

pub fn rules_that_cannot_hold_are_refused_before_a_session_is_there() {
    let w = World::new();
    let mnt = w.at("mnt");
    let mnt = mnt.to_str().unwrap();
    for (rule, why) in [
        (["--hide", "bad["], "is no pattern"),
        (["--deny", "../x/{"], "is no pattern"),
        (["--read-only", ""], "names no path"),
        (["--hide", ""], "names no path"),
        (["--deny", "."], "is a root and cannot be hidden or denied"),
        (["--deny", "/"], "/ as a whole cannot be"),
        (["--read-only", "//"], "/ as a whole cannot be"),
        (["--show", "~/nothing"], "that --show could show"),
        (["--memory", "1"], "no program can run in 1B of memory"),
    ] {
        for (code, args) in [
            (2, [&["new"][..], &rule, &["h"]].concat()),
            (125, [&["run", "-s", "h"][..], &rule, &["--", "true"]].concat()),
            (2, [&["mount", "-s", "h"][..], &rule, &[mnt]].concat()),
        ] {
            let err = w.fails(code, &args);
            assert!(err.contains(why) && err.contains("hint: "), "{args:?}: {err}");
            assert_eq!(w.ok(&["ls"]), "", "{args:?} left a session");
        }
    }
    // One that was there before stays, and keeps what it was allowed.
    w.ok(&["new", "h", "--hide", "x*", "--deny", "~/k", "--read-only", "dir", "--show", "~/.aws"]);
    let before = w.json(&["show", "h", "--json"])["policy"].clone();
    let project = w.at("home/project").canonicalize().unwrap();
    let project = project.to_str().unwrap();
    assert_eq!(before["hide"][0], format!("{project}/x*"));
    assert_eq!((&before["deny"][0], &before["show"][0]), (&"~/k".into(), &"~/.aws".into()));
    w.fails(125, &["run", "-s", "h", "--deny", ".", "--", "true"]);
    assert_eq!(w.json(&["show", "h", "--json"])["policy"], before);
    let text = w.ok(&["show", "h"]);
    let rule = |word: &str, what: &str| format!("{word:<9}  {what}\n");
    for line in [rule("hidden", &format!("{project}/x*")), rule("denied", "~/k"), rule("shown", "~/.aws")] {
        assert!(text.contains(&line), "{line}{text}");
    }
    w.ok(&["exec", "h", "--", "true"]);
    w.ok(&["run", "--rm", "--memory", "16M", "--", "true"]);
}

/// Whoever made the tree chose what lies in it under our name.
pub fn a_projects_file_that_is_none_is_refused_at_once() {
    let w = World::new();
    let at = w.at("home/project/.sbx-fuse.toml");
    let mnt = w.at("mnt");
    let mnt = mnt.to_str().unwrap();
    let refused = |why: &str| {
        for (code, args) in [
            (125, &["run", "--rm", "true"][..]),
            (2, &["mount", "--root", ".", mnt]),
            (125, &["exec", "s", "true"]),
            (2, &["show", "s"]),
        ] {
            // Before this was checked it took all memory, or for ever.
            let script = "ulimit -v 4000000; exec timeout 60 \"$@\"";
            let mut bounded = std::process::Command::new("sh");
            let plain = w.sbx(args);
            bounded.args(["-c", script, "-"]).arg(plain.get_program()).args(plain.get_args());
            bounded.current_dir(w.at("home/project")).env_clear();
            bounded.envs(plain.get_envs().filter_map(|(k, v)| Some((k, v?))));
            let (got, out, err) = said(&bounded.output().unwrap());
            assert!(got == code && err.contains(why) && err.contains("hint: "), "{args:?} {got}: {out}{err}");
        }
    };
    w.ok(&["new", "s"]);
    nix::unistd::mkfifo(&at, nix::sys::stat::Mode::S_IRWXU).unwrap();
    refused(".sbx-fuse.toml: it is a fifo, not a regular file");
    std::fs::remove_file(&at).unwrap();
    std::os::unix::fs::symlink("/dev/zero", &at).unwrap();
    refused(".sbx-fuse.toml: it is a character device, not a regular file");
    std::fs::remove_file(&at).unwrap();
    std::fs::File::create(&at).unwrap().set_len(1 << 40).unwrap();
    refused(".sbx-fuse.toml: it is longer than 1024 KiB");
    std::fs::remove_file(&at).unwrap();
    std::fs::create_dir_all(w.at("home/.config/sbx-fuse/config.toml")).unwrap();
    refused("config.toml: it is a directory, not a regular file");
    let names: Vec<_> =
        w.json(&["ls", "--json"]).as_array().unwrap().iter().map(|r| r["name"].clone()).collect();
    assert_eq!(names, ["s"], "a refused command left a session");
}

pub fn secrets_of_the_environment_are_dropped() {
    let w = World::new();
    let env = |args: &[&str]| {
        let mut command = w.sbx(args);
        command.env("MY_TOKEN", "t").env("MY_COLOR", "c");
        let out = command.output().unwrap();
        assert!(out.status.success(), "{}", out.stderr.escape_ascii());
        String::from_utf8(out.stdout).unwrap()
    };
    // Process 1 of the sandbox must not have it either.
    let script = "env; tr '\\0' '\\n' < /proc/1/environ";
    let out = env(&["run", "--rm", "--", "sh", "-c", script]);
    assert!(
        !out.contains("MY_TOKEN") && out.contains("MY_COLOR=c") && out.contains("SBX_FUSE_SESSION="),
        "{out}"
    );
    let out = env(&["run", "--rm", "--env", "MY_TOKEN", "--env", "X=1", "--", "env"]);
    assert!(out.contains("MY_TOKEN=t\n") && out.contains("X=1\n"), "{out}");
    let out = env(&["run", "--rm", "--env-clear", "--", "env"]);
    assert!(!out.contains("MY_COLOR") && out.contains("HOME="), "{out}");
}

pub fn reserved_roots_are_refused_to_others() {
    let w = World::new();
    w.ok(&["new", "s", "--exclusive"]);
    for root in [".", "dir", ".."] {
        let err = w.fails(4, &["new", "--root", root]);
        assert!(err.contains("session s has"), "{err}");
    }
    std::os::unix::fs::symlink(w.at("home/project/dir"), w.at("home/link")).unwrap();
    w.fails(4, &["new", "--root", "../link"]);
    assert_eq!(w.run(&["run", "-s", "t", "true"]).0, 125);
    w.ok(&["rm", "-y", "s"]);
    w.ok(&["new", "t", "--root", "dir"]);
    w.fails(4, &["new", "u", "--exclusive"]);
    w.ok(&["rm", "-y", "t"]);
    // Of many at once one gets it.
    let all: Vec<_> = (0..8).map(|i| w.start(&["new", &format!("r{i}"), "--exclusive"])).collect();
    let codes: Vec<_> = all.into_iter().map(|mut c| c.wait().unwrap().code().unwrap()).collect();
    assert_eq!(codes.iter().filter(|c| **c == 0).count(), 1, "{codes:?}");
    assert_eq!(codes.iter().filter(|c| **c == 4).count(), 7, "{codes:?}");
}

pub fn overlapping_changes_are_told() {
    let w = World::new();
    w.ok(&["run", "-s", "s", "--", "sh", "-c", "echo s >> a.txt; echo s > s"]);
    assert!(!w.ok(&["status", "-s", "s"]).contains("overlap"));
    w.ok(&["run", "-s", "t", "--", "sh", "-c", "echo t >> a.txt; echo t > t"]);
    let status = w.ok(&["status", "-s", "s"]);
    assert!(status.contains("overlap  session t changed 1 path") && status.contains("a.txt"), "{status}");
    w.ok(&["archive", "t"]);
    let status = w.ok(&["status", "-s", "s"]);
    assert!(status.contains("overlap  archived session t changed 1 path"), "{status}");
    w.ok(&["restore", "t"]);
    let (code, _, err) = w.run(&["apply", "-y", "-s", "s"]);
    assert!(code == 0 && err.contains("session t changed 1 path"), "{code} {err}");
}

/// Each line is a way out; it says its name when it succeeds.
const HOSTILE: &str = r#"
import ctypes, fcntl, os, signal, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def way(name, attempt):
    try:
        r = attempt()
        if r != -1: print(name, flush=True)
    except OSError: pass
state, run, pid, home = sys.argv[1:5]
pid = int(pid)
def push():
    for fd in (0, 1, 2):
        for request in (0x5412, 0x5412 | 1 << 32, 0x541c):
            if libc.syscall(16, fd, ctypes.c_ulong(request), b"x") == 0: return 0
            if ctypes.get_errno() not in (1, 25): return 0
    return -1
way("tiocsti", push)
way("write outside", lambda: open(home + "/outside", "w"))
way("write /usr", lambda: open("/usr/outside", "w"))
way("state", lambda: os.stat(state + "/sessions"))
way("state made anew", lambda: os.listdir(state) or -1)
way("sockets", lambda: os.listdir(run) or -1)
way("kill", lambda: os.kill(pid, 0))
way("ptrace", lambda: libc.ptrace(16, pid, 0, 0))
way("proc of outside", lambda: os.stat("/proc/%d/root" % pid))
way("mount", lambda: libc.mount(b"none", b"/tmp", b"tmpfs", 0, None))
way("remount", lambda: libc.mount(None, b"/", None, 32 | 4096, None))
way("umount root", lambda: libc.umount2(os.getcwd().encode(), 2))
way("chroot", lambda: os.chroot("/tmp"))
way("setuid", lambda: os.setuid(0))
way("open by handle", lambda: libc.syscall(304, 3, b"\0" * 16, 0))
way("sysrq", lambda: open("/proc/sysrq-trigger", "w"))
way("core pattern", lambda: open("/proc/sys/kernel/core_pattern", "w"))
way("network", lambda: socket.create_connection(("127.0.0.1", 22), 1))
way("host abstract sockets", lambda: [l for l in open("/proc/net/unix").read().split("\n")[1:] if "@" in l] or -1)
way("parent of init", lambda: os.listdir("/proc/1/root/root") or -1)
way("new privileges", lambda: libc.prctl(39, 0, 0, 0, 0) == 1 and -1 or 0)
def key():
    # KEYCTL_SEARCH in the session keyring, for what the caller of the sandbox put there.
    return libc.syscall(250, 10, -3, b"user", b"sbx-fuse-test", 0)
way("key of outside", key)
way("ptrace init", lambda: libc.ptrace(16, 1, 0, 0))
def refused(number, *args):
    # Whatever else is wrong with the call: the filter says EPERM before the kernel looks.
    return -1 if libc.syscall(ctypes.c_long(number), *args) == -1 and ctypes.get_errno() == 1 else 0
for number in (425, 426, 427, 321, 298, 323, 1 << 30 | 425, 1 << 30 | 16):
    way("call %d" % number, lambda: refused(number, 0, 0, 0, 0, 0))
def old(number, first, second):
    # As a program of 32 bits calls. In a process of its own, which dies where there is no such way.
    import mmap
    code = mmap.mmap(-1, 4096, prot=7)
    code.write(b"\x53\x89\xf8\x89\xf3\x89\xd1\xcd\x80\x5b\xc3")
    call = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_int] * 3)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
    child = os.fork()
    if not child: os._exit(0 if call(number, first, second) == -1 else 7)
    return 0 if os.waitpid(child, 0)[1] >> 8 == 7 else -1
for number, first, second in ((425, 0, 0), (357, 0, 0), (54, 0, 0x5412), (26, 16, 1)):
    way("old call %d" % number, lambda: old(number, first, second))
def uncover():
    # In namespaces of its own a program has all capabilities; what is mounted stays as it is.
    if libc.unshare(0x10000000 | 0x20000): return -1
    for place in (home, home + "/.config", state, run, "/tmp", "/dev/.sbx-fuse"):
        if libc.umount2(place.encode(), 2) == 0: return 0
    return libc.mount(None, b"/usr", None, 32 | 4096, None)
way("uncover", uncover)
print("done")
"#;

pub fn no_hostile_way_out_succeeds() {
    let w = World::new();
    let (state, run, home) = (w.at("home/.local/state/sbx-fuse"), w.at("run/sbx-fuse"), w.at("home"));
    let pid = std::process::id().to_string();
    let args = [state.to_str().unwrap(), run.to_str().unwrap(), &pid, home.to_str().unwrap()];
    let mut command = vec!["run", "-s", "s", "--", "python3", "-c", HOSTILE];
    command.extend(args);
    // The home lies in a /tmp that is the sandbox's own, and so may be written to there. The caller has a key.
    let with_key = "import ctypes, os, sys\nlibc = ctypes.CDLL(None)\nlibc.syscall(250, 1, None)\n\
                    libc.syscall(248, b'user', b'sbx-fuse-test', b'x', 1, -3)\nos.execv(sys.argv[1], sys.argv[1:])";
    let product = crate::support::product(crate::BUILT);
    let mut keyed = w.sbx(&[]);
    let envs: Vec<_> = keyed.get_envs().filter_map(|(k, v)| Some((k.to_owned(), v?.to_owned()))).collect();
    keyed = std::process::Command::new("python3");
    keyed.args(["-c", with_key]).arg(product).args(&command).env_clear().envs(envs);
    let (code, out, err) = crate::world::said(&keyed.current_dir(w.at("home/project")).output().unwrap());
    assert_eq!(code, 0, "{err}");
    assert_eq!(out.replace("write outside\n", ""), "done\n");
    assert!(!w.at("home/outside").exists());
    // Also a command that joins.
    command.splice(0..3, ["exec", "s"]);
    let out = w.ok(&command);
    assert_eq!(out.replace("write outside\n", ""), "done\n");
    // And where the whole home, with the state directory in it, is a root.
    let mut command = vec!["run", "--rm", "--root", home.to_str().unwrap(), "--", "python3", "-c", HOSTILE];
    command.extend(args);
    let out = w.ok(&command);
    assert_eq!(out.replace("write outside\n", ""), "done\n");
    assert!(!w.at("home/outside").exists());
}
