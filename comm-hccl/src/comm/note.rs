//! What members tell each other about a step: done, not possible on this machine, or failed.

use crate::window::WindowWay;
use comm_context::comm::{CommError, Phase};
use rendezvous::MESSAGE_BYTES;
use worker_errors::{clip, escape};

/// One member's word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Note {
    /// It did its part; what the others need of it.
    Done(Vec<u8>),
    /// Its machine or library does not have this way.
    Refused(WindowWay, String),
    /// It could not.
    Failed(String),
}

impl Note {
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Done(bytes) => [&[1], &bytes[..]].concat(),
            Self::Refused(way, text) => {
                [&[2, way.position() as u8], clip(text, MESSAGE_BYTES - 2).as_bytes()].concat()
            }
            Self::Failed(text) => [&[3], clip(text, MESSAGE_BYTES - 1).as_bytes()].concat(),
        }
    }

    /// Total: a note that makes no sense is a failure of the peer that wrote it.
    pub(crate) fn decode(bytes: &[u8]) -> Self {
        let text = |bytes: &[u8]| escape(&String::from_utf8_lossy(bytes), 4 * MESSAGE_BYTES).into_owned();
        match bytes {
            [1, payload @ ..] => Self::Done(payload.to_vec()),
            [2, way, reason @ ..] if usize::from(*way) < WindowWay::ALL.len() => {
                Self::Refused(WindowWay::ALL[usize::from(*way)], text(reason))
            }
            [3, reason @ ..] => Self::Failed(text(reason)),
            _ => Self::Failed("it sent a note that makes no sense".to_owned()),
        }
    }
}

/// What all notes together mean, the same on every member.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// Everybody did it.
    Done(Vec<Vec<u8>>),
    /// Somebody's machine cannot; another way may work.
    Refused {
        /// What the others need of those who did it; empty for those who refused.
        payloads: Vec<Vec<u8>>,
        first: Refusal,
        /// The first way after all that were refused, in the order of the ways.
        next: usize,
    },
    /// Somebody failed.
    Failed(CommError),
}

/// Why a way was not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) rank: u32,
    pub(crate) reason: String,
}

/// Reads all members' notes. `own` is this rank's own failure, which it knows better than its note can tell.
pub(crate) fn settle(notes: &[Vec<u8>], members: &[u32], own: Option<CommError>, phase: Phase) -> Verdict {
    let notes: Vec<(u32, Note)> =
        members.iter().zip(notes).map(|(rank, note)| (*rank, Note::decode(note))).collect();
    let failed = notes.iter().find_map(|(rank, note)| match note {
        Note::Failed(message) => Some(CommError::PeerFailed { rank: *rank, phase, message: message.clone() }),
        _ => None,
    });
    if let Some(failed) = failed {
        return Verdict::Failed(own.unwrap_or(failed));
    }
    let refusals = notes.iter().filter_map(|(rank, note)| match note {
        Note::Refused(way, reason) => {
            Some((way.position() + 1, Refusal { rank: *rank, reason: reason.clone() }))
        }
        _ => None,
    });
    let (mut next, mut first) = (0, None);
    for (after, refusal) in refusals {
        next = next.max(after);
        first.get_or_insert(refusal);
    }
    let payloads = notes
        .into_iter()
        .map(|(_, note)| match note {
            Note::Done(payload) => payload,
            Note::Refused(..) | Note::Failed(_) => Vec::new(),
        })
        .collect();
    match first {
        Some(first) => Verdict::Refused { payloads, first, next },
        None => Verdict::Done(payloads),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_survive_the_wire_and_nonsense_is_a_failure() {
        for note in [
            Note::Done(vec![7; 168]),
            Note::Refused(WindowWay::Shareable, "no".into()),
            Note::Failed("oom".into()),
        ] {
            assert_eq!(Note::decode(&note.encode()), note);
        }
        for nonsense in [&[][..], &[0], &[2], &[2, 3], &[9, 9]] {
            assert!(matches!(Note::decode(nonsense), Note::Failed(_)));
        }
        assert!(Note::Failed("é".repeat(500)).encode().len() <= MESSAGE_BYTES);
    }

    // CH-4
    #[test]
    fn f28_a_failure_counts_before_a_refusal_and_both_before_success() {
        let done = Note::Done(vec![1]).encode();
        let refused = Note::Refused(WindowWay::Shareable, "207000".into()).encode();
        let failed = Note::Failed("no memory".into()).encode();
        let phase = Phase::AllocDomain;
        let all = |notes: [&Vec<u8>; 3]| settle(&notes.map(Clone::clone), &[2, 5, 9], None, phase);
        assert!(matches!(all([&done, &done, &done]), Verdict::Done(payloads) if payloads == [[1], [1], [1]]));
        let verdict = all([&done, &refused, &done]);
        assert!(
            matches!(verdict, Verdict::Refused { first: Refusal { rank: 5, .. }, next: 2, .. }),
            "{verdict:?}"
        );
        assert!(matches!(
            all([&refused, &done, &failed]),
            Verdict::Failed(CommError::PeerFailed { rank: 9, .. })
        ));
        let own = settle(std::slice::from_ref(&failed), &[4], Some(CommError::Closed), phase);
        assert!(matches!(own, Verdict::Failed(CommError::Closed)));
    }
}
