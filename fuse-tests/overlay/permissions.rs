//! `xattr_permissions`: owner, mode and type in an attribute instead of in the object.

use crate::bench::Bench;
use sbx_fuse::base::{Attr, Errno, Kind, Name, SetAttr};
use sbx_fuse::layer::{LayerKind, StatXattr, probe};
use sbx_fuse::sys::file;
use sbx_fuse::union::{
    Caller, Config, LayerConfig, NodeId, ROOT_ID, RootConfig, Stats, Union, UpperConfig, View,
};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

pub const TESTS: &[(&str, fn())] = &[
    ("owner_and_mode_are_in_the_attribute_alone", set_and_seen),
    ("what_is_made_is_its_makers_whoever_the_server_is", made),
    ("fifos_sockets_and_devices_need_no_privilege", special),
    ("layers_of_container_tools_are_read_and_copied_up", layers),
    ("marked_layers_are_known_without_the_option", marked),
    ("the_attribute_is_nobodys_to_see_or_set", hidden),
    ("a_write_takes_set_uid_out_of_the_attribute", set_uid),
    ("only_root_has_the_privileged_attribute", privileged),
    ("xattr_permissions_lasts_over_a_mount", mounted),
];

/// Those that see something else when root does them.
pub const AS_ROOT_TOO: &[&str] =
    &["only_root_has_the_privileged_attribute", "xattr_permissions_lasts_over_a_mount"];

const ME: Caller = Caller { uid: 7, gid: 8, pid: 0, umask: 0o022 };

fn open(bench: &Bench, name: &str) -> OwnedFd {
    file::open_path(bench.at(name).as_os_str().as_bytes(), libc::O_PATH).unwrap()
}

/// A union of the bench's `l1` and `l2` with `u` above.
fn union(bench: &Bench, stats: Stats) -> Arc<Union> {
    let work = open(bench, "w");
    let features = probe(work.as_fd()).unwrap();
    let root = RootConfig {
        name: Name::new(b"x").unwrap(),
        real_path: b"/x".to_vec(),
        upper: Some(UpperConfig { dir: open(bench, "u"), work, features, shared: true }),
        lowers: ["l1", "l2"].map(|l| LayerConfig { dir: open(bench, l), kind: LayerKind::Overlay }).into(),
    };
    Union::new(Config {
        roots: vec![root],
        single: true,
        hidden: Vec::new(),
        journal: None,
        multi_user: false,
        view: View { stats, ..View::default() },
    })
    .unwrap()
}

const USER: Stats = Stats::Kept(StatXattr::User);

fn id(union: &Union, name: &str) -> NodeId {
    union.lookup(ROOT_ID, name.as_bytes()).unwrap().id
}

fn seen(union: &Union, name: &str) -> (u32, u32, u32) {
    let attr = union.lookup(ROOT_ID, name.as_bytes()).unwrap().attr;
    (attr.uid, attr.gid, attr.mode())
}

fn chown(uid: u32, gid: u32) -> SetAttr {
    SetAttr { uid: Some(uid), gid: Some(gid), ..SetAttr::default() }
}

fn chmod(perm: u32) -> SetAttr {
    SetAttr { perm: Some(perm), ..SetAttr::default() }
}

fn set(union: &Union, name: &str, set: &SetAttr) -> Attr {
    union.setattr(&Caller::default(), id(union, name), set).unwrap().0
}

/// What is on disk: type, owner is ours, mode; and the attribute.
fn disk(bench: &Bench, path: &str) -> String {
    bench.shell(&format!(
        "[ $(stat -c %u {path}) = $(id -u) ]; stat -c '%F %a' {path}
         getfattr -h --absolute-names --only-values -n user.containers.override_stat {path}"
    ))
}

fn set_and_seen() {
    let bench = Bench::new();
    bench.shell("umask 022; echo x >l1/f; mkdir l1/d; echo y >l1/g");
    let first = union(&bench, USER);
    let attr = set(&first, "f", &chown(5, 6));
    assert_eq!((attr.uid, attr.gid, attr.perm), (5, 6, 0o644));
    assert_eq!(set(&first, "f", &chmod(0o4000)).perm, 0o4000);
    set(&first, "d", &SetAttr { perm: Some(0o1777), ..chown(0, 0) });
    first.rename(&ME, ROOT_ID, b"f", id(&first, "d"), b"moved", 0).unwrap();
    first.link(&ME, id(&first, "g"), ROOT_ID, b"h").unwrap();
    set(&first, "h", &chown(0, 0));
    drop(first);
    // Nothing of it is on the disk, and none but the owner reads what he made unreadable.
    assert_eq!(disk(&bench, "u/d/moved"), "regular file 600\n5:6:4000");
    assert_eq!(disk(&bench, "u/d"), "directory 700\n0:0:1777");
    let again = union(&bench, USER);
    let moved = again.lookup(id(&again, "d"), b"moved").unwrap().attr;
    assert_eq!((moved.uid, moved.gid, moved.mode()), (5, 6, 0o104_000));
    assert_eq!(seen(&again, "d"), (0, 0, 0o041_777));
    assert_eq!(seen(&again, "g"), (0, 0, 0o100_644));
    let mut listed = Vec::new();
    again
        .readdir(ROOT_ID, 0, true, |item| {
            listed.push((item.name.to_vec(), item.attr.uid));
            true
        })
        .unwrap();
    listed.retain(|(name, _)| !name.starts_with(b"."));
    listed.sort();
    assert_eq!(listed, [(b"d".to_vec(), 0), (b"g".to_vec(), 0), (b"h".to_vec(), 0)]);
    // As chown(2): it takes set-uid away.
    let id = moved.ino;
    assert_eq!(again.setattr(&ME, id, &chown(9, 9)).unwrap().0.mode(), 0o100_000);
}

