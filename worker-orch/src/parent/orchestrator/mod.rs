//! Submitting tasks inside a run, in the order that follows from the memory that they touch.

mod checks;
mod collectives;
mod domains;
mod memory;
mod order;
mod staging;

pub(super) use collectives::RunEnd;
pub(super) use domains::{BaseGroup, Domains};
pub use domains::{Domain, DomainContext};
pub use staging::DomainStaging;

use super::address_spaces::AddressSpaces;
use super::children::Children;
use super::dependencies::Tracker;
use super::first_cause::{Event, Problems};
use super::up::Memories;
use crate::args::Args;
use crate::heap::Heap;
use crate::program::Program;
use crate::shared::{Frame, Kind, Prerequisite, Programs, RING};
use crate::task_id::{RunId, TaskId};
use deadline::Deadline;
use order::{Barriers, touches};
use worker_errors::{ErrorCode, Failure};

/// Submits tasks inside [`Worker::run`](crate::Worker::run).
///
/// A chip, Worker or sub-worker executes its tasks in the order in which they were submitted. Tasks of
/// different processes overlap, unless the tensors say that one needs the other, a task names another to wait
/// for, or a barrier is between them; the processes then wait for each other without the parent.
pub struct Orchestrator<'w> {
    children: &'w mut Children,
    programs: &'w Programs,
    worker: u64,
    run: u64,
    deadline: Deadline,
    domains: Domains,
    base: &'w mut BaseGroup,
    /// Children `0..next_level` are chips or Workers, the others are sub-workers.
    next_level: usize,
    spaces: &'w AddressSpaces,
    memories: Memories<'w>,
    /// The heap of a Worker whose tasks are checked.
    checked: Option<&'w Heap>,
    tracker: Tracker,
    barriers: Barriers,
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
        memories: Memories<'w>,
        RunId { worker, run }: RunId,
        deadline: Deadline,
    ) -> Self {
        Self {
            children,
            programs,
            worker,
            run,
            deadline,
            domains: Domains::default(),
            base,
            next_level,
            spaces: memories.spaces(),
            memories,
            checked: None,
            tracker: Tracker::default(),
            barriers: Barriers::new(),
            needs: Vec::new(),
            failed: None,
            next_sub: 0,
        }
    }

    /// Submits a task to chip (or Worker) number `to`. Returns as soon as there is room for it.
    pub fn submit_next_level(&mut self, program: Program, args: &Args, to: usize) -> Result<TaskId, Failure> {
        self.check_chip(to, "submit")?;
        self.submit(program, args, to)
    }

    /// Submits the same program to several chips together, each with its own arguments.
    ///
    /// A group is like one task: all members see what was there before it, none waits for another, and what
    /// comes later waits for all members that read or write the same memory.
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
        self.submit_members(program, members)
    }

    /// Submits the same program to several sub-workers together, each member to another one.
    ///
    /// Like a [group](Self::submit_group) of chips: there are as many sub-workers as members, or it is refused.
    pub fn submit_sub_group(&mut self, program: Program, members: &[Args]) -> Result<Vec<TaskId>, Failure> {
        let subs = self.children.len() - self.next_level;
        if members.len() > subs {
            let text = format!(
                "a group of {} tasks on {subs} sub-workers, which run one task each at the same time; ask for more \
                 with `.sub_workers(n)`, or submit them one by one",
                members.len()
            );
            return Err(Failure::new(ErrorCode::Invalid, text).in_phase("submit"));
        }
        // Those with the fewest unfinished tasks.
        let mut order: Vec<usize> = (self.next_level..self.children.len()).collect();
        order.sort_by_key(|sub| self.children.backlog(*sub));
        let members: Vec<(usize, Args)> = order.into_iter().zip(members.iter().cloned()).collect();
        self.submit_members(program, &members)
    }

    fn submit_members(
        &mut self,
        program: Program,
        members: &[(usize, Args)],
    ) -> Result<Vec<TaskId>, Failure> {
        members.iter().try_for_each(|(_, args)| self.check_args(program, args))?;
        members.iter().try_for_each(|(to, _)| self.prepare(program, *to))?;
        // First what each needs from before the group, then what the group itself does (F63).
        let mut all_needs = vec![Vec::new(); members.len()];
        for ((to, args), needs) in members.iter().zip(&mut all_needs) {
            self.needs(args, *to, needs);
        }
        for ((to, args), needs) in members.iter().zip(&mut all_needs) {
            self.send_many_needs(*to, needs)?;
            self.send_spans(*to, args, members)?;
        }
        let (children, spaces) = (&*self.children, self.spaces);
        self.tracker
            .enter(members.iter().flat_map(|(to, args)| touches(args, spaces, *to, children.next_task(*to))));
        let collectives = self.base.groups.of(members.iter().map(|(to, _)| *to));
        let together: Vec<usize> = members.iter().map(|(to, _)| *to).collect();
        let graph = self.programs.is_graph(program);
        let session = if graph { self.session(&together) } else { Vec::new() };
        let each = members.iter().zip(all_needs);
        each.map(|((to, args), needs)| self.send(program, args, *to, &needs, collectives, &session)).collect()
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
        self.check_args(program, args)?;
        self.prepare(program, to)?;
        let graph = self.programs.is_graph(program);
        if self.orders_nothing(args) && !graph {
            return self.send(program, args, to, &[], 0, &[]);
        }
        let session = if graph { self.session(&[to]) } else { Vec::new() };
        let mut needs = std::mem::take(&mut self.needs);
        self.needs(args, to, &mut needs);
        self.send_many_needs(to, &mut needs)?;
        self.send_spans(to, args, &[])?;
        self.tracker.enter(touches(args, self.spaces, to, self.children.next_task(to)));
        let sent = self.send(program, args, to, &needs, 0, &session);
        self.needs = needs;
        sent
    }

    fn check_chip(&self, chip: usize, phase: &'static str) -> Result<(), Failure> {
        if chip < self.next_level { Ok(()) } else { Err(self.no_chip(chip, phase)) }
    }

    #[cold]
    fn no_chip(&self, chip: usize, phase: &'static str) -> Failure {
        let text = format!("there is no chip {chip}; this Worker has {}, counted from 0", self.next_level);
        Failure::new(ErrorCode::Invalid, text).in_phase(phase)
    }

    /// Nothing is sent after a failure. Afterwards the child has the program.
    #[inline]
    fn prepare(&mut self, program: Program, to: usize) -> Result<(), Failure> {
        if let Some(first) = &self.failed {
            return Err(first.clone());
        }
        self.children.check_program(self.programs, program).map_err(|failure| failure.in_phase("submit"))?;
        self.children.register(to, self.programs, self.run, self.deadline)?;
        self.check_child(to)
    }

    /// What graphs that are submitted together have in common: a number, and the ranks of their chips.
    fn session(&mut self, chips: &[usize]) -> Vec<u8> {
        self.base.sessions += 1;
        let mut blob = self.base.sessions.to_le_bytes().to_vec();
        // A rank fits a byte: there are at most 64. Sub-workers have none.
        blob.extend(chips.iter().filter_map(|chip| Some(*self.children.ranks().get(*chip)? as u8)));
        blob
    }

    fn send(
        &mut self,
        program: Program,
        args: &Args,
        to: usize,
        needs: &[Prerequisite],
        collectives: u8,
        session: &[u8],
    ) -> Result<TaskId, Failure> {
        let frame = Frame {
            program: program.number(),
            collectives,
            blocks: args.block_count(),
            prerequisites: needs,
            scalars: args.scalars(),
            blob: session,
            tensors: args.tensors(),
            ..Frame::new(Kind::Task, self.run)
        };
        let seq = self.send_frame(to, &frame)?;
        if let Some(limit) = args.limit() {
            self.children.limit_task(to, seq, limit.get());
        }
        if seq.is_multiple_of(RING) {
            self.children.poll_done();
            // A trace shows what is done as well.
            if !self.children.traces_needs() {
                self.tracker.tidy(|task| self.children.is_met(task));
            }
        }
        Ok(TaskId::new(self.id(), Prerequisite { child: to as u16, seq }))
    }

    fn send_frame(&mut self, to: usize, frame: &Frame<'_>) -> Result<u64, Failure> {
        match self.children.send(to, frame, self.deadline) {
            Ok(seq) => Ok(seq),
            Err(failure) => Err(self.failed.insert(failure).clone()),
        }
    }

    /// Fails when `child` has failed in this run, and keeps that failure.
    fn check_child(&mut self, child: usize) -> Result<(), Failure> {
        if self.children.failed_in(child, self.run) { self.keep_failure() } else { Ok(()) }
    }

    #[cold]
    fn keep_failure(&mut self) -> Result<(), Failure> {
        let first = self.children.problems(self.run).into_result();
        // Or in a run in front of it, whose handle tells why.
        let first = first.and_then(|()| Err(run_before_failed()));
        first.inspect_err(|failure| self.failed = Some(failure.clone()))
    }

    /// The caller's closure is over. Unless it succeeded, tasks may wait for others that will not be
    /// submitted any more, and are cancelled; after a failed task the wait for the others does that.
    pub(super) fn closure_returned(&self, succeeded: bool) {
        if !succeeded && !self.children.run_failed() {
            self.children.cancel_run();
        }
    }

    /// Goes on with what runs in flight touched.
    pub(super) fn follow(&mut self, tracker: Tracker) {
        self.tracker = tracker;
    }

    /// The closure is over and the tasks are under way: what is kept of the run.
    pub(super) fn into_parts(self) -> (Tracker, Domains) {
        (self.tracker, self.domains)
    }

    /// Goes on with a run that was submitted before.
    pub(super) fn with_domains(self, domains: Domains) -> Self {
        Self { domains, ..self }
    }

    /// Waits for everything that was submitted. Everything that went wrong in the run is returned.
    pub(super) fn finish(&mut self) -> Problems {
        let drained = self.children.drain(self.deadline);
        self.children.settle_broken_run();
        self.problems_after(self.run, drained)
    }

    /// What went wrong in `run`, after its frames have drained or could not.
    pub(super) fn problems_after(&mut self, run: u64, drained: Result<(), Failure>) -> Problems {
        match self.children.run_failed() {
            true => self.children.check_for_death(),
            false if drained.is_ok() => return Problems::default(),
            false => {}
        }
        let mut problems = self.children.problems(run);
        if let Err(failure) = drained
            && problems.is_empty()
        {
            // Nothing of this run: a child was lost in an earlier one.
            problems.add(Event::Died { noticed_ns: 0, because_of_peer: false }, failure);
        }
        problems
    }
}

/// Why a run in flight did not run to its end.
#[cold]
pub(super) fn run_before_failed() -> Failure {
    let text = "a run that was submitted before this one, and was in flight with it, failed or was cancelled, so this one was cancelled; some \
                of its tasks may have run. Submit it again";
    Failure::new(ErrorCode::Aborted, text).in_phase("run")
}
