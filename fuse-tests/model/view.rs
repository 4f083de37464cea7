//! The same operations on a union, the way the kernel would ask for them: with its own checks first (`fs/namei.c`),
//! and with nodes that it remembers.

use crate::ops::{How, Op, Path, bytes, target, xattr};
use crate::plain::{object, pick};
use crate::tree::Tree;
use sbx_fuse::base::{Attr, Errno, Kind, Name, SetAttr, Sys};
use sbx_fuse::journal::Journal;
use sbx_fuse::layer::{self, Features, LayerKind};
use sbx_fuse::sys::file;
use sbx_fuse::union::{
    BlockCopy, Caller, Config, LayerConfig, NodeId, ROOT_ID, RootConfig, Union, UpperConfig,
};
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Where the parts of a session are, and what its file system is said to do.
#[derive(Clone)]
pub struct Setup {
    pub upper: PathBuf,
    pub work: PathBuf,
    pub journal: PathBuf,
    /// Layers from the top, the real tree last.
    pub lowers: Vec<(PathBuf, LayerKind)>,
    pub features: Features,
    /// Whether files of any size are copied block by block, and completed only when an operation says so.
    pub borrows: bool,
}

pub struct View {
    pub setup: Setup,
    union: Option<Arc<Union>>,
    journal: Option<Arc<Journal>>,
    /// Lookups that the kernel would give back one day.
    known: HashMap<NodeId, u64>,
    held: Vec<NodeId>,
}

/// A handle of a directory.
pub fn open(path: &std::path::Path) -> OwnedFd {
    file::open_path(path.as_os_str().as_bytes(), libc::O_PATH | libc::O_DIRECTORY).unwrap()
}

/// What the host's file system can do.
pub fn probe(work: &std::path::Path) -> Features {
    layer::probe(open(work).as_fd()).unwrap()
}

impl View {
    pub fn new(setup: Setup) -> View {
        let mut view = View { setup, union: None, journal: None, known: HashMap::new(), held: Vec::new() };
        view.start();
        view
    }

    /// Starts the server, as the constructor does.
    pub fn start(&mut self) {
        let (journal, _) = Journal::open(&self.setup.journal).unwrap();
        let journal = Arc::new(journal);
        let root = RootConfig {
            name: Name::new(b"root").unwrap(),
            real_path: b"/root".to_vec(),
            upper: Some(UpperConfig {
                dir: open(&self.setup.upper),
                work: open(&self.setup.work),
                features: self.setup.features,
                shared: false,
            }),
            lowers: self
                .setup
                .lowers
                .iter()
                .map(|(p, kind)| LayerConfig { dir: open(p), kind: *kind })
                .collect(),
        };
        let config = Config {
            roots: vec![root],
            single: true,
            hidden: Vec::new(),
            journal: Some(journal.clone()),
            multi_user: false,
            view: sbx_fuse::union::View::default(),
        };
        let union = Union::new(config).unwrap();
        if self.setup.borrows {
            union.tune_block_copy(BlockCopy { from: 1, pause: Duration::from_secs(100_000) });
        }
        self.union = Some(union);
        self.journal = Some(journal);
    }

    /// Ends the server in good order.
    pub fn stop(&mut self) {
        assert!(self.end(), "the journal could not be told");
    }

    /// Ends the server; false when it could not tell the journal all that it did, which then stays open for those who
    /// reconcile it.
    pub fn end(&mut self) -> bool {
        self.known.clear();
        self.held.clear();
        let whole = self.union.take().is_none_or(|union| {
            let unfilled = union.complete();
            assert!(unfilled.is_empty(), "{unfilled:?}");
            !union.is_degraded()
        });
        if let Some(journal) = self.journal.take()
            && whole
        {
            journal.finish().unwrap();
        }
        whole
    }

    pub fn remount(&mut self) {
        self.stop();
        self.start();
    }

    pub fn is_running(&self) -> bool {
        self.union.is_some()
    }

