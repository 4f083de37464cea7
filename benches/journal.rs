//! What the journal costs: appending a record, naming a process, and folding a log of 100,000 records.

use criterion::{BatchSize, Criterion, Throughput};
use sbx_fuse::base::{BaseId, Kind, RelPath, Time};
use sbx_fuse::journal::{Entry, Journal, Op, Record, fold, fold_dir};

const COUNT: u64 = 100_000;

fn base(i: u64) -> BaseId {
    let time = Time { sec: 1_700_000_000, nsec: 5 };
    BaseId {
        kind: Kind::File,
        perm: 0o644,
        uid: 1000,
        gid: 1000,
        size: 1234,
        dev: 1,
        ino: i,
        nlink: 1,
        mtime: time,
        ctime: time,
        hash: Some([7; 32]),
    }
}

/// What a build does: new objects, first writes of lower files, temporary files renamed over others, removals.
fn records() -> Vec<Record> {
    let path = |text: String| RelPath::new(text.as_bytes()).unwrap_or_default();
    (0..COUNT)
        .map(|i| {
            let dir = format!("target/debug/deps-{}/unit-{}", i / 1000, i % 1000 / 50);
            let (op, at, to, first) = match i % 5 {
                0 | 1 => (Op::Create, format!("{dir}/object-{i}.o"), None, None),
                2 => (Op::Write, format!("src/module-{}/file-{i}.rs", i / 100), None, Some(base(i))),
                3 => {
                    (Op::Rename, format!("{dir}/object-{}.o", i - 2), Some(format!("{dir}/lib-{i}.a")), None)
                }
                _ => (Op::Unlink, format!("{dir}/object-{}.o", i - 4), None, None),
            };
            Record {
                op,
                root: 0,
                path: path(at),
                path2: to.map(path),
                kind: Kind::File,
                base: first,
                base2: None,
                proc: 1,
            }
        })
        .collect()
}

fn append(c: &mut Criterion) {
    let records = records();
    let mut group = c.benchmark_group("journal");
    group.sample_size(20).throughput(Throughput::Elements(COUNT));
    group.bench_function("append 100k", |b| {
        let fresh = || {
            let dir = tempfile::tempdir().expect("a temporary directory");
            let (journal, _) = Journal::open(dir.path()).expect("a new journal");
            (dir, journal)
        };
        b.iter_batched(
            fresh,
            |(dir, journal)| {
                for record in &records {
                    journal.append(record).expect("room for a record");
                }
                (dir, journal)
            },
            BatchSize::PerIteration,
        );
    });
    let entries: Vec<Entry> = records
        .iter()
        .cloned()
        .zip(1u64..)
        .map(|(record, seq)| Entry::Record { seq, time: seq, record })
        .collect();
    group.bench_function("fold 100k", |b| {
        b.iter_batched(|| entries.clone(), fold, BatchSize::PerIteration);
    });
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (journal, _) = Journal::open(dir.path()).expect("a new journal");
    for record in &records {
        journal.append(record).expect("room for a record");
    }
    group.bench_function("read and fold 100k", |b| b.iter(|| fold_dir(dir.path()).expect("a whole log")));
    group.throughput(Throughput::Elements(1));
    group.bench_function("process, seen before", |b| b.iter(|| journal.process(std::process::id())));
    group.finish();
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    append(&mut criterion);
    criterion.final_summary();
}
