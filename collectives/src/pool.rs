//! Which bytes of this rank's pool are free. Local to the rank: the others learn of a tensor's place when it is used in a call.

use std::ops::Range;

/// Tensors start at multiples of this.
const ALIGN: usize = 128;

#[derive(Debug)]
pub(crate) struct Pool {
    /// Offsets in the window; sorted, apart from each other.
    free: Vec<Range<usize>>,
    size: usize,
}

impl Pool {
    pub(crate) fn new(extent: Range<usize>) -> Self {
        Self { size: extent.len(), free: if extent.is_empty() { Vec::new() } else { vec![extent] } }
    }

    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// The largest range that is free.
    pub(crate) fn largest(&self) -> usize {
        self.free.iter().map(ExactSizeIterator::len).max().unwrap_or(0)
    }

    /// Takes `bytes`, or at least one, so that every tensor has a place of its own.
    pub(crate) fn take(&mut self, bytes: usize) -> Option<Range<usize>> {
        let bytes = bytes.max(1).checked_next_multiple_of(ALIGN)?;
        let at = self.free.iter().position(|free| free.len() >= bytes)?;
        let taken = self.free[at].start..self.free[at].start + bytes;
        self.free[at].start = taken.end;
        if self.free[at].is_empty() {
            self.free.remove(at);
        }
        Some(taken)
    }

    /// Takes back a range that [`take`](Self::take) returned.
    pub(crate) fn put(&mut self, range: Range<usize>) {
        let at = self.free.partition_point(|free| free.start < range.start);
        self.free.insert(at, range);
        if at + 1 < self.free.len() && self.free[at].end == self.free[at + 1].start {
            self.free[at].end = self.free.remove(at + 1).end;
        }
        if at > 0 && self.free[at - 1].end == self.free[at].start {
            self.free[at - 1].end = self.free.remove(at).end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_are_apart_and_their_room_comes_back() {
        let mut pool = Pool::new(4096..4096 + 1024);
        let (one, two, three) = (pool.take(1).unwrap(), pool.take(129).unwrap(), pool.take(0).unwrap());
        assert_eq!((one.clone(), two.clone(), three.clone()), (4096..4224, 4224..4480, 4480..4608));
        assert_eq!((pool.largest(), pool.take(513), pool.take(usize::MAX)), (512, None, None));
        pool.put(two);
        pool.put(one);
        assert_eq!(pool.take(384), Some(4096..4480));
        pool.put(4096..4480);
        pool.put(three);
        assert_eq!((pool.largest(), pool.size()), (1024, 1024));
        assert_eq!(Pool::new(0..0).take(1), None);
    }
}
