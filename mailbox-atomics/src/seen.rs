//! Parties that could have a core each and share one (F71).
//!
//! The scheduler may start two parties on one core, or wake one where the other runs. It then leaves them there: each
//! runs for a microsecond and yields, so both look as if they had just used their caches. So every party that
//! has to wait says where it runs, and the higher of two that share a core moves to one where none of them is. It is
//! moved, not bound: whatever set of cores it was allowed, it is allowed afterwards, and never leaves that set.

use crate::cores::{AllowedCores, current_core, move_this_thread_to};
use crate::word::WordU64;
use core::sync::atomic::{AtomicU64, Ordering};

/// Where a party was last seen: a party that waits says on which core, and when. One word; zero if it never was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenOn {
    core: u16,
    /// In units of some milliseconds, cut to 32 bits.
    tick: u32,
}

/// A bit that is always set, so that zero is a party that was never seen.
const PRESENT: u64 = 1 << 63;

/// About four milliseconds.
const TICK_SHIFT: u32 = 22;

impl SeenOn {
    fn new(core: usize, now_ns: u64) -> Option<Self> {
        Some(Self { core: u16::try_from(core).ok()?, tick: (now_ns >> TICK_SHIFT) as u32 })
    }

    fn encode(self) -> u64 {
        PRESENT | u64::from(self.tick) << 16 | u64::from(self.core)
    }

    /// Any word decodes to something: a party that lies about its core makes others slower.
    fn decode(word: u64) -> Option<Self> {
        (word & PRESENT != 0).then_some(Self { core: word as u16, tick: (word >> 16) as u32 })
    }

    /// Whether the two were seen at about the same time.
    fn is_near(self, other: Self) -> bool {
        self.tick.wrapping_sub(other.tick).wrapping_add(1) <= 2
    }

    /// Says in `word` where the calling thread runs at `now_ns`.
    pub fn publish(word: &WordU64, now_ns: u64) -> Option<Self> {
        let seen = Self::new(current_core()?, now_ns)?;
        // Stored only when it changes, so that the others keep their copy of the line.
        if word.load() != seen.encode() {
            word.store(seen.encode());
        }
        Some(seen)
    }
}

/// Says where the calling thread runs, which is party `me` of `count`, and moves it if a lower one that waits too runs
/// there. `seen_on` has the word of each party, `moved` is this party's own: when it last moved.
pub fn keep_apart<'a>(
    me: u32,
    count: u32,
    seen_on: impl Fn(u32) -> Option<&'a WordU64>,
    moved: &AtomicU64,
    now_ns: u64,
) {
    let own_word = seen_on(me);
    let Some(mine) = own_word.and_then(|word| SeenOn::publish(word, now_ns)) else { return };
    let near = |party| SeenOn::decode(seen_on(party)?.load()).filter(|seen| seen.is_near(mine));
    // What a party that computes said long ago says nothing; only those that wait now are counted.
    if !(0..me).filter_map(near).any(|lower| lower.core == mine.core) {
        return;
    }
    // Relaxed, here and below: a hint that only this process uses.
    if SeenOn::decode(moved.load(Ordering::Relaxed)).is_some_and(|moved| moved.is_near(mine)) {
        return;
    }
    let others = || (0..count).filter(|party| *party != me).filter_map(near);
    let taken = |core: usize| others().any(|seen| usize::from(seen.core) == core);
    let own = usize::from(mine.core);
    let free = AllowedCores::of_this_process().iter().find(|core| *core != own && !taken(*core));
    if let Some(free) = free
        && move_this_thread_to(free).is_ok()
    {
        // Relaxed: as above.
        moved.store(mine.encode(), Ordering::Relaxed);
        own_word.and_then(|word| SeenOn::publish(word, now_ns));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_word_says_what_was_put_into_it() {
        let seen = SeenOn::new(1023, u64::MAX).unwrap();
        assert_eq!(SeenOn::decode(seen.encode()), Some(seen));
        assert_eq!((SeenOn::decode(0), SeenOn::new(1 << 16, 0)), (None, None));
        assert!(SeenOn::decode(u64::MAX).is_some());
    }

    #[test]
    fn near_is_a_few_milliseconds() {
        let at = |tick: u64| SeenOn::new(0, tick << TICK_SHIFT).unwrap();
        assert!(at(10).is_near(at(10)) && at(10).is_near(at(9)) && at(9).is_near(at(10)));
        assert!(!at(10).is_near(at(7)) && !at(7).is_near(at(10)));
        assert!(at(1 << 32).is_near(at((1 << 32) - 1)));
    }
}
