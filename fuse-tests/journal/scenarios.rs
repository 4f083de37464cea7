//! What small runs of operations amount to. One line per operation, one per expected change.
//!
//! Operations: `create f`, `mkdir d`, `symlink s`, `link new old`, `unlink f`, `rmdir d`, `mv a b`, `mvdir a b`, `swap a b`,
//! `write f`, `attr f`, `applied f`, `discarded f`, `found f [from]`, `founddir d [from]`, `gone f`, `same f`, `merged d`,
//! `hidden f`. A `*` after a path says that it was an
//! untouched lower object until then: its base is `base(kind, ino)` with the sum of the bytes of its lower path as inode.
//! Changes: `A f`, `M f`, `D f`, `R b<a`, `T f`, `P f`, with `+c`/`+m` for content and attributes where it is `R` or `P`, `o` for opaque,
//! `@a` for the base of the lower `a`, and `!t` for a replaced base of the lower `t`.

use crate::{base, path};
use sbx_fuse::base::{BaseId, Change, Kind, What, quote};
use sbx_fuse::journal::{Command, Entry, Folded, Op, Process, Record, fold};

fn ino(lower: &str) -> u64 {
    lower.bytes().enumerate().map(|(i, b)| (i as u64 + 1) * u64::from(b)).sum()
}

fn parse(line: &str) -> Record {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (op, kind) = match words[0] {
        "create" => (Op::Create, Kind::File),
        "mkdir" => (Op::Mkdir, Kind::Dir),
        "symlink" => (Op::Symlink, Kind::Symlink),
        "link" => (Op::Link, Kind::File),
        "unlink" => (Op::Unlink, Kind::File),
        "rmdir" => (Op::Rmdir, Kind::Dir),
        "mv" => (Op::Rename, Kind::File),
        "mvdir" => (Op::Rename, Kind::Dir),
        "swap" => (Op::Exchange, Kind::File),
        "write" => (Op::Write, Kind::File),
        "attr" => (Op::SetAttr, Kind::File),
        "dattr" => (Op::SetAttr, Kind::Dir),
        "applied" => (Op::Applied, Kind::File),
        "discarded" => (Op::Discarded, Kind::File),
        "found" => (Op::FoundPresent, Kind::File),
        "founddir" => (Op::FoundPresent, Kind::Dir),
        "gone" => (Op::FoundGone, Kind::File),
        "same" => (Op::FoundSame, Kind::File),
        "merged" => (Op::Merged, Kind::Dir),
        "hidden" => (Op::Hidden, Kind::File),
        other => panic!("{other}"),
    };
    let lower = |word: Option<&&str>| -> Option<BaseId> {
        let (at, from) = word?.split_once('*')?;
        Some(base(kind, ino(if from.is_empty() { at } else { from })))
    };
    let name = |word: &&str| path(word.split('*').next().unwrap());
    Record {
        op,
        root: 0,
        path: name(&words[1]),
        path2: words.get(2).map(name),
        kind,
        base: lower(words.get(1)),
        base2: lower(words.get(2)),
        proc: 0,
    }
}

fn show(folded: &Folded, c: &Change, lowers: &[&str]) -> String {
    let mut out = format!("{} {}", c.what.letter(), quote(c.path.as_bytes()));
    if let Some(from) = &c.from {
        out += &format!("<{from}");
    }
    if matches!(c.what, What::Renamed | What::Meta | What::Deleted) {
        out += if c.content { "+c" } else { "" };
        out += if c.meta && c.what != What::Meta { "+m" } else { "" };
    }
    out += if c.opaque { "o" } else { "" };
    let name = |b: &BaseId| lowers.iter().find(|l| ino(l) == b.ino).unwrap().to_string();
    out += &c.base.as_ref().map_or(String::new(), |b| format!("@{}", name(b)));
    out += &folded.replaced.get(&(c.root, c.path.clone())).map_or(String::new(), |b| format!("!{}", name(b)));
    out
}

