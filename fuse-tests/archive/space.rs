//! Where the space is, and what may go.

use crate::Case;
use crate::world::{World, good};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

pub const CASES: &[Case] = &[
    ("usage_is_what_du_says", usage),
    ("gc_takes_the_old_and_then_the_largest", order),
    ("gc_keeps_what_is_in_use_or_not_applied", keeps),
    ("gc_honours_the_time_to_live", ttl),
    ("gc_clears_what_crashes_left", leftovers),
    ("bad_amounts_are_told", amounts),
];

/// A session without changes that takes this many KiB: what it wrote was applied, what it holds is ballast.
fn idle(w: &World, name: &str, kib: u64) {
    w.sbx(&["run", "-s", name, "true"]);
    let log = w.session("state", name).join("ballast");
    std::fs::write(log, vec![7; usize::try_from(kib).unwrap() << 10]).unwrap();
}

fn json(w: &World, args: &[&str]) -> Value {
    serde_json::from_slice(&w.on("state", args).stdout).expect("JSON")
}

fn names(v: &Value) -> Vec<&str> {
    v.as_array().unwrap().iter().map(|i| i["name"].as_str().unwrap()).collect()
}

/// Makes a session look unused for so long.
fn age(w: &World, name: &str, hours: u32) {
    w.shell(&format!("touch -d '{hours} hours ago' ../state/sbx-fuse/sessions/{name}/journal/log"));
}

/// Tolerance: none, for the session's directory; an archive is added as `du` says.
fn usage() {
    let w = World::new();
    w.bash("a", "head -c 3000000 /dev/urandom > big; truncate -s 1G hole; ln big big2; ln f3 f9; rm f1; echo x >> h1; \
         for i in $(seq 300); do mkdir -p n/$((i % 7)); echo $i > n/$((i % 7))/$i; done");
    w.bash("b", "echo b > b");
    let du = |path: &str| -> u64 {
        w.shell(&format!("du -s --block-size=1 ../state/sbx-fuse/{path} | cut -f1")).trim().parse().unwrap()
    };
    let v = json(&w, &["usage", "--json"]);
    for (i, name) in ["a", "b"].iter().enumerate() {
        let row = &v["sessions"][i];
        assert_eq!(row["name"], *name);
        assert_eq!(row["total"].as_u64().unwrap(), du(&format!("sessions/{name}")), "{row}");
        let parts = ["upper", "layers", "journal", "bases", "originals", "archive", "other"];
        assert_eq!(
            parts.iter().map(|p| row[p].as_u64().unwrap()).sum::<u64>(),
            row["total"].as_u64().unwrap()
        );
    }
    let a = &v["sessions"][0];
    assert!(a["upper"].as_u64().unwrap() > 3_000_000 && a["upper"].as_u64().unwrap() < 9_000_000, "{a}");
    assert!(a["journal"].as_u64().unwrap() > 0 && a["bases"].as_u64().unwrap() > 0, "{a}");
    w.sbx(&["archive", "a"]);
    let v = json(&w, &["usage", "--json"]);
    let a = &v["sessions"][0];
    assert_eq!(a["archive"].as_u64().unwrap(), du("archives/a.tar.zst"));
    assert_eq!(a["total"].as_u64().unwrap(), du("archives/a.tar.zst") + du("sessions/a"));
    let sum: u64 = (0..2).map(|i| v["sessions"][i]["total"].as_u64().unwrap()).sum();
    assert_eq!(v["total"].as_u64().unwrap(), sum);
    let table = w.sbx(&["usage"]);
    let last = table.lines().last().unwrap();
    assert!(last.starts_with("total") && last.ends_with("MiB"), "{table}");
}

fn order() {
    let w = World::new();
    for (name, kib) in [("old", 10), ("small", 20), ("large", 400), ("middle", 200)] {
        idle(&w, name, kib);
    }
    age(&w, "old", 30);
    let seen = json(&w, &["gc", "-n", "--json", "--older-than", "24h", "--max-total", "400KiB"]);
    assert_eq!(names(&seen["removed"]), ["large", "old"]);
    assert_eq!(seen["dry_run"], true);
    assert_eq!(w.entries("state").len(), 4, "a dry run does nothing");
    let done = json(&w, &["gc", "--json", "--older-than", "24h"]);
    assert_eq!(names(&done["removed"]), ["old"]);
    let done = json(&w, &["gc", "--json", "--max-total", "400KiB"]);
    assert_eq!(names(&done["removed"]), ["large"]);
    assert_eq!(w.entries("state"), ["middle", "small"]);
    let total = json(&w, &["usage", "--json"])["total"].as_u64().unwrap();
    assert_eq!(done["after"].as_u64().unwrap(), total);
    assert_eq!(names(&json(&w, &["gc", "--json", "--max-total", "1G"])["removed"]), [""; 0]);
}

