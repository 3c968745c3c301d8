//! An allocator for the pages of a sparse region.

use crate::error::{Limit, RegionError};
use crate::region::Region;
use std::ops::Range;

/// The unit of an [`Arena`]'s allocations, and of what is guarded or given back: whole pages on every kernel for the processor. Arm's
/// have pages of 4, 16 or 64 KiB.
pub const PAGE: usize = if cfg!(target_arch = "x86_64") { 4096 } else { 64 << 10 };

/// Which pages of a part of a sparse [`Region`] are free. It is local to the one process that allocates
/// them, so that no other process can corrupt it.
///
/// ```
/// use shared_memory::{Arena, PAGE, Region};
///
/// let region = Region::create_sparse("heap", 64 * PAGE)?; // addresses, and no memory yet
/// let mut arena = Arena::new(0..region.len());
/// let buffer = arena.allocate(&region, 100)?; // a whole page, zero, with memory behind it
/// region.write(buffer.start, b"hello")?;
/// arena.free(&region, buffer.clone())?; // its memory goes back to the system
/// assert!(arena.free(&region, buffer).is_err());
/// # Ok::<_, shared_memory::RegionError>(())
/// ```
#[derive(Debug)]
pub struct Arena {
    extent: Range<usize>,
    /// Sorted, with gaps between them.
    free: Vec<Range<usize>>,
}

impl Arena {
    /// An arena in which all of `extent`, which starts and ends at a page, is free.
    pub fn new(extent: Range<usize>) -> Self {
        Self { free: vec![extent.clone()], extent }
    }

    /// Allocates `len` bytes, rounded up to pages, with memory behind them; they are zero.
    pub fn allocate(&mut self, region: &Region, len: usize) -> Result<Range<usize>, RegionError> {
        let range = self.take(len)?;
        region.reserve(range.clone()).inspect_err(|_| {
            // Part of it may have been reserved before memory ran out.
            let _ = self.free(region, range.clone());
        })?;
        Ok(range)
    }

    /// Takes `len` bytes of addresses, rounded up to pages, with no memory behind them yet.
    pub fn take(&mut self, len: usize) -> Result<Range<usize>, RegionError> {
        let len = len.next_multiple_of(PAGE);
        let free = self.free.iter().find(|free| free.len() >= len);
        let start = free.ok_or_else(|| self.too_small(len))?.start;
        self.remove(start..start + len);
        Ok(start..start + len)
    }

    /// Like [`take`](Self::take), at the end of the last range that is large enough: far from what `take`
    /// returns.
    pub fn take_last(&mut self, len: usize) -> Result<Range<usize>, RegionError> {
        let len = len.next_multiple_of(PAGE);
        let free = self.free.iter().rfind(|free| free.len() >= len);
        let end = free.ok_or_else(|| self.too_small(len))?.end;
        self.remove(end - len..end);
        Ok(end - len..end)
    }

    fn too_small(&self, need: usize) -> RegionError {
        RegionError::OutOfMemory {
            label: "a window or buffer".to_owned(),
            need: need as u64,
            have: self.free.iter().map(ExactSizeIterator::len).max().unwrap_or(0) as u64,
            limit: Limit::Arena { size: self.extent.len() as u64 },
        }
    }

    /// Removes `range`, which is at the start or the end of a free range, from what is free.
    fn remove(&mut self, range: Range<usize>) {
        for free in &mut self.free {
            if free.start == range.start {
                free.start = range.end;
            } else if free.end == range.end {
                free.end = range.start;
            }
        }
        self.free.retain(|free| !free.is_empty());
    }

    /// Frees a range that [`allocate`](Self::allocate) returned. Its memory goes back to the system, so
    /// that it is zero when allocated again. A range of which any page is free already is refused and
    /// nothing is changed: the page would be allocated twice.
    pub fn free(&mut self, region: &Region, range: Range<usize>) -> Result<(), RegionError> {
        self.check_taken(&range)?;
        region.release(range.clone())?;
        self.give_back(range)
    }

    /// Frees the addresses of a range that was taken, or of a part of it. The caller has
    /// [released](Region::release) its memory. Refused as by [`free`](Self::free).
    pub fn give_back(&mut self, range: Range<usize>) -> Result<(), RegionError> {
        let at = self.check_taken(&range)?;
        self.free.insert(at, range);
        if at + 1 < self.free.len() && self.free[at].end == self.free[at + 1].start {
            self.free[at].end = self.free.remove(at + 1).end;
        }
        if at > 0 && self.free[at - 1].end == self.free[at].start {
            self.free[at - 1].end = self.free.remove(at).end;
        }
        Ok(())
    }

