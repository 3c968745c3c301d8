//! What ties a mailbox to a layout and a run.

use crate::layout::LAYOUT_HASH;
use core::num::NonZeroU64;

/// A number that tells the mailboxes of one run from those of any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nonce(NonZeroU64);

impl Nonce {
    /// A number that no other run has had: the standard library's random keys, the time and the process. The time and the
    /// process are there because forked processes inherit the keys.
    pub fn random() -> Self {
        use std::hash::{BuildHasher, Hasher, RandomState};
        let mut hasher = RandomState::new().build_hasher();
        hasher.write_u64(deadline::monotonic_ns());
        hasher.write_u32(std::process::id());
        Self(NonZeroU64::new(hasher.finish()).unwrap_or(NonZeroU64::MIN))
    }

    /// The nonce of a run that another process told us.
    pub fn new(number: NonZeroU64) -> Self {
        Self(number)
    }

    /// The number, to hand on.
    pub fn get(self) -> u64 {
        self.0.get()
    }
}

/// Why a mailbox must not be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StampError {
    /// It is laid out in another way, or is none.
    #[error(
        "the mailbox has the layout hash {found:#018x}, this program knows {LAYOUT_HASH:#018x}; \
         build parent and chip process from one source"
    )]
    OtherLayout {
        /// The hash in the mailbox.
        found: u64,
    },
    /// It belongs to another run.
    #[error(
        "the mailbox has the nonce {found:#018x}, this run has {expected:#018x}: it belongs to another run"
    )]
    OtherNonce {
        /// The nonce in the mailbox.
        found: u64,
        /// The nonce of this run.
        expected: u64,
    },
}

/// A mailbox of no or of this layout.
pub(crate) fn check_layout(hash: u64) -> Result<(), StampError> {
    match hash {
        0 | LAYOUT_HASH => Ok(()),
        found => Err(StampError::OtherLayout { found }),
    }
}

/// A mailbox that nobody stamped, or that was stamped for this layout and `expected`.
pub(crate) fn check(hash: u64, found: u64, expected: Nonce) -> Result<(), StampError> {
    check_layout(hash)?;
    if hash == 0 || found == expected.get() {
        Ok(())
    } else {
        Err(StampError::OtherNonce { found, expected: expected.get() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonces_differ() {
        let some: Vec<u64> = (0..100).map(|_| Nonce::random().get()).collect();
        let distinct: std::collections::HashSet<_> = some.iter().collect();
        assert_eq!(distinct.len(), some.len());
    }

    #[test]
    fn bc_6_only_no_stamp_or_the_right_one_is_accepted() {
        let (mine, other) = (Nonce::new(NonZeroU64::MIN), 2);
        assert_eq!(check(0, 0, mine), Ok(()));
        assert_eq!(check(0, other, mine), Ok(()));
        assert_eq!(check(LAYOUT_HASH, mine.get(), mine), Ok(()));
        assert_eq!(check(LAYOUT_HASH, other, mine), Err(StampError::OtherNonce { found: 2, expected: 1 }));
        assert_eq!(check(LAYOUT_HASH ^ 1, 1, mine), Err(StampError::OtherLayout { found: LAYOUT_HASH ^ 1 }));
    }
}
