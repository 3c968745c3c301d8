//! Errors that cross process borders: what failed, in which phase, on which rank, device and process, and
//! what caused it.
//!
//! [`Failure`] is the carrier. It is made from any error with its sources ([`Failure::from_error`]) and has a
//! bounded wire form ([`Failure::encode`], [`Failure::decode`]) for mailboxes and pipes. [`ErrorCode`] is the
//! one table of codes, [`cursor`] the byte cursor under every wire form of the workspace, and [`clip`] and
//! [`escape`] make text fit and safe to print.
//!
//! # Contract
//! - **WE-1** A code that crosses a process comes back as the same code, and every other number is refused.
//! - **WE-2** A text is cut at a character, keeps head and tail, shows the cut, and never exceeds its bound.
//!   What is printed holds no control character: a failure and each of its causes take one line, and further
//!   lines of a message are indented below it.
//! - **WE-3** A chain has at most [`MAX_CHAIN`] failures. What is too much is left out in the middle and
//!   counted; the outermost failure and the root cause stay, also in the smallest wire form.
//! - **WE-4** A failure made from an error keeps every source as a cause, unless the text above already
//!   includes it.
//! - **WE-5** Decoding is total: any bytes give a value or an error, never a panic or memory beyond a small
//!   multiple of the input.
//!
//! # Example
//! ```
//! use worker_errors::{ErrorCode, Failure};
//!
//! // In the child: what happened, into a slot of fixed size.
//! let mut slot = [0u8; 256];
//! Failure::new(ErrorCode::Aborted, "gave up on the barrier")
//!     .in_phase("barrier")
//!     .on_rank(0)
//!     .caused_by(Failure::new(ErrorCode::Killed, "SIGSEGV").on_rank(1).in_process(4321))
//!     .encode(&mut slot)?;
//!
//! // In the parent.
//! let failure = Failure::decode(&slot)?;
//! assert_eq!(failure.root_cause().code, ErrorCode::Killed);
//! assert_eq!(
//!     failure.to_string(),
//!     "rank 0, in barrier: aborted: gave up on the barrier\n  caused by: rank 1, pid 4321: killed: SIGSEGV"
//! );
//! # Ok::<(), worker_errors::WireError>(())
//! ```
//!
//! # What it does not do
//! It moves no bytes: the caller owns the mailbox and copies out of shared memory before it decodes. The text
//! of a [`Failure`] includes its causes, so a reporter that walks [`source`](std::error::Error::source)
//! itself prints [`Failure::line`].
#![forbid(unsafe_code)]

mod code;
pub mod cursor;
mod failure;
mod text;
mod wire;

/// Few cases under miri, which is slow, and no file of failing cases, because miri has no file system.
#[cfg(test)]
fn proptest_config() -> proptest::test_runner::Config {
    let cases = if cfg!(miri) { 4 } else { 256 };
    proptest::test_runner::Config { failure_persistence: None, cases, ..Default::default() }
}

pub use code::ErrorCode;
pub use failure::{Failure, MAX_CHAIN, Report};
pub use text::{clip, escape};
pub use wire::{MIN_WIRE_LEN, WireError};
