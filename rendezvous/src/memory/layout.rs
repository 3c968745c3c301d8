//! Where everything is in the memory that a group shares.
//!
//! # Safety
//! Declares the structs of atomic words that are viewed in shared memory.
#![allow(unsafe_code)]

use mailbox_atomics::{AllowedCores, MessageSlot, Place, StickyWord, WordU32, WordU64};
use shared_memory::{FNV_OFFSET, Parts, Shared, fnv1a};
use std::mem::offset_of;
use std::ops::Range;

/// The first bytes of the memory, written by the process that created it before any other could map it.
#[repr(C)]
pub(super) struct Header {
    /// [`layout_hash`]: two builds that disagree on any constant here refuse each other.
    pub(super) hash: WordU64,
    /// Random; ties the memory to one group.
    pub(super) nonce: WordU64,
    pub(super) nranks: WordU64,
    pub(super) extent: WordU64,
    /// One more than the rank that led the rendezvous; zero in a forked group.
    pub(super) leader: WordU64,
    reserved: [WordU64; 3],
    /// The first death that the parent of forked ranks reported; see [`super::death_word`].
    pub(super) death: StickyWord,
    /// Raised by the parent of forked ranks to stop them for good.
    pub(super) halt: StickyWord,
    reserved2: [WordU32; 14],
    /// What kernels poll: not zero while they shall return. Written by the parent of forked ranks.
    pub(super) abort: WordU32,
    /// Counts the times that kernels were let go on after they had been cancelled. Written by the same process.
    pub(super) generation: WordU32,
    reserved3: [WordU32; 14],
    /// The ranks' processes as the leader of a rendezvous knows them; zero in a forked group.
    pub(super) pids: [WordU32; MOST_RANKS],
    /// Bytes that each rank is about to reserve, written by it.
    pub(super) demands: [WordU64; MOST_RANKS],
}

/// What one rank publishes about itself; written by that rank only.
#[repr(C)]
pub(super) struct RankBlock {
    pub(super) pid: WordU32,
    /// A [`Phase`](comm_context::comm::Phase) by its code.
    pub(super) phase: WordU32,
    /// When the rank entered that phase, in monotonic nanoseconds.
    pub(super) since_ns: WordU64,
    /// Changes with every message and when the rank leaves; peers park on it.
    pub(super) doorbell: WordU64,
    /// Raised when the rank has left, after its reason was written.
    pub(super) left: StickyWord,
    /// The length of the reason in bytes.
    pub(super) reason_len: WordU32,
    /// How many message slots have ever been used. Readers skip the slots after them.
    pub(super) used_slots: WordU32,
    /// What a backend publishes about the windows of others that this rank has open. It counts after the rank has left.
    pub(super) imports: WordU32,
    /// The cores that the rank may run on, written before the pid.
    pub(super) cores: [WordU64; AllowedCores::WORDS],
    /// The cgroup whose quota of processor time the rank is under, and that quota in thousandths of a core; zero
    /// without one. Written before the pid.
    pub(super) quota: [WordU64; 2],
    /// The core that the rank was last seen on; see [`mailbox_atomics::keep_apart`].
    pub(super) seen_on: WordU64,
}

/// What a test that writes it as bytes needs to know.
#[cfg(test)]
pub(crate) const RANK_BLOCK_WORDS: usize = size_of::<RankBlock>() / 8;

/// Words of a message's header; see [`crate::group::message`].
pub(crate) const HEADER_WORDS: usize = 4;

/// A slot for one message of a rank.
pub(crate) type Slot = MessageSlot<HEADER_WORDS, { MESSAGE_BYTES / 8 }>;

// SAFETY: `repr(C)` structs of words.
unsafe impl Shared for Header {}
// SAFETY: as above.
unsafe impl Shared for RankBlock {}

/// The most bytes of a message: a vendor's memory handle of 128 bytes and its sizes.
pub const MESSAGE_BYTES: usize = 192;
/// The most bytes of the group's broadcast: a vendor's root information of 4108 bytes.
pub const BROADCAST_BYTES: usize = 4608;
/// Exchanges that one rank can have under way at once.
pub(crate) const MESSAGE_SLOTS: usize = 128;
pub(crate) const REASON_BYTES: usize = 1024;

