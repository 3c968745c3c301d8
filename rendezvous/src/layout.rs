//! What stands where in the memory that a group shares.
//!
//! # Safety
//! Declares the structs of atomic words that are viewed in shared memory.
#![allow(unsafe_code)]

use mailbox_atomics::{AllowedCores, Place, StickyWord, WordU32, WordU64};
use shared_memory::Shared;
use std::mem::offset_of;
use std::ops::Range;

/// The group's first line: written by whoever made the memory, before anybody else could see it.
#[repr(C)]
pub(crate) struct Header {
    /// [`layout_hash`]: two builds that disagree on any constant here refuse each other.
    pub(crate) hash: WordU64,
    /// Random; ties the memory to one meeting.
    pub(crate) nonce: WordU64,
    pub(crate) nranks: WordU64,
    pub(crate) extent: WordU64,
    /// One more than the rank that held the meeting; zero in a forked group.
    pub(crate) host: WordU64,
    reserved: [WordU64; 3],
    /// The first death that the parent of forked ranks told: see [`crate::verdict`].
    pub(crate) verdict: StickyWord,
    /// Raised by the parent of forked ranks when they shall stop for good.
    pub(crate) halt: StickyWord,
    reserved2: [WordU32; 14],
    /// What kernels see as their `CommWorkspace`: the abort word, written by the parent of forked ranks.
    pub(crate) abort: WordU32,
    reserved3: [WordU32; 15],
    /// The ranks' processes as the host of a meeting knows them; zero in a forked group.
    pub(crate) pids: [WordU32; 64],
}

/// One rank's card, written by that rank only.
#[repr(C)]
pub(crate) struct RankBlock {
    pub(crate) pid: WordU32,
    /// A [`Phase`](comm_context::comm::Phase) by its code.
    pub(crate) phase: WordU32,
    /// When it entered that phase, in monotonic nanoseconds.
    pub(crate) since_ns: WordU64,
    /// Changes with every note and with leaving; peers park on it.
    pub(crate) bell: WordU64,
    /// Raised when the rank has left, after its reason.
    pub(crate) left: StickyWord,
    /// Bytes of the reason.
    pub(crate) reason_len: WordU32,
    /// How many of the note slots have ever been used; those after them need no look.
    pub(crate) slots: WordU32,
    /// The cores that the rank may run on, from before it signed in.
    pub(crate) cores: [WordU64; AllowedCores::WORDS],
}

/// One small message on a card.
#[repr(C)]
pub(crate) struct NoteWords {
    /// `generation * 4 + state`; see [`crate::notes`].
    pub(crate) stamp: WordU64,
    pub(crate) id: WordU64,
    pub(crate) members: WordU64,
    pub(crate) kind: WordU32,
    pub(crate) len: WordU32,
}

// SAFETY: `repr(C)` structs of words.
unsafe impl Shared for Header {}
// SAFETY: as above.
unsafe impl Shared for RankBlock {}
// SAFETY: as above.
unsafe impl Shared for NoteWords {}

/// Bytes that a note can carry: a vendor's memory handle of 128 bytes and its sizes.
pub const MESSAGE_BYTES: usize = 192;
/// Bytes that the group's letter can carry: a vendor's root information of 4108 bytes.
pub const BROADCAST_BYTES: usize = 4608;
/// Exchanges that one rank can have under way at once.
pub(crate) const NOTES: usize = 128;
pub(crate) const REASON_BYTES: usize = 1024;

const PAGE: usize = 4096;
const LETTER_AT: usize = PAGE;
const PLACES_AT: usize = LETTER_AT + 2 * PAGE;
const CARD_BYTES: usize = 9 * PAGE;
const REASON_AT: usize = 512;
const NOTES_AT: usize = 2048;
const NOTE_STRIDE: usize = 256;
const NOTE_PAYLOAD_AT: usize = 64;
/// Large pages start here, should the system use them for windows.
const EXTENT_ALIGN: usize = 2 << 20;

const _: () = {
    assert!(size_of::<Header>() <= PAGE && BROADCAST_BYTES + 16 <= 2 * PAGE);
    assert!(offset_of!(Header, abort) == 128);
    assert!(size_of::<RankBlock>() <= REASON_AT && REASON_AT + REASON_BYTES <= NOTES_AT);
    assert!(NOTES_AT + NOTES * NOTE_STRIDE <= CARD_BYTES);
    assert!(size_of::<NoteWords>() <= NOTE_PAYLOAD_AT && NOTE_PAYLOAD_AT + MESSAGE_BYTES <= NOTE_STRIDE);
};

