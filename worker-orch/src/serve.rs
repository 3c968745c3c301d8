//! The loop that a hand runs: take the next frame, wait for what it needs, do it, say so.

use crate::board::{ANSWER_BYTES, Board, RING};
use crate::frame::{BODY_AT, Kind, Received, SLOT_BYTES, used};
use deadline::{Deadline, LONGEST_WAIT, coarse_monotonic_ns, monotonic_ns};
use fault_points::fault_point;
use mailbox_atomics::{ParkFlag, SpinBudget, Wait, WaitError};
use std::panic::{AssertUnwindSafe, catch_unwind};
use worker_errors::{ErrorCode, Failure};

/// What a hand does with a frame. The answer goes back to the parent; it is empty for tasks.
pub(crate) trait Executor {
    fn execute(&mut self, frame: &Received) -> Result<Vec<u8>, Failure>;
}

/// Why a task did not run.
enum Refusal {
    /// It failed before it started.
    Failed(Failure),
    /// An earlier failure is the cause; it has been told by whoever had it.
    Followed,
}

/// How a hand's service ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Served {
    /// It was asked to go.
    ToTheEnd,
    /// A collective command panicked. Its peers wait for this hand, and nobody knows in what state its communicator is: the process must end.
    Panicked,
}

/// Serves until shutdown. Parked, it costs nothing: the parent's death kills it from outside, so it watches nobody.
pub(crate) fn serve(board: &Board, me: usize, executor: &mut dyn Executor) -> Served {
    let spin = SpinBudget::for_parties(board.hands() + 1);
    let words = board.hand(me);
    let mut slot = vec![0; SLOT_BYTES];
    let mut frame = Received::default();
    let mut seq = 0;
    // What this hand last wrote to `failed_run`. It is not read back: the parent looks at that line all the time, and a look of its owner would have to fetch it.
    let mut failed_run = words.progress.failed_run.load();
    let Ok(mut idle) = Deadline::after(LONGEST_WAIT) else { return Served::ToTheEnd };
    while let Some(next) = next_frame(board, me, seq + 1, &mut idle, &spin) {
        seq = next;
        words.doing.since_ns.store(coarse_monotonic_ns());
        words.doing.frame.store(seq);
        read_frame(board, me, seq, &mut slot, &mut frame);
        fault_point!("worker.frame.received");
        if frame.kind == Some(Kind::Shutdown) {
            fault_point!("worker.hand.shutdown");
            break;
        }
        let tracing = board.parent().trace.load() != 0;
        let ready = if frame.run == failed_run {
            Err(Refusal::Followed)
        } else {
            await_needs(board, me, &frame, &spin)
        };
        fault_point!("worker.frame.ready");
        let start_ns = if tracing { monotonic_ns() } else { 0 };
        let outcome = ready
            .and_then(|()| run_guarded(board, executor, &frame).map_err(Refusal::Failed))
            .and_then(|answer| {
                // F46: it may have returned only because its wait was cancelled; what it wrote cannot be trusted.
                let cancelled =
                    frame.kind == Some(Kind::Task) && board.parent().cancelled_run.load() == frame.run;
                if cancelled { Err(Refusal::Followed) } else { Ok(answer) }
            });
        if tracing {
            board.times(me, seq).start_ns.store(start_ns);
            board.times(me, seq).end_ns.store(monotonic_ns());
        }
        fault_point!("worker.frame.executed");
        match outcome {
            Ok(answer) if answer.is_empty() => {}
            Ok(answer) => board.write_answer(me, &answer),
            Err(_) if frame.run == failed_run => {}
            Err(refusal) => {
                let collective = frame.kind.is_some_and(Kind::is_collective);
                let panicked =
                    matches!(&refusal, Refusal::Failed(failure) if failure.code == ErrorCode::Panic);
                record_failure(board, me, &frame, refusal);
                failed_run = frame.run;
                if collective && panicked {
                    return Served::Panicked;
                }
            }
        }
        words.doing.frame.store(0);
        fault_point!("worker.frame.before-done");
        words.progress.done.store_and_notify(seq, board.listeners(me));
        fault_point!("worker.frame.done");
    }
    // Whoever still waits for frames of this hand shall not wait for ever.
    words.doing.frame.store(0);
    Served::ToTheEnd
}

