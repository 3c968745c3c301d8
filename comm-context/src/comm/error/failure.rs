//! A communicator's error as the carrier that crosses processes.

use super::{CommError, Death};
use worker_errors::{ErrorCode, Failure};

/// The error with its phase and, where it knows one, the rank to blame. A death that is known in detail has
/// the code of how the process ended.
impl From<&CommError> for Failure {
    fn from(error: &CommError) -> Self {
        let root = error.root_cause();
        let code = match root {
            CommError::PeerDied { how: Death::Exited { .. }, .. } => ErrorCode::Exited,
            CommError::PeerDied { how: Death::Signalled { .. }, .. } => ErrorCode::Killed,
            _ => root.code(),
        };
        let failure = Self::from_error(code, error);
        match root {
            CommError::PeerDied { rank, phase, .. }
            | CommError::PeerLeft { rank, phase, .. }
            | CommError::PeerFailed { rank, phase, .. }
            | CommError::Stuck { rank, phase, .. } => failure.on_rank(*rank).in_phase(phase.name()),
            CommError::TimedOut { phase, .. }
            | CommError::Aborted { phase, .. }
            | CommError::Vendor { phase, .. } => failure.in_phase(phase.name()),
            _ => failure,
        }
    }
}

impl From<CommError> for Failure {
    fn from(error: CommError) -> Self {
        Self::from(&error)
    }
}
