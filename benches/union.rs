//! The union's verbs without a mount: lookup, listing, copy-up, creation.

#![allow(missing_docs)] // the macros of criterion make public functions
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use sbx_fuse::base::Name;
use sbx_fuse::journal::Journal;
use sbx_fuse::layer::{self, LayerKind};
use sbx_fuse::sys::file;
use sbx_fuse::union::{Caller, Config, LayerConfig, ROOT_ID, RootConfig, Union, UpperConfig, View};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const FILES: u64 = 1000;

fn open(path: &Path) -> OwnedFd {
    file::open_path(path.as_os_str().as_bytes(), libc::O_PATH | libc::O_DIRECTORY).expect("a directory")
}

fn union(dir: &Path) -> Arc<Union> {
    for sub in ["lower", "upper", "work", "journal"] {
        std::fs::create_dir_all(dir.join(sub)).expect("a directory can be made");
    }
    for i in 0..FILES {
        std::fs::write(dir.join(format!("lower/file{i}")), vec![b'x'; 1024]).expect("a file can be made");
    }
    let work = open(&dir.join("work"));
    let features = layer::probe(work.as_fd()).expect("the upper can be probed");
    let (journal, _) = Journal::open(&dir.join("journal")).expect("a journal");
    let root = RootConfig {
        name: Name::new(b"root").expect("a name"),
        real_path: dir.join("lower").as_os_str().as_bytes().to_vec(),
        upper: Some(UpperConfig { dir: open(&dir.join("upper")), work, features, shared: false }),
        lowers: vec![LayerConfig { dir: open(&dir.join("lower")), kind: LayerKind::Plain }],
    };
    let journal = Some(Arc::new(journal));
    let config = Config {
        roots: vec![root],
        single: true,
        hidden: Vec::new(),
        journal,
        multi_user: false,
        view: View::default(),
    };
    Union::new(config).expect("a union")
}

fn verbs(c: &mut Criterion) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let union = union(dir.path());
    let who = Caller { pid: std::process::id(), ..Caller::default() };
    let next = AtomicU64::new(0);
    let mut group = c.benchmark_group("union");

    group.bench_function("lookup", |b| {
        b.iter(|| {
            let name = format!("file{}", next.fetch_add(1, Ordering::Relaxed) % FILES);
            let entry = union.lookup(ROOT_ID, name.as_bytes()).expect("it is there");
            union.forget(entry.id, 1);
        });
    });

    group.throughput(Throughput::Elements(FILES));
    group.bench_function("readdir", |b| {
        b.iter(|| {
            let mut ids = Vec::new();
            union
                .readdir(ROOT_ID, 2, true, |item| {
                    ids.push(item.id);
                    true
                })
                .expect("a listing");
            ids.into_iter().for_each(|id| union.forget(id, 1));
        });
    });

    group.throughput(Throughput::Elements(1));
    let mut file = 0;
    group.bench_function("copy_up", |b| {
        b.iter_batched(
            || {
                file += 1;
                let name = format!("fresh{file}");
                std::fs::write(dir.path().join("lower").join(&name), vec![b'x'; 1024])
                    .expect("a file can be made");
                union.lookup(ROOT_ID, name.as_bytes()).expect("it is there").id
            },
            |id| union.write(&who, id, 0, b"y").expect("a write"),
            BatchSize::PerIteration,
        );
    });

    let mut made = 0;
    group.bench_function("create", |b| {
        b.iter(|| {
            made += 1;
            let name = format!("made{made}");
            let entry =
                union.mknod(&who, ROOT_ID, name.as_bytes(), libc::S_IFREG | 0o644, 0).expect("a file");
            union.forget(entry.id, 1);
        });
    });
    group.finish();
}

criterion_group!(benches, verbs);
criterion_main!(benches);
