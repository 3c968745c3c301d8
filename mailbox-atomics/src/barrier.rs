//! A phase barrier that can be used again and again.

use crate::sync::{Site, intact};
use crate::wait::{Wait, WaitError};
use crate::word::{Listener, WordU32, WordU64};
use core::num::NonZeroU32;
use fault_points::fault_point;

/// Looks at a party that is not there yet before those are woken that sleep.
const GLANCES: u32 = 128;

/// One party's place at a barrier, in shared memory, written by that party only. Zero-filled is a fresh place.
#[cfg_attr(not(loom), repr(C, align(128)))]
#[derive(Debug, Default)]
pub struct Place {
    /// How many phases this party has reached. It only grows, so nothing is ever reset.
    phase: WordU64,
    /// 1 + the number of the party whose phase this one is parked on.
    parked_on: WordU32,
}

/// A failed barrier: who was still missing, and why the wait for them ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("barrier phase {phase}: {cause}; not there yet: {missing:?}")]
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
/// Every party announces its phase at its own place and then waits until each other one has announced that phase or a later
/// one. There is no counter that two parties write and no leader that must run twice, so a barrier costs each party one
/// run on a core, however few cores there are. After an error the barrier must not be used again.
#[derive(Debug)]
pub struct Barrier<'a> {
    places: &'a [Place],
    me: usize,
}

impl<'a> Barrier<'a> {
    /// Party `me` of `places.len()`.
    ///
    /// # Panics
    /// When there is no place number `me`.
    pub fn new(places: &'a [Place], me: usize) -> Self {
        assert!(me < places.len(), "party {me} has no place at a barrier of {}", places.len());
        Self { places, me }
    }

    /// Arrives, and returns when everybody has. What the others wrote before they arrived is visible afterwards.
    pub fn wait(&self, how: &Wait<'_>) -> Result<u64, BarrierError> {
        let mine = &self.places[self.me];
        fault_point!("barrier.arriving");
        let phase = mine.phase.load() + 1;
        mine.phase.store(phase);
        if how.is_eager() {
            self.glance(phase);
        }
        mine.phase.notify(self.others().map(|(_, other)| Listener::tagged(&other.parked_on, tag(self.me))));
        fault_point!("barrier.arrived");
        // From the last party down: where parties start in order, one park on the last of them covers all.
        for (number, other) in self.others().rev() {
            let listener = Listener::tagged(&mine.parked_on, tag(number));
            how.on(&other.phase, Some(listener), |theirs| reached(theirs, phase).then_some(()))
                .map_err(|cause| BarrierError { phase, missing: self.missing(), cause })?;
        }
        fault_point!("barrier.passed");
        Ok(phase)
    }

    /// Looks for the others while our own store is still on its way to them, so that the two transfers overlap, and only then is it
    /// time to see who must be woken. That keeps nobody asleep for more than some microseconds: the looks are few, and who has parked for
    /// this phase has reached it, so that with two parties it is found at once.
    fn glance(&self, phase: u64) {
        for (_, other) in self.others().rev() {
            let mut looks = 0;
            while !reached(other.phase.load(), phase) {
                looks += 1;
                if looks == GLANCES {
                    return;
                }
                core::hint::spin_loop();
            }
        }
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

/// A fast party may be a phase ahead, which is as good.
fn reached(theirs: u64, phase: u64) -> bool {
    if intact(Site::BarrierAcceptsLaterPhase) { theirs >= phase } else { theirs == phase }
}

/// Never 0, which means awake.
fn tag(number: usize) -> NonZeroU32 {
    NonZeroU32::MIN.saturating_add(number as u32)
}
