//! The barrier, used again and again (F26).

use std::thread;
use std::time::Duration;

use super::Seat;
use super::kit::{During, Outcome, context_of, ensure, spot};

pub(super) fn ten_thousand_barriers_back_to_back(seat: &Seat<'_>) -> Outcome {
    let comm = seat.join()?;
    for round in 0..10_000 {
        comm.barrier(seat.timeout).map_err(|error| format!("barrier {round}: {error}"))?;
    }
    seat.part(comm)
}

/// Each rank writes the round, meets, and looks at everybody: an older number means that a rank fell through
/// the first barrier, a newer one that it fell through the second. One rank in turn comes late, or it would
/// hardly show.
pub(super) fn no_rank_falls_through_or_runs_ahead(seat: &Seat<'_>) -> Outcome {
    const ROUNDS: u32 = 200;
    let comm = seat.join()?;
    let window = comm.alloc_windows(4096, seat.timeout).during("alloc_windows")?;
    let context = context_of(comm.as_ref(), &window)?;
    for round in 1..=ROUNDS {
        let late = round % 4 == 0 && round / 4 % seat.nranks == seat.rank;
        if late {
            thread::sleep(Duration::from_millis(1));
        }
        comm.write(window.base, &round.to_le_bytes()).during("writing the round")?;
        seat.meet(comm.as_ref(), "the barrier after writing")?;
        for peer in 0..seat.nranks {
            let mut bytes = [0; 4];
            comm.read(spot(&context, peer, 0)?, &mut bytes).during("reading a peer's round")?;
            let theirs = u32::from_le_bytes(bytes);
            ensure!(theirs == round, "rank {peer} is in round {theirs}, this rank in round {round}");
        }
        if late {
            thread::sleep(Duration::from_millis(1));
        }
        seat.meet(comm.as_ref(), "the barrier after reading")?;
    }
    seat.part(comm)
}
