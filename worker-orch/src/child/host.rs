//! What the children that have no chip do with their frames: sub-workers, and Workers of the next level.

use super::check::Checks;
use super::loaded::{Loaded, LoadedPrograms, cannot_run};
use super::serve::{Executor, malformed};
use super::task::Task;
use crate::Worker;
use crate::shared::{ChildContext, ControlBlock, Kind, ReceivedFrame, RunAbove};
use comm_context::comm::Timeout;
use deadline::Deadline;
use fault_points::fault_point;
use shared_memory::Region;
use std::sync::Arc;
use std::time::Duration;
use worker_errors::Failure;

/// A sub-worker: Rust functions on the host.
pub(super) struct SubExecutor<'a> {
    programs: LoadedPrograms<'a>,
    heaps: &'a [Arc<Region>],
    block: &'a ControlBlock,
    number: usize,
    checks: Checks,
}

impl<'a> SubExecutor<'a> {
    pub(super) fn new(context: &ChildContext<'a>) -> Self {
        let (block, number) = (context.block.as_ref(), context.number);
        let programs = LoadedPrograms::new(context);
        Self { programs, heaps: context.heaps, block, number, checks: Checks::default() }
    }

    fn run(&mut self, frame: &ReceivedFrame) -> Result<(), Failure> {
        let program = self.programs.of_task(frame, |_, _| Err(cannot_run("a kernel", "a sub-worker")))?;
        fault_point!("worker.task.before-program");
        let armed = self.checks.arm(self.heaps)?;
        let mut task = Task::on_host(frame, self.heaps);
        let returned = match program {
            Loaded::Function(function) => function(&mut task),
            Loaded::Closure(closure) => closure(&mut task),
            _ => Err(cannot_run("that program", "a sub-worker")),
        };
        match armed {
            None => returned?,
            Some(armed) => {
                let number = self.block.child(self.number).task_number();
                self.checks.finish(armed, self.heaps, None, number, returned)?;
            }
        }
        fault_point!("worker.task.after-program");
        Ok(())
    }
}

impl Executor for SubExecutor<'_> {
    fn execute(&mut self, frame: &ReceivedFrame) -> Result<Vec<u8>, Failure> {
        match frame.kind {
            Some(Kind::Task) => self.run(frame),
            Some(Kind::Register) => self.programs.register(frame, drop),
            Some(Kind::Spans) => self.checks.expect(frame),
            _ => Err(malformed()),
        }
        .map(|()| Vec::new())
    }
}

/// A Worker of the next level: it submits tasks to its own chips.
pub(super) struct WorkerExecutor<'a> {
    worker: &'a mut Worker,
    block: &'a Arc<ControlBlock>,
    programs: LoadedPrograms<'a>,
    heaps: &'a [Arc<Region>],
}

impl<'a> WorkerExecutor<'a> {
    pub(super) fn new(worker: &'a mut Worker, context: &ChildContext<'a>) -> Self {
        Self { worker, block: context.block, programs: LoadedPrograms::new(context), heaps: context.heaps }
    }

    fn run(&mut self, frame: &ReceivedFrame) -> Result<(), Failure> {
        const HERE: &str = "a Worker of Workers";
        let program = self.programs.of_task(frame, |_, _| Err(cannot_run("a kernel", HERE)))?;
        let Loaded::Orchestration(function) = *program else {
            return Err(cannot_run("that program", HERE));
        };
        let task = Task::on_host(frame, self.heaps);
        fault_point!("worker.task.before-program");
        // F07: this run ends before the run above it, so that its own failure is reported and not a time-out.
        let above = Deadline::at_monotonic_ns(self.block.run_deadline());
        let own = self.worker.run_within();
        self.worker.set_run_within(inside_of(above.map_or(Duration::ZERO, |above| above.left()), own));
        self.worker.set_above(RunAbove { block: self.block.clone(), run: frame.run });
        let ran = self.worker.run(|orch| function(orch, &task));
        self.worker.set_run_within(own);
        ran?;
        fault_point!("worker.task.after-program");
        Ok(())
    }
}

impl Executor for WorkerExecutor<'_> {
    fn execute(&mut self, frame: &ReceivedFrame) -> Result<Vec<u8>, Failure> {
        match frame.kind {
            Some(Kind::Task) => self.run(frame),
            Some(Kind::Register) => self.programs.register(frame, drop),
            _ => Err(malformed()),
        }
        .map(|()| Vec::new())
    }

    /// F72: a Worker that has lost a process ends with it, so that the one above learns of it as of any death.
    fn is_lost(&self) -> bool {
        self.worker.loss().is_some()
    }
}

/// The most that it takes to report a failure from one level to the next.
const REPORTING: Duration = Duration::from_secs(5);

/// A limit for what runs inside something that has `left` to go: its own limit, or a little less than `left`.
pub(super) fn inside_of(left: Duration, own: Timeout) -> Timeout {
    let inner = left.saturating_sub((left / 4).min(REPORTING)).max(Duration::from_millis(1));
    if inner < own.get() { Timeout::new(inner).unwrap_or(own) } else { own }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f07_an_inner_limit_ends_before_the_outer_one() {
        let seconds = |seconds| Timeout::new(Duration::from_secs(seconds)).unwrap();
        assert_eq!(inside_of(Duration::from_secs(2), seconds(600)).get(), Duration::from_millis(1500));
        assert_eq!(inside_of(Duration::from_secs(100), seconds(600)), seconds(95));
        assert_eq!(inside_of(Duration::from_secs(100), seconds(1)), seconds(1));
        assert_eq!(inside_of(Duration::ZERO, seconds(1)).get(), Duration::from_millis(1));
    }
}
