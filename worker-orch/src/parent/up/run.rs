//! One run: the caller's closure submits tasks, they drain, and the first cause of a failure is reported.

use super::{Memories, Up};
use crate::log;
use crate::parent::dependencies::Tracker;
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
        if self.has_runs_before() {
            return self.run_behind(programs, deadline, body);
        }
        self.free_dropped(deadline)?;
        let run = self.next_run();
        let clean_up = self.next_run();
        let span = log::span(|| tracing::debug_span!("run", number = run));
        let _entered = span.enter();
        fault_point!("worker.run.begun");
        self.heap.run_begun(run);
        self.children.begin_run(run, deadline);
        let mut orchestrator = self.orchestrator(programs, run, deadline);
        let returned = catch_unwind(AssertUnwindSafe(|| body(&mut orchestrator)));
        orchestrator.closure_returned(matches!(returned, Ok(Ok(_))));
        fault_point!("worker.run.submitted");
        let mut problems = orchestrator.finish();
        fault_point!("worker.run.drained");
        let succeeded = problems.is_empty() && matches!(returned, Ok(Ok(_)));
        let end = if succeeded { RunEnd::Succeeded } else { RunEnd::Failed };
        if let Err(failure) = orchestrator.release_domains(clean_up, end) {
            problems.add(Event::CleanUp, failure);
        }
        self.heap.run_over(run);
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

    /// What submits the tasks of a run, or settles it.
    pub(super) fn orchestrator<'w>(
        &'w mut self,
        programs: &'w Programs,
        run: u64,
        deadline: Deadline,
    ) -> Orchestrator<'w> {
        let mut orchestrator = Orchestrator::new(
            &mut self.children,
            programs,
            &mut self.base,
            self.next_level,
            Memories {
                contexts: &self.contexts,
                allocations: &self.allocations,
                heap: &self.heap,
                kind: self.chip_memory,
                spaces: &self.spaces,
            },
            RunId { worker: self.id, run },
            deadline,
        );
        orchestrator.check_tasks(&self.heap);
        orchestrator
    }

    /// What the runs in flight touch.
    pub(super) fn take_tracker(&mut self) -> Tracker {
        std::mem::take(&mut self.tracker)
    }
}
