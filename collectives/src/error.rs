//! What can go wrong in a collective. Every text says what failed, where, and what to do next.

use crate::element::{DType, Op};
use crate::request::{CallText, Kind};
use crate::schedule::PlanError;
use comm_context::comm::CommError;
use std::fmt;
use std::sync::Arc;
use worker_errors::{ErrorCode, Failure};

const NEEDS_OPERATION: &str = "reduces and needs an operation; pass one, such as sum";
const TAKES_NO_OPERATION: &str = "does not reduce and takes no operation; leave it out";

/// The error of a collective call.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CollError {
    /// An argument is wrong. No peer knows of the call, and the group is as it was.
    #[error(transparent)]
    Argument(#[from] BadArgument),

    /// A schedule is refused. No peer knows of it, and the group is as it was.
    #[error(transparent)]
    Plan(#[from] PlanError),

    /// Two ranks made different calls. The group is broken on all ranks.
    #[error(
        "ranks made different calls: {one}; {other}; let every rank make the same calls in the same order"
    )]
    Mismatch {
        /// The call of the lower rank.
        one: CallOf,
        /// The call of the other.
        other: CallOf,
    },

    /// What two ranks said about the data between them differs. The group is broken on all ranks.
    #[error("rank {from} sends {sent} to rank {to}, which expects {expected}; let both sides say the same")]
    Transfer {
        /// Who sends.
        from: usize,
        /// Who receives.
        to: usize,
        /// What is sent.
        sent: CallText,
        /// What is expected.
        expected: CallText,
    },

    /// A wait ended without what it waited for: a peer died or left, the deadline passed, the run was aborted.
    #[error("{call}: {cause}")]
    Wait {
        /// The call, and its number in the group.
        call: CallText,
        /// Why.
        #[source]
        cause: CommError,
    },

    /// A peer has given up, for a reason that it kept to itself.
    #[error("{call}: rank {rank} has given up on this group; see its own error")]
    PeerGaveUp {
        /// The peer.
        rank: usize,
        /// The call, and its number in the group.
        call: CallText,
    },

    /// What a peer wrote to shared memory cannot be right.
    #[error("{call}: rank {rank} wrote {what}; it runs another build, or something overwrote its window")]
    Malformed {
        /// The peer.
        rank: usize,
        /// The call, and its number in the group.
        call: CallText,
        /// What is wrong.
        what: &'static str,
    },

    /// The group could not be made, or released in order.
    #[error("{what}: {cause}")]
    Setup {
        /// What was being done.
        what: &'static str,
        /// Why it failed.
        #[source]
        cause: CommError,
    },

    /// The communicator's windows are not memory of this process.
    #[error(
        "this communicator's windows are not memory of this process; pass slices instead of tensors in windows, \
         and where the devices have no engine for collectives use a backend such as comm-sim"
    )]
    NoHostWindows,

    /// The devices' engine does not have this call.
    #[error("{call}: {why}")]
    Unsupported {
        /// The call.
        call: String,
        /// What there is instead.
        why: String,
    },

    /// Two ranks were built with different layouts of the group's memory.
    #[error(
        "rank {rank} has another layout of the group's memory ({theirs:016x}, here {mine:016x}); \
         run the same build with the same options on every rank"
    )]
    Layout {
        /// The other rank.
        rank: usize,
        /// This rank's hash.
        mine: u64,
        /// The other's.
        theirs: u64,
    },

    /// Two ranks choose their algorithms by different tables.
    #[error(
        "ranks choose by different tables: {text}; give every rank the same one (CHIPCOMM_COLL_TABLE, Options::table)"
    )]
    Table {
        /// Which entries differ, with both ranks and values.
        text: String,
    },

    /// The window has no room for a tensor.
    #[error(
        "a tensor of {need} bytes does not fit in the window's pool ({free} of {pool} bytes free in one piece); make the group with a larger Options::pool, or drop tensors"
    )]
    PoolFull {
        /// What it takes.
        need: usize,
        /// The largest free range.
        free: usize,
        /// The pool.
        pool: usize,
    },

    /// A tensor in the window is used after a call on its group failed: a peer may still write to it.
    #[error(
        "the group failed before, and a peer may still write to this tensor; copy it out, or make a new group"
    )]
    Poisoned,

    /// The group was made by another process, of which this one is a forked copy.
    #[error(
        "this group belongs to the process that made it, and this is a forked copy; make the group after the fork"
    )]
    Forked,

    /// The group failed before. Repeats the first cause, which is never itself `Broken`.
    #[error("this group failed before and can only be dropped; the first cause: {cause}")]
    Broken {
        /// The first cause.
        #[source]
        cause: Arc<CollError>,
    },
}

impl CollError {
    /// The error itself, or the first cause if the group was broken before.
    pub fn root_cause(&self) -> &Self {
        match self {
            Self::Broken { cause } => cause.root_cause(),
            other => other,
        }
    }

    /// The code of the error, as C and other processes see it; that of the first cause if the group was broken before.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Argument(_)
            | Self::Plan(_)
            | Self::NoHostWindows
            | Self::Unsupported { .. }
            | Self::Forked => ErrorCode::Invalid,
            Self::Mismatch { .. } | Self::Transfer { .. } | Self::Layout { .. } | Self::Table { .. } => {
                ErrorCode::Mismatch
            }
            Self::Wait { cause, .. } | Self::Setup { cause, .. } => cause.code(),
            Self::PeerGaveUp { .. } => ErrorCode::PeerLeft,
            Self::Malformed { .. } => ErrorCode::Protocol,
            Self::PoolFull { .. } => ErrorCode::OutOfMemory,
            Self::Poisoned => ErrorCode::Closed,
            Self::Broken { cause } => cause.code(),
        }
    }

    /// What later calls answer after `first`.
    pub(crate) fn broken(first: &Arc<Self>) -> Self {
        match first.as_ref() {
            Self::Broken { cause } => Self::broken(cause),
            _ => Self::Broken { cause: Arc::clone(first) },
        }
    }

    /// Whether a call that failed so leaves the group as it was.
    pub(crate) fn is_harmless(&self) -> bool {
        matches!(
            self,
            Self::Argument(_)
                | Self::Plan(_)
                | Self::PoolFull { .. }
                | Self::Forked
                | Self::Poisoned
                | Self::NoHostWindows
                | Self::Unsupported { .. }
        )
    }
}

