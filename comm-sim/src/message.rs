//! What the members of an allocation tell each other: where each one's window is.

use comm_context::comm::{CommError, Phase};
use worker_errors::cursor::{Reader, Writer};

/// One member's window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placement {
    /// Where it starts in the group's memory.
    pub(crate) offset: u64,
    /// The size that the caller asked for.
    pub(crate) requested: u64,
}

impl Placement {
    pub(crate) fn encode(self) -> Vec<u8> {
        let mut to = Writer::default();
        to.u64(self.offset).u64(self.requested);
        to.into_bytes()
    }

    /// `None` for bytes that no rank of this version sends.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut from = Reader::new(bytes);
        let placement = Self { offset: from.u64()?, requested: from.u64()? };
        from.end(placement)
    }
}

/// Where the windows of all members start, if they agree on the size.
pub(crate) fn agree(
    messages: &[Vec<u8>],
    members: &[u32],
    requested: u64,
    phase: Phase,
) -> Result<Vec<u64>, CommError> {
    let offset = |(rank, message): (&u32, &Vec<u8>)| match Placement::decode(message) {
        None => {
            let message = "it sent a malformed message (all ranks must run the same build)".to_owned();
            Err(CommError::PeerFailed { rank: *rank, phase, message })
        }
        Some(theirs) if theirs.requested != requested => Err(CommError::Mismatch {
            what: "the size of the window",
            rank: *rank,
            mine: format!("{requested} bytes"),
            theirs: format!("{} bytes", theirs.requested),
        }),
        Some(theirs) => Ok(theirs.offset),
    };
    members.iter().zip(messages).map(offset).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PHASE: Phase = Phase::AllocDomain;

    #[test]
    fn f29_a_malformed_message_names_its_sender() {
        let good = Placement { offset: 1 << 40, requested: 5000 };
        assert_eq!(Placement::decode(&good.encode()), Some(good));
        for malformed in [&[][..], &[1], &[0; 15], &[0; 17]] {
            assert_eq!(Placement::decode(malformed), None);
            let error = agree(&[good.encode(), malformed.to_vec()], &[3, 5], 5000, PHASE).unwrap_err();
            assert_eq!(
                error.to_string(),
                "rank 5 failed in alloc_domain: it sent a malformed message (all ranks must run the same build); the operation \
                 is undone on every member, so fix that and call again"
            );
        }
    }

    #[test]
    fn f28_a_disagreement_on_the_size_names_the_rank() {
        let message = |offset, requested| Placement { offset, requested }.encode();
        assert_eq!(agree(&[message(1, 8), message(2, 8)], &[3, 5], 8, PHASE).unwrap(), [1, 2]);
        let error = agree(&[message(1, 9), message(2, 8)], &[3, 5], 8, PHASE).unwrap_err();
        assert!(matches!(error, CommError::Mismatch { rank: 3, .. }), "{error}");
    }
}
