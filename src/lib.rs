//! sbx-fuse: a private, writable view of real directories, and the decision afterwards what becomes real.
//!
//! The module list is the architecture, from the ground up. A module may call those above it in this list
//! as the table in `fuse-tests/tidy` says; nothing flows back up.

/// Names, ids, attributes, change sets and errors; no system calls.
pub mod base;
/// Commands, their arguments and their output.
pub mod cli;
/// The adapter between the kernel's FUSE protocol and the union.
pub mod fuse;
/// What happened: records, the log they live in, recovery, and the fold into a change set.
pub mod journal;
/// What a layer looks like on disk: whiteout, opaque, redirect, origin.
pub mod layer;
/// From changes to decisions: compare, diff, conflict, plan, apply, discard.
pub mod review;
/// What to run, and how it is confined.
pub mod sandbox;
/// The store of sessions.
pub mod session;
/// The only `unsafe`: one thin wrapper per system call.
pub mod sys;
/// The semantics of the merged view.
pub mod union;
