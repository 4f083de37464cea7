//! Hard links.

use super::copy_up::{Content, clear};
use super::dir::unhide;
use super::lookup::LONG;
use super::node::{Link, Node, NodeId};
use super::record::Note;
use super::{Caller, Entry, TOP, Union, kept};
use crate::base::{Attr, Errno, Kind, Name, Sys};
use crate::journal::Op;
use crate::layer::WhiteoutForm;
use crate::sys::file;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

impl Union {
    /// Gives node `id` one more name, `name` in `parent`.
    ///
    /// # Errors
    /// `EEXIST`, `EXDEV` between roots, `EPERM` for a directory, `ENOENT` for an object without a name, or as
    /// `link(2)`.
    pub fn link(&self, caller: &Caller, id: NodeId, parent: NodeId, name: &[u8]) -> Sys<Entry> {
        self.staying(id, |node| self.link_node(caller, node, parent, name))
    }

    fn link_node(&self, caller: &Caller, node: &Arc<Node>, parent: NodeId, name: &[u8]) -> Sys<Entry> {
        let dir = self.nodes.get(parent)?;
        let _charge = self.charge(&[node, &dir], 0)?;
        if dir.root == TOP {
            return Err(Errno::EPERM);
        }
        if node.root != dir.root {
            return Err(Errno::EXDEV);
        }
        if node.kind == Kind::Dir {
            return Err(Errno::EPERM);
        }
        let name = Name::new(name)?;
        self.may_change(&dir, name.as_bytes(), Errno::EACCES)?;
        let base = self.copy_up(node, Content::Keep)?;
        let _tree = self.tree.read();
        let root = self.writable(&dir)?;
        self.copy_up_dir(&dir)?;
        let _ops = dir.dir()?.ops.lock();
        if dir.place.read().gone || node.place.read().gone {
            return Err(Errno::ENOENT);
        }
        let over = self.vacancy(&dir, name.as_bytes())?;
        let from = self.locate(node)?;
        let from_path = self.upper_path(node);
        let upper = self.upper_dir(&dir)?;
        let link_to = |dir: std::os::fd::BorrowedFd<'_>, to: &[u8]| {
            if from.name.is_empty() {
                return file::link_fd(from.dir.as_fd(), dir, to);
            }
            file::linkat(from.dir.as_fd(), &from.name, dir, to)
        };
        let before = from.stat()?;
        if over == Some(WhiteoutForm::Device) {
            let (work, temp) = (root.work.as_fd(), self.temp_name());
            link_to(work, &temp)?;
            file::renameat(work, &temp, upper.as_fd(), name.as_bytes(), 0)
                .inspect_err(|_| clear(work, &temp))?;
        } else {
            link_to(upper.as_fd(), name.as_bytes())?;
            if over.is_some() {
                unhide(upper.as_fd(), name.as_bytes(), || file::unlinkat(upper.as_fd(), name.as_bytes()))?;
            }
        }
        let (attr, ttl) = match kept::stat(root.stat_in, upper.as_fd(), name.as_bytes()) {
            Ok(attr) => (attr, LONG),
            // The name is there, and all but the ctime is known; the kernel asks again.
            Err(_) => (Attr { nlink: before.nlink + 1, ..before }, Duration::ZERO),
        };
        node.place.write().links.push(Link { parent: dir.clone(), name: name.clone(), upper: true });
        self.nodes.acquire(node);
        dir.touch_entries();
        let mut note = Note::new(Op::Link, dir.root, self.path_in(&dir, name.as_bytes()), node.kind);
        note.path2 = Some(from_path);
        note.base2 = base;
        self.record(caller, note);
        self.owed.told(node);
        Ok(Entry { id: node.id, attr: self.show(node, attr), ttl })
    }
}
