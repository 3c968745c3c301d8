//! How long a waiter spins before it parks.

use crate::cores::usable_cores;
use core::sync::atomic::{AtomicU32, Ordering};
use deadline::{Deadline, monotonic_ns};

/// The most that is spent spinning in one wait: a few times the cost of a park and a wake, so that a
/// wait that ends within it saves more than it costs, and one that does not has lost little.
const MOST_NS: u32 = 100_000;
/// The least, so that a waiter whose peer gets a free core again finds out.
const LEAST_NS: u32 = 1_000;
/// After so many waits in a row that spun without success, one spins for the whole time again.
const RETRY_AFTER: u32 = 16;
/// That time, with a core for every party: longer than a wake takes. On a virtual machine with a busy host 135 µs were seen, and two
/// waiters that park would not find out that spinning pays.
const RETRY_NS: u32 = 1_000_000;
/// Checks of the word between two reads of the clock.
const CHECKS_PER_CLOCK_READ: u32 = 64;

/// Knows where the parties of a wait run. A waiter with a core for every party asks it now and then while it
/// spins: two parties that the scheduler has put on one core would only yield to each other (F71).
pub trait Placement {
    /// Sees that this thread has a core to itself, if there is one for it. `now_ns` is monotonic.
    fn look_after(&self, now_ns: u64);
}

/// How long to spin, adapted to how earlier waits ended. Local to a process; one for each kind of
/// wait.
///
/// With a core for every party a waiter spins with the processor's pause instruction. With more
/// parties than cores a spinning waiter keeps its peer from running, so it yields its core instead,
/// which lets every party make its step for one context switch each. Either way the time halves after
/// a wait that spun without success and doubles after one that succeeded. Two waiters that both park
/// at once would do so for ever, because each wakes more slowly than the other spins; so now and then
/// a waiter spins for longer than a wake takes.
#[derive(Debug)]
pub struct SpinBudget {
    ns: AtomicU32,
    /// Waits that spun without success since the last that succeeded.
    misses: AtomicU32,
    oversubscribed: bool,
}

impl SpinBudget {
    /// The budget of a waiter that is one of `parties` processes which run at the same time, all on
    /// the cores that this one may use.
    pub fn for_parties(parties: usize) -> Self {
        Self::for_parties_on(parties, usable_cores())
    }

    /// The budget of a waiter that is one of `parties` processes which share `cores` cores.
    pub fn for_parties_on(parties: usize, cores: usize) -> Self {
        Self { ns: AtomicU32::new(MOST_NS), misses: AtomicU32::new(0), oversubscribed: parties > cores }
    }

    /// Whether there are more parties than cores.
    pub(crate) fn is_oversubscribed(&self) -> bool {
        self.oversubscribed
    }

    /// Checks again and again until `ready` answers or the budget is spent.
    #[inline(always)]
    pub(crate) fn spin<T>(
        &self,
        mut ready: impl FnMut() -> Option<T>,
        deadline: Deadline,
        placement: Option<&dyn Placement>,
    ) -> Option<T> {
        // Relaxed, here and in `adapt`: hints that only this process uses and that order nothing.
        let misses = self.misses.load(Ordering::Relaxed);
        let budget = match misses % RETRY_AFTER == RETRY_AFTER - 1 {
            true if self.oversubscribed => MOST_NS,
            true => RETRY_NS,
            false => self.ns.load(Ordering::Relaxed),
        };
        // The clock is read after the first checks only: a wait that is over by then is shorter than
        // reading the clock.
        let mut end = None;
        let checks = if self.oversubscribed { 1 } else { CHECKS_PER_CLOCK_READ };
        loop {
            for _ in 0..checks {
                if let Some(done) = ready() {
                    self.adapt(budget.saturating_mul(2), 0);
                    return Some(done);
                }
                // Also after the first check: constant loads of the line delay its writer.
                core::hint::spin_loop();
            }
            // Also with a core for everybody, once the first checks have failed: the scheduler may have
            // put both parties on one core, and leaves them there while both seem busy.
            std::thread::yield_now();
            let now = monotonic_ns();
            if let Some(placement) = placement.filter(|_| !self.oversubscribed) {
                placement.look_after(now);
            }
            if now >= *end.get_or_insert_with(|| (now + u64::from(budget)).min(deadline.monotonic_ns())) {
                // Relaxed: as above.
                self.adapt(budget.min(self.ns.load(Ordering::Relaxed)) / 2, misses.wrapping_add(1));
                return None;
            }
        }
    }

