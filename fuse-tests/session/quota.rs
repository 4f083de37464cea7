//! Quotas: refused before the write, told by statfs, given back, and exact.

use crate::world::World;
use std::process::Command;

/// Bytes and objects of the upper as `du` has them.
pub fn du(w: &World, name: &str) -> (u64, u64) {
    // A file system that allocates late changes its mind about blocks when it writes back.
    assert!(Command::new("sync").arg("-f").arg(w.upper(name)).status().unwrap().success());
    let number = |args: &[&str]| -> u64 {
        let out = Command::new("du").arg("-s").args(args).arg(w.upper(name)).output().unwrap();
        let text = String::from_utf8(out.stdout).unwrap();
        text.split_whitespace().next().unwrap().parse().unwrap()
    };
    (number(&["--block-size=1"]), number(&["--inodes"]))
}

pub fn used(w: &World, name: &str) -> (u64, u64) {
    let show = w.json(&["show", name, "--json"]);
    (show["used"]["bytes"].as_u64().unwrap(), show["used"]["inodes"].as_u64().unwrap())
}

pub fn bytes_are_refused_before_they_are_written() {
    let w = World::new();
    let script = "dd if=/dev/zero of=big bs=64k count=64 2>&1 || true; stat -c %s big; df --output=size,avail -B1 .; \
                  rm big; df --output=avail -B1 . | tail -n1; dd if=/dev/zero of=again bs=64k count=8 2>&1 && echo fits";
    let out = w.ok(&["run", "-s", "s", "--quota-bytes", "1M", "--", "sh", "-c", script]);
    assert!(out.contains("Disk quota exceeded"), "{out}");
    let size: u64 = out.lines().filter_map(|l| l.parse().ok()).next().unwrap();
    assert!((900 << 10..=1 << 20).contains(&size), "{size}: {out}");
    assert!(out.contains("1048576") && out.contains("fits"), "{out}");
    assert!(du(&w, "s").0 <= 1 << 20);
    assert_eq!(used(&w, "s"), du(&w, "s"));
    // It holds after a restart, also for what is copied up.
    let big = vec![1u8; 900 << 10];
    std::fs::write(w.at("home/project/lower"), &big).unwrap();
    let (code, _, err) = w.run(&["exec", "s", "--", "sh", "-c", "echo x | tee -a lower"]);
    assert!(code != 0 && err.contains("Disk quota exceeded"), "{code} {err}");
    w.ok(&["exec", "s", "--", "sh", "-c", "rm again; echo x >> lower"]);
    assert_eq!(used(&w, "s"), du(&w, "s"));
    // The limit can be set anew.
    w.ok(&[
        "run",
        "-s",
        "s",
        "--quota-bytes",
        "4M",
        "--",
        "dd",
        "if=/dev/zero",
        "of=more",
        "bs=1M",
        "count=2",
    ]);
    assert!(w.ok(&["show", "s"]).contains("of 4M"));
}

pub fn inodes_are_limited_and_given_back() {
    let w = World::new();
    // The upper's own directory is one.
    w.ok(&["new", "s", "--quota-inodes", "11"]);
    let make = "for i in 1 2 3 4 5 6 7 8 9 10; do echo > f$i || exit 1; done";
    w.ok(&["exec", "s", "--", "sh", "-c", make]);
    assert_eq!(du(&w, "s").1, 11);
    let (code, _, err) = w.run(&["exec", "s", "--", "sh", "-c", "echo > f11"]);
    assert!(code != 0 && err.contains("quota exceeded"), "{err}");
    assert_ne!(w.run(&["exec", "s", "--", "rm", "a.txt"]).0, 0, "a whiteout is an object");
    w.ok(&["exec", "s", "--", "sh", "-c", "rm f1 && echo > f11 && df --output=iavail . | grep -w 0"]);
    w.ok(&["exec", "s", "--", "sh", "-c", "rm f2 f3 && mkdir d && mv d e && rm a.txt"]);
    assert_eq!(used(&w, "s"), du(&w, "s"));
    w.ok(&["verify", "-s", "s"]);
}

pub fn usage_is_that_of_du_after_a_random_workload() {
    let w = World::new();
    w.ok(&["new", "s", "--quota-bytes", "1M", "--quota-inodes", "70"]);
    for i in 0..40 {
        let size = vec![b'x'; 1000 * i];
        std::fs::write(w.at(&format!("home/project/dir/lower{i}")), size).unwrap();
    }
    let script = r#"import os, random
random.seed(int(os.environ.get("SEED", "1")))
def any_file():
    all = [os.path.join(d, f) for d, _, fs in os.walk(".") for f in fs]
    return random.choice(all) if all else None
full = 0
for i in range(700):
    try:
        op = random.randrange(8)
        name = "n%d" % random.randrange(60)
        if op == 0: os.mkdir("d" + name)
        elif op == 1:
            with open(random.choice([".", "dir"]) + "/" + name, "ab", 0) as f: f.write(os.urandom(random.randrange(60000)))
        elif op == 2 and any_file(): os.unlink(any_file())
        elif op == 3 and any_file(): os.truncate(any_file(), random.randrange(200000))
        elif op == 4 and any_file(): os.rename(any_file(), name)
        elif op == 5 and any_file():
            with open(any_file(), "r+b", 0) as f:
                f.seek(random.randrange(500000)); f.write(b"y" * random.randrange(9000))
        elif op == 6 and any_file(): os.link(any_file(), name)
        elif op == 7 and any_file(): os.chmod(any_file(), 0o640)
    except OSError as e:
        full += e.errno == 122
print(full)
"#;
    for round in ["1", "2", "3"] {
        let out = w.sbx(&["exec", "s", "--", "python3", "-c", script]).env("SEED", round).output().unwrap();
        assert!(out.status.success(), "{}", out.stderr.escape_ascii());
        let refused: u32 = String::from_utf8(out.stdout).unwrap().trim().parse().unwrap();
        assert!(refused > 0, "nothing was refused: the workload is too small");
        let (bytes, inodes) = du(&w, "s");
        assert_eq!(used(&w, "s"), (bytes, inodes), "round {round}");
        assert!(bytes <= 1 << 20 && inodes <= 70, "round {round}: {bytes} {inodes}");
    }
    w.ok(&["verify", "-s", "s"]);
}

pub fn the_configuration_gives_the_default_and_a_mistake_is_told() {
    let w = World::new();
    std::fs::create_dir_all(w.at("home/.config/sbx-fuse")).unwrap();
    w.write("home/.config/sbx-fuse/config.toml", "[quota]\nbytes = \"2M\"\n");
    w.write("home/project/.sbx-fuse.toml", "[quota]\nbytes = \"1M\"\n");
    let out = w.ok(&["run", "-s", "s", "--", "df", "--output=size", "-B1", "."]);
    assert!(out.contains("1048576"), "{out}");
    w.write("home/project/.sbx-fuse.toml", "[policy]\nshow = ['~/.ssh']\n");
    assert!(w.fails(125, &["run", "true"]).contains("only tighten"));
    w.write("home/project/.sbx-fuse.toml", "\n\n[quota]\nbites = 1\n");
    let err = w.fails(125, &["run", "true"]);
    assert!(err.contains(".sbx-fuse.toml, line 4: ") && err.contains("bites"), "{err}");
}
