//! A phase barrier that can be used again and again.

use crate::listener::{Listener, ParkFlag};
use crate::spin::SpinBudget;
use crate::sync::{Site, intact};
use crate::wait::{Wait, WaitError};
use crate::word::{WordU32, WordU64};
use core::cell::Cell;
use core::marker::PhantomData;
use core::num::NonZeroU32;
use fault_points::fault_point;

/// Checks of a party that has not arrived before the parked ones are woken.
const EARLY_CHECKS: u32 = 128;

/// One party's words of a barrier, in shared memory, written by that party only. Zero-filled is a
/// fresh party.
#[cfg_attr(not(loom), repr(C, align(128)))]
#[derive(Debug, Default)]
pub struct Place {
    /// How many phases this party has reached. It only grows, so nothing is ever reset.
    phase: WordU64,
    /// 1 + the number of the party whose phase this one is parked on.
    parked_on: WordU32,
}

impl Place {
    /// How many phases this party has reached.
    pub fn phase(&self) -> u64 {
        self.phase.load()
    }

    /// Wakes everybody who is parked on this party, so that they check what else ends their wait.
    pub fn wake_all(&self) {
        self.phase.wake_all();
    }

    /// Announces that this party has reached `phase`, in the name of a party that has another copy of the barrier, and
    /// wakes who waits for it. A phase that is not a later one is ignored. For the only process that writes this copy.
    pub fn announce(&self, phase: u64) {
        if phase > self.phase.load() {
            self.phase.store_and_wake(phase);
        }
    }
}

/// A party that has announced its phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the others may be still on their way"]
pub struct Arrival {
    phase: u64,
    complete: bool,
}

impl Arrival {
    /// Whether everybody has arrived, so that there is nothing to wait for.
    #[inline]
    pub fn is_complete(&self) -> bool {
        self.complete
    }
}

/// A failed barrier: who was still missing, and why the wait for them ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("barrier phase {phase}: {cause}; missing: {missing:?}")]
pub struct BarrierError {
    /// Which use of the barrier, from 1.
    pub phase: u64,
    /// The parties that had not arrived.
    pub missing: Vec<u32>,
    /// What ended the wait.
    #[source]
    pub cause: WaitError,
}

/// One party's side of a barrier of all `places`.
///
/// Every party announces its phase in its own words and then waits until each other one has announced
/// that phase or a later one. There is no counter that two parties write and no leader that must run
/// twice, so a barrier costs each party one run on a core, however few cores there are. After an
/// error the barrier must not be used again.
///
/// A party has one park flag, so that two of its threads must not wait at once (MA-9):
///
/// ```compile_fail,E0277
/// # use deadline::Deadline;
/// # use mailbox_atomics::{Barrier, Place, Wait};
/// # let soon = || Wait::until(Deadline::after(std::time::Duration::from_secs(1)).unwrap());
/// let places = [Place::default(), Place::default()];
/// let barrier = Barrier::new(&places, 0);
/// std::thread::scope(|scope| {
///     scope.spawn(|| barrier.wait(&soon()));
/// });
/// ```
///
/// ```
/// use deadline::Deadline;
/// use mailbox_atomics::{Barrier, Place, Wait};
/// use std::time::Duration;
///
/// // One for each party, in memory that all of them share.
/// let places = [Place::default(), Place::default()];
/// std::thread::scope(|scope| {
///     for me in 0..2 {
///         let places = &places;
///         scope.spawn(move || {
///             let barrier = Barrier::new(places, me);
///             for phase in 1..=3 {
///                 let wait = Wait::until(Deadline::after(Duration::from_secs(60)).unwrap());
///                 assert_eq!(barrier.wait(&wait), Ok(phase));
///             }
///         });
///     }
/// });
/// ```
#[derive(Debug)]
pub struct Barrier<'a> {
    places: &'a [Place],
    me: usize,
    /// Not `Sync`.
    one_thread: PhantomData<Cell<()>>,
}

impl<'a> Barrier<'a> {
    /// Party `me` of `places.len()`.
    ///
    /// # Panics
    /// When there is no party `me`.
    pub fn new(places: &'a [Place], me: usize) -> Self {
        assert!(me < places.len(), "party {me} of a barrier of {}", places.len());
        Self { places, me, one_thread: PhantomData }
    }

    /// Arrives, and returns when everybody has. What the others wrote before they arrived is visible
    /// afterwards.
    pub fn wait(&self, how: &Wait<'_>) -> Result<u64, BarrierError> {
        let arrival = self.arrive(how.spin_budget());
        self.wait_for_others(arrival, how)
    }

    /// Arrives, and checks for the others for some microseconds if there is a core for everybody: without a
    /// clock, a deadline or a system call, unless somebody is parked.
    pub fn arrive(&self, spin: Option<&SpinBudget>) -> Arrival {
        let mine = &self.places[self.me];
        fault_point!("barrier.arriving");
        let phase = mine.phase.load() + 1;
        mine.phase.store_for_waiters(phase);
        let complete =
            spin.is_some_and(|budget| !budget.is_oversubscribed()) && self.have_arrived_soon(phase);
        mine.phase.notify(self.others().map(|(_, other)| Listener::tagged(&other.parked_on, tag(self.me))));
        fault_point!("barrier.arrived");
        Arrival { phase, complete }
    }

    /// Returns when everybody has arrived at the phase that this party is in.
    pub fn wait_for_others(&self, arrival: Arrival, how: &Wait<'_>) -> Result<u64, BarrierError> {
        let Arrival { phase, complete } = arrival;
        if complete {
            fault_point!("barrier.passed");
            return Ok(phase);
        }
        let mine = &self.places[self.me];
        // From the last party down: where parties start in order, one park on the last of them covers
        // all.
        for (number, other) in self.others().rev() {
            let mut flag = ParkFlag::tagged(&mine.parked_on, tag(number));
            how.on(&other.phase, Some(&mut flag), |theirs| reached(theirs, phase).then_some(()))
                .map_err(|cause| BarrierError { phase, missing: self.missing(), cause })?;
        }
        fault_point!("barrier.passed");
        Ok(phase)
    }

    /// Checks the others while our own store is still on its way to them, so that the two transfers
    /// overlap; who must be woken is checked afterwards. That keeps no party parked for more than some
    /// microseconds longer: the checks are few, and a party that has parked for this phase has reached
    /// it, so that with two parties the first check finds it.
    fn have_arrived_soon(&self, phase: u64) -> bool {
        let mut checks = 0;
        for (_, other) in self.others().rev() {
            while !reached(other.phase.load(), phase) {
                checks += 1;
                if checks == EARLY_CHECKS {
                    return false;
                }
                core::hint::spin_loop();
            }
        }
        true
    }

    /// The parties that have not reached the phase that this one is in.
    pub fn missing(&self) -> Vec<u32> {
        let phase = self.places[self.me].phase.load();
        self.others()
            .filter(|(_, other)| !reached(other.phase.load(), phase))
            .map(|(number, _)| number as u32)
            .collect()
    }

    fn others(&self) -> impl DoubleEndedIterator<Item = (usize, &'a Place)> {
        let me = self.me;
        self.places.iter().enumerate().filter(move |(number, _)| *number != me)
    }
}

/// A fast party may be a phase ahead, which counts as well.
fn reached(theirs: u64, phase: u64) -> bool {
    if intact(Site::BarrierAcceptsLaterPhase) { theirs >= phase } else { theirs == phase }
}

/// Never 0, which means awake.
fn tag(number: usize) -> NonZeroU32 {
    NonZeroU32::MIN.saturating_add(number as u32)
}