    /// Stores only what changes, so that waiters of other threads keep their copy of the line.
    fn adapt(&self, ns: u32, misses: u32) {
        let ns = ns.clamp(LEAST_NS, MOST_NS);
        for (word, value) in [(&self.ns, ns), (&self.misses, misses)] {
            // Relaxed: as in `spin`.
            if value != word.load(Ordering::Relaxed) {
                word.store(value, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::cores::AllowedCores;
    use std::time::Duration;

    #[test]
    fn a_budget_halves_after_a_miss_and_grows_back_after_a_success() {
        let deadline = Deadline::after(Duration::from_secs(10)).unwrap();
        let budget = SpinBudget::for_parties(1);
        for _ in 0..20 {
            assert_eq!(budget.spin(|| None::<()>, deadline, None), None);
        }
        assert_eq!(budget.ns.load(Ordering::Relaxed), LEAST_NS);
        for _ in 0..20 {
            assert_eq!(budget.spin(|| Some(()), deadline, None), Some(()));
        }
        assert_eq!(budget.ns.load(Ordering::Relaxed), MOST_NS);
    }

    #[test]
    fn a_waiter_that_parks_at_once_spins_the_whole_time_now_and_then() {
        let deadline = Deadline::after(Duration::from_secs(10)).unwrap();
        // Tried again when the scheduler took the core away for longer than the most that is spun.
        let spun_whole_time = (0..100).any(|_| {
            let budget = SpinBudget::for_parties_on(1, 1);
            for _ in 0..RETRY_AFTER - 1 {
                assert_eq!(budget.spin(|| None::<()>, deadline, None), None);
            }
            assert_eq!(budget.ns.load(Ordering::Relaxed), LEAST_NS);
            // The peer needs longer than the least time and much less than the most.
            let started = monotonic_ns();
            let arrived = || (monotonic_ns() - started > u64::from(10 * LEAST_NS)).then_some(());
            budget.spin(arrived, deadline, None) == Some(()) && budget.ns.load(Ordering::Relaxed) == MOST_NS
        });
        assert!(spun_whole_time);
    }

    #[test]
    fn more_parties_than_cores_are_oversubscribed() {
        let cores = usable_cores();
        assert!(SpinBudget::for_parties(cores + 1).oversubscribed);
        assert!(!SpinBudget::for_parties(1).oversubscribed);
    }

    #[test]
    fn parties_bound_to_a_core_each_are_not_oversubscribed() {
        let (one, other) = (AllowedCores([1; 16]), AllowedCores([2; 16]));
        assert_eq!((one.count(), one.or(other).count(), one.or(one).count()), (16, 32, 16));
        assert!(
            !SpinBudget::for_parties_on(2, 2).oversubscribed
                && SpinBudget::for_parties_on(2, 1).oversubscribed
        );
    }

    #[test]
    fn f71_a_waiter_asks_for_its_place_only_where_there_are_cores_enough() {
        struct Asked(core::cell::Cell<u32>);
        impl Placement for Asked {
            fn look_after(&self, now_ns: u64) {
                assert!(now_ns <= monotonic_ns());
                self.0.set(self.0.get() + 1);
            }
        }
        let deadline = Deadline::after(Duration::from_secs(10)).unwrap();
        for (cores, asks) in [(2, true), (1, false)] {
            let asked = Asked(core::cell::Cell::new(0));
            let budget = SpinBudget::for_parties_on(2, cores);
            assert_eq!(budget.spin(|| None::<()>, deadline, Some(&asked)), None);
            assert_eq!(asked.0.get() > 0, asks, "{cores} cores");
        }
    }

    #[test]
    fn spinning_stops_at_the_deadline() {
        let deadline = Deadline::after(Duration::from_nanos(1)).unwrap();
        assert_eq!(SpinBudget::for_parties(1).spin(|| None::<()>, deadline, None), None);
    }
}
