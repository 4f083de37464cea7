//! Extended attributes and ACLs. The union's own are neither seen nor settable.

use super::copy_up::Content;
use super::node::NodeId;
use super::{Caller, TOP, Union};
use crate::base::{Errno, Sys};
use crate::journal::Op;
use crate::sys::xattr;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

/// ACLs travel as xattrs of this prefix (acl(5)).
pub(super) const ACL_PREFIX: &[u8] = b"system.posix_acl_";
/// What the kernel asks for before the first write to a file (capabilities(7)).
const CAPABILITY: &[u8] = b"security.capability";

impl Union {
    /// The value of an xattr.
    ///
    /// # Errors
    /// `ENODATA` when there is none (also for the union's own), else as `getxattr(2)`.
    pub fn getxattr(&self, id: NodeId, name: &[u8]) -> Sys<Vec<u8>> {
        if self.is_private(name) {
            return Err(Errno::ENODATA);
        }
        self.check_acl(name)?;
        let _tree = self.tree.read();
        let node = self.nodes.get(id)?;
        if node.root == TOP || (name == CAPABILITY && node.no_capability.load(Ordering::Acquire)) {
            return Err(Errno::ENODATA);
        }
        xattr::get_strict(self.locate(&node)?.handle()?.as_fd(), name)
    }

    /// The names of all xattrs, each followed by a NUL, as `listxattr(2)` gives them.
    ///
    /// # Errors
    /// As `listxattr(2)`.
    pub fn listxattr(&self, id: NodeId) -> Sys<Vec<u8>> {
        let _tree = self.tree.read();
        let node = self.nodes.get(id)?;
        if node.root == TOP {
            return Ok(Vec::new());
        }
        let names = xattr::list(self.locate(&node)?.handle()?.as_fd())?;
        let mut out = Vec::new();
        for name in names.iter().filter(|n| !self.is_private(n) && self.check_acl(n).is_ok()) {
            out.extend_from_slice(name);
            out.push(0);
        }
        Ok(out)
    }

    /// Sets an xattr; `flags` may be `XATTR_CREATE` or `XATTR_REPLACE`.
    ///
    /// # Errors
    /// `EPERM` for the union's own, else as `setxattr(2)`.
    pub fn setxattr(&self, caller: &Caller, id: NodeId, name: &[u8], value: &[u8], flags: i32) -> Sys<()> {
        self.change_xattr(caller, id, name, |fd| xattr::set(fd, name, value, flags))
    }

    /// Removes an xattr.
    ///
    /// # Errors
    /// `ENODATA` when there is none, else as `removexattr(2)`.
    pub fn removexattr(&self, caller: &Caller, id: NodeId, name: &[u8]) -> Sys<()> {
        match self.getxattr(id, name) {
            // Without an ACL is what it is to be: so say the kernel's file systems, and tar counts on it.
            Err(Errno::ENODATA) if name.starts_with(ACL_PREFIX) => return Ok(()),
            found => drop(found?),
        }
        self.change_xattr(caller, id, name, |fd| xattr::remove(fd, name))
    }

    fn check_acl(&self, name: &[u8]) -> Sys<()> {
        let refused = !self.has_acls() && name.starts_with(ACL_PREFIX);
        if refused { Err(Errno::EOPNOTSUPP) } else { Ok(()) }
    }

    fn change_xattr(
        &self,
        caller: &Caller,
        id: NodeId,
        name: &[u8],
        change: impl FnOnce(std::os::fd::BorrowedFd<'_>) -> Sys<()>,
    ) -> Sys<()> {
        self.check_acl(name)?;
        self.staying(id, |node| {
            if self.is_private(name) || node.root == TOP {
                return Err(Errno::EPERM);
            }
            let _charge = self.charge_xattr(node)?;
            let base = self.copy_up(node, Content::Keep)?;
            if name == CAPABILITY {
                node.no_capability.store(false, Ordering::Release);
            }
            let _tree = self.tree.read();
            change(self.locate_upper(node)?.handle()?.as_fd())?;
            if let Some(dir) = &node.dir {
                dir.default_acl.store(0, Ordering::Release);
            }
            self.record_on(caller, node, Op::SetXattr, base);
            Ok(())
        })
    }
}
