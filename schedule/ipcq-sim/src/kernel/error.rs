//! What is wrong with a kernel: one sentence that names kernel, line and rank.

use crate::config::DType;
use ccl_schedule::{Dir, ProofError, WiringError};
use std::fmt;
use std::panic::Location;
use thiserror::Error;

/// A line of a kernel's source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    file: &'static str,
    line: u32,
}

impl Site {
    pub(super) fn of(location: &'static Location<'static>) -> Site {
        Site { file: location.file(), line: location.line() }
    }

    /// The line.
    pub fn line(self) -> u32 {
        self.line
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.file.rsplit(['/', '\\']).next().unwrap_or(self.file);
        write!(f, "{name}:{}", self.line)
    }
}

/// Shape and format, as messages show them: `[2, 8] f16`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Form {
    /// The dimensions, outermost first.
    pub shape: Vec<u64>,
    /// The number format.
    pub dtype: DType,
}

impl Form {
    /// Elements.
    pub fn len(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes.
    pub fn bytes(&self) -> u64 {
        self.len() * self.dtype.bytes()
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}", self.shape, self.dtype.name())
    }
}

/// Why a kernel is not run.
#[derive(Debug, Error)]
#[error("kernel {kernel}{}{}: {what}", at(site), of(rank))]
pub struct KernelError {
    /// The kernel.
    pub kernel: String,
    /// The line, where one is to blame.
    pub site: Option<Site>,
    /// The rank, where one is to blame.
    pub rank: Option<u32>,
    /// What is wrong.
    pub what: Box<KernelFault>,
}

impl KernelError {
    pub(super) fn new(kernel: &str, site: Option<Site>, rank: Option<u32>, what: KernelFault) -> Self {
        Self { kernel: kernel.to_owned(), site, rank, what: Box::new(what) }
    }
}

fn at(site: &Option<Site>) -> String {
    site.map_or_else(String::new, |site| format!(", {site}"))
}

fn of(rank: &Option<u32>) -> String {
    rank.map_or_else(String::new, |rank| format!(", rank {rank}"))
}

