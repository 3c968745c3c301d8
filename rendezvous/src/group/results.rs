//! Exchange of results: a step of several ranks succeeds on all of them or fails on all of them.

use super::{Group, Step, Tag};
use crate::memory::layout::MESSAGE_BYTES;
use comm_context::comm::{CommError, Phase};
use worker_errors::{clip, escape};

const DONE: u8 = 1;
const FAILED: u8 = 2;

/// The longest payload that [`Group::exchange_results`] carries.
pub const RESULT_BYTES: usize = MESSAGE_BYTES - 1;

impl Group {
    /// Sends this rank's result of a step to every member and returns the payloads of all, in the order of
    /// `members`.
    ///
    /// When a member failed, every member gets an error: its own, if it failed itself, else
    /// [`CommError::PeerFailed`] with the first member that did. Otherwise like [`exchange`](Self::exchange).
    ///
    /// ```
    /// # use comm_context::comm::{CommError, Membership, Phase, Timeout};
    /// use rendezvous::{Group, Tag};
    /// # let path = std::env::temp_dir().join(format!("results-{}", std::process::id()));
    /// # let group = Group::rendezvous(&path, Membership::new(0, 1)?, 1 << 20, Timeout::DEFAULT)?;
    /// let step = group.step(Phase::Barrier, Timeout::DEFAULT)?;
    /// let made: Result<Vec<u8>, CommError> = Ok(b"handle".to_vec()); // what this rank has for the others
    /// let handles = group.exchange_results(&step, Tag { kind: 1, id: 1 }, &[0], made)?;
    /// assert_eq!(handles, [b"handle"]);
    /// # drop(step);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    /// When the payload has more than [`RESULT_BYTES`].
    pub fn exchange_results(
        &self,
        step: &Step<'_>,
        tag: Tag,
        members: &[u32],
        own: Result<Vec<u8>, CommError>,
    ) -> Result<Vec<Vec<u8>>, CommError> {
        let messages = self.exchange(step, tag, members, &encode(&own))?;
        own?;
        members.iter().zip(&messages).map(|(rank, message)| decode(message, *rank, step.phase())).collect()
    }
}

fn encode(own: &Result<Vec<u8>, CommError>) -> Vec<u8> {
    match own {
        Ok(payload) => [&[DONE], &payload[..]].concat(),
        Err(error) => [&[FAILED], clip(&error.to_string(), RESULT_BYTES).as_bytes()].concat(),
    }
}

fn decode(message: &[u8], rank: u32, phase: Phase) -> Result<Vec<u8>, CommError> {
    let text = match message {
        [DONE, payload @ ..] => return Ok(payload.to_vec()),
        [FAILED, text @ ..] => escape(&String::from_utf8_lossy(text), 4 * MESSAGE_BYTES).into_owned(),
        _ => "it sent a malformed message".to_owned(),
    };
    Err(CommError::PeerFailed { rank, phase, message: text })
}

/// The result of another rank: its bytes, or an error that names it.
#[cfg(fuzzing)]
pub(super) fn judge(message: &[u8]) {
    match decode(message, 3, Phase::Init) {
        Ok(payload) => assert_eq!(encode(&Ok(payload)), message),
        Err(error) => {
            let text = error.to_string();
            assert!(text.contains("rank 3") && !text.chars().any(char::is_control), "{text:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use comm_context::comm::{Membership, Timeout};

    #[test]
    fn results_survive_the_message_and_a_malformed_one_is_a_failure() {
        let read = |own: Result<Vec<u8>, CommError>| decode(&encode(&own), 3, Phase::Init);
        assert_eq!(read(Ok(vec![7; RESULT_BYTES])).unwrap(), vec![7; RESULT_BYTES]);
        let failed = read(Err(CommError::Closed)).unwrap_err().to_string();
        assert!(failed.contains("rank 3") && failed.contains(&CommError::Closed.to_string()), "{failed}");
        for malformed in [&[][..], &[0], &[9, 9]] {
            let error = decode(malformed, 3, Phase::Init).unwrap_err();
            assert!(matches!(error, CommError::PeerFailed { rank: 3, .. }), "{error}");
        }
        let long = CommError::Aborted { phase: Phase::Init, reason: "é".repeat(500) };
        assert!(encode(&Err(long)).len() <= MESSAGE_BYTES);
    }

    #[test]
    fn f28_a_rank_that_failed_reports_its_own_error() {
        let path = std::env::temp_dir().join(format!("results-{}", std::process::id()));
        let group =
            Group::rendezvous(&path, Membership::new(0, 1).unwrap(), 1 << 20, Timeout::DEFAULT).unwrap();
        let step = group.step(Phase::AllocWindows, Timeout::DEFAULT).unwrap();
        let exchange = |own| group.exchange_results(&step, Tag { kind: 1, id: 0 }, &[0], own);
        assert_eq!(exchange(Ok(vec![5])).unwrap(), [[5]]);
        assert!(matches!(exchange(Err(CommError::NoWindow)), Err(CommError::NoWindow)));
    }
}
