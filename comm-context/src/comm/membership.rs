//! Which rank of how many.

use super::ArgumentError;
use crate::abi::COMM_MAX_RANK_NUM;

/// This rank and the size of its group, checked: `1 <= nranks <= 64` and `rank < nranks`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Membership {
    rank: u32,
    nranks: u32,
}

impl Membership {
    /// Checks the pair.
    pub fn new(rank: u32, nranks: u32) -> Result<Self, ArgumentError> {
        Self::checked(rank.into(), nranks.into())
    }

    /// Checks the pair as C passes it, where it may be negative.
    pub fn from_c(rank: i32, nranks: i32) -> Result<Self, ArgumentError> {
        Self::checked(rank.into(), nranks.into())
    }

    /// This rank.
    pub const fn rank(self) -> u32 {
        self.rank
    }

    /// The size of the group.
    pub const fn nranks(self) -> u32 {
        self.nranks
    }

    fn checked(rank: i64, nranks: i64) -> Result<Self, ArgumentError> {
        if !(1..=COMM_MAX_RANK_NUM as i64).contains(&nranks) {
            return Err(ArgumentError::GroupSize { nranks });
        }
        if !(0..nranks).contains(&rank) {
            return Err(ArgumentError::Rank { rank, nranks });
        }
        // Both lie in 0..=64 here.
        Ok(Self { rank: rank as u32, nranks: nranks as u32 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_inside_its_group_is_accepted() {
        for nranks in 1..=64 {
            for rank in [0, nranks - 1] {
                let member = Membership::new(rank, nranks).unwrap();
                assert_eq!((member.rank(), member.nranks()), (rank, nranks));
                assert_eq!(Membership::from_c(rank as i32, nranks as i32), Ok(member));
            }
        }
    }

    #[test]
    fn every_other_pair_is_refused_with_what_was_given() {
        assert_eq!(Membership::new(0, 0), Err(ArgumentError::GroupSize { nranks: 0 }));
        assert_eq!(Membership::new(0, 65), Err(ArgumentError::GroupSize { nranks: 65 }));
        assert_eq!(Membership::new(2, 2), Err(ArgumentError::Rank { rank: 2, nranks: 2 }));
        assert_eq!(Membership::from_c(-1, 2), Err(ArgumentError::Rank { rank: -1, nranks: 2 }));
        assert_eq!(
            Membership::from_c(0, i32::MIN),
            Err(ArgumentError::GroupSize { nranks: i32::MIN.into() })
        );
    }
}
