//! Ranks that could have a core each and share one (F71).
//!
//! The scheduler may start two ranks on one core, or wake one where the other runs. It then leaves them there: each
//! runs for a microsecond and yields, so both look as if they had just used their caches. So every rank that
//! has to wait says where it runs, and the higher of two that share a core moves to one where no rank is. It is
//! moved, not bound: whatever set of cores it was allowed, it is allowed afterwards, and never leaves that set.

use crate::memory::Memory;
use crate::memory::seen::SeenOn;
use comm_context::comm::Membership;
use deadline::coarse_monotonic_ns;
use mailbox_atomics::{AllowedCores, current_core, move_this_thread_to};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

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
        self.publish_at(coarse_monotonic_ns());
    }

    fn publish_at(&self, now_ns: u64) -> Option<SeenOn> {
        let seen = SeenOn::new(current_core()?, now_ns)?;
        let word = self.memory.seen_on(self.me.rank());
        // Stored only when it changes, so that the others keep their copy of the line.
        if word.load() != seen.encode() {
            word.store(seen.encode());
        }
        Some(seen)
    }
}

impl mailbox_atomics::Placement for Placement {
    fn look_after(&self, now_ns: u64) {
        let Some(mine) = self.publish_at(now_ns) else { return };
        let me = self.me.rank();
        let near = |rank| SeenOn::decode(self.memory.seen_on(rank).load()).filter(|seen| seen.is_near(mine));
        // What a rank that computes said long ago says nothing; only ranks that wait now are counted.
        if !(0..me).filter_map(near).any(|lower| lower.core == mine.core) {
            return;
        }
        // Relaxed: a hint that only this process uses.
        let moved = SeenOn::decode(self.moved.load(Ordering::Relaxed));
        if moved.is_some_and(|moved| moved.is_near(mine)) {
            return;
        }
        let taken = |core: usize| {
            (0..self.me.nranks())
                .filter(|rank| *rank != me)
                .filter_map(near)
                .any(|seen| usize::from(seen.core) == core)
        };
        let own = usize::from(mine.core);
        let free = AllowedCores::of_this_process().iter().find(|core| *core != own && !taken(*core));
        if let Some(free) = free
            && move_this_thread_to(free).is_ok()
        {
            // Relaxed: as above.
            self.moved.store(mine.encode(), Ordering::Relaxed);
            self.publish_at(now_ns);
        }
    }
}