/// The most ranks of a group.
const MOST_RANKS: usize = 64;
const PAGE: usize = 4096;
const BROADCAST_AT: usize = PAGE;
const PLACES_AT: usize = BROADCAST_AT + 2 * PAGE;
const RANK_BLOCK_BYTES: usize = 9 * PAGE;
const REASON_AT: usize = 512;
const SLOTS_AT: usize = 2048;
/// A backend's own bytes in a rank block. They are inside one page.
const BACKEND_AT: usize = SLOTS_AT + MESSAGE_SLOTS * size_of::<Slot>();
const BACKEND_BYTES: usize = RANK_BLOCK_BYTES - BACKEND_AT;
/// Extents have multiples of this size. Between two of them are at least so many addresses that nobody can access.
const EXTENT_ALIGN: usize = 2 << 20;
/// By so much more, so that what ranks have at the same offset of their windows differs in the lower bits of its address too. Where it
/// did not, an all-reduce of 64 KiB from window to window took a quarter longer on a Zen 5; presumably it is the way prediction of the
/// first-level cache. Extents therefore do not start where large pages do.
const EXTENT_SKEW: usize = 64 << 10;

const _: () = {
    assert!(size_of::<Header>() <= PAGE && BROADCAST_BYTES + 16 <= 2 * PAGE);
    assert!(offset_of!(Header, abort) == 128 && offset_of!(Header, generation) == 132);
    assert!(size_of::<RankBlock>() <= REASON_AT && REASON_AT + REASON_BYTES <= SLOTS_AT);
    assert!(SLOTS_AT.is_multiple_of(align_of::<Slot>()));
    assert!(BACKEND_AT < RANK_BLOCK_BYTES && BACKEND_AT.is_multiple_of(64));
    assert!(BACKEND_AT / PAGE == (RANK_BLOCK_BYTES - 1) / PAGE && BACKEND_BYTES >= 1536);
    assert!(MESSAGE_BYTES.is_multiple_of(8));
};

/// The memory of a group of `nranks` whose ranks own `extent` bytes each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    nranks: u32,
    extent: usize,
}

impl Layout {
    /// `None` when the sizes do not fit in an address space.
    pub(crate) fn new(nranks: u32, extent: usize) -> Option<Self> {
        let layout = Self { nranks, extent: extent.checked_next_multiple_of(EXTENT_ALIGN)? };
        let stride = layout.extent.checked_add(EXTENT_ALIGN + EXTENT_SKEW)?;
        stride.checked_mul(nranks as usize)?.checked_add(layout.control())?;
        Some(layout)
    }

    pub(crate) fn nranks(&self) -> u32 {
        self.nranks
    }

    /// The size of every rank's extent.
    pub(crate) fn extent_len(&self) -> usize {
        self.extent
    }

    /// Everything that is not an extent, up to the first extent.
    fn control(&self) -> usize {
        self.reserved().end.next_multiple_of(EXTENT_ALIGN)
    }

    /// The control part, an object of its own that has memory behind it from the start.
    pub(crate) fn reserved(&self) -> Range<usize> {
        0..self.rank_blocks() + self.nranks as usize * RANK_BLOCK_BYTES
    }

    /// The objects of the memory: the control part, and an extent for each rank unless extents are empty.
    pub(crate) fn parts(&self) -> Parts {
        let count = if self.extent == 0 { 0 } else { self.nranks as usize };
        let (head, first, stride) = (self.reserved().end, self.control(), self.stride());
        Parts { head, first, part: self.extent, stride, count }
    }

    /// From one extent to the next.
    fn stride(&self) -> usize {
        self.extent + EXTENT_ALIGN + EXTENT_SKEW
    }

    /// How many objects there are, each with a descriptor.
    pub(crate) fn objects(&self) -> usize {
        1 + self.parts().count
    }

    pub(crate) const fn abort_word() -> usize {
        offset_of!(Header, abort)
    }

