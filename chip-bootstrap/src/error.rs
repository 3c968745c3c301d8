//! What can go wrong with a chip.

use crate::failure::comm_failure;
use crate::platform::PlatformNotBuilt;
use comm_context::comm::CommError;
use worker_errors::{ErrorCode, Failure};

/// A call on a chip or its group failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChipError {
    /// The platform is not part of this build.
    #[error(transparent)]
    Platform(#[from] PlatformNotBuilt),
    /// The communicator failed.
    #[error(transparent)]
    Comm(#[from] CommError),
}

impl From<ChipError> for Failure {
    fn from(error: ChipError) -> Self {
        match error {
            ChipError::Comm(error) => comm_failure(&error),
            ChipError::Platform(_) => Self::new(ErrorCode::Invalid, error.to_string()),
        }
    }
}
