//! How long a waiter spins before it parks.

use crate::deadline::{Deadline, monotonic_ns};
use core::sync::atomic::{AtomicU32, Ordering};

/// The most that is spent spinning in one wait: some times the cost of a park and a wake, so that a wait which ends in the
/// meantime saves more than it costs, and a wait which does not has lost little.
const MOST_NS: u32 = 100_000;
/// The least, so that a waiter whose peer comes back to a free core finds out.
const LEAST_NS: u32 = 1_000;
/// Looks at the word between two looks at the clock.
const LOOKS_PER_CLOCK: u32 = 64;

/// How long to spin, learnt from how earlier waits ended. Local to a process; one for each kind of wait.
///
/// With a core for every party a waiter spins with the processor's pause. With more parties than cores a spinning
/// waiter keeps its peer from running, so it yields its core instead, which lets a whole round of parties make their step for one
/// context switch each. Either way the time halves whenever it was in vain and doubles whenever it was not.
#[derive(Debug)]
pub struct SpinBudget {
    ns: AtomicU32,
    crowded: bool,
}

impl SpinBudget {
    /// The budget of a waiter that is one of `parties` processes which run at the same time.
    pub fn for_parties(parties: usize) -> Self {
        Self { ns: AtomicU32::new(MOST_NS), crowded: parties > cores() }
    }

    /// Looks again and again until `ready` answers or the budget is spent.
    pub(crate) fn spin<T>(&self, mut ready: impl FnMut() -> Option<T>, deadline: Deadline) -> Option<T> {
        // Relaxed: a hint that only this process uses and that orders nothing.
        let budget = self.ns.load(Ordering::Relaxed);
        // The clock is read after the first looks only: a wait that is over by then is shorter than a look at the clock is long.
        let mut end = None;
        loop {
            if self.crowded {
                if let Some(done) = ready() {
                    self.learn(budget.saturating_mul(2));
                    return Some(done);
                }
                std::thread::yield_now();
            } else {
                for _ in 0..LOOKS_PER_CLOCK {
                    if let Some(done) = ready() {
                        self.learn(budget.saturating_mul(2));
                        return Some(done);
                    }
                    // The first looks without a pause, which is as long as a hand-over between two cores.
                    if end.is_some() {
                        core::hint::spin_loop();
                    }
                }
            }
            let now = monotonic_ns();
            if now >= *end.get_or_insert_with(|| (now + u64::from(budget)).min(deadline.monotonic_ns())) {
                self.learn(budget / 2);
                return None;
            }
        }
    }

    fn learn(&self, ns: u32) {
        let ns = ns.clamp(LEAST_NS, MOST_NS);
        // Relaxed: as in `spin`. Stored only when it changes, so that waiters of other threads keep their copy of the line.
        if ns != self.ns.load(Ordering::Relaxed) {
            self.ns.store(ns, Ordering::Relaxed);
        }
    }
}

/// The cores that this process may run on, which `taskset` and cgroup cpusets reduce.
fn cores() -> usize {
    nix::sched::sched_getaffinity(nix::unistd::Pid::from_raw(0)).map_or(1, |set| {
        (0..nix::sched::CpuSet::count()).filter(|&core| set.is_set(core).unwrap_or(false)).count()
    })
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
    fn more_parties_than_cores_yield() {
        assert!(SpinBudget::for_parties(cores() + 1).crowded);
        assert!(!SpinBudget::for_parties(1).crowded);
    }

    #[test]
    fn spinning_stops_at_the_deadline() {
        let deadline = Deadline::after(Duration::from_nanos(1)).unwrap();
        assert_eq!(SpinBudget::for_parties(1).spin(|| None::<()>, deadline), None);
    }
}