/// What can be wrong with a kernel.
#[derive(Debug, Error)]
pub enum KernelFault {
    /// Two tensors that must be alike are not.
    #[error("{function} of {a} and {b}; both must have one shape and one format")]
    Forms {
        /// What was to be computed.
        function: &'static str,
        /// One operand.
        a: Form,
        /// The other.
        b: Form,
    },
    /// A message is received as something else than it was sent as.
    #[error(
        "receives {wanted} from {dir}, but rank {peer} sends {sent} ({peer_site}); let both name one shape and format"
    )]
    OtherForm {
        /// The direction.
        dir: Dir,
        /// What the receiver asked for.
        wanted: Form,
        /// The sender.
        peer: u32,
        /// Its message.
        sent: Form,
        /// Its line.
        peer_site: Site,
    },
    /// More receives than sends on a channel.
    #[error(
        "receives from {dir} for the {nth}. time, but rank {peer} sends only {sent} times: nobody sends this one"
    )]
    NobodySends {
        /// The direction.
        dir: Dir,
        /// Which receive of that direction it is, from 1.
        nth: usize,
        /// The rank that would have to send.
        peer: u32,
        /// How often it does.
        sent: usize,
    },
    /// More sends than receives on a channel.
    #[error(
        "sends {dir} for the {nth}. time, but rank {peer} receives only {received} times; receive it there"
    )]
    NobodyReceives {
        /// The direction.
        dir: Dir,
        /// Which send of that direction it is, from 1.
        nth: usize,
        /// The rank that would have to receive.
        peer: u32,
        /// How often it does.
        received: usize,
    },
    /// A direction that leads nowhere.
    #[error("direction {0} has no peer here; use one of its queues")]
    NoPeer(Dir),
    /// A second receive while the first slot is still in use.
    #[error(
        "receives from {dir} while the slot received at {held} is used again at {used}; copy it first, or receive \
         into a tensor of your own"
    )]
    SlotInUse {
        /// The direction.
        dir: Dir,
        /// Where the slot was received.
        held: Site,
        /// Where it is used after this receive.
        used: Site,
    },
    /// A receive while another one is posted.
    #[error("receives from {dir}, where a receive is posted already ({posted}); wait for that one first")]
    Posted {
        /// The direction.
        dir: Dir,
        /// Where it was posted.
        posted: Site,
    },
    /// A posted receive that is never waited for.
    #[error("posts a receive from {0} and never waits for it; call wait on it")]
    NeverWaited(Dir),
    /// The scratch memory is full.
    #[error(
        "a result of {need} bytes does not fit the scratch memory: {free} of {size} bytes are free; drop tensors \
         that are no longer needed, or give the kernel more with `scratch`"
    )]
    ScratchFull {
        /// Bytes asked for.
        need: u64,
        /// The largest free piece.
        free: u64,
        /// All of it.
        size: u64,
    },
    /// The tensor is cut in two ways.
    #[error("cuts the tensor into {this} chunks, and elsewhere into {other}; a kernel has one cut")]
    Cuts {
        /// Chunks here.
        this: u32,
        /// Chunks elsewhere.
        other: u32,
    },
    /// A chunk that does not exist.
    #[error("chunk {chunk} of {of} does not exist; count from 0")]
    NoChunk {
        /// The number given.
        chunk: u32,
        /// Chunks.
        of: u32,
    },
    /// The whole tensor is used where it is cut.
    #[error("uses the whole tensor, which is cut into {0} chunks; use its chunks")]
    WholeOfChunks(u32),
    /// A memory handle overlaps the tensor.
    #[error(
        "{space} address {address} lies inside the tensor or in the scratch memory, which ends at {end}; choose one behind it"
    )]
    Overlaps {
        /// The memory space.
        space: &'static str,
        /// The first address.
        address: u64,
        /// Where the part that is taken ends.
        end: u64,
    },
    /// A write to a slot.
    #[error("writes to a slot of the queue; copy it first")]
    WritesSlot,
    /// A tensor of another rank or kernel.
    #[error("uses a tensor of another rank; have it sent")]
    Foreign,
    /// A message larger than a slot.
    #[error("sends {form}, {bytes} bytes, but a slot holds {slot}; raise slot_size, or send less at once")]
    SlotTooSmall {
        /// The message.
        form: Form,
        /// Its bytes.
        bytes: u64,
        /// Bytes of a slot.
        slot: u64,
    },
    /// A result that its format cannot hold.
    #[error("{function} exceeds the largest {dtype} ({largest}); use bf16 or f32, or smaller values")]
    Overflow {
        /// The function.
        function: &'static str,
        /// The format.
        dtype: &'static str,
        /// Its largest number.
        largest: f64,
    },
    /// Data that no rank contributed is added to a sum.
    #[error(
        "reads memory that the host filled, so that nothing can be proved about contributions; use the goal `any`"
    )]
    HostData,
    /// Too many operations.
    #[error("has more than {0} operations on one rank; split it into several kernels")]
    TooLong(usize),
    /// The schedule that the kernel makes is wrong.
    #[error("{0}")]
    Proof(String),
    /// The ranks cannot be wired.
    #[error(transparent)]
    Wiring(#[from] WiringError),
    /// The simulation failed.
    #[error(transparent)]
    Simulation(#[from] Box<crate::sim::SimulationError>),
}

/// The text of a proof's error, with lines of the kernel in place of steps of the schedule.
pub(super) fn proof_text(error: &ProofError, site: impl Fn(u32, u32) -> Option<Site>) -> String {
    let name = |rank, step| site(rank, step).map_or_else(String::new, |site| format!(" ({site})"));
    match error {
        ProofError::Misuse { rank, step, op, what } => {
            format!("rank {rank} in {op}{}: {what}", name(*rank, *step))
        }
        ProofError::Deadlock(deadlock) => {
            let waits = deadlock.cycle.iter().take(6);
            let waits: Vec<String> =
                waits.map(|b| format!("rank {} in {}{}", b.rank, b.op, name(b.rank, b.step))).collect();
            let more = deadlock.cycle.len().saturating_sub(6);
            let more = if more > 0 { format!(" and {more} more ranks") } else { String::new() };
            let way = match deadlock.smallest {
                Some(slots) => format!("the smallest n_slots that works is {slots}"),
                None => "no n_slots helps".to_owned(),
            };
            format!(
                "deadlock with n_slots = {}: {}{more} wait for each other; {way}",
                deadlock.slots,
                waits.join(" -> ")
            )
        }
        other => other.to_string(),
    }
}
