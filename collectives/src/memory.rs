//! The windows of a group as memory.
//!
//! # Safety
//! Pointers and references into the windows of all ranks. [`Memory::new`] takes pointers to whole windows, each as long as the layout says,
//! which stay mapped as long as the group lives; everything else is an offset of the layout. References are to structs of atomics
//! only.
#![allow(unsafe_code)]

use crate::layout::{self, Layout};
use crate::table::Table;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64};
use mailbox_atomics::{PairLines, PairTaken, ProgressWords, RecordRing, StampLine, WordU64};
use shared_memory::{GatheredPages, PAGE, Shared};
use std::ops::Range;

/// Below so many bytes, taking lines over costs what it saves.
const TAKE_OVER_MIN: usize = 1 << 10;
/// Groups of so many ranks gather the pages that they read most. On two cores, 64 ranks take a third less for a small all-reduce, 16 a
/// fifteenth, and 8 nothing.
const GATHERED_FROM: usize = 16;
/// Bytes of a cache line.
const LINE: usize = 64;

/// Where the windows of a group lie in this process.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) layout: Layout,
    windows: Box<[NonNull<u8>]>,
    /// The first page of every window, and then of every half, where that is worth it: ranks that share cores find little in the
    /// processor's cache of the page table, and read a few lines of each window.
    first_pages: Option<GatheredPages>,
    me: usize,
}

impl Memory {
    /// # Safety
    /// Each window is valid for reads and writes of `layout.total()` bytes, aligned to a page, until the value and everything that was
    /// borrowed from it are gone.
    pub(crate) unsafe fn new(layout: Layout, windows: Box<[NonNull<u8>]>, me: usize) -> Self {
        assert!(windows.len() == layout.nranks && me < layout.nranks);
        let first_pages = if layout.nranks >= GATHERED_FROM {
            let parts = [0, layout.half_at(0), layout.half_at(1)];
            let pages = parts.into_iter().flat_map(|part| {
                // SAFETY: an offset of the layout, inside the window.
                windows.iter().map(move |window| unsafe { window.add(part) })
            });
            // Without, it takes longer.
            GatheredPages::new(&pages.collect::<Vec<_>>()).ok()
        } else {
            None
        };
        Self { layout, windows, first_pages, me }
    }

    /// The window of `rank`.
    #[inline]
    pub(crate) fn window(&self, rank: usize) -> *mut u8 {
        self.windows[rank].as_ptr()
    }

    /// The words at `offset` of a window. The lifetime is the caller's choice: that of the group's memory.
    fn words<'m, T: Shared>(&self, rank: usize, offset: usize) -> &'m T {
        assert!(offset + size_of::<T>() <= self.layout.total() && offset.is_multiple_of(align_of::<T>()));
        let start = match &self.first_pages {
            Some(pages) if offset + size_of::<T>() <= PAGE => pages.page(rank).as_ptr(),
            _ => self.window(rank),
        };
        // SAFETY: inside the window and aligned (checked; windows start at a page), or inside the second address of its first page,
        // which this value keeps; both are mapped while the group lives. `T: Shared` is made of atomics, for which any bytes are
        // valid and which others may write.
        unsafe { &*start.add(offset).cast() }
    }

    pub(crate) fn hash_word<'m>(&self, rank: usize) -> &'m WordU64 {
        self.words(rank, layout::HASH_AT)
    }

    pub(crate) fn base_word<'m>(&self, rank: usize) -> &'m WordU64 {
        self.words(rank, layout::BASE_AT)
    }

    pub(crate) fn cores_word<'m>(&self, rank: usize) -> &'m WordU64 {
        self.words(rank, layout::CORES_AT)
    }

    /// Entry `at` of the table of a rank.
    pub(crate) fn table_word<'m>(&self, rank: usize, at: usize) -> &'m AtomicU32 {
        assert!(at < Table::WORDS);
        self.words(rank, layout::TABLE_AT + 4 * at)
    }

    pub(crate) fn progress<'m>(&self, rank: usize) -> &'m ProgressWords {
        self.words(rank, layout::PROGRESS_AT)
    }

    pub(crate) fn stamp<'m>(&self, rank: usize) -> &'m StampLine {
        self.words(rank, layout::STAMP_AT)
    }

    pub(crate) fn records<'m>(&self, rank: usize) -> &'m RecordRing {
        self.words(rank, layout::RECORDS_AT)
    }

    /// Word `at` of what a rank says when it gives up.
    pub(crate) fn fault_word<'m>(&self, rank: usize, at: usize) -> &'m AtomicU64 {
        assert!(at < layout::FAULT_WORDS);
        self.words(rank, layout::FAULT_AT + 8 * at)
    }

