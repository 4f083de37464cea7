//! Exports, taken by the real git, patch and tar, come to the same tree as applying does.

use crate::model::{Random, model_tree, session};
use crate::world::{World, copy_tree, run, tree};
use sbx_fuse::review::export::{Form, archive, patch};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

fn patch_of(w: &World) -> (Vec<u8>, Vec<String>) {
    let mut out = Vec::new();
    let lost = patch(&w.roots(), &w.settled(), false, &mut out).unwrap();
    (out, lost)
}

/// `git apply` on a plain copy: the tree without directories.
fn git_applied(w: &World, seed: u64) -> Vec<String> {
    let copy = w.dir.path().join("copy");
    copy_tree(&w.real(""), &copy);
    let (text, _) = patch_of(w);
    if text.windows(4).any(|at| at == b"diff") {
        fs::write(w.dir.path().join("d.patch"), &text).unwrap();
        let (ok, said) = run(&copy, "git", &["apply", "--whitespace=nowarn", "../d.patch"]);
        assert!(ok, "seed {seed}: {said}\n{}", text.escape_ascii());
    }
    files(tree(&copy))
}

fn files(lines: Vec<String>) -> Vec<String> {
    lines.into_iter().filter(|l| !l.ends_with('/')).collect()
}

#[test]
fn git_takes_the_patch_of_200_random_sessions() {
    for seed in 0..200 {
        let (w, top, _) = session(seed);
        assert_eq!(git_applied(&w, seed), files(model_tree(&top)), "seed {seed}: {:#?}", w.changes());
    }
}

const NAMES: [&[u8]; 9] = [
    b"a",
    b"a b",
    b" lead and trail ",
    b"new\nline",
    b"\xff\xfe",
    b"quo\"te\\",
    b"-rf",
    b"\x1b[31m",
    "gr\u{fc}n".as_bytes(),
];

fn bytes(r: &mut Random) -> Vec<u8> {
    let len = [0, 1, 60, 3000][r.below(4)];
    let mut out: Vec<u8> = match r.below(3) {
        0 => (0..len).map(|_| r.below(256) as u8).collect(),
        1 => (0..len).map(|_| b"ab\n"[r.below(3)]).collect(),
        _ => (0..len / 10).flat_map(|i| format!("line {i}\n").into_bytes()).collect(),
    };
    if r.below(4) == 0 {
        out.push(b'x');
    }
    out
}

/// Files with hostile names and contents: new, changed, gone, executable, links, of another type, in two directories.
fn hostile(seed: u64) -> World {
    let mut r = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let w = World::new();
    for dir in ["", "d"] {
        for top in ["real", "upper"] {
            fs::create_dir_all(w.dir.path().join(top).join(dir)).unwrap();
        }
        for name in NAMES {
            let put = |top: &str, r: &mut Random| {
                let at = w.dir.path().join(top).join(dir).join(std::ffi::OsStr::from_bytes(name));
                if r.below(5) == 0 {
                    let target = NAMES[r.below(NAMES.len())];
                    std::os::unix::fs::symlink(std::ffi::OsStr::from_bytes(target), &at).unwrap();
                } else {
                    fs::write(&at, bytes(r)).unwrap();
                    let mode = if r.below(3) == 0 { 0o755 } else { 0o644 };
                    fs::set_permissions(&at, fs::Permissions::from_mode(mode)).unwrap();
                }
            };
            match r.below(5) {
                0 => {}
                1 => put("real", &mut r),
                2 => {
                    put("real", &mut r);
                    let at = w.dir.path().join("upper").join(dir);
                    let fd = fs::File::open(at).unwrap();
                    use std::os::fd::AsFd;
                    sbx_fuse::layer::make_whiteout(fd.as_fd(), name, w.features.whiteout).unwrap();
                }
                3 => put("upper", &mut r),
                _ => {
                    put("real", &mut r);
                    put("upper", &mut r);
                }
            }
        }
    }
    w
}

#[test]
fn git_takes_hostile_names_and_bytes() {
    for seed in 0..200 {
        let w = hostile(seed);
        let by_git = git_applied(&w, seed);
        w.apply(&[]);
        assert_eq!(by_git, files(w.tree()), "seed {seed}");
    }
}

