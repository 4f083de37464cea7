//! What a test needs a process of its own for: another umask, another user, locks.

use crate::harness::{Dirs, nix_errno};
use nix::fcntl::{FcntlArg, Flock, FlockArg, OFlag, fcntl, open};
use nix::sys::stat::{Mode, umask};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Does what `words` say; the exit code is an errno or 0.
pub fn run(words: &[String]) -> i32 {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["create", mask, mode, path] => {
            umask(octal(mask));
            nix_errno(open(path, OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_WRONLY, octal(mode)))
        }
        ["mkdir", mask, mode, path] => {
            umask(octal(mask));
            nix_errno(nix::unistd::mkdir(path, octal(mode)))
        }
        ["mkfifo", mask, mode, path] => {
            umask(octal(mask));
            nix_errno(nix::unistd::mkfifo(path, octal(mode)))
        }
        ["chmod", mode, path] => crate::harness::errno(std::fs::set_permissions(
            path,
            std::os::unix::fs::PermissionsExt::from_mode(octal(mode).bits()),
        )),
        ["open", flags, path] => {
            let flags = OFlag::from_bits_truncate(flags.parse().unwrap());
            nix_errno(open(path, flags, Mode::empty()))
        }
        ["append", bytes, path] => {
            let file = std::fs::OpenOptions::new().append(true).open(path);
            crate::harness::errno(file.and_then(|mut f| f.write_all(bytes.as_bytes())))
        }
        ["unlink", path] => nix_errno(nix::unistd::unlink(path)),
        ["truncate", len, path] => nix_errno(nix::unistd::truncate(path, len.parse().unwrap())),
        ["flock", path] => hold_flock(path),
        ["try-flock", path] => nix_errno(
            Flock::lock(std::fs::File::open(path).unwrap(), FlockArg::LockExclusiveNonblock)
                .map_err(|(_, e)| e),
        ),
        ["lock", start, len, path] => hold_lock(path, start.parse().unwrap(), len.parse().unwrap()),
        ["try-lock", start, len, path] => {
            let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
            nix_errno(set_lock(&file, start.parse().unwrap(), len.parse().unwrap()))
        }
        ["mount", lower, session, mnt] => mount(Path::new(lower), Path::new(session), Path::new(mnt)),
        _ => panic!("no such help: {words:?}"),
    }
}

fn octal(text: &str) -> Mode {
    Mode::from_bits_truncate(u32::from_str_radix(text, 8).unwrap())
}

fn set_lock(file: &std::fs::File, start: i64, len: i64) -> nix::Result<i32> {
    let lock = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: len,
        l_pid: 0,
    };
    fcntl(file, FcntlArg::F_SETLK(&lock))
}

fn until_told() -> i32 {
    println!("ready");
    let mut rest = Vec::new();
    crate::harness::errno(std::io::stdin().read_to_end(&mut rest))
}

fn hold_flock(path: &str) -> i32 {
    let Ok(_held) = Flock::lock(std::fs::File::open(path).unwrap(), FlockArg::LockExclusiveNonblock) else {
        return libc::EWOULDBLOCK;
    };
    until_told()
}

fn hold_lock(path: &str, start: i64, len: i64) -> i32 {
    let file =
        std::fs::OpenOptions::new().read(true).write(true).custom_flags(libc::O_CLOEXEC).open(path).unwrap();
    match set_lock(&file, start, len) {
        Ok(_) => until_told(),
        Err(e) => e as i32,
    }
}

/// Serves a mount as the product makes it for root, until it is unmounted: for `scripts/conformance`.
fn mount(lower: &Path, session: &Path, mnt: &Path) -> i32 {
    let dirs = Dirs { lower: lower.to_owned(), session: session.to_owned(), mnt: mnt.to_owned() };
    dirs.prepare();
    let mounted = dirs.mount(true);
    println!("ready");
    mounted.wait();
    0
}