    pub fn union(&self) -> Arc<Union> {
        self.union.clone().unwrap()
    }

    /// One component: `ENOENT` for nothing.
    pub fn step(&mut self, dir: NodeId, name: &str) -> Sys<(NodeId, Attr)> {
        let entry = self.union().lookup(dir, name.as_bytes())?;
        if entry.id == 0 {
            return Err(Errno::ENOENT);
        }
        *self.known.entry(entry.id).or_default() += 1;
        Ok((entry.id, entry.attr))
    }

    /// The directory that `at` is in, and its last name.
    fn parent(&mut self, at: &Path) -> Sys<(NodeId, &'static str)> {
        let (last, dirs) = at.split_last().unwrap();
        let mut dir = ROOT_ID;
        for name in dirs {
            let (id, attr) = self.step(dir, name)?;
            match attr.kind {
                Kind::Dir => dir = id,
                Kind::Symlink => return Err(Errno::ENOENT), // its target is nowhere
                _ => return Err(Errno::ENOTDIR),
            }
        }
        Ok((dir, last))
    }

    pub fn find(&mut self, at: &Path) -> Sys<(NodeId, Attr)> {
        let (dir, name) = self.parent(at)?;
        self.step(dir, name)
    }

    fn file(&mut self, at: &Path) -> Sys<NodeId> {
        let (id, attr) = self.find(at)?;
        if attr.kind == Kind::File { Ok(id) } else { Err(Errno::EINVAL) }
    }

    /// Where something new is to be made.
    fn vacant(&mut self, at: &Path) -> Sys<(NodeId, &'static [u8])> {
        let (dir, name) = self.parent(at)?;
        match self.step(dir, name) {
            Err(Errno::ENOENT) => Ok((dir, name.as_bytes())),
            Ok(_) => Err(Errno::EEXIST),
            Err(e) => Err(e),
        }
    }

    fn made(&mut self, entry: sbx_fuse::union::Entry) -> NodeId {
        *self.known.entry(entry.id).or_default() += 1;
        entry.id
    }