/// With the code of its first cause, and of how a peer died where that is known.
impl From<CollError> for Failure {
    fn from(error: CollError) -> Self {
        let code = match error.root_cause() {
            CollError::Wait { cause, .. } | CollError::Setup { cause, .. } => Self::from(cause).code,
            root => root.code(),
        };
        Self::from_error(code, &error).in_phase("collective")
    }
}

/// A call of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallOf {
    /// The rank in its group.
    pub rank: usize,
    /// The number of the call in the group, from 1.
    pub number: u64,
    /// What it was.
    pub call: CallText,
}

impl fmt::Display for CallOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}: {}, call {}", self.rank, self.call, self.number)
    }
}

/// A wrong argument, refused before a peer knows of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadArgument {
    /// The operation does not apply to the type.
    #[error(
        "{op} of {dtype} is not defined; avg is for floating point, bitwise and logical operations for integers and bool"
    )]
    Operation {
        /// The operation.
        op: Op,
        /// The type.
        dtype: DType,
    },

    /// An operation is missing, or given where there is none.
    #[error("{} {}", .kind.name(), if .kind.reduces() { NEEDS_OPERATION } else { TAKES_NO_OPERATION })]
    NoOperation {
        /// The call.
        kind: Kind,
    },

    /// The root is not a rank of the group.
    #[error("root is {root}; the group has ranks 0 to {}", .nranks - 1)]
    Root {
        /// What was given.
        root: u32,
        /// The size of the group.
        nranks: usize,
    },

    /// The peer of a message is not another rank of the group.
    #[error("rank {rank} cannot be sent to or received from here; the group has ranks 0 to {}, and this is rank {me}", .nranks - 1)]
    Peer {
        /// What was given.
        rank: usize,
        /// The size of the group.
        nranks: usize,
        /// This rank.
        me: usize,
    },

    /// The bytes of the call do not fit in an address space.
    #[error(
        "{count} elements of {dtype} in each of {blocks} blocks are more bytes than an address space has; pass a smaller count"
    )]
    TooManyBytes {
        /// Elements of a block.
        count: usize,
        /// Their type.
        dtype: DType,
        /// How many blocks.
        blocks: usize,
    },

    /// A buffer does not have the length that the call asks for.
    #[error("{what} has {have} elements; this call takes {need}")]
    Length {
        /// Which buffer.
        what: &'static str,
        /// What it has.
        have: usize,
        /// What it should have.
        need: usize,
    },

    /// The root has not said where the result goes, or what it sends.
    #[error("{} needs {what} on the root; pass it there", .kind.name())]
    RootBuffer {
        /// The call.
        kind: Kind,
        /// Which buffer.
        what: &'static str,
    },

    /// In and out overlap other than element for element.
    #[error("input and output overlap; pass the same buffer for both, or two that are apart")]
    Overlap,

    /// A pointer is null though there is something to read or write.
    #[error("{what} is null; pass its address")]
    Null {
        /// Which buffer.
        what: &'static str,
    },

    /// Memory that should be in the window is not.
    #[error("{bytes} bytes at {at:#x} are not memory of this group's pool; allocate them from the group")]
    NotInWindow {
        /// Where.
        at: usize,
        /// How many.
        bytes: usize,
    },

    /// A list of ranks is without this one.
    #[error("the group's ranks {ranks:?} do not have this one, {me}; only members make the group")]
    Members {
        /// What was given.
        ranks: Vec<u32>,
        /// This rank.
        me: u32,
    },

    /// A table, or the file of one, that cannot be used.
    #[error("a table of collectives: {text}")]
    Table {
        /// What is wrong with it.
        text: String,
    },

    /// A plan is for another number of ranks.
    #[error("the plan {name} is for {ranks} ranks, the group has {nranks}; make it for the group")]
    PlanRanks {
        /// The schedule.
        name: String,
        /// Its ranks.
        ranks: usize,
        /// The size of the group.
        nranks: usize,
    },

    /// A plan combines, and the call has no operation.
    #[error("the plan {name} {NEEDS_OPERATION}")]
    PlanOperation {
        /// The schedule.
        name: String,
    },

    /// A plan does not combine, and the call has an operation.
    #[error("the plan {name} {TAKES_NO_OPERATION}")]
    PlanMoves {
        /// The schedule.
        name: String,
    },

    /// A plan adds up in several passes, and an average cannot be taken in parts.
    #[error(
        "the plan {name} adds up in several passes, where avg is not defined; pass sum, and divide the result"
    )]
    PlanAverage {
        /// The schedule.
        name: String,
    },

    /// A plan has more rooms than a half of the staging area can hold.
    #[error(
        "the plan {name} needs {rooms} slots in the window, which has room for {most}; cut the tensor into fewer chunks"
    )]
    PlanRooms {
        /// The schedule.
        name: String,
        /// What it needs.
        rooms: u32,
        /// What there is.
        most: usize,
    },

    /// A pool that no window can hold.
    #[error("a pool of {pool} bytes is larger than any window; ask for less")]
    Pool {
        /// What was given.
        pool: usize,
    },
}
