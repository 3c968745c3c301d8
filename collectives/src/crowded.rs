//! How ranks wait that share cores: in turns.
//!
//! A rank that waits for one on its own core must give the core away, and one that gives it away for a rank on another
//! core loses its turn, though the other may need only a moment more. So every rank says with a step which core it runs on, and
//! keeps its turn for as long as a change of turns takes while all that share the core have come. Every turn then makes two steps instead
//! of one.
//!
//! The core with the most ranks sets the pace, and the scheduler leaves it so for a long time: all have just run. So the last rank on a core
//! that holds two more than another moves there. Like the ranks of F71 it is moved, not bound.

use crate::engine::{Blocked, Engine};
use deadline::coarse_monotonic_ns;
use fault_points::fault_point;
use mailbox_atomics::{AllowedCores, current_core, move_this_thread_to};

/// So many waits pass before this rank looks again where the others are.
const LOOK_EVERY: u32 = 16;

/// So long it does not ask for another core again: a rank that the scheduler takes back at once must not spend its time with it.
const STAY_NS: u64 = 4_000_000;

/// When this rank looks for a better core.
#[derive(Debug, Default)]
pub(crate) struct Mover {
    waits: u32,
    stay_until_ns: u64,
}

impl Mover {
    /// Counts a wait. Whether it is time to look.
    fn is_due(&mut self) -> bool {
        self.waits = (self.waits + 1) % LOOK_EVERY;
        self.waits == 0
    }

    /// Whether it may ask, which it then has.
    fn may_ask(&mut self, now_ns: u64) -> bool {
        let may = now_ns >= self.stay_until_ns;
        if may {
            self.stay_until_ns = now_ns.saturating_add(STAY_NS);
        }
        may
    }
}

/// How many ranks other than `me` were last seen on a core, which is given as the ranks say it.
fn others_on(me: usize, seen_on: &[u16], core: u16) -> usize {
    seen_on.iter().enumerate().filter(|(rank, seen)| *rank != me && **seen == core).count()
}

/// Whether rank `me`, which is on `here`, is the one to leave it: the last of at least two. Never before all others were seen.
fn is_last_here(me: usize, here: u16, seen_on: &[u16]) -> bool {
    let unknown = here == 0 || others_on(me, seen_on, 0) > 0;
    !unknown && others_on(me, seen_on, here) > 0 && !seen_on[me + 1..].contains(&here)
}

/// The core with the fewest ranks of those that rank `me` may use, if its own holds at least two more.
fn emptier_core(
    me: usize,
    here: u16,
    seen_on: &[u16],
    allowed: impl Iterator<Item = usize>,
) -> Option<usize> {
    let on = |core: usize| u16::try_from(core + 1).map_or(usize::MAX, |core| others_on(me, seen_on, core));
    let fewest = allowed.min_by_key(|core| on(*core))?;
    (on(fewest) < others_on(me, seen_on, here)).then_some(fewest)
}

impl<'c> Engine<'c> {
    /// What this rank says with a step: one more than the core that it runs on; 0 where that is nobody's concern, or not known.
    #[inline]
    pub(crate) fn note(&self) -> u16 {
        if self.setting.core_per_rank {
            return 0;
        }
        current_core().and_then(|core| u16::try_from(core + 1).ok()).unwrap_or(0)
    }

