//! A way out for a process that is asked to stop while it waits: Ctrl-C in a program whose signals an interpreter handles.

use std::sync::OnceLock;

static CHECK: OnceLock<fn() -> bool> = OnceLock::new();

/// Lets every wait of this process ask `check`, once in a [`POLL_INTERVAL`](crate::POLL_INTERVAL), whether to give up with
/// [`WaitError::Interrupted`](crate::WaitError::Interrupted). For bindings of languages whose runtime records signals and leaves it to
/// the running call to look. The first call counts, for as long as the process lives.
pub fn interrupt_waits(check: fn() -> bool) {
    let _ = CHECK.set(check);
}

/// Whether anybody may interrupt.
pub(crate) fn is_possible() -> bool {
    CHECK.get().is_some()
}

/// Asks.
pub fn is_interrupted() -> bool {
    CHECK.get().is_some_and(|check| check())
}
