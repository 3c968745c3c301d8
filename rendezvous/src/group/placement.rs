//! Ranks that could have a core each and share one (F71); see [`mailbox_atomics::keep_apart`].

use crate::memory::Memory;
use comm_context::comm::Membership;
use deadline::coarse_monotonic_ns;
use mailbox_atomics::{SeenOn, keep_apart};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

#[derive(Debug)]
pub(super) struct Placement {
    memory: Arc<Memory>,
    me: Membership,
    /// When this rank last moved, as it was seen then; zero if never.
    moved: AtomicU64,
}

impl Placement {
    pub(super) fn new(memory: Arc<Memory>, me: Membership) -> Self {
        Self { memory, me, moved: AtomicU64::new(0) }
    }

    /// Says where this rank runs now.
    pub(super) fn publish(&self) {
        SeenOn::publish(self.memory.seen_on(self.me.rank()), coarse_monotonic_ns());
    }
}

impl mailbox_atomics::Placement for Placement {
    fn look_after(&self, now_ns: u64) {
        let seen_on = |rank| Some(self.memory.seen_on(rank));
        keep_apart(self.me.rank(), self.me.nranks(), seen_on, &self.moved, now_ns);
    }
}
