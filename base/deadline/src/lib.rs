//! What every wait has to know: when it must end, and who has died meanwhile.
//!
//! A [`Deadline`] is one absolute point on the monotonic clock. A [`Death`] says which process ended
//! and how, and a [`Watch`] reports deaths to a waiter. `mailbox-atomics` waits, `child-process` starts
//! and watches processes; both use these types.
//!
//! # Contract
//! - **DL-1** A deadline is made once and passed down: no step of an operation restarts the clock.
//! - **DL-2** A limit of zero, a limit over [`LONGEST_WAIT`] and a point in the past are refused before
//!   anything waits.
//! - **DL-3** A deadline is the same number in every process of the machine.
//! - **DL-4** A death names the peer, its process and how it ended.
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
//! It does not wait, and it watches no process itself.

mod clock;
mod deadline;
mod death;

pub use deadline::{Deadline, DeadlineError, LONGEST_WAIT, coarse_monotonic_ns, monotonic_ns};
pub use death::{Death, HowDied, Watch};