fn made() {
    let bench = Bench::new();
    bench.shell("umask 022; echo x >l1/gone; chmod 755 u");
    let first = union(&bench, USER);
    let attr = first.mknod(&ME, ROOT_ID, b"f", libc::S_IFREG | 0o666, 0).unwrap().attr;
    assert_eq!((attr.uid, attr.gid, attr.mode()), (7, 8, 0o100_644));
    first.write(&ME, attr.ino, 0, b"content").unwrap();
    let dir = first.mkdir(&ME, ROOT_ID, b"d", 0o777).unwrap();
    assert_eq!((dir.attr.uid, dir.attr.gid, dir.attr.mode()), (7, 8, 0o040_755));
    // What is made in a directory with set-gid has its group, and a directory passes it on.
    set(&first, "d", &SetAttr { perm: Some(0o2777), ..chown(1, 99) });
    let below = first.mkdir(&ME, dir.id, b"below", 0o700).unwrap().attr;
    assert_eq!((below.uid, below.gid, below.mode()), (7, 99, 0o042_700));
    first.unlink(&ME, ROOT_ID, b"gone").unwrap();
    let over = first.mknod(&ME, ROOT_ID, b"gone", libc::S_IFREG | 0o600, 0).unwrap().attr;
    assert_eq!((over.uid, over.gid, over.mode()), (7, 8, 0o100_600));
    drop(first);
    assert_eq!(disk(&bench, "u/f"), "regular file 600\n7:8:0644");
    assert_eq!(disk(&bench, "u/gone"), "regular empty file 600\n7:8:0600");
    let again = union(&bench, USER);
    assert_eq!(seen(&again, "f"), (7, 8, 0o100_644));
    assert_eq!(seen(&again, "d"), (1, 99, 0o042_777));
    let mut content = Vec::new();
    again.read(id(&again, "f"), 0, 10, &mut content).unwrap();
    assert_eq!(content, b"content");
}

fn special() {
    let bench = Bench::new();
    bench.shell("mkfifo -m 640 l1/low");
    let first = union(&bench, USER);
    let make = |name: &[u8], mode, rdev| first.mknod(&ME, ROOT_ID, name, mode, rdev).unwrap().attr;
    let (null, disk_1) = (libc::makedev(1, 3), libc::makedev(8, 1));
    make(b"fifo", libc::S_IFIFO | 0o666, 0);
    make(b"socket", libc::S_IFSOCK | 0o777, 0);
    make(b"null", libc::S_IFCHR | 0o666, null);
    assert_eq!(make(b"sda1", libc::S_IFBLK | 0o660, disk_1).rdev, disk_1);
    assert_eq!(set(&first, "low", &chown(0, 5)).mode(), 0o010_640);
    assert_eq!(set(&first, "null", &chmod(0o666)).mode(), 0o020_666);
    // A symlink can have no attribute of a user's.
    first.symlink(&ME, ROOT_ID, b"link", b"target").unwrap();
    let refused = first.setattr(&Caller::default(), id(&first, "link"), &chown(0, 0)).map(drop);
    assert!(nix::unistd::geteuid().is_root() || refused == Err(Errno::EPERM), "{refused:?}");
    drop(first);
    assert_eq!(disk(&bench, "u/null"), "regular empty file 600\n7:8:0666:char-1-3");
    assert_eq!(disk(&bench, "u/low"), "regular empty file 600\n0:5:0640:pipe");
    let again = union(&bench, USER);
    assert_eq!(seen(&again, "fifo"), (7, 8, 0o010_644));
    assert_eq!(seen(&again, "socket"), (7, 8, 0o140_755));
    let entry = again.lookup(ROOT_ID, b"null").unwrap().attr;
    assert_eq!((entry.kind, entry.rdev, entry.size), (Kind::Char, null, 0));
    again.rename(&ME, ROOT_ID, b"sda1", ROOT_ID, b"disk", 0).unwrap();
    assert_eq!(seen(&again, "disk"), (7, 8, 0o060_640));
    again.unlink(&ME, ROOT_ID, b"disk").unwrap();
    assert_eq!(again.lookup(ROOT_ID, b"disk").unwrap().id, 0);
}

