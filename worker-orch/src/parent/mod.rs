//! What the caller's process does: it brings all children up, submits tasks to them in the order that their
//! tensors ask for, manages domains and chip memory, chooses the failure to report, and ends the children.
//!
//! The door is [`bring_up()`], which makes an [`Up`] of a [`Plan`]; everything that a Worker does while it is
//! up is a method of [`Up`]. This room knows `shared` and the public types of the crate, and of a child only
//! its process and what it writes to shared memory: it imports nothing from `child`. What runs in a forked
//! child comes with the plan.

mod address_spaces;
mod bring_up;
mod bring_up_error;
mod children;
mod chips;
mod dependencies;
mod first_cause;
mod fork;
mod orchestrator;
mod progress;
mod spawn;
mod trace;
mod up;

pub(crate) use bring_up::{Plan, bring_up, replace_ended};
pub(crate) use children::Ended;
pub use orchestrator::{Domain, DomainContext, DomainStaging, Orchestrator};
pub(crate) use trace::TraceFile;
pub use up::ChipMemory;
pub(crate) use up::{Call, Up};
