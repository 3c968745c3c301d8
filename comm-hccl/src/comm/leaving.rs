//! The end of a communicator: before a rank frees its windows, every living rank that has them open closes them.
//!
//! Each rank has a word in the group for that. A rank that destroys its communicator has left the group, so no
//! message can carry it.

use comm_context::comm::{CommError, Phase};
use deadline::{Deadline, Death, HowDied};
use mailbox_atomics::{Wait, WaitError};
use rendezvous::Group;

/// Bytes of the group's memory that a rank owns: windows are on the device.
pub(super) const EXTENT: usize = 0;

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
pub(super) fn wait(group: &Group, ranks: &[u32], until: Deadline) -> Result<(), CommError> {
    let is_open = |rank: &&u32| group.imports(**rank).load() == 0;
    for rank in ranks {
        // How it died is of no interest here: it has nothing open any more.
        let ended = || group.has_ended(*rank).then_some(Death { peer: *rank, pid: 0, how: HowDied::Unknown });
        match Wait::until(until)
            .watching(&ended)
            .on(group.imports(*rank), None, |imports| (imports != 0).then_some(()))
        {
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
