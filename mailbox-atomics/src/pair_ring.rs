//! A ring of slots from one rank to another: messages between two ranks of a group.
//!
//! The sender owns [`PairLines`], the receiver [`PairTaken`]. A slot's line carries a few words; more bytes stand in a buffer of the
//! sender's that goes with the slot. The words are relaxed atomics, published by the release store of the slot's number.

use crate::listener::Listener;
#[cfg(not(loom))]
use crate::progress::STAMP;
use crate::progress::{PAIR_LINES, PAIR_TAKEN, tag};
use crate::sync::{AtomicU64, Ordering, Site, intact};
use crate::word::WordU64;
use core::num::NonZeroU32;

/// Slots of one ring. The model needs fewer.
pub const PAIR_SLOTS: usize = if cfg!(loom) { 1 } else { 4 };
/// Words that a slot's line carries.
pub const PAIR_PAYLOAD_WORDS: usize = 7;

#[cfg_attr(not(loom), repr(C, align(128)))]
#[derive(Debug, Default)]
struct PairLine {
    /// How many slots have been filled, this one included.
    number: WordU64,
    words: [AtomicU64; PAIR_PAYLOAD_WORDS],
}

/// The lines of a ring's slots, written by the sender only. Zero-filled is a fresh ring.
#[cfg_attr(not(loom), repr(C, align(128)))]
#[derive(Debug, Default)]
pub struct PairLines {
    lines: [PairLine; PAIR_SLOTS],
}

/// How many slots the receiver has emptied, written by the receiver only.
#[cfg_attr(not(loom), repr(C, align(128)))]
#[derive(Debug, Default)]
pub struct PairTaken(WordU64);

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<PairLines>() == 128 * PAIR_SLOTS && size_of::<PairTaken>() == 128);
    assert!(PAIR_LINES + PAIR_SLOTS as u32 <= STAMP && STAMP < PAIR_TAKEN);
};

/// The sending side of a ring.
#[derive(Debug)]
pub struct PairSender<'a> {
    lines: &'a PairLines,
    taken: &'a PairTaken,
    me: usize,
    to: usize,
    sent: u64,
    /// Slots that the receiver has certainly emptied.
    emptied: u64,
}

/// The receiving side of a ring.
#[derive(Debug)]
pub struct PairReceiver<'a> {
    lines: &'a PairLines,
    taken: &'a PairTaken,
    me: usize,
    from: usize,
    received: u64,
}

impl<'a> PairSender<'a> {
    /// The sending side, rank `me`, of the ring to rank `to`.
    pub fn new(lines: &'a PairLines, taken: &'a PairTaken, me: usize, to: usize) -> Self {
        Self { lines, taken, me, to, sent: 0, emptied: 0 }
    }

    /// The number of the slot to fill next, if it is empty.
    #[inline]
    pub fn free_slot(&mut self) -> Option<usize> {
        let slot = self.sent as usize % PAIR_SLOTS;
        if !intact(Site::WriterChecksReaders) || self.sent < self.emptied + PAIR_SLOTS as u64 {
            return Some(slot);
        }
        self.emptied = self.taken.0.load();
        (self.sent < self.emptied + PAIR_SLOTS as u64).then_some(slot)
    }

    /// Publishes the slot that was free, with what was written to its buffer before.
    #[inline]
    pub fn publish(&mut self, words: [u64; PAIR_PAYLOAD_WORDS]) {
        let line = &self.lines.lines[self.sent as usize % PAIR_SLOTS];
        for (word, value) in line.words.iter().zip(words) {
            // Relaxed: published by the store of the number.
            word.store(value, Ordering::Relaxed);
        }
        self.sent += 1;
        line.number.store(self.sent);
    }

    /// Wakes the receiver if one of its threads, which announce it in `lanes`, is parked on the slot that was published last.
    #[inline]
    pub fn notify(&self, lanes: impl Iterator<Item = &'a crate::WordU32>) {
        let slot = (self.sent - 1) as usize % PAIR_SLOTS;
        let tag = tag(self.me, PAIR_LINES + slot as u32);
        self.lines.lines[slot].number.notify(lanes.map(|lane| Listener::tagged(lane, tag)));
    }

    /// The number of the slot that is published next.
    pub fn next_number(&self) -> u64 {
        self.sent + 1
    }

    /// The word to wait on for a free slot, and its tag in the park flag of a waiter.
    pub fn word(&self) -> (&'a WordU64, NonZeroU32) {
        (&self.taken.0, tag(self.to, PAIR_TAKEN))
    }

    /// Wakes the receiver, whatever it waits for, so that it finds out that this side has given up.
    pub fn wake(&self) {
        self.lines.lines.iter().for_each(|line| line.number.wake_all());
    }
}

impl<'a> PairReceiver<'a> {
    /// The receiving side, rank `me`, of the ring from rank `from`.
    pub fn new(lines: &'a PairLines, taken: &'a PairTaken, me: usize, from: usize) -> Self {
        Self { lines, taken, me, from, received: 0 }
    }

    /// The next slot and its words, if it is filled.
    #[inline]
    pub fn filled_slot(&self) -> Option<(usize, [u64; PAIR_PAYLOAD_WORDS])> {
        let slot = self.received as usize % PAIR_SLOTS;
        let line = &self.lines.lines[slot];
        // Relaxed: ordered by the acquire load of the number.
        (line.number.load() > self.received)
            .then(|| (slot, core::array::from_fn(|at| line.words[at].load(Ordering::Relaxed))))
    }

    /// The slot that was filled is empty again.
    #[inline]
    pub fn finish(&mut self) {
        self.received += 1;
        self.taken.0.store(self.received);
    }

    /// Wakes the sender if one of its threads, which announce it in `lanes`, waits for a free slot.
    #[inline]
    pub fn notify(&self, lanes: impl Iterator<Item = &'a crate::WordU32>) {
        if intact(Site::ReadingNotifies) {
            let tag = tag(self.me, PAIR_TAKEN);
            self.taken.0.notify(lanes.map(|lane| Listener::tagged(lane, tag)));
        }
    }

    /// The number of the slot that is received next.
    pub fn next_number(&self) -> u64 {
        self.received + 1
    }

    /// The word to wait on for the next slot, and its tag in the park flag of a waiter.
    pub fn word(&self) -> (&'a WordU64, NonZeroU32) {
        let slot = self.received as usize % PAIR_SLOTS;
        (&self.lines.lines[slot].number, tag(self.from, PAIR_LINES + slot as u32))
    }

    /// Wakes the sender, whatever it waits for, so that it finds out that this side has given up.
    pub fn wake(&self) {
        self.taken.0.wake_all();
    }
}
