//! The errno that every file operation may end with, and its one table of words.

use std::fmt;

/// An `errno(3)` value as the kernel knows it, e.g. `libc::ENOENT`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

/// Result of an operation that fails with an errno only.
pub type Sys<T> = std::result::Result<T, Errno>;

macro_rules! errnos {
    ($($name:ident: $text:literal),+ $(,)?) => {
        impl Errno {
            $(#[doc = $text] pub const $name: Errno = Errno(libc::$name);)+

            /// The symbolic name, e.g. `ENOENT`; `None` for a value outside the table.
            pub fn name(self) -> Option<&'static str> {
                match self { $(Errno::$name => Some(stringify!($name)),)+ _ => None }
            }

            /// The meaning in words, as `strerror(3)` gives it in the C locale.
            pub fn text(self) -> &'static str {
                match self { $(Errno::$name => $text,)+ _ => "unknown error" }
            }
        }
    };
}

errnos! {
    EPERM: "operation not permitted", ENOENT: "no such file or directory", EINTR: "interrupted",
    EIO: "input/output error", ENXIO: "no such device or address", E2BIG: "argument list too long",
    EBADF: "bad file descriptor", EAGAIN: "try again", ENOMEM: "out of memory",
    EACCES: "permission denied", EBUSY: "device or resource busy", EEXIST: "file exists",
    EXDEV: "not on the same file system", ENODEV: "no such device", ENOTDIR: "not a directory",
    EISDIR: "is a directory", EINVAL: "invalid argument", ENFILE: "too many open files in the system",
    EMFILE: "too many open files", ENOTTY: "not supported by this file (ioctl)",
    ETXTBSY: "text file busy", EFBIG: "file too large", ENOSPC: "no space left on device",
    EROFS: "read-only file system", EMLINK: "too many links", ERANGE: "result too large",
    ENAMETOOLONG: "file name too long", ENOSYS: "function not implemented",
    ENOTEMPTY: "directory not empty", ELOOP: "too many levels of symbolic links",
    ENODATA: "no data available", EOVERFLOW: "value too large", EOPNOTSUPP: "operation not supported",
    ENOTCONN: "transport endpoint is not connected", ESTALE: "stale file handle",
    EDQUOT: "quota exceeded", ECONNREFUSED: "connection refused", EPIPE: "broken pipe",
    ECONNRESET: "connection reset", ECONNABORTED: "connection aborted",
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "errno {}", self.0),
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{} ({name})", self.text()),
            None => write!(f, "errno {}", self.0),
        }
    }
}

impl std::error::Error for Errno {}

impl From<std::io::Error> for Errno {
    fn from(e: std::io::Error) -> Self {
        Errno(e.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl From<nix::errno::Errno> for Errno {
    fn from(e: nix::errno::Errno) -> Self {
        Errno(e as i32)
    }
}

impl From<Errno> for std::io::Error {
    fn from(e: Errno) -> Self {
        std::io::Error::from_raw_os_error(e.0)
    }
}
