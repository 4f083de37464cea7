//! Memory, processes and processor time, whichever way this machine lets us limit them.

use crate::world::World;

/// Takes so many MiB, and says so.
const TAKE: &str = "import sys; b = bytearray(int(sys.argv[1]) << 20); print('got it')";

/// Starts so many processes at a time, and says how many there were.
const START: &str = "
import os, signal, sys
n, got = int(sys.argv[1]), []
for i in range(n):
    try: pid = os.fork()
    except OSError: break
    if pid == 0: signal.pause()
    got.append(pid)
print(len(got))
for pid in got: os.kill(pid, 9); os.waitpid(pid, 0)
";

pub fn memory_and_processes_are_limited() {
    let w = World::new();
    let take = |mib: &str| w.run(&["exec", "s", "--", "python3", "-c", TAKE, mib]);
    let start =
        |n: &str| w.ok(&["exec", "s", "--", "python3", "-c", START, n]).trim().parse::<u32>().unwrap();
    w.ok(&["new", "s", "--memory", "400M", "--pids", "20"]);
    let (code, out, err) = take("40");
    assert_eq!((code, out.as_str()), (0, "got it\n"), "{err}");
    assert!(err.contains("limited to 400M of memory, 20 processes"), "{err}");
    assert!(
        err.contains("control group") || err.contains("by rlimits, memory for each process alone"),
        "{err}"
    );
    let (code, out, err) = take("1000");
    assert!(code != 0 && out.is_empty(), "{code} {out} {err}");
    assert_eq!(start("10"), 10);
    assert_eq!(start("60"), 19, "python itself is the 20th");
    // Two at once have a limit each.
    let show = w.json(&["show", "s", "--json"]);
    assert_eq!(
        (&show["limits"]["memory"], &show["limits"]["pids"]),
        (&(400 << 20).into(), &20.into()),
        "{show}"
    );
    assert!(w.ok(&["show", "s"]).contains("400M of memory, 20 processes"));
    w.fails(2, &["new", "t", "--pids", "0"]);
}

pub fn processor_time_is_limited_or_refused() {
    let w = World::new();
    let (code, out, err) = w.run(&["run", "-s", "s", "--cpus", "0.5", "--", "echo", "runs"]);
    if code == 0 {
        assert!(out == "runs\n" && err.contains("0.5 processors for all processes together"), "{out}{err}");
    } else {
        assert!(
            code == 125 && out.is_empty() && err.contains("hint: where systemd runs"),
            "{code} {out}{err}"
        );
        assert!(w.json(&["ls", "--json"]).as_array().unwrap().is_empty(), "a session for nothing was left");
    }
    w.fails(2, &["new", "t", "--cpus", "none"]);
}

pub fn the_configuration_limits_and_a_project_can_only_lower() {
    let w = World::new();
    std::fs::create_dir_all(w.at("home/.config/sbx-fuse")).unwrap();
    w.write("home/.config/sbx-fuse/config.toml", "[limits]\nmemory = \"500M\"\npids = 50\n");
    w.write("home/project/.sbx-fuse.toml", "[limits]\nmemory = \"900M\"\npids = 30\n");
    let (code, _, err) = w.run(&["run", "--", "true"]);
    assert!(code == 0 && err.contains("500M of memory, 30 processes"), "{code} {err}");
}
