//! What the members of an allocation tell each other about one attempt: done, or refused by this machine.

use crate::window::ShareMode;
use comm_context::comm::{CommError, Phase};
use rendezvous::RESULT_BYTES;
use std::fmt;
use worker_errors::{clip, escape};

const DONE: u8 = 1;
const REFUSED: u8 = 2;

/// One member's message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// It did its part. The bytes are what the others need for theirs.
    Done(Vec<u8>),
    /// Its machine or library does not support the mode.
    Refused(ShareMode, String),
}

impl Message {
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Done(payload) => [&[DONE], &payload[..]].concat(),
            Self::Refused(mode, reason) => {
                [&[REFUSED, mode.position() as u8], clip(reason, RESULT_BYTES - 2).as_bytes()].concat()
            }
        }
    }

    /// `None` for bytes that no rank of this version sends.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [DONE, payload @ ..] => Some(Self::Done(payload.to_vec())),
            [REFUSED, mode, reason @ ..] => {
                let reason = escape(&String::from_utf8_lossy(reason), 4 * RESULT_BYTES).into_owned();
                Some(Self::Refused(*ShareMode::ALL.get(usize::from(*mode))?, reason))
            }
            _ => None,
        }
    }
}

/// Why a mode was not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The mode.
    pub mode: ShareMode,
    /// The first rank that refused it.
    pub rank: u32,
    /// That rank's error.
    pub reason: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: rank {}: {}", self.mode, self.rank, self.reason)
    }
}

/// The result of an attempt, the same on every member.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// What each member sent; empty for those that refused.
    pub(crate) payloads: Vec<Vec<u8>>,
    /// The first refusal. `None` when every member did its part.
    pub(crate) refusal: Option<Refusal>,
    /// The position of the first mode after all that were refused; 0 without a refusal.
    pub(crate) next: usize,
}

impl Outcome {
    /// Reads the messages of all members.
    pub(crate) fn of(messages: &[Vec<u8>], members: &[u32], phase: Phase) -> Result<Self, CommError> {
        let mut outcome = Self { payloads: Vec::with_capacity(messages.len()), refusal: None, next: 0 };
        for (&rank, bytes) in members.iter().zip(messages) {
            match Message::decode(bytes) {
                Some(Message::Done(payload)) => outcome.payloads.push(payload),
                Some(Message::Refused(mode, reason)) => {
                    outcome.payloads.push(Vec::new());
                    outcome.next = outcome.next.max(mode.position() + 1);
                    outcome.refusal.get_or_insert(Refusal { mode, rank, reason });
                }
                None => {
                    let message = "it sent a malformed message".to_owned();
                    return Err(CommError::PeerFailed { rank, phase, message });
                }
            }
        }
        Ok(outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // F29
    #[test]
    fn f29_messages_survive_the_wire_and_a_malformed_one_names_its_sender() {
        for message in [Message::Done(vec![7; 168]), Message::Refused(ShareMode::Shareable, "no".into())] {
            assert_eq!(Message::decode(&message.encode()), Some(message));
        }
        for malformed in [&[][..], &[0], &[2], &[2, 3], &[9, 9]] {
            assert_eq!(Message::decode(malformed), None);
            let error = Outcome::of(&[malformed.to_vec()], &[5], Phase::AllocDomain).unwrap_err();
            assert!(matches!(error, CommError::PeerFailed { rank: 5, .. }), "{error}");
        }
        let long = Message::Refused(ShareMode::Fabric, "é".repeat(500));
        assert!(long.encode().len() <= RESULT_BYTES);
    }

    // CH-1
    #[test]
    fn the_first_refusal_is_kept_and_the_next_mode_is_after_all_that_were_refused() {
        let done = Message::Done(vec![1]).encode();
        let refused = |mode| Message::Refused(mode, "207000".into()).encode();
        let of = |messages: [Vec<u8>; 3]| Outcome::of(&messages, &[2, 5, 9], Phase::AllocDomain).unwrap();
        let all_done = of([done.clone(), done.clone(), done.clone()]);
        assert!(all_done.refusal.is_none() && all_done.payloads == [[1], [1], [1]]);
        let outcome = of([done, refused(ShareMode::Shareable), refused(ShareMode::Fabric)]);
        let Some(refusal) = outcome.refusal else { panic!("{outcome:?}") };
        assert_eq!((refusal.rank, refusal.mode, outcome.next), (5, ShareMode::Shareable, 2));
        assert_eq!(outcome.payloads, [vec![1], vec![], vec![]]);
    }
}
