//! What trust rests on: an application that fails or dies anywhere leaves the real tree all old or all new, and any
//! application can be undone.

// Helpers of tests may fail as tests do.
#![allow(clippy::unwrap_used)]

mod cells;
mod escapes;
mod modes;
#[path = "../support/mod.rs"]
mod support;
mod sweep;
mod undoing;
#[allow(dead_code)]
#[path = "../review/world.rs"]
mod world;
