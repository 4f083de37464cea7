//! The review room on real files: uppers made by hand, what is seen in them, and what applying makes of them.

mod apply;
mod conflicts;
mod diffs;
mod discards;
mod model;
mod scans;
mod world;
