//! Runs in flight: submitted, and not known to be over.
//!
//! The caller's thread executes the closure of a run when it is submitted; all that is left then is frames in the rings. Children work in
//! order, so a run is over when every child has done the last frame that it got in it, and the runs are settled in their order.
//!
//! The runs that overlap are a *flight* (`shared/run_number.rs`). A failure, or a call that cancels, holds for its run and all behind it: they were
//! submitted before anybody could know, and may need what is missing. So each child needs one record of a failure, the first of the
//! flight, and the parent one word, the first run that is cancelled. When the flight has drained, the next begins clean.
//!
//! Kernels have one word for all runs that makes their waits end. It is raised when the runs in front of the cancelled one are over:
//! theirs must not return early.

use super::Children;
use crate::parent::orchestrator::Domains;
use crate::shared::covers;
use deadline::Deadline;
use mailbox_atomics::WaitError;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use worker_errors::Failure;

/// How a run ended, once that is known; the handle of the run has the other half.
pub(crate) type Ended = Arc<OnceLock<Result<(), Failure>>>;

/// A run that was submitted and is not settled.
#[derive(Debug)]
pub(in crate::parent) struct InFlight {
    pub(in crate::parent) run: u64,
    pub(in crate::parent) deadline: Deadline,
    /// For each child the last frame that it was sent before, and in this run.
    begins: Vec<u64>,
    ends: Vec<u64>,
    pub(in crate::parent) domains: Domains,
    pub(in crate::parent) ended: Ended,
    /// Why its closure did not submit all of it.
    pub(in crate::parent) stopped: Option<Failure>,
}

/// Whether a run has drained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::parent) enum Drained {
    Yes,
    NotYet,
}

impl Children {
    /// The current run is submitted.
    pub(in crate::parent) fn enter_flight(
        &mut self,
        begins: Vec<u64>,
        deadline: Deadline,
        domains: Domains,
        stopped: Option<Failure>,
    ) -> Ended {
        let ends = self.sent();
        let ended = Ended::default();
        let run = self.run;
        self.flight.push_back(InFlight {
            run,
            deadline,
            begins,
            ends,
            domains,
            ended: ended.clone(),
            stopped,
        });
        ended
    }

    /// For each child the last frame that it was sent.
    pub(in crate::parent) fn sent(&self) -> Vec<u64> {
        self.handles.iter().map(|handle| handle.ring.sent()).collect()
    }

    /// Whether all tasks of a run that has drained were executed, also where one in front of it failed.
    pub(in crate::parent) fn was_executed(&self, run: &InFlight) -> bool {
        let mut frames = run.begins.iter().zip(&run.ends).enumerate();
        self.loss.is_none()
            && frames.all(|(child, (begin, end))| begin == end || !self.failed_in(child, run.run))
    }

    /// The runs in flight, oldest first.
    pub(in crate::parent) fn flight(&self) -> impl ExactSizeIterator<Item = &InFlight> {
        self.flight.iter()
    }

    /// The oldest run in flight leaves it.
    pub(in crate::parent) fn leave_flight(&mut self) -> Option<InFlight> {
        self.flight.pop_front()
    }

    /// From here on waits are for the oldest run in flight.
    pub(in crate::parent) fn look_at_oldest(&mut self) {
        if let Some(oldest) = self.flight.front() {
            self.run = oldest.run;
        }
    }

    /// Waits until the oldest run has drained, its deadline has passed, or `until`, after which the run goes on.
    pub(in crate::parent) fn drain_oldest(&mut self, until: Deadline) -> Result<Drained, Failure> {
        let Some(oldest) = self.flight.front() else { return Ok(Drained::Yes) };
        let (of_run, ends) = (oldest.deadline, oldest.ends.clone());
        let first = if until.monotonic_ns() < of_run.monotonic_ns() { until } else { of_run };
        for (child, end) in ends.iter().enumerate() {
            self.check_run()?;
            match self.wait_done(child, *end, first) {
                Ok(done) => self.observe(child, done)?,
                Err(WaitError::TimedOut { .. }) if !of_run.has_passed() && self.over_limit().is_none() => {
                    return Ok(Drained::NotYet);
                }
                Err(error) => return Err(self.interrupted(error)),
            }
        }
        self.collect_trace(&ends);
        Ok(Drained::Yes)
    }

