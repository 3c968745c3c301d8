//! How long a waiter spins before it parks.

use core::sync::atomic::{AtomicU32, Ordering};
use deadline::{Deadline, monotonic_ns};

/// The most that is spent spinning in one wait: some times the cost of a park and a wake, so that a wait which ends in the
/// meantime saves more than it costs, and a wait which does not has lost little.
const MOST_NS: u32 = 100_000;
/// The least, so that a waiter whose peer comes back to a free core finds out.
const LEAST_NS: u32 = 1_000;
/// Of so many waits in vain in a row, the last spins as long as the first did.
const TRY_AGAIN: u32 = 16;
/// Looks at the word between two looks at the clock.
const LOOKS_PER_CLOCK: u32 = 64;

/// How long to spin, learnt from how earlier waits ended. Local to a process; one for each kind of wait.
///
/// With a core for every party a waiter spins with the processor's pause. With more parties than cores a spinning
/// waiter keeps its peer from running, so it yields its core instead, which lets a whole round of parties make their step for one
/// context switch each. Either way the time halves whenever it was in vain and doubles whenever it was not. Two waiters that have
/// both learnt to park at once would go on so for ever, each waking slower than the other spins; so now and then a waiter tries the
/// whole time again.
#[derive(Debug)]
pub struct SpinBudget {
    ns: AtomicU32,
    /// Waits in vain since the last that was not.
    vain: AtomicU32,
    crowded: bool,
}

impl SpinBudget {
    /// The budget of a waiter that is one of `parties` processes which run at the same time, all on the cores that this one may run on.
    pub fn for_parties(parties: usize) -> Self {
        Self::for_parties_on(parties, AllowedCores::of_this_process().count())
    }

    /// The budget of a waiter that is one of `parties` processes which share `cores` cores.
    pub fn for_parties_on(parties: usize, cores: usize) -> Self {
        Self { ns: AtomicU32::new(MOST_NS), vain: AtomicU32::new(0), crowded: parties > cores }
    }

    /// Whether there are more parties than cores.
    pub(crate) fn is_crowded(&self) -> bool {
        self.crowded
    }

    /// Looks again and again until `ready` answers or the budget is spent.
    pub(crate) fn spin<T>(&self, mut ready: impl FnMut() -> Option<T>, deadline: Deadline) -> Option<T> {
        // Relaxed, here and in `learn`: hints that only this process uses and that order nothing.
        let vain = self.vain.load(Ordering::Relaxed);
        let budget =
            if vain % TRY_AGAIN == TRY_AGAIN - 1 { MOST_NS } else { self.ns.load(Ordering::Relaxed) };
        // The clock is read after the first looks only: a wait that is over by then is shorter than a look at the clock is long.
        let mut end = None;
        let looks = if self.crowded { 1 } else { LOOKS_PER_CLOCK };
        loop {
            for _ in 0..looks {
                if let Some(done) = ready() {
                    self.learn(budget.saturating_mul(2), 0);
                    return Some(done);
                }
                // Also after the first look: a waiter that hammers on the line keeps its writer waiting for it.
                core::hint::spin_loop();
            }
            // With a core for everybody, too, once the first looks were in vain: the scheduler may have put both on one core, and
            // leaves them there as long as one of them seems to work.
            std::thread::yield_now();
            let now = monotonic_ns();
            if now >= *end.get_or_insert_with(|| (now + u64::from(budget)).min(deadline.monotonic_ns())) {
                // Relaxed: as above.
                self.learn(budget.min(self.ns.load(Ordering::Relaxed)) / 2, vain.wrapping_add(1));
                return None;
            }
        }
    }

    /// Stores only what changes, so that waiters of other threads keep their copy of the line.
    fn learn(&self, ns: u32, vain: u32) {
        let ns = ns.clamp(LEAST_NS, MOST_NS);
        for (word, value) in [(&self.ns, ns), (&self.vain, vain)] {
            // Relaxed: as in `spin`.
            if value != word.load(Ordering::Relaxed) {
                word.store(value, Ordering::Relaxed);
            }
        }
    }
}

/// The cores that a process may run on, which `taskset`, launchers and cgroup cpusets reduce: one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllowedCores(pub [u64; Self::WORDS]);

impl AllowedCores {
    /// Words of the set: 1024 cores.
    pub const WORDS: usize = 16;

    /// Those of the calling process; none when the system does not say.
    pub fn of_this_process() -> Self {
        let mut cores = Self::default();
        if let Ok(set) = nix::sched::sched_getaffinity(nix::unistd::Pid::from_raw(0)) {
            let last = nix::sched::CpuSet::count().min(64 * Self::WORDS);
            for core in (0..last).filter(|core| set.is_set(*core).unwrap_or(false)) {
                cores.0[core / 64] |= 1 << (core % 64);
            }
        }
        cores
    }

    /// Those of either.
    pub fn or(self, other: Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] | other.0[word]))
    }

    /// How many.
    pub fn count(self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_budget_spent_in_vain_halves_and_one_well_spent_grows_back() {
        let deadline = Deadline::after(Duration::from_secs(10)).unwrap();
        let budget = SpinBudget::for_parties(1);
        for _ in 0..20 {
            assert_eq!(budget.spin(|| None::<()>, deadline), None);
        }
        assert_eq!(budget.ns.load(Ordering::Relaxed), LEAST_NS);
        for _ in 0..20 {
            assert_eq!(budget.spin(|| Some(()), deadline), Some(()));
        }
        assert_eq!(budget.ns.load(Ordering::Relaxed), MOST_NS);
    }

    #[test]
    fn a_waiter_that_parks_at_once_tries_the_whole_time_now_and_then() {
        let deadline = Deadline::after(Duration::from_secs(10)).unwrap();
        let budget = SpinBudget::for_parties_on(1, 1);
        for _ in 0..TRY_AGAIN - 1 {
            assert_eq!(budget.spin(|| None::<()>, deadline), None);
        }
        assert_eq!(budget.ns.load(Ordering::Relaxed), LEAST_NS);
        // The peer comes later than the least time, and well within the most.
        let started = monotonic_ns();
        let come = || (monotonic_ns() - started > u64::from(10 * LEAST_NS)).then_some(());
        assert_eq!(budget.spin(come, deadline), Some(()));
        assert_eq!(budget.ns.load(Ordering::Relaxed), MOST_NS);
    }

    #[test]
    fn more_parties_than_cores_yield() {
        let cores = AllowedCores::of_this_process().count();
        assert!(SpinBudget::for_parties(cores + 1).crowded);
        assert!(!SpinBudget::for_parties(1).crowded);
    }

    #[test]
    fn parties_bound_to_a_core_each_are_not_crowded() {
        let (one, other) = (AllowedCores([1; 16]), AllowedCores([2; 16]));
        assert_eq!((one.count(), one.or(other).count(), one.or(one).count()), (16, 32, 16));
        assert!(!SpinBudget::for_parties_on(2, 2).crowded && SpinBudget::for_parties_on(2, 1).crowded);
    }

    #[test]
    fn spinning_stops_at_the_deadline() {
        let deadline = Deadline::after(Duration::from_nanos(1)).unwrap();
        assert_eq!(SpinBudget::for_parties(1).spin(|| None::<()>, deadline), None);
    }
}
