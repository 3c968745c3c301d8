//! Random numbers that a seed repeats: SplitMix64.

/// A stream of them.
pub(crate) struct Random(u64);

impl Random {
    /// The stream of one cycle.
    pub(crate) fn of(seed: u64, cycle: u64) -> Self {
        let mut random = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ cycle);
        random.next();
        random
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// One of `low..=high`.
    pub(crate) fn among(&mut self, low: usize, high: usize) -> usize {
        low + (self.next() % (high - low + 1) as u64) as usize
    }

    /// True in `percent` of the cases.
    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }

    /// One of `of`.
    pub(crate) fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.among(0, of.len() - 1)]
    }
}
