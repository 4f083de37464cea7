//! What the journal costs an untar: the same archive unpacked into two mounts in turn, one with a journal and one
//! without. Prints the median of each and of their ratio. `cargo bench --bench untar [-- ROUNDS]`.

#![allow(missing_docs)]

use sbx_fuse::base::Name;
use sbx_fuse::fuse::{self, How, Options, Server};
use sbx_fuse::journal::Journal;
use sbx_fuse::layer::{self, LayerKind};
use sbx_fuse::sys::file;
use sbx_fuse::union::{Config, LayerConfig, RootConfig, Union, UpperConfig, View};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Files in the archive, of `SIZE` bytes each, `EACH` in a directory.
const FILES: usize = 3000;
const SIZE: usize = 6000;
const EACH: usize = 50;

fn open(path: &Path) -> OwnedFd {
    file::open_path(path.as_os_str().as_bytes(), libc::O_PATH | libc::O_DIRECTORY).expect("a directory")
}

/// A mount over an empty directory, everything below `dir`.
fn mounted(dir: &Path, journaled: bool) -> (Server, PathBuf) {
    for sub in ["lower", "upper", "work", "journal", "mnt"] {
        std::fs::create_dir_all(dir.join(sub)).expect("a directory can be made");
    }
    let work = open(&dir.join("work"));
    let features = layer::probe(work.as_fd()).expect("the upper can be probed");
    let journal = journaled.then(|| Arc::new(Journal::open(&dir.join("journal")).expect("a journal").0));
    let root = RootConfig {
        name: Name::new(b"root").expect("a name"),
        real_path: dir.join("lower").as_os_str().as_bytes().to_vec(),
        upper: Some(UpperConfig { dir: open(&dir.join("upper")), work, features, shared: false }),
        lowers: vec![LayerConfig { dir: open(&dir.join("lower")), kind: LayerKind::Plain }],
    };
    let config = Config {
        roots: vec![root],
        single: true,
        hidden: Vec::new(),
        journal,
        multi_user: false,
        view: View::default(),
    };
    let options = Options {
        how: if nix::unistd::geteuid().is_root() { How::Direct } else { How::Helper },
        allow_other: false,
        fsname: "bench".into(),
        subtype: "sbx-fuse".into(),
        flags: 0,
        extra: Vec::new(),
        threads: 2,
    };
    let mountpoint = dir.join("mnt");
    let union = Union::new(config).expect("a union");
    (fuse::mount(union, &mountpoint, &options).expect("a mount"), mountpoint)
}

fn archive(dir: &Path) -> PathBuf {
    let path = dir.join("files.tar");
    let mut tar = tar::Builder::new(std::fs::File::create(&path).expect("an archive"));
    let content = vec![b'x'; SIZE];
    for n in 0..FILES {
        let mut header = tar::Header::new_ustar();
        header.set_size(SIZE as u64);
        header.set_mode(0o644);
        header.set_mtime(1_700_000_000);
        tar.append_data(&mut header, format!("d{}/file{n}", n / EACH), &content[..]).expect("an entry");
    }
    tar.finish().expect("a whole archive");
    path
}

fn untar(archive: &Path, at: &Path) -> Duration {
    std::fs::create_dir(at).expect("a directory can be made");
    let start = Instant::now();
    let done = Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(at).status().expect("tar runs");
    let took = start.elapsed();
    assert!(done.success(), "tar: {done}");
    std::fs::remove_dir_all(at).expect("what was unpacked goes again");
    took
}

fn median<T: Copy + PartialOrd>(mut of: Vec<T>) -> T {
    of.sort_by(|a, b| a.partial_cmp(b).expect("numbers"));
    of[of.len() / 2]
}

fn main() {
    let rounds = std::env::args().skip(1).find_map(|a| a.parse().ok()).unwrap_or(15);
    let dir = tempfile::tempdir().expect("a temporary directory");
    let archive = archive(dir.path());
    let (with, without) =
        (mounted(&dir.path().join("with"), true), mounted(&dir.path().join("without"), false));
    let (mut on, mut off, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=rounds {
        // In turn first, so that neither has the warmer caches.
        let (a, b) = if round % 2 == 0 {
            let a = untar(&archive, &with.1.join("out"));
            (a, untar(&archive, &without.1.join("out")))
        } else {
            let b = untar(&archive, &without.1.join("out"));
            (untar(&archive, &with.1.join("out")), b)
        };
        if round > 0 {
            on.push(a);
            off.push(b);
            ratios.push(a.as_secs_f64() / b.as_secs_f64());
        }
    }
    println!(
        "untar of {FILES} files: {:?} with a journal, {:?} without; median ratio {:.3} of {rounds} rounds",
        median(on),
        median(off),
        median(ratios)
    );
    for (server, _) in [with, without] {
        server.unmount().expect("an unmount");
        server.join().expect("an end in good order");
    }
}
