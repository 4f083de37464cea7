//! The program as a person meets it: stdout, stderr and exit code of whole conversations, as snapshots.
//!
//! Every test has a home of its own, a cleared environment and a fixed width; what differs from run to run (the
//! temporary directory, process ids, times, random ids) is replaced by a token. A change of any word that a person
//! reads is a change of a snapshot.

mod crash;
mod input;
mod mounted;
mod refusals;
mod review;
mod running;
mod trust;
mod undo;
mod world;
