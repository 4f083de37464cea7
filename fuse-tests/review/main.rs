//! The review room on real files: uppers made by hand, what is seen in them, and what applying makes of them.

// Helpers of tests may fail as tests do.
#![allow(clippy::unwrap_used)]

mod apply;
mod conflicts;
mod diffs;
mod discards;
mod exports;
mod hostile;
mod model;
mod risks;
mod scans;
mod world;
