//! Runs that are submitted now and waited for later.

use super::Up;
use crate::log;
use crate::parent::children::{Drained, Ended, InFlight};
use crate::parent::first_cause::{Event, Problems};
use crate::parent::orchestrator::{Domains, Orchestrator, RunEnd, run_before_failed};
use crate::shared::{Programs, next_of};
use crate::task_id::RunId;
use deadline::{Deadline, LONGEST_WAIT};
use fault_points::fault_point;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;
use worker_errors::{ErrorCode, Failure};

/// How long what was cancelled has to drain after a run that used up its own time.
const CLEAN_UP: Duration = Duration::from_secs(2);

impl Up {
    /// Whether a run has to go behind others, or one failed of which nobody has been told.
    pub(super) fn has_runs_before(&self) -> bool {
        self.children.flight().len() > 0 || self.untold.is_some()
    }

    /// Runs `body` behind the runs in flight, and waits for all of them.
    #[cold]
    pub(super) fn run_behind<T>(
        &mut self,
        programs: &Programs,
        deadline: Deadline,
        body: impl FnOnce(&mut Orchestrator<'_>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let (value, id, ended) = self.submit(programs, usize::MAX, deadline, body)?;
        self.settle_all(programs);
        self.result_of(id, &ended).map(|()| value)
    }

    /// Executes `body`, which submits tasks, and does not wait for them. At most `limit` runs are in flight after it.
    pub(crate) fn submit<T>(
        &mut self,
        programs: &Programs,
        limit: usize,
        deadline: Deadline,
        body: impl FnOnce(&mut Orchestrator<'_>) -> Result<T, Failure>,
    ) -> Result<(T, RunId, Ended), Failure> {
        self.make_room(programs, limit)?;
        let before = self.children.flight().last().map(|last| last.run);
        let run = match before.and_then(next_of) {
            Some(next) => next,
            None => {
                self.free_dropped(deadline)?;
                self.take_tracker();
                self.next_run()
            }
        };
        let span = log::span(|| tracing::debug_span!("submit_run", number = run));
        let _entered = span.enter();
        fault_point!("worker.submit-run.begun");
        self.heap.run_begun(run);
        self.children.begin_run(run, deadline);
        let begins = self.children.sent();
        let tracker = self.take_tracker();
        let mut orchestrator = self.orchestrator(programs, run, deadline);
        orchestrator.follow(tracker);
        let returned = catch_unwind(AssertUnwindSafe(|| body(&mut orchestrator)));
        orchestrator.closure_returned(matches!(returned, Ok(Ok(_))));
        let (tracker, domains) = orchestrator.into_parts();
        self.tracker = tracker;
        let stopped = match &returned {
            Ok(Ok(_)) => None,
            Ok(Err(failure)) => Some(failure.clone()),
            Err(_) => Some(Failure::new(ErrorCode::Panic, "the closure of the run panicked").in_phase("run")),
        };
        let ended = self.children.enter_flight(begins, deadline, domains, stopped);
        fault_point!("worker.submit-run.submitted");
        let id = RunId { worker: self.id, run };
        match returned {
            Ok(Ok(value)) => Ok((value, id, ended)),
            other => {
                self.settle_all(programs);
                if let Err(panic) = other {
                    resume_unwind(panic);
                }
                let unexplained = || Failure::new(ErrorCode::Internal, "the run was not settled");
                Err(self.result_of(id, &ended).err().unwrap_or_else(unexplained))
            }
        }
    }

    /// Settles what the next run cannot be in flight with. Refuses it, once, when a run failed before and nobody has been told.
    fn make_room(&mut self, programs: &Programs, limit: usize) -> Result<(), Failure> {
        let full = self.children.flight().last().is_some_and(|last| next_of(last.run).is_none());
        if full || !self.children.can_be_joined() {
            self.settle_all(programs);
        }
        while self.children.flight().len() >= limit.max(1) {
            self.settle_oldest(programs, never());
        }
        self.tell()
    }

    /// Waits for all runs in flight, before another call. Fails, once, when one failed and nobody has been told.
    pub(crate) fn settle_for_call(&mut self, programs: &Programs) -> Result<(), Failure> {
        self.settle_all(programs);
        self.tell()
    }

    fn tell(&mut self) -> Result<(), Failure> {
        let Some((_, first)) = self.untold.take() else { return Ok(()) };
        self.children.check()?;
        let text = "a run that was submitted before failed, and this call came before anybody had waited for it; nothing was done. \
                    Look at what that run was to do, then make this call again";
        Err(Failure::new(ErrorCode::Aborted, text).in_phase("run").caused_by(first))
    }

    /// How a run ended, for the caller: who knows this need not be told again.
    pub(crate) fn result_of(&mut self, id: RunId, ended: &Ended) -> Result<(), Failure> {
        let result = ended.get().cloned().unwrap_or(Ok(()));
        if result.is_err() {
            self.untold.take_if(|(run, _)| crate::shared::same_flight(*run, id.run));
        }
        result
    }

    /// Waits for `run` and those in front of it, not beyond `until`.
    pub(crate) fn settle_through(&mut self, programs: &Programs, id: RunId, until: Deadline) {
        while self.children.flight().next().is_some_and(|oldest| oldest.run <= id.run) {
            if self.settle_oldest(programs, until) == Drained::NotYet {
                return;
            }
        }
    }

    /// Settles what is over, without waiting.
    pub(crate) fn settle_over(&mut self, programs: &Programs) {
        while self.children.flight().len() > 0 {
            self.children.look_at_oldest();
            if self.children.look() == Drained::NotYet {
                return;
            }
            self.settle_oldest(programs, never());
        }
    }

    /// Which Worker of this process it is.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Cancels a run in flight and those behind it; one that is over stays what it is.
    pub(crate) fn cancel(&mut self, programs: &Programs, id: RunId) {
        self.settle_over(programs);
        fault_point!("worker.run.cancel");
        if self.children.is_under_way(id.run) {
            self.children.look_at_oldest();
            self.children.cancel_from(id.run);
            self.cancelled = Some(id.run);
        }
    }

    /// The Worker closes: what is in flight ends.
    pub(super) fn give_up_flight(&mut self) {
        if let Some(oldest) = self.children.flight().next().map(|oldest| oldest.run) {
            self.children.cancel_from(oldest);
        }
        while let Some(run) = self.children.leave_flight() {
            let text = "the Worker was closed while the run was in flight; wait for it first";
            let _ = run.ended.set(Err(Failure::new(ErrorCode::Aborted, text).in_phase("run")));
        }
    }

    fn settle_all(&mut self, programs: &Programs) {
        while self.children.flight().len() > 0 {
            self.settle_oldest(programs, never());
        }
    }

    /// Waits for the oldest run in flight, not beyond `until`, and says how it ended. When it failed, all of its flight ends with it.
    fn settle_oldest(&mut self, programs: &Programs, until: Deadline) -> Drained {
        self.children.look_at_oldest();
        let drained = match self.children.drain_oldest(until) {
            Ok(Drained::NotYet) => return Drained::NotYet,
            Ok(Drained::Yes) => Ok(()),
            Err(failure) => Err(failure),
        };
        let Some(oldest) = self.children.leave_flight() else { return Drained::Yes };
        fault_point!("worker.run.settle-oldest");
        let run = oldest.run;
        if drained.is_err() || oldest.stopped.is_some() || self.children.is_broken(run) {
            self.settle_broken(programs, oldest, drained);
        } else {
            let InFlight { deadline, domains, ended, .. } = oldest;
            let released = self.release(programs, run, deadline, domains, RunEnd::Succeeded);
            if let Err(failure) = &released {
                self.untold = Some((run, failure.clone()));
            }
            let _ = ended.set(released);
        }
        self.heap
            .run_over(self.children.flight().next().map_or_else(|| self.last_run(), |next| next.run - 1));
        Drained::Yes
    }

    /// A run in flight failed or was cancelled: what is behind it drains, and then everything may begin again.
    fn settle_broken(&mut self, programs: &Programs, oldest: InFlight, drained: Result<(), Failure>) {
        let InFlight { run, deadline, mut domains, ended, stopped, .. } = oldest;
        let drained = drained.and_then(|()| self.children.drain_all(deadline, CLEAN_UP));
        self.children.settle_broken_run();
        let behind: Vec<InFlight> = std::iter::from_fn(|| self.children.leave_flight()).collect();
        let mut problems = self.orchestrator(programs, run, deadline).problems_after(run, drained);
        if self.cancelled == Some(run) && !problems.is_empty() {
            let text = "the run was cancelled by its caller";
            problems.add(Event::Closure, Failure::new(ErrorCode::Aborted, text).in_phase("run"));
        }
        if let Some(stopped) = stopped {
            problems.add(Event::Closure, stopped);
        }
        let first = problems.into_result();
        let mut results = Vec::with_capacity(behind.len());
        for run in behind {
            let executed = self.children.was_executed(&run);
            let InFlight { domains: of_run, ended, stopped, .. } = run;
            let followed = || {
                let followed = run_before_failed();
                first.as_ref().err().cloned().into_iter().fold(followed, Failure::caused_by)
            };
            let result = stopped.map_or_else(|| if executed { Ok(()) } else { Err(followed()) }, Err);
            results.push((ended, result));
            if !of_run.is_empty() {
                domains = of_run;
            }
        }
        let mut problems = Problems::default();
        if let Err(failure) = self.release(programs, run, deadline, domains, RunEnd::Failed) {
            problems.add(Event::CleanUp, failure);
        }
        let first = first.and_then(|()| problems.into_result());
        let failed = std::iter::once(&first).chain(results.iter().map(|(_, result)| result));
        if let Some(failure) = failed.filter_map(|result| result.as_ref().err()).next() {
            self.untold = Some((run, failure.clone()));
        }
        let _ = ended.set(first);
        for (ended, result) in results {
            let _ = ended.set(result);
        }
        self.cancelled = None;
        self.take_tracker();
    }

    fn release(
        &mut self,
        programs: &Programs,
        run: u64,
        deadline: Deadline,
        domains: Domains,
        end: RunEnd,
    ) -> Result<(), Failure> {
        let clean_up = self.next_run();
        self.orchestrator(programs, run, deadline).with_domains(domains).release_domains(clean_up, end)
    }
}

fn never() -> Deadline {
    Deadline::after(LONGEST_WAIT).unwrap_or_else(|error| panic!("the longest wait there is: {error}"))
}
