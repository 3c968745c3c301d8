//! The stamp that ties a mailbox to a layout and a run.

use crate::layout::LAYOUT_HASH;
use core::num::NonZeroU64;

/// Distinguishes the mailboxes of one run from those of any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nonce(NonZeroU64);

impl Nonce {
    /// A nonce that no other run has.
    pub fn random() -> Self {
        Self(NonZeroU64::new(shared_memory::nonce()).unwrap_or(NonZeroU64::MIN))
    }

    /// The nonce of a run that another process started.
    pub fn new(number: NonZeroU64) -> Self {
        Self(number)
    }

    /// The number, to pass on.
    pub fn get(self) -> u64 {
        self.0.get()
    }
}

/// Why a mailbox must not be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StampError {
    /// It has another layout, or is not a mailbox.
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
        "the mailbox has the nonce {found:#018x}, this run has {expected:#018x}: it belongs to another run; \
         pass the descriptor and the nonce of one set"
    )]
    OtherNonce {
        /// The nonce in the mailbox.
        found: u64,
        /// The nonce of this run.
        expected: u64,
    },
}

/// Accepts a mailbox without a stamp, or with that of this layout.
pub(crate) fn check_layout(hash: u64) -> Result<(), StampError> {
    match hash {
        0 | LAYOUT_HASH => Ok(()),
        found => Err(StampError::OtherLayout { found }),
    }
}

/// Accepts a mailbox without a stamp, or one stamped for this layout and `expected`.
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
    fn bc_6_only_no_stamp_or_the_right_one_is_accepted() {
        let (mine, other) = (Nonce::new(NonZeroU64::MIN), 2);
        assert_eq!(check(0, 0, mine), Ok(()));
        assert_eq!(check(0, other, mine), Ok(()));
        assert_eq!(check(LAYOUT_HASH, mine.get(), mine), Ok(()));
        assert_eq!(check(LAYOUT_HASH, other, mine), Err(StampError::OtherNonce { found: 2, expected: 1 }));
        assert_eq!(check(LAYOUT_HASH ^ 1, 1, mine), Err(StampError::OtherLayout { found: LAYOUT_HASH ^ 1 }));
    }
}
