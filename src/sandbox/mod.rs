//! What to run and how it is confined: bwrap's arguments, namespaces, the child and its signals.

mod bwrap;
mod child;
mod environment;
mod inside;
mod namespaces;
mod programs;
mod seccomp;
mod veil;

pub use bwrap::{Bind, Spec, bwrap_missing};
pub use child::{Events, Inherited, Outcome, run};
pub use environment::EnvRules;
pub use inside::{INSIDE, exec, tell_ready};
pub use namespaces::{Capability, Probe, Step, enter, join, probe, probe_here};
pub use programs::find_program;
