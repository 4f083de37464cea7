//! Between the kernel's FUSE protocol and the union. The only room that knows `fuser`.
//!
//! Profile: the kernel checks permissions (`default_permissions`), and neither OPEN nor OPENDIR exist, so that opening
//! what the kernel has in its cache costs no round trip. Descriptors belong to nodes (see `union::file`).

mod adapter;
mod convert;
mod helper;
mod mount;
mod pace;

pub use mount::{How, Options, Server, mount};