    /// Lets the ranks that share this core go on, a few times. Returns whether the wait is over.
    pub(crate) fn take_turns(&mut self, blocked: &Blocked<'c>) -> bool {
        self.progress.notify();
        fault_point!("coll.waiting");
        if self.mover.is_due() {
            self.leave_full_core();
        }
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

    /// Whether ranks share cores. Counts a look at what is not over yet as a wait.
    pub(crate) fn is_crowded(&mut self) -> bool {
        let is_crowded = !self.setting.core_per_rank;
        if is_crowded && self.mover.is_due() {
            self.leave_full_core();
        }
        is_crowded
    }

    /// Moves this thread if another core has fewer ranks.
    #[cold]
    fn leave_full_core(&mut self) {
        let here = self.note();
        if !is_last_here(self.me, here, &self.seen_on) || !self.mover.may_ask(coarse_monotonic_ns()) {
            return;
        }
        let allowed = AllowedCores::of_this_process();
        let target = emptier_core(self.me, here, &self.seen_on, allowed.iter());
        if let Some(core) = target {
            // Where it cannot move it stays, and nothing is lost.
            let _ = move_this_thread_to(core);
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets the ranks look in turns, each with what the others said last, until nobody moves. Returns how often one moved.
    fn settle(on: &mut [u16], cores: usize, order: &[usize]) -> usize {
        let mut said = on.to_vec();
        let mut moves = 0;
        loop {
            let before = moves;
            for me in order.iter().copied() {
                let here = on[me];
                if is_last_here(me, here, &said)
                    && let Some(core) = emptier_core(me, here, &said, 0..cores)
                {
                    on[me] = core as u16 + 1;
                    moves += 1;
                }
                said[me] = on[me];
            }
            if moves == before {
                return moves;
            }
        }
    }

    #[test]
    fn ranks_spread_over_the_cores_wherever_they_start() {
        for (ranks, cores) in [(3, 2), (4, 2), (5, 2), (5, 3), (6, 3), (4, 4)] {
            for start in 0..usize::pow(cores, ranks as u32) {
                let place = |rank| (start / usize::pow(cores, rank as u32) % cores) as u16 + 1;
                let forwards: Vec<usize> = (0..ranks).collect();
                let backwards: Vec<usize> = (0..ranks).rev().collect();
                for order in [forwards, backwards] {
                    let mut on: Vec<u16> = (0..ranks).map(place).collect();
                    let moves = settle(&mut on, cores, &order);
                    let count = |core| on.iter().filter(|on| **on == core as u16 + 1).count();
                    let (least, most) = (0..cores).fold((ranks, 0), |(least, most), core| {
                        (least.min(count(core)), most.max(count(core)))
                    });
                    assert!(most - least <= 1, "{ranks} ranks from {start} on {cores} cores: {on:?}");
                    assert!(moves < ranks, "{ranks} ranks from {start} on {cores} cores: {moves} moves");
                }
            }
        }
    }

    #[test]
    fn one_rank_more_than_elsewhere_is_no_reason_to_move() {
        assert_eq!(emptier_core(2, 1, &[1, 2, 1], 0..2), None);
        assert_eq!(emptier_core(3, 1, &[1, 1, 2, 1], 0..2), Some(1));
    }

    #[test]
    fn only_the_last_rank_of_a_core_moves_and_only_to_a_core_that_it_may_use() {
        let all_on_one = [1, 1, 1, 1];
        let leave = |me| is_last_here(me, 1, &all_on_one);
        assert_eq!([0, 1, 2, 3].map(leave), [false, false, false, true]);
        assert_eq!(emptier_core(3, 1, &all_on_one, std::iter::once(0)), None);
        assert_eq!(emptier_core(3, 1, &all_on_one, [0, 5].into_iter()), Some(5));
        // One that has just arrived counts where it is, not where it was seen.
        assert!(!is_last_here(3, 2, &all_on_one));
    }

    #[test]
    fn a_rank_stays_until_all_others_were_seen() {
        assert!(!is_last_here(3, 1, &[1, 1, 0, 0]));
        assert!(is_last_here(3, 1, &[1, 1, 1, 0]));
        assert!(!is_last_here(3, 0, &[1, 1, 1, 0]));
    }

    #[test]
    fn a_rank_looks_now_and_then_and_stays_for_a_while() {
        let mut mover = Mover::default();
        assert_eq!((0..10 * LOOK_EVERY).filter(|_| mover.is_due()).count(), 10);
        let asked = [7, 8, 6 + STAY_NS, 7 + STAY_NS, u64::MAX].map(|now| mover.may_ask(now));
        assert_eq!(asked, [true, false, false, true, true]);
    }
}
