//! Submitting tasks inside a run, in the order that follows from the memory that they touch.

mod collectives;
mod domains;

pub(super) use collectives::RunEnd;
pub(super) use domains::BaseGroup;
pub use domains::{Domain, DomainContext};

use super::address_spaces::AddressSpaces;
use super::children::Children;
use super::dependencies::{Tracker, condense};
use super::first_cause::{Event, Problems};
use crate::args::Args;
use crate::program::Program;
use crate::shared::{Frame, Kind, Prerequisite, Programs, RING};
use deadline::Deadline;
use domains::Domains;
use worker_errors::{ErrorCode, Failure};

/// A submitted task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskId {
    child: u16,
    seq: u64,
}

/// Submits tasks inside [`Worker::run`](crate::Worker::run).
///
/// A chip, Worker or sub-worker executes its tasks in the order in which they were submitted. Tasks of
/// different processes overlap, unless the tensors say that one needs the other; the processes then wait for
/// each other without the parent.
pub struct Orchestrator<'w> {
    children: &'w mut Children,
    programs: &'w Programs,
    run: u64,
    deadline: Deadline,
    domains: Domains,
    base: &'w mut BaseGroup,
    /// Children `0..next_level` are chips or Workers, the others are sub-workers.
    next_level: usize,
    spaces: &'w AddressSpaces,
    tracker: Tracker,
    needs: Vec<Prerequisite>,
    failed: Option<Failure>,
    next_sub: usize,
}

impl<'w> Orchestrator<'w> {
    pub(super) fn new(
        children: &'w mut Children,
        programs: &'w Programs,
        base: &'w mut BaseGroup,
        next_level: usize,
        spaces: &'w AddressSpaces,
        run: u64,
        deadline: Deadline,
    ) -> Self {
        children.begin_run(run, deadline);
        Self {
            children,
            programs,
            run,
            deadline,
            domains: Domains::default(),
            base,
            next_level,
            spaces,
            tracker: Tracker::default(),
            needs: Vec::new(),
            failed: None,
            next_sub: 0,
        }
    }

    /// Submits a task to chip (or Worker) number `to`. Returns as soon as there is room for it.
    pub fn submit_next_level(&mut self, program: Program, args: &Args, to: usize) -> Result<TaskId, Failure> {
        if to >= self.next_level {
            let text = format!("there is no chip {to}; this Worker has {}", self.next_level);
            return Err(Failure::new(ErrorCode::Invalid, text).in_phase("submit"));
        }
        self.submit(program, args, to)
    }

    /// Submits the same program to several chips together, each with its own arguments.
    ///
    /// All of them see the same state of memory: none waits for another of the group.
    pub fn submit_group(
        &mut self,
        program: Program,
        members: &[(usize, Args)],
    ) -> Result<Vec<TaskId>, Failure> {
        for (index, (to, _)) in members.iter().enumerate() {
            if *to >= self.next_level || members[..index].iter().any(|(earlier, _)| earlier == to) {
                let text = format!("chip {to} is not there or is named twice; a group names each chip once");
                return Err(Failure::new(ErrorCode::Invalid, text).in_phase("submit"));
            }
        }
        // First what each needs from before the group, then what the group itself does.
        let mut all_needs = Vec::with_capacity(members.len());
        for (to, args) in members {
            self.prepare(program, *to)?;
            let task = self.next_task(*to);
            self.needs.clear();
            for (range, access) in args.ranges() {
                self.tracker.enter(self.spaces.globally(range, *to), access, task, &mut self.needs);
            }
            all_needs.push(std::mem::take(&mut self.needs));
        }
        let group: Vec<Prerequisite> = members.iter().map(|(to, _)| self.next_task(*to)).collect();
        let collectives = self.base.groups.of(members.iter().map(|(to, _)| *to));
        let mut ids = Vec::with_capacity(members.len());
        for ((to, args), mut needs) in members.iter().zip(all_needs) {
            condense(&mut needs, |need| {
                usize::from(need.child) == *to || group.contains(&need) || self.children.is_known_done(need)
            });
            ids.push(self.send(program, args, *to, &needs, collectives)?);
        }
        Ok(ids)
    }

