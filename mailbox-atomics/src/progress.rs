//! Numbered steps that the ranks of a group publish to each other: the protocol below the collectives.
//!
//! Every rank owns one [`ProgressWords`] in shared memory and writes no other. A step is published in one of
//! [`PROGRESS_LINES`] lines, chosen by its number, together with a hash of the call that it belongs to and up to
//! [`INLINE_WORDS`] words of payload. Two rules make the rest safe:
//! - a line, or any buffer that a step announces, is written again only when everybody who reads it has finished reading;
//! - "finished reading" is what a rank says in its word `read_up_to`, or in the lag that comes with a step. That a rank has
//!   published a later step says nothing of the kind: it may have started several calls before it reads the first.
//!
//! Payload and label are relaxed atomics: the release store of the step number publishes them, and the acquire load of it orders
//! their loads.

mod stamps;

pub use stamps::{StampLine, Stamped};

use crate::listener::ParkFlag;
use crate::prefetch::prefetch_to_write;
use crate::sticky::StickyWord;
use crate::sync::{AtomicU64, Ordering, Site, intact, store_load_fence};
use crate::word::{WordU32, WordU64};
use core::num::NonZeroU32;

/// Lines of a rank: how many steps it may publish before the first of them is read. The model needs fewer.
pub const PROGRESS_LINES: usize = if cfg!(loom) { 4 } else { 8 };
/// Words of payload that travel with a step.
pub const INLINE_WORDS: usize = 6;
/// Threads of a rank that may park at the same time.
pub const PARK_LANES: usize = 2;
/// Words that a rank can be parked on, for each rank that writes them: lines, `read_up_to`, and those of the pair ring.
const WORDS_PER_RANK: u32 = 16;
const READ_UP_TO: u32 = 8;
pub(crate) const PAIR_LINES: u32 = 9;
pub(crate) const STAMP: u32 = 14;
pub(crate) const PAIR_TAKEN: u32 = 15;

/// One published step.
#[cfg_attr(not(loom), repr(C, align(128)))]
#[derive(Debug, Default)]
pub struct ProgressLine {
    /// The number of the step; only grows.
    step: WordU64,
    /// [`Label`] of that step.
    label: AtomicU64,
    payload: [AtomicU64; INLINE_WORDS],
}

/// What one rank publishes. Zero-filled is a rank that has published nothing.
#[cfg_attr(not(loom), repr(C, align(128)))]
#[derive(Debug, Default)]
pub struct ProgressWords {
    lines: [ProgressLine; PROGRESS_LINES],
    read_up_to: ReadLine,
    parked_on: ParkLine,
}

/// On a line of its own: written at the end of a call, while the peers read `lines`.
#[cfg_attr(not(loom), repr(C, align(128)))]
#[derive(Debug, Default)]
struct ReadLine {
    step: WordU64,
    /// Raised when the rank publishes and reads no more.
    gave_up: StickyWord,
}

/// Read by every peer after every step and written only around a park, so nothing hot stands beside it.
#[cfg_attr(not(loom), repr(C, align(128)))]
#[derive(Debug, Default)]
struct ParkLine([WordU32; PARK_LANES]);

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<ProgressLine>() == 128 && size_of::<ProgressWords>() == 128 * (PROGRESS_LINES + 2));
    assert!(
        core::mem::offset_of!(ProgressLine, label) == 8 && core::mem::offset_of!(ProgressLine, payload) == 16
    );
    assert!(core::mem::offset_of!(ProgressWords, read_up_to) == 128 * PROGRESS_LINES);
    assert!(core::mem::offset_of!(ProgressWords, parked_on) == 128 * (PROGRESS_LINES + 1));
    assert!(PROGRESS_LINES as u32 <= READ_UP_TO && READ_UP_TO < WORDS_PER_RANK);
};

/// What stands beside a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Label {
    /// Of the call that the step belongs to.
    hash: u32,
    /// How many steps the publisher has still to read, this one included; saturated where there are more.
    lag: u16,
    /// Free for the caller.
    note: u16,
}

impl Label {
    fn encode(self) -> u64 {
        u64::from(self.hash) << 32 | u64::from(self.lag) << 16 | u64::from(self.note)
    }

