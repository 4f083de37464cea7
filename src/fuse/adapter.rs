//! Each callback: convert, call the union's verb of the same name, reply.

use super::convert::{attr, caller, errno, host_dev, set_time};
use super::makers::Makers;
use super::pace::Pace;
use crate::base::{Errno, SetAttr, Sys};
use crate::union::{Entry, Range, Union};
use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, FileHandle, Filesystem, Generation, INodeNo, InitFlags,
    IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use parking_lot::RwLock;
use std::cell::RefCell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

/// Whether requests are refused. Held for reading while a verb runs, so that who sets it knows that none does.
pub(super) type Closed = RwLock<bool>;

/// Bytes in one request from which on copying them is most of its cost.
const HEAVY: u32 = 64 << 10;

/// Numbers are never reused while the kernel knows them, so one generation does.
const GENERATION: Generation = Generation(0);

thread_local! {
    static READ_BUF: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

pub(super) struct Adapter {
    union: Arc<Union>,
    pace: Arc<Pace>,
    closed: Arc<Closed>,
    makers: Makers,
}

impl Adapter {
    pub fn new(union: Arc<Union>, pace: Arc<Pace>, closed: Arc<Closed>) -> Adapter {
        Adapter { union, pace, closed, makers: Makers::new(false) }
    }

    /// Runs a verb; a panic in it becomes `EIO` for this call, and the session is marked for a check.
    /// None runs any more once we are closed: `ENOTCONN`.
    fn guard<T>(&self, verb: impl FnOnce(&Union) -> Sys<T>) -> Sys<T> {
        let closed = self.closed.read();
        if *closed {
            return Err(Errno::ENOTCONN);
        }
        catch_unwind(AssertUnwindSafe(|| verb(&self.union))).unwrap_or_else(|_| {
            self.union.mark_degraded();
            tracing::error!("a request failed by a defect of ours; 'sbx-fuse verify' will check the session");
            Err(Errno::EIO)
        })
    }

    fn reply_entry(found: Sys<Entry>, reply: ReplyEntry) {
        match found {
            Ok(entry) => reply.entry(&entry.ttl, &attr(&entry.attr), GENERATION),
            Err(e) => reply.error(errno(e)),
        }
    }

    fn reply_empty(done: Sys<()>, reply: ReplyEmpty) {
        match done {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(errno(e)),
        }
    }

    fn reply_xattr(value: Sys<Vec<u8>>, size: u32, reply: ReplyXattr) {
        match value {
            Ok(value) if size == 0 => reply.size(value.len() as u32),
            Ok(value) if value.len() > size as usize => reply.error(errno(Errno::ERANGE)),
            Ok(value) => reply.data(&value),
            Err(e) => reply.error(errno(e)),
        }
    }
}

impl Filesystem for Adapter {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // Caches are dropped by us, when the real tree changes. Of itself the kernel drops the pages of a file whose size
        // is another (without EXPLICIT_INVAL_DATA), or it would show the new size with the old last page, filled up with
        // zeros, until we come. AUTO_INVAL_DATA has it drop them when the mtime moved, too, which writes of its own do:
        // that is for where nothing can be watched.
        let invalidation = (!self.union.watches()).then_some(InitFlags::FUSE_AUTO_INVAL_DATA);
        let wanted = [
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_CACHE_SYMLINKS,
            InitFlags::FUSE_NO_OPEN_SUPPORT,
            InitFlags::FUSE_NO_OPENDIR_SUPPORT,
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
            InitFlags::FUSE_DONT_MASK,
            InitFlags::FUSE_ASYNC_DIO,
        ];
        let acl = self.union.has_acls().then_some(InitFlags::FUSE_POSIX_ACL);
        for flag in wanted.into_iter().chain(acl).chain(invalidation) {
            if let Err(missing) = config.add_capabilities(flag) {
                tracing::debug!("this kernel lacks {missing:?}");
            }
        }
        // Linux has this since it drops cached pages before a direct write, and writes back dirty ones where it is asked for.
        self.makers = Makers::new(config.add_capabilities(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP).is_ok());
        for (what, refused) in [
            ("max_write", config.set_max_write(1 << 20).err()),
            ("max_background", config.set_max_background(64).err().map(u32::from)),
        ] {
            if let Some(nearest) = refused {
                tracing::debug!("{what} is limited to {nearest}");
            }
        }
        Ok(())
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let _turn = self.pace.begin(req.pid());
        Self::reply_entry(self.guard(|u| u.lookup(parent.0, name.as_bytes())), reply);
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        if let Err(e) = self.guard(|u| {
            u.forget(ino.0, nlookup);
            Ok(())
        }) {
            tracing::debug!("forget: {e}");
        }
    }

    fn getattr(&self, req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        let _turn = self.pace.begin(req.pid());
        match self.guard(|u| u.getattr(ino.0)) {
            Ok((a, ttl)) => reply.attr(&ttl, &attr(&a)),
            Err(e) => reply.error(errno(e)),
        }
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let _turn = self.pace.begin(req.pid());
        let set = SetAttr {
            perm: mode.map(|m| m & 0o7777),
            uid,
            gid,
            size,
            atime: atime.map(set_time),
            mtime: mtime.map(set_time),
        };
        match self.guard(|u| u.setattr(&caller(req, 0), ino.0, &set)) {
            Ok((a, ttl)) => reply.attr(&ttl, &attr(&a)),
            Err(e) => reply.error(errno(e)),
        }
    }

    fn readlink(&self, req: &Request, ino: INodeNo, reply: ReplyData) {
        let _turn = self.pace.begin(req.pid());
        match self.guard(|u| u.readlink(ino.0)) {
            Ok(target) => reply.data(&target),
            Err(e) => reply.error(errno(e)),
        }
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let _turn = self.pace.begin(req.pid());
        let made =
            self.guard(|u| u.mknod(&caller(req, umask), parent.0, name.as_bytes(), mode, host_dev(rdev)));
        Self::reply_entry(made, reply);
    }

    fn mkdir(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        let _turn = self.pace.begin(req.pid());
        let made = self.guard(|u| u.mkdir(&caller(req, umask), parent.0, name.as_bytes(), mode));
        Self::reply_entry(made, reply);
    }

    fn unlink(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _turn = self.pace.begin(req.pid());
        Self::reply_empty(self.guard(|u| u.unlink(&caller(req, 0), parent.0, name.as_bytes())), reply);
    }

    fn rmdir(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _turn = self.pace.begin(req.pid());
        Self::reply_empty(self.guard(|u| u.rmdir(&caller(req, 0), parent.0, name.as_bytes())), reply);
    }

    fn symlink(&self, req: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let _turn = self.pace.begin(req.pid());
        let target = target.as_os_str().as_bytes();
        let made = self.guard(|u| u.symlink(&caller(req, 0), parent.0, name.as_bytes(), target));
        Self::reply_entry(made, reply);
    }

    fn rename(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let _turn = self.pace.begin(req.pid());
        let (from, to) = (name.as_bytes(), newname.as_bytes());
        let done = self.guard(|u| u.rename(&caller(req, 0), parent.0, from, newparent.0, to, flags.bits()));
        Self::reply_empty(done, reply);
    }

    fn link(&self, req: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        let _turn = self.pace.begin(req.pid());
        let made = self.guard(|u| u.link(&caller(req, 0), ino.0, newparent.0, newname.as_bytes()));
        Self::reply_entry(made, reply);
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let _turn = self.pace.begin(req.pid());
        let mode = mode & !libc::S_IFMT | libc::S_IFREG;
        match self.guard(|u| u.mknod(&caller(req, umask), parent.0, name.as_bytes(), mode, 0)) {
            Ok(new) => {
                let opened = self.makers.made(req.pid(), flags);
                reply.created(&new.ttl, &attr(&new.attr), GENERATION, FileHandle(0), opened);
            }
            Err(e) => reply.error(errno(e)),
        }
    }

    fn open(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.error(errno(Errno::ENOSYS)); // from now on the kernel opens without asking
    }

    fn opendir(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.error(errno(Errno::ENOSYS));
    }

    fn read(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let _turn = self.pace.begin(req.pid());
        if size > HEAVY {
            self.pace.heavy();
        }
        READ_BUF.with_borrow_mut(|buf| match self.guard(|u| u.read(ino.0, offset, size as usize, buf)) {
            Ok(()) => reply.data(buf),
            Err(e) => reply.error(errno(e)),
        });
    }

    fn write(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let _turn = self.pace.begin(req.pid());
        if data.len() > HEAVY as usize {
            self.pace.heavy();
        }
        self.makers.wrote(req.pid(), offset + data.len() as u64);
        let mut who = caller(req, 0);
        let written_back = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        if written_back {
            who.pid = 0; // of a mapping: the kernel asks, on behalf of nobody
        }
        let appends = !written_back && flags.0 & libc::O_APPEND != 0;
        let written = self.guard(|u| match appends {
            true => u.append(&who, ino.0, offset, data),
            false => u.write(&who, ino.0, offset, data),
        });
        match written {
            Ok(n) => reply.written(n as u32),
            Err(e) => reply.error(errno(e)),
        }
    }

    fn statfs(&self, req: &Request, ino: INodeNo, reply: ReplyStatfs) {
        let _turn = self.pace.begin(req.pid());
        match self.guard(|u| u.statfs(ino.0)) {
            Ok(s) => {
                reply.statfs(s.blocks, s.bfree, s.bavail, s.files, s.ffree, s.bsize, s.namelen, s.frsize)
            }
            Err(e) => reply.error(errno(e)),
        }
    }

    fn flush(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        reply.error(errno(Errno::ENOSYS)); // every write is in the upper already when it returns
    }

    fn fsync(&self, req: &Request, ino: INodeNo, _fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        let _turn = self.pace.begin(req.pid());
        Self::reply_empty(self.guard(|u| u.fsync(ino.0, datasync)), reply);
    }

    fn fsyncdir(&self, req: &Request, ino: INodeNo, _fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        let _turn = self.pace.begin(req.pid());
        Self::reply_empty(self.guard(|u| u.fsync(ino.0, datasync)), reply);
    }

    fn readdir(&self, req: &Request, ino: INodeNo, _fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let _turn = self.pace.begin(req.pid());
        let listed = self.guard(|u| {
            u.readdir(ino.0, offset, false, |item| {
                let kind = attr(&item.attr).kind;
                !reply.add(INodeNo(item.id), item.offset, kind, OsStr::from_bytes(item.name))
            })
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(errno(e)),
        }
    }

    fn readdirplus(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let _turn = self.pace.begin(req.pid());
        let listed = self.guard(|u| {
            u.readdir(ino.0, offset, true, |item| {
                let name = OsStr::from_bytes(item.name);
                !reply.add(INodeNo(item.id), item.offset, name, &item.ttl, &attr(&item.attr), GENERATION)
            })
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(errno(e)),
        }
    }

    fn setxattr(
        &self,
        req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let _turn = self.pace.begin(req.pid());
        let done = self.guard(|u| u.setxattr(&caller(req, 0), ino.0, name.as_bytes(), value, flags));
        Self::reply_empty(done, reply);
    }

    fn getxattr(&self, req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let _turn = self.pace.begin(req.pid());
        Self::reply_xattr(self.guard(|u| u.getxattr(ino.0, name.as_bytes())), size, reply);
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let _turn = self.pace.begin(req.pid());
        Self::reply_xattr(self.guard(|u| u.listxattr(ino.0)), size, reply);
    }

    fn removexattr(&self, req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _turn = self.pace.begin(req.pid());
        Self::reply_empty(self.guard(|u| u.removexattr(&caller(req, 0), ino.0, name.as_bytes())), reply);
    }

    fn access(&self, _req: &Request, _ino: INodeNo, _mask: AccessFlags, reply: ReplyEmpty) {
        reply.error(errno(Errno::ENOSYS)); // the kernel checks by itself
    }

    fn ioctl(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        _cmd: u32,
        _in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(errno(Errno::ENOTTY));
    }

    fn fallocate(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let _turn = self.pace.begin(req.pid());
        let range = Range { offset, len: length };
        Self::reply_empty(self.guard(|u| u.fallocate(&caller(req, 0), ino.0, range, mode)), reply);
    }

    fn lseek(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let _turn = self.pace.begin(req.pid());
        match self.guard(|u| u.lseek(ino.0, offset, whence)) {
            Ok(at) => reply.offset(at as i64),
            Err(e) => reply.error(errno(e)),
        }
    }

    fn copy_file_range(
        &self,
        req: &Request,
        ino_in: INodeNo,
        _fh_in: FileHandle,
        offset_in: u64,
        ino_out: INodeNo,
        _fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let _turn = self.pace.begin(req.pid());
        let (from, to) = ((ino_in.0, offset_in), (ino_out.0, offset_out));
        match self.guard(|u| u.copy_range(&caller(req, 0), from, to, len)) {
            Ok(n) => reply.written(n as u32),
            Err(e) => reply.error(errno(e)),
        }
    }
}
