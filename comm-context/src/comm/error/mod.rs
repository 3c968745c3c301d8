//! What can go wrong in a communicator. Every text says what failed, where, and what to do next.

mod argument;
mod death;
mod failure;

pub use argument::{ArgumentError, PathProblem};
pub use death::Death;

use core::error::Error;
use core::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::{AllocationId, Phase};
use crate::abi::AbiError;
use worker_errors::ErrorCode;

/// The error of every communicator call, the same for every backend.
///
/// The text of [`Broken`](Self::Broken) and [`Backend`](Self::Backend) includes that of the source, because C
/// callers get the text only.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CommError {
    /// An argument is wrong. Nothing was created and no peer was involved.
    #[error(transparent)]
    Argument(#[from] ArgumentError),

    /// The base window is used before it was allocated.
    #[error("this communicator has no base window yet; call alloc_windows on every rank first")]
    NoWindow,

    /// The base window is allocated a second time.
    #[error("the base window is already allocated; use the one there is, or a domain for a further one")]
    WindowsExist,

    /// A domain is released that this rank does not hold.
    #[error(
        "no domain {id} is allocated on this rank; pass the id of one that was allocated and not yet released"
    )]
    UnknownDomain {
        /// The id that was passed.
        id: AllocationId,
    },

    /// A domain is allocated under an id that this rank already uses.
    #[error(
        "a domain {id} is already allocated on this rank; release it first, or choose another allocation id"
    )]
    DomainExists {
        /// The id that was passed.
        id: AllocationId,
    },

    /// The communicator was destroyed.
    #[error("the communicator is destroyed; make a new one")]
    Closed,

    /// The deadline passed while every missing peer was alive, as far as this rank can tell.
    #[error("{}", TimedOutText(.phase, .waited, .limit, .missing, .table))]
    TimedOut {
        /// What this rank was doing.
        phase: Phase,
        /// How long it waited.
        waited: Duration,
        /// How long it was allowed to.
        limit: Duration,
        /// The ranks that had not arrived.
        missing: Vec<u32>,
        /// Where every rank was when the deadline passed, one line each; empty when that is not known.
        table: String,
    },

    /// A peer's process is gone.
    #[error(
        "rank {rank} (pid {}) {how} in {phase}; look for the cause in its own output, \
         then start the whole group again",
        Known(.pid)
    )]
    PeerDied {
        /// The peer.
        rank: u32,
        /// Its process, if known.
        pid: Option<u32>,
        /// How it ended.
        how: Death,
        /// What the peer was doing, as it last published; where that is not known, what this rank was doing.
        phase: Phase,
    },

    /// A peer left the group in order while this rank still needed it.
    #[error("rank {rank} left the group while this rank was in {phase}: {reason}; {}", LeftAdvice(.rank, .reason))]
    PeerLeft {
        /// The peer.
        rank: u32,
        /// The reason that it gave.
        reason: String,
        /// What this rank was doing.
        phase: Phase,
    },

    /// A peer could not do its part. The operation is undone on every member and the communicator stays
    /// usable.
    #[error(
        "rank {rank} failed in {phase}: {message}; \
         the operation is undone on every member, so fix that and call again"
    )]
    PeerFailed {
        /// The peer.
        rank: u32,
        /// The operation.
        phase: Phase,
        /// The peer's own error.
        message: String,
    },

    /// The run was aborted from outside.
    #[error("aborted in {phase}: {reason}")]
    Aborted {
        /// What this rank was doing.
        phase: Phase,
        /// The reason that was given, and what to look at where this error only follows from another.
        reason: String,
    },

    /// There is not enough memory.
    #[error("not enough memory for {what}: {}; ask for less or free some", NeedHave(.need, .have))]
    OutOfMemory {
        /// What it was for.
        what: String,
        /// How many bytes it takes.
        need: u64,
        /// How many there are, if known.
        have: Option<u64>,
    },

    /// Two ranks disagree on something that must be the same.
    #[error(
        "ranks disagree on {what}: this one has {mine}, rank {rank} has {theirs}; pass the same on every rank"
    )]
    Mismatch {
        /// What it is.
        what: &'static str,
        /// The other rank.
        rank: u32,
        /// This rank's value.
        mine: String,
        /// The other's.
        theirs: String,
    },

    /// The operating system refused a call.
    #[error("{call} failed for {what}: {}; {}", io::Error::from_raw_os_error(*.errno), errno_advice(*.errno))]
    System {
        /// The call.
        call: &'static str,
        /// Its errno.
        errno: i32,
        /// What it was for.
        what: String,
    },

    /// A vendor library refused a call.
    #[error("{function} returned {code} ({name}) in {phase}{}; {advice}", Detail(.detail))]
    Vendor {
        /// The vendor's function.
        function: &'static str,
        /// Its code.
        code: i32,
        /// The code's name.
        name: &'static str,
        /// What to do about it.
        advice: &'static str,
        /// The library's own last message; empty when there is none.
        detail: String,
        /// What this rank was doing.
        phase: Phase,
    },

    /// A call into the vendor's library did not return in time. The thread that made it is lost, and with it
    /// everything that it holds on the device.
    #[error(
        "{function} has not come back in {phase} on rank {rank} after {waited:.1?} of {limit:?}; \
         end this process, and see what the device and the other ranks are doing"
    )]
    Stuck {
        /// The vendor's function.
        function: &'static str,
        /// The rank that called it.
        rank: u32,
        /// What this rank was doing.
        phase: Phase,
        /// How long it waited.
        waited: Duration,
        /// How long it was allowed to.
        limit: Duration,
    },

    /// The communicator failed before. Repeats the first cause, which is never itself `Broken`.
    #[error("this communicator failed before and can only be destroyed; the first cause: {cause}")]
    Broken {
        /// The first cause.
        #[source]
        cause: Arc<CommError>,
    },

    /// A failure of a layer that only this backend has.
    #[error("{what}: {source}")]
    Backend {
        /// What was being done, and what to do next.
        what: String,
        /// The layer's own error.
        source: Arc<dyn Error + Send + Sync>,
    },
}