    /// Where `range`, of which all pages are taken, belongs among the free ones.
    fn check_taken(&self, range: &Range<usize>) -> Result<usize, RegionError> {
        let at = self.free.partition_point(|free| free.start < range.start);
        let whole = !range.is_empty() && range.start.is_multiple_of(PAGE) && range.end.is_multiple_of(PAGE);
        let inside = self.extent.start <= range.start && range.end <= self.extent.end;
        let apart = self.free.get(at).is_none_or(|next| range.end <= next.start)
            && (at == 0 || self.free[at - 1].end <= range.start);
        if !(whole && inside && apart) {
            return Err(RegionError::NotAllocated { start: range.start, end: range.end });
        }
        Ok(at)
    }
}

// Miri knows no memfd.
#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn the_unit_is_a_multiple_of_the_systems_pages() {
        let kilobytes = |field: &str| {
            let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
            crate::available::kilobytes(&maps, field).unwrap() as usize
        };
        // Of the first mapping, which is the program's own.
        let page = kilobytes("KernelPageSize:");
        assert!(page.is_power_of_two() && PAGE.is_multiple_of(page), "{page}");
    }

    #[test]
    fn taken_addresses_have_no_memory_and_the_last_are_apart_from_the_first() {
        let region = Region::create_sparse("t", 64 * PAGE).unwrap();
        let mut arena = Arena::new(0..64 * PAGE);
        let blocks = || nix::sys::stat::fstat(region.fd()).unwrap().st_blocks * 512;
        assert_eq!((arena.take(2 * PAGE).unwrap(), blocks()), (0..2 * PAGE, 0));
        let last = arena.take_last(1).unwrap();
        assert_eq!(last, 63 * PAGE..64 * PAGE);
        assert_eq!(arena.take_last(1).unwrap(), 62 * PAGE..63 * PAGE);
        assert_eq!((arena.allocate(&region, 1).unwrap(), blocks()), (2 * PAGE..3 * PAGE, PAGE as i64));
        arena.free(&region, 0..3 * PAGE).unwrap();
        arena.give_back(last).unwrap();
        assert_eq!(blocks(), 0);
        assert!(arena.free.iter().eq([&(0..62 * PAGE), &(63 * PAGE..64 * PAGE)]));
    }

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

    /// SM-4
    #[test]
    fn a_range_that_is_freed_twice_is_refused() {
        let region = Region::create_sparse("t", 8 * PAGE).unwrap();
        let mut arena = Arena::new(0..4 * PAGE);
        let (one, two) = (arena.allocate(&region, PAGE).unwrap(), arena.allocate(&region, PAGE).unwrap());
        arena.free(&region, one.clone()).unwrap();
        let refused = |arena: &mut Arena, range: Range<usize>| {
            let error = arena.free(&region, range.clone()).unwrap_err();
            assert_eq!(error, RegionError::NotAllocated { start: range.start, end: range.end });
            let said = error.to_string();
            assert!(
                said.ends_with("are not allocated in this arena; free what came from it, whole and once"),
                "{said}"
            );
        };
        refused(&mut arena, one.clone());
        // In part, outside, not of pages.
        refused(&mut arena, one.start..two.end);
        refused(&mut arena, two.start..two.end + PAGE);
        refused(&mut arena, 4 * PAGE..5 * PAGE);
        refused(&mut arena, two.start..two.start);
        refused(&mut arena, two.start..two.end - 1);
        let again = arena.allocate(&region, PAGE).unwrap();
        let other = arena.allocate(&region, PAGE).unwrap();
        assert!(again == one && other != again && other != two);
    }

    /// SM-2
    #[test]
    fn f22_more_than_there_is_says_need_and_have() {
        let region = Region::create_sparse("t", 4 * PAGE).unwrap();
        let mut arena = Arena::new(0..4 * PAGE);
        let error = arena.allocate(&region, 5 * PAGE).unwrap_err();
        assert!(error.to_string().starts_with("shared memory for `a window or buffer`: need"), "{error}");
        let limit = format!(
            "that is the largest free range of the {} bytes of addresses there; release something",
            4 * PAGE
        );
        assert!(error.to_string().ends_with(&limit), "{error}");
        let RegionError::OutOfMemory { need, have, .. } = error else { panic!("{error}") };
        assert_eq!((need, have), (5 * PAGE as u64, 4 * PAGE as u64));
        assert!(arena.free.iter().eq([&(0..4 * PAGE)]));
    }
}
