//! Signals to a running command and from it: what ends, what goes on, and that nothing is lost.

use crate::world::{World, said, until};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A command that writes `began` and waits; `script` comes first.
fn begun(script: &str) -> String {
    format!("{script}\necho 1 > began; while :; do sleep 0.05; done")
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).unwrap())
}

/// Starts the program in a process group of its own, with the signals as a shell in a terminal has them.
fn start(w: &World, args: &[&str]) -> Child {
    let mut command = w.sbx(args);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    command.spawn().unwrap()
}

/// bwrap's process that `run` waits for.
fn bwrap_of(run: &Child) -> Pid {
    let run = run.id().to_string();
    let out = Command::new("ps").args(["--ppid", &run, "-o", "pid=,comm="]).output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    let line = text.lines().find(|l| l.ends_with("bwrap")).unwrap();
    Pid::from_raw(line.split_whitespace().next().unwrap().parse().unwrap())
}

/// Nobody may take the end of bwrap for a sandbox that was never made: the session has what the command wrote.
pub fn a_session_stays_however_its_command_is_ended() {
    for (signal, to, code) in [
        (Signal::SIGTERM, "group", 143),
        (Signal::SIGHUP, "group", 129),
        (Signal::SIGINT, "group", 130),
        (Signal::SIGINT, "pid", 130),
        (Signal::SIGQUIT, "pid", 131),
        (Signal::SIGTERM, "bwrap", 143),
        (Signal::SIGKILL, "bwrap", 137),
    ] {
        let w = World::new();
        let child = start(&w, &["run", "-s", "s", "--", "sh", "-c", &begun("")]);
        until("it began", || w.has("s", "began"));
        match to {
            "group" => killpg(pid(&child), signal).unwrap(),
            "pid" => kill(pid(&child), signal).unwrap(),
            _ => kill(bwrap_of(&child), signal).unwrap(),
        }
        let (got, out, err) = said(&child.wait_with_output().unwrap());
        assert_eq!(got, code, "{signal} to {to}: {out}{err}");
        assert_eq!(w.ok(&["changes", "-s", "s"]), "A began\n", "{signal} to {to}");
        w.ok(&["verify", "-s", "s"]);
    }
}

/// The whole group is told, as timeout(1) and a closing terminal do; the command has its say all the same.
pub fn a_command_may_handle_what_its_whole_group_is_sent() {
    let all = [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT];
    for signal in all.into_iter().chain([Signal::SIGUSR1, Signal::SIGUSR2]) {
        let w = World::new();
        let name = signal.as_str().trim_start_matches("SIG");
        let script = begun(&format!("trap 'echo 1 > handled; exit 33' {name}"));
        let child = start(&w, &["run", "-s", "s", "--", "sh", "-c", &script]);
        until("it began", || w.has("s", "began"));
        killpg(pid(&child), signal).unwrap();
        assert_eq!(said(&child.wait_with_output().unwrap()).0, 33, "{signal}");
        assert_eq!(w.ok(&["changes", "-s", "s"]), "A began\nA handled\n", "{signal}");
    }
}

/// kill(2) of process 0 means the process group, and knows nothing of process namespaces.
pub fn a_command_signals_nothing_outside() {
    let w = World::new();
    w.ok(&["new", "s"]);
    for (run, code) in [("run -s s", 137), ("exec s", 137)] {
        // The script around it is in the group that the program is started in.
        let script = format!("\"$0\" {run} -- sh -c 'echo 1 > wrote; kill -9 0'; echo \"went on after $?\"");
        let program = crate::support::product(crate::BUILT);
        let mut command = Command::new("sh");
        let as_given = w.sbx(&[]);
        let env = as_given.get_envs().filter_map(|(k, v)| Some((k, v?)));
        command.env_clear().envs(env).current_dir(w.at("home/project"));
        let out = command.arg("-c").arg(&script).arg(program).process_group(0).output().unwrap();
        let (got, out, err) = said(&out);
        assert_eq!((got, out.as_str()), (0, format!("went on after {code}\n").as_str()), "{run}: {err}");
    }
    assert_eq!(w.ok(&["changes", "-s", "s"]), "A wrote\n");
}

