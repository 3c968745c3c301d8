//! The barrier, used again and again (F26).

use std::thread;
use std::time::Duration;

use super::TestRank;
use super::support::{During, Outcome, address_in, context_of, ensure};

pub(super) fn ten_thousand_barriers_back_to_back(test: &TestRank<'_>) -> Outcome {
    let comm = test.join()?;
    for round in 0..10_000 {
        comm.barrier(test.timeout).map_err(|error| format!("barrier {round}: {error}"))?;
    }
    test.leave(comm)
}

/// Each rank writes the round, enters the barrier, and reads every rank's round: an older number means that a
/// rank passed the first barrier early, a newer one that it passed the second early. The ranks take turns in
/// arriving late, to provoke it.
pub(super) fn no_rank_passes_early_or_runs_ahead(test: &TestRank<'_>) -> Outcome {
    const ROUNDS: u32 = 200;
    let comm = test.join()?;
    let window = comm.alloc_windows(4096, test.timeout).during("alloc_windows")?;
    let context = context_of(comm.as_ref(), &window)?;
    for round in 1..=ROUNDS {
        let late = round % 4 == 0 && round / 4 % test.nranks == test.rank;
        if late {
            thread::sleep(Duration::from_millis(1));
        }
        comm.write(window.base, &round.to_le_bytes()).during("writing the round")?;
        test.barrier(comm.as_ref(), "the barrier after writing")?;
        for peer in 0..test.nranks {
            let mut bytes = [0; 4];
            comm.read(address_in(&context, peer, 0)?, &mut bytes).during("reading a peer's round")?;
            let theirs = u32::from_le_bytes(bytes);
            ensure!(theirs == round, "rank {peer} is in round {theirs}, this rank in round {round}");
        }
        if late {
            thread::sleep(Duration::from_millis(1));
        }
        test.barrier(comm.as_ref(), "the barrier after reading")?;
    }
    test.leave(comm)
}