/// The memory of a group of `nranks` whose ranks own `extent` bytes each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) nranks: u32,
    pub(crate) extent: usize,
}

impl Layout {
    /// `None` when the sizes do not fit in an address space.
    pub(crate) fn new(nranks: u32, extent: usize) -> Option<Self> {
        let layout = Self { nranks, extent: extent.checked_next_multiple_of(EXTENT_ALIGN)? };
        layout.extent.checked_mul(nranks as usize)?.checked_add(layout.control())?;
        Some(layout)
    }

    /// Everything that is not an extent; reserved from the start.
    fn control(&self) -> usize {
        (self.cards() + self.nranks as usize * CARD_BYTES).next_multiple_of(EXTENT_ALIGN)
    }

    pub(crate) fn reserved(&self) -> Range<usize> {
        0..self.cards() + self.nranks as usize * CARD_BYTES
    }

    pub(crate) fn total(&self) -> usize {
        self.control() + self.nranks as usize * self.extent
    }

    pub(crate) const fn abort_word() -> usize {
        offset_of!(Header, abort)
    }

    /// The letter's state word, then its length, then its bytes.
    pub(crate) const fn letter() -> (usize, usize, usize) {
        (LETTER_AT, LETTER_AT + 8, LETTER_AT + 16)
    }

    pub(crate) const fn places() -> usize {
        PLACES_AT
    }

    fn cards(&self) -> usize {
        (PLACES_AT + self.nranks as usize * size_of::<Place>()).next_multiple_of(PAGE)
    }

    pub(crate) fn rank_block(&self, rank: u32) -> usize {
        self.cards() + rank as usize * CARD_BYTES
    }

    pub(crate) fn reason(&self, rank: u32) -> usize {
        self.rank_block(rank) + REASON_AT
    }

    pub(crate) fn note(&self, rank: u32, slot: usize) -> usize {
        self.rank_block(rank) + NOTES_AT + slot * NOTE_STRIDE
    }

    pub(crate) fn note_payload(&self, rank: u32, slot: usize) -> usize {
        self.note(rank, slot) + NOTE_PAYLOAD_AT
    }

    /// The bytes that belong to `rank`.
    pub(crate) fn extent(&self, rank: u32) -> Range<usize> {
        let start = self.control() + rank as usize * self.extent;
        start..start + self.extent
    }
}

/// A number that changes with every constant above, so that two builds which would misread each other notice.
pub(crate) const fn layout_hash() -> u64 {
    let constants = [
        1,
        size_of::<Header>(),
        size_of::<RankBlock>(),
        size_of::<NoteWords>(),
        size_of::<Place>(),
        MESSAGE_BYTES,
        BROADCAST_BYTES,
        NOTES,
        REASON_BYTES,
        CARD_BYTES,
        REASON_AT,
        NOTES_AT,
        NOTE_STRIDE,
        NOTE_PAYLOAD_AT,
        EXTENT_ALIGN,
        offset_of!(Header, host),
        offset_of!(Header, verdict),
        offset_of!(Header, halt),
        offset_of!(Header, abort),
        offset_of!(Header, pids),
        offset_of!(RankBlock, bell),
        offset_of!(RankBlock, left),
        offset_of!(RankBlock, slots),
        offset_of!(RankBlock, cores),
    ];
    // FNV-1a over the constants as words.
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut at = 0;
    while at < constants.len() {
        hash = (hash ^ constants[at] as u64).wrapping_mul(0x0100_0000_01b3);
        at += 1;
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_overlap_and_fill_the_region_in_order() {
        for nranks in [1, 2, 3, 64] {
            let layout = Layout::new(nranks, 5).unwrap();
            assert!(Layout::places() + nranks as usize * size_of::<Place>() <= layout.rank_block(0));
            for rank in 0..nranks {
                assert!(
                    layout.note_payload(rank, NOTES - 1) + MESSAGE_BYTES
                        <= layout.rank_block(rank) + CARD_BYTES
                );
                assert_eq!(layout.extent(rank).len(), EXTENT_ALIGN);
            }
            assert!(layout.reserved().end <= layout.extent(0).start);
            assert_eq!(layout.extent(nranks - 1).end, layout.total());
        }
    }

    #[test]
    fn sizes_beyond_an_address_space_are_refused() {
        assert_eq!(Layout::new(2, usize::MAX), None);
        assert_eq!(Layout::new(64, usize::MAX / 32), None);
    }
}