/// What containers-storage makes of an image with `force_mask`.
const FORCED: &str = "umask 022
    has() { setfattr -n user.containers.override_stat -v $2 l1/$1; }
    mkdir l1/d; echo tool >l1/d/tool; echo x >l1/d/other; touch l1/null; echo bad >l1/bad
    has d 0:0:0711:dir; has d/tool 0:0:4751:file; has null 0:0:0666:char-1-3; has bad nonsense
    echo old >l1/old; setfattr -n user.fuseoverlayfs.override_stat -v 3:4:100604 l1/old";

fn layers() {
    let bench = Bench::new();
    bench.shell(FORCED);
    let first = union(&bench, USER);
    let own = nix::unistd::geteuid().as_raw();
    assert_eq!(seen(&first, "d"), (0, 0, 0o040_711));
    assert_eq!(seen(&first, "null"), (0, 0, 0o020_666));
    assert_eq!(seen(&first, "bad").2, 0o100_644);
    assert_eq!(seen(&first, "old"), (3, 4, 0o100_604));
    let dir = id(&first, "d");
    let tool = first.lookup(dir, b"tool").unwrap();
    assert_eq!((tool.attr.uid, tool.attr.mode()), (0, 0o104_751));
    assert_eq!(first.lookup(dir, b"other").unwrap().attr.uid, own);
    // Copied up, all is as it was: by a write, by new times, by a rename.
    first.write(&Caller::default(), tool.id, 0, b"more").unwrap();
    first.rename(&ME, ROOT_ID, b"null", ROOT_ID, b"zero", 0).unwrap();
    set(&first, "old", &chmod(0o640));
    drop(first);
    assert_eq!(disk(&bench, "u/d/tool"), "regular file 700\n0:0:4751");
    assert_eq!(disk(&bench, "u/d"), "directory 700\n0:0:0711");
    assert_eq!(disk(&bench, "u/old"), "regular file 600\n3:4:0640");
    let again = union(&bench, USER);
    let tool = again.lookup(id(&again, "d"), b"tool").unwrap();
    assert_eq!((tool.attr.uid, tool.attr.mode()), (0, 0o104_751));
    assert_eq!(seen(&again, "zero"), (0, 0, 0o020_666));
}

fn marked() {
    let bench = Bench::new();
    bench.shell(FORCED);
    let plain = union(&bench, Stats::Marked);
    assert_eq!(seen(&plain, "d").2, 0o040_755);
    drop(plain);
    bench.shell("setfattr -n user.containers.override_stat -v 0:0:0555:dir l1; echo x >l2/x");
    bench.shell("setfattr -n user.containers.override_stat -v 0:0:0600 l2/x");
    let union = union(&bench, Stats::Marked);
    assert_eq!(seen(&union, "d"), (0, 0, 0o040_711));
    assert_eq!(seen(&union, "x").2, 0o100_644, "its layer is not marked");
    let tool = union.lookup(id(&union, "d"), b"tool").unwrap();
    assert_eq!((tool.attr.uid, tool.attr.mode()), (0, 0o104_751));
    // The upper has owners and modes of its own.
    union.setattr(&ME, tool.id, &chmod(0o640)).unwrap();
    assert_eq!(bench.shell("stat -c %a u/d u/d/tool; getfattr -dm stat u/d u/d/tool"), "711\n640\n");
}

fn hidden() {
    let bench = Bench::new();
    bench.shell("echo x >l1/f; setfattr -n user.note -v hello l1/f");
    let union = union(&bench, USER);
    let f = id(&union, "f");
    set(&union, "f", &chown(1, 1));
    assert_eq!(union.listxattr(f).unwrap(), b"user.note\0");
    for name in ["user.containers.override_stat", "user.fuseoverlayfs.override_stat"] {
        assert_eq!(union.getxattr(f, name.as_bytes()), Err(Errno::ENODATA));
        assert_eq!(union.setxattr(&ME, f, name.as_bytes(), b"0:0:777", 0), Err(Errno::EPERM));
        assert_eq!(union.removexattr(&ME, f, name.as_bytes()), Err(Errno::ENODATA));
    }
    // An ACL would be about the owner and mode on disk.
    assert_eq!(union.getxattr(f, b"system.posix_acl_access"), Err(Errno::EOPNOTSUPP));
    assert!(!union.has_acls());
    // Elsewhere the name is one like others.
    bench.shell("rm -rf u/f");
    let plain = self::union(&bench, Stats::Own);
    plain.setxattr(&ME, id(&plain, "f"), b"user.containers.override_stat", b"0:0:777", 0).unwrap();
    assert_eq!(plain.getxattr(id(&plain, "f"), b"user.containers.override_stat").unwrap(), b"0:0:777");
}