    pub(crate) const fn generation_word() -> usize {
        offset_of!(Header, generation)
    }

    /// The broadcast's state word, its length and its bytes.
    pub(super) const fn broadcast() -> (usize, usize, usize) {
        (BROADCAST_AT, BROADCAST_AT + 8, BROADCAST_AT + 16)
    }

    /// The ranks' places at the barrier.
    pub(super) const fn places() -> usize {
        PLACES_AT
    }

    fn rank_blocks(&self) -> usize {
        (PLACES_AT + self.nranks as usize * size_of::<Place>()).next_multiple_of(PAGE)
    }

    pub(super) fn rank_block(&self, rank: u32) -> usize {
        self.rank_blocks() + rank as usize * RANK_BLOCK_BYTES
    }

    pub(super) fn reason(&self, rank: u32) -> usize {
        self.rank_block(rank) + REASON_AT
    }

    /// The first of a rank's message slots.
    pub(super) fn slots(&self, rank: u32) -> usize {
        self.rank_block(rank) + SLOTS_AT
    }

    /// Bytes of `rank`'s block for its backend.
    pub(crate) fn backend(&self, rank: u32) -> Range<usize> {
        let start = self.rank_block(rank) + BACKEND_AT;
        start..start + BACKEND_BYTES
    }

    /// The bytes that belong to `rank`, without memory until they are reserved.
    pub(crate) fn extent(&self, rank: u32) -> Range<usize> {
        let start = self.control() + rank as usize * self.stride();
        start..start + self.extent
    }
}

/// A number that changes with every constant above, so that two builds which would misread each other notice.
pub(crate) const fn layout_hash() -> u64 {
    let constants = [
        3,
        size_of::<Header>(),
        size_of::<RankBlock>(),
        size_of::<Slot>(),
        size_of::<Place>(),
        HEADER_WORDS,
        MESSAGE_BYTES,
        BROADCAST_BYTES,
        MESSAGE_SLOTS,
        REASON_BYTES,
        RANK_BLOCK_BYTES,
        REASON_AT,
        SLOTS_AT,
        BACKEND_AT,
        EXTENT_ALIGN,
        EXTENT_SKEW,
        offset_of!(Header, leader),
        offset_of!(Header, death),
        offset_of!(Header, halt),
        offset_of!(Header, abort),
        offset_of!(Header, generation),
        offset_of!(Header, pids),
        offset_of!(Header, demands),
        offset_of!(RankBlock, doorbell),
        offset_of!(RankBlock, left),
        offset_of!(RankBlock, used_slots),
        offset_of!(RankBlock, imports),
        offset_of!(RankBlock, cores),
        offset_of!(RankBlock, quota),
        offset_of!(RankBlock, seen_on),
    ];
    let mut hash = FNV_OFFSET;
    let mut at = 0;
    while at < constants.len() {
        hash = fnv1a(hash, &(constants[at] as u64).to_le_bytes());
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
                let slots_end = layout.slots(rank) + MESSAGE_SLOTS * size_of::<Slot>();
                let backend = layout.backend(rank);
                assert!(
                    slots_end <= backend.start && backend.end == layout.rank_block(rank) + RANK_BLOCK_BYTES
                );
                assert_eq!(layout.extent(rank).len(), EXTENT_ALIGN);
                let start = layout.extent(rank).start;
                assert!(rank == 0 || layout.extent(rank - 1).end + EXTENT_ALIGN <= start);
                // No two of 32 ranks have the same offset at addresses that are alike in their lower bits.
                assert_eq!(start % EXTENT_ALIGN, rank as usize * EXTENT_SKEW % EXTENT_ALIGN);
            }
            assert!(layout.reserved().end <= layout.extent(0).start);
            assert_eq!(layout.parts().count, nranks as usize);
        }
        assert_eq!(Layout::new(64, 0).unwrap().objects(), 1);
    }

    #[test]
    fn sizes_beyond_an_address_space_are_refused() {
        assert_eq!(Layout::new(2, usize::MAX), None);
        assert_eq!(Layout::new(64, usize::MAX / 32), None);
    }
}
