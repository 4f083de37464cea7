//! RENAME: the whole matrix against a plain directory, then what the matrix does not hold.

use crate::harness::*;
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

crate::cases![
    files_as_a_plain_directory_does,
    directories_as_a_plain_directory_does,
    symlinks_as_a_plain_directory_does,
    a_lower_directory_keeps_its_content,
    chains_and_circles,
    an_open_file_follows_its_directory,
    the_upper_is_an_ordinary_one,
];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    File,
    Dir,
    Symlink,
}

/// Where the source (or the target) comes from.
#[derive(Clone, Copy, Debug, PartialEq)]
enum From {
    Lower,
    Upper,
    /// In the lower, and changed by the session.
    Copied,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Target {
    Absent,
    /// Was in the lower, and was deleted.
    Deleted,
    File,
    EmptyDir,
    FullDir,
}

#[derive(Clone, Copy, Debug)]
enum Place {
    Same,
    Parent,
    Child,
    Other,
}

const ORIGINS: [From; 3] = [From::Lower, From::Upper, From::Copied];

fn files_as_a_plain_directory_does() {
    matrix(Kind::File);
}

fn directories_as_a_plain_directory_does() {
    matrix(Kind::Dir);
}

fn symlinks_as_a_plain_directory_does() {
    matrix(Kind::Symlink);
}

struct Cell {
    name: String,
    kind: Kind,
    from: From,
    target: Target,
    target_from: From,
    place: Place,
    flags: RenameFlags,
}

fn cells(kind: Kind) -> Vec<Cell> {
    let targets = [Target::Absent, Target::Deleted, Target::File, Target::EmptyDir, Target::FullDir];
    let places = [Place::Same, Place::Parent, Place::Child, Place::Other];
    let flags = [RenameFlags::empty(), RenameFlags::RENAME_NOREPLACE, RenameFlags::RENAME_EXCHANGE];
    let mut all = Vec::new();
    for from in ORIGINS {
        for target in targets {
            for target_from in ORIGINS {
                if matches!(target, Target::Absent | Target::Deleted) && target_from != From::Lower {
                    continue;
                }
                for place in places {
                    for flags in flags {
                        let name = format!("c{}", all.len());
                        all.push(Cell { name, kind, from, target, target_from, place, flags });
                    }
                }
            }
        }
    }
    all
}

impl Cell {
    fn source(&self) -> &'static str {
        "d/source"
    }

    fn to(&self) -> &'static str {
        match self.place {
            Place::Same => "d/target",
            Place::Parent => "target",
            Place::Child => "d/sub/target",
            Place::Other => "other/target",
        }
    }

    /// Makes what is there before the session.
    fn before(&self, dir: &Path) {
        for sub in ["d/sub", "other"] {
            mkdir(dir.join(sub));
        }
        if self.from != From::Upper {
            make(self.kind, &dir.join(self.source()), "source");
        }
        match self.target {
            Target::Deleted => make(self.kind, &dir.join(self.to()), "deleted"),
            _ if self.target_from != From::Upper => self.make_target(dir),
            _ => {}
        }
    }

    /// What the session does before the rename.
    fn prepare(&self, dir: &Path) {
        match self.from {
            From::Lower => {}
            From::Upper => make(self.kind, &dir.join(self.source()), "source"),
            From::Copied => change(self.kind, &dir.join(self.source())),
        }
        match (self.target, self.target_from) {
            (Target::Deleted, _) => remove(&dir.join(self.to())),
            (_, From::Lower) => {}
            (_, From::Upper) => self.make_target(dir),
            (_, From::Copied) => match self.target {
                Target::Absent | Target::Deleted => {}
                Target::File => change(Kind::File, &dir.join(self.to())),
                Target::EmptyDir => {
                    // Empty in the merged view only.
                    put(dir.join(self.to()).join("gone"), "");
                    fs::remove_file(dir.join(self.to()).join("gone")).unwrap();
                }
                Target::FullDir => change(Kind::Dir, &dir.join(self.to())),
            },
        }
    }

    fn make_target(&self, dir: &Path) {
        let to = dir.join(self.to());
        match self.target {
            Target::Absent | Target::Deleted => {}
            Target::File => put(to, "target"),
            Target::EmptyDir => mkdir(to),
            Target::FullDir => make(Kind::Dir, &to, "target"),
        }
    }

    fn rename(&self, dir: &Path) -> i32 {
        nix_errno(renameat2(AT_FDCWD, &dir.join(self.source()), AT_FDCWD, &dir.join(self.to()), self.flags))
    }

    fn words(&self) -> String {
        format!(
            "{}: {:?} {:?} {} -> {} ({:?} {:?}) {:?}",
            self.name,
            self.from,
            self.kind,
            self.source(),
            self.to(),
            self.target_from,
            self.target,
            self.flags
        )
    }
}

