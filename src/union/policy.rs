//! Rules on what the view has and what of it can be changed, decided once, when a name is looked up, and kept with the
//! node: no verb compares paths.
//!
//! A hidden name is not there, and none can be made; a denied name cannot be looked up; what is read-only loses its
//! write permissions, and so does all beneath it. A directory that rules look into keeps its place: elsewhere what they
//! match would be free.

use super::node::Node;
use super::{TOP, Union};
use crate::base::{Access, Errno, Kind, Rules, Spot, Sys};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::Ordering;

impl Union {
    /// Sets the rules, of absolute paths, before anything is looked up. What they say of a root itself or of what it
    /// lies in concerns it only if that is `ReadOnly`: a root was asked for. Only the first call counts.
    pub fn govern(&self, rules: Rules) {
        if rules.is_empty() {
            return;
        }
        for root in &self.roots {
            let (access, spot) = rules.walk(Path::new(OsStr::from_bytes(&root.real_path)));
            root.node.read_only.store(access == Some(Access::ReadOnly), Ordering::Release);
            if let Some(dir) = &root.node.dir {
                *dir.spot.write() = spot;
            }
        }
        if self.rules.set(rules).is_err() {
            tracing::debug!("the union has its rules already");
        }
    }

    /// What the rules say of `name` in `dir`, and what beneath it.
    fn follow(&self, dir: &Node, name: &[u8]) -> (Option<Access>, Option<Spot>) {
        let Some(rules) = self.rules.get() else {
            return (None, None);
        };
        let Some(state) = dir.dir.as_deref() else {
            return (None, None);
        };
        match &*state.spot.read() {
            Some(spot) => rules.step(spot, name),
            None => (None, None),
        }
    }

    /// What the rules say of `name` in `dir`.
    pub(crate) fn ruled(&self, dir: &Node, name: &[u8]) -> Option<Access> {
        self.follow(dir, name).0
    }

    /// Notes on `node`, which is at `name` in `dir`, what the rules say of it.
    pub(crate) fn note_rules(&self, dir: &Node, name: &[u8], node: &Node) {
        if self.rules.get().is_none() {
            return;
        }
        let (access, spot) = self.follow(dir, name);
        if access == Some(Access::ReadOnly) || dir.read_only.load(Ordering::Acquire) {
            node.read_only.store(true, Ordering::Release);
        }
        if let Some(state) = &node.dir
            && *state.spot.read() != spot
        {
            *state.spot.write() = spot;
        }
    }

    /// Refuses a change of `name` in `dir` that the rules do not allow; with `absent` for a hidden name.
    ///
    /// # Errors
    /// `EACCES`, or `absent`.
    pub(crate) fn may_change(&self, dir: &Node, name: &[u8], absent: Errno) -> Sys<()> {
        if self.rules.get().is_none() || dir.root == TOP {
            return Ok(());
        }
        match self.ruled(dir, name) {
            Some(Access::Hide) => Err(absent),
            Some(Access::Deny | Access::ReadOnly) => Err(Errno::EACCES),
            None if dir.read_only.load(Ordering::Acquire) => Err(Errno::EACCES),
            None => Ok(()),
        }
    }

    /// Refuses to move the directory `node` from one name to another where the rules beneath differ.
    ///
    /// # Errors
    /// `EACCES`.
    pub(crate) fn may_move(&self, node: &Node, from: (&Node, &[u8]), to: (&Node, &[u8])) -> Sys<()> {
        if node.kind != Kind::Dir || self.rules.get().is_none() {
            return Ok(());
        }
        let same = self.follow(from.0, from.1).1 == self.follow(to.0, to.1).1;
        if same { Ok(()) } else { Err(Errno::EACCES) }
    }

    /// Refuses a change of what is read-only.
    ///
    /// # Errors
    /// `EACCES`.
    pub(crate) fn may_write(&self, node: &Node) -> Sys<()> {
        if node.read_only.load(Ordering::Acquire) { Err(Errno::EACCES) } else { Ok(()) }
    }
}
