//! Who asks.

/// The process behind a request, as the kernel names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// File system user id.
    pub uid: u32,
    /// File system group id.
    pub gid: u32,
    /// Process id in the server's namespace; 0 when the kernel itself asks or the process is not visible.
    pub pid: u32,
    /// Its umask, where the verb makes something.
    pub umask: u32,
}