    /// Does what a wait does at each look: cancels what has failed. Says whether the oldest run can be settled without a wait.
    pub(in crate::parent) fn look(&self) -> Drained {
        self.attend();
        let too_long = |oldest: &InFlight| oldest.deadline.has_passed() || self.over_limit().is_some();
        let over =
            |oldest: &InFlight| self.is_over(oldest) || too_long(oldest) || self.find_death().is_some();
        if self.flight.front().is_none_or(over) { Drained::Yes } else { Drained::NotYet }
    }

    /// Whether a run behind which others may go is in flight: not when something of it failed or was cancelled, or when it has domains,
    /// which are released before the next run begins.
    pub(in crate::parent) fn can_be_joined(&self) -> bool {
        let joinable = |last: &InFlight| !self.is_broken(last.run) && last.domains.is_empty();
        self.loss.is_none() && self.flight.back().is_some_and(joinable)
    }

    /// Whether something of `run`, or of one before it in flight, failed or was cancelled.
    pub(in crate::parent) fn is_broken(&self, run: u64) -> bool {
        self.failed_from(run) || self.block.parent().is_cancelled(run)
    }

    /// Whether `run` is in flight and not over.
    pub(in crate::parent) fn is_under_way(&self, run: u64) -> bool {
        self.flight.iter().any(|one| one.run == run && !self.is_over(one))
    }

    fn is_over(&self, run: &InFlight) -> bool {
        run.ends.iter().enumerate().all(|(child, end)| self.block.child(child).done() >= *end)
    }

    /// Whether what is in front of `run` is over.
    fn earlier_are_over(&self, run: u64) -> bool {
        self.flight.iter().take_while(|earlier| earlier.run < run).all(|earlier| self.is_over(earlier))
    }

    /// The first run in flight that is not over, or the current one.
    pub(super) fn first_under_way(&self) -> u64 {
        self.flight.iter().find(|run| !self.is_over(run)).map_or(self.run, |run| run.run)
    }

    /// Whether a task of `run`, or of one before it in flight, has failed.
    pub(in crate::parent) fn failed_from(&self, run: u64) -> bool {
        (0..self.len()).any(|child| self.failed_in(child, run))
    }

    /// The first run of the flight in which a task failed, not behind the current one.
    fn first_failed(&self) -> Option<u64> {
        let failed = (0..self.len()).map(|child| self.block.child(child).failed_run());
        failed.filter(|failed| covers(*failed, self.run)).min()
    }

    /// Once a task has failed, those that wait for it return, and so does one that was cancelled after it had begun.
    pub(in crate::parent) fn attend(&self) {
        if let Some(first) = self.must_cancel() {
            self.cancel_from(first);
        }
        if let Some(run) = self.block.begun_though_cancelled().filter(|_| !self.in_command) {
            self.cancel_from(run);
        }
        // A run that was cancelled while others were in front of it.
        let cancelled = self.block.parent().cancelled_run();
        if !self.flight.is_empty()
            && let Some(group) = self.group.as_ref().filter(|_| !self.in_command)
            && covers(cancelled, self.run)
            && self.earlier_are_over(cancelled)
        {
            group.cancel_kernels();
        }
    }

    /// The run that has failed and is not cancelled, when nothing keeps it from being cancelled.
    pub(super) fn must_cancel(&self) -> Option<u64> {
        if self.in_command {
            return None;
        }
        let cancelled = |first: &u64| self.block.parent().is_cancelled(*first);
        self.first_failed().filter(|first| !cancelled(first) && self.earlier_are_over(*first))
    }

    /// Tasks of `run` and of those behind it that wait for each other return, and all of them count as failed.
    pub(in crate::parent) fn cancel_from(&self, run: u64) {
        if !self.block.parent().is_cancelled(run) {
            self.block.parent().cancel_run(run);
        }
        if let Some(group) = &self.group
            && self.earlier_are_over(run)
        {
            group.cancel_kernels();
        }
    }

    /// Waits until all children have done what they were sent, after a failure or a call that cancelled. No more than `least` if the deadline
    /// of the run is nearer.
    pub(in crate::parent) fn drain_all(
        &mut self,
        deadline: Deadline,
        least: Duration,
    ) -> Result<(), Failure> {
        let deadline = match Deadline::after(least) {
            Ok(at_least) if deadline.left() < least => at_least,
            _ => deadline,
        };
        self.drain(deadline)
    }
}
