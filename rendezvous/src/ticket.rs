//! Joining prepared memory in a process that was not forked from the one that prepared it.

use crate::group::{Prepared, layout};
use crate::memory::{Memory, region_error};
use comm_context::comm::{CommError, Membership};
use shared_memory::Region;
use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;

/// What a process needs to know of [`Prepared`] memory, beside its descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// How many ranks.
    pub nranks: u32,
    /// Bytes of addresses that each of them owns.
    pub extent: usize,
    /// Which group it is.
    pub nonce: u64,
    /// Where the memory stands, in every process of the group.
    pub at: NonZeroUsize,
}

impl Prepared {
    /// What another process needs to [`attach`](Self::attach).
    pub fn ticket(&self) -> Ticket {
        let layout = self.memory.layout;
        Ticket {
            nranks: layout.nranks,
            extent: layout.extent,
            nonce: self.memory.header().nonce.load(),
            at: self.memory.region.base().addr(),
        }
    }

    /// The memory that another process prepared, at the address that it has there. `fd` is its [`region`](Self::region)'s descriptor.
    pub fn attach(fd: OwnedFd, ticket: &Ticket) -> Result<Self, CommError> {
        Membership::new(0, ticket.nranks)?;
        let layout = layout(ticket.nranks, ticket.extent)?;
        let at = NonNull::without_provenance(ticket.at);
        let region = Region::attach_at(fd, crate::memory::LABEL, layout.total(), at).map_err(region_error)?;
        Ok(Self { memory: Arc::new(Memory::of_group(region, layout, ticket.nonce)?) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_leads_to_the_same_memory_and_a_wrong_one_is_refused() {
        let prepared = Prepared::new(2, 1 << 21).unwrap();
        let ticket = prepared.ticket();
        let fd = prepared.region().fd().try_clone_to_owned().unwrap();
        // Its addresses are taken while it stands in this process itself.
        let told = Prepared::attach(fd.try_clone().unwrap(), &ticket).unwrap_err();
        assert!(format!("{told:?}").contains("AddressTaken"), "{told:?}");
        drop(prepared);
        for wrong in [
            Ticket { nranks: 3, ..ticket },
            Ticket { nranks: 65, ..ticket },
            Ticket { extent: 1 << 40, ..ticket },
            Ticket { nonce: ticket.nonce ^ 1, ..ticket },
        ] {
            assert!(Prepared::attach(fd.try_clone().unwrap(), &wrong).is_err(), "{wrong:?}");
        }
        let again = Prepared::attach(fd, &ticket).unwrap();
        assert_eq!(again.ticket(), ticket);
    }
}
