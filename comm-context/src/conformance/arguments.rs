//! Wrong arguments: refused by name before anything happens, and the communicator stays usable.
//!
//! Every rank makes the wrong calls by itself; the barrier at the end of each case shows that no peer was
//! involved.

use super::TestRank;
use super::support::{During, Outcome, context_of, ensure_refused, ensure_zero};
use crate::abi::{CommContext, DeviceAddr};
use crate::comm::validate::MAX_WINDOW_SIZE;
use crate::comm::{AllocationId, ArgumentError, CommError, DomainSpec, SubsetView};

pub(super) fn calls_before_the_window_exists_are_refused(test: &TestRank<'_>) -> Outcome {
    let comm = test.join()?;
    let view = SubsetView { ranks: &[test.rank], domain_rank: 0, offset: 0, size: 1 };
    ensure_refused!(comm.window(), CommError::NoWindow);
    ensure_refused!(comm.derive_context(&view), CommError::NoWindow);
    test.leave(comm)
}

pub(super) fn wrong_sizes_are_refused_and_nothing_happens(test: &TestRank<'_>) -> Outcome {
    use ArgumentError::{SliceOutside, TooLarge, ZeroSize};
    let comm = test.join()?;
    ensure_refused!(comm.alloc_windows(0, test.timeout), CommError::Argument(ZeroSize { .. }));
    for size in [MAX_WINDOW_SIZE + 1, usize::MAX] {
        ensure_refused!(comm.alloc_windows(size, test.timeout), CommError::Argument(TooLarge { .. }));
    }
    ensure_refused!(comm.window(), CommError::NoWindow);

    let window = comm.alloc_windows(4096, test.timeout).during("alloc_windows after the refusals")?;
    let ranks = [test.rank];
    let view =
        |offset, size| comm.derive_context(&SubsetView { ranks: &ranks, domain_rank: 0, offset, size });
    ensure_refused!(view(0, 0), CommError::Argument(ZeroSize { .. }));
    ensure_refused!(view(0, window.size + 1), CommError::Argument(SliceOutside { .. }));
    ensure_refused!(view(window.size, 1), CommError::Argument(SliceOutside { .. }));
    ensure_refused!(view(usize::MAX, 8), CommError::Argument(SliceOutside { .. }));

    let domain = |window_size| {
        let spec = DomainSpec { id: AllocationId(1), ranks: &ranks, domain_rank: 0, window_size };
        comm.alloc_domain(&spec, test.timeout)
    };
    ensure_refused!(domain(0), CommError::Argument(ZeroSize { .. }));
    ensure_refused!(domain(MAX_WINDOW_SIZE + 1), CommError::Argument(TooLarge { .. }));
    ensure_refused!(domain(usize::MAX), CommError::Argument(TooLarge { .. }));
    ensure_zero(comm.as_ref(), window.base, window.size, "the base window")?;
    test.leave(comm)
}

pub(super) fn wrong_lists_of_ranks_are_refused_and_nothing_happens(test: &TestRank<'_>) -> Outcome {
    use ArgumentError::{DomainRank, DuplicateRank, NoRanks, NoSuchRank, NotThisRank, TooManyRanks};
    let comm = test.join()?;
    comm.alloc_windows(4096, test.timeout).during("alloc_windows")?;
    let both = |ranks: &[u32], domain_rank: u32, want: &dyn Fn(&ArgumentError) -> bool| -> Outcome {
        let view = SubsetView { ranks, domain_rank, offset: 0, size: 64 };
        let spec = DomainSpec { id: AllocationId(9), ranks, domain_rank, window_size: 64 };
        ensure_refused!(comm.derive_context(&view), CommError::Argument(ref why) if want(why));
        ensure_refused!(comm.alloc_domain(&spec, test.timeout), CommError::Argument(ref why) if want(why));
        Ok(())
    };
    let (me, nranks) = (test.rank, test.nranks);
    both(&[], 0, &|why| matches!(why, NoRanks))?;
    both(&vec![me; nranks as usize + 1], 0, &|why| matches!(why, TooManyRanks { .. }))?;
    for unknown in [nranks, u32::MAX] {
        both(&[unknown], 0, &|why| matches!(why, NoSuchRank { rank, position: 0, .. } if *rank == unknown))?;
    }
    for out in [1, u32::MAX] {
        both(&[me], out, &|why| matches!(why, DomainRank { domain_rank, count: 1 } if *domain_rank == out))?;
    }
    if nranks >= 2 {
        let other = (me + 1) % nranks;
        both(&[me, me], 0, &|why| matches!(why, DuplicateRank { first: 0, second: 1, .. }))?;
        both(&[other, me], 0, &|why| matches!(why, NotThisRank { listed, .. } if *listed == other))?;
        both(&[other], 0, &|why| matches!(why, NotThisRank { mine, .. } if *mine == me))?;
    }
    test.leave(comm)
}

pub(super) fn unknown_and_repeated_domains_are_refused(test: &TestRank<'_>) -> Outcome {
    let comm = test.join()?;
    let id = AllocationId(u64::MAX);
    ensure_refused!(comm.release_domain(id, test.timeout), CommError::UnknownDomain { id: it } if it == id);
    let all_ranks = test.all_ranks();
    let spec = test.domain(id.0, &all_ranks, 4096).ok_or("not a member")?;
    comm.alloc_domain(&spec, test.timeout).during("alloc_domain")?;
    ensure_refused!(comm.alloc_domain(&spec, test.timeout), CommError::DomainExists { id: it } if it == id);
    comm.release_domain(id, test.timeout).during("release_domain")?;
    ensure_refused!(comm.release_domain(id, test.timeout), CommError::UnknownDomain { id: it } if it == id);
    test.leave(comm)
}

pub(super) fn ranges_outside_the_windows_are_refused(test: &TestRank<'_>) -> Outcome {
    use ArgumentError::Unreachable;
    let comm = test.join()?;
    ensure_refused!(comm.read(DeviceAddr(4096), &mut [0]), CommError::Argument(Unreachable { .. }));
    let window = comm.alloc_windows(4096, test.timeout).during("alloc_windows")?;
    let context = context_of(comm.as_ref(), &window)?;
    for rank in 0..test.nranks {
        let base = context.window_in(rank).during("a window")?;
        let last = DeviceAddr(base.0 + window.size as u64 - 1);
        comm.read(last, &mut [0]).during("reading the last byte")?;
        comm.read(base, &mut []).during("reading nothing")?;
        ensure_refused!(comm.read(last, &mut [0; 2]), CommError::Argument(Unreachable { len: 2, .. }));
        ensure_refused!(comm.write(last, &[0; 2]), CommError::Argument(Unreachable { len: 2, .. }));
        ensure_refused!(
            comm.read(base, &mut vec![0; window.size + 1]),
            CommError::Argument(Unreachable { addr, .. }) if addr == base
        );
    }
    for addr in [DeviceAddr::NULL, DeviceAddr(1), DeviceAddr(u64::MAX), DeviceAddr(u64::MAX - 7)] {
        ensure_refused!(comm.read(addr, &mut [0; 8]), CommError::Argument(Unreachable { .. }));
        ensure_refused!(comm.write(addr, &[0; 8]), CommError::Argument(Unreachable { .. }));
    }
    // The backend writes contexts. They can be read to the last byte, and not be written.
    let end = DeviceAddr(window.context.0 + size_of::<CommContext>() as u64 - 1);
    comm.read(end, &mut [0]).during("reading the last byte of the context")?;
    ensure_refused!(comm.write(window.context, &[0; 8]), CommError::Argument(Unreachable { .. }));
    test.leave(comm)
}
