//! A rank's death in one word: which rank, and how its process ended.

use deadline::{Death, HowDied};
use std::num::NonZeroU32;

const UNKNOWN: u32 = 0;
const EXITED: u32 = 1;
const SIGNALLED: u32 = 2;

/// 8 bits of rank + 1, 8 bits of kind, 16 bits of exit code or signal.
pub(crate) fn encode(rank: u32, how: HowDied) -> NonZeroU32 {
    let (kind, number) = match how {
        HowDied::Unknown => (UNKNOWN, 0),
        HowDied::Exited(code) => (EXITED, code),
        HowDied::Signalled(signal) => (SIGNALLED, signal),
    };
    let word = ((rank & 0x7f) + 1) << 24 | kind << 16 | (number as u32 & 0xffff);
    NonZeroU32::MIN.saturating_add(word - 1)
}

/// The death that `word` encodes; `None` when a group of `nranks` has no such rank.
pub(crate) fn decode(word: NonZeroU32, nranks: u32) -> Option<Death> {
    let word = word.get();
    let peer = (word >> 24).checked_sub(1).filter(|rank| *rank < nranks)?;
    let number = (word & 0xffff) as i32;
    let how = match (word >> 16) & 0xff {
        EXITED => HowDied::Exited(number),
        SIGNALLED => HowDied::Signalled(number),
        _ => HowDied::Unknown,
    };
    Some(Death { peer, pid: 0, how })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_death_survives_the_word() {
        for rank in [0, 1, 63] {
            for how in [HowDied::Unknown, HowDied::Exited(0), HowDied::Exited(101), HowDied::Signalled(9)] {
                assert_eq!(decode(encode(rank, how), 64), Some(Death { peer: rank, pid: 0, how }));
            }
        }
        assert_eq!(decode(NonZeroU32::MAX, 64), None);
        assert_eq!(decode(NonZeroU32::MIN, 64), None);
        assert_eq!(decode(encode(5, HowDied::Unknown), 4), None);
    }
}
