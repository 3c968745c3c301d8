//! Frames from one sender to one receiver, in a ring of slots, and how far the receiver is.
//!
//! A slot begins with the number of the frame in it, which the sender stores after the frame; that store is the doorbell.
//! The receiver executes frames in order and says in its done number how far it is: to the sender, who writes a slot
//! again only when its frame is done, and to anybody else who waits for a frame.
//!
//! What a frame is, and where the slots are, is the caller's. Its bytes are ordered by the two numbers and by nothing else.

use crate::listener::{Listener, ParkFlag};
use crate::sticky::StickyWord;
use crate::sync::{Site, intact, store_load_fence};
use crate::wait::{Wait, WaitError};
use crate::word::{WordU32, WordU64};
use core::num::NonZeroU32;

/// The number of the frame in a slot, written by the sender. Zero-filled is a slot that was never used.
#[cfg_attr(not(loom), repr(transparent))]
#[derive(Debug, Default)]
pub struct SlotNumber(WordU64);

/// The number of the last frame that is done, written by the receiver. Zero-filled is none.
#[cfg_attr(not(loom), repr(transparent))]
#[derive(Debug, Default)]
pub struct DoneNumber(WordU64);

impl SlotNumber {
    /// Whether the slot holds frame `number`, and not one before or after it.
    pub fn holds(&self, number: u64) -> bool {
        self.0.load() == number
    }
}

impl DoneNumber {
    /// Wakes everybody who is parked on it, so that they check what else ends their wait. One that is about to park misses it.
    pub fn wake_all(&self) {
        self.0.wake_all();
    }

    /// Wakes `listener` if it is parked on this number, so that it checks what else concerns it. For a process that has just stored
    /// that elsewhere. One that is about to park may miss it.
    pub fn nudge(&self, listener: Listener<'_>) {
        self.0.notify([listener]);
    }

    /// How far the receiver says that it is. Another process writes it: it may be anything.
    #[inline]
    pub fn load(&self) -> u64 {
        self.0.load()
    }

    /// Waits until frame `number` is done, and returns how far the receiver says that it is. What it wrote before is visible
    /// then. `parked` is one of those that the receiver [notifies](DispatchReceiver::finish).
    #[inline(always)]
    pub fn wait_for(&self, number: u64, how: &Wait<'_>, parked: &mut ParkFlag<'_>) -> Result<u64, WaitError> {
        how.on_in_place(&self.0, Some(parked), |done| (done >= number).then_some(done))
    }
}

/// A receiver that claims to be done with a frame that was never sent: nothing that it says can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{done} frames are said to be done, {sent} were sent")]
pub struct Overclaimed {
    /// What it claims.
    pub done: u64,
    /// What it was sent.
    pub sent: u64,
}

/// The sender's side: what it has sent, and what it knows to be done. The words are the caller's to find.
///
/// ```
/// use deadline::Deadline;
/// use mailbox_atomics::{DispatchReceiver, DispatchSender, DoneNumber, SlotNumber, StickyWord, Wait, WordU32};
/// use std::{num::NonZeroU32, sync::atomic::{AtomicU64, Ordering::Relaxed}, time::Duration};
///
/// // In memory that both sides share: a ring of two slots, and the words beside it.
/// let (slots, frames) = ([SlotNumber::default(), SlotNumber::default()], [AtomicU64::new(0), AtomicU64::new(0)]);
/// let (done, parked, shutdown) = (DoneNumber::default(), WordU32::new(0), StickyWord::new());
/// let soon = || Wait::until(Deadline::after(Duration::from_secs(60)).unwrap());
///
/// std::thread::scope(|scope| {
///     let receiver = scope.spawn(|| {
///         let (mut ring, mut sum) = (DispatchReceiver::new(&done, &parked, &shutdown), 0);
///         // `None` after the shutdown, when no frame is left.
///         while let Some(number) = ring.next(&slots[ring.next_number() as usize % 2], &soon()).unwrap() {
///             sum += frames[number as usize % 2].load(Relaxed);
///             ring.finish([]);
///         }
///         sum
///     });
///     let mut ring = DispatchSender::new(2);
///     for value in 1..=10 {
///         let slot = ring.next_number() as usize % 2;
///         while ring.blocked_by().is_some() {
///             ring.observe(done.load()).unwrap(); // `DoneNumber::wait_for` parks instead
///             std::thread::yield_now();
///         }
///         frames[slot].store(value, Relaxed); // the frame first, then its number
///         ring.publish(&slots[slot], &parked);
///     }
///     if ring.shut_down(&shutdown, NonZeroU32::MIN, &done) {
///         // The receiver may be asleep: one more frame, in which there is nothing, wakes it.
///         let slot = ring.next_number() as usize % 2;
///         frames[slot].store(0, Relaxed);
///         ring.publish(&slots[slot], &parked);
///     }
///     assert_eq!(receiver.join().unwrap(), 55);
/// });
/// ```
#[derive(Debug)]
pub struct DispatchSender {
    slots: u64,
    sent: u64,
    done: u64,
}

