//! Runs that are submitted now and waited for later.

use crate::parent::{Ended, Orchestrator};
use crate::task_id::RunId;
use crate::worker::Worker;
use comm_context::comm::Timeout;
use deadline::Deadline;
use worker_errors::{ErrorCode, Failure};

/// A run that [`Worker::submit_run`] submitted.
///
/// Its calls take the Worker, because they do what waits for chips: a run makes progress by itself, but its failures are noticed, and its
/// deadline counts, when a call of the Worker looks. A handle that is dropped does not end its run; when that fails, the
/// next call that needs the chips says so.
#[derive(Clone, Debug)]
#[must_use = "a run that nobody waits for may fail without notice"]
pub struct Run {
    id: RunId,
    ended: Ended,
}

/// How far a run is that has not failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum RunState {
    /// Tasks of it are not done, or not known to be.
    UnderWay,
    /// All its tasks are done, and its domains are released.
    Done,
}

impl Run {
    /// Waits until the run is over, at most `within`, and fails with its first cause. A run that is still under way after that is no
    /// failure: wait again, or [cancel](Self::cancel) it. The run itself has the time of
    /// [`run_within`](crate::WorkerBuilder::run_within) from its submit, after which it fails as one of [`Worker::run`] does.
    ///
    /// Runs are settled in their order: this waits for those in front of it too.
    pub fn wait(&self, worker: &mut Worker, within: Timeout) -> Result<RunState, Failure> {
        let invalid = |text: &str| Failure::new(ErrorCode::Invalid, text).in_phase("wait");
        let until = Deadline::after(within.get()).map_err(|error| invalid(&error.to_string()))?;
        self.settle(worker, |worker| worker.settle_through(self.id, until))?;
        self.state(worker)
    }

    /// Whether the run is over, without waiting; how it ended says [`wait`](Self::wait).
    pub fn is_done(&self, worker: &mut Worker) -> bool {
        self.ended.get().is_some()
            || self.settle(worker, Worker::settle_over).is_err()
            || self.ended.get().is_some()
    }

    /// Cancels the run and those behind it in flight, and does not wait. Tasks that have not begun do not begin, and kernels that wait return
    /// once the runs in front are over; a task that computes is not interrupted. A run that is over stays what it is.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use worker_orch::{Args, ErrorCode, Failure, Timeout, Worker};
    ///
    /// let mut worker = Worker::builder().devices(&[0]).build()?;
    /// let slow = worker.register_function("slow", |_| {
    ///     std::thread::sleep(Duration::from_millis(200));
    ///     Ok(())
    /// });
    /// worker.init()?;
    /// let (_, first) = worker.submit_run(|orch| orch.submit_next_level(slow, &Args::new(), 0))?;
    /// let (_, second) = worker.submit_run(|orch| orch.submit_next_level(slow, &Args::new(), 0))?;
    /// second.cancel(&mut worker)?; // it waits for the chip, so it does not begin
    /// let cancelled = second.wait(&mut worker, Timeout::DEFAULT).unwrap_err();
    /// assert_eq!(cancelled.code, ErrorCode::Aborted);
    /// assert!(first.wait(&mut worker, Timeout::DEFAULT).is_ok());
    /// # worker.close()?;
    /// # Ok::<_, Failure>(())
    /// ```
    pub fn cancel(&self, worker: &mut Worker) -> Result<(), Failure> {
        self.settle(worker, |worker| worker.cancel(self.id))
    }

    fn state(&self, worker: &mut Worker) -> Result<RunState, Failure> {
        match self.ended.get() {
            None => Ok(RunState::UnderWay),
            Some(_) => worker.result_of(self.id, &self.ended).map(|()| RunState::Done),
        }
    }

    /// Does this with the Worker while the run is in flight on it.
    fn settle(&self, worker: &mut Worker, call: impl FnOnce(&mut Worker)) -> Result<(), Failure> {
        if self.ended.get().is_none() {
            if !worker.is_brought_up_as(self.id) {
                let text = "this run is of another Worker; give the call the Worker that it was submitted to";
                return Err(Failure::new(ErrorCode::Invalid, text).in_phase("wait"));
            }
            call(worker);
        }
        Ok(())
    }
}

impl Worker {
    /// Submits a run and does not wait for it: `body` is executed now and submits tasks, as in [`run`](Self::run). Returns what `body` returned,
    /// and the run.
    ///
    /// Up to [`runs_in_flight`](crate::WorkerBuilder::runs_in_flight) runs are in flight, in order: each chip executes their tasks
    /// in the order of the submits, and between chips tasks of a run wait for those of earlier ones that touch the same memory, as
    /// inside a run. A run that has domains is over before the next one begins. [`run`](Self::run) goes behind the runs in flight too; other
    /// calls that need the chips wait for them.
    ///
    /// When a run fails or is cancelled, the runs behind it in flight are cancelled with it, since they may need what is missing: those that
    /// were not over fail with its cause. The next run that is submitted after that is known begins clean.
    /// A submit that would be the first to notice is refused once, with the cause.
    ///
    /// Host buffers that are dropped are freed when the runs are over that were submitted before; memory on a device when none is in flight.
    /// [`close`](Self::close) cancels what is in flight.
    pub fn submit_run<T>(
        &mut self,
        body: impl FnOnce(&mut Orchestrator<'_>) -> Result<T, Failure>,
    ) -> Result<(T, Run), Failure> {
        let (value, id, ended) = self.submit_in_flight(body)?;
        Ok((value, Run { id, ended }))
    }
}
