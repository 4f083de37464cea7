//! Applying: the real tree becomes what the session saw, or stays as it was.

use crate::world::World;
use sbx_fuse::base::quote;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

#[test]
fn all_kinds_of_change_are_applied_and_leave_an_empty_upper() {
    for w in [World::new(), World::prefixed()] {
        w.has("mod", "1")
            .has("del", "1")
            .has("old", "1")
            .has("typed", "1")
            .has("perm", "1")
            .has("todir/x", "1");
        w.has("dir/a", "1").has("dir/b", "1").has("dir/c", "1").has("gone/x/y", "1").has("link", "-> a");
        w.has("opq/keep", "1").has("opq/sub/x", "1");
        w.copy_up("mod", "mod", Some("2")).whiteout("del").copy_up("new", "old", Some("x")).whiteout("old");
        w.put("typed/in", "1")
            .put("todir", "f")
            .put("added/deep/f", "1")
            .put("empty/", "")
            .put("link", "-> b");
        w.copy_up("perm", "perm", None);
        fs::set_permissions(w.upper("perm"), fs::Permissions::from_mode(0o755)).unwrap();
        w.redirect("dir2", "dir").whiteout("dir").copy_up("dir2/a", "dir/a", Some("2")).whiteout("dir2/b");
        w.whiteout("gone").put("opq/keep", "2").put("opq/new/n", "n").opaque("opq");
        w.apply(&[]);
        assert_eq!(
            w.tree(),
            [
                "added/",
                "added/deep/",
                "added/deep/f = 1",
                "dir2/",
                "dir2/a = 2",
                "dir2/c = 1",
                "empty/",
                "link -> b",
                "mod = 2",
                "new = x",
                "opq/",
                "opq/keep = 2",
                "opq/new/",
                "opq/new/n = n",
                "perm* = 1",
                "todir = f",
                "typed/",
                "typed/in = 1"
            ]
        );
        assert_eq!(w.changes(), [""; 0]);
        assert!(w.upper_is_empty(), "{:?}", crate::world::tree(&w.upper("")));
    }
}

#[test]
fn chains_swaps_and_directories_inside_their_replacement() {
    let w = World::new();
    w.has("a", "1").has("b", "2").has("c/f", "f").has("p", "p").has("q", "q");
    w.copy_up("a", "b", None).copy_up("b", "a", None);
    w.put("c/", "").opaque("c").redirect("c/d", "c").copy_up("c/d/f", "c/f", Some("g"));
    w.copy_up("r", "q", None).copy_up("q", "p", Some("P")).whiteout("p");
    assert_eq!(w.changes(), ["R a < b", "R b < a", "A c", "R c/d < c", "M c/d/f", "R* q < p", "R r < q"]);
    w.apply(&[]);
    assert_eq!(w.tree(), ["a = 2", "b = 1", "c/", "c/d/", "c/d/f = g", "q = P", "r = q"]);
    assert!(w.upper_is_empty(), "{:?}", crate::world::tree(&w.upper("")));
}

#[test]
fn moves_out_of_moved_and_deleted_directories() {
    let w = World::new();
    w.has("d/s/x", "1").has("d/f", "f").has("d/g", "g").has("z/k", "k").has("z/l", "l");
    w.redirect("t", "d/s").redirect("e", "d").whiteout("d").whiteout("e/s");
    w.copy_up("f", "d/f", Some("changed")).whiteout("e/f").copy_up("k", "z/k", None).whiteout("z");
    w.apply(&[]);
    assert_eq!(w.tree(), ["e/", "e/g = g", "f = changed", "k = k", "t/", "t/x = 1"]);
    assert!(w.upper_is_empty(), "{:?}", crate::world::tree(&w.upper("")));
}

#[test]
fn a_part_is_applied_with_what_it_needs_and_the_rest_stays() {
    let w = World::new();
    w.has("d/a", "1").has("d/b", "1").has("o/x", "1").has("o/y", "1");
    w.put("n/one", "1").put("n/two", "2").redirect("e", "d").whiteout("d");
    w.copy_up("e/a", "d/a", Some("A")).copy_up("e/b", "d/b", Some("B"));
    w.put("o/x", "X").put("o/z", "Z").opaque("o");
    w.apply(&["n/one", "e/a", "o/x"]);
    let tree = w.tree();
    assert_eq!(tree, ["e/", "e/a = A", "e/b = 1", "n/", "n/one = 1", "o/", "o/x = X", "o/y = 1"]);
    assert_eq!(w.changes(), ["M e/b", "A n/two", "D o/y", "A o/z"]);
    w.apply(&[]);
    assert_eq!(
        w.tree(),
        ["e/", "e/a = A", "e/b = B", "n/", "n/one = 1", "n/two = 2", "o/", "o/x = X", "o/z = Z"]
    );
    assert!(w.upper_is_empty(), "{:?}", crate::world::tree(&w.upper("")));
}

