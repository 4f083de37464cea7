//! What layers mean: whiteouts and opaque directories in every layer and form, no upper, owners.

use crate::bench::Bench;
use sbx_fuse::base::{Errno, Name, SetAttr, Sys};
use sbx_fuse::layer::LayerKind;
use sbx_fuse::sys::file;
use sbx_fuse::union::{Caller, Config, LayerConfig, ROOT_ID, Range, RootConfig, Union, View};
use std::os::unix::ffi::OsStrExt;

pub const TESTS: &[(&str, fn())] = &[
    ("whiteouts_of_both_forms_count_in_every_layer", whiteouts),
    ("opaque_marks_of_every_form_count_in_every_layer", opaque),
    ("what_the_upper_hides_can_be_made_again", made_again),
    ("trees_with_marks_in_every_layer_can_be_removed", removed),
    ("without_an_upper_every_verb_is_refused", read_only),
    ("owners_are_mapped_and_squashed", owners),
    ("directories_count_one_link_if_asked", static_nlink),
    ("acls_can_be_left_out", no_acl),
    ("the_roots_attributes_are_the_uppers_own", root_attributes),
];

/// Those that see something else when root does them.
pub const AS_ROOT_TOO: &[&str] =
    &["opaque_marks_of_every_form_count_in_every_layer", "owners_are_mapped_and_squashed"];

/// A layer for each form, used as upper and as lower.
const FORMS: &[(&str, &str)] = &[("device", "mknod $1/$2 c 0 0"), ("file", "touch $1/.wh.$2")];

fn whiteouts() {
    for (form, hide) in FORMS {
        let bench = Bench::new();
        bench.shell(&format!(
            "hide() {{ {hide}; }}
            mkdir -p l3/d l2/d l1/d u/d
            for f in top middle free all dir; do echo $f >l3/d/$f; echo $f >l3/$f; done
            mkdir l3/sub; echo x >l3/sub/x
            hide u top; hide u/d top; hide l1 middle; hide l1/d middle; hide u sub
            for l in u l1 l2; do hide $l all; hide $l/d all; done
            rm -f l1/all u/all l1/.wh.all u/.wh.all; echo back >l1/all"
        ));
        bench.mounted("lowerdir=l1:l2:l3,upperdir=u,workdir=w", |_| {
            let seen = bench.shell("cd m; find . | LC_ALL=C sort; cat all");
            assert_eq!(seen, ".\n./all\n./d\n./d/dir\n./d/free\n./dir\n./free\nback\n", "{form}");
            let made = bench.shell(
                "cd m; echo new >top; mkdir sub; ln free middle; ln -s free d/top; mv free d/all; find . | LC_ALL=C sort; cat top d/all",
            );
            assert_eq!(
                made,
                ".\n./all\n./d\n./d/all\n./d/dir\n./d/free\n./d/top\n./dir\n./middle\n./sub\n./top\nnew\nfree\n",
                "{form}"
            );
            let err = bench.shell("touch m/.wh.x 2>&1 || true; ls -a m | grep -c wh || true");
            assert!(err.contains("Invalid argument") && err.ends_with("0\n"), "{err}");
        });
        bench.mounted("lowerdir=u:l1:l2:l3", |_| {
            assert_eq!(
                bench.shell("cd m; ls sub; ls; cat top"),
                "all\nd\ndir\nmiddle\nsub\ntop\nnew\n",
                "{form}"
            );
        });
    }
}

fn opaque() {
    let root = nix::unistd::geteuid().is_root();
    let mut forms = vec![
        "setfattr -n user.overlay.opaque -v y $1",
        "setfattr -n user.fuseoverlayfs.opaque -v y $1",
        "touch $1/.wh..wh..opq",
    ];
    if root {
        forms.push("setfattr -n trusted.overlay.opaque -v y $1");
    }
    for form in forms {
        let bench = Bench::new();
        bench.shell(&format!(
            "opaque() {{ {form}; }}
            for d in a b c; do mkdir -p u/$d l1/$d l2/$d l3/$d; for l in u l1 l2 l3; do echo $l >$l/$d/$l; done; done
            opaque u/a; opaque l1/b; opaque l2/c"
        ));
        let want = "m/a:\nu\n\nm/b:\nl1\nu\n\nm/c:\nl1\nl2\nu\n";
        bench.mounted("lowerdir=l1:l2:l3,upperdir=u,workdir=w", |_| {
            assert_eq!(bench.shell("ls m/a m/b m/c"), want, "{form}");
            assert_eq!(
                bench.shell("getfattr -d -m - m/a m/b m/c; ls -a m/a | grep wh || true"),
                "",
                "{form}"
            );
        });
        bench.mounted("lowerdir=u:l1:l2:l3", |_| {
            assert_eq!(bench.shell("ls m/a m/b m/c"), want, "{form}");
        });
    }
}

