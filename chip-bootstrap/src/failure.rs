//! A communicator's error as the carrier that crosses processes.

use comm_context::comm::{CommError, Death};
use worker_errors::{ErrorCode, Failure};

/// The same error with its code, phase and, where it knows one, the rank to blame.
pub fn comm_failure(error: &CommError) -> Failure {
    let root = error.root_cause();
    let code = match root {
        CommError::Argument(_)
        | CommError::NoWindow
        | CommError::WindowsExist
        | CommError::UnknownDomain { .. }
        | CommError::DomainExists { .. } => ErrorCode::Invalid,
        CommError::Closed => ErrorCode::Closed,
        CommError::TimedOut { .. } | CommError::Stuck { .. } => ErrorCode::TimedOut,
        CommError::PeerDied { how: Death::Exited { .. }, .. } => ErrorCode::Exited,
        CommError::PeerDied { how: Death::Signalled { .. }, .. } => ErrorCode::Killed,
        CommError::PeerDied { .. } => ErrorCode::PeerDied,
        CommError::PeerLeft { .. } => ErrorCode::PeerLeft,
        CommError::PeerFailed { .. } => ErrorCode::Protocol,
        CommError::Aborted { .. } => ErrorCode::Aborted,
        CommError::OutOfMemory { .. } => ErrorCode::OutOfMemory,
        CommError::Mismatch { .. } => ErrorCode::Mismatch,
        CommError::System { .. } => ErrorCode::System,
        CommError::Vendor { .. } => ErrorCode::Vendor,
        CommError::Broken { .. } | CommError::Backend { .. } => ErrorCode::Internal,
    };
    let failure = Failure::new(code, error.to_string());
    match root {
        CommError::PeerDied { rank, phase, .. }
        | CommError::PeerLeft { rank, phase, .. }
        | CommError::PeerFailed { rank, phase, .. } => failure.on_rank(*rank).in_phase(phase.name()),
        CommError::TimedOut { phase, .. }
        | CommError::Aborted { phase, .. }
        | CommError::Vendor { phase, .. } => failure.in_phase(phase.name()),
        CommError::Stuck { rank, phase, .. } => failure.on_rank(*rank).in_phase(phase.name()),
        _ => failure,
    }
}
