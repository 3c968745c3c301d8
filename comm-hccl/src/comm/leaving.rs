//! The end of a communicator: before a rank frees its windows, every living rank that has them open closes them.
//!
//! Each rank has a word in the group's memory for that. A rank that destroys its communicator has left the group, so no
//! message can carry it.

use comm_context::comm::{CommError, Phase};
use deadline::Deadline;
use mailbox_atomics::WordU32;
use rendezvous::Group;
use std::time::Duration;

/// How often a rank looks for the words of the others.
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
    if let Some(word) = word(group, group.membership().rank()) {
        word.store(imports as u32);
    }
}

/// Waits until each of these ranks has closed its imports, cannot, or is dead.
pub(super) fn wait(group: &Group, mut ranks: Vec<u32>, until: Deadline) -> Result<(), CommError> {
    let is_open = |rank: u32| word(group, rank).is_some_and(|word| word.load() == 0);
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

fn word(group: &Group, rank: u32) -> Option<&WordU32> {
    group.region().words(group.backend_bytes(rank).start).ok()
}
