//! What happened: an append-only log of operations on the merged view, and its fold into a change set.

mod base_store;
mod fold;
mod frame;
mod process;
mod reader;
mod record;
mod tree;
mod writer;

pub use base_store::{BASE_MAX, Bases, get_base};
pub use fold::{Folded, Folder, fold, fold_dir};
pub use reader::{Log, Reader, read};
pub use record::{Command, Entry, Op, Process, Record};
pub use writer::{Journal, Opening};
