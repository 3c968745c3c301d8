//! The end of a communicator: before a rank frees its windows, every living rank that has them open closes them.
//!
//! Each rank has a word in the group's memory for that. A rank that destroys its communicator has left the group, so no
//! message can carry it.

use comm_context::comm::{CommError, Phase};
use deadline::{Deadline, Death, HowDied};
use mailbox_atomics::{Wait, WaitError, WordU32};
use rendezvous::{Group, region_error};

/// Bytes of the group's memory that a rank owns. Windows are on the device, so this is for the word.
pub(super) const EXTENT: usize = size_of::<WordU32>();

/// What a rank says about the windows that it has opened. 0, the first value, is that they are open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Imports {
    /// All are closed.
    Closed = 1,
    /// They cannot be closed: a vendor call failed or does not return.
    Stuck = 2,
}

/// Makes sure that this rank's word has memory behind it.
pub(super) fn prepare(group: &Group) -> Result<(), CommError> {
    group.region().reserve(group.extent(group.membership().rank())).map_err(region_error)
}

/// Tells the other ranks.
pub(super) fn publish(group: &Group, imports: Imports) {
    if let Some(word) = word(group, group.membership().rank()) {
        word.store_and_wake(imports as u32);
    }
}

/// Waits until each of these ranks has closed its imports, cannot, or is dead.
pub(super) fn wait(group: &Group, ranks: &[u32], until: Deadline) -> Result<(), CommError> {
    let is_open = |rank: &&u32| word(group, **rank).is_some_and(|word| word.load() == 0);
    for rank in ranks {
        let Some(word) = word(group, *rank) else { continue };
        // How it died is of no interest here: it has nothing open any more.
        let ended = || group.has_ended(*rank).then_some(Death { peer: *rank, pid: 0, how: HowDied::Unknown });
        match Wait::until(until).watching(&ended).on(word, None, |imports| (imports != 0).then_some(())) {
            Ok(()) | Err(WaitError::PeerDied(_)) => {}
            Err(_) => {
                let missing = ranks.iter().filter(is_open).filter(|rank| !group.has_ended(**rank));
                return Err(CommError::TimedOut {
                    phase: Phase::Destroy,
                    waited: until.elapsed(),
                    limit: until.limit(),
                    missing: missing.copied().collect(),
                    table: group.table(),
                });
            }
        }
    }
    Ok(())
}

fn word(group: &Group, rank: u32) -> Option<&WordU32> {
    group.region().words(group.extent(rank).start).ok()
}