fn run(ops: &str) -> Folded {
    let lines = ops.split(';').map(str::trim).filter(|l| !l.is_empty());
    fold(lines.zip(1..).map(|(line, seq)| Entry::Record { seq, time: seq * 10, record: parse(line) }))
}

#[track_caller]
fn check(ops: &str, want: &str) {
    let folded = run(ops);
    let lowers: Vec<&str> = ops
        .split([' ', ';'])
        .filter_map(|w| w.split_once('*'))
        .map(|(a, b)| if b.is_empty() { a } else { b })
        .collect();
    let got: Vec<String> = folded.set.changes.iter().map(|c| show(&folded, c, &lowers)).collect();
    assert_eq!(got.join("; "), want, "after: {ops}");
}

#[test]
fn made_changed_and_removed() {
    for (ops, want) in [
        ("create f", "A f"),
        ("create f; write f", "A f"),
        ("create f; write f; unlink f", ""),
        ("mkdir d; create d/f", "A d; A d/f"),
        ("mkdir d; create d/f; unlink d/f; rmdir d", ""),
        ("write f*", "M f@f"),
        ("write d/f*; attr d/f", "M d/f@d/f"),
        ("attr f*", "P f@f"),
        ("dattr d*", "P d@d"),
        ("unlink f*", "D f@f"),
        ("write f*; unlink f", "D f@f"),
        ("unlink f*; create f", "M f@f"),
        ("unlink f*; create f; unlink f", "D f@f"),
        ("unlink f*; symlink f", "T f@f"),
        ("unlink f*; mkdir f", "T fo@f"),
        ("link b a", "A b"),
        ("link b a; write a*", "M a@a; A b"),
        ("link b a; unlink a*", "D a@a; A b"),
    ] {
        check(ops, want);
    }
}

#[test]
fn directories() {
    for (ops, want) in [
        ("unlink d/a*; unlink d/b*; rmdir d*", "D d@d"),
        ("unlink d/a*; rmdir d*; mkdir d", "M do@d"),
        ("unlink d/a*; rmdir d*; mkdir d; create d/a", "M do@d; A d/a"),
        ("rmdir d*; mkdir d; rmdir d", "D d@d"),
        ("rmdir d*; create d", "T d@d"),
        ("mvdir d* e; write e/f*d/f", "R e<d@d; M e/f@d/f"),
        ("write d/f*; mvdir d* e", "R e<d@d; M e/f@d/f"),
        ("mvdir d* e; unlink e/f*d/f", "R e<d@d; D e/f@d/f"),
        ("mvdir d* e; unlink e/f*d/f; rmdir e", "D d@d"),
        ("mvdir d* e; mkdir d; create d/f", "M do@d; A d/f; R e<d@d"),
        ("mvdir d* e; mv e/f*d/f g", "R e<d@d; R g<d/f@d/f"),
        ("mv d/f* g; rmdir d*", "D d@d; R g<d/f@d/f"),
        ("mv d/f* g; rmdir d*; unlink g", "D d@d"),
        ("mv d/f* g; unlink g", "D d/f@d/f"),
        ("mv d/f* g; mvdir d* e; unlink g", "R e<d@d; D e/f@d/f"),
        ("mv d/f* g; mvdir d* e; mv g e/f", "R e<d@d"),
        ("mv d/f* g; rmdir d*; mkdir d; mv g d/f", "M do@d; M d/f@d/f"),
        ("mkdir n; mvdir d* n/d; write n/d/f*d/f", "A n; R n/d<d@d; M n/d/f@d/f"),
        ("mkdir n; create n/f; mvdir n m", "A m; A m/f"),
        ("mvdir a/b* b; mvdir a* b/a; write b/a/x*a/x", "R b<a/b@a/b; R b/a<a@a; M b/a/x@a/x"),
    ] {
        check(ops, want);
    }
}

