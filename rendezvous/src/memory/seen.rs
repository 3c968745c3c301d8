//! Where a rank was last seen, as one word.

/// A rank that waits says on which core, and when; see [`SeenOn::encode`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SeenOn {
    pub(crate) core: u16,
    /// In units of some milliseconds, cut to 32 bits.
    pub(crate) tick: u32,
}

/// A bit that is always set, so that zero is a rank that was never seen.
const PRESENT: u64 = 1 << 63;

/// About four milliseconds.
const TICK_SHIFT: u32 = 22;

impl SeenOn {
    pub(crate) fn new(core: usize, now_ns: u64) -> Option<Self> {
        Some(Self { core: u16::try_from(core).ok()?, tick: (now_ns >> TICK_SHIFT) as u32 })
    }

    pub(crate) fn encode(self) -> u64 {
        PRESENT | u64::from(self.tick) << 16 | u64::from(self.core)
    }

    /// Any word decodes to something: a rank that lies about its core gets a slower barrier.
    pub(crate) fn decode(word: u64) -> Option<Self> {
        (word & PRESENT != 0).then_some(Self { core: word as u16, tick: (word >> 16) as u32 })
    }

    /// Whether the two were seen at about the same time.
    pub(crate) fn is_near(self, other: Self) -> bool {
        self.tick.wrapping_sub(other.tick).wrapping_add(1) <= 2
    }
}

#[cfg(test)]
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
