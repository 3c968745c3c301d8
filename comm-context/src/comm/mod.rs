//! The backend-neutral communicator: the trait, its arguments and its errors.

mod address_space;
mod allocation_table;
mod backend;
mod device_collectives;
mod device_words;
mod error;
mod host_windows;
mod membership;
mod phase;
mod reachable;
mod timeout;
pub mod validate;

pub use address_space::AddressSpace;
pub use allocation_table::{Allocated, AllocationTable, Key, Released};
pub use backend::{Backend, WindowRequest};
pub use device_collectives::{
    DeviceCall, DeviceCallUnderWay, DeviceCollectives, DeviceGroup, DeviceInput, DeviceOutput, DeviceRequest,
    Leaving, ReduceOp, Reduction,
};
pub use device_words::DeviceWords;
pub use error::{ArgumentError, CommError, DESTROYED, DROPPED, Death, PathProblem};
pub use host_windows::{HostWindows, WordWait};
pub use membership::Membership;
pub use phase::Phase;
pub use timeout::Timeout;

use crate::abi::DeviceAddr;

/// One rank's end of a group of ranks that share memory.
///
/// Every call takes `&self` and may be made from several threads at once. Calls that concern different
/// domains do not wait for each other. A *collective* call returns on no rank before every rank of its group
/// has made it.
///
/// # Failure
/// A wrong argument ([`CommError::Argument`] and the five state errors after it) is refused before anything
/// is created or any peer is involved, and leaves the communicator as it was. So does an allocation that
/// fails on one member: the others get [`CommError::PeerFailed`], and nothing stays allocated. A deadline
/// that passes, a peer that dies and an abort break the communicator: the first such error is kept, and every
/// later call returns at once with [`CommError::Broken`] around it. [`destroy`](Self::destroy) works in
/// either state.
pub trait Communicator: Send + Sync {
    /// This rank, `0..nranks`.
    fn rank(&self) -> u32;

    /// How many ranks the group has, `1..=64`.
    fn nranks(&self) -> u32;

    /// Allocates the base window of every rank: collective, at most once, the same `size` on every rank.
    ///
    /// The size may be rounded up; [`Window::size`] says what it became. The window is zeroed before a peer
    /// can reach it.
    fn alloc_windows(&self, size: usize, within: Timeout) -> Result<Window, CommError>;

    /// The base window of this rank; [`CommError::NoWindow`] before [`alloc_windows`](Self::alloc_windows).
    fn window(&self) -> Result<Window, CommError>;

    /// Makes a subset's view of a slice of the base window and returns its context.
    ///
    /// Local: no peer takes part. In the new context the rank is `view.domain_rank` and window `i` is the
    /// slice of the base window of rank `view.ranks[i]`. The context lives until the communicator is
    /// destroyed.
    fn derive_context(&self, view: &SubsetView<'_>) -> Result<DeviceAddr, CommError>;

    /// Allocates a window for a subset of the ranks: collective among `spec.ranks`, no other rank is
    /// involved.
    ///
    /// The members name the allocation by the same id, ranks and size, and call in any order relative to
    /// other domains.
    fn alloc_domain(&self, spec: &DomainSpec<'_>, within: Timeout) -> Result<Window, CommError>;

    /// Releases a domain: collective among its members. Afterwards its id may be used again.
    ///
    /// What this rank holds of the domain is released even when the call fails because a peer is gone.
    fn release_domain(&self, id: AllocationId, within: Timeout) -> Result<(), CommError>;

    /// Waits until every rank has called it. What a rank wrote before its call, every rank sees after its
    /// own.
    fn barrier(&self, within: Timeout) -> Result<(), CommError>;

    /// Copies device bytes that this rank can reach: its own and its peers' windows, and its contexts.
    ///
    /// A range that is not wholly inside one of these is [`ArgumentError::Unreachable`]. An empty range
    /// copies nothing.
    fn read(&self, from: DeviceAddr, into: &mut [u8]) -> Result<(), CommError>;

    /// Copies `bytes` to device memory that this rank can reach: its own and its peers' windows, not a
    /// context.
    fn write(&self, to: DeviceAddr, bytes: &[u8]) -> Result<(), CommError>;

    /// Copies the abort word, which the parent of the ranks writes, to the place where this rank's kernels
    /// read it. Call it before a kernel is launched and repeatedly while it runs. Does nothing where kernels
    /// read the parent's word directly.
    fn relay_abort(&self) -> Result<(), CommError> {
        Ok(())
    }

    /// The windows as memory of this process, where they are that.
    fn host_windows(&self) -> Option<&dyn HostWindows> {
        None
    }

    /// The devices' own engine for collectives, where there is one.
    fn device_collectives(&self) -> Option<&dyn DeviceCollectives> {
        None
    }

    /// What can be done with words of the windows, where these are on devices.
    fn device_words(&self) -> Option<&dyn DeviceWords> {
        None
    }

    /// Leaves the group. Always releases what this rank owns, also when a peer is gone or the deadline
    /// passes; the error then says so. A peer that still waits for this rank gets [`CommError::PeerLeft`].
    fn destroy(self: Box<Self>, within: Timeout) -> Result<(), CommError>;
}

/// A window as its own rank sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Where the [`CommContext`](crate::abi::CommContext) that a kernel gets lies.
    pub context: DeviceAddr,
    /// Where this rank's own window starts.
    pub base: DeviceAddr,
    /// Its real size in bytes, at least the size asked for and the same on every member.
    pub size: usize,
}

/// Names one domain allocation. Chosen by the caller: the same on every member, different for concurrent
/// domains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AllocationId(pub u64);

impl core::fmt::Display for AllocationId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A slice of the base window as a subset of the ranks sees it.
#[derive(Clone, Copy, Debug)]
pub struct SubsetView<'a> {
    /// The ranks of the subset, in the order in which the new context numbers them.
    pub ranks: &'a [u32],
    /// The position of the calling rank in `ranks`.
    pub domain_rank: u32,
    /// Where the slice starts in every rank's base window, in bytes.
    pub offset: usize,
    /// How many bytes it has.
    pub size: usize,
}

/// A domain to allocate: a subset of the ranks with a window of its own.
#[derive(Clone, Copy, Debug)]
pub struct DomainSpec<'a> {
    /// Keeps concurrent allocations apart.
    pub id: AllocationId,
    /// The members, in the order in which the domain numbers them.
    pub ranks: &'a [u32],
    /// The position of the calling rank in `ranks`.
    pub domain_rank: u32,
    /// How many bytes each member's window has at least.
    pub window_size: usize,
}
