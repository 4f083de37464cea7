//! Removing a whole tree that programs made, whatever they did to it.

use crate::base::{Errno, Kind, Sys};
use crate::sys::{dir, file};
use std::os::fd::{AsFd, BorrowedFd};

/// Removes `name` in `parent`, a directory with all that is beneath it, or any other object. A directory without
/// permissions gets them first, no symlink is followed, and no depth is too deep: a full directory that is met is
/// moved up beside the others, so that two descriptors are enough for any tree. Gone already is success.
///
/// # Errors
/// The first failure that is not cured by permissions; what is left can be removed by another call.
pub fn remove_tree(parent: BorrowedFd<'_>, name: &[u8]) -> Sys<()> {
    match file::unlinkat(parent, name) {
        Ok(()) | Err(Errno::ENOENT) => return Ok(()),
        Err(Errno::EISDIR | Errno::EPERM) => {}
        Err(e) => return Err(e),
    }
    if rmdir_if_empty(parent, name)? {
        return Ok(());
    }
    open_up(parent, name)?;
    let top = file::openat(parent, name, libc::O_RDONLY | libc::O_DIRECTORY, 0)?;
    let mut moved = 0u64;
    loop {
        let mut left = false;
        for entry in dir::entries(top.as_fd())? {
            if !is_dir(top.as_fd(), &entry)? {
                unlink_any(top.as_fd(), &entry.name)?;
            } else if !rmdir_if_empty(top.as_fd(), &entry.name)? {
                left = true;
                empty_one(top.as_fd(), &entry.name, &mut moved)?;
            }
        }
        if !left {
            break;
        }
    }
    drop(top);
    match file::rmdirat(parent, name) {
        Err(Errno::ENOENT) => Ok(()),
        other => other,
    }
}

/// Empties the directory `name` of `top`: other objects are unlinked, full directories moved into `top`.
fn empty_one(top: BorrowedFd<'_>, name: &[u8], moved: &mut u64) -> Sys<()> {
    open_up(top, name)?;
    let inner = file::openat(top, name, libc::O_RDONLY | libc::O_DIRECTORY, 0)?;
    for entry in dir::entries(inner.as_fd())? {
        if !is_dir(inner.as_fd(), &entry)? {
            unlink_any(inner.as_fd(), &entry.name)?;
        } else if !rmdir_if_empty(inner.as_fd(), &entry.name)? {
            // Moving a directory writes its "..", for which it must be writable itself (rename(2), EACCES).
            open_up(inner.as_fd(), &entry.name)?;
            loop {
                let to = format!(".moved-{moved}");
                *moved += 1;
                match file::renameat(inner.as_fd(), &entry.name, top, to.as_bytes(), libc::RENAME_NOREPLACE) {
                    Err(Errno::EEXIST) => continue,
                    other => break other?,
                }
            }
        }
    }
    rmdir_if_empty(top, name).map(drop)
}

fn is_dir(at: BorrowedFd<'_>, entry: &dir::DirEntry) -> Sys<bool> {
    match entry.kind {
        Some(kind) => Ok(kind == Kind::Dir),
        None => Ok(file::stat_at(at, &entry.name)?.kind == Kind::Dir),
    }
}

/// Whether `name` is gone now.
fn rmdir_if_empty(at: BorrowedFd<'_>, name: &[u8]) -> Sys<bool> {
    match file::rmdirat(at, name) {
        Ok(()) | Err(Errno::ENOENT) => Ok(true),
        Err(Errno::ENOTEMPTY | Errno::EEXIST) => Ok(false),
        Err(e) => Err(e),
    }
}

fn unlink_any(at: BorrowedFd<'_>, name: &[u8]) -> Sys<()> {
    match file::unlinkat(at, name) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(e) => Err(e),
    }
}

fn open_up(at: BorrowedFd<'_>, name: &[u8]) -> Sys<()> {
    let fd = file::openat(at, name, libc::O_PATH | libc::O_DIRECTORY, 0)?;
    if file::stat(fd.as_fd())?.perm & 0o700 != 0o700 {
        file::chmod_fd(fd.as_fd(), 0o700)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_tree_without_permissions_is_removed() {
        let tmp = tempfile::tempdir().unwrap();
        let tree = tmp.path().join("t");
        fs::create_dir_all(tree.join("a/b/c")).unwrap();
        fs::write(tree.join("a/b/c/f"), "x").unwrap();
        std::os::unix::fs::symlink(tmp.path(), tree.join("a/l")).unwrap();
        fs::write(tmp.path().join("stays"), "x").unwrap();
        fs::set_permissions(tree.join("a/b/c"), fs::Permissions::from_mode(0o000)).unwrap();
        fs::set_permissions(tree.join("a"), fs::Permissions::from_mode(0o000)).unwrap();
        let parent = file::open_path(tmp.path().as_os_str().as_encoded_bytes(), libc::O_RDONLY).unwrap();
        remove_tree(parent.as_fd(), b"t").unwrap();
        remove_tree(parent.as_fd(), b"t").unwrap();
        let left: Vec<_> = fs::read_dir(tmp.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["stays"]);
    }

    #[test]
    fn a_tree_deeper_than_any_path_is_removed() {
        let tmp = tempfile::tempdir().unwrap();
        let parent = file::open_path(tmp.path().as_os_str().as_encoded_bytes(), libc::O_RDONLY).unwrap();
        file::mkdirat(parent.as_fd(), b"t", 0o700).unwrap();
        let flags = libc::O_RDONLY | libc::O_DIRECTORY;
        let mut at = file::openat(parent.as_fd(), b"t", flags, 0).unwrap();
        for _ in 0..3000 {
            file::mkdirat(at.as_fd(), b"dd", 0o700).unwrap();
            file::mkdirat(at.as_fd(), b"ee", 0o700).unwrap();
            at = file::openat(at.as_fd(), b"dd", flags, 0).unwrap();
        }
        drop(at);
        remove_tree(parent.as_fd(), b"t").unwrap();
        assert!(fs::read_dir(tmp.path()).unwrap().next().is_none());
    }
}
