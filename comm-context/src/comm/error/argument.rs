//! Wrong arguments.

use core::fmt;
use std::time::Duration;

use crate::abi::{COMM_MAX_RANK_NUM, DeviceAddr};

/// A wrong argument, refused before anything is created, with the same text by every backend.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ArgumentError {
    /// The group is empty or too large.
    #[error("nranks is {nranks}; a group has 1 to {COMM_MAX_RANK_NUM} ranks")]
    GroupSize {
        /// What was given.
        nranks: i64,
    },

    /// This rank is not one of the group.
    #[error("rank is {rank} in a group of {nranks}; pass 0 to {}", .nranks - 1)]
    Rank {
        /// What was given.
        rank: i64,
        /// The size of the group.
        nranks: i64,
    },

    /// The list of ranks is empty.
    #[error("the list of ranks is empty; name at least the calling rank")]
    NoRanks,

    /// The list of ranks is longer than the group.
    #[error("the list names {count} ranks, the group has {nranks}; name each member once")]
    TooManyRanks {
        /// How many were given.
        count: usize,
        /// The size of the group.
        nranks: u32,
    },

    /// The list of ranks names one that the group does not have.
    #[error("the list names rank {rank} at position {position}; the group has ranks 0 to {}", .nranks - 1)]
    NoSuchRank {
        /// What was given.
        rank: u32,
        /// Where.
        position: usize,
        /// The size of the group.
        nranks: u32,
    },

    /// The list of ranks names one twice.
    #[error("the list names rank {rank} at positions {first} and {second}; name each member once")]
    DuplicateRank {
        /// The rank.
        rank: u32,
        /// Its first position.
        first: usize,
        /// Its second.
        second: usize,
    },

    /// The domain rank is not a position in the list.
    #[error("domain_rank is {domain_rank}, the list has {count} ranks; pass the position of this rank in it")]
    DomainRank {
        /// What was given.
        domain_rank: u32,
        /// The length of the list.
        count: usize,
    },

    /// The list has another rank at the position that is said to be this rank's.
    #[error(
        "domain_rank {domain_rank} is rank {listed} in the list, the caller is rank {mine}; \
         only members call, each with its own position"
    )]
    NotThisRank {
        /// What was given.
        domain_rank: u32,
        /// The rank at that position.
        listed: u32,
        /// The caller.
        mine: u32,
    },

    /// A size is zero.
    #[error("{what} is 0 bytes; pass the size that the kernels use")]
    ZeroSize {
        /// Which size.
        what: &'static str,
    },

    /// A size is larger than any window can be.
    #[error("{what} is {size} bytes; a window has at most {limit}: ask for less")]
    TooLarge {
        /// Which size.
        what: &'static str,
        /// What was given.
        size: usize,
        /// The largest accepted.
        limit: usize,
    },

    /// A slice does not lie in the base window.
    #[error(
        "the slice of {size} bytes at offset {offset} does not lie in the base window of {window} bytes; choose one that does"
    )]
    SliceOutside {
        /// Where it starts.
        offset: usize,
        /// How long it is.
        size: usize,
        /// The size of the window.
        window: usize,
    },

    /// A range of device memory is not wholly inside one window or context that this rank can reach.
    #[error(
        "{len} bytes at {addr} are not inside one window of this communicator \
         (or, to read, one of its contexts); take addresses from windowsIn and stay within winSize"
    )]
    Unreachable {
        /// Where it starts.
        addr: DeviceAddr,
        /// How long it is.
        len: usize,
    },

    /// A time limit is zero or longer than ten years.
    #[error("a time limit of {given:?} is refused; pass more than zero and at most ten years")]
    Timeout {
        /// What was given.
        given: Duration,
    },

    /// A text is not a time limit.
    #[error("{given:?} is not a time limit; write seconds, such as 120 or 0.5, above 0 and up to 315360000")]
    TimeoutText {
        /// The text.
        given: String,
    },

    /// An environment variable does not hold a time limit.
    #[error(
        "{variable} is {given:?}; set it to seconds, such as 120 or 0.5, above 0 and up to 315360000, or unset it"
    )]
    TimeoutVariable {
        /// The variable.
        variable: String,
        /// Its value.
        given: String,
    },

    /// A text is not a size.
    #[error("{given:?} is not a size in bytes; write a number above 0, such as 64G, 512M or 4096")]
    SizeText {
        /// The text.
        given: String,
    },

    /// An environment variable does not hold a size.
    #[error(
        "{variable} is {given:?}; set it to a size in bytes above 0, such as 64G, 512M or 4096, or unset it"
    )]
    SizeVariable {
        /// The variable.
        variable: String,
        /// Its value.
        given: String,
    },

    /// The rendezvous path cannot name a file.
    #[error("rootinfo_path {problem}; pass the same absolute or relative file path on every rank")]
    RootinfoPath {
        /// What is wrong with it.
        problem: PathProblem,
    },

    /// A pointer that must point at something is NULL.
    #[error("{what} is NULL; pass the address of a live object")]
    Null {
        /// The argument's name in `comm.h`.
        what: &'static str,
    },

    /// A domain is released with other numbers than it was allocated with.
    #[error(
        "rank_count is {count} and domain_rank {domain_rank}, the domain was allocated with {made_count} and \
         {made_rank}; pass the same"
    )]
    OtherDomain {
        /// The count that was given.
        count: usize,
        /// The position that was given.
        domain_rank: u32,
        /// The count of the allocation.
        made_count: usize,
        /// The position of the allocation.
        made_rank: u32,
    },

    /// A communicator is destroyed while another thread is inside a call on it.
    #[error("another thread is inside a call on {value:#x}; let it return, then destroy")]
    HandleInUse {
        /// The handle.
        value: u64,
    },

    /// A communicator is destroyed while groups of collectives over it are open.
    #[error(
        "{groups} groups of collectives over {value:#x} are open; call comm_coll_destroy on each, then destroy"
    )]
    GroupsOpen {
        /// The handle.
        value: u64,
        /// How many.
        groups: usize,
    },

    /// A handle does not belong to a live communicator.
    #[error(
        "{value:#x} is not the handle of a live communicator; \
         pass what comm_init returned, before comm_destroy"
    )]
    Handle {
        /// What was given.
        value: u64,
    },
}

/// What is wrong with the text of a rendezvous path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PathProblem {
    /// It is NULL.
    Null,
    /// It has no characters.
    Empty,
    /// It ends in `/`, `.` or `..`, so it cannot name a file.
    NoFileName,
    /// It is longer than the kernel takes.
    TooLong,
}

impl fmt::Display for PathProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Null => "is NULL",
            Self::Empty => "is empty",
            Self::NoFileName => "names no file",
            Self::TooLong => "is longer than 4095 bytes",
        })
    }
}
