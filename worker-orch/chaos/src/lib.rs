//! What the sweep of faults over a Worker adds up to: the outcomes of its cases, the order in which they run,
//! and the totals that are held to the contract.
//!
//! The cases themselves are run by the test `proc_chaos` of this package, which is also the program behind
//! `cargo xtask chaos`.
#![forbid(unsafe_code)]

mod order;
mod outcome;
mod totals;

pub use order::spread;
pub use outcome::{Kind, Outcome};
pub use totals::Totals;
