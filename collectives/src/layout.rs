//! What stands where in a rank's window. Kernels in other languages use the same offsets.

use crate::table::Table;
use mailbox_atomics::{PAIR_SLOTS, PairLines, PairTaken, ProgressWords, RecordRing, StampLine};
use shared_memory::{FNV_OFFSET, fnv1a};
use std::ops::Range;

/// The first line of a window: [`Layout::hash`], stored when the rank is ready, and never 0.
pub(crate) const HASH_AT: usize = 0;
/// The step and the call that the group's are counted from: [`base_of`] the generation in which it was made. Rank 0's word counts for
/// all.
pub(crate) const BASE_AT: usize = 8;
/// What the rank makes of the machine: 1 when the ranks have a core each. Rank 0's word counts for all.
pub(crate) const CORES_AT: usize = 16;
/// [`ProgressWords`].
pub(crate) const PROGRESS_AT: usize = 128;
/// The [`Table`] that the rank chooses by, a 32-bit word for each entry; all 0 is the default.
pub(crate) const TABLE_AT: usize = 1408;
/// Why the rank gave up: [`FAULT_WORDS`] words.
pub(crate) const FAULT_AT: usize = 1536;
/// Words there.
pub(crate) const FAULT_WORDS: usize = 44;
/// The [`StampLine`] of plans.
pub(crate) const STAMP_AT: usize = 1920;
/// [`RecordRing`].
pub(crate) const RECORDS_AT: usize = 2048;
/// For each rank, [`PairLines`] of the messages to it and [`PairTaken`] of those from it.
pub(crate) const PAIRS_AT: usize = 4096;
/// Parts begin at multiples of it, which are the same in `comm_collectives.h`, whatever pages the system has.
const PAGE: usize = 4096;
pub(crate) const PAIR_BYTES: usize = 640;
const TAKEN_IN_PAIR: usize = 512;

/// A payload of at most so many bytes travels in the line of its step.
pub(crate) const INLINE: usize = 48;
/// Slices of a reduction start at multiples of so many bytes: no two ranks write one cache line.
pub(crate) const SLICE_ALIGN: usize = 128;

const _: () = {
    assert!(size_of::<ProgressWords>() == 1280 && PROGRESS_AT + 1280 <= TABLE_AT);
    assert!(TABLE_AT + 4 * Table::WORDS <= FAULT_AT);
    assert!(FAULT_AT + 8 * FAULT_WORDS <= STAMP_AT);
    assert!(size_of::<StampLine>() == 128 && STAMP_AT + 128 <= RECORDS_AT);
    assert!(size_of::<RecordRing>() == 2048 && RECORDS_AT + 2048 <= PAIRS_AT);
    assert!(size_of::<PairLines>() == TAKEN_IN_PAIR && TAKEN_IN_PAIR + size_of::<PairTaken>() == PAIR_BYTES);
};

/// Steps and calls of a generation of kernels, which count beyond all of those before.
const GENERATION_BITS: u32 = 40;

/// From where a group counts that is made in this generation.
pub(crate) fn base_of(generation: u32) -> u64 {
    // As the kernels do: 2^24 generations are more than a machine makes.
    u64::from(generation) << GENERATION_BITS
}

/// The generation in which a group was made that counts from there.
pub(crate) fn generation_of(base: u64) -> u32 {
    (base >> GENERATION_BITS) as u32
}

/// The number of a call for a reader: from 1.
pub(crate) fn in_generation(number: u64) -> u64 {
    number & ((1 << GENERATION_BITS) - 1)
}

/// How many bytes of a window a group of so many ranks takes with a pool of so many: for memory in which kernels make a group by
/// themselves (`comm_collectives.h`). `None` when there is no such group.
pub fn group_bytes(nranks: usize, pool: usize) -> Option<usize> {
    checked(nranks, pool).map(|layout| layout.total())
}

/// The hash of its layout.
#[doc(hidden)]
pub fn group_hash(nranks: usize, pool: usize) -> Option<u64> {
    checked(nranks, pool).map(|layout| layout.hash())
}

fn checked(nranks: usize, pool: usize) -> Option<Layout> {
    (1..=64).contains(&nranks).then(|| Layout::new(nranks, pool)).flatten()
}

/// Bytes of each half of a rank's staging area.
pub(crate) fn half(nranks: usize) -> usize {
    if nranks <= 16 { 1 << 20 } else { 256 << 10 }
}