impl CommError {
    /// The code of the error, which is also what a failed `comm_*` call returns (`comm.h`); that of the first
    /// cause if the communicator was broken before.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Argument(_)
            | Self::NoWindow
            | Self::WindowsExist
            | Self::UnknownDomain { .. }
            | Self::DomainExists { .. } => ErrorCode::Invalid,
            Self::Closed => ErrorCode::Closed,
            Self::TimedOut { .. } | Self::Stuck { .. } => ErrorCode::TimedOut,
            Self::PeerDied { .. } => ErrorCode::PeerDied,
            Self::PeerLeft { .. } => ErrorCode::PeerLeft,
            Self::PeerFailed { .. } => ErrorCode::PeerFailed,
            Self::Aborted { .. } => ErrorCode::Aborted,
            Self::OutOfMemory { .. } => ErrorCode::OutOfMemory,
            Self::Mismatch { .. } => ErrorCode::Mismatch,
            Self::System { .. } => ErrorCode::System,
            Self::Vendor { .. } => ErrorCode::Vendor,
            Self::Broken { cause } => cause.code(),
            Self::Backend { .. } => ErrorCode::Internal,
        }
    }

    /// For a context whose parts were checked before, so that this cannot happen.
    pub fn impossible(error: AbiError) -> Self {
        let what = "the context is inconsistent, which is a bug of this library: please report it".to_owned();
        Self::Backend { what, source: Arc::new(error) }
    }

    /// The error itself, or the first cause if the communicator was broken before.
    pub fn root_cause(&self) -> &Self {
        match self {
            Self::Broken { cause } => cause.root_cause(),
            other => other,
        }
    }

    /// The error of every call after `first`. Never nests: the cause of a `Broken` is the first error itself.
    pub fn broken(first: &Arc<Self>) -> Self {
        match first.as_ref() {
            Self::Broken { cause } => Self::broken(cause),
            _ => Self::Broken { cause: Arc::clone(first) },
        }
    }

    /// An error of the operating system.
    pub fn system(call: &'static str, what: impl Into<String>, error: &io::Error) -> Self {
        // An io::Error that no system call made has no errno; EIO comes closest.
        const EIO: i32 = 5;
        Self::System { call, errno: error.raw_os_error().unwrap_or(EIO), what: what.into() }
    }
}

struct TimedOutText<'a>(&'a Phase, &'a Duration, &'a Duration, &'a [u32], &'a str);

impl fmt::Display for TimedOutText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(phase, waited, limit, missing, table) = self;
        write!(f, "timed out in {phase} after {waited:.1?} of {limit:?}; ")?;
        match missing {
            [] => f.write_str("no rank is known to be missing")?,
            [one] => write!(f, "rank {one} had not arrived")?,
            several => write!(f, "ranks {several:?} had not arrived")?,
        }
        f.write_str("; see what they are doing, or allow more time (CHIPCOMM_TIMEOUT_S, in seconds)")?;
        if !table.is_empty() {
            write!(f, "\n{}", table.trim_end())?;
        }
        Ok(())
    }
}

/// Why a rank left that called destroy and had no error.
pub const DESTROYED: &str = "it destroyed its communicator";
/// Why a rank left that has only dropped its communicator.
pub const DROPPED: &str = "it dropped its communicator without destroying it";

/// What to do about a rank that left with this reason.
struct LeftAdvice<'a>(&'a u32, &'a str);

impl fmt::Display for LeftAdvice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.1 {
            DESTROYED | DROPPED => f.write_str(
                "let every rank make the same collective calls before any of them destroys its communicator",
            ),
            // It has an error of its own.
            _ => write!(f, "see the error of rank {}", self.0),
        }
    }
}

struct Known<'a>(&'a Option<u32>);

impl fmt::Display for Known<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(pid) => write!(f, "{pid}"),
            None => f.write_str("unknown"),
        }
    }
}

struct NeedHave<'a>(&'a u64, &'a Option<u64>);

impl fmt::Display for NeedHave<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.1 {
            Some(have) => write!(f, "need {} bytes, have {have}", self.0),
            None => write!(f, "need {} bytes", self.0),
        }
    }
}

struct Detail<'a>(&'a str);

impl fmt::Display for Detail<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, ": {}", self.0) }
    }
}

/// The next step for the errno values that users see, numbered as on Linux.
fn errno_advice(errno: i32) -> &'static str {
    match errno {
        1 | 13 => "check the owner and mode of what it touches, and whether a sandbox forbids the call",
        2 => "check that the path exists",
        12 | 28 => "free memory or raise the limit of the control group or of shared memory",
        22 | 38 => "this kernel does not offer it; see the kernel versions that the documentation names",
        23 | 24 => "raise the limit of open files (ulimit -n)",
        _ => "see the manual page of the call for this error",
    }
}

#[cfg(test)]
mod tests;