#[test]
fn renames() {
    for (ops, want) in [
        ("mv a* b", "R b<a@a"),
        ("mv a* b; mv b a", ""),
        ("mv a* b; mv b a; write a", "M a@a"),
        ("mv a* b; mv b c; mv c d", "R d<a@a"),
        ("mv a* b; write b", "R b<a+c@a"),
        ("attr a*; mv a b", "R b<a+m@a"),
        ("mv a* b; unlink b", "D a@a"),
        ("mv a* b*", "R b<a@a!b"),
        ("unlink b*; mv a* b", "R b<a@a!b"),
        ("mv a* b*; unlink b", "D a@a; D b@b"),
        ("mv a* b*; mv b a", "D b@b"),
        ("mv a* b; create a", "M a@a; R b<a@a"),
        ("mv a* b; mkdir a", "T ao@a; R b<a@a"),
        ("mv a* b; create a; unlink a", "R b<a@a"),
        ("mv a* b; create a; unlink b", "M a@a"),
        ("create t; mv t f", "A f"),
        ("create t; write t; mv t f*", "M f@f"),
        ("create t; mv t f*; mv f g", "D f@f; A g"),
        ("create t; mv t f*; unlink f", "D f@f"),
        ("create a; create b; mv a b", "A b"),
        ("swap a* b*", "R a<b@b; R b<a@a"),
        ("swap a* b*; swap a b", ""),
        ("swap a* b*; unlink a", "R b<a@a!b"),
        ("create n; swap a* n", "M a@a; R n<a@a"),
        ("mv a* t; mv b* a; mv t b", "R a<b@b; R b<a@a"),
        ("mv a* a/b", ""),
        ("swap a/b* a", ""),
    ] {
        check(ops, want);
    }
}

#[test]
fn applied_and_discarded() {
    for (ops, want) in [
        ("write f*; applied f", ""),
        ("write f*; discarded f; write f*", "M f@f"),
        ("create f; applied f", ""),
        ("create f; applied f; unlink f*", "D f@f"),
        ("create f; discarded f", ""),
        ("create f; discarded f; create f", "A f"),
        ("unlink f*; applied f", ""),
        ("unlink f*; discarded f; write f*", "M f@f"),
        ("unlink f*; create f; applied f; write f", "M f"),
        ("mv a* b; applied b", ""),
        ("mv a* b; discarded b", ""),
        ("mv a* b; applied b; unlink b*", "D b@b"),
        ("mv a* b; discarded b; unlink a*", "D a@a"),
        ("mv a* b; applied b; create a", "A a"),
        ("mv a* b; create a; applied b", "A a"),
        ("mv a* b; create a; discarded b", "M a@a"),
        ("mv a* b; create a; applied a", "A b"),
        ("mv a* b*; discarded b", ""),
        ("swap a* b*; applied a; applied b", ""),
        ("mvdir d* e; write e/f*d/f; applied e", "M e/f@d/f"),
        ("mvdir d* e; write e/f*d/f; discarded e", "M d/f@d/f"),
        ("mvdir d* e; mv e/f*d/f g; applied e", "R g<e/f@d/f"),
        (
            "mvdir d* e; create e/c/t; mv e/c/t e/c/f*d/c/f; applied e/c/f; applied e; unlink e/c/f*e/c/f",
            "D e/c/f@e/c/f",
        ),
        ("mkdir d; create d/f; applied d", "A d/f"),
        ("mvdir d* e; mkdir d; create d/f; discarded d", "M do@d; A d/f; R e<d@d"),
        ("mvdir d* e; mkdir d; create d/f; discarded d/f; discarded d", "R e<d@d"),
        ("mkdir d; create d/f; discarded d; discarded d/f", ""),
        ("mkdir d; create d/f; discarded d/f; discarded d", ""),
        (
            "rmdir d*; mkdir d; create d/f; create d/g; merged d; hidden d/e*; hidden d/f*",
            "P d@d; D d/e@d/e; M d/f@d/f; A d/g",
        ),
        (
            "rmdir d*; mkdir d; create d/f; merged d; hidden d/e*; hidden d/f*; applied d/f",
            "P d@d; D d/e@d/e",
        ),
        (
            "rmdir d*; mkdir d; create d/f; merged d; hidden d/e*; hidden d/f*; discarded d/e",
            "P d@d; M d/f@d/f",
        ),
        ("mv d/e* x; rmdir d*; mkdir d; merged d; hidden d/e*", "P d@d; R x<d/e@d/e"),
        ("mv d/e* x; rmdir d*; mkdir d; merged d; hidden d/e*; discarded x", "P d@d"),
        ("mv d/f* g; rmdir d*; mkdir d; mv g d/f; merged d; hidden d/f*", "P d@d"),
        ("unlink d/f*; rmdir d*; mkdir d; create d/g; applied d", "A d/g"),
        ("dattr d*; write d/f*; applied d", "M d/f@d/f"),
        ("applied nothing; discarded d/nothing", ""),
    ] {
        check(ops, want);
    }
}

