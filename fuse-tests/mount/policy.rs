//! Rules: what is hidden, denied or read-only, through every verb that takes a name.

use crate::harness::*;
use sbx_fuse::base::{Access, Pattern, Rule, Rules};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::MetadataExt;

crate::cases![
    a_hidden_name_is_not_there_and_cannot_be_made,
    a_directory_with_hidden_names_is_not_empty_and_keeps_its_place,
    nothing_can_be_done_with_a_denied_name,
    what_is_read_only_loses_its_write_permission,
    a_tree_that_is_read_only_keeps_its_content,
    rules_hold_after_a_remount,
    hard_links_do_not_lead_around_a_rule,
];

fn govern(bed: &Bed, rules: &[(&str, Access)]) {
    let rule = |(text, access): &(&str, Access)| Rule {
        pattern: Pattern::new(&bed.dirs.lower, text).unwrap(),
        access: *access,
    };
    bed.union().govern(Rules::new(rules.iter().map(rule).collect()));
}

/// The errno of writing at the end: root may open any file, and is refused when it writes.
fn append(path: std::path::PathBuf) -> i32 {
    errno(
        OpenOptions::new().append(true).open(path).and_then(|mut f| std::io::Write::write_all(&mut f, b"x")),
    )
}

fn write_new(path: std::path::PathBuf) -> i32 {
    errno(OpenOptions::new().write(true).create(true).truncate(false).open(path))
}

fn a_hidden_name_is_not_there_and_cannot_be_made() {
    let bed = Bed::new(|l| {
        mkdir(l.join("d"));
        for name in ["d/.env", "d/.env.local", "d/plain", "key"] {
            put(l.join(name), "secret");
        }
    });
    govern(&bed, &[("**/.env*", Access::Hide), ("key", Access::Hide), ("later", Access::Hide)]);
    assert_eq!(ls(bed.at("")), ["d"]);
    assert_eq!(ls(bed.at("d")), ["plain"]);
    // What comes later, in the real tree or in the session, is as hidden.
    put(bed.lower("later"), "secret");
    for name in ["key", "later", "d/.env", "d/.env.local", "d/.env.new", "later/below"] {
        let at = bed.at(name);
        assert!(gone(&at), "{name}");
        assert_eq!(errno(File::open(&at)), libc::ENOENT, "{name}");
        assert_eq!(errno(fs::remove_file(&at)), libc::ENOENT, "{name}");
        assert_eq!(errno(fs::rename(&at, bed.at("d/x"))), libc::ENOENT, "{name}");
    }
    for name in ["key", "later", "d/.env", "d/.env.new"] {
        let at = bed.at(name);
        assert_eq!(write_new(at.clone()), libc::EACCES, "{name}");
        assert_eq!(errno(fs::create_dir(&at)), libc::EACCES, "{name}");
        assert_eq!(errno(std::os::unix::fs::symlink("d", &at)), libc::EACCES, "{name}");
        assert_eq!(errno(fs::hard_link(bed.at("d/plain"), &at)), libc::EACCES, "{name}");
        assert_eq!(errno(fs::rename(bed.at("d/plain"), &at)), libc::EACCES, "{name}");
    }
    assert_eq!(text(bed.at("d/plain")), "secret");
    assert_eq!(ls(bed.at("")), ["d"]);
    assert_eq!(text(bed.lower("d/.env")), "secret");
}