fn made_again() {
    let bench = Bench::new();
    bench.shell("mkdir -p l1/d/e l2/d; echo 1 >l1/d/1; echo 2 >l2/d/2; echo e >l1/d/e/e");
    bench.mounted("lowerdir=l1:l2,upperdir=u,workdir=w", |_| {
        bench.shell("rm -r m/d; mkdir m/d; echo n >m/d/n; mkdir m/d/e");
        assert_eq!(bench.shell("cd m; find d | LC_ALL=C sort"), "d\nd/e\nd/n\n");
        bench.shell("mv m/d m/moved; mkdir m/d");
    });
    assert_eq!(bench.shell("getfattr -n user.overlay.opaque --only-values u/d"), "y");
    bench.mounted("lowerdir=u:l1:l2", |_| {
        assert_eq!(bench.shell("cd m; find . | LC_ALL=C sort"), ".\n./d\n./moved\n./moved/e\n./moved/n\n");
    });
}

fn removed() {
    let bench = Bench::new();
    bench.shell(
        "for l in l3 l2 l1 u; do
            mkdir -p $l/t/a/b $l/t/c
            echo $l >$l/t/$l; echo $l >$l/t/a/$l; echo $l >$l/t/a/b/$l
            mknod $l/t/c/dev-$l c 0 0; touch $l/t/c/.wh.file-$l; mkdir $l/t/o; touch $l/t/o/.wh..wh..opq $l/t/o/$l
        done",
    );
    bench.mounted("lowerdir=l1:l2:l3,upperdir=u,workdir=w", |_| {
        assert_eq!(bench.shell("ls m/t/o m/t/c"), "m/t/c:\n\nm/t/o:\nu\n");
        bench.shell("rmdir m/t/c; rm -r m/t; [ -z \"$(ls -A m)\" ]; mkdir m/t; rmdir m/t; ls m");
    });
    // The server clears what was removed at the latest when it ends, and outlives the mount for that.
    bench.shell("for i in $(seq 1000); do find w -name '#*' | grep -q . || exit 0; sleep 0.01; done; exit 1");
    assert_eq!(
        bench.shell("find u w -mindepth 1 -printf '%P %y\n' | LC_ALL=C sort"),
        "sbx-fuse d\nsbx-fuse/index d\nt c\n"
    );
}

fn read_only() {
    let bench = Bench::new();
    bench.shell("mkdir l1/d; echo x >l1/f; ln -s f l1/s; echo y >l2/g");
    let open = |name: &str| file::open_path(bench.at(name).as_os_str().as_bytes(), libc::O_PATH).unwrap();
    let lowers = ["l1", "l2"].map(|l| LayerConfig { dir: open(l), kind: LayerKind::Overlay });
    let root = RootConfig {
        name: Name::new(b"x").unwrap(),
        real_path: b"/x".to_vec(),
        upper: None,
        lowers: lowers.into(),
    };
    let config = Config {
        roots: vec![root],
        single: true,
        hidden: Vec::new(),
        journal: None,
        multi_user: false,
        view: View::default(),
    };
    let union = Union::new(config).unwrap();
    let id = |name: &[u8]| union.lookup(ROOT_ID, name).unwrap().id;
    let (dir, f, g) = (id(b"d"), id(b"f"), id(b"g"));
    let who = Caller::default();
    let set = |set: SetAttr| union.setattr(&who, f, &set).map(drop);
    let range = Range { offset: 0, len: 1 };
    let tries: Vec<(&str, Sys<()>)> = vec![
        ("write", union.write(&who, f, 0, b"x").map(drop)),
        ("fallocate", union.fallocate(&who, f, range, 0)),
        ("copy_range", union.copy_range(&who, (g, 0), (f, 0), 1).map(drop)),
        ("mknod", union.mknod(&who, dir, b"n", libc::S_IFREG, 0).map(drop)),
        ("mknod at the root", union.mknod(&who, ROOT_ID, b"n", libc::S_IFREG, 0).map(drop)),
        ("mkdir", union.mkdir(&who, ROOT_ID, b"n", 0o755).map(drop)),
        ("symlink", union.symlink(&who, dir, b"n", b"t").map(drop)),
        ("link", union.link(&who, f, dir, b"n").map(drop)),
        ("unlink", union.unlink(&who, ROOT_ID, b"f")),
        ("rmdir", union.rmdir(&who, ROOT_ID, b"d")),
        ("rename", union.rename(&who, ROOT_ID, b"f", dir, b"n", 0)),
        ("rename a directory", union.rename(&who, ROOT_ID, b"d", ROOT_ID, b"n", 0)),
        ("truncate", set(SetAttr { size: Some(0), ..SetAttr::default() })),
        ("chmod", set(SetAttr { perm: Some(0o600), ..SetAttr::default() })),
        ("chown", set(SetAttr { uid: Some(1), ..SetAttr::default() })),
        ("setxattr", union.setxattr(&who, f, b"user.x", b"x", 0)),
        ("setxattr of the root", union.setxattr(&who, ROOT_ID, b"user.x", b"x", 0)),
    ];
    for (verb, result) in tries {
        assert_eq!(result, Err(Errno::EROFS), "{verb}");
    }
    let mut read = Vec::new();
    union.read(f, 0, 10, &mut read).unwrap();
    assert_eq!(read, b"x\n");
    let mut names = Vec::new();
    union
        .readdir(ROOT_ID, 0, false, |item| {
            names.push(item.name.to_vec());
            true
        })
        .unwrap();
    names.sort();
    assert_eq!(names, [b".".as_slice(), b"..", b"d", b"f", b"g", b"s"]);
    union.fsync(f, false).unwrap();
    union.statfs(ROOT_ID).unwrap();
    union.sync().unwrap();
    bench.mounted("lowerdir=l1:l2", |_| {
        let said = bench.shell("touch m/new 2>&1 || cat m/g");
        assert!(said.contains("Read-only file system") && said.ends_with("y\n"), "{said}");
    });
}