    fn decode(word: u64) -> Self {
        Self { hash: (word >> 32) as u32, lag: (word >> 16) as u16, note: word as u16 }
    }
}

/// What a rank finds when it looks for a peer's step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observed {
    /// Not published yet.
    NotYet,
    /// Published; its payload may be read until this rank says that it has finished with the step.
    Here {
        /// Of the peer's call.
        hash: u32,
        /// What the peer said with it.
        note: u16,
    },
    /// The peer has reused the line, so it does not count this rank among the readers of the step.
    Ahead,
}

/// The last step that announced a buffer or used a line, and who reads it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Use {
    /// The last step in which it is read.
    pub step: u64,
    /// One bit for each rank that reads it.
    pub readers: u64,
    /// Whether the readers publish that step only when they have read it. They then need not be asked for `read_up_to`.
    pub acknowledged: bool,
    /// The hash of the call that the step belongs to, with which the readers publish it too.
    pub hash: u32,
}

/// Whether a reader has finished with something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credit {
    /// It has.
    Given,
    /// Not yet.
    Missing,
    /// It published the step in another call, so it does not read what this rank thinks it reads.
    OtherCall,
}

/// One rank's side of the protocol.
#[derive(Debug)]
pub struct Progress<'a> {
    ranks: Box<[&'a ProgressWords]>,
    me: usize,
    others: u64,
    published: u64,
    read: u64,
    /// For each rank, a step up to which it has certainly finished reading.
    bounds: Box<[u64]>,
    /// The least of them over the others, as of the last time that it was needed.
    least: u64,
    lines: [Use; PROGRESS_LINES],
    /// One bit for each word of ours that changed since the last [`notify`](Self::notify).
    changed: u32,
    /// Of every rank, where there are any: see [`with_stamps`](Self::with_stamps).
    stamps: Box<[&'a StampLine]>,
}

impl<'a> Progress<'a> {
    /// Rank `me` of those whose words are `ranks`. All steps up to and including `base` count as published and read.
    ///
    /// # Panics
    /// When there is no rank `me`, or more than 64.
    pub fn new(ranks: impl IntoIterator<Item = &'a ProgressWords>, me: usize, base: u64) -> Self {
        let ranks: Box<[_]> = ranks.into_iter().collect();
        assert!(me < ranks.len() && ranks.len() <= 64, "rank {me} of {}", ranks.len());
        let everybody = u64::MAX >> (64 - ranks.len());
        Self {
            me,
            others: everybody & !(1 << me),
            published: base,
            read: base,
            bounds: ranks.iter().map(|_| base).collect(),
            least: base,
            lines: [Use::default(); PROGRESS_LINES],
            changed: 0,
            stamps: Box::default(),
            ranks,
        }
    }

    /// One bit for each rank but this one.
    #[inline]
    pub fn others(&self) -> u64 {
        self.others
    }

    /// The last step that this rank published.
    #[inline]
    pub fn published(&self) -> u64 {
        self.published
    }

    /// The last step that this rank has read.
    #[inline]
    pub fn read(&self) -> u64 {
        self.read
    }

    /// What the line that `step` goes to was last used for: to be checked before [`publish`](Self::publish).
    #[inline]
    pub fn line_use(&self, step: u64) -> Use {
        self.lines[index(step)]
    }

    /// Publishes `step`, the next one or a later one, with a payload that `readers` read. Everything written before is visible
    /// to whoever observes it. Wakes nobody; see [`notify`](Self::notify).
    #[inline]
    pub fn publish(&mut self, step: u64, hash: u32, note: u16, payload: &[u64], used: Use) {
        debug_assert!(step > self.published && payload.len() <= INLINE_WORDS);
        let line = &self.ranks[self.me].lines[index(step)];
        for (word, value) in line.payload.iter().zip(payload) {
            // Relaxed: published by the store of the step below.
            word.store(*value, Ordering::Relaxed);
        }
        // A step that acknowledges what was read may come after later ones were read too.
        let lag = u16::try_from(step.saturating_sub(self.read)).unwrap_or(u16::MAX);
        // Relaxed: as the payload.
        line.label.store(Label { hash, lag, note }.encode(), Ordering::Relaxed);
        line.step.store(step);
        self.published = step;
        self.lines[index(step)] = used;
        self.changed |= 1 << index(step);
    }

    /// Looks for `step` of `rank`. What the rank wrote before it published the step is visible afterwards.
    #[inline]
    pub fn observe(&mut self, rank: usize, step: u64) -> Observed {
        let line = &self.ranks[rank].lines[index(step)];
        let found = line.step.load();
        if found < step {
            return Observed::NotYet;
        }
        // Relaxed: ordered by the acquire load of the step. It is the label of that step or of a later one in the same line; then
        // the bound below is too low, which is safe.
        let label = Label::decode(line.label.load(Ordering::Relaxed));
        if label.lag < u16::MAX {
            let lag = if intact(Site::CreditIsWhatWasRead) { u64::from(label.lag) } else { 0 };
            self.raise_bound(rank, found.saturating_sub(lag));
        }
        if found == step { Observed::Here { hash: label.hash, note: label.note } } else { Observed::Ahead }
    }

    /// Copies the payload of a step that was observed. It stays as it is until this rank has [finished](Self::finish) the step.
    #[inline]
    pub fn payload(&self, rank: usize, step: u64, into: &mut [u64]) {
        let line = &self.ranks[rank].lines[index(step)];
        for (value, word) in into.iter_mut().zip(&line.payload) {
            // Relaxed: ordered by the acquire load in `observe`.
            *value = word.load(Ordering::Relaxed);
        }
    }

    /// Says that this rank has read everything up to `step`. Wakes nobody; see [`notify`](Self::notify).
    #[inline]
    pub fn finish(&mut self, step: u64) {
        self.read = step;
        self.ranks[self.me].read_up_to.step.store(step);
        if intact(Site::ReadingNotifies) {
            self.changed |= 1 << READ_UP_TO;
        }
    }

    /// Whether all readers are known to have finished with `used`, without asking any of them.
    #[inline]
    pub fn is_free(&self, used: Use) -> bool {
        used.step <= self.least || !intact(Site::WriterChecksReaders)
    }

    /// The first reader that is not known to have finished with `used`.
    pub fn first_unfinished(&mut self, used: Use) -> Option<usize> {
        if self.is_free(used) {
            return None;
        }
        let behind = bits(used.readers & self.others).find(|rank| self.bounds[*rank] < used.step);
        if behind.is_none() {
            self.least = bits(self.others).map(|rank| self.bounds[rank]).min().unwrap_or(u64::MAX);
        }
        behind
    }

    /// Asks whether `rank` has finished with `used`.
    pub fn credit(&mut self, rank: usize, used: Use) -> Credit {
        if self.bounds[rank] >= used.step {
            return Credit::Given;
        }
        if used.acknowledged {
            return match self.observe(rank, used.step) {
                Observed::NotYet => Credit::Missing,
                Observed::Here { hash, .. } if hash != used.hash => Credit::OtherCall,
                Observed::Here { .. } | Observed::Ahead if self.bounds[rank] >= used.step => Credit::Given,
                Observed::Here { .. } | Observed::Ahead => Credit::OtherCall,
            };
        }
        let read = self.ranks[rank].read_up_to.step.load();
        self.raise_bound(rank, read);
        if read >= used.step { Credit::Given } else { Credit::Missing }
    }

    #[inline]
    fn raise_bound(&mut self, rank: usize, step: u64) {
        let bound = &mut self.bounds[rank];
        *bound = step.max(*bound);
    }

    /// Asks for the line of the step after `step`, which the others have read, so that publishing it takes no longer than a store.
    #[inline]
    pub fn prepare_after(&self, step: u64) {
        let line = &self.ranks[self.me].lines[index(step + 1)];
        prefetch_to_write(core::ptr::from_ref(line).cast(), 64);
    }

    /// Wakes the ranks that are parked on a word that changed since the last call.
    #[inline]
    pub fn notify(&mut self) {
        if self.changed == 0 {
            return;
        }
        // Pairs with the fence in `ParkFlag::announce`: either this rank sees the announcement, or the parked one sees the word.
        store_load_fence(Site::NotifyFence);
        let changed = core::mem::take(&mut self.changed);
        let first = tag(self.me, 0).get();
        let mut parked = 0;
        for rank in bits(self.others) {
            for lane in &self.ranks[rank].parked_on.0 {
                let word = lane.load().wrapping_sub(first);
                if word < WORDS_PER_RANK {
                    parked |= 1 << word;
                }
            }
        }
        if parked & changed != 0 {
            self.wake(parked & changed);
        }
    }

    #[cold]
    fn wake(&self, words: u32) {
        let mine = self.ranks[self.me];
        for word in bits(u64::from(words)) {
            match word as u32 {
                READ_UP_TO => mine.read_up_to.step.wake_all(),
                STAMP => self.stamps[self.me].wake_all(),
                line => mine.lines[line as usize].step.wake_all(),
            }
        }
    }

    /// Says that this rank publishes and reads no more, and wakes everybody who waits for it. What it has published stays: it was
    /// delivered. Whoever parks at this moment may sleep through the wake, and finds out at its next poll. `reason` is for
    /// the others to tell one time from another.
    pub fn give_up(&mut self, reason: NonZeroU32) {
        let mine = self.ranks[self.me];
        mine.read_up_to.gave_up.raise(reason);
        mine.lines.iter().map(|line| &line.step).chain([&mine.read_up_to.step]).for_each(WordU64::wake_all);
        self.stamps.get(self.me).into_iter().for_each(|line| line.wake_all());
    }

    /// The word with which a rank says that it has given up.
    pub fn gave_up(&self, rank: usize) -> &'a StickyWord {
        &self.ranks[rank].read_up_to.gave_up
    }

    /// The word to wait on for `step` of `rank`, and its tag in the park flag of a waiter.
    pub fn step_word(&self, rank: usize, step: u64) -> (&'a WordU64, NonZeroU32) {
        (&self.ranks[rank].lines[index(step)].step, tag(rank, index(step) as u32))
    }

    /// The word to wait on until `rank` has finished with `used`, and its tag in the park flag of a waiter.
    pub fn credit_word(&self, rank: usize, used: Use) -> (&'a WordU64, NonZeroU32) {
        if used.acknowledged {
            return self.step_word(rank, used.step);
        }
        (&self.ranks[rank].read_up_to.step, tag(rank, READ_UP_TO))
    }

    /// Where thread `lane` of this rank announces that it parks on the word with that tag.
    pub fn park_flag(&self, lane: usize, tag: NonZeroU32) -> ParkFlag<'a> {
        ParkFlag::tagged(&self.park_words(self.me)[lane], tag)
    }

    /// Where the threads of `rank` announce what they are parked on.
    pub fn park_words(&self, rank: usize) -> &'a [WordU32; PARK_LANES] {
        &self.ranks[rank].parked_on.0
    }
}

