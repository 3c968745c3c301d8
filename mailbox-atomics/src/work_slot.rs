//! Work that is given to one thread, and how it ended, given back: some lines that move between two processors, while whatever the
//! work came from stays with the one that gave it.
//!
//! Those who give and who take back are one party: whoever holds a mutex that they share. The thread that works is the other.
//!
//! # Safety
//! The turn says who may use the cells: who holds the mutex, and from [`give`](WorkSlot::give) to [`end`](WorkSlot::end) the thread
//! that works.
#![allow(unsafe_code)]

use crate::sync::{AtomicU32, Ordering, Site, UnsafeCell, at, intact};
use core::mem::MaybeUninit;

const EMPTY: u32 = 0;
const GIVEN: u32 = 1;
/// The work has ended, and there is nothing to say about it.
const ENDED: u32 = 2;
/// It has ended, and what is to be said is beside.
const ENDED_WITH: u32 = 3;

/// A place for one piece of work of the type `W`, and for what is to be said at its end, an `E`. Between threads of a process.
#[derive(Debug)]
#[repr(C)]
pub struct WorkSlot<W, E> {
    turn: AtomicU32,
    work: UnsafeCell<MaybeUninit<W>>,
    end: UnsafeCell<Option<E>>,
    /// Whether work was given and its end not taken: for who holds the mutex. The turn itself stays as it is until the next work, so
    /// that its line is not written once more.
    given: UnsafeCell<bool>,
}

// SAFETY: one thread at a time uses the cells, in the order that `turn` says; what is in them is sent to another thread.
unsafe impl<W: Send, E: Send> Sync for WorkSlot<W, E> {}

impl<W, E> Default for WorkSlot<W, E> {
    fn default() -> Self {
        Self {
            turn: AtomicU32::new(EMPTY),
            work: UnsafeCell::new(MaybeUninit::uninit()),
            end: UnsafeCell::new(None),
            given: UnsafeCell::new(false),
        }
    }
}

impl<W: Copy, E> WorkSlot<W, E> {
    /// Gives work to the thread.
    ///
    /// # Safety
    /// The caller holds the mutex, and what was given last has been [taken back](Self::take_ended).
    #[inline]
    pub unsafe fn give(&self, work: W) {
        // SAFETY: the turn is the caller's, and it holds the mutex.
        unsafe {
            self.work.with_mut(|place| (*place).write(work));
            self.given.with_mut(|given| *given = true);
        }
        // Release: publishes the work; pairs with the acquire in `given`.
        self.turn.store(GIVEN, at(Site::WorkGiven, Ordering::Release));
    }

    /// The work that was given and has not ended.
    ///
    /// # Safety
    /// Only the thread that works calls this.
    #[inline]
    pub unsafe fn given(&self) -> Option<W> {
        // Acquire: pairs with the release in `give`.
        if self.turn.load(at(Site::WorkObserved, Ordering::Acquire)) != GIVEN {
            return None;
        }
        // SAFETY: written before the turn changed, and it stays until this thread has ended the work.
        Some(self.work.with(|place| unsafe { (*place).assume_init() }))
    }

    /// Says that the work has ended, and how.
    ///
    /// # Safety
    /// Only the thread that works calls this, once for each piece of work that it was given.
    #[inline]
    pub unsafe fn end(&self, end: Option<E>) {
        let turn = if end.is_some() { ENDED_WITH } else { ENDED };
        if end.is_some() {
            // SAFETY: the turn is this thread's.
            self.end.with_mut(|place| unsafe { *place = end });
        }
        // Release: publishes the end, and whatever the work wrote; pairs with the acquire in `take_ended`.
        self.turn.store(turn, at(Site::EndGiven, Ordering::Release));
    }

    /// Whether the work that was given last has ended: a hint.
    #[inline]
    pub fn has_ended(&self) -> bool {
        // Relaxed: who acts on it calls `take_ended`.
        self.turn.load(Ordering::Relaxed) >= ENDED
    }

    /// That the work has ended, once, with what was said about it.
    ///
    /// # Safety
    /// The caller holds the mutex.
    #[inline]
    pub unsafe fn take_ended(&self) -> Option<Option<E>> {
        // SAFETY: the caller holds the mutex, here and below.
        if !self.given.with(|given| unsafe { *given }) {
            return None;
        }
        // Acquire: pairs with the release in `end`.
        let end = match self.turn.load(at(Site::EndObserved, Ordering::Acquire)) {
            ENDED => None,
            // SAFETY: the turn is that of who holds the mutex.
            ENDED_WITH => self.end.with_mut(|place| unsafe { (*place).take() }),
            _ => return None,
        };
        if intact(Site::EndTakenOnce) {
            // SAFETY: as above.
            self.given.with_mut(|given| unsafe { *given = false });
        }
        Some(end)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// MA-22
    #[test]
    fn work_is_there_until_it_ends_and_its_end_is_taken_once() {
        let place = WorkSlot::<u32, &str>::default();
        // SAFETY: there is one thread, and it takes turns.
        unsafe {
            assert_eq!((place.given(), place.take_ended()), (None, None));
            for (work, end) in [(7, Some("late")), (8, None), (9, Some("again"))] {
                place.give(work);
                assert_eq!(
                    (place.given(), place.given(), place.take_ended()),
                    (Some(work), Some(work), None)
                );
                assert!(!place.has_ended());
                place.end(end);
                assert!(place.has_ended());
                assert_eq!((place.given(), place.take_ended(), place.take_ended()), (None, Some(end), None));
            }
        }
    }

    /// MA-22
    #[test]
    fn every_piece_of_work_is_done_once_whoever_gives_and_takes_it() {
        let rounds = if cfg!(miri) { 20 } else { 20_000 };
        let place = WorkSlot::<u32, u32>::default();
        // What was given last, whether that is under way, and the sum of what came back.
        let state = Mutex::new((0, false, 0u64));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    loop {
                        let mut state = state.lock().unwrap();
                        // SAFETY: this thread holds the mutex.
                        if let Some(end) = unsafe { place.take_ended() } {
                            assert_eq!(end, (state.0 % 2 == 1).then_some(2 * state.0));
                            state.1 = false;
                            state.2 += u64::from(state.0);
                        }
                        if !state.1 && state.0 == rounds {
                            return;
                        }
                        if !state.1 {
                            state.0 += 1;
                            state.1 = true;
                            // SAFETY: as above, and nothing is under way.
                            unsafe { place.give(state.0) };
                        }
                        drop(state);
                        std::thread::yield_now();
                    }
                });
            }
            for next in 1..=rounds {
                // SAFETY: the only thread that works.
                let work = std::iter::repeat_with(|| unsafe { place.given() })
                    .inspect(|work| {
                        if work.is_none() {
                            std::thread::yield_now()
                        }
                    })
                    .flatten()
                    .next();
                assert_eq!(work, Some(next));
                // SAFETY: as above, once.
                unsafe { place.end((next % 2 == 1).then_some(2 * next)) };
            }
        });
        let rounds = u64::from(rounds);
        assert_eq!(state.into_inner().unwrap().2, rounds * (rounds + 1) / 2);
    }
}