/// At whatever moment of its beginning: nothing of it stays, and nothing is waited for in vain.
pub fn a_signal_at_the_beginning_leaves_nothing() {
    for round in 0..24u64 {
        let w = World::new();
        let signal = [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT][usize::try_from(round % 3).unwrap()];
        let child = start(&w, &["run", "--rm", "--", "sleep", "1000"]);
        // Not synchronisation: the point is to meet it anywhere. The first few milliseconds are those of the loader,
        // before any code of ours.
        until("it is the program", || catches(&child, signal));
        std::thread::sleep(Duration::from_millis(round * 3));
        if round % 2 == 0 {
            killpg(pid(&child), signal).unwrap();
        } else {
            kill(pid(&child), signal).unwrap();
        }
        // Its output has an end only when all that has it has ended.
        let (code, out, err) = said(&child.wait_with_output().unwrap());
        assert_eq!(code, 128 + signal as i32, "{signal} in round {round}: {out}{err}");
        assert_eq!(w.ok(&["ls"]), "", "{signal} in round {round}: {err}");
    }
}

/// Whether the program catches `signal` already.
fn catches(child: &Child, signal: Signal) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let caught = status.lines().find_map(|l| l.strip_prefix("SigCgt:")).unwrap_or("0");
    u64::from_str_radix(caught.trim(), 16).unwrap() & (1 << (signal as i32 - 1)) != 0
}

/// A server that answers nobody is told, and is ended when that is asked for.
pub fn a_suspended_session_is_told_and_can_be_stopped() {
    let w = World::new();
    let child = start(&w, &["run", "-s", "s", "--", "sh", "-c", &begun("")]);
    until("it began", || w.has("s", "began"));
    kill(pid(&child), Signal::SIGSTOP).unwrap();
    until("it is stopped", || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        stat.contains(") T ")
    });
    let told = format!("session s is suspended: its server, process {}, is stopped", child.id());
    for command in [&["changes", "-s", "s"][..], &["diff", "-s", "s"], &["umount", "s"]] {
        let err = w.fails(4, command);
        assert!(err.contains(&told) && err.contains("sbx-fuse stop s"), "{command:?}: {err}");
    }
    assert!(w.fails(125, &["exec", "s", "true"]).contains(&told));
    w.ok(&["stop", "--grace", "5", "s"]);
    let (code, out, err) = said(&child.wait_with_output().unwrap());
    assert_eq!(code, 143, "{out}{err}");
    assert_eq!(w.ok(&["changes", "-s", "s"]), "A began\n");
}

/// Through a terminal, which script(1) makes: the command reads it and gets its Ctrl-C.
pub fn a_command_has_the_terminal() {
    let w = World::new();
    let inside = "read word; echo $word > began; while :; do sleep 0.05; done";
    let line = format!("'{}' run -s s -- sh -c '{inside}'", crate::support::product(crate::BUILT).display());
    let mut script = Command::new("script");
    let as_given = w.sbx(&[]);
    script.env_clear().envs(as_given.get_envs().filter_map(|(k, v)| Some((k, v?))));
    script.args(["-qec", &line, "/dev/null"]).current_dir(w.at("home/project"));
    let mut script = script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut keys = script.stdin.take().unwrap();
    keys.write_all(b"typed\n").unwrap();
    until("it read", || w.has("s", "began"));
    keys.write_all(b"\x03").unwrap();
    let (code, out, _) = said(&script.wait_with_output().unwrap());
    assert_eq!(code, 130, "{out}");
    assert_eq!(w.ok(&["exec", "s", "cat", "began"]), "typed\n");
}
