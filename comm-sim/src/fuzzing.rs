//! What the fuzz target `backend_messages` asserts. It is part of the crate because what it calls is private, and is compiled for
//! fuzzing only.

use crate::message::{Placement, agree};
use comm_context::comm::Phase;

/// A message of an allocation: where a member's window is.
pub fn message(bytes: &[u8]) {
    let Some(placement) = Placement::decode(bytes) else {
        let error =
            agree(&[bytes.to_vec()], &[5], 4096, Phase::AllocDomain).map_err(|error| error.to_string());
        return assert!(error.is_err_and(|text| text.contains("rank 5")));
    };
    assert_eq!(placement.encode(), bytes);
    let agreed = agree(&[bytes.to_vec()], &[5], placement.requested, Phase::AllocDomain);
    assert_eq!(agreed.ok(), Some(vec![placement.offset]));
}