#[test]
fn a_patch_can_be_taken_back_and_git_keeps_it_in_its_index() {
    let w = hostile(7);
    let copy = w.dir.path().join("copy");
    copy_tree(&w.real(""), &copy);
    let before = files(tree(&copy));
    let (text, lost) = patch_of(&w);
    assert_eq!(lost, [""; 0]);
    fs::write(w.dir.path().join("d.patch"), &text).unwrap();
    for args in [&["apply", "../d.patch"][..], &["apply", "-R", "../d.patch"]] {
        let (ok, said) = run(&copy, "git", args);
        assert!(ok, "{said}");
    }
    assert_eq!(files(tree(&copy)), before);
}

#[test]
fn patch_takes_what_is_text() {
    let w = World::new();
    let lines: String = (0..40).map(|i| format!("line {i}\n")).collect();
    w.has("a b", &lines).has("del", "x\n").has("r", &lines).has("d/no newline", "x");
    w.copy_up("a b", "a b", Some(&lines.replace("line 9\n", "nine\n"))).whiteout("del");
    w.put("new/f", "n\n").copy_up("d/no newline", "d/no newline", Some("y"));
    w.copy_up("s", "r", Some(&lines.replace("line 30\n", ""))).whiteout("r");
    let copy = w.dir.path().join("copy");
    copy_tree(&w.real(""), &copy);
    fs::write(w.dir.path().join("d.patch"), patch_of(&w).0).unwrap();
    let (ok, said) = run(&copy, "patch", &["-p1", "-i", "../d.patch"]);
    assert!(ok, "{said}");
    w.apply(&[]);
    assert_eq!(tree(&copy), w.tree());
}

#[test]
fn what_a_patch_cannot_carry_is_told() {
    let w = World::new();
    w.put("empty/", "").put("secret", "1");
    fs::set_permissions(w.upper("secret"), fs::Permissions::from_mode(0o600)).unwrap();
    let (text, lost) = patch_of(&w);
    assert_eq!(lost, ["empty: new empty directory", "secret: mode 600"]);
    let text = String::from_utf8(text).unwrap();
    assert!(text.starts_with("# empty: new empty directory\n# secret: mode 600\ndiff --git"), "{text}");
}

/// Lays an image layer over `top`, as the OCI image specification has it.
fn lay(layer: &Path, top: &Path) {
    let (mut marks, mut rest) = (Vec::new(), Vec::new());
    for entry in walkdir::WalkDir::new(layer).min_depth(1).sort_by_file_name() {
        let path = entry.unwrap().into_path();
        let is_mark = path.file_name().unwrap().as_bytes().starts_with(b".wh.");
        if is_mark { &mut marks } else { &mut rest }.push(path);
    }
    let gone = |at: &Path| match fs::symlink_metadata(at) {
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(at).unwrap(),
        Ok(_) => fs::remove_file(at).unwrap(),
        Err(_) => {}
    };
    for mark in marks {
        let dir = top.join(mark.parent().unwrap().strip_prefix(layer).unwrap());
        match &mark.file_name().unwrap().as_bytes()[4..] {
            b".wh..opq" => {
                for entry in fs::read_dir(&dir).into_iter().flatten() {
                    gone(&entry.unwrap().path());
                }
            }
            name => gone(&dir.join(std::ffi::OsStr::from_bytes(name))),
        }
    }
    for path in rest {
        let at = top.join(path.strip_prefix(layer).unwrap());
        let is_dir = |p: &Path| fs::symlink_metadata(p).is_ok_and(|m| m.is_dir());
        if is_dir(&path) && is_dir(&at) {
            continue;
        }
        gone(&at);
        if is_dir(&path) {
            fs::create_dir(&at).unwrap();
        } else {
            copy_tree(&path, &at);
        }
    }
}

fn unpacked(w: &World, form: Form) -> (std::path::PathBuf, Vec<String>) {
    let mut out = Vec::new();
    let lost = archive(&w.roots(), &w.settled(), form, &|_| Vec::new(), &mut out).unwrap();
    fs::write(w.dir.path().join("a.tar"), &out).unwrap();
    let to = w.dir.path().join("unpacked");
    fs::create_dir(&to).unwrap();
    let (ok, said) = run(&to, "tar", &["xpf", "../a.tar"]);
    assert!(ok, "{said}");
    (to, lost)
}