/// Bytes of a slot of the ring between two ranks: all rings of a rank take half a megabyte.
fn slot(nranks: usize) -> usize {
    (128 << 10) / nranks.next_power_of_two()
}

/// The sizes of a group's windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) nranks: usize,
    /// Bytes of each half of the staging area.
    pub(crate) half: usize,
    /// Bytes of each slot of a pair's ring.
    pub(crate) slot: usize,
    /// Bytes for tensors in the window.
    pub(crate) pool: usize,
}

impl Layout {
    /// `None` when the pool does not fit in an address space.
    pub(crate) fn new(nranks: usize, pool: usize) -> Option<Self> {
        let (half, slot) = (half(nranks), slot(nranks));
        let layout = Self { nranks, half, slot, pool: pool.checked_next_multiple_of(PAGE)? };
        layout.pool_at().checked_add(layout.pool).filter(|total| *total < isize::MAX as usize)?;
        Some(layout)
    }

    pub(crate) fn halves_at(&self) -> usize {
        (PAIRS_AT + self.nranks * PAIR_BYTES).next_multiple_of(PAGE)
    }

    pub(crate) fn half_at(&self, half: usize) -> usize {
        self.halves_at() + half * self.half
    }

    /// The lines of messages to `rank`.
    pub(crate) fn pair_lines_at(&self, rank: usize) -> usize {
        PAIRS_AT + rank * PAIR_BYTES
    }

    /// How many messages from `rank` were taken.
    pub(crate) fn pair_taken_at(&self, rank: usize) -> usize {
        PAIRS_AT + rank * PAIR_BYTES + TAKEN_IN_PAIR
    }

    /// The bytes of a slot of the ring to `rank`.
    pub(crate) fn slot_at(&self, rank: usize, slot: usize) -> usize {
        self.halves_at() + 2 * self.half + (rank * PAIR_SLOTS + slot) * self.slot
    }

    pub(crate) fn pool_at(&self) -> usize {
        self.slot_at(self.nranks, 0).next_multiple_of(PAGE)
    }

    pub(crate) fn pool(&self) -> Range<usize> {
        self.pool_at()..self.pool_at() + self.pool
    }

    pub(crate) fn total(&self) -> usize {
        self.pool_at() + self.pool
    }

    /// A number that changes with every offset and size that two builds must agree on, and with the table that they have if they are given none.
    /// Never 0.
    pub(crate) fn hash(&self) -> u64 {
        let parts = [
            4,
            self.nranks,
            self.half,
            self.slot,
            self.pool,
            BASE_AT,
            CORES_AT,
            PROGRESS_AT,
            TABLE_AT,
            FAULT_AT,
            FAULT_WORDS,
            STAMP_AT,
            RECORDS_AT,
            PAIRS_AT,
            PAIR_BYTES,
            PAIR_SLOTS,
            mailbox_atomics::PROGRESS_LINES,
            mailbox_atomics::RECORDS,
            self.halves_at(),
            self.pool_at(),
            INLINE,
            SLICE_ALIGN,
        ];
        let table = Table::BASE.to_words().map(u64::from);
        let parts = parts.map(|part| part as u64).into_iter().chain(table);
        parts.fold(FNV_OFFSET, |hash, part| fnv1a(hash, &part.to_le_bytes())).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_each_other_and_do_not_overlap() {
        for nranks in [1, 2, 3, 16, 17, 64] {
            let layout = Layout::new(nranks, 5000).unwrap();
            assert!(PAIRS_AT + nranks * PAIR_BYTES <= layout.half_at(0));
            assert_eq!(layout.half_at(1) + layout.half, layout.slot_at(0, 0));
            assert_eq!(layout.slot_at(0, PAIR_SLOTS), layout.slot_at(1, 0));
            assert!(layout.slot_at(nranks - 1, PAIR_SLOTS) <= layout.pool_at());
            assert_eq!((layout.pool, layout.total()), (8192, layout.pool_at() + 8192));
        }
    }

    #[test]
    fn every_size_changes_the_hash() {
        let hash = |nranks, pool| Layout::new(nranks, pool).unwrap().hash();
        assert!(hash(2, 0) != hash(3, 0) && hash(2, 0) != hash(2, 1) && hash(2, 0) != 0);
        assert_eq!(Layout::new(2, usize::MAX), None);
        assert_eq!(Layout::new(2, isize::MAX as usize), None);
    }
}
