//! Single tasks: what became of them, and how they are cancelled.

use super::Up;
use crate::shared::{Activity, FailedAt, Outcome, covers, same_flight};
use crate::task_id::TaskId;
use crate::task_report::{TaskReport, TaskState};
use fault_points::fault_point;
use std::time::Duration;
use worker_errors::{ErrorCode, Failure};

impl Up {
    pub(crate) fn task(&self, task: TaskId) -> Result<TaskReport, Failure> {
        let (block, run, at) = (self.children.block(), task.run().run, task.prerequisite());
        let (child, seq) = (usize::from(at.child), at.seq);
        let words = block.child(child);
        // Done before the failure: a child records its failure before it says that it is done with the task.
        let done = words.done() >= seq;
        let (failed_run, failed_seq) = block.failed_task(child);
        if failed_run > run && !same_flight(failed_run, run) {
            let text = "a later run has failed on the same chip, and what became of this task is not known any more; ask for it before \
                        the next run";
            return Err(Failure::new(ErrorCode::Invalid, text).in_phase("task"));
        }
        let failed = done && covers(failed_run, run) && seq >= failed_seq;
        let failed_at = block.failed_at(child, failed_run);
        let (state, failure) = match words.activity() {
            _ if failed && seq == failed_seq && matches!(failed_at, Some(FailedAt::Time(_))) => {
                (TaskState::Failed, Some(block.failure(child)))
            }
            _ if failed => (TaskState::Cancelled, None),
            _ if done => (TaskState::Done, None),
            Activity::Task { seq: current, need: None, .. } if current == seq => (TaskState::Running, None),
            _ => (TaskState::Waiting, None),
        };
        let times = block.times(child, seq).filter(|times| times.outcome != Outcome::Unfinished);
        let times = times.filter(|_| matches!(state, TaskState::Done | TaskState::Failed));
        let took = times.map(|times| Duration::from_nanos(times.end_ns.saturating_sub(times.start_ns)));
        Ok(TaskReport { state, took, failure })
    }

    pub(crate) fn cancel_task(&self, task: TaskId) -> Result<(), Failure> {
        let at = task.prerequisite();
        fault_point!("worker.task.cancel");
        if !matches!(self.task(task)?.state, TaskState::Waiting | TaskState::Running) {
            return Ok(());
        }
        self.children.block().cancel_task(usize::from(at.child), task.run().run, at.seq);
        // A task that has begun ends with its run. What is missed here, the next wait finds.
        self.children.attend();
        Ok(())
    }
}
