//! Making things: files, directories, symlinks, fifos, sockets, devices.

use super::copy_up::{clear, forced};
use super::fds::Slot;
use super::lookup::LONG;
use super::node::{Ident, Link, Node, NodeId, Place};
use super::record::Note;
use super::{Caller, Entry, TOP, Union, Writable, kept};
use crate::base::{Attr, Errno, Kind, Name, Sys};
use crate::journal::Op;
use crate::layer::{self, Found, StatXattr, WhiteoutForm};
use crate::sys::{file, xattr};
use smallvec::smallvec;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A new object: open for writing if it is a regular file, its attributes, and how long the kernel may keep them.
type Made = (Option<OwnedFd>, Attr, Duration);

/// What to make.
enum Make<'a> {
    Node { mode: u32, rdev: u64 },
    Dir { mode: u32 },
    Symlink { target: &'a [u8] },
}

impl Make<'_> {
    fn kind(&self) -> Kind {
        match self {
            Make::Node { mode, .. } => Kind::from_mode(*mode),
            Make::Dir { .. } => Kind::Dir,
            Make::Symlink { .. } => Kind::Symlink,
        }
    }

    fn perm(&self) -> u32 {
        match self {
            Make::Node { mode, .. } | Make::Dir { mode } => mode & 0o7777,
            Make::Symlink { .. } => 0o777,
        }
    }

    fn op(&self) -> Op {
        match self {
            Make::Node { .. } => Op::Create,
            Make::Dir { .. } => Op::Mkdir,
            Make::Symlink { .. } => Op::Symlink,
        }
    }

    fn rdev(&self) -> u64 {
        match self {
            Make::Node { rdev, .. } => *rdev,
            Make::Dir { .. } | Make::Symlink { .. } => 0,
        }
    }

    /// The attribute in which its owner and mode are to be, if the upper has one for it.
    fn keeper(&self, root: &Writable) -> Option<StatXattr> {
        root.stat_in.filter(|which| which.holds(which.disk_kind(self.kind())))
    }

    /// Makes it at `name` in `dir` with the permission bits `perm`, unless they are to be in `keeper`. A regular file
    /// comes open for writing, since that is what follows, whatever its mode.
    fn at(
        &self,
        dir: BorrowedFd<'_>,
        name: &[u8],
        perm: u32,
        keeper: Option<StatXattr>,
    ) -> Sys<Option<OwnedFd>> {
        let on_disk = keeper.map(|which| which.disk_kind(self.kind()));
        let perm = on_disk.map_or(perm, |kind| layer::disk_perm(kind, perm));
        match self {
            Make::Node { .. } if self.kind() != Kind::File && on_disk == Some(Kind::File) => {
                file::mknodat(dir, name, libc::S_IFREG | perm, 0).map(|()| None)
            }
            Make::Node { .. } if self.kind() == Kind::File => {
                file::openat(dir, name, libc::O_CREAT | libc::O_EXCL | libc::O_RDWR, perm).map(Some)
            }
            Make::Node { mode, rdev } => {
                file::mknodat(dir, name, mode & libc::S_IFMT | perm, *rdev).map(|()| None)
            }
            Make::Dir { .. } => file::mkdirat(dir, name, perm).map(|()| None),
            Make::Symlink { target } => file::symlinkat(target, dir, name).map(|()| None),
        }
    }
}

