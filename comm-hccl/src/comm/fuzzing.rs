//! What the members of an allocation send to each other: a message of any bytes is refused with its sender, or short and printable.

use super::message::Outcome;
use comm_context::comm::Phase;
use rendezvous::RESULT_BYTES;

pub(crate) fn message(bytes: &[u8]) {
    match Outcome::of(&[bytes.to_vec()], &[5], Phase::AllocDomain) {
        Err(error) => assert!(error.to_string().contains("rank 5"), "{error}"),
        Ok(outcome) => {
            assert_eq!(outcome.refusal.is_some(), outcome.next > 0);
            if let Some(refusal) = outcome.refusal {
                let text = refusal.to_string();
                assert!(
                    refusal.reason.len() <= 4 * RESULT_BYTES && !text.chars().any(char::is_control),
                    "{text:?}"
                );
            }
            for payload in &outcome.payloads {
                super::windows::judge(payload);
            }
        }
    }
}
