//! What can go wrong with shared memory, and which limit was hit.

use core::fmt;

/// Why a region could not be created, attached or used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegionError {
    /// Zero, or more than an address space holds.
    #[error("a shared region of {len} bytes is impossible; ask for 1 to {} bytes", isize::MAX)]
    BadLength {
        /// The length.
        len: usize,
    },
    /// The machine, or this process's share of it, has too little memory or too few addresses.
    #[error("shared memory for `{label}`: need {need} bytes, have {have}; {limit}")]
    OutOfMemory {
        /// What the memory was for.
        label: String,
        /// How many bytes it takes.
        need: u64,
        /// How many bytes the limit leaves.
        have: u64,
        /// Which limit that is, and how to raise it.
        limit: Limit,
    },
    /// The descriptor is not an object of that size.
    #[error(
        "the shared object has {found} bytes, {expected} were expected: the two sides disagree on the layout; \
         run one build on both"
    )]
    WrongSize {
        /// What the caller expects.
        expected: u64,
        /// What the object has.
        found: u64,
    },
    /// A region of several objects was attached with too few or too many descriptors.
    #[error(
        "{found} descriptors came for shared memory of {expected} objects; pass one for each, in their order"
    )]
    WrongCount {
        /// How many objects it has.
        expected: usize,
        /// How many descriptors there are.
        found: usize,
    },
    /// The object's size could still change.
    #[error(
        "the shared object's size is not sealed, so that another process could shrink it; \
         pass one that this library made"
    )]
    NotSealed,
    /// It must have the same addresses as in another process, and they are taken here.
    #[error(
        "`{label}` must have the same addresses in all processes, and {at:#x} to {end:#x} are taken in process {pid}; \
         attach it before other memory is mapped"
    )]
    AddressTaken {
        /// What the memory is for.
        label: String,
        /// Its first address.
        at: usize,
        /// The first address after it.
        end: usize,
        /// The process in which they are taken.
        pid: u32,
    },
    /// A range or word that is not inside the region.
    #[error("bytes {start}..{end} are outside the region of {len} bytes; stay inside, or make it larger")]
    OutOfBounds {
        /// First byte.
        start: usize,
        /// First byte after it.
        end: usize,
        /// The region.
        len: usize,
    },
    /// Pages that are given back, and are not in use.
    #[error("bytes {start}..{end} are not allocated in this arena; free what came from it, whole and once")]
    NotAllocated {
        /// First byte.
        start: usize,
        /// First byte after it.
        end: usize,
    },
    /// A word at an offset that its type does not allow.
    #[error("offset {offset} is not a multiple of {align}, the alignment of the type; choose one that is")]
    Misaligned {
        /// The offset in the region.
        offset: usize,
        /// The alignment of its type.
        align: usize,
    },
    /// The system refused.
    #[error(
        "{call} for shared memory: {}; see the manual page of the call for this error",
        std::io::Error::from_raw_os_error(*errno)
    )]
    System {
        /// The call.
        call: &'static str,
        /// Its error, as the system numbers it.
        errno: i32,
    },
}

/// The limit that a request for memory or addresses hit. As text, with what to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Limit {
    /// The memory of the machine.
    Machine,
    /// The memory limit of the control group of this process, or of one above it.
    ControlGroup,
    /// What is left when others have what they are about to reserve.
    Promised {
        /// How much that is.
        others: u64,
        /// The limit that all of it counts against is that of a control group.
        control_group: bool,
    },
    /// The machine grants no more memory than it can back (`vm.overcommit_memory` is 2).
    Overcommit,
    /// The kernel refused for a reason that it does not state.
    Kernel,
    /// `RLIMIT_FSIZE` of this process.
    FileSize,
    /// `RLIMIT_AS` of this process.
    AddressSpace {
        /// The limit.
        limit: u64,
        /// What this process has mapped already.
        used: u64,
    },
    /// The addresses that the processor and the kernel have for a process.
    Processor {
        /// Their width.
        bits: u32,
    },
    /// The number of mappings of a process.
    Mappings {
        /// The limit.
        most: u64,
    },
    /// The largest free range of addresses of an arena.
    Arena {
        /// The whole arena.
        size: u64,
    },
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Machine => {
                f.write_str("that is the memory the machine has available; end what else uses it")
            }
            Self::ControlGroup => f.write_str(
                "that is what the memory limit of this control group leaves; raise it (memory.max)",
            ),
            Self::Promised { others, control_group } => {
                let whose = if *control_group { "this control group's limit" } else { "the machine" };
                write!(
                    f,
                    "that is what {whose} leaves when others have the {others} bytes that they are about \
                     to take; start fewer at once"
                )
            }
            Self::Overcommit => f.write_str(
                "that is what the machine may still promise, as vm.overcommit_memory is 2; raise CommitLimit \
                 (vm.overcommit_ratio)",
            ),
            Self::Kernel => f.write_str(
                "so much is available, and the kernel refused it all the same; see its log (dmesg)",
            ),
            Self::FileSize => {
                f.write_str("that is the file size limit of this process; raise it with `ulimit -f`")
            }
            Self::AddressSpace { limit, used } => write!(
                f,
                "that is what the address space limit of this process leaves (`ulimit -v`: {limit} bytes, {used} in \
                 use); raise it, or ask for less"
            ),
            Self::Processor { bits } => {
                write!(f, "that is about what {bits} bits of address leave to this process; ask for less")
            }
            Self::Mappings { most } => {
                write!(f, "this process has all {most} mappings that it may have; raise vm.max_map_count")
            }
            Self::Arena { size } => {
                write!(
                    f,
                    "that is the largest free range of the {size} bytes of addresses there; release something"
                )
            }
        }
    }
}
