//! Memory that a parent prepares for the ranks that it is about to start.

use crate::error::region_error;
use crate::group::{Group, deadline};
use crate::memory::Memory;
use crate::memory::layout::Layout;
use comm_context::comm::{CommError, Membership, Timeout};
use deadline::HowDied;
use fault_points::{fault_point, fault_rank};
use shared_memory::{Region, RegionError};
use std::num::{NonZeroU32, NonZeroUsize};
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

/// The memory of a group whose ranks are about to be started. Their parent creates it; every rank joins it at
/// the same address, after a fork or with a [`Ticket`].
///
/// ```
/// use comm_context::comm::{CommError, Phase, Timeout};
/// use rendezvous::Prepared;
///
/// let prepared = Prepared::new(2, 1 << 20)?; // a MiB of addresses for each rank
/// // What each rank does. In a real group they are children of this process.
/// let rank = |number| -> Result<(), CommError> {
///     let group = prepared.join(number, Timeout::DEFAULT)?;
///     let step = group.step(Phase::Barrier, Timeout::DEFAULT)?;
///     group.barrier(&step)
/// };
/// std::thread::scope(|scope| {
///     let other = scope.spawn(|| rank(1));
///     rank(0).and(other.join().unwrap())
/// })?;
/// # Ok::<_, CommError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Prepared {
    memory: Arc<Memory>,
}

/// What a process needs to know of [`Prepared`] memory to attach to it, beside its descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// How many ranks.
    pub nranks: u32,
    /// Bytes of addresses that each of them owns.
    pub extent: usize,
    /// Which group it is.
    pub nonce: u64,
    /// The address of the memory, in every process of the group.
    pub at: NonZeroUsize,
}

impl Ticket {
    /// How many [descriptors](Prepared::fds) the memory has; `None` for sizes that no group has.
    pub fn descriptors(&self) -> Option<usize> {
        Membership::new(0, self.nranks).ok()?;
        Layout::new(self.nranks, self.extent).map(|layout| layout.objects())
    }
}

impl Prepared {
    /// Memory for `nranks` ranks, each of which owns `extent` bytes of addresses with no memory behind them
    /// yet.
    pub fn new(nranks: u32, extent: usize) -> Result<Self, CommError> {
        Membership::new(0, nranks)?;
        Ok(Self { memory: Arc::new(Memory::create(layout(nranks, extent)?)?) })
    }

    /// What another process needs to [`attach`](Self::attach).
    pub fn ticket(&self) -> Ticket {
        let layout = self.memory.layout();
        Ticket {
            nranks: layout.nranks(),
            extent: layout.extent_len(),
            nonce: self.memory.nonce(),
            at: self.memory.region().base().addr(),
        }
    }

    /// The memory that another process prepared, at the address that it has there. `fds` are copies of its
    /// [`fds`](Self::fds), in that order.
    pub fn attach(fds: Vec<OwnedFd>, ticket: &Ticket) -> Result<Self, CommError> {
        Membership::new(0, ticket.nranks)?;
        let layout = layout(ticket.nranks, ticket.extent)?;
        let at = NonNull::without_provenance(ticket.at);
        Ok(Self { memory: Arc::new(Memory::attach(fds, layout, ticket.nonce, Some(at))?) })
    }

    /// The memory's descriptors, to keep open in the ranks: they reserve memory through them.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.memory.region().fds()
    }

    /// The memory itself.
    pub fn region(&self) -> &Region {
        self.memory.region()
    }

    /// Bytes of the region that `rank`'s backend may use as it likes, as
    /// [`Group::backend_bytes`](crate::Group::backend_bytes).
    pub fn backend_bytes(&self, rank: u32) -> Range<usize> {
        self.memory.layout().backend(rank)
    }

    /// The rank that owns this address, if it is one of an extent.
    pub fn owner(&self, address: u64) -> Option<u32> {
        let layout = self.memory.layout();
        let offset = address.checked_sub(self.memory.region().base().as_ptr() as u64)? as usize;
        (0..layout.nranks()).find(|rank| layout.extent(*rank).contains(&offset))
    }

    /// Joins as `rank`, in its own process, and waits for the others.
    pub fn join(&self, rank: u32, within: Timeout) -> Result<Group, CommError> {
        let me = Membership::new(rank, self.memory.layout().nranks())?;
        fault_rank!(rank);
        fault_point!("rendezvous.joining");
        Group::enter(me, self.memory.clone(), deadline(within)?)
    }

    /// Reports to every rank that `rank` died. For the parent; the first report counts.
    pub fn report_death(&self, rank: u32, how: HowDied) {
        self.memory.report_death(rank, how);
    }

    /// Stops all ranks for good: waits end, and kernels that poll their abort word return.
    pub fn halt(&self, reason: NonZeroU32) {
        self.memory.halt_word().raise(reason);
        self.cancel_kernels();
    }

    /// Makes kernels that poll their abort word return, and ends the ranks' waits for each other. A rank
    /// whose wait ended cannot use the group again.
    pub fn cancel_kernels(&self) {
        self.memory.abort_word().store(1);
        // Those that are parked would find it at their next poll.
        self.memory.wake_ranks();
    }

    /// Lets kernels wait again, in a new generation: their barriers start afresh, because ranks may have been
    /// cancelled at different ones. To be called when no kernel runs, by the one process that cancels them.
    pub fn resume_kernels(&self) {
        let generation = self.memory.generation_word();
        generation.store(generation.load().wrapping_add(1));
        self.memory.abort_word().store(0);
    }

    /// One line for each rank: process, phase, since when.
    pub fn table(&self) -> String {
        self.memory.table()
    }
}

/// The layout of a group's memory, or the error that it would be too large.
pub(crate) fn layout(nranks: u32, extent: usize) -> Result<Layout, CommError> {
    Layout::new(nranks, extent).ok_or_else(|| region_error(RegionError::BadLength { len: extent }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_leads_to_the_same_memory_and_a_wrong_one_is_refused() {
        let prepared = Prepared::new(2, 1 << 21).unwrap();
        let ticket = prepared.ticket();
        let fds: Vec<OwnedFd> = prepared.fds().map(|fd| fd.try_clone_to_owned().unwrap()).collect();
        let again = || fds.iter().map(|fd| fd.try_clone().unwrap()).collect::<Vec<_>>();
        // Its addresses are taken while it is mapped in this process itself.
        let error = Prepared::attach(again(), &ticket).unwrap_err();
        assert!(format!("{error:?}").contains("AddressTaken"), "{error:?}");
        drop(prepared);
        for wrong in [
            Ticket { nranks: 3, ..ticket },
            Ticket { nranks: 65, ..ticket },
            Ticket { extent: 1 << 40, ..ticket },
            Ticket { nonce: ticket.nonce ^ 1, ..ticket },
        ] {
            assert!(Prepared::attach(again(), &wrong).is_err(), "{wrong:?}");
        }
        assert!(Prepared::attach(again().split_off(1), &ticket).is_err());
        assert_eq!(Prepared::attach(again(), &ticket).unwrap().ticket(), ticket);
    }
}
