//! Between the kernel's FUSE protocol and the union. The only room that knows `fuser`.
//!
//! Profile: the kernel checks permissions (`default_permissions`), and neither OPEN nor OPENDIR exist, so that opening
//! what the kernel has in its cache costs no round trip. Descriptors belong to nodes (see `union::file`). CREATE exists
//! only to tell how the kernel is to write to what it makes (see `makers`).

mod adapter;
mod convert;
mod helper;
mod makers;
mod mount;
mod pace;

pub use mount::{How, Options, Server, mount};
