//! Words of windows that are on devices.

use super::{CommError, Timeout};
use crate::abi::DeviceAddr;

/// A communicator whose windows are on devices, where this process reaches their words by copies only. What cannot be done by copies is
/// here; a word is stored with [`write`](super::Communicator::write) and loaded with [`read`](super::Communicator::read).
pub trait DeviceWords: Send + Sync {
    /// Adds to a 32-bit word of a window, of this rank or of a peer, in one step for all who add to it. The sum is there when the call
    /// returns.
    ///
    /// A word that is not wholly inside one window is [`ArgumentError::Unreachable`](super::ArgumentError::Unreachable).
    fn add_word(&self, word: DeviceAddr, by: u32, within: Timeout) -> Result<(), CommError>;

    /// What a wait for these ranks would end with now, if it ended early: for callers that poll.
    fn check_ranks(&self, ranks: &[u32], since_ns: u64, within: Timeout) -> Result<(), CommError>;
}