fn a_directory_with_hidden_names_is_not_empty_and_keeps_its_place() {
    let bed = Bed::new(|l| {
        for dir in ["c/k", "empty", "other", "any/deep"] {
            mkdir(l.join(dir));
        }
        put(l.join("c/k/token"), "secret");
        put(l.join("any/deep/.env"), "secret");
    });
    govern(&bed, &[("c/k", Access::Hide), ("none/k", Access::Hide), ("**/.env", Access::Hide)]);
    assert_eq!(ls(bed.at("c")), Vec::<String>::new());
    assert_eq!(errno(fs::remove_dir(bed.at("c"))), libc::ENOTEMPTY);
    assert_eq!(errno(fs::rename(bed.at("empty"), bed.at("c"))), libc::EACCES);
    assert_eq!(errno(fs::remove_dir(bed.at("any/deep"))), libc::ENOTEMPTY);
    assert_eq!(errno(fs::rename(bed.at("empty"), bed.at("any/deep"))), libc::ENOTEMPTY);
    // At another place what the rule means would be free.
    assert_eq!(errno(fs::rename(bed.at("c"), bed.at("free"))), libc::EACCES);
    assert_eq!(errno(fs::rename(bed.at("other"), bed.at("none"))), libc::EACCES);
    let exchange = nix::fcntl::RenameFlags::RENAME_EXCHANGE;
    let swap = |a: &str, b: &str| {
        let cwd = nix::fcntl::AT_FDCWD;
        nix_errno(nix::fcntl::renameat2(cwd, &bed.at(a), cwd, &bed.at(b), exchange))
    };
    assert_eq!((swap("c", "other"), swap("other", "c")), (libc::EACCES, libc::EACCES));
    assert_eq!(swap("other", "c/k"), libc::ENOENT);
    // A rule for any depth goes along.
    fs::rename(bed.at("any"), bed.at("moved")).unwrap();
    assert_eq!(ls(bed.at("moved/deep")), Vec::<String>::new());
    assert!(gone(bed.at("moved/deep/.env")));
    // What is made beneath a rule's directories is under the rule as well.
    fs::create_dir(bed.at("none")).unwrap();
    assert_eq!(errno(fs::create_dir(bed.at("none/k"))), libc::EACCES);
    fs::create_dir(bed.at("none/j")).unwrap();
}

fn nothing_can_be_done_with_a_denied_name() {
    let bed = Bed::new(|l| {
        mkdir(l.join("d/sub"));
        put(l.join("d/f"), "secret");
        put(l.join("f"), "secret");
        put(l.join("plain"), "x");
    });
    govern(&bed, &[("d", Access::Deny), ("f", Access::Deny)]);
    assert_eq!(ls(bed.at("")), ["d", "f", "plain"]);
    let kinds: Vec<bool> = {
        let mut all: Vec<_> = fs::read_dir(bed.at("")).unwrap().map(|e| e.unwrap()).collect();
        all.sort_by_key(fs::DirEntry::file_name);
        all.iter().map(|e| e.file_type().unwrap().is_dir()).collect()
    };
    assert_eq!(kinds, [true, false, false]);
    for name in ["d", "d/f", "f"] {
        let at = bed.at(name);
        assert_eq!(errno(fs::symlink_metadata(&at)), libc::EACCES, "{name}");
        assert_eq!(errno(File::open(&at)), libc::EACCES, "{name}");
        assert_eq!(write_new(at.clone()), libc::EACCES, "{name}");
        assert_eq!(errno(fs::rename(&at, bed.at("x"))), libc::EACCES, "{name}");
        assert_eq!(errno(fs::rename(bed.at("plain"), &at)), libc::EACCES, "{name}");
        assert_eq!(errno(fs::remove_file(&at)), libc::EACCES, "{name}");
        assert_eq!(errno(fs::hard_link(&at, bed.at("x"))), libc::EACCES, "{name}");
    }
    assert_eq!(errno(fs::read_dir(bed.at("d"))), libc::EACCES);
    assert_eq!(errno(fs::remove_dir(bed.at("d"))), libc::EACCES);
    assert_eq!(text(bed.lower("f")), "secret");
    assert!(gone(bed.upper("f")) && gone(bed.upper("x")));
}

