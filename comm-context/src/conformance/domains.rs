//! Domains: subsets of the ranks with windows of their own.

use std::thread;
use std::time::Duration;

use super::TestRank;
use super::support::{
    During, Outcome, address_in, context_of, ensure, ensure_pattern, ensure_refused, ensure_zero, pattern,
};
use crate::comm::{AllocationId, ArgumentError, CommError, Communicator, DomainSpec, Timeout, Window};

const SIZE: usize = 8192;

/// Allocates a domain of which this rank is a member, and checks what it got.
fn allocate(comm: &dyn Communicator, spec: &DomainSpec<'_>, within: Timeout) -> Outcome<Window> {
    let window = comm.alloc_domain(spec, within).during("alloc_domain")?;
    ensure!(window.size >= spec.window_size, "asked for {} bytes, got {}", spec.window_size, window.size);
    let context = context_of(comm, &window)?;
    let is = (context.rank(), context.nranks() as usize);
    let want = (spec.domain_rank, spec.ranks.len());
    ensure!(
        is == want,
        "the domain's context says it is rank {} of {}, not {} of {}",
        is.0,
        is.1,
        want.0,
        want.1
    );
    Ok(window)
}

fn release(comm: &dyn Communicator, id: u64, within: Timeout) -> Outcome {
    comm.release_domain(AllocationId(id), within).during("release_domain")
}

/// A ring of pairs: every rank is in two domains, and every two neighbours share one. All ranks allocate in
/// the order of the ids, so that no cycle of waits can form.
pub(super) fn overlapping_domains_have_windows_of_their_own(test: &TestRank<'_>) -> Outcome {
    let comm = test.join()?;
    let base = comm.alloc_windows(4096, test.timeout).during("alloc_windows")?;
    let pairs: Vec<[u32; 2]> = (0..test.nranks).map(|rank| [rank, (rank + 1) % test.nranks]).collect();
    let mut held = Vec::new();
    for (id, pair) in pairs.iter().enumerate() {
        if let Some(spec) = test.domain(id as u64, pair, SIZE) {
            let window = allocate(comm.as_ref(), &spec, test.timeout)?;
            ensure_zero(comm.as_ref(), window.base, window.size, &format!("the window of domain {id}"))?;
            held.push((id as u64, spec.domain_rank, window, context_of(comm.as_ref(), &window)?));
        }
    }
    test.barrier(comm.as_ref(), "the barrier after allocating")?;
    for (id, me, _, context) in &held {
        comm.write(address_in(context, 1 - me, 64)?, &pattern(*me, 1 - me, *id as u32))
            .during("writing to the neighbour")?;
    }
    test.barrier(comm.as_ref(), "the barrier after writing")?;
    for (id, me, window, _) in &held {
        let inbox = window.base.checked_add(64).ok_or("overflow")?;
        ensure_pattern(comm.as_ref(), inbox, (1 - me, *me, *id as u32))?;
        ensure_zero(comm.as_ref(), window.base, 64, "bytes that no rank wrote")?;
    }
    ensure_zero(comm.as_ref(), base.base, base.size, "the base window")?;
    test.barrier(comm.as_ref(), "the barrier after reading")?;
    for (id, ..) in &held {
        release(comm.as_ref(), *id, test.timeout)?;
    }
    test.leave(comm)
}

/// Even ranks start with one domain, odd ranks with the other, each from its own thread. A backend in which
/// one allocation blocks another deadlocks here.
pub(super) fn two_domains_are_allocated_at_once_in_opposite_order(test: &TestRank<'_>) -> Outcome {
    let comm = test.join()?;
    let (comm_ref, within) = (comm.as_ref(), test.timeout);
    let all_ranks = test.all_ranks();
    for round in 0..5 {
        let mut ids = [2 * round, 2 * round + 1];
        if !test.rank.is_multiple_of(2) {
            ids.reverse();
        }
        let [Some(first), Some(second)] = ids.map(|id| test.domain(id, &all_ranks, SIZE)) else {
            return Err("not a member".into());
        };
        both(&|| allocate(comm_ref, &first, within).map(drop), &|| {
            allocate(comm_ref, &second, within).map(drop)
        })?;
        both(&|| release(comm_ref, ids[0], within), &|| release(comm_ref, ids[1], within))?;
    }
    test.leave(comm)
}

/// Runs both on threads of their own, `second` when `first` most likely waits for its peers. Fails when
/// either fails.
fn both(first: &(dyn Fn() -> Outcome + Sync), second: &(dyn Fn() -> Outcome + Sync)) -> Outcome {
    thread::scope(|scope| {
        let first = scope.spawn(first);
        thread::sleep(Duration::from_millis(20));
        let second = scope.spawn(second);
        for thread in [first, second] {
            thread.join().map_err(|_| "a thread of the case panicked".to_owned())??;
        }
        Ok(())
    })
}

/// Reused memory is zeroed again (F25), and the id can be used again.
pub(super) fn a_domain_is_zeroed_in_each_of_two_hundred_cycles(test: &TestRank<'_>) -> Outcome {
    let comm = test.join()?;
    let all_ranks = test.all_ranks();
    let spec = test.domain(7, &all_ranks, SIZE).ok_or("not a member")?;
    for cycle in 0..200 {
        let window =
            allocate(comm.as_ref(), &spec, test.timeout).map_err(|why| format!("cycle {cycle}: {why}"))?;
        ensure_zero(comm.as_ref(), window.base, window.size, &format!("the window of cycle {cycle}"))?;
        comm.write(window.base, &vec![0x5a; window.size]).during("filling the window")?;
        release(comm.as_ref(), 7, test.timeout).map_err(|why| format!("cycle {cycle}: {why}"))?;
    }
    test.leave(comm)
}

/// The last rank makes no call while the others allocate and release.
pub(super) fn ranks_outside_a_domain_are_not_involved(test: &TestRank<'_>) -> Outcome {
    let comm = test.join()?;
    let last = test.nranks - 1;
    let others: Vec<u32> = (0..last).collect();
    match test.domain(1, &others, SIZE) {
        Some(spec) => {
            allocate(comm.as_ref(), &spec, test.timeout)?;
            release(comm.as_ref(), 1, test.timeout)?;
        }
        None => {
            let spec = DomainSpec { id: AllocationId(1), ranks: &others, domain_rank: 0, window_size: SIZE };
            ensure_refused!(
                comm.alloc_domain(&spec, test.timeout),
                CommError::Argument(ArgumentError::NotThisRank { listed: 0, .. })
            );
        }
    }
    test.leave(comm)
}

/// F28: no member keeps its part of the domain, and the communicator and the id stay usable.
pub(super) fn members_that_disagree_are_all_refused_and_may_try_again(test: &TestRank<'_>) -> Outcome {
    let comm = test.join()?;
    let all_ranks = test.all_ranks();
    let mine = if test.rank == 0 { SIZE } else { 2 * SIZE };
    let differing = test.domain(3, &all_ranks, mine).ok_or("not a member")?;
    ensure_refused!(
        comm.alloc_domain(&differing, test.timeout),
        CommError::Mismatch { .. } | CommError::PeerFailed { .. }
    );
    ensure_refused!(
        comm.release_domain(AllocationId(3), test.timeout),
        CommError::UnknownDomain { id: AllocationId(3) }
    );
    test.barrier(comm.as_ref(), "the barrier after the refusal")?;
    let same = DomainSpec { window_size: SIZE, ..differing };
    allocate(comm.as_ref(), &same, test.timeout)?;
    release(comm.as_ref(), 3, test.timeout)?;
    test.leave(comm)
}
