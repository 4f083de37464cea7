//! The command line: what is refused and how, names and flags of the mount, foreground and background.

use crate::bench::{Bench, text};
use std::process::{Command, Stdio};

pub const TESTS: &[(&str, fn())] = &[
    ("mistakes_are_named_with_what_to_do", mistakes),
    ("the_name_of_the_program_makes_it_the_drop_in", drop_in),
    ("source_and_flags_are_what_mount_shows", mount_shows),
    ("mount_8_calls_it_without_the_command", called_by_mount),
    ("paths_with_colons_commas_and_backslashes", odd_paths),
    ("a_signal_ends_the_foreground", foreground),
    ("a_failure_in_the_background_is_told", told),
    ("hundreds_of_layers", many_layers),
];

fn mistakes() {
    let bench = Bench::new();
    for (options, want) in [
        (
            "lowerdir=l1,bogus=1",
            "sbx-fuse: there is no option bogus=1\nhint: all options: sbx-fuse overlay --help\n",
        ),
        ("lowerdir=l1,uperdir=u", "sbx-fuse: there is no option uperdir=u\nhint: did you mean upperdir?\n"),
        ("ro", "sbx-fuse: the layers below are missing\nhint: -o lowerdir=TOPMOST:…:LOWEST\n"),
        (
            "lowerdir=l1,metacopy=on",
            "sbx-fuse: metacopy=on is not supported\nhint: leave it out, or say metacopy=off\n",
        ),
        (
            "lowerdir=l1,upperdir=u",
            "sbx-fuse: upperdir needs a workdir beside it\n\
             hint: -o workdir=DIR, an empty directory on the same file system\n",
        ),
    ] {
        let out = bench.overlay(&["-o", options, "m"]);
        assert_eq!(text(&out.stderr).replace("error: ", ""), want);
        assert_eq!(out.status.code(), Some(2), "{options}");
    }
    let out = bench.overlay(&["-o", "lowerdir=l1"]);
    assert_eq!(out.status.code(), Some(2));
    // Told before anything is made in one of them.
    bench.shell("mkdir u/w w/u; ln -s u/w link");
    for (upper, work) in [("u", "u"), ("u", "u/w"), ("w/u", "w"), ("u", "link"), ("u", "./u/../u")] {
        let out = bench.overlay(&["-o", &format!("lowerdir=l1,upperdir={upper},workdir={work}"), "m"]);
        let want = format!(
            "upperdir {upper} and workdir {work} are not apart\nhint: give an empty directory beside"
        );
        assert!(text(&out.stderr).contains(&want), "{}", text(&out.stderr));
        assert_eq!(out.status.code(), Some(2), "{upper} {work}");
    }
    assert_eq!(bench.shell("ls -A u w u/w w/u"), "u:\nw\n\nu/w:\n\nw:\nu\n\nw/u:\n");
}

fn drop_in() {
    let bench = Bench::new();
    bench.shell("echo low >l1/f");
    let run = |args: &[&str]| {
        Command::new(bench.drop_in()).args(args).current_dir(bench.at("")).output().expect("the product runs")
    };
    let version = run(&["--version"]);
    assert!(version.status.success(), "{}", text(&version.stderr));
    let out = run(&["-olowerdir=l1,upperdir=u,workdir=w", "m"]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert_eq!(bench.shell("cat m/f"), "low\n");
    assert!(bench.shell("grep $PWD/m /proc/mounts").starts_with("fuse-overlayfs "));
    assert!(bench.shell("grep $PWD/m /proc/mounts").contains(" fuse.fuse-overlayfs "));
}

fn mount_shows() {
    let bench = Bench::new();
    let line = |args: &[&str]| {
        let out = bench.overlay(args);
        assert!(out.status.success(), "{}", text(&out.stderr));
        let line = bench.shell("grep $PWD/m /proc/mounts");
        bench.shell("umount m 2>/dev/null || fusermount3 -u m");
        line
    };
    let up = "lowerdir=l1,upperdir=u,workdir=w";
    let plain = line(&["-o", up, "m"]);
    assert!(plain.starts_with("sbx-fuse ") && plain.contains(" fuse.sbx-fuse rw,nosuid,nodev,"), "{plain}");
    let both = line(&["the-source", "m", "-o", &format!("{up},noexec,sync")]);
    assert!(both.starts_with("the-source ") && both.contains("noexec") && both.contains("sync"), "{both}");
    let named = line(&["the-source", "m", "-o", &format!("{up},fsname=other,ro")]);
    assert!(named.starts_with("other ") && named.contains(" ro,"), "{named}");
    let read_only = line(&["-o", "lowerdir=l1", "m"]);
    assert!(read_only.contains(" ro,"), "{read_only}");
}

fn called_by_mount() {
    let bench = Bench::new();
    let out = Command::new(crate::support::product(crate::BUILT))
        .args(["the-source", "m", "-o", "rw,lowerdir=l1,upperdir=u,workdir=w"])
        .current_dir(bench.at(""))
        .output()
        .expect("the product runs");
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert!(bench.shell("grep $PWD/m /proc/mounts").starts_with("the-source "));
}

fn odd_paths() {
    let bench = Bench::new();
    bench.shell(r"mkdir 'a:b' 'c,d' 'e\f' 'u,:p'; echo 1 >a:b/1; echo 2 >c,d/2; echo 3 >'e\f/3'");
    bench.mounted(r"lowerdir=a\:b:c\,d:e\\f,upperdir=u\,:p,workdir=w", |_| {
        assert_eq!(bench.shell("cat m/1 m/2 m/3; echo 4 >m/4"), "1\n2\n3\n");
    });
    assert_eq!(bench.shell("cat 'u,:p/4'"), "4\n");
}

fn foreground() {
    let bench = Bench::new();
    let mut server = Command::new(bench.drop_in())
        .args(["-f", "-o", "lowerdir=l1,upperdir=u,workdir=w", "m"])
        .current_dir(bench.at(""))
        .stdout(Stdio::null())
        .spawn()
        .expect("the product runs");
    bench.shell("for i in $(seq 500); do grep -q $PWD/m /proc/mounts && exit 0; sleep 0.01; done; exit 1");
    bench.shell("echo x >m/x; rm m/x");
    bench.shell(&format!("kill -TERM {}", server.id()));
    assert!(server.wait().expect("it ends").success());
    assert_eq!(bench.shell("grep -c $PWD/m /proc/mounts || true"), "0\n");
}

fn told() {
    let bench = Bench::new();
    let out = bench.overlay(&["-o", "lowerdir=l1:nowhere", "m"]);
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).contains("nowhere"), "{}", text(&out.stderr));
}

fn many_layers() {
    let bench = Bench::new();
    bench.shell(
        "for i in $(seq 300); do mkdir -p many/$i/d; echo $i >many/$i/d/$i; echo $i >many/$i/same; done",
    );
    let all = (1..=300).map(|i| format!("many/{i}")).collect::<Vec<_>>().join(":");
    bench.mounted(&format!("lowerdir={all},upperdir=u,workdir=w"), |_| {
        assert_eq!(bench.shell("ls m/d | wc -l; cat m/same m/d/300; rm m/same; ls m"), "300\n1\n300\nd\n");
    });
}
