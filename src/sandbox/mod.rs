//! What to run and how it is confined: bwrap's arguments, namespaces, the child and its signals.

mod attend;
mod bwrap;
mod child;
mod environment;
mod input;
mod inside;
mod limits;
mod namespaces;
mod programs;
mod proxy;
mod runtime;
mod seccomp;
mod signals;
mod terminal;
mod veil;

pub use bwrap::{Bind, Spec, bwrap_missing};
pub use child::{Events, Inherited, Outcome, run};
pub use environment::EnvRules;
pub use inside::{Door, INSIDE, exec, leave_abstract_sockets, tell_ready};
pub use limits::{EachProcess, Enforced, Limits, REMEDY as LIMITS_REMEDY, can_group};
pub use namespaces::{Capability, Probe, Step, enter, join, probe, probe_here};
pub use programs::find_program;
pub use signals::{Caught, exit_code};
pub use terminal::lead;
