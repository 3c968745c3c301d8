//! The end of a communicator: before a rank frees its windows, every living rank that has them open closes them.
//!
//! Each rank publishes a number in the group for that. A rank that destroys its communicator has left the group, so no
//! message can carry it.

use comm_context::comm::{CommError, Phase};
use deadline::Deadline;
use rendezvous::Group;
use std::time::Duration;

/// Bytes of the group's memory that a rank owns: windows are on the device.
pub(super) const EXTENT: usize = 0;

/// How often a rank looks for what the others have published.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// What a rank says about the windows that it has opened. 0, the first value, is that they are open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Imports {
    /// All are closed.
    Closed = 1,
    /// They cannot be closed: a vendor call failed or does not return.
    Stuck = 2,
}

/// Tells the other ranks.
pub(super) fn publish(group: &Group, imports: Imports) {
    group.publish_imports(imports as u32);
}

/// Waits until each of these ranks has closed its imports, cannot, or is dead.
pub(super) fn wait(group: &Group, mut ranks: Vec<u32>, until: Deadline) -> Result<(), CommError> {
    let is_open = |rank: u32| group.imports(rank) == 0;
    loop {
        ranks.retain(|rank| is_open(*rank) && !group.has_ended(*rank));
        if ranks.is_empty() {
            return Ok(());
        }
        if until.has_passed() {
            return Err(CommError::TimedOut {
                phase: Phase::Destroy,
                waited: until.elapsed(),
                limit: until.limit(),
                missing: ranks,
                table: group.table(),
            });
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}