fn set_uid() {
    let bench = Bench::new();
    bench.shell("echo x >l1/f; echo x >l1/g");
    let union = union(&bench, USER);
    for name in ["f", "g"] {
        set(&union, name, &chmod(0o6755));
    }
    union.write(&Caller::default(), id(&union, "f"), 0, b"by root").unwrap();
    assert_eq!(seen(&union, "f").2, 0o106_755);
    union.write(&ME, id(&union, "f"), 0, b"by another").unwrap();
    assert_eq!(seen(&union, "f").2, 0o100_755);
    union.setattr(&ME, id(&union, "g"), &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
    assert_eq!(seen(&union, "g").2, 0o100_755);
}

fn privileged() {
    let bench = Bench::new();
    bench.shell("echo x >l1/f; ln -s f l1/link");
    let options = "lowerdir=l1,upperdir=u,workdir=w,xattr_permissions=1";
    if !nix::unistd::geteuid().is_root() {
        let out = bench.overlay(&["-o", options, "m"]);
        let said = crate::bench::text(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{said}");
        assert!(said.contains("security.fuseoverlayfs.override_stat"), "{said}");
        assert!(said.contains("hint: ") && said.contains("xattr_permissions=2"), "{said}");
        return;
    }
    let look = "cd m; stat -c '%n %u:%g %a' f link new fifo; getfattr -hdm - f link new fifo";
    let want = "f 5:6 4711\nlink 7:7 777\nnew 8:8 600\nfifo 0:0 644\n";
    bench.mounted(options, |_| {
        bench.shell(
            "cd m; chown 5:6 f; chmod 4711 f; chown -h 7:7 link; touch new; chmod 600 new; chown 8:8 new",
        );
        bench.shell("cd m; umask 022; mkfifo fifo");
        assert_eq!(bench.shell(look), want);
    });
    let disk = "cd u; stat -c '%n %u:%g' f link new fifo; getfattr -h --only-values -n security.fuseoverlayfs.override_stat f link";
    assert_eq!(bench.shell(disk), "f 0:0\nlink 0:0\nnew 0:0\nfifo 0:0\n5:6:47117:7:0777");
    bench.mounted(options, |_| assert_eq!(bench.shell(look), want));
}

/// Whoever mounts: root may give files away, others see what was given away before.
fn mounted() {
    let bench = Bench::new();
    bench.shell("umask 022; echo x >l1/f; echo y >l1/roots; setfattr -n user.containers.override_stat -v 0:0:4755 l1/roots");
    let options = "lowerdir=l1,upperdir=u,workdir=w,xattr_permissions=2";
    let root = nix::unistd::geteuid().is_root();
    bench.mounted(options, |_| {
        bench.shell("cd m; umask 027; chmod 4711 f; echo new >new; mkdir -m 1777 dir; mkfifo -m 600 dir/fifo; mv new dir/moved");
        if root {
            bench.shell("cd m; chown 5:6 f; chown -R 7:8 dir; chown 0:9 roots; chmod 4750 roots");
        } else {
            // The kernel decides by what is shown.
            assert!(bench.shell("echo more >>m/roots 2>&1 || echo refused").ends_with("refused\n"));
            assert!(bench.shell("chown 0 m/f 2>&1 || echo refused").ends_with("refused\n"));
        }
    });
    let (me, group) = (nix::unistd::geteuid(), nix::unistd::getegid());
    let mine = format!("{me}:{group}");
    let (f, dir, roots) = if root { ("5:6", "7:8", "0:9 4750") } else { (&*mine, &*mine, "0:0 4755") };
    let mode = if root { "711" } else { "4711" }; // chown(2) took set-uid away
    bench.mounted(options, |_| {
        assert_eq!(
            bench.shell("cd m; stat -c '%n %F %u:%g %a' f dir dir/fifo dir/moved roots; cat dir/moved; getfattr -dm - f roots"),
            format!(
                "f regular file {f} {mode}\ndir directory {dir} 1777\ndir/fifo fifo {dir} 600\n\
                 dir/moved regular file {dir} 640\nroots regular file {roots}\nnew\n"
            )
        );
        bench.shell("cd m/dir; cat fifo >read & echo through >fifo; wait");
    });
    assert_eq!(disk(&bench, "u/dir/moved"), format!("regular file 600\n{dir}:0640"));
    // The upper tells what it is when it is a layer below.
    bench.mounted("lowerdir=u:l1", |_| {
        assert_eq!(bench.shell("stat -c '%u:%g %a' m/dir; cat m/dir/read"), format!("{dir} 1777\nthrough\n"));
    });
}
