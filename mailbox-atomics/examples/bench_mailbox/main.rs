//! Figures of the mailbox's parts beside what the machine can do: `cargo xtask bench mailbox`.
//!
//! # Safety
//! The parked waiter whose processor time is measured is a forked process; it uses shared memory
//! and system calls only.
#![allow(unsafe_code)]

/// Loom's words cannot be in shared memory, so that a model build measures nothing.
#[cfg(loom)]
fn main() {}

#[cfg(not(loom))]
mod figures;

#[cfg(not(loom))]
fn main() -> std::io::Result<()> {
    figures::run(&bench_support::Bench::from_args("mailbox"))
}
