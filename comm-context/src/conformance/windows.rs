//! The base window: what is in it, who reaches it, and views of it.

use super::Seat;
use super::kit::{
    During, Outcome, context_at, context_of, ensure, ensure_refused, ensure_stamp, ensure_zero, spot, stamp,
};
use crate::comm::{CommError, SubsetView};

/// Not a multiple of any page size, so that rounding shows.
const ODD_SIZE: usize = 3 * 4096 + 1;

pub(super) fn a_window_is_zeroed_and_described_by_its_context(seat: &Seat<'_>) -> Outcome {
    let comm = seat.join()?;
    let window = comm.alloc_windows(ODD_SIZE, seat.timeout).during("alloc_windows")?;
    ensure!(window.size >= ODD_SIZE, "asked for {ODD_SIZE} bytes, got {}", window.size);
    let again = comm.window().during("window")?;
    ensure!(again == window, "alloc_windows said {window:?}, window says {again:?}");

    let context = context_of(comm.as_ref(), &window)?;
    let is = (context.rank(), context.nranks());
    ensure!(is == (seat.rank, seat.nranks), "the context says it is rank {} of {}", is.0, is.1);
    for rank in 0..seat.nranks {
        let base = context.window_in(rank).during("a window")?;
        ensure_zero(comm.as_ref(), base, window.size, &format!("the window of rank {rank}"))?;
        for other in 0..rank {
            let apart = context.window_in(other).during("a window")?.0.abs_diff(base.0);
            ensure!(apart >= window.size as u64, "the windows of ranks {other} and {rank} overlap");
        }
    }
    seat.part(comm)
}

pub(super) fn a_second_base_window_is_refused(seat: &Seat<'_>) -> Outcome {
    let comm = seat.join()?;
    let window = comm.alloc_windows(4096, seat.timeout).during("alloc_windows")?;
    ensure_refused!(comm.alloc_windows(4096, seat.timeout), CommError::WindowsExist);
    ensure_refused!(comm.alloc_windows(8192, seat.timeout), CommError::WindowsExist);
    ensure!(comm.window().during("window")? == window, "the window changed");
    seat.part(comm)
}

pub(super) fn what_a_rank_writes_every_rank_reads_after_the_barrier(seat: &Seat<'_>) -> Outcome {
    let comm = seat.join()?;
    let slot = |writer: u32| writer as usize * 64;
    let window = comm.alloc_windows(slot(seat.nranks), seat.timeout).during("alloc_windows")?;
    let context = context_of(comm.as_ref(), &window)?;
    for round in 0..3 {
        for owner in 0..seat.nranks {
            let to = spot(&context, owner, slot(seat.rank))?;
            comm.write(to, &stamp(seat.rank, owner, round)).during("writing to a peer")?;
        }
        seat.meet(comm.as_ref(), "the barrier after writing")?;
        for owner in 0..seat.nranks {
            for writer in 0..seat.nranks {
                ensure_stamp(comm.as_ref(), spot(&context, owner, slot(writer))?, (writer, owner, round))?;
            }
        }
        seat.meet(comm.as_ref(), "the barrier after reading")?;
    }
    seat.part(comm)
}

pub(super) fn a_derived_context_is_a_slice_under_other_ranks(seat: &Seat<'_>) -> Outcome {
    const OFFSET: usize = 1024;
    let comm = seat.join()?;
    let size = seat.nranks as usize * 64;
    let window = comm.alloc_windows(OFFSET + size, seat.timeout).during("alloc_windows")?;
    let base = context_of(comm.as_ref(), &window)?;
    let ranks: Vec<u32> = seat.everybody().into_iter().rev().collect();
    let domain_rank = seat.nranks - 1 - seat.rank;
    let view = SubsetView { ranks: &ranks, domain_rank, offset: OFFSET, size };
    let context = context_at(comm.as_ref(), comm.derive_context(&view).during("derive_context")?)?;

    let is = (context.rank(), context.nranks(), context.win_size);
    ensure!(
        is == (domain_rank, seat.nranks, size as u64),
        "the derived context is {is:?} (rank, ranks, winSize)"
    );
    for (at, rank) in ranks.iter().enumerate() {
        let found = context.window_in(at as u32).during("a derived window")?;
        let want = spot(&base, *rank, OFFSET)?;
        ensure!(found == want, "window {at} of the view is at {found}; rank {rank}'s slice is at {want}");
    }
    for owner in 0..seat.nranks {
        comm.write(spot(&context, owner, domain_rank as usize * 64)?, &stamp(domain_rank, owner, 0))
            .during("write")?;
    }
    seat.meet(comm.as_ref(), "the barrier after writing")?;
    let own = spot(&base, seat.rank, OFFSET)?;
    for writer in 0..seat.nranks {
        let at = own.checked_add(u64::from(writer) * 64).ok_or("overflow")?;
        ensure_stamp(comm.as_ref(), at, (writer, domain_rank, 0))?;
    }
    ensure_zero(comm.as_ref(), window.base, OFFSET, "the part of the window before the slice")?;
    seat.part(comm)
}

pub(super) fn deriving_involves_no_peer(seat: &Seat<'_>) -> Outcome {
    let comm = seat.join()?;
    let window = comm.alloc_windows(4096, seat.timeout).during("alloc_windows")?;
    if seat.rank == 0 {
        for offset in 0..100 {
            let view = SubsetView { ranks: &[0], domain_rank: 0, offset: offset * 8, size: 8 };
            let context = context_at(comm.as_ref(), comm.derive_context(&view).during("derive_context")?)?;
            let found = context.window_in(0).during("the window of the view")?;
            let want = window.base.checked_add(offset as u64 * 8);
            ensure!(Some(found) == want, "slice {offset} is at {found}, not at {want:?}");
        }
    }
    seat.part(comm)
}
