//! Joining and leaving.

use super::TestRank;
use super::support::{During, Outcome, ensure_refused};
use crate::comm::{AllocationId, CommError, Communicator, DomainSpec, Membership, SubsetView, Timeout};

pub(super) fn a_group_forms_and_dissolves(test: &TestRank<'_>) -> Outcome {
    let comm = test.join()?;
    ensure_refused!(comm.window(), CommError::NoWindow);
    test.leave(comm)
}

pub(super) fn destroy_releases_windows_and_domains_that_are_left(test: &TestRank<'_>) -> Outcome {
    let comm = test.join()?;
    comm.alloc_windows(4096, test.timeout).during("alloc_windows")?;
    let all_ranks = test.all_ranks();
    if let Some(spec) = test.domain(1, &all_ranks, 4096) {
        comm.alloc_domain(&spec, test.timeout).during("alloc_domain")?;
    }
    test.leave(comm)
}

pub(super) fn every_call(comm: &dyn Communicator, me: Membership, within: Timeout) -> Result<(), CommError> {
    let (all_ranks, rank) = (Vec::from_iter(0..me.nranks()), me.rank());
    comm.alloc_windows(4096, within)?;
    comm.derive_context(&SubsetView { ranks: &[rank], domain_rank: 0, offset: 0, size: 64 })?;
    comm.barrier(within)?;
    let id = AllocationId(7);
    comm.alloc_domain(&DomainSpec { id, ranks: &all_ranks, domain_rank: rank, window_size: 8192 }, within)?;
    comm.release_domain(id, within)?;
    comm.barrier(within)
}
