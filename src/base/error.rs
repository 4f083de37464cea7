//! The error a person sees: one sentence, its causes, and a hint with the next command.

use super::{Errno, quote};
use std::fmt;

/// Result of anything that ends in front of a person.
pub type Result<T> = std::result::Result<T, Error>;

/// What kind of failure it is; decides the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The work could not be done (exit 1).
    Failure,
    /// The command line or the configuration is wrong (exit 2).
    Usage,
    /// The real tree is not what the session was based on (exit 3).
    Conflict,
    /// Another process holds the session (exit 4).
    Locked,
    /// A limit of the session is reached (exit 5).
    Quota,
    /// Something this host must have is missing (exit 6).
    Missing,
    /// The reader of our output went away (exit 0, silently).
    BrokenPipe,
}

impl ErrorKind {
    /// The process exit code that tells this kind.
    pub fn exit_code(self) -> u8 {
        match self {
            ErrorKind::Failure => 1,
            ErrorKind::Usage => 2,
            ErrorKind::Conflict => 3,
            ErrorKind::Locked => 4,
            ErrorKind::Quota => 5,
            ErrorKind::Missing => 6,
            ErrorKind::BrokenPipe => 0,
        }
    }
}

/// An error with what failed, why, and what to do next.
#[derive(Debug)]
pub struct Error {
    /// Decides the exit code.
    pub kind: ErrorKind,
    /// What failed and on what, one sentence without a full stop.
    pub message: String,
    /// Why, outermost first.
    pub causes: Vec<String>,
    /// The next command or step, where there is one.
    pub hint: Option<String>,
    /// The errno behind it, where there is one.
    pub errno: Option<Errno>,
}

impl Error {
    /// A new error of `kind`.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error { kind, message: message.into(), causes: Vec::new(), hint: None, errno: None }
    }

    /// A plain failure (exit 1).
    pub fn failure(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Failure, message)
    }

    /// A mistake in the command line (exit 2).
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Usage, message)
    }

    /// `what` failed on `path` with `errno`: "cannot open 'x': no such file or directory (ENOENT)".
    pub fn on_path(what: &str, path: impl AsRef<[u8]>, errno: impl Into<Errno>) -> Self {
        let errno = errno.into();
        let mut e = Self::failure(format!("cannot {what} {}: {errno}", quote(path.as_ref())));
        e.errno = Some(errno);
        e
    }

    /// `what` failed with `errno`, with no path to name.
    pub fn sys(what: &str, errno: impl Into<Errno>) -> Self {
        let errno = errno.into();
        let mut e = Self::failure(format!("cannot {what}: {errno}"));
        e.errno = Some(errno);
        e
    }

    /// Adds a hint: the next command or step.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Puts `outer` in front; the present message becomes its first cause.
    #[must_use]
    pub fn context(mut self, outer: impl Into<String>) -> Self {
        let inner = std::mem::replace(&mut self.message, outer.into());
        self.causes.insert(0, inner);
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        for cause in &self.causes {
            write!(f, "\n  caused by: {cause}")?;
        }
        if let Some(hint) = &self.hint {
            write!(f, "\nhint: {hint}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}