    /// Submits a task to whichever sub-worker is next.
    pub fn submit_sub(&mut self, program: Program, args: &Args) -> Result<TaskId, Failure> {
        let subs = self.children.len() - self.next_level;
        if subs == 0 {
            let text = "this Worker has no sub-workers; ask for some with `.sub_workers(n)`";
            return Err(Failure::new(ErrorCode::Invalid, text).in_phase("submit"));
        }
        // The one with the fewest unfinished tasks, starting after the last that was chosen.
        let order = (0..subs).map(|step| self.next_level + (self.next_sub + step) % subs);
        let to = order.min_by_key(|sub| self.children.backlog(*sub)).unwrap_or(self.next_level);
        self.next_sub = to - self.next_level + 1;
        self.submit(program, args, to)
    }

    /// How many chips (or Workers) there are.
    pub fn chips(&self) -> usize {
        self.next_level
    }

    fn submit(&mut self, program: Program, args: &Args, to: usize) -> Result<TaskId, Failure> {
        self.prepare(program, to)?;
        let task = self.next_task(to);
        self.needs.clear();
        for (range, access) in args.ranges() {
            self.tracker.enter(self.spaces.globally(range, to), access, task, &mut self.needs);
        }
        let mut needs = std::mem::take(&mut self.needs);
        if !needs.is_empty() {
            condense(&mut needs, |need| usize::from(need.child) == to || self.children.is_known_done(need));
        }
        let sent = self.send(program, args, to, &needs, 0);
        self.needs = needs;
        sent
    }

    fn next_task(&self, to: usize) -> Prerequisite {
        Prerequisite { child: to as u16, seq: self.children.next_seq(to) }
    }

    /// Nothing is sent after a failure. Afterwards the child has the program.
    fn prepare(&mut self, program: Program, to: usize) -> Result<(), Failure> {
        if let Some(first) = &self.failed {
            return Err(first.clone());
        }
        self.children.check_program(self.programs, program).map_err(|failure| failure.in_phase("submit"))?;
        self.children.register(to, self.programs, self.run, self.deadline)?;
        self.check_child(to)
    }

    fn send(
        &mut self,
        program: Program,
        args: &Args,
        to: usize,
        needs: &[Prerequisite],
        collectives: u8,
    ) -> Result<TaskId, Failure> {
        let frame = Frame {
            program: program.number(),
            collectives,
            prerequisites: needs,
            scalars: args.scalars(),
            tensors: args.tensors(),
            ..Frame::new(Kind::Task, self.run)
        };
        let sent = self.children.send(to, &frame, self.deadline);
        let seq = sent.inspect_err(|failure| self.failed = Some(failure.clone()))?;
        if seq.is_multiple_of(RING) {
            self.children.poll_done();
            self.tracker.tidy(|task| self.children.is_known_done(task));
        }
        Ok(TaskId { child: to as u16, seq })
    }

    /// Fails when `child` has failed in this run, and keeps that failure.
    fn check_child(&mut self, child: usize) -> Result<(), Failure> {
        if !self.children.failed_in(child, self.run) {
            return Ok(());
        }
        let first = self.children.problems(self.programs, self.run).into_result();
        first.inspect_err(|failure| self.failed = Some(failure.clone()))
    }

    /// The caller's closure is over. Unless it succeeded, tasks may wait for others that will not be
    /// submitted any more, and are cancelled; after a failed task the wait for the others does that.
    pub(super) fn closure_returned(&self, succeeded: bool) {
        if !succeeded && !self.children.run_failed() {
            self.children.cancel_run();
        }
    }

    /// Waits for everything that was submitted. Everything that went wrong in the run is returned.
    pub(super) fn finish(&mut self) -> Problems {
        let drained = self.children.drain(self.deadline);
        self.children.settle_cancelled_run();
        self.problems_after(self.run, drained)
    }

    /// What went wrong in `run`, after its frames have drained or could not.
    fn problems_after(&mut self, run: u64, drained: Result<(), Failure>) -> Problems {
        match self.children.run_failed() {
            true => self.children.check_for_death(),
            false if drained.is_ok() => return Problems::default(),
            false => {}
        }
        let mut problems = self.children.problems(self.programs, run);
        if let Err(failure) = drained
            && problems.is_empty()
        {
            // Nothing of this run: a child was lost in an earlier one.
            problems.add(Event::Died { noticed_ns: 0, because_of_peer: false }, failure);
        }
        problems
    }
}
