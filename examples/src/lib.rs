//! What the example programs share: command line, devices, batches of iterations, golden checks, output.
//!
//! Read `first/hello.rs`, `first/hello_kernel.rs` and `first/hello_collective.rs` before anything here: they
//! use `worker-orch` and nothing of this crate. The other programs are in `src/bin`, the kernels in
//! `kernels`; of these read `allreduce` with [`Collective`], then `tp_ffn`.
//!
//! # What it does not do
//! It serves these programs and is not a library for others: nothing here is stable.

mod cli;
mod collective;
mod devices;
mod exit;
mod golden;
mod graphs;
mod job;
mod kernel_args;
mod log;
mod options;
mod report;
mod rows;

pub use cli::{Arguments, CommandLine, Flag, usage};
pub use collective::{
    Collective, GraphOf, SIGNAL_BYTES, Windows, data_len, input, sum_of_inputs, window_bytes,
};
pub use devices::Devices;
pub use exit::{Error, Outcome, main, print_line};
pub use golden::{Checked, UNTOUCHED, slack_of_sum};
pub use graphs::{DOT_FLAG, GraphOptions, Peers, reduce};
pub use job::Job;
pub use kernel_args::{ARGS_FLAGS, KernelArg, KernelArgs};
pub use options::{DEFAULT_SYMBOL, FLAGS, KERNEL_NOTE, KernelFile, Options, Style, at_least_one};
pub use rows::{Rows, rows_that_fit};

/// The README's program, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

/// The program of the page for users of simpler, compiled.
#[cfg(doctest)]
#[doc = include_str!("../../docs/coming-from-simpler.md")]
struct ComingFromSimpler;

/// The program of the guide to kernels, compiled.
#[cfg(doctest)]
#[allow(rustdoc::invalid_codeblock_attributes, reason = "`file=` is for the lane that types the commands")]
#[doc = include_str!("../../docs/guide-first-kernel.md")]
struct GuideFirstKernel;

/// `1 chip`, `2 chips`.
pub fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}
