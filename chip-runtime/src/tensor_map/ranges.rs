//! Values by byte range.
//!
//! A range is in the class of its length (a power of two), and each class is ordered by start, so that a look at the
//! ranges that overlap a new one visits few others: in each class that is in use it begins where the longest range of the
//! class could still reach.

use std::collections::BTreeMap;

/// The classes of one power of two each.
const CLASSES: usize = 64;

#[derive(Debug)]
pub(super) struct Ranges<V> {
    /// By [`key`].
    classes: Vec<BTreeMap<u128, V>>,
    /// One bit for each class with a value.
    used: u64,
}

/// Start and end as one number, which compares faster than two.
fn key(lo: u64, hi: u64) -> u128 {
    u128::from(lo) << 64 | u128::from(hi)
}

impl<V> Ranges<V> {
    pub(super) fn new() -> Self {
        Self { classes: (0..CLASSES).map(|_| BTreeMap::new()).collect(), used: 0 }
    }

    /// Calls `visit` with the value of each range that overlaps this one.
    #[inline]
    pub(super) fn overlapping(&mut self, lo: u64, hi: u64, mut visit: impl FnMut(&mut V)) {
        let mut used = self.used;
        while used != 0 {
            let class = used.trailing_zeros() as usize;
            used &= used - 1;
            // A range of this class is shorter than this.
            let longest = if class == CLASSES - 1 { u64::MAX } else { 2 << class };
            let (from, to) = (key(lo.saturating_sub(longest), 0), key(hi, 0));
            // Without a bound above, for which the tree would be searched once more.
            for (at, value) in self.classes[class].range_mut(from..).take_while(|(at, _)| **at < to) {
                // The lower half of a key is the end.
                if *at as u64 > lo {
                    visit(value);
                }
            }
        }
    }

    /// The value of exactly this range, which is not empty.
    pub(super) fn entry(&mut self, lo: u64, hi: u64, make: impl FnOnce() -> V) -> &mut V {
        let class = (hi - lo).ilog2() as usize;
        self.used |= 1 << class;
        self.classes[class].entry(key(lo, hi)).or_insert_with(make)
    }

    /// Calls `look` with each value. Where it holds for more than half of a class, those for which `is_empty` holds leave
    /// it for `taken`: where most are needed, the others are not in the way.
    pub(super) fn sweep(
        &mut self,
        mut look: impl FnMut(&mut V) -> bool,
        is_empty: impl Fn(&V) -> bool,
        mut taken: impl FnMut(V),
    ) {
        let mut used = self.used;
        while used != 0 {
            let class = used.trailing_zeros() as usize;
            used &= used - 1;
            let values = &mut self.classes[class];
            let unused = values.values_mut().filter_map(|value| look(value).then_some(())).count();
            if unused > values.len() / 2 {
                values.extract_if(.., |_, value| is_empty(value)).for_each(|(_, value)| taken(value));
            }
            if values.is_empty() {
                self.used &= !(1 << class);
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.used == 0
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.classes.iter().map(BTreeMap::len).sum()
    }
}