    /// Does the `n`-th operation; the bytes are what it read.
    pub fn apply(&mut self, n: usize, op: &Op) -> Sys<Vec<u8>> {
        let (union, caller) = (self.union(), Caller { pid: std::process::id(), ..Caller::default() });
        match op {
            Op::Create { at, len } => {
                let (dir, name) = self.vacant(at)?;
                let entry = union.mknod(&caller, dir, name, libc::S_IFREG | 0o644, 0)?;
                let id = self.made(entry);
                if *len > 0 {
                    union.write(&caller, id, 0, &bytes(n, *len))?;
                }
            }
            Op::Mkdir { at } => {
                let (dir, name) = self.vacant(at)?;
                let entry = union.mkdir(&caller, dir, name, 0o755)?;
                self.made(entry);
            }
            Op::Symlink { at, n } => {
                let (dir, name) = self.vacant(at)?;
                let entry = union.symlink(&caller, dir, name, target(*n).as_bytes())?;
                self.made(entry);
            }
            Op::Fifo { at } => {
                let (dir, name) = self.vacant(at)?;
                let entry = union.mknod(&caller, dir, name, libc::S_IFIFO | 0o700, 0)?;
                self.made(entry);
            }
            Op::Link { from, to } => {
                let (id, attr) = self.find(from)?;
                let (dir, name) = self.vacant(to)?;
                if attr.kind == Kind::Dir {
                    return Err(Errno::EPERM);
                }
                let entry = union.link(&caller, id, dir, name)?;
                assert_eq!(entry.id, id, "a new name of the same object");
                self.made(entry);
            }
            Op::Unlink { at } => {
                let (dir, name) = self.parent(at)?;
                self.step(dir, name)?;
                union.unlink(&caller, dir, name.as_bytes())?;
            }
            Op::Rmdir { at } => {
                let (dir, name) = self.parent(at)?;
                self.step(dir, name)?;
                union.rmdir(&caller, dir, name.as_bytes())?;
            }
            Op::Remove { at } => {
                let (dir, name) = self.parent(at)?;
                let (id, attr) = self.step(dir, name)?;
                if attr.kind != Kind::Dir {
                    return Err(Errno::ENOTDIR);
                }
                self.remove_below(id)?;
                union.rmdir(&caller, dir, name.as_bytes())?;
            }
            Op::Rename { from, to, how } => self.rename(from, to, *how)?,
            Op::Write { at, offset, len } => {
                let id = self.file(at)?;
                union.write(&caller, id, u64::from(*offset), &bytes(n, *len))?;
            }
            Op::Truncate { at, len } => {
                let id = self.file(at)?;
                union.setattr(&caller, id, &SetAttr { size: Some(u64::from(*len)), ..SetAttr::default() })?;
            }
            Op::Chmod { at, mode } => {
                let (id, attr) = self.find(at)?;
                if attr.kind == Kind::Symlink {
                    return Err(Errno::EINVAL);
                }
                union.setattr(&caller, id, &SetAttr { perm: Some(*mode), ..SetAttr::default() })?;
            }
            Op::SetXattr { at, n: name, len } => {
                let id = self.with_xattrs(at)?;
                union.setxattr(&caller, id, xattr(*name).as_bytes(), &bytes(n, (*len).into()), 0)?;
            }
            Op::RemoveXattr { at, n } => {
                let id = self.with_xattrs(at)?;
                union.removexattr(&caller, id, xattr(*n).as_bytes())?;
            }
            Op::Hold { at } => {
                let id = self.file(at)?;
                self.held.push(id);
            }
            Op::HeldWrite { which, offset, len } => {
                let id = *pick(&self.held, *which)?;
                union.write(&caller, id, u64::from(*offset), &bytes(n, *len))?;
            }
            Op::HeldRead { which } => return self.read(*pick(&self.held, *which)?),
            Op::Walk => drop(self.tree()),
            Op::Complete => {
                if let Some(unfilled) = union.complete().first() {
                    return Err(unfilled.why);
                }
            }
            Op::Forget => self.forget(),
            Op::Remount => self.remount(),
        }
        Ok(Vec::new())
    }

    fn with_xattrs(&mut self, at: &Path) -> Sys<NodeId> {
        let (id, attr) = self.find(at)?;
        if matches!(attr.kind, Kind::File | Kind::Dir) { Ok(id) } else { Err(Errno::EPERM) }
    }

    fn rename(&mut self, from: &Path, to: &Path, how: How) -> Sys<()> {
        let (dir, name) = self.parent(from)?;
        let (to_dir, to_name) = self.parent(to)?;
        let below = |a: &Path, b: &Path| b.len() > a.len() && b.starts_with(a);
        let (id, attr) = self.step(dir, name)?;
        let there = match self.step(to_dir, to_name) {
            Ok(found) => Some(found),
            Err(Errno::ENOENT) => None,
            Err(e) => return Err(e),
        };
        let flags = match how {
            How::Replace => 0,
            How::NoReplace if there.is_some() => return Err(Errno::EEXIST),
            How::NoReplace => libc::RENAME_NOREPLACE,
            How::Exchange if there.is_none() => return Err(Errno::ENOENT),
            How::Exchange => libc::RENAME_EXCHANGE,
        };
        if below(from, to) {
            return Err(Errno::EINVAL);
        }
        if below(to, from) {
            return Err(if how == How::Exchange { Errno::EINVAL } else { Errno::ENOTEMPTY });
        }
        match there {
            Some((other, _)) if other == id => return Ok(()),
            Some((_, other)) if how != How::Exchange => {
                match (attr.kind == Kind::Dir, other.kind == Kind::Dir) {
                    (true, false) => return Err(Errno::ENOTDIR),
                    (false, true) => return Err(Errno::EISDIR),
                    _ => {}
                }
            }
            _ => {}
        }
        let caller = Caller::default();
        self.union().rename(&caller, dir, name.as_bytes(), to_dir, to_name.as_bytes(), flags)
    }

