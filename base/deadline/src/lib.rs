//! What every wait has to know: when it must end, and who has died meanwhile.
//!
//! A [`Deadline`] is one absolute point on the monotonic clock. A [`Death`] says which process ended and how, and a [`Watch`] is
//! whoever can tell. Waiting itself is the business of `mailbox-atomics`, processes are that of `child-process`; both stand on these types.
//!
//! # Contract
//! - **DL-1** A deadline is made once and passed down: no step of an operation starts the time anew.
//! - **DL-2** A limit of zero, of more than [`LONGEST_WAIT`], or a point that has passed is refused before anything waits.
//! - **DL-3** A deadline is the same number in every process of the machine.
//!
//! # Example
//! ```
//! use deadline::{Deadline, DeadlineError};
//! use std::time::Duration;
//!
//! let deadline = Deadline::after(Duration::from_secs(5))?;
//! assert!(deadline.left() <= Duration::from_secs(5) && !deadline.has_passed());
//! assert_eq!(Deadline::after(Duration::ZERO), Err(DeadlineError::Zero));
//! # Ok::<_, DeadlineError>(())
//! ```
//!
//! # What it does not do
//! It does not wait, and it watches nobody by itself.

mod clock;
#[expect(clippy::module_inception, reason = "the crate is named after its first type")]
mod deadline;
mod death;

pub use deadline::{Deadline, DeadlineError, LONGEST_WAIT, coarse_monotonic_ns, monotonic_ns};
pub use death::{Death, HowDied, Watch};