impl DispatchSender {
    /// The sender's side of a fresh ring of so many slots. There must be only one. Frame `number` goes to slot
    /// `number % slots`.
    pub fn new(slots: u64) -> Self {
        Self { slots, sent: 0, done: 0 }
    }

    /// Frames sent so far: the number of the last.
    #[inline]
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// The last frame that is known to be done, without reading shared memory.
    #[inline]
    pub fn known_done(&self) -> u64 {
        self.done
    }

    /// The number of the next frame.
    #[inline]
    pub fn next_number(&self) -> u64 {
        self.sent + 1
    }

    /// The frame that is still in the slot of the next one: that slot may be written when it is known to be done. `None` when it
    /// may be written now.
    #[inline]
    pub fn blocked_by(&self) -> Option<u64> {
        let before = self.next_number().saturating_sub(self.slots);
        (before > self.done && intact(Site::SlotFreedByDone)).then_some(before)
    }

    /// Sends the next frame, which the caller has written to `slot`, and wakes the receiver if it is `parked`.
    #[inline]
    pub fn publish(&mut self, slot: &SlotNumber, parked: &WordU32) -> u64 {
        debug_assert!(
            self.blocked_by().is_none(),
            "frame {} is still in the slot",
            self.sent + 1 - self.slots
        );
        self.sent += 1;
        if intact(Site::FrameNotifies) {
            slot.0.store_and_notify(self.sent, [Listener::new(parked)]);
        } else {
            slot.0.store(self.sent);
        }
        self.sent
    }

    /// Takes note of what the receiver says that it has done.
    #[inline]
    pub fn observe(&mut self, done: u64) -> Result<(), Overclaimed> {
        if done > self.sent {
            return Err(Overclaimed { done, sent: self.sent });
        }
        self.done = self.done.max(done);
        Ok(())
    }

    /// Asks the receiver to stop after the frames that it was sent. Returns whether the caller must send one more frame, whatever it
    /// says: the ring has room, so that the receiver may be asleep. One whose ring is full finds the word after its last frame.
    #[must_use]
    pub fn shut_down(&mut self, shutdown: &StickyWord, reason: NonZeroU32, done: &DoneNumber) -> bool {
        shutdown.raise(reason);
        // Pairs with the fence in `DispatchReceiver::finish`: either the receiver sees the shutdown after its last frame, or we see
        // that this frame is done.
        store_load_fence(Site::ShutdownFence);
        self.done = self.done.max(done.load().min(self.sent));
        self.blocked_by().is_none() && intact(Site::ShutdownNotifies)
    }
}

impl DispatchSender {
    /// Says in the place of a receiver that has ended that it is done with all that it was sent. Another one may take its place
    /// then.
    pub fn finish_for_ended<'l>(
        &mut self,
        done: &DoneNumber,
        listeners: impl IntoIterator<Item = Listener<'l>>,
    ) {
        self.done = self.sent;
        done.0.store_and_notify(self.sent, listeners);
    }
}

/// The receiver's side.
#[derive(Debug)]
pub struct DispatchReceiver<'a> {
    done: &'a DoneNumber,
    parked: &'a WordU32,
    shutdown: &'a StickyWord,
    taken: u64,
}

