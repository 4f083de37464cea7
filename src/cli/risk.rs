//! Risk first: the rules of the host's user, and changes in the order a person should see them.

use super::context::Opened;
use super::output::{Color, Out, count};
use crate::base::{Result, What, quote};
use crate::review::{self, Class, Rules, Settled};
use crate::session::{read_config, user_file};
use clap::Args;
use std::os::unix::ffi::OsStrExt;

/// The flag of commands that can leave build output alone.
#[derive(Debug, Args)]
pub(super) struct Noise {
    /// Leave out build output, caches and what the real .gitignore files ignore
    #[arg(long)]
    pub(super) no_ignored: bool,
}

/// The table of risks, with what the user adds in `$XDG_CONFIG_HOME/sbx-fuse/config.toml`.
///
/// # Errors
/// Kind `Usage` for a mistake in that file, naming its line.
pub(super) fn rules() -> Result<Rules> {
    let Some(path) = user_file() else { return Rules::builtin() };
    match read_config(&path)? {
        Some(text) => Rules::with_config(&text, &quote(path.as_os_str().as_bytes())),
        None => Rules::builtin(),
    }
}

/// A change with its class.
pub(super) struct Ranked<'a> {
    /// The change.
    pub(super) settled: &'a Settled,
    /// What it is to the one who reviews it.
    pub(super) class: &'a Class,
}

/// Changes with their classes.
pub(super) struct Reviewed {
    /// In the order `settle` gives.
    pub(super) set: Vec<Settled>,
    /// One for each of `set`.
    pub(super) classes: Vec<Class>,
}

impl Reviewed {
    /// Classifies the changes of a session.
    ///
    /// # Errors
    /// As [`rules`], or when the real tree cannot be read.
    pub(super) fn new(opened: &Opened, set: Vec<Settled>, noise: &Noise) -> Result<Reviewed> {
        let classes = review::classify(&rules()?, &opened.roots, &set)?;
        if !noise.no_ignored {
            return Ok(Reviewed { set, classes });
        }
        let set = review::risk::without_noise(set, &classes);
        let classes = review::classify(&rules()?, &opened.roots, &set)?;
        Ok(Reviewed { set, classes })
    }

    /// Risky ones first, noise last.
    pub(super) fn ranked(&self) -> impl Iterator<Item = Ranked<'_>> {
        let at = |i: usize| Some(Ranked { settled: self.set.get(i)?, class: self.classes.get(i)? });
        review::risk::order(&self.classes).into_iter().filter_map(at)
    }
}

/// What stands behind a risky change: why it is one. A deletion says so by its letter already.
pub(super) fn remark(out: &Out, r: &Ranked<'_>) -> String {
    let deleted = r.settled.change.what == What::Deleted;
    let reasons: Vec<&str> = r
        .class
        .reasons()
        .iter()
        .map(String::as_str)
        .filter(|why| !(deleted && *why == "is deleted"))
        .collect();
    match reasons.is_empty() {
        true => String::new(),
        false => format!("  {}", out.paint(Color::Red, &format!("! {}", reasons.join("; ")))),
    }
}

/// One line for each group of noise: how many changes, and how many of them can be executed.
pub(super) fn noise_lines<'a>(ranked: impl IntoIterator<Item = &'a Ranked<'a>>) -> Vec<String> {
    let mut groups: std::collections::BTreeMap<&str, (usize, usize)> = std::collections::BTreeMap::new();
    for r in ranked {
        let Class::Noise(group) = r.class else { continue };
        let entry = groups.entry(group).or_default();
        entry.0 += 1;
        let upper = r.settled.upper.filter(|a| a.kind == crate::base::Kind::File && a.perm & 0o111 != 0);
        entry.1 += usize::from(upper.is_some());
    }
    let line = |(group, (all, exec)): (&str, (usize, usize))| {
        let exec = match exec {
            0 => String::new(),
            n => format!(", {}", count(n, "executable", "executables")),
        };
        format!("~ {group}: {}{exec}", count(all, "change", "changes"))
    };
    groups.into_iter().map(line).collect()
}