#[test]
fn found_by_recovery() {
    for (ops, want) in [
        ("found f", "A f"),
        ("found f f", "M f"),
        ("found f* f", "M f@f"),
        ("founddir d d", "P d+c"),
        ("found f*", "M f@f"),
        ("gone f", "D f"),
        ("gone f*; found f", "M f@f"),
        ("found b* a", "R b<a+c+m@b"),
        ("gone a*; found b a", "R b<a+c+m@a"),
        ("found b a; gone a", "R b<a+c+m"),
        ("write a*; found b a", "R b<a+c+m@a"),
        ("mv a* b; found c a", "R c<a+c+m@a"),
        ("mv a* b; found a* a", "M a@a"),
        ("rmdir d*; found g d/f", "D d@d; R g<d/f+c+m"),
        ("write f*; gone f", "D f@f"),
        ("create f; gone f", "D f"),
        ("create f; same f", ""),
        ("write f*; same f", ""),
        ("unlink f*; same f", ""),
        ("unlink f*; create f; same f", ""),
        ("mv a* b; same b", ""),
        ("mv a* b; same b; gone a*", "D a@a"),
        ("mkdir d; create d/f; gone d", "D d"),
    ] {
        check(ops, want);
    }
}

#[test]
fn look_ups_by_path_and_the_process_of_a_change() {
    let mut folded =
        run("create d; create d-x; mkdir d.d; mvdir p* q; write q/s/t*p/s/t; mkdir n; create n/x");
    let under =
        |dir: &str| -> Vec<String> { folded.under(0, &path(dir)).map(|c| c.path.to_string()).collect() };
    assert_eq!(under("q"), ["q", "q/s/t"]);
    assert_eq!(under("d"), ["d"]);
    assert_eq!(under("q/s"), ["q/s/t"]);
    assert_eq!(under("").len(), 7);
    assert_eq!(folded.under(1, &path("")).count(), 0);
    assert_eq!(folded.get(0, &path("q")).unwrap().from, Some(path("p")));
    assert_eq!(folded.get(0, &path("p")), None);
    assert_eq!(folded.lower_path(0, &path("q/s/t")), Some(path("p/s/t")));
    assert_eq!(folded.lower_path(0, &path("z/y")), Some(path("z/y")));
    assert_eq!(folded.lower_path(0, &path("n/x")), None);
    let change = folded.get(0, &path("q/s/t")).unwrap().clone();
    assert_eq!((change.last.seq, change.last.time), (5, 50));
    assert_eq!(folded.process(&change), None);
    let process = Process { id: 0, pid: 9, start: 1, comm: b"cc".to_vec(), exe: Vec::new(), command: 4 };
    folded.processes.insert(0, process.clone());
    folded.commands.insert(4, Command { id: 4, pid: 1, argv: vec![b"make".to_vec()] });
    assert_eq!(folded.process(&change), Some(&process));
    assert_eq!(folded.command(&change).unwrap().argv, [b"make"]);
}
