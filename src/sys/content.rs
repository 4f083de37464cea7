//! The content of files that somebody else may have put where we look for them.

use super::file;
use crate::base::{Error, ErrorKind, Kind, Result, quote};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The most that a file written by hand may have, bytes.
pub const BY_HAND: u64 = 1 << 20;

/// The content of the file at `path`, which is no longer than `most` bytes; symlinks are followed. What is no regular
/// file is looked at and not opened: to open a fifo or a device may wait for ever, or set something off, and what they
/// give may have no end.
///
/// # Errors
/// `Usage` for what is no regular file or too long, else with the errno of `open(2)` or `read(2)`.
pub fn read_file(what: &str, path: &Path, most: u64) -> Result<Vec<u8>> {
    let shown = path.as_os_str().as_bytes();
    let told = |e| Error::on_path(what, shown, e);
    let refused = |why: String, hint: &str| {
        Err(Error::new(ErrorKind::Usage, format!("cannot {what} {}: {why}", quote(shown))).hint(hint))
    };
    let handle = file::open_path(shown, libc::O_PATH).map_err(told)?;
    let attr = file::stat(handle.as_fd()).map_err(told)?;
    if attr.kind != Kind::File {
        return refused(
            format!("it is a {}, not a regular file", attr.kind.word()),
            "put a regular file in its place, or take it away",
        );
    }
    let flags = libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOCTTY;
    let fd = file::reopen(handle.as_fd(), flags).map_err(told)?;
    // Not as many as it says it has: of some files (/proc) that is none, and others grow.
    let mut bytes = Vec::new();
    let mut piece = Vec::new();
    while super::data::pread_into(fd.as_fd(), &mut piece, 64 << 10, bytes.len() as u64).map_err(told)? > 0 {
        bytes.extend_from_slice(&piece);
        if bytes.len() as u64 > most {
            return refused(
                format!("it is longer than {} KiB", most >> 10),
                "see whether it is the file it should be, and shorten it or take it away",
            );
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Errno;

    #[test]
    fn only_regular_files_of_a_size_are_read_and_nothing_is_waited_for() {
        let tmp = tempfile::tempdir().unwrap();
        let at = |name: &str| tmp.path().join(name);
        let read = |name: &str| read_file("read", &at(name), 100 << 10);
        std::fs::write(at("plain"), "text").unwrap();
        std::os::unix::fs::symlink("plain", at("link")).unwrap();
        assert_eq!((read("plain").unwrap(), read("link").unwrap()), (b"text".to_vec(), b"text".to_vec()));
        nix::unistd::mkfifo(&at("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        std::os::unix::fs::symlink("/dev/zero", at("endless")).unwrap();
        std::fs::create_dir(at("dir")).unwrap();
        drop(std::os::unix::net::UnixListener::bind(at("socket")).unwrap());
        for (name, kind) in
            [("fifo", "fifo"), ("endless", "character device"), ("dir", "directory"), ("socket", "socket")]
        {
            let e = read(name).unwrap_err();
            assert!(e.message.ends_with(&format!("it is a {kind}, not a regular file")), "{e}");
            assert!(e.kind == ErrorKind::Usage && e.hint.is_some(), "{e}");
        }
        // Sparse, so that its length alone would take all memory.
        std::fs::File::create(at("long")).unwrap().set_len(1 << 40).unwrap();
        assert!(read("long").unwrap_err().message.ends_with("it is longer than 100 KiB"));
        assert_eq!(read("none").unwrap_err().errno, Some(Errno::ENOENT));
        std::os::unix::fs::symlink("round", at("round")).unwrap();
        assert_eq!(read("round").unwrap_err().errno, Some(Errno::ELOOP));
    }
}
