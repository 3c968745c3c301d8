//! What a task has to wait for: tasks that touch the same memory, tasks that it names, and barriers.

use super::Orchestrator;
use crate::args::Args;
use crate::parent::address_spaces::AddressSpaces;
use crate::parent::dependencies::{Touch, condense};
use crate::program::Program;
use crate::shared::{Frame, INLINE_PREREQUISITES, Kind, MOST_PREREQUISITES, Prerequisite};
use crate::task_id::{RunId, TaskId};
use worker_errors::{ErrorCode, Failure};

/// For each child the tasks that its next task waits for because of a barrier. A child works in order, so
/// that what comes after the next task waits too. Empty before the first barrier of a run.
pub(super) type Barriers = Vec<Vec<Prerequisite>>;

impl Orchestrator<'_> {
    /// A barrier over all chips (or Workers): every task that is submitted to one of them from now on runs
    /// after all tasks that were submitted to any of them before.
    ///
    /// For kernels that reach their peers' windows, which no tensor says: submit those that write, a barrier,
    /// then those that read. It orders tasks and returns at once; it neither waits nor concerns kernels that
    /// run at the same time. Sub-workers take no part.
    pub fn barrier(&mut self) -> Result<(), Failure> {
        let all: Vec<usize> = (0..self.chips()).collect();
        self.barrier_of(&all)
    }

    /// A [barrier](Self::barrier) over some of the chips (or Workers).
    pub fn barrier_of(&mut self, chips: &[usize]) -> Result<(), Failure> {
        if let Some(first) = &self.failed {
            return Err(first.clone());
        }
        chips.iter().try_for_each(|chip| self.check_chip(*chip, "barrier"))?;
        self.barriers.resize(self.next_level, Vec::new());
        // What an earlier barrier holds back is held back for the others now too.
        let mut before: Vec<Prerequisite> = chips.iter().map(|chip| self.children.last_sent(*chip)).collect();
        before.extend(chips.iter().flat_map(|chip| &self.barriers[*chip]));
        condense(&mut before, |task| self.children.is_met(task));
        for chip in chips {
            self.barriers[*chip].clone_from(&before);
        }
        Ok(())
    }

    /// Refuses arguments that no task can have, before anything is sent.
    #[inline]
    pub(super) fn check_args(&self, program: Program, args: &Args) -> Result<(), Failure> {
        if args.names_nothing() && args.is_small() {
            return self.programs.check_signature(program, args);
        }
        self.check_all_args(program, args)
    }

    #[inline(never)]
    fn check_all_args(&self, program: Program, args: &Args) -> Result<(), Failure> {
        args.check()?;
        self.programs.check_signature(program, args)?;
        if args.block_count() > 1 {
            self.programs.check_blocks(program).map_err(|failure| failure.in_phase("submit"))?;
        }
        if args.prerequisites().iter().all(|task| task.run().may_precede(self.id())) {
            return Ok(());
        }
        let text = "a task to wait for is of a run that is over or of another Worker, which this run does not wait for; \
                    name tasks that were submitted in this run or in one that is in flight with it";
        Err(Failure::new(ErrorCode::Invalid, text).in_phase("submit"))
    }

    /// Whether a task with these arguments waits for nothing, nothing waits for it, and nobody wants to know.
    #[inline]
    pub(super) fn orders_nothing(&self, args: &Args) -> bool {
        let alone = args.names_nothing() && self.barriers.is_empty();
        alone && !self.children.traces_needs() && self.checked.is_none()
    }

    pub(super) fn id(&self) -> RunId {
        RunId { worker: self.worker, run: self.run }
    }

    /// The tasks of other children that a task on child `to` has to wait for.
    pub(super) fn needs(&mut self, args: &Args, to: usize, needs: &mut Vec<Prerequisite>) {
        needs.clear();
        for (range, access) in args.ranges() {
            self.tracker.needs(&self.spaces.globally(range, to), access, needs);
        }
        needs.extend(args.prerequisites().iter().map(|task: &TaskId| task.prerequisite()));
        if let Some(barrier) = self.barriers.get_mut(to) {
            needs.append(barrier);
        }
        if self.children.traces_needs() {
            let mut all = needs.clone();
            condense(&mut all, |need| usize::from(need.child) == to);
            self.children.trace_needs(to, all);
        }
        if !needs.is_empty() {
            condense(needs, |need| usize::from(need.child) == to || self.children.is_met(need));
        }
    }

    /// Makes child `to` wait for `needs` before its next task where they do not fit into the task's frame; then
    /// none is left.
    pub(super) fn send_many_needs(
        &mut self,
        to: usize,
        needs: &mut Vec<Prerequisite>,
    ) -> Result<(), Failure> {
        if needs.len() <= INLINE_PREREQUISITES {
            return Ok(());
        }
        for part in needs.chunks(MOST_PREREQUISITES) {
            self.send_frame(to, &Frame { prerequisites: part, ..Frame::new(Kind::Wait, self.run) })?;
        }
        needs.clear();
        Ok(())
    }
}

/// What `task` on child `to` does with memory.
pub(super) fn touches<'a>(
    args: &'a Args,
    spaces: &'a AddressSpaces,
    to: usize,
    task: Prerequisite,
) -> impl Iterator<Item = Touch> + Clone + 'a {
    args.ranges().map(move |(range, access)| Touch { task, range: spaces.globally(range, to), access })
}
