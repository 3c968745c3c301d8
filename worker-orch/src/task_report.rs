//! What became of a task.

use crate::task_id::TaskId;
use crate::worker::Worker;
use std::time::Duration;
use worker_errors::Failure;

/// How far a task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskState {
    /// It has not begun: tasks of its chip are before it, or it waits for tasks of others.
    Waiting,
    /// Its chip is in it.
    Running,
    /// It has succeeded.
    Done,
    /// It has failed; [`TaskReport::failure`] says why.
    Failed,
    /// It did not run, or what it did does not count, because its run failed elsewhere or was cancelled.
    Cancelled,
}

/// A task as it is at the moment, by [`Worker::task`].
#[derive(Clone, Debug)]
pub struct TaskReport {
    /// How far it is.
    pub state: TaskState,
    /// How long its chip was in it, in a Worker that is [measured](crate::WorkerBuilder::measured) or traced: for the last 32 tasks and
    /// commands of a chip.
    pub took: Option<Duration>,
    /// Why it failed, as its process recorded it.
    pub failure: Option<Failure>,
}

impl Worker {
    /// What became of a task, without waiting. It may be of a run in flight or of one that is over. After a later run failed on the same chip,
    /// nothing is known of it any more, which is an error.
    ///
    /// ```
    /// use worker_orch::{Access, Args, Failure, Task, TaskState, Worker};
    ///
    /// fn answer(task: &mut Task<'_>) -> Result<(), Failure> {
    ///     task.write(0, &[42])
    /// }
    ///
    /// let mut worker = Worker::builder().devices(&[0]).build()?;
    /// let answer = worker.register_function("answer", answer);
    /// let x = worker.host_buffer::<i32>(1)?;
    /// worker.init()?;
    /// let args = Args::new().tensor(&x.tensor(), Access::Output);
    /// let task = worker.run(|orch| orch.submit_next_level(answer, &args, 0))?;
    /// assert_eq!(worker.task(task)?.state, TaskState::Done);
    /// # Ok::<_, Failure>(())
    /// ```
    pub fn task(&self, task: TaskId) -> Result<TaskReport, Failure> {
        self.up_of(task, "task")?.task(task)
    }

    /// Cancels a task: it does not begin, or counts as failed when it is over, and with it its run. A task that computes is not interrupted; one that
    /// waits in a kernel returns. A task that is over stays what it is. Does not wait.
    pub fn cancel_task(&mut self, task: TaskId) -> Result<(), Failure> {
        self.up_of(task, "cancel_task")?;
        self.settle_over();
        self.up_of(task, "cancel_task")?.cancel_task(task)
    }
}
