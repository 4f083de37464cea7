//! A real tree that somebody changes while changes are applied to it: whatever happens, nothing outside of it is touched.

use crate::sweep::{full, place};
use crate::world::World;
use sbx_fuse::base::Sys;
use sbx_fuse::review::{Fault, Leave, Offline, Policy, Selection, apply_with, plan, settle};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// Does something to the real tree before the `at`-th step, which itself does not fail.
struct Intruder<'a> {
    seen: usize,
    at: usize,
    acts: Box<dyn Fn() + 'a>,
}

impl Fault for Intruder<'_> {
    fn at(&mut self, _what: &str) -> Sys<()> {
        self.seen += 1;
        if self.seen == self.at + 1 {
            (self.acts)();
        }
        Ok(())
    }
}

/// A directory outside with files of the names that the session changes, and what it looked like.
fn outside() -> (tempfile::TempDir, Vec<String>) {
    let dir = tempfile::tempdir_in(place()).unwrap();
    for name in ["a", "b", "c", "f", "x", "keep", "in", "one", "y"] {
        fs::write(dir.path().join(name), "canary").unwrap();
    }
    for sub in ["sub", "deep", "new", "x.d"] {
        fs::create_dir(dir.path().join(sub)).unwrap();
        fs::write(dir.path().join(sub).join("f"), "canary").unwrap();
    }
    let before = crate::sweep::picture(dir.path(), true);
    (dir, before)
}

fn apply(w: &World, fault: &mut dyn Fault) -> bool {
    let (roots, set) = (w.roots(), w.scan());
    let plan = plan(&settle(&roots, &set).unwrap(), &Selection::All).unwrap();
    let mut dropper = Offline::new(&roots, &set, Leave::Applied);
    apply_with(&roots, &plan, Policy::default(), &mut dropper, &mut |_| {}, fault).is_ok()
}

/// Every directory that holds or is to hold a change becomes a symlink to a directory outside, before any step.
#[test]
fn a_directory_that_becomes_a_symlink_leads_nowhere() {
    for name in
        ["dir", "dir2", "c", "opq", "opq/new", "added", "added/deep", "locked", "names", "gone", "todir"]
    {
        // Every few steps, another few for each name: all of them would take long.
        for at in (name.len()..).step_by(29) {
            let w = full();
            let (outside, before) = outside();
            let (victim, aside) = (w.real(name), w.dir.path().join("aside"));
            let mut intruder = Intruder {
                seen: 0,
                at,
                acts: Box::new(|| {
                    if fs::symlink_metadata(&victim).is_ok_and(|m| m.is_dir()) {
                        // Also a directory that may not be written to can be moved within its own.
                        fs::rename(&victim, &aside).unwrap();
                    }
                    if fs::symlink_metadata(&victim).is_err()
                        && victim.parent().is_some_and(|p| fs::symlink_metadata(p).is_ok_and(|m| m.is_dir()))
                    {
                        symlink(outside.path(), &victim).unwrap();
                    }
                }),
            };
            apply(&w, &mut intruder);
            assert_eq!(crate::sweep::picture(outside.path(), true), before, "{name} at {at}");
            if intruder.seen <= at {
                break;
            }
        }
    }
}

/// A file that is to be replaced, written or removed becomes a hard link to, or a symlink to, a file outside.
#[test]
fn a_file_that_becomes_a_link_is_not_written_through() {
    for name in ["mod", "del", "old", "typed", "perm", "hard", "hard2", "times", "link", "swap1", "opq/keep"]
    {
        for at in (name.len()..).step_by(41) {
            for hard in [true, false] {
                let w = full();
                let (outside, before) = outside();
                let victim = w.real(name);
                let mut intruder = Intruder {
                    seen: 0,
                    at,
                    acts: Box::new(|| {
                        if fs::symlink_metadata(&victim).is_ok_and(|m| m.is_dir()) {
                            return;
                        }
                        drop(fs::remove_file(&victim));
                        let to = outside.path().join("a");
                        if hard { drop(fs::hard_link(to, &victim)) } else { drop(symlink(to, &victim)) }
                    }),
                };
                let done = apply(&w, &mut intruder);
                drop(fs::remove_file(&victim));
                // A link more or less is the intruder's own doing.
                let now = crate::sweep::picture(outside.path(), true);
                let plain = |lines: &[String]| -> Vec<String> {
                    let no_links = |l: &String| {
                        l.split(' ')
                            .enumerate()
                            .filter(|(i, _)| *i != 2)
                            .map(|(_, p)| p.to_owned())
                            .collect::<Vec<_>>()
                            .join(" ")
                    };
                    lines.iter().map(no_links).collect()
                };
                assert_eq!(plain(&now), plain(&before), "{name} at {at}, hard: {hard}, done: {done}");
                if intruder.seen <= at {
                    break;
                }
            }
            if at > 400 {
                break;
            }
        }
    }
}