impl Union {
    /// Makes a regular file, fifo, socket or device; `mode` has the type, `caller.umask` applies unless the parent
    /// has a default ACL (acl(5)).
    ///
    /// # Errors
    /// `EEXIST`, or as `mknod(2)`; `EPERM` for a character device 0:0, which is what a whiteout looks like.
    pub fn mknod(&self, caller: &Caller, parent: NodeId, name: &[u8], mode: u32, rdev: u64) -> Sys<Entry> {
        if Kind::from_mode(mode) == Kind::Char && rdev == 0 {
            return Err(Errno::EPERM);
        }
        self.make(caller, parent, name, &Make::Node { mode, rdev })
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// As `mkdir(2)`.
    pub fn mkdir(&self, caller: &Caller, parent: NodeId, name: &[u8], mode: u32) -> Sys<Entry> {
        self.make(caller, parent, name, &Make::Dir { mode })
    }

    /// Makes a symlink to `target`.
    ///
    /// # Errors
    /// As `symlink(2)`.
    pub fn symlink(&self, caller: &Caller, parent: NodeId, name: &[u8], target: &[u8]) -> Sys<Entry> {
        self.make(caller, parent, name, &Make::Symlink { target })
    }

    fn make(&self, caller: &Caller, parent: NodeId, name: &[u8], make: &Make<'_>) -> Sys<Entry> {
        let _charge = self.charge(&[&self.nodes.get(parent)?], 1)?;
        let _tree = self.tree.read();
        let dir = self.nodes.get(parent)?;
        if dir.root == TOP {
            return Err(Errno::EPERM);
        }
        let name = Name::new(name)?;
        let root = self.writable(&dir)?;
        self.may_change(&dir, name.as_bytes(), Errno::EACCES)?;
        self.copy_up_dir(&dir)?;
        let _ops = dir.dir()?.ops.lock();
        if dir.place.read().gone {
            return Err(Errno::ENOENT);
        }
        let over = self.vacancy(&dir, name.as_bytes())?;
        let upper = self.upper_dir(&dir)?;
        let masked = make.perm() & !caller.umask;
        let acl = root.stat_in.is_none() && self.has_default_acl(&dir, upper.as_fd())?;
        let perm = if acl { make.perm() } else { masked };
        let (opened, attr, ttl) = match over {
            Some(form) => {
                let parent = kept::stat(root.stat_in, upper.as_fd(), b"")?;
                let staged = self.stage_make(root, &dir, &parent, caller, make, perm)?;
                self.make_over_whiteout(root, &dir, (upper.as_fd(), &name), form, make, staged)?
            }
            None => self.make_here(root, caller, upper.as_fd(), &name, make, perm)?,
        };
        let is_new_file = opened.is_some();
        let node = self.adopt(&dir, &name, &attr, opened);
        node.no_capability.store(is_new_file, Ordering::Release);
        dir.touch_entries();
        self.record(caller, Note::new(make.op(), dir.root, self.path_in(&dir, name.as_bytes()), attr.kind));
        Ok(Entry { id: node.id, attr: self.show(&node, attr), ttl })
    }

    /// Makes the object where nothing is; what cannot be finished is taken away again.
    fn make_here(
        &self,
        root: &Writable,
        caller: &Caller,
        upper: BorrowedFd<'_>,
        name: &Name,
        make: &Make<'_>,
        perm: u32,
    ) -> Sys<Made> {
        let keeper = make.keeper(root);
        let opened = make.at(upper, name.as_bytes(), perm, keeper)?;
        let parent = if self.multi_user || keeper.is_some() {
            Some(kept::stat(root.stat_in, upper, b""))
        } else {
            None
        };
        let given = parent.map_or(Ok(None), |parent| {
            self.give_to_caller(caller, &parent?, (upper, name.as_bytes()), (make, perm), keeper)
        });
        match given.and_then(|attr| attr.map_or_else(|| file::stat_at(upper, name.as_bytes()), Ok)) {
            Ok(attr) => Ok((opened, attr, LONG)),
            Err(e) => {
                let gone = match make.kind() {
                    Kind::Dir => file::rmdirat(upper, name.as_bytes()),
                    _ => file::unlinkat(upper, name.as_bytes()),
                };
                if let Err(second) = gone {
                    tracing::warn!("what could not be finished could not be removed either: {second}");
                    self.mark_degraded();
                }
                Err(e)
            }
        }
    }

    /// Makes sure that nothing is at `name`; the form of the whiteout that has to give way there, if one does.
    pub(crate) fn vacancy(&self, dir: &Arc<Node>, name: &[u8]) -> Sys<Option<WhiteoutForm>> {
        match self.find_upper(dir, name)? {
            Found::Object(_) => Err(Errno::EEXIST),
            Found::Whiteout(form) => Ok(Some(form)),
            Found::Nothing if self.find_lower(dir, name)?.is_some() => Err(Errno::EEXIST),
            Found::Nothing => Ok(None),
        }
    }

    /// The node of an object that was just made in the upper, with one lookup.
    fn adopt(&self, dir: &Arc<Node>, name: &Name, attr: &Attr, opened: Option<OwnedFd>) -> Arc<Node> {
        let ident = Ident::of(dir.root, attr);
        let link = Link { parent: dir.clone(), name: name.clone(), upper: true };
        let place = Place { links: smallvec![link], upper: true, ..Place::default() };
        let (node, _) = self.nodes.intern(ident, |id| Node::new(id, dir.root, attr.kind, ident, place));
        self.note_rules(dir, name.as_bytes(), &node);
        if let Some(fd) = opened {
            self.fds.put(node.id, Slot::Write, fd);
        }
        node
    }

    /// Makes the object in the work directory, as it would be in `dir`.
    fn stage_make(
        &self,
        root: &Writable,
        dir: &Arc<Node>,
        parent: &Attr,
        caller: &Caller,
        make: &Make<'_>,
        perm: u32,
    ) -> Sys<(Vec<u8>, Option<OwnedFd>, Attr)> {
        let (work, temp) = (root.work.as_fd(), self.temp_name());
        let keeper = make.keeper(root);
        let opened = make.at(work, &temp, perm, keeper)?;
        let inherited =
            if keeper.is_some() { Ok(()) } else { self.inherit(dir, parent, work, &temp, make, perm) };
        let ready = inherited
            .and_then(|()| {
                if !self.multi_user && keeper.is_none() {
                    return Ok(None);
                }
                self.give_to_caller(caller, parent, (work, &temp), (make, perm), keeper)
            })
            .and_then(|attr| attr.map_or_else(|| file::stat_at(work, &temp), Ok));
        match ready {
            Ok(attr) => Ok((temp, opened, attr)),
            Err(e) => {
                clear(work, &temp);
                Err(e)
            }
        }
    }

    /// Puts a staged object where a whiteout is, without a moment in which the lower shows again.
    fn make_over_whiteout(
        &self,
        root: &Writable,
        dir: &Arc<Node>,
        (upper, name): (BorrowedFd<'_>, &Name),
        form: WhiteoutForm,
        make: &Make<'_>,
        (temp, opened, staged): (Vec<u8>, Option<OwnedFd>, Attr),
    ) -> Sys<Made> {
        let (work, name_bytes) = (root.work.as_fd(), name.as_bytes());
        let place = || -> Sys<()> {
            let is_dir = make.kind() == Kind::Dir;
            if is_dir && self.find_lower(dir, name_bytes)?.is_some() {
                let handle = file::openat(work, &temp, libc::O_PATH | libc::O_DIRECTORY, 0)?;
                layer::set_opaque(handle.as_fd())?;
            }
            let exchange = is_dir && form == WhiteoutForm::Device;
            let flags = if exchange { libc::RENAME_EXCHANGE } else { 0 };
            file::renameat(work, &temp, upper, name_bytes, flags)
        };
        let placed = place().and_then(|()| match form {
            WhiteoutForm::Prefix => {
                unhide(upper, name_bytes, || file::renameat(upper, name_bytes, work, &temp, 0))
            }
            WhiteoutForm::Device => Ok(()),
        });
        // What is left there: the object that could not be placed, or the whiteout that changed places with it.
        if placed.is_err() || (form == WhiteoutForm::Device && make.kind() == Kind::Dir) {
            clear(work, &temp);
        }
        placed?;
        Ok(match kept::stat(root.stat_in, upper, name_bytes) {
            Ok(attr) => (opened, attr, LONG),
            // All but its ctime is known; the kernel asks again.
            Err(_) => (opened, staged, Duration::ZERO),
        })
    }

    /// What an object staged in the work directory would have got from the directory it belongs in: the group of a
    /// set-gid directory (inode(7)) and its default ACL (acl(5)).
    fn inherit(
        &self,
        dir: &Arc<Node>,
        parent: &Attr,
        work: BorrowedFd<'_>,
        temp: &[u8],
        make: &Make<'_>,
        perm: u32,
    ) -> Sys<()> {
        if parent.perm & libc::S_ISGID != 0 {
            file::chownat(work, temp, u32::MAX, parent.gid)?;
            if make.kind() == Kind::Dir {
                file::chmodat(work, temp, perm | libc::S_ISGID)?;
            }
        }
        let upper = self.upper_dir(dir)?;
        if make.kind() == Kind::Symlink || !self.has_default_acl(dir, upper.as_fd())? {
            return Ok(());
        }
        let Some(acl) = xattr::get(upper.as_fd(), ACL_DEFAULT)? else {
            return Ok(());
        };
        let handle = file::openat(work, temp, libc::O_PATH, 0)?;
        xattr::set(handle.as_fd(), ACL_ACCESS, &acl, 0)?;
        if make.kind() == Kind::Dir {
            xattr::set(handle.as_fd(), ACL_DEFAULT, &acl, 0)?;
        }
        // The mode asked for limits what the ACL grants.
        let granted = file::stat(handle.as_fd())?.perm;
        file::chmod_fd(handle.as_fd(), granted & (perm | !0o777))
    }

    /// Whether objects made in `dir` take their permissions from a default ACL instead of the umask.
    fn has_default_acl(&self, dir: &Arc<Node>, upper: BorrowedFd<'_>) -> Sys<bool> {
        let known = &dir.dir()?.default_acl;
        match known.load(Ordering::Acquire) {
            0 => {
                let has = xattr::get(upper, ACL_DEFAULT)?.is_some();
                known.store(if has { 2 } else { 1 }, Ordering::Release);
                Ok(has)
            }
            n => Ok(n == 2),
        }
    }

    /// With callers of many users, what one makes is theirs; `parent` is the directory it belongs in. With a `keeper`
    /// that is where it is noted, and the attributes come back.
    fn give_to_caller(
        &self,
        caller: &Caller,
        parent: &Attr,
        (at, name): (BorrowedFd<'_>, &[u8]),
        (make, perm): (&Make<'_>, u32),
        keeper: Option<StatXattr>,
    ) -> Sys<Option<Attr>> {
        if let Some(which) = keeper {
            let made = (make.kind(), perm, make.rdev());
            return self.keep_made(caller, parent, (at, name), made, which).map(Some);
        }
        let (uid, own_gid) = self.ids_of_caller(caller.uid, caller.gid);
        let gid = if parent.perm & libc::S_ISGID != 0 { parent.gid } else { own_gid };
        let made = file::stat_at(at, name)?;
        if (made.uid, made.gid) == (uid, gid) {
            return Ok(Some(made));
        }
        file::chownat(at, name, uid, gid)?;
        if made.perm & 0o6000 != 0 && make.kind() != Kind::Symlink {
            file::chmodat(at, name, made.perm)?; // chown(2) took set-uid and set-gid away
        }
        Ok(None)
    }

    /// Puts a whiteout where nothing is in the upper directory `upper`.
    pub(crate) fn whiteout(&self, root: &Writable, upper: BorrowedFd<'_>, name: &[u8]) -> Sys<()> {
        forced(upper, || layer::make_whiteout(upper, name, root.features.whiteout))
    }
}

/// Takes the whiteout file away beside an object that has just got the name; `back` undoes that when it cannot be.
pub(crate) fn unhide(upper: BorrowedFd<'_>, name: &[u8], back: impl FnOnce() -> Sys<()>) -> Sys<()> {
    let Err(e) = layer::remove_whiteout(upper, name, WhiteoutForm::Prefix) else {
        return Ok(());
    };
    match back() {
        Ok(()) => Err(e),
        Err(second) => {
            // Both stand, and then the object counts.
            tracing::warn!("a whiteout could not be removed ({e}), nor what replaces it ({second})");
            Ok(())
        }
    }
}

const ACL_DEFAULT: &[u8] = b"system.posix_acl_default";
const ACL_ACCESS: &[u8] = b"system.posix_acl_access";