#[test]
fn mode_times_and_xattrs_go_along() {
    let w = World::new();
    w.has("f", "1").copy_up("f", "f", Some("2")).put("d/n", "n");
    w.set_xattr(&w.upper("f"), "user.note", "n");
    fs::set_permissions(w.upper("f"), fs::Permissions::from_mode(0o640)).unwrap();
    fs::set_permissions(w.upper("d"), fs::Permissions::from_mode(0o750)).unwrap();
    let then = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000, 123_456_789);
    for name in ["f", "d"] {
        fs::File::open(w.upper(name)).unwrap().set_modified(then).unwrap();
    }
    w.apply(&[]);
    for (name, mode) in [("f", 0o640), ("d", 0o750)] {
        let meta = fs::metadata(w.real(name)).unwrap();
        assert_eq!(meta.permissions().mode() & 0o7777, mode);
        assert_eq!((meta.mtime(), meta.mtime_nsec()), (1_000_000, 123_456_789), "{name}");
    }
    use std::os::fd::AsFd;
    let file = fs::File::open(w.real("f")).unwrap();
    let names = sbx_fuse::sys::xattr::list(file.as_fd()).unwrap();
    assert_eq!(names.iter().filter(|n| n.starts_with(b"user.")).count(), 1);
}

#[test]
fn hard_links_stay_one_file() {
    let w = World::new();
    w.put("a", "new");
    fs::hard_link(w.upper("a"), w.upper("b")).unwrap();
    w.has("one", "1");
    fs::hard_link(w.real("one"), w.real("two")).unwrap();
    w.copy_up("one", "one", Some("changed"));
    let ino = fs::metadata(w.real("one")).unwrap().ino();
    w.apply(&[]);
    assert_eq!(w.tree(), ["a = new", "b = new", "one = changed", "two = changed"]);
    assert_eq!(fs::metadata(w.real("a")).unwrap().ino(), fs::metadata(w.real("b")).unwrap().ino());
    assert_eq!(fs::metadata(w.real("one")).unwrap().ino(), ino);
}

#[test]
fn a_new_name_of_a_real_file_is_a_link() {
    let ino = |w: &World, path: &str| fs::metadata(w.real(path)).unwrap().ino();
    let w = World::new();
    w.has("d/one", "1").has("e/two", "2");
    // Its other name is as it was, or elsewhere by now.
    w.copy_up("d/one", "d/one", None).whiteout("e").redirect("f", "e").copy_up("f/two", "e/two", None);
    fs::hard_link(w.upper("d/one"), w.upper("a")).unwrap();
    fs::hard_link(w.upper("f/two"), w.upper("z")).unwrap();
    assert_eq!(w.changes(), ["A a", "R f < e", "A z"]);
    w.apply(&["a"]);
    assert_eq!(ino(&w, "a"), ino(&w, "d/one"));
    w.apply(&[]);
    assert_eq!(w.tree(), ["a = 1", "d/", "d/one = 1", "f/", "f/two = 2", "z = 2"]);
    assert_eq!(ino(&w, "z"), ino(&w, "f/two"));
}

#[test]
fn a_new_name_of_a_file_that_changes_is_a_link_if_the_change_is_taken() {
    let ino = |w: &World, path: &str| fs::metadata(w.real(path)).unwrap().ino();
    for taken in [&["a", "one"][..], &["a"][..]] {
        let w = World::new();
        w.has("one", "1");
        fs::hard_link(w.real("one"), w.real("two")).unwrap();
        w.copy_up("one", "one", Some("2"));
        fs::hard_link(w.upper("one"), w.upper("a")).unwrap();
        w.apply(taken);
        let both = taken.len() == 2;
        let old = if both { "2" } else { "1" };
        assert_eq!(w.tree(), ["a = 2".into(), format!("one = {old}"), format!("two = {old}")]);
        assert_eq!(ino(&w, "a") == ino(&w, "one"), both);
        assert_eq!(ino(&w, "two"), ino(&w, "one"));
    }
}

#[test]
fn a_file_that_was_written_meanwhile_gets_no_new_name() {
    let w = World::new();
    w.has("one", "1");
    w.copy_up("one", "one", None);
    fs::hard_link(w.upper("one"), w.upper("a")).unwrap();
    let plan = w.plan(&[]);
    fs::write(w.real("one"), "written meanwhile").unwrap();
    let (roots, scanned) = (w.roots(), w.scan());
    let mut dropper = sbx_fuse::review::Offline::new(&roots, &scanned, sbx_fuse::review::Leave::Applied);
    let error = sbx_fuse::review::apply(&roots, &plan, &mut dropper, &mut |_| {}).unwrap_err();
    assert!(error.message.contains("one") && error.hint.is_some(), "{error}");
    assert_eq!(w.tree(), ["one = written meanwhile"]);
}

