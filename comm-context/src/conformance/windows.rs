//! The base window: its contents, who can reach it, and views of it.

use super::TestRank;
use super::support::{
    During, Outcome, address_in, context_at, context_of, ensure, ensure_pattern, ensure_refused, ensure_zero,
    pattern,
};
use crate::comm::{CommError, SubsetView};

/// Not a multiple of any page size, so that rounding shows.
const ODD_SIZE: usize = 3 * 4096 + 1;

pub(super) fn a_window_is_zeroed_and_described_by_its_context(test: &TestRank<'_>) -> Outcome {
    let comm = test.join()?;
    let window = comm.alloc_windows(ODD_SIZE, test.timeout).during("alloc_windows")?;
    ensure!(window.size >= ODD_SIZE, "asked for {ODD_SIZE} bytes, got {}", window.size);
    let again = comm.window().during("window")?;
    ensure!(again == window, "alloc_windows said {window:?}, window says {again:?}");

    let context = context_of(comm.as_ref(), &window)?;
    let is = (context.rank(), context.nranks());
    ensure!(is == (test.rank, test.nranks), "the context says it is rank {} of {}", is.0, is.1);
    for rank in 0..test.nranks {
        let base = context.window_in(rank).during("a window")?;
        ensure_zero(comm.as_ref(), base, window.size, &format!("the window of rank {rank}"))?;
        for other in 0..rank {
            let apart = context.window_in(other).during("a window")?.0.abs_diff(base.0);
            ensure!(apart >= window.size as u64, "the windows of ranks {other} and {rank} overlap");
        }
    }
    test.leave(comm)
}

pub(super) fn a_second_base_window_is_refused(test: &TestRank<'_>) -> Outcome {
    let comm = test.join()?;
    let window = comm.alloc_windows(4096, test.timeout).during("alloc_windows")?;
    ensure_refused!(comm.alloc_windows(4096, test.timeout), CommError::WindowsExist);
    ensure_refused!(comm.alloc_windows(8192, test.timeout), CommError::WindowsExist);
    ensure!(comm.window().during("window")? == window, "the window changed");
    test.leave(comm)
}

pub(super) fn what_a_rank_writes_every_rank_reads_after_the_barrier(test: &TestRank<'_>) -> Outcome {
    let comm = test.join()?;
    let slot = |writer: u32| writer as usize * 64;
    let window = comm.alloc_windows(slot(test.nranks), test.timeout).during("alloc_windows")?;
    let context = context_of(comm.as_ref(), &window)?;
    for round in 0..3 {
        for owner in 0..test.nranks {
            let to = address_in(&context, owner, slot(test.rank))?;
            comm.write(to, &pattern(test.rank, owner, round)).during("writing to a peer")?;
        }
        test.barrier(comm.as_ref(), "the barrier after writing")?;
        for owner in 0..test.nranks {
            for writer in 0..test.nranks {
                ensure_pattern(
                    comm.as_ref(),
                    address_in(&context, owner, slot(writer))?,
                    (writer, owner, round),
                )?;
            }
        }
        test.barrier(comm.as_ref(), "the barrier after reading")?;
    }
    test.leave(comm)
}

pub(super) fn a_derived_context_is_a_slice_under_other_ranks(test: &TestRank<'_>) -> Outcome {
    const OFFSET: usize = 1024;
    let comm = test.join()?;
    let size = test.nranks as usize * 64;
    let window = comm.alloc_windows(OFFSET + size, test.timeout).during("alloc_windows")?;
    let base = context_of(comm.as_ref(), &window)?;
    let ranks: Vec<u32> = test.all_ranks().into_iter().rev().collect();
    let domain_rank = test.nranks - 1 - test.rank;
    let view = SubsetView { ranks: &ranks, domain_rank, offset: OFFSET, size };
    let context = context_at(comm.as_ref(), comm.derive_context(&view).during("derive_context")?)?;

    let is = (context.rank(), context.nranks(), context.win_size);
    ensure!(
        is == (domain_rank, test.nranks, size as u64),
        "the derived context is {is:?} (rank, ranks, winSize)"
    );
    for (at, rank) in ranks.iter().enumerate() {
        let found = context.window_in(at as u32).during("a derived window")?;
        let want = address_in(&base, *rank, OFFSET)?;
        ensure!(found == want, "window {at} of the view is at {found}; rank {rank}'s slice is at {want}");
    }
    for owner in 0..test.nranks {
        comm.write(address_in(&context, owner, domain_rank as usize * 64)?, &pattern(domain_rank, owner, 0))
            .during("write")?;
    }
    test.barrier(comm.as_ref(), "the barrier after writing")?;
    let own = address_in(&base, test.rank, OFFSET)?;
    for writer in 0..test.nranks {
        let at = own.checked_add(u64::from(writer) * 64).ok_or("overflow")?;
        ensure_pattern(comm.as_ref(), at, (writer, domain_rank, 0))?;
    }
    ensure_zero(comm.as_ref(), window.base, OFFSET, "the part of the window before the slice")?;
    test.leave(comm)
}

pub(super) fn derive_context_involves_no_peer(test: &TestRank<'_>) -> Outcome {
    let comm = test.join()?;
    let window = comm.alloc_windows(4096, test.timeout).during("alloc_windows")?;
    if test.rank == 0 {
        for offset in 0..100 {
            let view = SubsetView { ranks: &[0], domain_rank: 0, offset: offset * 8, size: 8 };
            let context = context_at(comm.as_ref(), comm.derive_context(&view).during("derive_context")?)?;
            let found = context.window_in(0).during("the window of the view")?;
            let want = window.base.checked_add(offset as u64 * 8);
            ensure!(Some(found) == want, "slice {offset} is at {found}, not at {want:?}");
        }
    }
    test.leave(comm)
}
