//! The memory that a Worker shares with its hands: status words, task rings, answers.
//!
//! A *hand* is a process that works for the Worker: a chip, a sub-worker, or a Worker of the next level.
//!
//! # Safety
//! Declares the structs of atomic words that are viewed in shared memory.
#![allow(unsafe_code)]

use crate::frame::SLOT_BYTES;
use mailbox_atomics::{Listener, ParkFlag, StickyWord, WordU32, WordU64};
use shared_memory::{Region, RegionError, Shared};
use std::num::NonZeroU32;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Slots in a ring: tasks that may be waiting at one hand before a submit has to wait.
pub(crate) const RING: u64 = 32;
/// The longest failure, and the longest answer, that a hand can give.
pub(crate) const ANSWER_BYTES: usize = 4096;

/// Written by the parent.
#[repr(C, align(128))]
pub(crate) struct ParentWords {
    /// Everybody stops: a hand died or did not answer.
    pub(crate) abort: StickyWord,
    /// Hands go home when they have nothing left to do.
    pub(crate) shutdown: StickyWord,
    /// The last run that was cancelled because a task of it failed.
    pub(crate) cancelled_run: WordU64,
    /// 1 when hands shall note the times of their tasks.
    pub(crate) trace: WordU32,
}

/// Written by the parent with each run, on a cache line of its own: hands look at the other words with each frame.
#[repr(C, align(128))]
pub(crate) struct RunWords {
    /// When the run that is on must be over, on the monotonic clock.
    pub(crate) until_ns: WordU64,
}

/// Written by the hand. Three cache lines, because others read each at another time: the parent spins on the first while the hand writes the
/// third, and looks at the second with every frame it sends.
#[repr(C)]
pub(crate) struct HandWords {
    pub(crate) progress: ProgressWords,
    pub(crate) parking: ParkingWords,
    pub(crate) doing: DoingWords,
}

/// How far a hand is, and what its last failure and answer were.
#[repr(C, align(128))]
pub(crate) struct ProgressWords {
    /// The number of the last frame that is finished.
    pub(crate) done: WordU64,
    /// The last run in which a task of this hand failed or was skipped.
    pub(crate) failed_run: WordU64,
    /// When, on the monotonic clock; `u64::MAX` when it only followed another's failure.
    pub(crate) failed_at: WordU64,
    /// The program that failed then.
    pub(crate) failed_program: WordU32,
    /// Bytes of its failure and of its last answer.
    pub(crate) failure_len: WordU32,
    pub(crate) answer_len: WordU32,
}

/// Whether a hand is parked on its next slot.
#[repr(C, align(128))]
pub(crate) struct ParkingWords {
    pub(crate) parked: WordU32,
}

/// What a hand is doing, for tables.
#[repr(C, align(128))]
pub(crate) struct DoingWords {
    /// The frame that it is working on; 0 when idle.
    pub(crate) frame: WordU64,
    /// Since when, in monotonic nanoseconds.
    pub(crate) since_ns: WordU64,
}

/// When a task ran.
#[repr(C)]
pub(crate) struct Times {
    pub(crate) start_ns: WordU64,
    pub(crate) end_ns: WordU64,
}

// SAFETY: `repr(C)` structs of words.
unsafe impl Shared for ParentWords {}
// SAFETY: as above.
unsafe impl Shared for RunWords {}
// SAFETY: as above.
unsafe impl Shared for HandWords {}
// SAFETY: as above.
unsafe impl Shared for Times {}

const PAGE: usize = 4096;
const RUN_AT: usize = 512;
const FLAGS_AT: usize = 1024;
const HANDS_AT: usize = PAGE;
const TIMES_AT: usize = 1024;
const FAILURE_AT: usize = PAGE;
const ANSWER_AT: usize = 2 * PAGE;
const RING_AT: usize = 3 * PAGE;
const HAND_BYTES: usize = RING_AT + RING as usize * SLOT_BYTES;
/// Hands that the flags of one page have room for, the parent's own flag included.
pub(crate) const MAX_HANDS: usize = (HANDS_AT - FLAGS_AT) / 4 - 1;

const _: () = {
    assert!(
        size_of::<HandWords>() <= TIMES_AT && TIMES_AT + RING as usize * size_of::<Times>() <= FAILURE_AT
    );
    assert!(size_of::<ParentWords>() <= RUN_AT && RUN_AT + size_of::<RunWords>() <= FLAGS_AT);
};

/// How the memory is called in errors.
const LABEL: &str = "chipcomm-worker";

#[derive(Debug)]
pub(crate) struct Board {
    region: Region,
    hands: usize,
}

impl Board {
    pub(crate) fn create(hands: usize) -> Result<Self, RegionError> {
        let region = Region::create(LABEL, HANDS_AT + hands * HAND_BYTES)?;
        Ok(Self { region, hands })
    }

