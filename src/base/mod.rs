//! Words that every room shares: names and paths as bytes, attributes, change sets, errors.
//!
//! Nothing here makes a system call.

mod attr;
mod change;
mod errno;
mod error;
mod name;
mod net;
mod pattern;
mod relinked;

pub use attr::{Attr, Kind, SetAttr, SetTime, Time};
pub use change::{BaseId, Change, ChangeSet, ProcRef, What};
pub use errno::{Errno, Sys};
pub use error::{Error, ErrorKind, Result};
pub use name::{NAME_MAX, Name, RelPath, acts_on_terminal, quote, unquote};
pub use net::{Net, Target, host_and_port, leads_outside};
pub use pattern::{Access, Next, PRIVATE_TEMPS, Pattern, Rule, Rules, Spot};
pub use relinked::Relinked;
