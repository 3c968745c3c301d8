//! What the example programs share: command line, devices, batches of iterations, golden checks, output, exit codes.
//!
//! The programs are in `src/bin`, their kernels in `kernels`. Read `hello` first, then the README's first program (it is
//! compiled as a test of this crate), then `allreduce` with [`Collective`], then `tp_ffn`.
//!
//! # What it does not do
//! It is the frame of these programs and no library for others: it promises nothing to anybody.

mod cli;
mod collective;
mod devices;
mod golden;
mod job;
mod report;
mod rows;
mod stop;

pub use cli::{DEFAULT_SYMBOL, KernelFile, Options};
pub use collective::{Collective, SIGNAL_BYTES};
pub use devices::Devices;
pub use golden::{Checked, UNTOUCHED, slack_of_sum};
pub use job::Job;
pub use rows::{Rows, rows_that_fit};
pub use stop::{Stop, Verdict, main};

/// The README's program, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

/// `1 chip`, `2 chips`.
pub fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}