/// A small session, so that something can be done before every single step: what is in `d` is written, made, moved,
/// deleted, and becomes another type.
fn small() -> World {
    let w = World::within(place());
    w.has("d/a", "1").has("d/b", "1").has("d/c", "1").has("d/f", "1").has("d/sub/f", "1");
    w.copy_up("d/a", "d/a", Some("2")).whiteout("d/b").copy_up("d/x", "d/c", None).whiteout("d/c");
    w.put("d/f", "-> a").copy_up("d/sub/f", "d/sub/f", Some("2")).put("d/new/f", "n").put("d/one", "n");
    w
}

/// Before each step of an application a directory becomes a symlink that leads outside.
#[test]
fn a_symlink_in_the_place_of_a_directory_at_every_step() {
    for name in ["d", "d/sub", "d/new"] {
        for at in 0.. {
            let w = small();
            let (outside, before) = outside();
            let (victim, aside) = (w.real(name), w.dir.path().join("aside"));
            let acts = || {
                if fs::symlink_metadata(&victim).is_ok() {
                    fs::rename(&victim, &aside).unwrap();
                }
                if fs::symlink_metadata(victim.parent().unwrap()).is_ok() {
                    symlink(outside.path(), &victim).unwrap();
                }
            };
            let mut intruder = Intruder { seen: 0, at, acts: Box::new(acts) };
            apply(&w, &mut intruder);
            assert_eq!(crate::sweep::picture(outside.path(), true), before, "{name} at {at}");
            if intruder.seen <= at {
                assert!(at > 10, "only {at} steps");
                break;
            }
        }
    }
}

/// Before each step a file that is to be replaced, moved or removed becomes a fifo: nobody waits for its other end.
#[test]
fn a_fifo_in_the_place_of_a_file_at_every_step() {
    for name in ["d/a", "d/b", "d/c", "d/f"] {
        for at in (0..).step_by(3) {
            let w = small();
            let victim = w.real(name);
            let acts = || {
                if fs::symlink_metadata(&victim).is_ok_and(|m| !m.is_dir()) {
                    fs::remove_file(&victim).unwrap();
                    nix::unistd::mkfifo(&victim, nix::sys::stat::Mode::S_IRWXU).unwrap();
                }
            };
            let mut intruder = Intruder { seen: 0, at, acts: Box::new(acts) };
            apply(&w, &mut intruder);
            if intruder.seen <= at {
                break;
            }
        }
    }
}