/// Waits for frame `seq`; `None` at shutdown.
fn next_frame(board: &Board, me: usize, seq: u64, idle: &mut Deadline, spin: &SpinBudget) -> Option<u64> {
    let slot = board.slot(me, seq);
    let mut parked = ParkFlag::new(&board.hand(me).parking.parked);
    loop {
        let wait = Wait::until(*idle);
        // The first frame comes when all the others are up: to look out for it before would take the cores that they come up on.
        let wait = if seq == 1 { wait } else { wait.spinning(spin) };
        let woke = wait.on(slot, Some(&mut parked), |found| match found {
            found if found == seq => Some(Some(seq)),
            _ => board.parent().shutdown.raised().map(|_| None),
        });
        match woke {
            Ok(next) => return next,
            // The longest wait there is, renewed: an idle Worker may idle for days.
            Err(_) => *idle = Deadline::after(LONGEST_WAIT).ok()?,
        }
    }
}

fn read_frame(board: &Board, me: usize, seq: u64, slot: &mut [u8], frame: &mut Received) {
    // One cache line first; most frames are no longer.
    board.read_slot(me, seq, &mut slot[..64]);
    let used = slot.first_chunk::<BODY_AT>().and_then(used).unwrap_or(64);
    if used > 64 {
        board.read_slot(me, seq, &mut slot[..used]);
    }
    frame.decode(&slot[..used.max(BODY_AT)]);
}

/// Waits for the tasks of other hands that this one needs.
fn await_needs(board: &Board, me: usize, frame: &Received, spin: &SpinBudget) -> Result<(), Refusal> {
    for need in &frame.prerequisites {
        let hand = usize::from(need.hand);
        if hand >= board.hands() {
            return Err(Refusal::Failed(Failure::new(
                ErrorCode::Protocol,
                format!("there is no hand {hand}"),
            )));
        }
        let Ok(deadline) = Deadline::after(LONGEST_WAIT) else { return Err(Refusal::Followed) };
        // The parent bounds the run and aborts it when a hand dies.
        let wait = Wait::until(deadline).abort_on(&board.parent().abort).spinning(spin);
        let mut listener = board.listener(me, hand);
        let words = board.hand(hand);
        match wait.on(&words.progress.done, Some(&mut listener), |done| (done >= need.seq).then_some(())) {
            Ok(()) if words.progress.failed_run.load() == frame.run => return Err(Refusal::Followed),
            Ok(()) => {}
            Err(WaitError::Aborted { .. } | WaitError::TimedOut { .. } | WaitError::PeerDied(_)) => {
                return Err(Refusal::Followed);
            }
        }
    }
    Ok(())
}

/// Runs a frame; a panic is an error, and so is a run that was aborted meanwhile: its results cannot be trusted.
fn run_guarded(board: &Board, executor: &mut dyn Executor, frame: &Received) -> Result<Vec<u8>, Failure> {
    let outcome = catch_unwind(AssertUnwindSafe(|| executor.execute(frame))).unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default();
        Err(Failure::new(ErrorCode::Panic, format!("the task panicked: {text}")))
    });
    if board.parent().abort.raised().is_some() && outcome.is_ok() {
        return Err(Failure::new(ErrorCode::Aborted, "the run was aborted while this task ran"));
    }
    outcome
}

fn record_failure(board: &Board, me: usize, frame: &Received, refusal: Refusal) {
    let words = board.hand(me);
    match refusal {
        Refusal::Failed(failure) => {
            let mut bytes = vec![0; ANSWER_BYTES];
            let len = failure.encode(&mut bytes).unwrap_or(0);
            board.write_failure(me, &bytes[..len]);
            words.progress.failed_at.store(monotonic_ns());
        }
        Refusal::Followed => words.progress.failed_at.store(u64::MAX),
    }
    words.progress.failed_program.store(frame.program);
    words.progress.failed_run.store(frame.run);
}

/// Stands for a run where a hand tells why it ends badly.
const PARTING: u64 = u64::MAX;

/// Leaves word of what went wrong after the last frame.
pub(crate) fn note_parting(board: &Board, me: usize, failure: &Failure) {
    let mut bytes = vec![0; ANSWER_BYTES];
    let len = failure.encode(&mut bytes).unwrap_or(0);
    board.write_failure(me, &bytes[..len]);
    board.hand(me).progress.failed_run.store(PARTING);
}

/// What a hand that has ended left word of.
pub(crate) fn parting_failure(board: &Board, hand: usize) -> Option<Failure> {
    let noted = board.hand(hand).progress.failed_run.load() == PARTING;
    noted.then(|| Failure::decode(&board.read_failure(hand)).ok()).flatten()
}

/// A slot may be written again when its frame is done. `done` is the hand's word and may be anything.
pub(crate) fn slot_is_free(seq: u64, done: u64) -> bool {
    seq.saturating_sub(RING) <= done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f29_a_slot_is_free_or_not_whatever_the_hand_says() {
        assert!(slot_is_free(1, 0) && slot_is_free(RING, 0) && slot_is_free(RING + 1, 1));
        assert!(!slot_is_free(RING + 1, 0) && slot_is_free(1, u64::MAX));
    }
}
