//! An allocator for the pages of a sparse region.

use crate::region::{Region, RegionError};
use std::ops::Range;

/// The unit of an [`Arena`]'s allocations.
pub const PAGE: usize = 4096;

/// Which pages of a part of a sparse [`Region`] are free. It is local to the one process that allocates
/// them, so that no other process can corrupt it.
#[derive(Debug)]
pub struct Arena {
    /// Sorted, with gaps between them.
    free: Vec<Range<usize>>,
}

impl Arena {
    /// An arena in which all of `extent`, which starts and ends at a page, is free.
    pub fn new(extent: Range<usize>) -> Self {
        Self { free: vec![extent] }
    }

    /// Allocates `len` bytes, rounded up to pages, with memory behind them; they are zero.
    pub fn allocate(&mut self, region: &Region, len: usize) -> Result<Range<usize>, RegionError> {
        let len = len.next_multiple_of(PAGE);
        let at = self.free.iter().position(|free| free.len() >= len).ok_or(RegionError::OutOfMemory {
            label: "a window or buffer".to_owned(),
            need: len as u64,
            have: self.free.iter().map(ExactSizeIterator::len).max().unwrap_or(0) as u64,
            limit: "that is the largest free range of addresses; release something first",
        })?;
        let allocated = self.free[at].start..self.free[at].start + len;
        if let Err(error) = region.reserve(allocated.clone()) {
            // Part of it may have been reserved before memory ran out.
            let _ = region.release(allocated);
            return Err(error);
        }
        self.free[at].start = allocated.end;
        if self.free[at].is_empty() {
            self.free.remove(at);
        }
        Ok(allocated)
    }

    /// Frees a range that [`allocate`](Self::allocate) returned. Its memory goes back to the system, so
    /// that it is zero when allocated again.
    pub fn free(&mut self, region: &Region, range: Range<usize>) -> Result<(), RegionError> {
        region.release(range.clone())?;
        let at = self.free.partition_point(|free| free.start < range.start);
        self.free.insert(at, range);
        if at + 1 < self.free.len() && self.free[at].end == self.free[at + 1].start {
            self.free[at].end = self.free.remove(at + 1).end;
        }
        if at > 0 && self.free[at - 1].end == self.free[at].start {
            self.free[at - 1].end = self.free.remove(at).end;
        }
        Ok(())
    }
}

// Miri knows no memfd.
#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn freed_pages_are_merged() {
        let region = Region::create_sparse("t", 64 * PAGE).unwrap();
        let mut arena = Arena::new(0..64 * PAGE);
        for round in 0..1000 {
            let mut held: Vec<_> =
                (1..=8).map(|pages| arena.allocate(&region, pages * PAGE - 1).unwrap()).collect();
            for (index, range) in held.iter().enumerate() {
                assert_eq!(range.len(), (index + 1) * PAGE);
                assert!(held.iter().enumerate().all(|(other, apart)| {
                    other == index || apart.end <= range.start || range.end <= apart.start
                }));
            }
            // In a different order each time.
            held.rotate_left(round % 8);
            held.swap(round % 3, 5);
            for range in held {
                arena.free(&region, range).unwrap();
            }
            assert!(arena.free.iter().eq([&(0..64 * PAGE)]));
        }
    }

    /// SM-4
    #[test]
    fn a_range_allocated_again_is_zero() {
        let region = Region::create_sparse("t", 4 * PAGE).unwrap();
        let mut arena = Arena::new(0..4 * PAGE);
        let first = arena.allocate(&region, PAGE).unwrap();
        region.write(first.start, &[7; PAGE]).unwrap();
        arena.free(&region, first.clone()).unwrap();
        let again = arena.allocate(&region, PAGE).unwrap();
        assert_eq!(again, first);
        let mut bytes = [1; PAGE];
        region.read(again.start, &mut bytes).unwrap();
        assert_eq!(bytes, [0; PAGE]);
    }

    /// SM-2
    #[test]
    fn f22_more_than_there_is_says_need_and_have() {
        let region = Region::create_sparse("t", 4 * PAGE).unwrap();
        let mut arena = Arena::new(0..4 * PAGE);
        let error = arena.allocate(&region, 5 * PAGE).unwrap_err();
        assert!(matches!(error, RegionError::OutOfMemory { need: 20480, have: 16384, .. }), "{error}");
        assert!(arena.free.iter().eq([&(0..4 * PAGE)]));
    }
}