fn keeps() {
    let w = World::new();
    idle(&w, "idle", 10);
    w.bash("work", "echo more >> f1");
    w.bash("packed", "echo more >> f1");
    w.sbx(&["archive", "packed"]);
    let mut busy = Busy::start(&w);
    // What cannot be brought below the total is told by the exit code.
    let out = w.on("state", &["gc", "--json", "--max-total", "0"]);
    assert_eq!(out.status.code(), Some(1));
    let v: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(names(&v["removed"]), ["idle"]);
    let mut kept = names(&v["kept"]);
    kept.sort_unstable();
    assert_eq!(kept, ["busy", "packed", "work"]);
    assert_eq!(w.sbx(&["changes", "-s", "work"]), "M f1\n");
    let v = json(&w, &["gc", "--json", "--yes", "--older-than", "0s"]);
    let mut removed = names(&v["removed"]);
    removed.sort_unstable();
    assert_eq!(removed, ["packed", "work"]);
    assert_eq!(names(&v["kept"]), ["busy"], "one in use is kept, whatever was said");
    assert_eq!(w.entries("state"), ["busy"], "the archive goes with its session");
    busy.stop();
}

/// A session that runs until its input ends.
struct Busy(std::process::Child);

impl Busy {
    fn start(w: &World) -> Busy {
        let mut command: Command =
            w.program("state", &["run", "-s", "busy", "--", "sh", "-c", "echo up; cat"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "up\n");
        Busy(child)
    }

    fn stop(&mut self) {
        drop(self.0.stdin.take());
        self.0.wait().unwrap();
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.stop();
    }
}

fn ttl() {
    let w = World::new();
    for (name, ttl) in [("short", "1ns"), ("long", "30d")] {
        w.sbx(&["run", "-s", name, "--", "sh", "-c", "echo more >> f1"]);
        w.sbx(&["archive", name, "--ttl", ttl]);
    }
    w.bash("away", "echo more >> f1");
    w.sbx(&["archive", "away", "--ttl", "1ns", "-o", "../away.tar.zst"]);
    // Without limits only what is past its time goes, also where a person put it.
    let v = json(&w, &["gc", "--json"]);
    assert_eq!(names(&v["removed"]), ["away", "short"]);
    assert_eq!(w.entries("state"), ["long", "long.tar.zst"]);
    assert!(w.at("away.tar.zst").symlink_metadata().is_err());
    // An archive that no session refers to is judged as well.
    w.shell("cp -p ../state/sbx-fuse/archives/long.tar.zst ../state/sbx-fuse/archives/stray.tar.zst");
    let v = json(&w, &["gc", "--json", "--max-total", "0"]);
    assert_eq!(v["kept"].as_array().unwrap().len(), 2, "{v}");
}

fn leftovers() {
    let w = World::new();
    idle(&w, "s", 1);
    w.shell(
        "cd ../state/sbx-fuse; mkdir -p archives sessions/{.trash-x,.restore-1/a,.stub-2,.new-3,.restore-young,.restore-killed}; \
         echo x > sessions/.restore-1/a/b; echo x > archives/.s.tar.zst.00.part; touch archives/.young.00.part; \
         echo x > archives/.killed.00.part; echo '{}' > sessions/.restore-killed/lock; touch sessions/.restore-young/lock; \
         chmod 0 sessions/.restore-1/a; \
         touch -d '1 hour ago' sessions/{.restore-1,.stub-2,.new-3} archives/.s.tar.zst.00.part",
    );
    // What its maker has written to and does not hold any more is nobody's, however young.
    let said = |args: &[&str]| String::from_utf8(w.on("state", args).stdout).unwrap();
    assert!(said(&["usage"]).contains("(left by crashes)"));
    assert!(said(&["doctor"]).contains(".restore-killed"));
    let v = json(&w, &["gc", "--json"]);
    assert_eq!(v["removed"].as_array().unwrap().len(), 7, "{v}");
    assert_eq!(w.entries("state"), [".restore-young", ".young.00.part", "s"]);
}

fn amounts() {
    let w = World::new();
    for args in [
        &["gc", "--older-than", "24"][..],
        &["gc", "--older-than", "soon"],
        &["gc", "--max-total", "much"],
        &["gc", "--max-total", "-1G"],
        &["archive", "--ttl", "1 lightyear"],
    ] {
        assert!(w.fails(2, args).contains("write it like") || args.contains(&"-1G"), "{args:?}");
    }
    good(&w.on("empty", &["gc", "--older-than", "1s", "--max-total", "0"]));
    assert_eq!(w.entries("empty"), Vec::<String>::new());
    assert!(w.at("empty").symlink_metadata().is_err(), "looking made something");
}
