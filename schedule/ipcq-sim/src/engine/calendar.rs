//! A calendar queue: buckets of equal width in time, and a heap for late events of the current bucket.
//!
//! Events are popped in the order (time, rank, number). A bucket is sorted once, when its turn comes, so a
//! burst of events at one time costs n log n at worst, and little more than n when they were pushed in order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A token that is about to take a hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Event {
    /// When its head is ready for the link.
    pub(super) time: u64,
    /// When its tail has reached this node.
    pub(super) tail: u64,
    /// The sender.
    pub(super) rank: u32,
    /// The number of the token among all of the sender.
    pub(super) number: u32,
    pub(super) channel: u32,
    pub(super) place: Place,
}

/// The step of a path that a token takes, and its size class in the lowest `bits`, 32 bits together: an event is half a
/// cache line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place(u32);

impl Place {
    pub(super) fn new(step: u32, class: u32, bits: u32) -> Place {
        Place(step << bits | class)
    }

    pub(super) fn next(self, bits: u32) -> Place {
        Place(self.0 + (1 << bits))
    }

    #[inline]
    pub(super) fn step(self, bits: u32) -> usize {
        (self.0 >> bits) as usize
    }

    #[inline]
    pub(super) fn class(self, bits: u32) -> usize {
        (self.0 & ((1 << bits) - 1)) as usize
    }
}

impl Event {
    #[inline]
    fn key(&self) -> u128 {
        // One number, so that comparing takes no branch.
        u128::from(self.time) << 64 | u128::from(self.rank) << 32 | u128::from(self.number)
    }
}

impl Ord for Event {
    #[inline]
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

impl PartialOrd for Event {
    #[inline]
    fn lt(&self, other: &Self) -> bool {
        self.key() < other.key()
    }

    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

const BUCKETS: usize = 4096;
const WORDS: usize = BUCKETS / 64;

pub(super) struct Calendar {
    /// A bucket is 2^shift picoseconds wide.
    shift: u32,
    buckets: Vec<Vec<Event>>,
    occupied: [u64; WORDS],
    /// Number of the bucket that is being emptied.
    current: u64,
    /// Its events, in order, from `taken` on.
    today: Vec<Event>,
    taken: usize,
    /// Emptied lists.
    spare: Vec<Vec<Event>>,
    /// Events that were pushed for today after it began.
    late: BinaryHeap<Reverse<Event>>,
    /// Events beyond the last bucket, and the earliest of their times.
    far: Vec<Event>,
    far_from: u64,
}

impl Calendar {
    /// `step` is the shortest time between an event and the next one that it causes: buckets are at most that
    /// wide.
    pub(super) fn new(step: u32) -> Self {
        Calendar {
            shift: step.max(1).ilog2(),
            buckets: vec![Vec::new(); BUCKETS],
            occupied: [0; WORDS],
            current: 0,
            today: Vec::new(),
            taken: 0,
            spare: Vec::new(),
            late: BinaryHeap::new(),
            far: Vec::new(),
            far_from: u64::MAX,
        }
    }

    #[inline]
    pub(super) fn push(&mut self, event: Event) {
        let bucket = event.time >> self.shift;
        if bucket <= self.current {
            self.late.push(Reverse(event));
        } else if bucket - self.current < BUCKETS as u64 {
            let at = bucket as usize % BUCKETS;
            let events = &mut self.buckets[at];
            if events.is_empty() {
                self.occupied[at / 64] |= 1 << (at % 64);
                // The list that was emptied last is still in the cache.
                if let Some(spare) = self.spare.pop() {
                    *events = spare;
                }
            }
            events.push(event);
        } else {
            self.far_from = self.far_from.min(event.time);
            self.far.push(event);
        }
    }

