//! What breaks a group, and what its members are told.

use std::time::Duration;

use super::Seat;
use super::kit::{During, Outcome, ensure, ensure_refused};
use crate::comm::{CommError, Communicator, Phase, Timeout};

/// Every later call repeats the first cause, at once; destroy still releases what is left, and may say that
/// peers are gone.
fn ensure_broken_by(comm: Box<dyn Communicator>, seat: &Seat<'_>, first: &CommError) -> Outcome {
    match comm.barrier(seat.timeout) {
        Err(CommError::Broken { cause }) => {
            ensure!(
                cause.to_string() == first.to_string(),
                "the first cause was `{first}`, later it is `{cause}`"
            );
        }
        other => return Err(format!("after `{first}` a barrier gave {other:?}, not the first cause again")),
    }
    let _ = comm.destroy(seat.timeout);
    Ok(())
}

pub(super) fn ranks_that_disagree_on_the_window_are_all_refused(seat: &Seat<'_>) -> Outcome {
    let comm = seat.join()?;
    let mine = if seat.rank == 0 { 8192 } else { 4096 };
    ensure_refused!(
        comm.alloc_windows(mine, seat.timeout),
        CommError::Mismatch { .. } | CommError::PeerFailed { phase: Phase::AllocWindows, .. }
    );
    ensure_refused!(comm.window(), CommError::NoWindow);
    seat.meet(comm.as_ref(), "the barrier after the refusal")?;
    comm.alloc_windows(4096, seat.timeout).during("alloc_windows with the same size")?;
    seat.part(comm)
}

pub(super) fn a_rank_that_leaves_is_named_to_those_who_wait(seat: &Seat<'_>) -> Outcome {
    let comm = seat.join()?;
    seat.meet(comm.as_ref(), "the barrier before rank 0 leaves")?;
    if seat.rank == 0 {
        return comm.destroy(seat.timeout).during("destroy");
    }
    match comm.barrier(seat.timeout) {
        // Others who were told earlier may have left as well.
        Err(error @ CommError::PeerLeft { phase: Phase::Barrier, .. }) => {
            ensure_broken_by(comm, seat, &error)
        }
        other => Err(format!("rank 0 left, but the barrier gave {other:?}")),
    }
}

/// Rank 1 waits for rank 0 in a domain, briefly and in vain. The others wait for rank 1, and learn that it is
/// gone; they are not made to wait out their own deadline (F20).
pub(super) fn a_deadline_that_passes_is_told_with_who_is_missing(seat: &Seat<'_>) -> Outcome {
    let comm = seat.join()?;
    if seat.rank != 1 {
        return match comm.barrier(seat.timeout) {
            Err(CommError::TimedOut { .. }) => Err("rank 1 is gone, but the barrier waited for it".into()),
            Err(error) => ensure_broken_by(comm, seat, &error),
            Ok(()) => Err("the barrier let go although rank 1 never came".into()),
        };
    }
    let short = Timeout::new(Duration::from_millis(200)).map_err(|error| error.to_string())?;
    let spec = seat.domain(1, &[0, 1], 4096).ok_or("not a member")?;
    let error = match comm.alloc_domain(&spec, short) {
        Err(error) => error,
        Ok(window) => return Err(format!("nobody came, but alloc_domain gave {window:?}")),
    };
    let CommError::TimedOut { phase, waited, limit, missing, .. } = &error else {
        return Err(format!("the deadline passed, but alloc_domain gave `{error}` ({error:?})"));
    };
    ensure!(*phase == Phase::AllocDomain, "the phase is {phase}");
    ensure!(missing == &[0], "the missing ranks are {missing:?}, not [0]");
    ensure!(*limit == short.get() && waited >= limit, "waited {waited:?} of {limit:?}");
    ensure_broken_by(comm, seat, &error)
}