    /// The board of `hands` hands that the parent handed over.
    pub(crate) fn attach(fd: OwnedFd, hands: usize) -> Result<Self, RegionError> {
        let len = hands.saturating_mul(HAND_BYTES).saturating_add(HANDS_AT);
        Ok(Self { region: Region::attach(fd, LABEL, len)?, hands })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.region.fd()
    }

    pub(crate) fn hands(&self) -> usize {
        self.hands
    }

    pub(crate) fn parent(&self) -> &ParentWords {
        inside(self.region.words(0))
    }

    pub(crate) fn run(&self) -> &RunWords {
        inside(self.region.words(RUN_AT))
    }

    pub(crate) fn hand(&self, hand: usize) -> &HandWords {
        inside(self.region.words(HANDS_AT + hand * HAND_BYTES))
    }

    pub(crate) fn times(&self, hand: usize, seq: u64) -> &Times {
        let at = TIMES_AT + (seq % RING) as usize * size_of::<Times>();
        inside(self.region.words(HANDS_AT + hand * HAND_BYTES + at))
    }

    /// The sequence word of the slot for frame `seq`.
    pub(crate) fn slot(&self, hand: usize, seq: u64) -> &WordU64 {
        inside(self.region.words(self.slot_at(hand, seq)))
    }

    fn slot_at(&self, hand: usize, seq: u64) -> usize {
        HANDS_AT + hand * HAND_BYTES + RING_AT + (seq % RING) as usize * SLOT_BYTES
    }

    pub(crate) fn write_slot(&self, hand: usize, seq: u64, at: usize, bytes: &[u8]) {
        inside(self.region.write(self.slot_at(hand, seq) + at, bytes));
    }

    pub(crate) fn read_slot(&self, hand: usize, seq: u64, into: &mut [u8]) {
        inside(self.region.read(self.slot_at(hand, seq), into));
    }

    /// The flag with which `waiter` (a hand, or the parent as number `hands`) says that it is parked on the progress of `hand`.
    pub(crate) fn listener(&self, waiter: usize, hand: usize) -> ParkFlag<'_> {
        ParkFlag::tagged(&self.flags()[waiter], tag(hand))
    }

    /// Everybody who may be parked on the progress of `hand`.
    pub(crate) fn listeners(&self, hand: usize) -> impl Iterator<Item = Listener<'_>> {
        self.flags().iter().map(move |flag| Listener::tagged(flag, tag(hand)))
    }

    fn flags(&self) -> &[WordU32] {
        inside(self.region.word_slice(FLAGS_AT, self.hands + 1))
    }

    pub(crate) fn write_failure(&self, hand: usize, bytes: &[u8]) {
        inside(self.region.write(HANDS_AT + hand * HAND_BYTES + FAILURE_AT, bytes));
        self.hand(hand).progress.failure_len.store(bytes.len() as u32);
    }

    pub(crate) fn read_failure(&self, hand: usize) -> Vec<u8> {
        let len = self.hand(hand).progress.failure_len.load();
        self.read_bytes(HANDS_AT + hand * HAND_BYTES + FAILURE_AT, len)
    }

    pub(crate) fn write_answer(&self, hand: usize, bytes: &[u8]) {
        let bytes = &bytes[..bytes.len().min(ANSWER_BYTES)];
        inside(self.region.write(HANDS_AT + hand * HAND_BYTES + ANSWER_AT, bytes));
        self.hand(hand).progress.answer_len.store(bytes.len() as u32);
    }

    pub(crate) fn read_answer(&self, hand: usize) -> Vec<u8> {
        let len = self.hand(hand).progress.answer_len.load();
        self.read_bytes(HANDS_AT + hand * HAND_BYTES + ANSWER_AT, len)
    }

    fn read_bytes(&self, at: usize, len: u32) -> Vec<u8> {
        let mut bytes = vec![0; (len as usize).min(ANSWER_BYTES)];
        inside(self.region.read(at, &mut bytes));
        bytes
    }
}

fn tag(hand: usize) -> NonZeroU32 {
    NonZeroU32::MIN.saturating_add(hand as u32)
}

/// Offsets come from this file's constants and the number of hands that the region was made for.
#[inline]
fn inside<T>(found: Result<T, RegionError>) -> T {
    found.unwrap_or_else(|error| outside(&error))
}

#[cold]
#[inline(never)]
fn outside(error: &RegionError) -> ! {
    panic!("the Worker's board: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f36_a_board_of_another_shape_is_not_attached() {
        let board = Board::create(2).unwrap();
        let fd = || board.fd().try_clone_to_owned().unwrap();
        assert!(matches!(Board::attach(fd(), 3), Err(RegionError::WrongSize { .. })));
        let same = Board::attach(fd(), 2).unwrap();
        same.hand(1).progress.done.store(7);
        assert_eq!(board.hand(1).progress.done.load(), 7);
    }
}