    fn remove_below(&mut self, dir: NodeId) -> Sys<()> {
        let (union, caller) = (self.union(), Caller::default());
        for name in self.names(dir)? {
            let (id, attr) = self.step(dir, &name)?;
            if attr.kind == Kind::Dir {
                self.remove_below(id)?;
                union.rmdir(&caller, dir, name.as_bytes())?;
            } else {
                union.unlink(&caller, dir, name.as_bytes())?;
            }
        }
        Ok(())
    }

    fn names(&self, dir: NodeId) -> Sys<Vec<String>> {
        let mut names = Vec::new();
        self.union().readdir(dir, 0, false, |item| {
            if item.name != b"." && item.name != b".." {
                names.push(String::from_utf8(item.name.to_vec()).unwrap());
            }
            true
        })?;
        names.sort();
        Ok(names)
    }

    fn read(&self, id: NodeId) -> Sys<Vec<u8>> {
        let union = self.union();
        let (attr, _) = union.getattr(id)?;
        let mut all = Vec::new();
        union.read(id, 0, attr.size as usize + 10, &mut all)?;
        assert_eq!(all.len() as u64, attr.size);
        Ok(all)
    }

    /// The kernel gives back all it knows, but for open files.
    fn forget(&mut self) {
        let union = self.union();
        let mut known = std::mem::take(&mut self.known);
        for id in &self.held {
            if let Some(n) = known.remove(id) {
                self.known.insert(*id, n);
            }
        }
        for (id, n) in known {
            union.forget(id, n);
        }
    }

    pub fn tree(&mut self) -> Tree {
        let mut tree = Tree::new();
        let mut first = HashMap::new();
        self.walk(ROOT_ID, "", &mut tree, &mut first);
        tree
    }

    fn walk(&mut self, dir: NodeId, prefix: &str, tree: &mut Tree, first: &mut HashMap<u64, String>) {
        let union = self.union();
        for name in self.names(dir).unwrap() {
            let shown = format!("{prefix}{name}");
            let (id, attr) =
                self.step(dir, &name).unwrap_or_else(|e| panic!("{shown} is listed but not found: {e}"));
            assert_eq!(id, attr.ino);
            let again = union.getattr(id).unwrap_or_else(|e| panic!("getattr {shown}: {e}")).0;
            assert_eq!(again, attr, "{shown}: getattr and lookup");
            let content = match attr.kind {
                Kind::File => self.read(id).unwrap_or_else(|e| panic!("read {shown}: {e}")),
                Kind::Symlink => union.readlink(id).unwrap(),
                _ => Vec::new(),
            };
            let mut xattrs = BTreeMap::new();
            if matches!(attr.kind, Kind::File | Kind::Dir) {
                let list = union.listxattr(id).unwrap();
                for name in list.split(|b| *b == 0).filter(|n| n.starts_with(b"user.")) {
                    xattrs.insert(name.to_vec(), union.getxattr(id, name).unwrap());
                }
            }
            let same_as = first.entry(attr.ino).or_insert_with(|| shown.clone()).clone();
            tree.insert(shown.clone(), object(&attr, content, xattrs, same_as));
            if attr.kind == Kind::Dir {
                self.walk(id, &format!("{shown}/"), tree, first);
            }
        }
    }

    /// What an operation left behind in the work directory; there should be nothing.
    pub fn leftovers(&self) -> Vec<String> {
        self.union().sweep();
        let entries = fs::read_dir(&self.setup.work).unwrap();
        let names = entries.map(|e| e.unwrap().file_name().into_string().unwrap());
        // Files that borrow keep their notes.
        names.filter(|n| n != "index" && n != "partial").collect()
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.union = None;
    }
}
