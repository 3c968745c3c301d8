//! How ranks wait that share cores: in turns.
//!
//! A rank that waits for one on its own core must give the core away, and one that gives it away for a rank on another
//! core loses its turn, though the other may need only a moment more. So every rank says with a step which core it runs on, and
//! keeps its turn for as long as a change of turns takes while all that share the core have come. Every turn then makes two steps instead
//! of one.

use crate::engine::{Blocked, Engine};
use fault_points::fault_point;

impl<'c> Engine<'c> {
    /// What this rank says with a step: one more than the core that it runs on; 0 where that is nobody's concern, or not known.
    #[inline]
    pub(crate) fn note(&self) -> u16 {
        if self.setting.core_per_rank {
            return 0;
        }
        mailbox_atomics::current_core().and_then(|core| u16::try_from(core + 1).ok()).unwrap_or(0)
    }

    /// Lets the ranks that share this core go on, a few times. Returns whether the wait is over.
    pub(crate) fn take_turns(&mut self, blocked: &Blocked<'c>) -> bool {
        self.progress.notify();
        fault_point!("coll.waiting");
        for _ in 0..self.setting.table.yields {
            let spins = if self.needs_this_core(blocked) { 0 } else { self.setting.table.spins };
            for _ in 0..spins {
                if blocked.is_over() {
                    return true;
                }
                core::hint::spin_loop();
            }
            std::thread::yield_now();
            if blocked.is_over() {
                return true;
            }
        }
        false
    }

    /// Whether a rank that was last seen on this core, or nowhere, has not come yet.
    fn needs_this_core(&self, blocked: &Blocked<'c>) -> bool {
        let here = self.note();
        let may_be_here = |rank: usize| [0, here].contains(&self.seen_on[rank]);
        let is_step = core::ptr::eq(blocked.word, self.progress.step_word(blocked.rank, blocked.at_least).0);
        if !is_step {
            return may_be_here(blocked.rank);
        }
        let is_missing =
            |rank: usize| self.progress.step_word(rank, blocked.at_least).0.load() < blocked.at_least;
        (0..self.nranks()).any(|rank| rank != self.me && may_be_here(rank) && is_missing(rank))
    }
}