#[test]
fn a_layer_over_the_real_tree_is_the_merged_view_of_200_random_sessions() {
    for seed in 0..200 {
        let (w, top, _) = session(seed);
        let (layer, lost) = unpacked(&w, Form::OciLayer);
        assert_eq!(lost, [""; 0]);
        let copy = w.dir.path().join("copy");
        copy_tree(&w.real(""), &copy);
        lay(&layer, &copy);
        assert_eq!(tree(&copy), model_tree(&top), "seed {seed}: {:#?} {:#?}", w.changes(), tree(&layer));
    }
}

#[test]
fn a_layer_carries_hostile_names_modes_and_links() {
    for seed in 0..50 {
        let w = hostile(seed);
        let (layer, _) = unpacked(&w, Form::OciLayer);
        let copy = w.dir.path().join("copy");
        copy_tree(&w.real(""), &copy);
        lay(&layer, &copy);
        w.apply(&[]);
        assert_eq!(tree(&copy), w.tree(), "seed {seed}");
    }
}

#[test]
fn an_archive_has_the_new_files_and_tells_what_is_gone() {
    let w = World::new();
    w.has("gone", "1").whiteout("gone").put("d/f", "1").put("a", "new");
    fs::hard_link(w.upper("a"), w.upper("b")).unwrap();
    let (to, lost) = unpacked(&w, Form::Tar);
    assert_eq!(tree(&to), ["a = new", "b = new", "d/", "d/f = 1"]);
    use std::os::unix::fs::MetadataExt;
    assert_eq!(fs::metadata(to.join("a")).unwrap().ino(), fs::metadata(to.join("b")).unwrap().ino());
    assert_eq!(lost, ["gone: an archive cannot say that it is gone"]);
}

#[test]
fn an_archive_has_acls_and_times_as_tar_reads_them() {
    use sbx_fuse::base::{SetTime, Time};
    use sbx_fuse::sys::{file, xattr};
    use std::os::fd::AsFd;
    let w = World::new();
    w.put("d/f", "1").put("old", "1");
    // A version, then tag, permissions and id of each entry (linux/posix_acl_xattr.h).
    let entries =
        [(0x01, 6, u32::MAX), (0x02, 4, 4321), (0x04, 4, u32::MAX), (0x10, 6, u32::MAX), (0x20, 0, u32::MAX)];
    let mut acl = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        acl.extend([u16::to_le_bytes(tag), u16::to_le_bytes(perm)].concat());
        acl.extend(id.to_le_bytes());
    }
    let open = |at: &Path| fs::File::open(at).unwrap();
    let names = [("d", b"system.posix_acl_default".as_slice()), ("d/f", b"system.posix_acl_access")];
    for (path, name) in names {
        if xattr::set(open(&w.upper(path)).as_fd(), name, &acl, 0).is_err() {
            return; // a file system without ACLs
        }
    }
    let time = |sec| Time { sec, nsec: 123_456_789 };
    for (path, sec) in [("d/f", 981_173_106), ("d", 981_173_107), ("old", -5)] {
        let at = open(&w.upper(path));
        file::utimens_at(at.as_fd(), b"", None, Some(SetTime::At(time(sec)))).unwrap();
    }
    let mut out = Vec::new();
    archive(&w.roots(), &w.settled(), Form::Tar, &|_| Vec::new(), &mut out).unwrap();
    fs::write(w.dir.path().join("a.tar"), &out).unwrap();
    let to = w.dir.path().join("unpacked");
    fs::create_dir(&to).unwrap();
    let (ok, said) = run(&to, "tar", &["--acls", "-xpf", "../a.tar"]);
    assert!(ok, "{said}");
    for (path, name) in names {
        assert_eq!(xattr::get(open(&to.join(path)).as_fd(), name), Ok(Some(acl.clone())), "{path}");
    }
    for (path, sec) in [("d/f", 981_173_106), ("d", 981_173_107), ("old", -5)] {
        assert_eq!(file::stat(open(&to.join(path)).as_fd()).unwrap().mtime, time(sec), "{path}");
    }
}
