//! What happened: an append-only log of operations on the merged view, and its fold into a change set.

mod record;

pub use record::{Command, Entry, Op, Process, Record};