/// What a session may hold that is no ordinary file: applied as what it is, never opened as a file.
#[test]
fn fifos_huge_holes_and_odd_names_are_applied_as_they_are() {
    let w = World::new();
    for name in ["new\nline", "esc\u{1b}[31m", "-rf", " ", "\u{7f}\t"] {
        w.put(name, "odd");
    }
    nix::unistd::mkfifo(&w.upper("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let huge = fs::File::create(w.upper("huge")).unwrap();
    huge.set_len(1 << 40).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&huge, b"end", (1 << 40) - 3).unwrap();
    // Of the session's own making, and pointing out: it is applied as a symlink, and nothing goes through it.
    let (outside, before) = outside();
    w.put("out", &format!("-> {}", outside.path().display()));
    w.apply(&[]);
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    let real = |name: &str| fs::symlink_metadata(w.real(name)).unwrap();
    assert!(real("fifo").file_type().is_fifo() && real("out").is_symlink());
    assert_eq!((real("huge").len(), real("huge").blocks() < 1000), (1 << 40, true));
    assert_eq!(fs::read(w.real("esc\u{1b}[31m")).unwrap(), b"odd");
    assert_eq!(crate::sweep::picture(outside.path(), true), before);
}

/// A directory of 100,000 entries: each new name costs no look at all others.
#[test]
fn a_directory_of_a_hundred_thousand_entries() {
    let w = World::within(place());
    fs::create_dir(w.real("many")).unwrap();
    fs::create_dir(w.upper("many")).unwrap();
    let time = fs::metadata(w.real("many")).unwrap().permissions();
    fs::set_permissions(w.upper("many"), time).unwrap();
    let at: PathBuf = w.real("many");
    for i in 0..100_000 {
        fs::File::create(at.join(format!("entry-{i}"))).unwrap();
    }
    for i in 0..50 {
        w.put(&format!("many/entry-{}", i * 1999), "changed").put(&format!("many/new-{i}"), "n");
        w.whiteout(&format!("many/entry-{}", i * 1999 + 1));
    }
    w.apply(&[]);
    assert_eq!(fs::read_dir(w.real("many")).unwrap().count(), 100_000);
    assert_eq!(fs::read(w.real("many/entry-1999")).unwrap(), b"changed");
    assert_eq!(w.changes(), [""; 0]);
}

/// Capabilities and set-uid bits come through only when they are let through; only root can try.
#[test]
fn privileges_are_stripped_unless_let_through() {
    let w = World::new();
    w.put("suid", "x").put("caps", "x").has("both", "old").copy_up("both", "both", Some("new"));
    fs::set_permissions(w.upper("suid"), fs::Permissions::from_mode(0o6755)).unwrap();
    let capability = |path: &Path| {
        use std::os::fd::AsFd;
        let fd = fs::File::open(path).unwrap();
        sbx_fuse::sys::xattr::get(fd.as_fd(), b"security.capability").unwrap()
    };
    if nix::unistd::geteuid().is_root() {
        // cap_net_raw=ep, version 2 (linux/capability.h).
        let value = [1u32 | 2 << 24, 1 << 13, 0, 0, 0].map(u32::to_le_bytes).concat();
        for name in ["caps", "both"] {
            use std::os::fd::AsFd;
            let fd = fs::File::open(w.upper(name)).unwrap();
            sbx_fuse::sys::xattr::set(fd.as_fd(), b"security.capability", &value, 0).unwrap();
        }
    }
    let apply = |privileged: bool| {
        let (roots, set) = (w.roots(), w.scan());
        let plan = plan(&settle(&roots, &set).unwrap(), &Selection::All).unwrap();
        let policy = Policy { privileged, ..Policy::default() };
        let mut dropper = Offline::new(&roots, &set, Leave::Applied);
        let mut fault = sbx_fuse::review::NoFault;
        apply_with(&roots, &plan, policy, &mut dropper, &mut |_| {}, &mut fault).unwrap()
    };
    let report = apply(false);
    assert!(report.stripped.iter().any(|(_, p)| p.as_bytes() == b"suid"), "{:?}", report.stripped);
    assert_eq!(fs::metadata(w.real("suid")).unwrap().permissions().mode() & 0o7777, 0o755);
    assert!(capability(&w.real("caps")).is_none() && capability(&w.real("both")).is_none());
    if nix::unistd::geteuid().is_root() {
        assert_eq!(report.stripped.len(), 3, "{:?}", report.stripped);
        let value = [1u32 | 2 << 24, 1 << 13, 0, 0, 0].map(u32::to_le_bytes).concat();
        w.put("again", "x");
        use std::os::fd::AsFd;
        let fd = fs::File::open(w.upper("again")).unwrap();
        sbx_fuse::sys::xattr::set(fd.as_fd(), b"security.capability", &value, 0).unwrap();
        drop(fd);
        assert!(apply(true).stripped.is_empty());
        assert_eq!(capability(&w.real("again")).unwrap(), value);
    }
}
