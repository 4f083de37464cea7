//! Content of regular files. Without OPEN in the protocol the descriptors belong to nodes, so that a reader from
//! before a copy-up sees what is written after it.

use super::copy_up::{Content, open_forced};
use super::fds::Slot;
use super::node::{Node, NodeId};
use super::{Caller, TOP, Union};
use crate::base::{Errno, Kind, Sys};
use crate::journal::Op;
use crate::sys::data;
use crate::sys::file::{self, FsStat};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A place in a file.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

impl Union {
    /// Reads at most `len` bytes at `offset` into `buf`, which holds exactly what was read.
    ///
    /// # Errors
    /// As `open(2)` and `pread(2)`.
    pub fn read(&self, id: NodeId, offset: u64, len: usize, buf: &mut Vec<u8>) -> Sys<()> {
        let (node, fd) = self.open_node(id, false)?;
        if let Some(partial) = self.partial_of(&node) {
            return partial.read(offset, len, buf);
        }
        data::pread_into(fd.as_fd(), buf, len, offset)?;
        while buf.len() < len {
            // A short read before the end of the file would become zeroes in the kernel's cache.
            let mut more = Vec::new();
            if data::pread_into(fd.as_fd(), &mut more, len - buf.len(), offset + buf.len() as u64)? == 0 {
                break;
            }
            buf.extend_from_slice(&more);
        }
        Ok(())
    }

    /// Writes `bytes` at `offset`; returns how many were written.
    ///
    /// # Errors
    /// As `open(2)` and `pwrite(2)`; `ENOSPC` with the old file whole when a copy-up finds the disk full.
    pub fn write(&self, caller: &Caller, id: NodeId, offset: u64, bytes: &[u8]) -> Sys<usize> {
        self.staying(id, |node| self.write_node(caller, node, offset, bytes))
    }

    /// As [`Union::write`], of a file that was opened to append: the end is where the file has it, whatever `offset` the
    /// kernel took it for. It may not have asked since the real file came to be seen again, or others wrote to that.
    ///
    /// # Errors
    /// As [`Union::write`].
    pub fn append(&self, caller: &Caller, id: NodeId, offset: u64, bytes: &[u8]) -> Sys<usize> {
        self.staying(id, |node| {
            let end = file::stat(self.content(node, false)?.as_fd())?.size;
            let done = self.write_node(caller, node, end, bytes)?;
            if end != offset {
                self.found_changed(node); // its pages are not what was written
            }
            Ok(done)
        })
    }

