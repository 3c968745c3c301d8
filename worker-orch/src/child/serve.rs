//! The loop of a child: take the next frame, wait for what it needs, execute it, publish that it is done.

use crate::shared::{ControlBlock, Kind, Outcome, ParentWords, ReceivedFrame, SLOT_BYTES, covers};
use deadline::{Deadline, LONGEST_WAIT, monotonic_ns};
use fault_points::fault_point;
use mailbox_atomics::{DispatchReceiver, SpinBudget, Wait, WaitError};
use std::panic::{AssertUnwindSafe, catch_unwind};
use worker_errors::{ErrorCode, Failure};

/// What a child does with a frame. The answer goes back to the parent; it is empty for tasks.
pub(super) trait Executor {
    fn execute(&mut self, frame: &ReceivedFrame) -> Result<Vec<u8>, Failure>;

    /// After a failure: whether nothing can be executed any more.
    fn is_lost(&self) -> bool {
        false
    }

    /// After a failure: whether another thread has recorded it. It says so once.
    fn was_recorded(&mut self) -> bool {
        false
    }

    /// A frame failed or was skipped, which is on record by now: others that wait for what it would have done need not.
    fn not_done(&mut self) {}
}

/// Why a task has no result.
enum TaskError {
    /// It failed.
    Failed(Failure),
    /// It was skipped or cancelled because of another failure, which is recorded where it happened.
    Followed,
}

/// How the loop ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Shutdown,
    /// A collective command panicked. Its peers wait for this child, and the state of its communicator is
    /// unknown: the process must end.
    Panicked,
    /// The executor has lost what it needs: the process must end.
    Lost,
}

/// Serves until shutdown. A parked child costs nothing: the parent's death kills it from outside, so it
/// watches nothing.
pub(super) fn serve(block: &ControlBlock, me: usize, executor: &mut dyn Executor) -> Ended {
    let spin = SpinBudget::for_parties_on(block.children() + 1, block.parent().cores());
    let (words, parent) = (block.child(me), block.parent());
    let mut slot = vec![0; SLOT_BYTES];
    let mut frame = ReceivedFrame::default();
    // It goes on where a process in its place that was ended stopped.
    let mut ring = DispatchReceiver::new(words.done_number(), words.slot_flag(), parent.shutdown_word());
    // The last run of which this child recorded a failure. It is not read back from the control block: the
    // parent polls that cache line, and its owner would have to fetch it.
    let mut failed_run = words.failed_run();
    // Decided before there are children.
    let measured = parent.asks().measured();
    let Ok(mut idle) = Deadline::after(LONGEST_WAIT) else { return Ended::Shutdown };
    while let Some(seq) = next_frame(block, me, &mut ring, &mut idle, &spin) {
        words.set_busy(seq);
        block.read_frame(me, seq, &mut slot, &mut frame);
        fault_point!("worker.frame.received");
        if frame.kind == Some(Kind::Shutdown) {
            fault_point!("worker.child.shutdown");
            break;
        }
        let received_ns = if measured { monotonic_ns() } else { 0 };
        let ready = if covers(failed_run, frame.run)
            || frame.kind == Some(Kind::Task) && parent.is_cancelled(frame.run)
        {
            Err(TaskError::Followed)
        } else {
            await_prerequisites(block, me, &frame, &spin)
        };
        fault_point!("worker.frame.ready");
        let start_ns = if measured { monotonic_ns() } else { 0 };
        if measured {
            block.record_start(me, seq, start_ns);
        }
        // A task that is cancelled does not begin, and one that began before counts as failed.
        let is_cancelled = || frame.kind == Some(Kind::Task) && block.is_task_cancelled(me, seq);
        let outcome = match ready {
            Ok(()) if is_cancelled() => Err(TaskError::Followed),
            Ok(()) => {
                let executed = execute(parent, executor, &frame);
                if is_cancelled() { Err(TaskError::Followed) } else { executed }
            }
            Err(error) => Err(error),
        };
        let outcome = outcome.map_err(|error| cause(block, me, seq, &frame, error));
        if measured {
            let end_ns = monotonic_ns();
            block.record_end(me, seq, end_ns, traced(&outcome));
            words.add_times(end_ns.saturating_sub(start_ns), start_ns.saturating_sub(received_ns));
        }
        fault_point!("worker.frame.executed");
        match outcome {
            Ok(answer) if answer.is_empty() => {}
            Ok(answer) => block.write_answer(me, &answer),
            Err(_) if executor.is_lost() => return Ended::Lost,
            // Only the first failure of a flight is recorded: all that follows in it is skipped.
            Err(_) if covers(failed_run, frame.run) => executor.not_done(),
            Err(error) => {
                let failure = match &error {
                    TaskError::Failed(failure) => Some(failure),
                    TaskError::Followed => None,
                };
                if !executor.was_recorded() {
                    block.record_failure(me, frame.run, seq, frame.program, failure);
                }
                failed_run = frame.run;
                // It cancels the run, so that others need not wait for what this child does not do. It may wait for them.
                block.nudge_parent();
                executor.not_done();
                let panicked = failure.is_some_and(|failure| failure.code == ErrorCode::Panic);
                if panicked && frame.kind.is_some_and(Kind::is_collective) {
                    return Ended::Panicked;
                }
            }
        }
        words.set_idle();
        fault_point!("worker.frame.before-done");
        ring.finish(block.listeners(me));
        fault_point!("worker.frame.done");
    }
    words.set_idle();
    Ended::Shutdown
}

