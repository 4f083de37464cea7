//! Tidiness is a test: who may import whom, how long a file may be, where `unsafe` and `fuser` may stand.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Room → rooms it may import. The table of the architecture; `cli` may import anything.
const MAY: &[(&str, &[&str])] = &[
    ("base", &[]),
    ("sys", &["base"]),
    ("layer", &["base", "sys"]),
    ("journal", &["base", "sys"]),
    ("union", &["base", "sys", "layer", "journal"]),
    ("fuse", &["base", "sys", "union"]),
    ("session", &["base", "sys", "layer", "journal"]),
    ("sandbox", &["base", "sys", "layer", "journal"]),
    ("review", &["base", "sys", "layer", "journal", "session"]),
];

/// A file without its tests stays below this many lines.
const MAX_LINES: usize = 700;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn rust_files(dir: &Path) -> Vec<PathBuf> {
    walkdir::WalkDir::new(dir)
        .into_iter()
        .map(|e| e.expect("the tree can be read").into_path())
        .filter(|p| p.extension().is_some_and(|e| e == "rs"))
        .collect()
}

/// The text of a file up to its test module, comments taken out.
fn code(path: &Path) -> String {
    let text = std::fs::read_to_string(path).expect("a source file can be read");
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    text.lines().map(|l| l.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

fn room_of(path: &Path) -> String {
    let rel = path.strip_prefix(root().join("src")).expect("below src");
    rel.components()
        .next()
        .expect("a component")
        .as_os_str()
        .to_str()
        .expect("our names are UTF-8")
        .to_owned()
}

#[test]
fn rooms_import_only_what_the_table_allows() {
    let table: BTreeMap<&str, &[&str]> = MAY.iter().copied().collect();
    let mut wrong = Vec::new();
    for path in rust_files(&root().join("src")) {
        let room = room_of(&path);
        let Some(allowed) = table.get(room.as_str()) else {
            assert!(
                ["cli", "lib.rs", "main.rs"].contains(&room.as_str()),
                "a room without a row in the table: {room}"
            );
            continue;
        };
        for (at, _) in code(&path).match_indices("crate::") {
            let code = code(&path);
            let name: String =
                code[at + 7..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            if !name.is_empty() && name != room && !allowed.contains(&name.as_str()) {
                wrong.push(format!("{} imports {name}", path.display()));
            }
            if let Some(list) = code[at + 7..].strip_prefix('{') {
                let list = list.split("};").next().unwrap_or_default();
                let mut depth = 0;
                for part in list.split_inclusive([',', '{', '}']) {
                    let word: String =
                        part.trim().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                    if depth == 0 && !word.is_empty() && word != room && !allowed.contains(&word.as_str()) {
                        wrong.push(format!("{} imports {word}", path.display()));
                    }
                    depth += part.matches('{').count();
                    depth = depth.saturating_sub(part.matches('}').count());
                }
            }
        }
    }
    assert!(wrong.is_empty(), "imports against the table:\n{}", wrong.join("\n"));
}

#[test]
fn unsafe_stays_in_sys_and_fuser_in_fuse() {
    for path in rust_files(&root().join("src")) {
        let (room, code) = (room_of(&path), code(&path));
        let has = |word: &str| code.split(|c: char| !c.is_alphanumeric() && c != '_').any(|w| w == word);
        assert!(room == "sys" || !has("unsafe"), "unsafe outside src/sys: {}", path.display());
        assert!(room == "fuse" || !has("fuser"), "fuser outside src/fuse: {}", path.display());
    }
}

#[test]
fn files_stay_short_and_say_what_lives_in_them() {
    for path in rust_files(&root().join("src")) {
        let text = std::fs::read_to_string(&path).expect("a source file can be read");
        assert!(text.starts_with("//!"), "{} does not begin with what lives there", path.display());
        let lines = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default().lines().count();
        assert!(lines <= MAX_LINES, "{} has {lines} lines", path.display());
    }
}

#[test]
fn nothing_is_left_undone_or_swallowed() {
    for path in rust_files(&root().join("src")) {
        let code = code(&path);
        for bad in ["todo!", "unimplemented!", "let _ =", "to_string_lossy", "from_utf8_lossy"] {
            assert!(!code.contains(bad), "{bad} in {}", path.display());
        }
    }
}

#[test]
fn tests_do_not_sleep_and_none_is_forgotten() {
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).expect("the manifest can be read");
    let kinds = std::fs::read_dir(root().join("fuse-tests")).expect("fuse-tests can be read");
    for kind in kinds {
        let kind = kind.expect("an entry").path();
        if kind.join("main.rs").symlink_metadata().is_ok() {
            let line = format!(
                "path = \"fuse-tests/{}/main.rs\"",
                kind.file_name().expect("a name").to_str().expect("UTF-8")
            );
            assert!(manifest.contains(&line), "not registered in Cargo.toml: {line}");
        }
    }
    for path in rust_files(&root().join("fuse-tests")) {
        if path.ends_with("tidy/main.rs") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a test can be read");
        assert!(!text.contains("#[ignore"), "an ignored test in {}", path.display());
    }
}
