//! Memory for a rank's extent, counted in the group.

use super::Group;
use crate::error::region_error;
use comm_context::comm::CommError;
use std::cell::Cell;
use std::ops::Range;
use std::sync::PoisonError;

impl Group {
    /// Puts memory behind a range of this rank's extent. What other ranks are about to reserve counts as gone: each
    /// alone may find enough where all together do not.
    pub fn reserve(&self, range: Range<usize>) -> Result<(), CommError> {
        let announced = Cell::new(0);
        let announce = |bytes| {
            let before = announced.replace(bytes);
            self.announce(before, bytes)
        };
        self.region().reserve_announced(range, &announce).map_err(region_error)
    }

    /// This thread is about to reserve `now` bytes instead of `before`. Returns what all others are about to reserve.
    fn announce(&self, before: u64, now: u64) -> u64 {
        let mut reserving = self.reserving.lock().unwrap_or_else(PoisonError::into_inner);
        *reserving = reserving.saturating_sub(before).saturating_add(now);
        let demands = self.memory.demands(self.me.rank());
        demands.announce(*reserving);
        let other_threads = *reserving - now;
        // A rank that is gone takes nothing any more.
        let lives = |rank: u32| !self.memory.has_left(rank) && !self.has_ended(rank);
        let nranks = self.me.nranks();
        let others = demands.of_others().filter(|(rank, _)| (*rank as u32) < nranks && lives(*rank as u32));
        others.fold(other_threads, |sum, (_, bytes)| sum.saturating_add(bytes))
    }
}
