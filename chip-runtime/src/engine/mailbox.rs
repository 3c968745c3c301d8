//! What goes through the mailbox of a thread: a launch, and how it ended.
//!
//! # Safety
//! Launches are pointers to what the engine keeps until they have ended.
#![allow(unsafe_code)]

use super::launch::Outcome;
use super::ready::Launch;
use crate::record::Span;
use mailbox_atomics::WorkSlot;

/// A launch for one thread. Nothing is said of the end of one that returned without an error, asked for nothing, and is not recorded.
pub(super) type Mailbox = WorkSlot<Given, Ended>;

/// A launch, and whether it is recorded when it runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Given {
    pub(super) launch: Launch,
    pub(super) recorded: bool,
}

// SAFETY: a launch belongs to the thread that it was given to, until it has ended.
unsafe impl Send for Given {}

/// How a launch ended, and when it ran if that is recorded.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) outcome: Outcome,
    pub(super) span: Option<Span>,
}

impl Ended {
    /// If there is something to say.
    pub(super) fn unless_plain(self) -> Option<Self> {
        (!self.outcome.is_plain() || self.span.is_some()).then_some(self)
    }

    /// That of a launch about which nothing was said.
    pub(super) fn plain() -> Self {
        Self { outcome: Outcome::plain(), span: None }
    }
}
