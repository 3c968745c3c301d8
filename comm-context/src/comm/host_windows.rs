//! Windows that this process reaches as plain memory.

use core::num::NonZeroU32;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

use super::{CommError, Timeout};
use crate::abi::DeviceAddr;

/// A communicator whose windows lie in the address space of this process, its own and those of its peers.
///
/// Code that runs on such windows (`collectives`) reads and writes them itself. What it cannot do itself is to wait: who is alive, who
/// has left, whether the run was aborted and when spinning pays is known to the communicator only.
pub trait HostWindows: Send + Sync {
    /// Where `len` bytes of a window lie in this process. Valid until the window is released.
    ///
    /// A range that is not wholly inside one window is [`ArgumentError::Unreachable`](super::ArgumentError::Unreachable).
    fn host_pointer(&self, addr: DeviceAddr, len: usize) -> Result<NonNull<u8>, CommError>;

    /// Whether the ranks have a core each, so that one that spins does not keep another from running.
    fn has_core_per_rank(&self) -> bool;

    /// How many times kernels were cancelled and let go on: their steps begin anew with each.
    fn generation(&self) -> u32;

    /// Waits until `ready` returns true for the value of the word: spins while that pays, then parks.
    ///
    /// `ready` is called again whenever the word may have changed, and at least once in [`WordWait::poll`]. The wait ends early with
    /// [`CommError::PeerDied`] or [`CommError::PeerLeft`] when a needed rank is gone, with [`CommError::Aborted`], or with
    /// [`CommError::TimedOut`]. Each of them breaks the communicator, except that of a run that was cancelled.
    fn wait_on(&self, wait: &WordWait<'_>, ready: &mut dyn FnMut(u64) -> bool) -> Result<(), CommError>;

    /// What a wait for these ranks would end with now, if it ended early: for callers that poll.
    fn check_ranks(&self, ranks: &[u32], since_ns: u64, within: Timeout) -> Result<(), CommError>;
}

/// A wait for one word of a peer's window.
#[derive(Clone, Copy)]
pub struct WordWait<'a> {
    /// The word. Its writer wakes those who announced in [`parked_on`](Self::parked_on) that they park on it.
    pub word: &'a AtomicU64,
    /// Where this rank announces that it parks: [`tag`](Self::tag) while it does, 0 otherwise.
    pub parked_on: &'a AtomicU32,
    /// By what the writer knows this word.
    pub tag: NonZeroU32,
    /// The ranks of the communicator without which the wait cannot end.
    pub needed: &'a [u32],
    /// When the call began to wait, on the monotonic clock. All waits of a call share one deadline.
    pub since_ns: u64,
    /// How long it may wait from then on.
    pub within: Timeout,
    /// How often `ready` is called though nothing happened to the word; as the communicator likes where `None`.
    pub poll: Option<Duration>,
}
