//! A region made of several objects.

use core::ops::Range;

/// Where the objects of a region are in it: a head at its start, then parts of one size at equal distances.
///
/// Memory is reserved object by object, and processes that reserve in different objects do not wait for each
/// other: the kernel locks an object while it allocates its pages. What is between the objects is addresses
/// that no process can access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    /// Bytes of the head.
    pub head: usize,
    /// Where the first part starts.
    pub first: usize,
    /// Bytes of each part.
    pub part: usize,
    /// From the start of a part to the start of the next.
    pub stride: usize,
    /// How many parts there are.
    pub count: usize,
}

impl Parts {
    /// A region of one object.
    pub(crate) fn one(len: usize) -> Self {
        Self { head: len, first: len, part: 0, stride: 0, count: 0 }
    }

    /// All addresses together. `None` when they overlap or do not fit into an address space.
    pub(crate) fn total(&self) -> Option<usize> {
        if self.count == 0 {
            return Some(self.head);
        }
        let sound = self.head > 0 && self.head <= self.first && self.part > 0 && self.part <= self.stride;
        let total = self.stride.checked_mul(self.count).and_then(|parts| parts.checked_add(self.first));
        total.filter(|_| sound)
    }

    /// How many objects there are.
    pub(crate) fn objects(&self) -> usize {
        1 + self.count
    }

    /// Where object number `index` is.
    pub(crate) fn object(&self, index: usize) -> Range<usize> {
        match index.checked_sub(1) {
            None => 0..self.head,
            Some(part) => {
                let start = self.first + part * self.stride;
                start..start + self.part
            }
        }
    }

    /// The object that `range` is in. `None` when it is not in one.
    #[inline]
    pub(crate) fn of(&self, range: &Range<usize>) -> Option<usize> {
        if range.start <= range.end && range.end <= self.head {
            return Some(0);
        }
        self.part_of(range)
    }

    /// Apart from the head, where most accesses are: it would make each of them longer.
    #[inline(never)]
    fn part_of(&self, range: &Range<usize>) -> Option<usize> {
        let index = 1 + range.start.checked_sub(self.first)?.checked_div(self.stride)?;
        let inside = index <= self.count && range.start <= range.end && range.end <= self.object(index).end;
        inside.then_some(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_in_one_object_or_in_none() {
        let parts = Parts { head: 10, first: 16, part: 8, stride: 12, count: 2 };
        assert_eq!(parts.total(), Some(40));
        assert_eq!((parts.object(0), parts.object(1), parts.object(2)), (0..10, 16..24, 28..36));
        for (range, object) in [
            (0..10, Some(0)),
            (10..10, Some(0)),
            (0..11, None),
            (10..17, None),
            (12..14, None),
            (16..24, Some(1)),
            (24..24, Some(1)),
            (20..25, None),
            (24..26, None),
            (28..36, Some(2)),
            (36..37, None),
            (40..40, None),
            (52..53, None),
        ] {
            assert_eq!(parts.of(&range), object, "{range:?}");
        }
        let one = Parts::one(5);
        assert_eq!(
            (one.of(&(0..5)), one.of(&(0..6)), one.of(&(5..6)), one.total()),
            (Some(0), None, None, Some(5))
        );
    }

    #[test]
    fn parts_that_overlap_or_do_not_fit_are_refused() {
        let parts = Parts { head: 10, first: 16, part: 8, stride: 12, count: 2 };
        for wrong in [
            Parts { head: 17, ..parts },
            Parts { head: 0, ..parts },
            Parts { part: 13, ..parts },
            Parts { part: 0, ..parts },
            Parts { stride: usize::MAX, ..parts },
            Parts { count: usize::MAX, ..parts },
        ] {
            assert_eq!(wrong.total(), None, "{wrong:?}");
        }
    }
}
