//! Figures of the mailbox's parts beside what the machine can do: `cargo xtask bench mailbox`.
//!
//! # Safety
//! The parked waiter whose processor time is measured is a forked process; it uses shared memory and system calls only.
#![allow(unsafe_code)]

/// Loom's words are no shared memory, so there is nothing to measure in a model build.
#[cfg(loom)]
fn main() {}

#[cfg(not(loom))]
mod figures;

#[cfg(not(loom))]
fn main() -> std::io::Result<()> {
    figures::run(&bench_support::Bench::from_args("mailbox"))
}