/// The buffers of a rank that are used in turns, two of them: by the time the second is announced, the first may still be read.
#[derive(Debug, Default)]
pub struct Halves {
    uses: [Use; 2],
}

impl Halves {
    /// Which of the two piece number `piece` of the group's life goes to.
    #[inline]
    pub fn of(piece: u64) -> usize {
        if intact(Site::TwoHalves) { (piece & 1) as usize } else { 0 }
    }

    /// What a half was last used for: to be checked before it is written.
    #[inline]
    pub fn last_use(&self, half: usize) -> Use {
        if intact(Site::TwoHalves) { self.uses[half] } else { Use::default() }
    }

    /// The half is about to be read as `used` says.
    #[inline]
    pub fn set(&mut self, half: usize, used: Use) {
        self.uses[half] = used;
    }
}

/// The bits of a mask, from the lowest.
#[inline]
fn bits(mut mask: u64) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let bit = (mask != 0).then(|| mask.trailing_zeros() as usize);
        mask &= mask.wrapping_sub(1);
        bit
    })
}

#[inline]
fn index(step: u64) -> usize {
    step as usize % PROGRESS_LINES
}

/// Never 0, which means awake. At most 64 · 16.
pub(crate) fn tag(rank: usize, word: u32) -> NonZeroU32 {
    NonZeroU32::MIN.saturating_add(rank as u32 * WORDS_PER_RANK + word)
}
