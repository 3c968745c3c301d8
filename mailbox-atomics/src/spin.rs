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
    room: Room,
}

/// Whether every party can run at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    /// Each has a core.
    Plenty,
    /// This process is bound to one core and its peers may be bound to others, as launchers do, or to the same.
    Unclear,
    /// More parties than cores.
    Crowded,
}

impl SpinBudget {
    /// The budget of a waiter that is one of `parties` processes which run at the same time.
    pub fn for_parties(parties: usize) -> Self {
        Self { ns: AtomicU32::new(MOST_NS), room: Room::judge(parties, allowed_cores(), online_cores()) }
    }

    /// Looks again and again until `ready` answers or the budget is spent.
    pub(crate) fn spin<T>(&self, mut ready: impl FnMut() -> Option<T>, deadline: Deadline) -> Option<T> {
        // Relaxed: a hint that only this process uses and that orders nothing.
        let budget = self.ns.load(Ordering::Relaxed);
        let looks = if self.room == Room::Crowded { 1 } else { LOOKS_PER_CLOCK };
        // The clock is read after the first looks only: a wait that is over by then is shorter than a look at the clock is long.
        let mut end = None;
        loop {
            for _ in 0..looks {
                if let Some(done) = ready() {
                    self.learn(budget.saturating_mul(2));
                    return Some(done);
                }
                // The first looks without a pause, which is as long as a hand-over between two cores.
                if end.is_some() {
                    core::hint::spin_loop();
                }
            }
            if self.room != Room::Plenty {
                std::thread::yield_now();
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

impl Room {
    fn judge(parties: usize, allowed: usize, online: usize) -> Self {
        if parties <= allowed {
            Self::Plenty
        } else if allowed == 1 && parties <= online {
            Self::Unclear
        } else {
            Self::Crowded
        }
    }
}

/// The cores that this process may run on, which `taskset`, cgroup cpusets and launchers reduce.
fn allowed_cores() -> usize {
    nix::sched::sched_getaffinity(nix::unistd::Pid::from_raw(0)).map_or(1, |set| {
        (0..nix::sched::CpuSet::count()).filter(|&core| set.is_set(core).unwrap_or(false)).count()
    })
}

/// The cores of the machine.
fn online_cores() -> usize {
    let count = nix::unistd::sysconf(nix::unistd::SysconfVar::_NPROCESSORS_ONLN).ok().flatten();
    count.and_then(|count| usize::try_from(count).ok()).unwrap_or(1)
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
    fn parties_that_cannot_all_run_at_once_yield() {
        assert_eq!(Room::judge(2, 2, 2), Room::Plenty);
        assert_eq!(Room::judge(3, 2, 2), Room::Crowded);
        assert_eq!(Room::judge(2, 1, 8), Room::Unclear);
        assert_eq!(Room::judge(16, 1, 8), Room::Crowded);
        assert_eq!(Room::judge(4, 2, 8), Room::Crowded);
        assert_eq!(SpinBudget::for_parties(1).room, Room::Plenty);
    }

    #[test]
    fn spinning_stops_at_the_deadline() {
        let deadline = Deadline::after(Duration::from_nanos(1)).unwrap();
        assert_eq!(SpinBudget::for_parties(1).spin(|| None::<()>, deadline), None);
    }
}