    /// The lines of the messages `from` sends to `to`.
    pub(crate) fn pair_lines<'m>(&self, from: usize, to: usize) -> &'m PairLines {
        self.words(from, self.layout.pair_lines_at(to))
    }

    /// How many of them `to` has taken.
    pub(crate) fn pair_taken<'m>(&self, from: usize, to: usize) -> &'m PairTaken {
        self.words(to, self.layout.pair_taken_at(from))
    }

    /// A slot of the ring from `from` to `to`; as many bytes as the layout says.
    pub(crate) fn slot(&self, from: usize, to: usize, slot: usize) -> *mut u8 {
        // SAFETY: an offset of the layout, inside the window.
        unsafe { self.window(from).add(self.layout.slot_at(to, slot)) }
    }

    /// A half of the staging area of `rank`; as many bytes as the layout says.
    #[inline]
    pub(crate) fn half(&self, rank: usize, half: usize) -> *mut u8 {
        // SAFETY: an offset of the layout, inside the window.
        unsafe { self.window(rank).add(self.layout.half_at(half & 1)) }
    }

    /// Bytes of a half that this rank reads.
    #[inline]
    pub(crate) fn staged(&self, rank: usize, half: usize, bytes: Range<usize>) -> *const u8 {
        match &self.first_pages {
            Some(pages) if bytes.end <= PAGE => {
                let page = pages.page(self.layout.nranks * (1 + (half & 1)) + rank);
                page.as_ptr().wrapping_add(bytes.start).cast_const()
            }
            _ => self.half(rank, half).wrapping_add(bytes.start).cast_const(),
        }
    }

    /// Where `bytes` at `at` stand in this rank's window, if they lie in its pool.
    #[inline]
    pub(crate) fn pool_offset(&self, at: *const u8, bytes: usize) -> Option<usize> {
        let offset = at.addr().wrapping_sub(self.windows[self.me].addr().get());
        let pool = self.layout.pool();
        (offset >= pool.start && offset <= pool.end && bytes <= pool.end - offset).then_some(offset)
    }

    /// A place in the pool of `rank`, which comes from that rank: `None` when the bytes do not lie there.
    #[inline]
    pub(crate) fn in_pool_of(&self, rank: usize, offset: u64, bytes: usize) -> Option<*mut u8> {
        let (pool, offset) = (self.layout.pool(), usize::try_from(offset).ok()?);
        let inside = offset >= pool.start && offset <= pool.end && bytes <= pool.end - offset;
        // SAFETY: inside the window, as just checked.
        inside.then(|| unsafe { self.window(rank).add(offset) })
    }

    /// Puts the pages of this rank's window, and of what it uses of the others', into the page table, so that no call stops for that.
    pub(crate) fn populate(&self) {
        for rank in 0..self.layout.nranks {
            let bytes = if rank == self.me { self.layout.total() } else { self.layout.pool_at() };
            let (at, bytes) = (self.window(rank), bytes.next_multiple_of(PAGE).min(self.layout.total()));
            // SAFETY: a range of whole pages that is mapped. Populating changes no byte. An old kernel refuses it, and the pages
            // then come with their first use.
            unsafe { libc::madvise(at.cast(), bytes, libc::MADV_POPULATE_WRITE) };
        }
    }
}

/// Makes this processor the only one that has the lines of what was just read of another rank's half, if that is worth it. It
/// stores to each line what stands there.
///
/// # Safety
/// `bytes` from `at` on lie in a half. No other rank reads or writes them until this one has finished the step.
#[inline]
pub(crate) unsafe fn take_over(at: *mut u8, bytes: usize, most: usize) {
    if (TAKE_OVER_MIN..=most).contains(&bytes) {
        for offset in (0..bytes).step_by(LINE) {
            // SAFETY: within `bytes`; the caller's promises. Volatile, because the compiler would leave it out.
            unsafe { at.add(offset).write_volatile(at.add(offset).read_volatile()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines are taken over by stores: they change nothing, and reach no byte beyond.
    #[test]
    fn what_is_taken_over_stays_as_it_was() {
        let mut bytes: Vec<u8> = (0..5000_u32).map(|at| (at * 7 % 251) as u8).collect();
        let before = bytes.clone();
        for (from, len, most) in [(0, 4999, 1 << 20), (3, 1025, 1 << 20), (64, 1024, 1024), (1, 2000, 0)] {
            // SAFETY: within the bytes, which nobody else uses.
            unsafe { take_over(bytes.as_mut_ptr().add(from), len, most) };
        }
        assert_eq!(bytes, before);
    }
}