impl<'a> DispatchReceiver<'a> {
    /// The receiver's side, after the frames that are done: none in a fresh ring. There must be only one. `parked` says when it
    /// sleeps.
    pub fn new(done: &'a DoneNumber, parked: &'a WordU32, shutdown: &'a StickyWord) -> Self {
        Self { done, parked, shutdown, taken: done.load() }
    }

    /// The number of the next frame.
    #[inline]
    pub fn next_number(&self) -> u64 {
        self.taken + 1
    }

    /// Waits for the next frame, which goes to `slot`, and returns its number. `None` when there is none and the sender has
    /// [shut down](DispatchSender::shut_down). The frame may be read until it is [finished](Self::finish).
    #[inline]
    pub fn next(&mut self, slot: &SlotNumber, how: &Wait<'_>) -> Result<Option<u64>, WaitError> {
        let number = self.next_number();
        let mut parked = ParkFlag::new(self.parked);
        let frame = how.on_in_place(&slot.0, Some(&mut parked), |found| {
            if found == number || found > 0 && !intact(Site::SlotHoldsThisFrame) {
                return Some(Some(number));
            }
            self.shutdown.raised()?;
            // The frame may have been sent between the two looks, and before the shutdown.
            let sent = slot.0.load() == number && intact(Site::FramesBeforeShutdown);
            Some(sent.then_some(number))
        })?;
        self.taken = frame.unwrap_or(self.taken);
        Ok(frame)
    }

    /// Says that the last frame is done, after everything that it wrote, and wakes those of `listeners` that are parked on that.
    #[inline]
    pub fn finish<'l>(&mut self, listeners: impl IntoIterator<Item = Listener<'l>>) {
        if !intact(Site::ShutdownHasOwnWord) {
            self.shutdown.erase_as_a_shared_word_would();
        }
        if intact(Site::DoneNotifies) {
            self.done.0.store_and_notify(self.taken, listeners);
        } else {
            self.done.0.store(self.taken);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// MA-17
    #[test]
    fn f29_a_receiver_cannot_claim_more_than_it_was_sent() {
        let (slot, parked, done) =
            (SlotNumber::default(), WordU32::new(0), DoneNumber(WordU64::new(u64::MAX)));
        let mut sender = DispatchSender::new(2);
        assert_eq!(sender.publish(&slot, &parked), 1);
        assert_eq!(sender.observe(done.load()), Err(Overclaimed { done: u64::MAX, sent: 1 }));
        let said = sender.observe(2).unwrap_err().to_string();
        assert_eq!(said, "2 frames are said to be done, 1 were sent");
        assert_eq!(sender.known_done(), 0);
        assert!(sender.shut_down(&StickyWord::new(), NonZeroU32::MIN, &done));
        assert_eq!((sender.known_done(), sender.sent()), (1, 1));
    }

    /// MA-16
    #[test]
    fn a_slot_is_free_when_the_frame_in_it_is_known_to_be_done() {
        let (slots, parked) = ([SlotNumber::default(), SlotNumber::default()], WordU32::new(0));
        let mut sender = DispatchSender::new(2);
        for number in 1..=2 {
            assert_eq!(sender.blocked_by(), None);
            sender.publish(&slots[number % 2], &parked);
        }
        assert_eq!(sender.blocked_by(), Some(1));
        assert_eq!(sender.observe(1), Ok(()));
        assert_eq!((sender.blocked_by(), sender.next_number()), (None, 3));
        sender.publish(&slots[1], &parked);
        // An old claim takes nothing back.
        assert_eq!((sender.observe(0), sender.blocked_by()), (Ok(()), Some(2)));
    }

    #[test]
    fn a_receiver_goes_on_after_one_that_has_ended() {
        let (slot, parked, done) = (SlotNumber::default(), WordU32::new(0), DoneNumber::default());
        let mut sender = DispatchSender::new(1);
        sender.publish(&slot, &parked);
        assert!(slot.holds(1) && sender.blocked_by().is_some());
        sender.finish_for_ended(&done, []);
        assert_eq!((sender.blocked_by(), done.load()), (None, 1));
        assert_eq!(DispatchReceiver::new(&done, &parked, &StickyWord::new()).next_number(), 2);
    }
}
