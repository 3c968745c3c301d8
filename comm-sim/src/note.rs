//! What members tell each other about an allocation: where their window is, or why they have none.

use comm_context::comm::{CommError, Phase};
use rendezvous::MESSAGE_BYTES;
use worker_errors::{clip, escape};

/// One member's part of an allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// A window of `size` bytes at `offset` of the group's memory. `asked` is what the caller wanted.
    Window { offset: u64, size: u64, asked: u64 },
    /// It could not.
    Failed { text: String },
}

impl Part {
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Window { offset, size, asked } => {
                let mut bytes = vec![1];
                bytes.extend([*offset, *size, *asked].map(u64::to_le_bytes).concat());
                bytes
            }
            Self::Failed { text } => {
                let mut bytes = vec![2];
                bytes.extend(clip(text, MESSAGE_BYTES - 1).as_bytes());
                bytes
            }
        }
    }

    /// Total: a note that makes no sense is a failure of the peer that wrote it.
    pub(crate) fn decode(bytes: &[u8]) -> Self {
        match bytes {
            [1, rest @ ..] if rest.len() == 24 => {
                let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| rest[at + byte]));
                Self::Window { offset: number(0), size: number(8), asked: number(16) }
            }
            [2, text @ ..] => {
                Self::Failed { text: escape(&String::from_utf8_lossy(text), 4 * MESSAGE_BYTES).into_owned() }
            }
            _ => Self::Failed { text: "it sent a note that makes no sense".to_owned() },
        }
    }
}

/// The windows of all members, if each has one of the same size; else the error that every member reports.
///
/// `own` is this rank's own failure, which it knows better than its note can tell.
pub(crate) fn agree(
    parts: &[Part],
    members: &[u32],
    me: u32,
    own: Option<CommError>,
    phase: Phase,
) -> Result<Vec<u64>, CommError> {
    if let Some(error) = own {
        return Err(error);
    }
    let failed = members.iter().zip(parts).find_map(|(rank, part)| match part {
        Part::Failed { text } => Some((*rank, text.clone())),
        Part::Window { .. } => None,
    });
    if let Some((rank, message)) = failed {
        return Err(CommError::PeerFailed { rank, phase, message });
    }
    let asked = |part: &Part| match part {
        Part::Window { asked, .. } => *asked,
        Part::Failed { .. } => 0,
    };
    let mine = members.iter().zip(parts).find(|(rank, _)| **rank == me).map_or(0, |(_, part)| asked(part));
    if let Some((rank, part)) = members.iter().zip(parts).find(|(_, part)| asked(part) != mine) {
        return Err(CommError::Mismatch {
            what: "the size of the window",
            rank: *rank,
            mine: format!("{mine} bytes"),
            theirs: format!("{} bytes", asked(part)),
        });
    }
    Ok(parts
        .iter()
        .map(|part| match part {
            Part::Window { offset, .. } => *offset,
            Part::Failed { .. } => 0,
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_survive_the_note_and_nonsense_is_a_failure() {
        let window = Part::Window { offset: 1 << 40, size: 8192, asked: 5000 };
        assert_eq!(Part::decode(&window.encode()), window);
        let failed = Part::Failed { text: "no memory".to_owned() };
        assert_eq!(Part::decode(&failed.encode()), failed);
        for nonsense in [&[][..], &[0], &[1, 2, 3], &[9; 25]] {
            assert!(matches!(Part::decode(nonsense), Part::Failed { .. }));
        }
        let long = Part::Failed { text: "é".repeat(500) }.encode();
        assert!(long.len() <= MESSAGE_BYTES);
        assert!(matches!(Part::decode(&long), Part::Failed { text } if text.contains("cut")));
    }

    #[test]
    fn f28_one_failure_or_disagreement_is_everybodys() {
        let window = |offset, asked| Part::Window { offset, size: 4096, asked };
        let phase = Phase::AllocDomain;
        assert_eq!(agree(&[window(1, 8), window(2, 8)], &[3, 5], 5, None, phase).unwrap(), [1, 2]);
        let failed = Part::Failed { text: "no".to_owned() };
        let told = agree(&[failed, window(2, 8)], &[3, 5], 5, None, phase);
        assert!(matches!(told, Err(CommError::PeerFailed { rank: 3, .. })));
        let told = agree(&[window(1, 9), window(2, 8)], &[3, 5], 5, None, phase);
        assert!(matches!(told, Err(CommError::Mismatch { rank: 3, .. })));
    }
}
