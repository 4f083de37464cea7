//! Many sessions over one tree at once: each sees its own writes only, costs little, and is accounted exactly.
//!
//! A few in every test run; `scripts/fleet` sets `SBX_FUSE_FLEET` to a hundred and prints what they cost.

use crate::world::{World, said, until};
use std::fs::File;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What is done in session number `$1`, by its number: everything is different in each.
const WORKLOAD: &str = r#"
set -e
n=$1
echo "shared, as $n has it" > shared
for i in $(seq $((n % 7 + 3))); do echo "$n $i" > "own-$n-$i"; done
rm "dir$((n % 8))/file1"
mv "dir$(((n + 1) % 8))" "moved-$n"
echo "more of $n" >> "dir$(((n + 2) % 8))/file2"
mkdir -p "new-$n/deep"
head -c $((n * 1000 + 5000)) /dev/zero > "new-$n/deep/zeros"
ln shared "new-$n/link"
chmod 600 "dir$(((n + 3) % 8))/file3"
"#;

/// All there is to see: names, kinds and modes; of files the link count and content as well.
const MANIFEST: &str = "find . -printf '%P %y %m\\n' | sort; find . -type f -printf '%P %n\\n' | sort; \
                        find . -type f -print0 | sort -z | xargs -0 sha256sum";

struct Member {
    name: String,
    child: Child,
    output: std::path::PathBuf,
}

fn shell(dir: &std::path::Path, script: &str) -> String {
    let mut command = Command::new("bash");
    command.args(["-ec", script]).current_dir(dir).env("LC_ALL", "C").stderr(Stdio::inherit());
    let out = command.output().unwrap();
    assert!(out.status.success(), "{script}");
    String::from_utf8(out.stdout).unwrap()
}

/// A figure in KiB of `/proc/PID/smaps_rollup`.
fn memory(pid: i64, what: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix(what)?.strip_prefix(':'));
    line.and_then(|l| l.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// How many directories a server watches.
fn watches(pid: i64) -> usize {
    let infos = std::fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten().flatten();
    let texts = infos.filter_map(|i| std::fs::read_to_string(i.path()).ok());
    texts.map(|t| t.lines().filter(|l| l.starts_with("inotify ")).count()).sum()
}

pub fn sessions_over_one_tree_are_alone_and_accounted() {
    let asked = std::env::var("SBX_FUSE_FLEET").ok().map(|n| n.parse::<usize>().unwrap());
    let n = asked.unwrap_or(8);
    let w = World::new();
    let project = w.at("home/project");
    shell(
        &project,
        "rm -r dir a.txt; for d in 0 1 2 3 4 5 6 7; do mkdir dir$d; for f in 1 2 3 4 5; do echo $d $f > dir$d/file$f; done; done; echo real > shared",
    );
    let before = shell(&project, MANIFEST);

    let start = Instant::now();
    let mut members: Vec<Member> = Vec::new();
    for i in 0..n {
        let (name, output) = (format!("fleet{i}"), w.at(&format!("out{i}")));
        let script = format!("{WORKLOAD}\n{MANIFEST}\necho READY\nwhile ! [ -e stop ]; do sleep 1; done");
        let mut command =
            w.sbx(&["run", "-s", &name, "--", "bash", "-c", &script, "workload", &i.to_string()]);
        let out = File::create(&output).unwrap();
        let child = command.stderr(out.try_clone().unwrap()).stdout(out).spawn().unwrap();
        members.push(Member { name, child, output });
        // Not more than a few that start at the same time: a person has as many hands as processors.
        if i % 4 == 3 {
            until("they are ready", || members.iter().all(ready));
        }
    }
    w.ok(&["new", "untouched"]);
    until("all are ready", || members.iter().all(ready));
    let started = start.elapsed();

    // Each sees what the same work makes of a copy of its own.
    for (i, member) in members.iter().enumerate() {
        let copy = w.at("copy");
        shell(&w.at("home"), &format!("cp -a project {}", copy.display()));
        shell(&copy, &format!("set -- {i}\n{WORKLOAD}"));
        let want = shell(&copy, MANIFEST) + "READY\n";
        assert_eq!(std::fs::read_to_string(&member.output).unwrap(), want, "{}", member.name);
        std::fs::remove_dir_all(&copy).unwrap();
    }
    assert_eq!(shell(&project, MANIFEST), before, "the real tree was touched");
    for member in &members {
        assert_eq!(
            crate::quota::used(&w, &member.name),
            crate::quota::du(&w, &member.name),
            "{}",
            member.name
        );
    }
    assert_eq!(crate::quota::du(&w, "untouched").1, 1, "an empty upper is one directory");

    if asked.is_some() {
        // Longer than a server waits before it gives memory back.
        std::thread::sleep(Duration::from_secs(50));
    }
    let listed = w.json(&["ls", "--json"]);
    let pids: Vec<i64> = listed.as_array().unwrap().iter().filter_map(|s| s["pid"].as_i64()).collect();
    assert_eq!(pids.len(), n);
    let pss: Vec<u64> = pids.iter().map(|&p| memory(p, "Pss")).collect();
    let own: Vec<u64> = pids.iter().map(|&p| memory(p, "Private_Dirty")).collect();
    assert!(own.iter().all(|&k| k < 8 << 10), "KiB of their own: {own:?}");
    if asked.is_some() {
        report(n, started, &pss, &own, &pids);
        assert!(pss.iter().all(|&k| k < 8 << 10), "KiB: {pss:?}");
    }

    for member in &members {
        w.ok(&["exec", &member.name, "touch", "stop"]);
    }
    for member in members {
        let (code, ..) = said(&member.child.wait_with_output().unwrap());
        assert_eq!(code, 0, "{}: {}", member.name, std::fs::read_to_string(&member.output).unwrap());
        w.ok(&["verify", "-s", &member.name]);
    }
}

fn ready(member: &Member) -> bool {
    std::fs::read_to_string(&member.output).is_ok_and(|t| t.ends_with("READY\n"))
}

fn report(n: usize, started: Duration, pss: &[u64], own: &[u64], pids: &[i64]) {
    let mean = |all: &[u64]| all.iter().sum::<u64>() as f64 / all.len() as f64 / 1024.0;
    let most = |all: &[u64]| all.iter().copied().max().unwrap_or(0) as f64 / 1024.0;
    let watches: usize = pids.iter().map(|&p| watches(p)).sum();
    println!("sessions                      {n}");
    println!(
        "started and workload done     {:.1} s, {:.0} ms each",
        started.as_secs_f64(),
        started.as_secs_f64() * 1000.0 / n as f64
    );
    println!("server, PSS                   {:.2} MiB each, {:.2} at most", mean(pss), most(pss));
    println!("server, its own dirty pages   {:.2} MiB each, {:.2} at most", mean(own), most(own));
    println!("watched directories           {:.1} each", watches as f64 / n as f64);
    println!(
        "1,000 of them                 {:.1} GiB (by PSS), {} watches, 1000 inotify instances",
        mean(pss) * 1000.0 / 1024.0,
        watches * 1000 / n
    );
}
