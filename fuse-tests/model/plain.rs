//! The operations on a plain directory: what they should do.

use crate::ops::{How, Op, Path, bytes, target, xattr};
use crate::tree::{Object, Tree};
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use sbx_fuse::base::{Attr, Errno, Kind, Sys};
use sbx_fuse::sys;
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::PathBuf;

pub struct Plain {
    pub dir: PathBuf,
    held: Vec<File>,
}

impl Plain {
    pub fn new(dir: PathBuf) -> Plain {
        Plain { dir, held: Vec::new() }
    }

    fn path(&self, at: &Path) -> PathBuf {
        self.dir.join(at.join("/"))
    }

    fn file(&self, at: &Path) -> Sys<File> {
        let path = self.path(at);
        if !fs::symlink_metadata(&path)?.is_file() {
            return Err(Errno::EINVAL);
        }
        Ok(OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOFOLLOW).open(path)?)
    }

    /// Does the `n`-th operation; the bytes are what it read.
    pub fn apply(&mut self, n: usize, op: &Op) -> Sys<Vec<u8>> {
        match op {
            Op::Create { at, len } => {
                let file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(self.path(at))?;
                file.set_permissions(fs::Permissions::from_mode(0o644))?;
                file.write_all_at(&bytes(n, *len), 0)?;
            }
            Op::Mkdir { at } => {
                fs::create_dir(self.path(at))?;
                fs::set_permissions(self.path(at), fs::Permissions::from_mode(0o755))?;
            }
            Op::Symlink { at, n } => symlink(target(*n), self.path(at))?,
            Op::Fifo { at } => {
                nix::unistd::mkfifo(&self.path(at), nix::sys::stat::Mode::S_IRWXU)?;
            }
            Op::Link { from, to } => fs::hard_link(self.path(from), self.path(to))?,
            Op::Unlink { at } => nix::unistd::unlink(&self.path(at))?,
            Op::Rmdir { at } => fs::remove_dir(self.path(at))?,
            Op::Remove { at } => {
                if !fs::symlink_metadata(self.path(at))?.is_dir() {
                    return Err(Errno::ENOTDIR);
                }
                fs::remove_dir_all(self.path(at))?;
            }
            Op::Rename { from, to, how } => {
                let flags = match how {
                    How::Replace => RenameFlags::empty(),
                    How::NoReplace => RenameFlags::RENAME_NOREPLACE,
                    How::Exchange => RenameFlags::RENAME_EXCHANGE,
                };
                renameat2(AT_FDCWD, &self.path(from), AT_FDCWD, &self.path(to), flags)?;
            }
            Op::Write { at, offset, len } => {
                self.file(at)?.write_all_at(&bytes(n, *len), u64::from(*offset))?;
            }
            Op::Truncate { at, len } => self.file(at)?.set_len(u64::from(*len))?,
            Op::Chmod { at, mode } => {
                if fs::symlink_metadata(self.path(at))?.is_symlink() {
                    return Err(Errno::EINVAL);
                }
                fs::set_permissions(self.path(at), fs::Permissions::from_mode(*mode))?;
            }
            Op::SetXattr { at, n: name, len } => {
                sys::xattr::set(
                    self.handle(at)?.as_fd(),
                    xattr(*name).as_bytes(),
                    &bytes(n, (*len).into()),
                    0,
                )?;
            }
            Op::RemoveXattr { at, n } => {
                sys::xattr::remove(self.handle(at)?.as_fd(), xattr(*n).as_bytes())?;
            }
            Op::Hold { at } => {
                let file = self.file(at)?;
                self.held.push(file);
            }
            Op::HeldWrite { which, offset, len } => {
                let file = pick(&self.held, *which)?;
                file.write_all_at(&bytes(n, *len), u64::from(*offset))?;
            }
            Op::HeldRead { which } => return read_all(pick(&self.held, *which)?),
            Op::Remount => self.held.clear(),
            Op::Walk | Op::Complete | Op::Forget => {}
        }
        Ok(Vec::new())
    }

    /// A descriptor of a file or directory; xattrs of others are not ours to promise.
    fn handle(&self, at: &Path) -> Sys<File> {
        let path = self.path(at);
        let kind = fs::symlink_metadata(&path)?;
        if !kind.is_file() && !kind.is_dir() {
            return Err(Errno::EPERM);
        }
        Ok(File::open(path)?)
    }

    pub fn tree(&self) -> Tree {
        let mut tree = Tree::new();
        let mut first = HashMap::new();
        walk(&self.dir, "", &mut tree, &mut first);
        tree
    }
}

/// One of those held.
pub fn pick<T>(held: &[T], which: u8) -> Sys<&T> {
    if held.is_empty() {
        return Err(Errno::EBADF);
    }
    Ok(&held[usize::from(which) % held.len()])
}

fn read_all(file: &File) -> Sys<Vec<u8>> {
    let mut all = vec![0; file.metadata()?.len() as usize];
    file.read_exact_at(&mut all, 0)?;
    Ok(all)
}

fn walk(dir: &std::path::Path, prefix: &str, tree: &mut Tree, first: &mut HashMap<u64, String>) {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    for name in names {
        let path = dir.join(&name);
        let shown = format!("{prefix}{name}");
        let attr = stat(&path);
        let mut xattrs = BTreeMap::new();
        let mut content = Vec::new();
        match attr.kind {
            Kind::File => content = fs::read(&path).unwrap(),
            Kind::Symlink => {
                content = fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes();
            }
            _ => {}
        }
        if matches!(attr.kind, Kind::File | Kind::Dir) {
            let fd = File::open(&path).unwrap();
            for name in sys::xattr::list(fd.as_fd()).unwrap().into_iter().filter(|n| n.starts_with(b"user."))
            {
                let value = sys::xattr::get(fd.as_fd(), &name).unwrap().unwrap();
                xattrs.insert(name, value);
            }
        }
        let same_as = first.entry(attr.ino).or_insert_with(|| shown.clone()).clone();
        tree.insert(shown.clone(), object(&attr, content, xattrs, same_as));
        if attr.kind == Kind::Dir {
            walk(&path, &format!("{shown}/"), tree, first);
        }
    }
}

pub fn object(attr: &Attr, bytes: Vec<u8>, xattrs: BTreeMap<Vec<u8>, Vec<u8>>, same_as: String) -> Object {
    let nlink = if attr.kind == Kind::Dir { 0 } else { attr.nlink };
    Object { kind: attr.kind, perm: attr.perm, nlink, bytes, xattrs, same_as }
}

fn stat(path: &std::path::Path) -> Attr {
    let handle =
        OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_NOFOLLOW).open(path).unwrap();
    sys::file::stat(handle.as_fd()).unwrap()
}