    #[inline]
    pub(super) fn pop(&mut self) -> Option<Event> {
        loop {
            let next = self.today.get(self.taken);
            if let Some(Reverse(late)) = self.late.peek()
                && next.is_none_or(|event| late < event)
            {
                return self.late.pop().map(|Reverse(event)| event);
            }
            if let Some(&event) = next {
                self.taken += 1;
                return Some(event);
            }
            if !self.turn() {
                return None;
            }
        }
    }

    /// Up to `count` of the next events, as far as they are sorted already.
    pub(super) fn soon(&self, count: usize) -> &[Event] {
        &self.today[self.taken..self.today.len().min(self.taken + count)]
    }

    /// Advances to the next bucket with events.
    fn turn(&mut self) -> bool {
        if self.today.capacity() > 0 {
            self.today.clear();
            self.spare.push(std::mem::take(&mut self.today));
        }
        self.taken = 0;
        let next = self.next_occupied();
        if self.far_from != u64::MAX && next.is_none_or(|bucket| self.far_from >> self.shift <= bucket) {
            self.bring_near(next);
            return true;
        }
        let Some(bucket) = next else { return false };
        self.current = bucket;
        let at = bucket as usize % BUCKETS;
        self.occupied[at / 64] &= !(1 << (at % 64));
        self.today = std::mem::take(&mut self.buckets[at]);
        // A stable sort merges the runs of events that were pushed in order.
        self.today.sort();
        true
    }

    fn next_occupied(&self) -> Option<u64> {
        let from = (self.current + 1) as usize % BUCKETS;
        let ahead = |at: usize| self.current + 1 + ((at + BUCKETS - from) % BUCKETS) as u64;
        let first = self.occupied[from / 64] >> (from % 64) << (from % 64);
        if first != 0 {
            return Some(ahead(from / 64 * 64 + first.trailing_zeros() as usize));
        }
        // The last word checked is the first again, for the buckets before `from`.
        let word = (1..=WORDS).map(|i| (from / 64 + i) % WORDS).find(|&word| self.occupied[word] != 0)?;
        Some(ahead(word * 64 + self.occupied[word].trailing_zeros() as usize))
    }

    /// Moves far events into the buckets, after advancing to just before the first of them.
    fn bring_near(&mut self, next: Option<u64>) {
        let first = self.far_from >> self.shift;
        let target = next.map_or(first, |bucket| bucket.min(first)).max(1) - 1;
        // Every bucket between here and there is empty.
        self.current = self.current.max(target);
        self.far_from = u64::MAX;
        for event in std::mem::take(&mut self.far) {
            self.push(event);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn event(time: u64, rank: u32, number: u32) -> Event {
        Event { time, tail: 0, rank, number, channel: 0, place: Place::new(0, 0, 1) }
    }

    /// Times within a bucket or two as often as times far apart.
    fn times(most: u64) -> impl Strategy<Value = u64> {
        prop_oneof![0u64..5000, 0..most]
    }

    proptest! {
        /// IQ-4: events are popped in the total order for any pushes, as from a heap.
        #[test]
        fn iq_4_order_is_that_of_a_heap(
            step in 0u32..5000,
            first in prop::collection::vec((times(50_000_000), 0u32..5, 0u32..5), 1..60),
            delays in prop::collection::vec(times(20_000_000), 0..200),
        ) {
            let (mut calendar, mut heap) = (Calendar::new(step), BinaryHeap::new());
            for (time, rank, number) in first {
                calendar.push(event(time, rank, number));
                heap.push(Reverse(event(time, rank, number)));
            }
            let mut delays = delays.into_iter();
            while let Some(Reverse(want)) = heap.pop() {
                let got = calendar.pop().unwrap();
                prop_assert_eq!(got.key(), want.key());
                if let Some(delay) = delays.next() {
                    calendar.push(event(got.time + delay, got.rank, got.number));
                    heap.push(Reverse(event(got.time + delay, got.rank, got.number)));
                }
            }
            prop_assert!(calendar.pop().is_none());
        }
    }
}
