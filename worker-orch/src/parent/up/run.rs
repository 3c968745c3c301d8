//! One run: the caller's closure submits tasks, they drain, and the first cause of a failure is reported.

use super::Up;
use crate::log;
use crate::parent::first_cause::Event;
use crate::parent::orchestrator::{Orchestrator, RunEnd};
use crate::shared::Programs;
use crate::task_id::RunId;
use deadline::Deadline;
use fault_points::fault_point;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use worker_errors::Failure;

impl Up {
    /// Runs the tasks that `body` submits. Returns when all of them are done and the run's domains are
    /// released.
    pub(crate) fn run<T>(
        &mut self,
        programs: &Programs,
        deadline: Deadline,
        body: impl FnOnce(&mut Orchestrator<'_>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.free_dropped(programs, deadline)?;
        let run = self.next_run();
        let span = log::span(|| tracing::debug_span!("run", number = run / 2 + 1));
        let _entered = span.enter();
        fault_point!("worker.run.begun");
        self.heap.set_in_run(true);
        let mut orchestrator = Orchestrator::new(
            &mut self.children,
            programs,
            &mut self.base,
            self.next_level,
            &self.spaces,
            RunId { worker: self.id, run },
            deadline,
        );
        orchestrator.check_tasks(&self.heap);
        let returned = catch_unwind(AssertUnwindSafe(|| body(&mut orchestrator)));
        orchestrator.closure_returned(matches!(returned, Ok(Ok(_))));
        fault_point!("worker.run.submitted");
        let mut problems = orchestrator.finish();
        fault_point!("worker.run.drained");
        let succeeded = problems.is_empty() && matches!(returned, Ok(Ok(_)));
        let end = if succeeded { RunEnd::Succeeded } else { RunEnd::Failed };
        if let Err(failure) = orchestrator.release_domains(run + 1, end) {
            problems.add(Event::CleanUp, failure);
        }
        self.heap.set_in_run(false);
        fault_point!("worker.run.over");
        let value = match returned.unwrap_or_else(|panic| resume_unwind(panic)) {
            Ok(value) if problems.is_empty() => return Ok(value),
            Ok(value) => Ok(value),
            Err(failure) => {
                problems.add(Event::Closure, failure.clone());
                Err(failure)
            }
        };
        problems.into_result().and(value)
    }
}