    fn write_node(&self, caller: &Caller, node: &Arc<Node>, offset: u64, bytes: &[u8]) -> Sys<usize> {
        let _charge = self.charge_content(node, offset, bytes.len() as u64)?;
        let base = self.copy_up(node, Content::Keep)?;
        let fd = self.content(node, true)?;
        self.drop_suid(caller, node, &fd)?;
        if let Some(partial) = self.partial_of(node) {
            let done = partial.write(offset, bytes)?;
            self.record_write(caller, node, base);
            return Ok(done);
        }
        let mut done = 0;
        while done < bytes.len() {
            match data::pwrite(fd.as_fd(), &bytes[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if done == 0 => return Err(e),
                Err(_) => break, // a short write; the next one meets the error
            }
        }
        self.record_write(caller, node, base);
        Ok(done)
    }

    /// A write by somebody without `CAP_FSETID` takes set-uid and set-gid away (inode(7)). The host does it for a
    /// server without privileges.
    fn drop_suid(&self, caller: &Caller, node: &Node, fd: &Arc<OwnedFd>) -> Sys<()> {
        if caller.uid == 0 || !node.maybe_suid.load(Ordering::Relaxed) {
            return Ok(());
        }
        if let Some(which) = self.writable(node)?.stat_in {
            return self.drop_kept_suid(node, fd.as_fd(), which);
        }
        if !self.multi_user {
            return Ok(());
        }
        let perm = file::stat(fd.as_fd())?.perm;
        let kept = without_suid(perm);
        if kept != perm {
            file::chmod_fd(fd.as_fd(), kept)?;
        }
        node.maybe_suid.store(kept & 0o6000 != 0, Ordering::Relaxed);
        Ok(())
    }

    /// The descriptor of a file's content; for writing, the object must be in the upper.
    pub(crate) fn content(&self, node: &Arc<Node>, write: bool) -> Sys<Arc<OwnedFd>> {
        if let Some(fd) = self.fds.get(node.id, Slot::Write) {
            return Ok(fd);
        }
        if !write && let Some(fd) = self.fds.get(node.id, Slot::Read) {
            return Ok(fd);
        }
        if node.kind != Kind::File {
            return Err(if node.kind == Kind::Dir { Errno::EISDIR } else { Errno::EINVAL });
        }
        let _tree = self.tree.read();
        if *node.left.read() {
            return Err(Errno::ESTALE); // what is kept by this number is another node's
        }
        // Held until the descriptor is in the cache: a copy-up in between would leave a stale one there.
        let place = node.place.read();
        let at = self.locate_in(node, &place)?;
        if !place.upper {
            if write {
                return Err(Errno::EROFS);
            }
            let fd = match at.open(libc::O_RDONLY | libc::O_NOATIME) {
                Err(Errno::EPERM) => at.open(libc::O_RDONLY)?,
                other => other.map_err(|e| if e == Errno::ENOENT { Errno::ESTALE } else { e })?,
            };
            if file::stat(fd.as_fd())?.ino != node.ident.ino {
                return Err(Errno::ESTALE);
            }
            return Ok(self.fds.put(node.id, Slot::Read, fd));
        }
        let fd = open_forced(at.dir.as_fd(), &at.name, libc::O_RDWR)?;
        Ok(self.fds.put(node.id, Slot::Write, fd))
    }

    /// `fallocate(2)`: reserves, punches or zeroes `range`; `mode` has `FALLOC_FL_*` bits.
    ///
    /// # Errors
    /// As `fallocate(2)`.
    pub fn fallocate(&self, caller: &Caller, id: NodeId, range: Range, mode: i32) -> Sys<()> {
        self.staying(id, |node| {
            let _charge = self.charge_content(node, range.offset, range.len)?;
            let base = self.copy_up(node, Content::Keep)?;
            let fd = self.content(node, true)?;
            // It would allocate blocks that read as zeros, or make holes that mean zeros.
            self.make_whole(node)?;
            self.drop_suid(caller, node, &fd)?;
            data::fallocate(fd.as_fd(), mode, range.offset, range.len)?;
            self.record_write(caller, node, base);
            Ok(())
        })
    }

    /// `lseek(2)` for `SEEK_DATA` and `SEEK_HOLE`.
    ///
    /// # Errors
    /// As `lseek(2)`.
    pub fn lseek(&self, id: NodeId, offset: i64, whence: i32) -> Sys<u64> {
        let (node, fd) = self.open_node(id, false)?;
        match self.partial_of(&node) {
            Some(partial) => partial.lseek(offset, whence),
            None => data::lseek(fd.as_fd(), offset, whence),
        }
    }

    /// `copy_file_range(2)` between two files of the view; returns the bytes copied.
    ///
    /// # Errors
    /// `EOPNOTSUPP` where the host cannot (the kernel then copies by reading and writing), else as
    /// `copy_file_range(2)`.
    pub fn copy_range(
        &self,
        caller: &Caller,
        from: (NodeId, u64),
        to: (NodeId, u64),
        len: u64,
    ) -> Sys<usize> {
        self.staying(to.0, |target| {
            let _charge = self.charge_content(target, to.1, len)?;
            let base = self.copy_up(target, Content::Keep)?;
            let out = self.content(target, true)?;
            let (source, input) = self.open_node(from.0, false)?;
            if self.partial_of(target).or_else(|| self.partial_of(&source)).is_some() {
                return Err(Errno::EOPNOTSUPP);
            }
            self.drop_suid(caller, target, &out)?;
            let len = usize::try_from(len).unwrap_or(usize::MAX).min(1 << 30);
            let n = match data::copy_range(input.as_fd(), from.1, out.as_fd(), to.1, len) {
                Err(Errno::EXDEV | Errno::EINVAL) => return Err(Errno::EOPNOTSUPP),
                other => other?,
            };
            self.record_write(caller, target, base);
            Ok(n)
        })
    }

    /// Makes the content of a file durable. What the session never changed is the real tree's business.
    ///
    /// # Errors
    /// As `fsync(2)`.
    pub fn fsync(&self, id: NodeId, data_only: bool) -> Sys<()> {
        let node = self.nodes.get(id)?;
        if !node.place.read().upper || self.view.volatile {
            return Ok(());
        }
        if node.kind == Kind::Dir {
            return self.fsync_dir(&node);
        }
        match self.open_node(id, true) {
            // It left the session just now.
            Err(Errno::EROFS) => Ok(()),
            opened => data::fsync(opened?.1.as_fd(), data_only),
        }
    }

    fn fsync_dir(&self, node: &Arc<Node>) -> Sys<()> {
        if node.root == TOP {
            return Ok(());
        }
        let fd = {
            let _tree = self.tree.read();
            let upper = self.upper_dir(node)?;
            open_forced(upper.as_fd(), b"", libc::O_RDONLY | libc::O_DIRECTORY)?
        };
        data::fsync(fd.as_fd(), false)
    }

    /// Truncates a file to `size`; `base` is what a copy-up found. Records it.
    pub(crate) fn truncate(&self, caller: &Caller, node: &Arc<Node>, size: u64) -> Sys<()> {
        let content = if size == 0 { Content::Empty } else { Content::Keep };
        let _charge = match content {
            Content::Keep => self.charge_content(node, size, 0)?,
            Content::Empty => self.charge_emptying(node)?,
        };
        let emptied = match content {
            Content::Empty => self.bring(node, content)?,
            Content::Keep => None,
        };
        let base = match emptied {
            // The copy was made without content, so it is done; a new version of the file has no set-uid.
            Some(base) => {
                let dropped = self.content(node, true).and_then(|fd| self.drop_suid(caller, node, &fd));
                if let Err(e) = dropped {
                    tracing::warn!("the set-uid bit of a truncated file could not be looked at: {e}");
                }
                Some(base)
            }
            None => {
                let base = self.copy_up(node, content)?;
                let fd = self.content(node, true)?;
                self.drop_suid(caller, node, &fd)?;
                match self.partial_of(node) {
                    Some(partial) => partial.truncate(size)?,
                    None => data::ftruncate(fd.as_fd(), size)?,
                }
                base
            }
        };
        let _tree = self.tree.read();
        self.record_on(caller, node, Op::Truncate, base);
        Ok(())
    }

    /// Figures of the file system that writes of `id` go to.
    ///
    /// # Errors
    /// As `fstatfs(2)`.
    pub fn statfs(&self, id: NodeId) -> Sys<FsStat> {
        let node = self.nodes.get(id)?;
        let root = self.roots.get(usize::from(node.root)).or(self.roots.first()).ok_or(Errno::EIO)?;
        let figures = match &root.writable {
            Some(writable) => file::statfs(writable.upper.as_fd())?,
            None => file::statfs(root.lowers.first().ok_or(Errno::EIO)?.dir.as_fd())?,
        };
        self.limited(figures)
    }
}

/// A mode after a write by somebody else: set-uid goes, and set-gid where it means "run as group".
pub(super) fn without_suid(perm: u32) -> u32 {
    let mut kept = perm & !libc::S_ISUID;
    if perm & libc::S_IXGRP != 0 {
        kept &= !libc::S_ISGID;
    }
    kept
}
