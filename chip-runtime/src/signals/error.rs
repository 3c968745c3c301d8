//! Why a wait or a signal failed.

use super::{Deadlock, Domain};
use crate::error::{ErrorKind, RuntimeError};
use comm_context::comm::CommError;
use std::time::Duration;
use worker_errors::{ErrorCode, Failure};

/// Why a wait or a signal was refused, or how it ended.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SignalError {
    /// There is no such window.
    #[error("this chip has no window {}; allocate one, or name a domain that it is a member of", .domain.0)]
    NoWindow {
        /// The domain.
        domain: Domain,
    },
    /// No window has this context.
    #[error(
        "the CommContext at {context:#x} belongs to no window of this chip; pass that of the communicator, or of a domain that \
         the chip is a member of and that is not released"
    )]
    NoContext {
        /// Its address.
        context: u64,
    },
    /// A rank that the domain does not have.
    #[error("there is no rank {rank}; window `{window}` has {nranks}, counted from 0")]
    NoSuchRank {
        /// The rank.
        rank: u32,
        /// How many there are.
        nranks: u32,
        /// The window's name.
        window: String,
    },
    /// A word that does not lie in the window.
    #[error(
        "a word at {offset:#x} is outside window `{window}`, which has {size:#x} bytes; name one inside, or allocate more"
    )]
    OutsideWindow {
        /// Where it would be.
        offset: u64,
        /// The window's size.
        size: u64,
        /// Its name.
        window: String,
    },
    /// A word that is not aligned.
    #[error("a word at {at:#x} is not at a multiple of 4; choose another")]
    NotAligned {
        /// Where it would be.
        at: u64,
    },
    /// A prebuilt graph waits for a word that the graph of the rank which it names does not signal.
    #[error(
        "it waits for rank {from} to signal word {offset:#x} of window `{window}`, and {} never does; add the signal there, or \
         name `Unknown` as who signals if that is a kernel or the host",
        if *.has_graph { "the graph of that rank" } else { "that rank, which runs no graph of this session," }
    )]
    NobodySignals {
        /// The rank of the communicator.
        from: u32,
        /// The window's name.
        window: String,
        /// Where the word is in it.
        offset: u64,
        /// Whether that rank runs a graph of the session.
        has_graph: bool,
    },
    /// A buffer that nobody named.
    #[error("the window has no buffer `{name}`; it has {known:?}")]
    NoSuchBuffer {
        /// Its name.
        name: String,
        /// Those that it has.
        known: Vec<String>,
    },
    /// An element outside a buffer.
    #[error("`{name}` has no element {index}; it has {count}, counted from 0")]
    NoSuchElement {
        /// The buffer.
        name: String,
        /// The element.
        index: u64,
        /// How many there are.
        count: u64,
    },
    /// A completion that a kernel asked for and that does not exist.
    #[error(
        "a kernel asked for its completion to wait in a way that is not known: {what}; use complete_when of kernel_completion.h"
    )]
    Completion {
        /// What it asked for.
        what: String,
    },
    /// The communicator failed: a peer died or left, or the run was cancelled.
    #[error("{}{cause}", while_waiting(.waits))]
    Comm {
        /// What it said.
        cause: Box<CommError>,
        /// What was waited for.
        waits: String,
    },
    /// The deadline passed.
    #[error("no signal came within {limit:?}; give it more time, or see what was awaited: {waits}")]
    TimedOut {
        /// How long it was.
        limit: Duration,
        /// What was waited for.
        waits: String,
    },
    /// No chip can move any more.
    #[error("{0}")]
    Deadlock(Deadlock),
    /// A peer has proved that no chip can move any more.
    #[error("rank {by} found that no chip can go on, see its error; here {waits}")]
    StuckElsewhere {
        /// Who proved it, and tells the whole story.
        by: u32,
        /// What this chip waits for.
        waits: String,
    },
    /// The graph of the rank that should have signalled is over.
    #[error("rank {rank} has ended its graph without that signal, see its error if it has one: {waits}")]
    EndedWithout {
        /// A rank of the communicator.
        rank: u32,
        /// What was waited for.
        waits: String,
    },
    /// No memory for words and windows.
    #[error("{0}")]
    Memory(String),
}

impl SignalError {
    /// There is no such rank in the group, all of which have the base window.
    pub(super) fn of_group(rank: u32, nranks: u32) -> Self {
        Self::NoSuchRank { rank, nranks, window: "base".to_owned() }
    }

    /// 101: refused; 102: ended by a peer, a cancel or the deadline; 103: a deadlock.
    pub fn code(&self) -> i32 {
        match self {
            Self::Comm { .. } | Self::TimedOut { .. } => 102,
            Self::Deadlock(_) | Self::StuckElsewhere { .. } | Self::EndedWithout { .. } => 103,
            _ => 101,
        }
    }

    /// The kind of failure, among those of all crates.
    pub fn cause(&self) -> ErrorCode {
        match self {
            Self::Comm { cause, .. } => Failure::from((**cause).clone()).root_cause().code,
            Self::TimedOut { .. } => ErrorCode::TimedOut,
            Self::Deadlock(_) => ErrorCode::Task,
            Self::StuckElsewhere { .. } | Self::EndedWithout { .. } => ErrorCode::PeerLeft,
            Self::Memory(_) => ErrorCode::OutOfMemory,
            _ => ErrorCode::Invalid,
        }
    }

    /// The rank whose end it is, if it is that of one.
    pub(crate) fn ended_rank(&self) -> Option<u32> {
        match self {
            Self::EndedWithout { rank, .. } => Some(*rank),
            Self::Comm { cause, .. } => match cause.root_cause() {
                CommError::PeerDied { rank, .. }
                | CommError::PeerLeft { rank, .. }
                | CommError::PeerFailed { rank, .. } => Some(*rank),
                _ => None,
            },
            _ => None,
        }
    }
}

impl From<CommError> for SignalError {
    fn from(cause: CommError) -> Self {
        Self::Comm { cause: Box::new(cause), waits: String::new() }
    }
}

impl From<SignalError> for RuntimeError {
    fn from(error: SignalError) -> Self {
        ErrorKind::Signal { code: error.code(), cause: error.cause(), text: error.to_string() }.into()
    }
}

fn while_waiting(waits: &str) -> String {
    if waits.is_empty() { String::new() } else { format!("while {waits}: ") }
}
