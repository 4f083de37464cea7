//! The store of sessions: where they live, who holds them, and how to talk to a live one.
//!
//! A session is a directory. Its one writer, a server or an offline command that changes it, holds its lock;
//! everything else reads its files or asks the server over its socket.

mod archive;
mod archive_lower;
mod archive_pax;
mod archive_read;
mod archive_seal;
mod archive_trust;
mod archive_write;
mod config;
mod control;
mod empty;
pub mod gc;
mod lock;
mod meta;
mod mounts;
mod names;
mod processes;
mod recover;
mod remove;
mod roots;
mod rules;
mod store;
mod usage;

pub use archive::{Archived, Encryption, Header as ArchiveHeader, Key, Restore, Restored, Suspend};
pub use archive_lower::{DirId, LowerId, LowerMatch, Sample};
pub use config::{
    Config, Cpus, EnvConfig, LimitsConfig, NetworkConfig, PROJECT_FILE, PolicyConfig, QuotaConfig, Size,
    UndoConfig, read_config, user_file,
};
pub use control::{
    Client, ControlServer, Handler, Leaving, LiveStatus, Merging, NewBase, Place, Seen, is_dead_socket,
};
pub use empty::empty_session;
pub use lock::{Holder, Lock, Role};
pub use meta::{META_VERSION, Meta, PathBytes, RootMeta};
pub use mounts::{Mounted, is_dead, mounted, unmount_by_helper, unmount_stale};
pub use processes::{MARKER, Process, end_processes, let_go_on, processes};
pub use recover::{STAGED_PARTS, recover};
pub use remove::remove_tree;
pub use roots::{ChosenRoot, Home, add_home, choose as choose_roots};
pub use rules::{Sources, from_command_line};
pub use store::{ENV_SESSION, ENV_SESSION_ID, Root, Session, Store};
pub use usage::Usage;