fn owners() {
    let bench = Bench::new();
    let me = nix::unistd::geteuid().as_raw();
    let group = nix::unistd::getegid().as_raw();
    bench.shell("mkdir l1/d; echo x >l1/f");
    let up = "lowerdir=l1,upperdir=u,workdir=w";
    let seen = |options: &str, script: &str| {
        bench.mounted(&format!("{up},{options}"), |_| bench.shell(&format!("cd m; {script}")))
    };
    assert_eq!(seen("squash_to_root", "stat -c %u:%g f d"), "0:0\n0:0\n");
    assert_eq!(seen("squash_to_uid=7,squash_to_gid=8", "stat -c %u:%g f"), "7:8\n");
    assert_eq!(seen("squash_to_root,squash_to_gid=8", "stat -c %u:%g f"), "0:8\n");
    assert_eq!(
        seen(&format!("uidmapping={me}:3000:2,gidmapping={group}:4000:1"), "stat -c %u:%g f"),
        "3000:4000\n"
    );
    assert_eq!(seen("uidmapping=5:3000:2,gidmapping=5:3000:1", "stat -c %u:%g f"), "65534:65534\n");
    if me != 0 {
        return;
    }
    let map = "uidmapping=0:1000:1:1:110000:10,gidmapping=0:1000:1,1:110000:10";
    bench.shell("chown 1:2 l1/f");
    let script = "stat -c %u:%g f d .; chown 110004:1000 f; stat -c %u:%g f; chown 55 f 2>&1 || true;
        setpriv --reuid=110003 --regid=110003 --clear-groups --inh-caps=-all touch made 2>&1 || true;
        chmod 777 .; setpriv --reuid=110003 --regid=110003 --clear-groups touch made; stat -c %u:%g made";
    let told = seen(map, script);
    assert!(told.starts_with("110000:110001\n1000:1000\n1000:1000\n110004:1000\n"), "{told}");
    assert!(told.contains("Invalid argument") && told.ends_with("110003:110003\n"), "{told}");
    assert_eq!(bench.shell("stat -c %u:%g u/f u/made"), "5:0\n4:4\n");
    assert_eq!(seen("squash_to_root", "chown 5:6 d; stat -c %u:%g d"), "0:0\n");
    assert_eq!(bench.shell("stat -c %u:%g u/d"), "5:6\n");
}

fn static_nlink() {
    let bench = Bench::new();
    bench.shell("mkdir -p l1/d/a l1/d/b; echo x >l1/f; ln l1/f l1/g");
    let links = |options: &str| bench.mounted(options, |_| bench.shell("cd m; stat -c %h d f"));
    assert_eq!(links("lowerdir=l1"), "4\n2\n");
    assert_eq!(links("lowerdir=l1,static_nlink"), "1\n2\n");
}

fn no_acl() {
    let bench = Bench::new();
    bench.shell("echo x >l1/f");
    let up = "lowerdir=l1,upperdir=u,workdir=w";
    let set = "setfacl -m u:1:r m/f 2>&1 || true; getfacl -c m/f | grep user:.*:r-- || true";
    bench.mounted(&format!("{up},noacl"), |_| {
        assert!(bench.shell(set).contains("Operation not supported"));
    });
    bench.mounted(up, |_| assert!(bench.shell(set).contains(":r--")));
}

fn root_attributes() {
    let bench = Bench::new();
    bench.shell("chmod 750 l1; chmod 711 u; touch -d @1000 u");
    bench.mounted("lowerdir=l1,upperdir=u,workdir=w", |_| {
        assert_eq!(bench.shell("stat -c '%a %Y' m"), "711 1000\n");
    });
    bench.mounted("lowerdir=l1", |_| assert_eq!(bench.shell("stat -c %a m"), "750\n"));
    assert_eq!(bench.shell("getfattr -d -m - u"), "");
}