#[test]
fn a_replaced_file_does_not_change_its_former_links() {
    let w = World::new();
    w.has("one", "1");
    fs::hard_link(w.real("one"), w.real("two")).unwrap();
    w.put("one", "other");
    w.apply(&[]);
    assert_eq!(w.tree(), ["one = other", "two = 1"]);
}

#[test]
fn special_files() {
    let w = World::new();
    let status = std::process::Command::new("mkfifo").arg(w.upper("pipe")).status().unwrap();
    assert!(status.success());
    w.apply(&[]);
    assert_eq!(w.tree(), ["pipe (10000)"]);
    w.put("a", "1");
    let socket = std::os::unix::net::UnixListener::bind(w.upper("z.sock")).unwrap();
    let error = w.try_apply(&[]).unwrap_err();
    assert!(error.message.contains("z.sock"), "{error}");
    assert_eq!(w.tree(), ["pipe (10000)"], "nothing was touched");
    drop(socket);
    w.apply(&["a"]);
    assert_eq!(w.tree(), ["a = 1", "pipe (10000)"]);
}

#[test]
fn a_sparse_file_keeps_its_holes() {
    use std::os::unix::fs::FileExt;
    let w = World::new();
    let big = fs::File::create(w.upper("big")).unwrap();
    big.set_len(4 << 30).unwrap();
    big.write_all_at(b"end", (4 << 30) - 3).unwrap();
    w.apply(&[]);
    let meta = fs::metadata(w.real("big")).unwrap();
    assert_eq!(meta.len(), 4 << 30);
    assert!(meta.blocks() < 1000, "{} blocks", meta.blocks());
}

#[test]
fn a_failed_step_puts_everything_back() {
    let w = World::new();
    w.has("a", "1").has("b", "2").has("d/x", "1").has("gone", "g").has("one", "1").has("zz", "1");
    fs::hard_link(w.real("one"), w.real("two")).unwrap();
    let before = w.tree();
    w.copy_up("a", "a", Some("A"))
        .copy_up("c", "b", Some("C"))
        .whiteout("b")
        .redirect("e", "d")
        .whiteout("d");
    w.whiteout("gone").put("n/f", "1").copy_up("one", "one", Some("O")).put("e/new", "1").whiteout("zz");
    let plan = w.plan(&[]);
    // The last deletion finds something else than was compared.
    fs::remove_file(w.real("a")).unwrap();
    fs::write(w.real("a"), "grown meanwhile").unwrap();
    let roots = w.roots();
    let scanned = w.scan();
    let mut dropper = sbx_fuse::review::Offline::new(&roots, &scanned, sbx_fuse::review::Leave::Applied);
    let error = sbx_fuse::review::apply(&roots, &plan, &mut dropper, &mut |_| {}).unwrap_err();
    assert!(error.causes.is_empty(), "{error}");
    let mut expected = before;
    expected[0] = "a = \"grown meanwhile\"".replace('"', "");
    assert_eq!(w.tree(), expected);
    assert_eq!(fs::read_dir(w.dir.path().join("work")).unwrap().count(), 0);
}

#[test]
fn an_object_that_changed_since_it_was_compared_is_refused() {
    let w = World::new();
    w.put("a", "1");
    let plan = w.plan(&[]);
    w.put("a", "22");
    let roots = w.roots();
    let scanned = w.scan();
    let mut dropper = sbx_fuse::review::Offline::new(&roots, &scanned, sbx_fuse::review::Leave::Applied);
    let error = sbx_fuse::review::apply(&roots, &plan, &mut dropper, &mut |_| {}).unwrap_err();
    assert!(error.message.contains("changed in the session"), "{error}");
    assert_eq!(w.tree(), [""; 0]);
}

/// A program of the session that writes while its files are applied.
struct Writer<'a>(&'a World);

impl sbx_fuse::review::Fault for Writer<'_> {
    fn at(&mut self, what: &str) -> sbx_fuse::base::Sys<()> {
        if what == "stage" {
            self.0.put("a", "written meanwhile");
        }
        Ok(())
    }
}