fn what_is_read_only_loses_its_write_permission() {
    let bed = Bed::new(|l| {
        put(l.join("f"), "real");
        put(l.join("plain"), "x");
        chmod(l.join("f"), 0o666);
    });
    govern(&bed, &[("f", Access::ReadOnly), ("new", Access::ReadOnly)]);
    let f = bed.at("f");
    assert_eq!(text(&f), "real");
    assert_eq!(stat(&f).mode() & 0o777, 0o444);
    assert_eq!(append(f.clone()), libc::EACCES);
    assert_eq!(errno(File::create(&f)), libc::EACCES);
    assert_eq!(errno(fs::set_permissions(&f, stat(&f).permissions())), libc::EACCES);
    assert_eq!(errno(fs::remove_file(&f)), libc::EACCES);
    assert_eq!(errno(fs::rename(&f, bed.at("x"))), libc::EACCES);
    assert_eq!(errno(fs::rename(bed.at("plain"), &f)), libc::EACCES);
    assert_eq!(errno(fs::hard_link(&f, bed.at("x"))), libc::EACCES);
    assert_eq!(write_new(bed.at("new")), libc::EACCES);
    assert_eq!(text(&f), "real");
    assert!(gone(bed.upper("f")));
}

fn a_tree_that_is_read_only_keeps_its_content() {
    let bed = Bed::new(|l| {
        mkdir(l.join("v/a/b"));
        put(l.join("v/a/b/f"), "real");
        put(l.join("v/.env"), "secret");
        mkdir(l.join("w"));
    });
    govern(&bed, &[("v", Access::ReadOnly), ("v/.env", Access::Hide)]);
    assert_eq!(text(bed.at("v/a/b/f")), "real");
    assert!(gone(bed.at("v/.env")));
    for name in ["v/new", "v/a/new", "v/a/b/new"] {
        assert_eq!(write_new(bed.at(name)), libc::EACCES, "{name}");
        assert_eq!(errno(fs::create_dir(bed.at(name))), libc::EACCES, "{name}");
        assert_eq!(errno(fs::rename(bed.at("w"), bed.at(name))), libc::EACCES, "{name}");
    }
    assert_eq!(errno(fs::remove_file(bed.at("v/a/b/f"))), libc::EACCES);
    assert_eq!(errno(fs::remove_dir_all(bed.at("v"))), libc::EACCES);
    assert_eq!(errno(fs::rename(bed.at("v"), bed.at("x"))), libc::EACCES);
    assert_eq!(errno(fs::rename(bed.at("v/a"), bed.at("x"))), libc::EACCES);
    assert_eq!(errno(File::create(bed.at("v/a/b/f"))), libc::EACCES);
    assert!(gone(bed.upper("v/a")));
    put(bed.at("w/free"), "1");
}

fn rules_hold_after_a_remount() {
    let mut bed = Bed::new(|l| mkdir(l.join("d")));
    put(bed.at("d/k"), "made before the rule");
    put(bed.at("d/j"), "1");
    bed.remount();
    govern(&bed, &[("d/k", Access::Hide), ("d/j", Access::ReadOnly)]);
    assert_eq!(ls(bed.at("d")), ["j"]);
    assert_eq!(write_new(bed.at("d/k")), libc::EACCES);
    assert_eq!(append(bed.at("d/j")), libc::EACCES);
    assert_eq!(errno(fs::remove_file(bed.at("d/j"))), libc::EACCES);
    bed.remount();
    assert_eq!(ls(bed.at("d")), ["j", "k"]);
    put(bed.at("d/j"), "2");
}

fn hard_links_do_not_lead_around_a_rule() {
    let bed = Bed::new(|l| {
        put(l.join("f"), "real");
        fs::hard_link(l.join("f"), l.join("g")).unwrap();
    });
    govern(&bed, &[("f", Access::ReadOnly)]);
    assert_eq!(stat(bed.at("f")).mode() & 0o222, 0);
    // One object: known to be read-only, it is so by every name.
    assert_eq!(append(bed.at("g")), libc::EACCES);
    assert_eq!(text(bed.at("f")), "real");
}