fn make(kind: Kind, at: &Path, content: &str) {
    match kind {
        Kind::File => put(at, content),
        Kind::Symlink => std::os::unix::fs::symlink(content, at).unwrap(),
        Kind::Dir => {
            mkdir(at.join("deep"));
            put(at.join("deep/f"), content);
            put(at.join("f"), content);
        }
    }
}

fn change(kind: Kind, at: &Path) {
    match kind {
        Kind::File => OpenOptions::new().append(true).open(at).unwrap().write_all(b"+").unwrap(),
        Kind::Symlink => {
            let now = nix::sys::time::TimeSpec::new(1, 1);
            let flags = nix::sys::stat::UtimensatFlags::NoFollowSymlink;
            nix::sys::stat::utimensat(AT_FDCWD, at, &now, &now, flags).unwrap();
        }
        Kind::Dir => {
            put(at.join("new"), "new");
            fs::remove_file(at.join("f")).unwrap();
        }
    }
}

fn remove(at: &Path) {
    if stat(at).is_dir() { fs::remove_dir_all(at).unwrap() } else { fs::remove_file(at).unwrap() }
}

/// Paths with their type and content.
fn tree(dir: &Path) -> Vec<String> {
    let mut all: Vec<String> = walkdir::WalkDir::new(dir)
        .into_iter()
        .map(|e| {
            let e = e.unwrap_or_else(|e| panic!("{e}"));
            let rel = e.path().strip_prefix(dir).unwrap().display().to_string();
            let what = match e.file_type() {
                t if t.is_dir() => "directory".into(),
                t if t.is_symlink() => format!("-> {}", fs::read_link(e.path()).unwrap().display()),
                _ => text(e.path()),
            };
            format!("{rel}: {what}")
        })
        .collect();
    all.sort();
    all
}

fn matrix(kind: Kind) {
    let cells = cells(kind);
    let mut bed = Bed::new(|l| cells.iter().for_each(|c| c.before(&l.join(&c.name))));
    let plain = bed.outside("plain");
    let real: Vec<_> = cells.iter().map(|c| tree(&bed.lower(&c.name))).collect();
    let mut wrong = Vec::new();
    for cell in &cells {
        let (expected, seen) = (plain.join(&cell.name), bed.at(&cell.name));
        cell.before(&expected);
        cell.prepare(&expected);
        cell.prepare(&seen);
        let ino = stat(seen.join(cell.source())).ino();
        let (should, does) = (cell.rename(&expected), cell.rename(&seen));
        if should != does {
            wrong.push(format!("{}: errno {does}, should be {should}", cell.words()));
        } else if does == 0 && stat(seen.join(cell.to())).ino() != ino {
            wrong.push(format!("{}: another inode number", cell.words()));
        }
    }
    for round in 0..2 {
        for cell in &cells {
            let (expected, seen) = (tree(&plain.join(&cell.name)), tree(&bed.at(&cell.name)));
            if expected != seen {
                wrong.push(format!("{} in round {round}: {seen:?}, should be {expected:?}", cell.words()));
            }
        }
        bed.remount();
    }
    for (cell, before) in cells.iter().zip(real) {
        assert_eq!(tree(&bed.lower(&cell.name)), before, "the real tree was changed");
    }
    assert!(wrong.is_empty(), "{} of {}: {wrong:#?}", wrong.len(), cells.len());
}

fn a_lower_directory_keeps_its_content() {
    let mut bed = Bed::new(|l| {
        for i in 0..20 {
            mkdir(l.join(format!("big/{i}")));
            put(l.join(format!("big/{i}/f")), format!("{i}"));
        }
    });
    fs::rename(bed.at("big"), bed.at("moved")).unwrap();
    assert!(gone(bed.upper("moved/3/f")), "nothing needs to be copied");
    for _ in 0..2 {
        assert!(gone(bed.at("big")));
        for i in 0..20 {
            assert_eq!(text(bed.at(format!("moved/{i}/f"))), format!("{i}"));
        }
        bed.remount();
    }
    put(bed.at("moved/3/f"), "new");
    mkdir(bed.at("big"));
    fs::rename(bed.at("moved/4"), bed.at("big/4")).unwrap();
    for _ in 0..2 {
        assert_eq!(ls(bed.at("big")), ["4"]);
        assert_eq!(text(bed.at("big/4/f")), "4");
        assert_eq!(text(bed.at("moved/3/f")), "new");
        assert!(gone(bed.at("moved/4")));
        bed.remount();
    }
}

