//! Which changes a person marked as reviewed. A mark is pinned to what was looked at: when the session or the real tree
//! changes that afterwards, it is no longer a mark of it.
//!
//! A file of lines, one for each mark that was set or taken away, so that setting one costs the same however many there
//! are; written anew when it is read.

use super::settle::Settled;
use crate::base::{Error, Kind, RelPath, Result, Time};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// One line of the file; without a pin the mark is taken away.
#[derive(Serialize, Deserialize)]
struct Line {
    root: u16,
    path: RelPath,
    pin: Option<String>,
}

/// The marks of a session.
#[derive(Debug)]
pub struct Marks {
    at: PathBuf,
    pins: BTreeMap<(u16, RelPath), String>,
}

impl Marks {
    /// Reads the marks in the file `at`, which need not be there, and keeps those that are still of something in `set`.
    ///
    /// # Errors
    /// When it cannot be read or written.
    pub fn open(at: &Path, set: &[Settled]) -> Result<Marks> {
        let failed = |e| Error::on_path("read", at.as_os_str().as_bytes(), e);
        let text = match std::fs::read(at) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(e) => return Err(failed(e)),
        };
        let mut marks = Marks { at: at.to_owned(), pins: BTreeMap::new() };
        // A line that is not whole was being written when its writer died.
        for line in text.split(|&b| b == b'\n').filter_map(|l| serde_json::from_slice::<Line>(l).ok()) {
            match line.pin {
                Some(pin) => marks.pins.insert((line.root, line.path), pin),
                None => marks.pins.remove(&(line.root, line.path)),
            };
        }
        let before = marks.pins.len();
        let good: BTreeMap<_, _> = set
            .iter()
            .filter(|s| marks.has(s))
            .map(|s| ((s.change.root, s.change.path.clone()), pin(s)))
            .collect();
        marks.pins = good;
        if before != marks.pins.len() || !text.is_empty() {
            marks.write_anew()?;
        }
        Ok(marks)
    }

    /// Whether the change is marked, as it is.
    pub fn has(&self, s: &Settled) -> bool {
        self.pins.get(&(s.change.root, s.change.path.clone())).is_some_and(|p| *p == pin(s))
    }

    /// Marks changes, or takes their marks away.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn set<'a>(&mut self, changes: impl IntoIterator<Item = &'a Settled>, marked: bool) -> Result<()> {
        let mut text = Vec::new();
        for s in changes {
            let (root, path) = (s.change.root, s.change.path.clone());
            let pin = marked.then(|| pin(s));
            text.extend(line(&Line { root, path: path.clone(), pin: pin.clone() })?);
            match pin {
                Some(pin) => self.pins.insert((root, path), pin),
                None => self.pins.remove(&(root, path)),
            };
        }
        let told = |e| Error::on_path("write", self.at.as_os_str().as_bytes(), e);
        let file = std::fs::OpenOptions::new().append(true).create(true).mode(0o600).open(&self.at);
        file.and_then(|mut file| file.write_all(&text)).map_err(told)
    }

    fn write_anew(&self) -> Result<()> {
        let mut text = Vec::new();
        for ((root, path), pin) in &self.pins {
            text.extend(line(&Line { root: *root, path: path.clone(), pin: Some(pin.clone()) })?);
        }
        let temp = self.at.with_extension("new");
        let told = |e| Error::on_path("write", self.at.as_os_str().as_bytes(), e);
        std::fs::write(&temp, text).and_then(|()| std::fs::rename(&temp, &self.at)).map_err(told)
    }
}

fn line(line: &Line) -> Result<Vec<u8>> {
    let mut text = serde_json::to_vec(line).map_err(|e| Error::failure(e.to_string()))?;
    text.push(b'\n');
    Ok(text)
}

/// What a person looked at, in short. A directory's own ctime moves with each entry: for directories the journal has
/// to do.
fn pin(s: &Settled) -> String {
    let c = &s.change;
    let object = s.upper.filter(|a| a.kind != Kind::Dir).map(|a| (a.ino, a.size, time(a.ctime)));
    let real = s.real.filter(|a| a.kind != Kind::Dir).map(|a| (a.ino, a.size, time(a.mtime), a.perm));
    let from = c.from.as_ref().map(RelPath::as_bytes);
    let all = format!("{:?} {:?} {from:?} {} {object:?} {real:?}", c.what, c.kind, c.last.seq);
    blake3::hash(all.as_bytes()).to_hex().as_str()[..32].to_owned()
}

fn time(t: Time) -> (i64, u32) {
    (t.sec, t.nsec)
}

#[cfg(test)]
mod tests {
    use super::super::settle::for_test;
    use super::*;
    use crate::base::What;

    #[test]
    fn marks_stay_until_what_they_are_of_changes() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("reviewed");
        let mut set = vec![
            for_test("a", What::Added, Kind::File, None),
            for_test("b\n\u{1b}", What::Deleted, Kind::File, None),
            for_test("c", What::Added, Kind::File, None),
        ];
        let mut marks = Marks::open(&at, &set).unwrap();
        assert!(at.symlink_metadata().is_err(), "nothing is written for nothing");
        marks.set(&set, true).unwrap();
        marks.set(&set[2..], false).unwrap();
        let marked = |set: &[Settled]| {
            let marks = Marks::open(&at, set).unwrap();
            set.iter().map(|s| marks.has(s)).collect::<Vec<_>>()
        };
        assert_eq!(marked(&set), [true, true, false]);
        set[0].change.last.seq += 1;
        assert_eq!(marked(&set), [false, true, false]);
        set[0].change.last.seq -= 1;
        assert_eq!(marked(&set), [false, true, false], "a mark that was dropped does not come back");
        std::fs::write(&at, [&std::fs::read(&at).unwrap()[..], b"{\"root\":0,\"pa"].concat()).unwrap();
        assert_eq!(marked(&set), [false, true, false]);
    }
}
