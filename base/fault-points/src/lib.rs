//! Fault points: named places at which a test makes a process fail.
//!
//! A crate places [`fault_point!`] between two steps that a process may die between, and
//! [`fault_call!`] just before a system call that may fail. Without the feature `inject`, which crates
//! turn on in their dev-dependencies, the macros expand to nothing. With it a test arms a `Plan` in the
//! process under test, or starts the process with one in `PLAN_VARIABLE`. A run that records lists
//! every point that it passed, so that a sweep enumerates points instead of naming them. Whole programs
//! are recorded and watched through `LOG_VARIABLE`.
//!
//! # Contract
//! - **FP-1** Without the feature `inject` a point costs nothing, not even a load.
//! - **FP-2** A malformed plan ends the process: it must not pass for one under which nothing went wrong.
//! - **FP-3** A plan and a log line survive their text form.
//! - **FP-4** A fault happens at the pass and in the rank that the plan names, and nowhere else.
//!
//! # The plan as text
//! Entries separated by `;`, each `point@rank#hit=action`:
//! `rendezvous.accepted@1#2=kill;region.reserve=error:12`. Without `@rank` it means any rank, without
//! `#hit` the first pass. Actions: `error:ERRNO` (at calls only), `panic`, `exit:CODE`, `kill`, `stop`,
//! `term`, `delay:MILLISECONDS`.
//!
//! # Example
//! ```
//! fn reserve() -> Result<(), i32> {
//!     fault_points::fault_call!("example.reserve")?;
//!     // The system call comes here.
//!     fault_points::fault_point!("example.reserved");
//!     Ok(())
//! }
//! assert_eq!(reserve(), Ok(()));
//! ```
//!
//! # What it does not do
//! It injects nothing into other processes and does not know what a point means.

/// Whether the points are compiled in: a program that measures says so.
pub const COMPILED_IN: bool = cfg!(feature = "inject");

#[cfg(feature = "inject")]
mod inject;
mod macros;

#[cfg(feature = "inject")]
pub use inject::*;
#[doc(hidden)]
pub use macros::no_fault;
