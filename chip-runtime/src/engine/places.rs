//! Which core the builder and the threads that spin run on: two of them on one core would only yield to each other (F71).

use deadline::coarse_monotonic_ns;
use mailbox_atomics::{Placement, SeenOn, WordU64, keep_apart};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// The most threads that spin.
pub(super) const MOST_SPINNING: usize = 4;

/// Where they were last seen, the builder first.
#[derive(Debug, Default)]
pub(super) struct Places([Place; 1 + MOST_SPINNING]);

#[derive(Debug, Default)]
#[repr(align(128))]
struct Place {
    seen_on: WordU64,
    moved: AtomicU64,
}

impl Places {
    /// To be called by a thread that spins, as the `order`th, and has spun for some time.
    pub(super) fn look_after_spinning(&self, order: u32, now_ns: u64) {
        self.look_after(1 + order, now_ns);
    }

    fn look_after(&self, me: u32, now_ns: u64) {
        let seen_on = |party: u32| self.0.get(party as usize).map(|place| &place.seen_on);
        if let Some(place) = self.0.get(me as usize) {
            keep_apart(me, self.0.len() as u32, seen_on, &place.moved, now_ns);
        }
    }
}

/// The builder stays where it is; the threads make room for it.
#[derive(Debug)]
pub(super) struct BuilderPlacement(pub(super) Arc<Places>);

impl BuilderPlacement {
    pub(super) fn publish_builder(&self) {
        SeenOn::publish(&self.0.0[0].seen_on, coarse_monotonic_ns());
    }
}

impl Placement for BuilderPlacement {
    fn look_after(&self, now_ns: u64) {
        self.0.look_after(0, now_ns);
    }
}
