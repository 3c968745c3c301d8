//! Joining and leaving.

use super::Seat;
use super::kit::{During, Outcome, ensure_refused};
use crate::comm::{AllocationId, CommError, Communicator, DomainSpec, Membership, SubsetView, Timeout};

pub(super) fn a_group_forms_and_dissolves(seat: &Seat<'_>) -> Outcome {
    let comm = seat.join()?;
    ensure_refused!(comm.window(), CommError::NoWindow);
    seat.part(comm)
}

pub(super) fn windows_and_domains_left_over_do_not_hinder_destroy(seat: &Seat<'_>) -> Outcome {
    let comm = seat.join()?;
    comm.alloc_windows(4096, seat.timeout).during("alloc_windows")?;
    let everybody = seat.everybody();
    if let Some(spec) = seat.domain(1, &everybody, 4096) {
        comm.alloc_domain(&spec, seat.timeout).during("alloc_domain")?;
    }
    seat.part(comm)
}

pub(super) fn every_call(comm: &dyn Communicator, me: Membership, within: Timeout) -> Result<(), CommError> {
    let (everybody, rank) = (Vec::from_iter(0..me.nranks()), me.rank());
    comm.alloc_windows(4096, within)?;
    comm.derive_context(&SubsetView { ranks: &[rank], domain_rank: 0, offset: 0, size: 64 })?;
    comm.barrier(within)?;
    let id = AllocationId(7);
    comm.alloc_domain(&DomainSpec { id, ranks: &everybody, domain_rank: rank, window_size: 8192 }, within)?;
    comm.release_domain(id, within)?;
    comm.barrier(within)
}