fn traced(outcome: &Result<Vec<u8>, TaskError>) -> Outcome {
    match outcome {
        Ok(_) => Outcome::Done,
        Err(TaskError::Failed(_)) => Outcome::Failed,
        Err(TaskError::Followed) => Outcome::Skipped,
    }
}

/// Waits for the next frame; `None` at shutdown.
fn next_frame(
    block: &ControlBlock,
    me: usize,
    ring: &mut DispatchReceiver<'_>,
    idle: &mut Deadline,
    spin: &SpinBudget,
) -> Option<u64> {
    let seq = ring.next_number();
    loop {
        let wait = Wait::until(*idle);
        // The first frame comes when all children are up: spinning before that takes the cores that they come
        // up on.
        let wait = if seq == 1 { wait } else { wait.spinning(spin) };
        match ring.next(block.slot_number(me, seq), &wait) {
            Ok(next) => return next,
            // The longest wait there is, renewed: an idle Worker may idle for days.
            Err(_) => *idle = Deadline::after(LONGEST_WAIT).ok()?,
        }
    }
}

/// Waits for the tasks of other children that this one needs.
fn await_prerequisites(
    block: &ControlBlock,
    me: usize,
    frame: &ReceivedFrame,
    spin: &SpinBudget,
) -> Result<(), TaskError> {
    for need in &frame.prerequisites {
        let child = usize::from(need.child);
        if child >= block.children() {
            let text = format!(
                "a task waits for one of process {child}, and there are {} processes; run one build in all of them",
                block.children()
            );
            return Err(TaskError::Failed(Failure::new(ErrorCode::Protocol, text)));
        }
        let Ok(deadline) = Deadline::after(LONGEST_WAIT) else { return Err(TaskError::Followed) };
        // The parent bounds the run, and aborts it when a child dies.
        let wait = Wait::until(deadline).abort_on(block.parent().abort_word()).spinning(spin);
        let mut parked = block.park_flag(me, child);
        let words = block.child(child);
        let waits = words.done() < need.seq;
        if waits {
            block.child(me).set_need(Some(*need));
        }
        let waited = words.done_number().wait_for(need.seq, &wait, &mut parked);
        if waits {
            block.child(me).set_need(None);
        }
        match waited {
            Ok(_) if covers(words.failed_run(), frame.run) => return Err(TaskError::Followed),
            Ok(_) => {}
            Err(
                WaitError::Aborted { .. }
                | WaitError::Interrupted
                | WaitError::TimedOut { .. }
                | WaitError::PeerDied(_),
            ) => return Err(TaskError::Followed),
        }
    }
    Ok(())
}

/// A task that ended because it is cancelled itself does not follow another failure: it is the failure. The parent cancels the task before
/// it cancels the run, so who sees the run cancelled sees that too.
#[cold]
fn cause(block: &ControlBlock, me: usize, seq: u64, frame: &ReceivedFrame, error: TaskError) -> TaskError {
    match error {
        TaskError::Followed if frame.kind == Some(Kind::Task) && block.is_task_cancelled(me, seq) => {
            fault_point!("worker.task.cancelled");
            let text = "the task was cancelled by its caller";
            TaskError::Failed(Failure::new(ErrorCode::Aborted, text))
        }
        error => error,
    }
}

/// Executes a frame. A panic is a failure, and so is a run that was aborted or cancelled meanwhile (F46): the
/// task may have returned only because its wait ended, and its results cannot be trusted.
#[inline]
fn execute(
    parent: &ParentWords,
    executor: &mut dyn Executor,
    frame: &ReceivedFrame,
) -> Result<Vec<u8>, TaskError> {
    if frame.kind == Some(Kind::Wait) {
        return Ok(Vec::new());
    }
    let executed = catch_unwind(AssertUnwindSafe(|| executor.execute(frame)));
    let executed = executed.unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default();
        Err(Failure::new(ErrorCode::Panic, format!("the task panicked: {text}")))
    });
    let answer = executed.map_err(TaskError::Failed)?;
    if parent.is_aborted() || frame.kind == Some(Kind::Task) && parent.is_cancelled(frame.run) {
        return Err(TaskError::Followed);
    }
    Ok(answer)
}

/// The parent wrote a frame that this child does not understand.
pub(super) fn malformed() -> Failure {
    Failure::new(ErrorCode::Protocol, "malformed frame")
}