fn chains_and_circles() {
    let mut bed = Bed::new(|l| {
        for name in ["a", "b", "c"] {
            mkdir(l.join(name));
            put(l.join(name).join("f"), name);
        }
    });
    let mv = |bed: &Bed, from: &str, to: &str| fs::rename(bed.at(from), bed.at(to)).unwrap();
    for _ in 0..3 {
        // a -> b -> c -> a
        mv(&bed, "a", "t");
        mv(&bed, "c", "a");
        mv(&bed, "b", "c");
        mv(&bed, "t", "b");
    }
    for _ in 0..2 {
        for name in ["a", "b", "c"] {
            assert_eq!(text(bed.at(name).join("f")), name);
        }
        bed.remount();
    }
    mv(&bed, "a", "b/a");
    mv(&bed, "b", "c/b");
    for _ in 0..2 {
        assert_eq!(text(bed.at("c/b/a/f")), "a");
        assert_eq!(text(bed.at("c/b/f")), "b");
        bed.remount();
    }
    assert_eq!(errno(fs::rename(bed.at("c"), bed.at("c/b/c"))), libc::EINVAL);
    assert_eq!(errno(fs::rename(bed.at("c/b/a"), bed.at("c"))), libc::ENOTEMPTY);
}

fn an_open_file_follows_its_directory() {
    let bed = Bed::new(|l| {
        mkdir(l.join("d/e"));
        put(l.join("d/e/f"), "0123");
    });
    let reader = File::open(bed.at("d/e/f")).unwrap();
    let mut writer = OpenOptions::new().append(true).open(bed.at("d/e/f")).unwrap();
    fs::rename(bed.at("d"), bed.at("x")).unwrap();
    writer.write_all(b"4").unwrap();
    fs::rename(bed.at("x/e"), bed.at("y")).unwrap();
    writer.write_all(b"5").unwrap();
    assert_eq!(text(bed.at("y/f")), "012345");
    assert_eq!(reader.metadata().unwrap().len(), 6);
    assert_eq!(reader.metadata().unwrap().ino(), stat(bed.at("y/f")).ino());
    assert_eq!(text(bed.lower("d/e/f")), "0123");
}

/// What we write, the kernel's overlayfs can mount (where it may be mounted: as root).
fn the_upper_is_an_ordinary_one() {
    if !as_root() {
        return;
    }
    let bed = Bed::new(|l| {
        mkdir(l.join("d/e"));
        put(l.join("d/e/f"), "1");
        mkdir(l.join("gone"));
        put(l.join("gone/f"), "1");
        put(l.join("deleted"), "1");
    });
    fs::rename(bed.at("d"), bed.at("moved")).unwrap();
    fs::remove_dir_all(bed.at("gone")).unwrap();
    mkdir(bed.at("gone"));
    fs::remove_file(bed.at("deleted")).unwrap();
    put(bed.at("moved/e/new"), "2");
    let expected = tree(&bed.at(""));
    let dirs = bed.dirs.clone();
    let (work, mnt): (PathBuf, PathBuf) = (bed.outside("owork"), bed.outside("omnt"));
    mkdir(&work);
    mkdir(&mnt);
    let options = format!(
        "lowerdir={},upperdir={},workdir={},userxattr,redirect_dir=follow",
        dirs.lower.display(),
        dirs.session.join("upper").display(),
        work.display()
    );
    let flags = nix::mount::MsFlags::empty();
    let mounted = nix::mount::mount(Some("overlay"), &mnt, Some("overlay"), flags, Some(options.as_str()));
    let Ok(()) = mounted else {
        // With `userxattr` this kernel may refuse redirects: then at least without following them.
        let options = options.replace(",redirect_dir=follow", "");
        if nix::mount::mount(Some("overlay"), &mnt, Some("overlay"), flags, Some(options.as_str())).is_ok() {
            assert!(gone(mnt.join("deleted")) && ls(mnt.join("gone")).is_empty());
            nix::mount::umount(&mnt).unwrap();
        }
        return;
    };
    let seen = tree(&mnt);
    nix::mount::umount(&mnt).unwrap();
    assert_eq!(seen, expected);
}