#[test]
fn an_object_that_the_session_changes_meanwhile_is_told_as_such() {
    let w = World::new();
    w.put("a", "1");
    let plan = w.plan(&[]);
    let (roots, scanned) = (w.roots(), w.scan());
    let mut dropper = sbx_fuse::review::Offline::new(&roots, &scanned, sbx_fuse::review::Leave::Applied);
    let policy = sbx_fuse::review::Policy::default();
    let (mut tell, mut writer) = (|_: sbx_fuse::review::Progress<'_>| {}, Writer(&w));
    let applied = sbx_fuse::review::apply_with(&roots, &plan, policy, &mut dropper, &mut tell, &mut writer);
    let error = applied.unwrap_err();
    assert!(error.message.starts_with("a changed in the session"), "{error}");
    assert!(error.causes.is_empty(), "{error}");
    assert_eq!(w.tree(), [""; 0]);
}

#[test]
fn a_parent_that_became_a_symlink_is_never_followed() {
    let w = World::new();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("f"), "outside").unwrap();
    w.has("d/f", "1").copy_up("d/f", "d/f", Some("2")).put("d/new", "n");
    let plan = w.plan(&[]);
    fs::rename(w.real("d"), w.real("d.old")).unwrap();
    std::os::unix::fs::symlink(outside.path(), w.real("d")).unwrap();
    let roots = w.roots();
    let scanned = w.scan();
    let mut dropper = sbx_fuse::review::Offline::new(&roots, &scanned, sbx_fuse::review::Leave::Applied);
    sbx_fuse::review::apply(&roots, &plan, &mut dropper, &mut |_| {}).unwrap_err();
    assert_eq!(crate::world::tree(outside.path()), ["f = outside"]);
    assert_eq!(w.tree().iter().filter(|l| l.contains("sbx-fuse")).count(), 0);
    // Compared anew, the symlink is seen as what it is: something in the way.
    let conflicts = sbx_fuse::review::check(&roots, &w.settled(), &|_, _| None).unwrap();
    assert!(!conflicts.is_empty());
}

#[test]
fn odd_names_of_every_length() {
    let w = World::new();
    let long = "n".repeat(255);
    let names = ["a\nb", "\x1b[31mred", " lead", "tab\there", "quo\"te\\", "-rf", "\u{fc}", &long];
    for name in names {
        w.put(name, "1");
    }
    w.has(&long, "old");
    for name in names {
        assert!(w.changes().iter().any(|l| l.ends_with(&quote(name.as_bytes()))), "{name:?}");
    }
    w.apply(&[]);
    for name in names {
        assert_eq!(fs::read(w.real(name)).unwrap(), b"1");
    }
}

#[test]
fn a_path_longer_than_the_kernel_takes_at_once() {
    use std::os::fd::AsFd;
    let w = World::new();
    let name = vec![b'd'; 200];
    let mut dir = fs::File::open(w.upper("")).unwrap().into();
    for _ in 0..30 {
        let here: &std::os::fd::OwnedFd = &dir;
        sbx_fuse::sys::file::mkdirat(here.as_fd(), &name, 0o755).unwrap();
        dir = sbx_fuse::sys::file::openat(here.as_fd(), &name, libc::O_RDONLY, 0).unwrap();
    }
    sbx_fuse::sys::file::openat(dir.as_fd(), b"f", libc::O_CREAT | libc::O_WRONLY, 0o644).unwrap();
    let settled = w.settled();
    assert_eq!(settled.len(), 31);
    let report = w.try_apply(&[]).unwrap();
    assert!(report.warnings.is_empty(), "{:?}", report.warnings);
    assert_eq!(report.applied.len(), 31);
    assert_eq!(w.settled().len(), 0);
}

#[test]
fn a_directory_that_may_not_be_written_takes_its_changes_and_its_mode() {
    let w = World::new();
    w.put("d/f", "1").has("r/f", "1").copy_up("r/f", "r/f", Some("2"));
    fs::set_permissions(w.upper("d"), fs::Permissions::from_mode(0o555)).unwrap();
    fs::set_permissions(w.real("r"), fs::Permissions::from_mode(0o555)).unwrap();
    w.apply(&[]);
    assert_eq!(fs::metadata(w.real("d")).unwrap().permissions().mode() & 0o777, 0o555);
    assert_eq!(w.tree(), ["d/", "d/f = 1", "r/", "r/f = 2"]);
    for name in ["d", "r"] {
        fs::set_permissions(w.real(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
}

#[test]
fn what_stays_at_its_path_while_directories_change_places_around_it() {
    let w = World::new();
    w.has("b/b/x", "1").has("c/y", "2");
    w.redirect("b", "c").redirect("c", "b").redirect("b/b", "b/b").whiteout("c/b");
    assert_eq!(w.changes(), ["R b < c", "R b/b < b/b", "R c < b"]);
    w.apply(&[]);
    assert_eq!(w.tree(), ["b/", "b/b/", "b/b/x = 1", "b/y = 2", "c/"]);
}
