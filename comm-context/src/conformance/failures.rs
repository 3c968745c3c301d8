//! What breaks a group, and the errors that its members get.

use std::time::Duration;

use super::TestRank;
use super::support::{During, Outcome, ensure, ensure_refused};
use crate::comm::{CommError, Communicator, Phase, Timeout};

/// Every later call repeats the first cause at once. Destroy still releases what is left, and may report that
/// peers are gone.
fn ensure_broken_by(comm: Box<dyn Communicator>, test: &TestRank<'_>, first: &CommError) -> Outcome {
    match comm.barrier(test.timeout) {
        Err(CommError::Broken { cause }) => {
            ensure!(
                cause.to_string() == first.to_string(),
                "the first cause was `{first}`, later it is `{cause}`"
            );
        }
        other => return Err(format!("after `{first}` a barrier gave {other:?}, not the first cause again")),
    }
    let _ = comm.destroy(test.timeout);
    Ok(())
}

pub(super) fn ranks_that_disagree_on_the_window_are_all_refused(test: &TestRank<'_>) -> Outcome {
    let comm = test.join()?;
    let mine = if test.rank == 0 { 8192 } else { 4096 };
    ensure_refused!(
        comm.alloc_windows(mine, test.timeout),
        CommError::Mismatch { .. } | CommError::PeerFailed { phase: Phase::AllocWindows, .. }
    );
    ensure_refused!(comm.window(), CommError::NoWindow);
    test.barrier(comm.as_ref(), "the barrier after the refusal")?;
    comm.alloc_windows(4096, test.timeout).during("alloc_windows with the same size")?;
    test.leave(comm)
}

pub(super) fn a_rank_that_leaves_is_named_to_its_waiting_peers(test: &TestRank<'_>) -> Outcome {
    let comm = test.join()?;
    test.barrier(comm.as_ref(), "the barrier before rank 0 leaves")?;
    if test.rank == 0 {
        return comm.destroy(test.timeout).during("destroy");
    }
    match comm.barrier(test.timeout) {
        // A peer that got the error earlier may have left as well.
        Err(error @ CommError::PeerLeft { phase: Phase::Barrier, .. }) => {
            ensure_broken_by(comm, test, &error)
        }
        other => Err(format!("rank 0 left, but the barrier gave {other:?}")),
    }
}

/// Rank 1 waits for rank 0 in a domain and times out after a short limit. The others wait for rank 1 and get
/// its departure as an error before their own deadline passes (F20).
pub(super) fn a_timeout_names_the_missing_ranks(test: &TestRank<'_>) -> Outcome {
    let comm = test.join()?;
    if test.rank != 1 {
        return match comm.barrier(test.timeout) {
            Err(CommError::TimedOut { .. }) => Err("rank 1 is gone, but the barrier waited for it".into()),
            Err(error) => ensure_broken_by(comm, test, &error),
            Ok(()) => Err("the barrier completed although rank 1 never arrived".into()),
        };
    }
    let short = Timeout::new(Duration::from_millis(200)).map_err(|error| error.to_string())?;
    let spec = test.domain(1, &[0, 1], 4096).ok_or("not a member")?;
    let error = match comm.alloc_domain(&spec, short) {
        Err(error) => error,
        Ok(window) => return Err(format!("rank 0 never arrived, but alloc_domain gave {window:?}")),
    };
    let CommError::TimedOut { phase, waited, limit, missing, .. } = &error else {
        return Err(format!("the deadline passed, but alloc_domain gave `{error}` ({error:?})"));
    };
    ensure!(*phase == Phase::AllocDomain, "the phase is {phase}");
    ensure!(missing == &[0], "the missing ranks are {missing:?}, not [0]");
    ensure!(*limit == short.get() && waited >= limit, "waited {waited:?} of {limit:?}");
    ensure_broken_by(comm, test, &error)
}
