//! The child processes of a Worker that is up: sending to them, and following how far they are.

mod activity;
mod awaited;
mod close;
mod failures;
mod flight;
mod limits;
mod loss;
mod metrics;
mod replace;
mod time_out;

pub(super) use awaited::NamedMemory;
pub(super) use failures::death_code;
pub(crate) use flight::Ended;
pub(super) use flight::{Drained, InFlight};

use super::trace::{Trace, TraceFile};
use crate::program::Program;
use crate::shared::{
    ControlBlock, Definition, Frame, HEAD_BYTES, Inherited, Kind, Prerequisite, Programs, RING, RunAbove,
    covers,
};
use child_process::{Child, DeathThread};
use chip_bootstrap::{ChipGroup, region_failure};
use deadline::{Deadline, Death, Watch};
use fault_points::fault_point;
use limits::Limited;
use loss::Loss;
use mailbox_atomics::{DispatchSender, SpinBudget, Wait, WaitError};
use std::collections::VecDeque;
use std::sync::Arc;
use time_out::TimedOut;
use worker_errors::Failure;

/// Why a chip that is a rank cannot have another process.
pub(super) const IN_A_GROUP: &str =
    "the ranks of a communicator share memory with the process that joined, and no other can take its place";

/// One child.
#[derive(Debug)]
pub(super) struct ChildHandle {
    name: String,
    process: Child,
    /// The parent's side of its ring.
    ring: DispatchSender,
    /// The last run that had failed on it when it was last read how far it is.
    seen_failed_run: u64,
    /// How many of the changes to the programs it knows.
    registered: usize,
    /// It did not come back after a run that took too long, and was ended.
    ended: bool,
    /// Its slots have memory for long frames.
    has_tails: bool,
    /// Bytes that were copied to it and from it.
    bytes_to: u64,
    bytes_from: u64,
}

impl ChildHandle {
    /// `chip 0`, `sub-worker 1`, `worker 0`.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn process(&self) -> &Child {
        &self.process
    }

    pub(super) fn pid(&self) -> i32 {
        self.process.pid()
    }
}

/// All children, and the memory that they share with the parent.
#[derive(Debug)]
pub(super) struct Children {
    /// First, so that the thread is gone before the processes that it watches.
    deaths: Option<DeathThread>,
    block: Arc<ControlBlock>,
    /// The run of the Worker above that the current run is part of.
    above: Option<RunAbove>,
    handles: Vec<ChildHandle>,
    group: Option<ChipGroup>,
    /// The rank of each chip in that group.
    ranks: Vec<u32>,
    /// What the children have of the Worker's functions; `None` when they find functions by name.
    inherited: Option<Inherited>,
    spin: SpinBudget,
    /// The current run.
    run: u64,
    /// A collective command is under way. It ends on all its children by itself, and must not be cancelled on
    /// some of them.
    in_command: bool,
    loss: Option<Loss>,
    timed_out: Option<TimedOut>,
    /// Why a chip that was ended cannot have another process, if so.
    chips_stay: Option<&'static str>,
    /// The names of the programs, by number.
    programs: Vec<String>,
    trace: Option<Trace>,
    /// Memory of chips that has a name.
    named: Vec<NamedMemory>,
    /// The program that was last found fit to run, and after how many changes of programs.
    fit: Option<(Program, usize)>,
    /// The runs that were submitted and are not settled, oldest first.
    flight: VecDeque<InFlight>,
    /// Tasks that have a limit of their own.
    limits: Vec<Limited>,
}

impl Watch for Children {
    fn first_death(&self) -> Option<Death> {
        self.attend();
        if self.above.as_ref().is_some_and(RunAbove::is_over) && !self.run_cancelled() && !self.in_command {
            self.cancel_from(self.run);
        }
        self.find_death()
    }

    /// A child that fails wakes the parent.
    fn has_news(&self) -> bool {
        self.must_cancel().is_some()
    }
}

impl Children {
    pub(super) fn new(
        block: Arc<ControlBlock>,
        processes: Vec<(String, Child)>,
        group: Option<ChipGroup>,
        ranks: Vec<u32>,
        programs: &Programs,
        inherited: Option<Inherited>,
    ) -> Self {
        let registered = programs.changes().len();
        for (child, (name, process)) in processes.iter().enumerate() {
            block.set_about(child, process.pid(), name);
        }
        let spin = SpinBudget::for_parties_on(processes.len() + 1, block.parent().cores());
        let handle = |(name, process)| ChildHandle {
            name,
            process,
            ring: DispatchSender::new(RING),
            seen_failed_run: 0,
            registered,
            ended: false,
            has_tails: false,
            bytes_to: 0,
            bytes_from: 0,
        };
        Self {
            deaths: None,
            block,
            above: None,
            handles: processes.into_iter().map(handle).collect(),
            group,
            ranks,
            inherited,
            spin,
            run: 0,
            in_command: false,
            loss: None,
            timed_out: None,
            chips_stay: None,
            programs: programs.definitions().iter().map(Definition::name).collect(),
            trace: None,
            named: Vec::new(),
            fit: None,
            flight: VecDeque::new(),
            limits: Vec::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.handles.len()
    }

    pub(super) fn handles(&self) -> &[ChildHandle] {
        &self.handles
    }

    pub(super) fn block(&self) -> &ControlBlock {
        &self.block
    }

    pub(super) fn shared_block(&self) -> Arc<ControlBlock> {
        self.block.clone()
    }

    pub(super) fn group(&self) -> Option<&ChipGroup> {
        self.group.as_ref()
    }

    /// The rank of each chip in the group of all chips.
    pub(super) fn ranks(&self) -> &[u32] {
        &self.ranks
    }

    pub(super) fn set_trace(&mut self, trace: Option<Trace>) {
        self.trace = trace;
    }

    /// Whether what tasks need goes to a trace file, also when it is done before they are sent.
    pub(super) fn traces_needs(&self) -> bool {
        self.trace.as_ref().is_some_and(|trace| trace.file().is_some())
    }

    pub(super) fn trace_needs(&mut self, child: usize, needs: Vec<Prerequisite>) {
        if let Some(trace) = &mut self.trace {
            trace.set_needs(child, needs);
        }
    }

    pub(super) fn trace_file(&self) -> Option<&TraceFile> {
        self.trace.as_ref().and_then(Trace::file)
    }

    pub(super) fn take_trace(&mut self) -> Option<Trace> {
        self.trace.take()
    }

    /// Fails with the first cause when a child was lost.
    pub(super) fn check(&self) -> Result<(), Failure> {
        self.loss.as_ref().map_or(Ok(()), |loss| Err(loss.repeated()))
    }

    /// The same, and when the current run has timed out.
    #[inline]
    fn check_run(&self) -> Result<(), Failure> {
        if self.loss.is_none() && self.timed_out.is_none() { Ok(()) } else { self.check_lost_run() }
    }

    #[cold]
    fn check_lost_run(&self) -> Result<(), Failure> {
        self.check()?;
        let timed_out = self.timed_out.as_ref().filter(|timed_out| covers(timed_out.run, self.run));
        timed_out.map_or(Ok(()), |timed_out| Err(timed_out.failure.clone()))
    }

    /// What was lost, as the call that noticed it reported it.
    pub(super) fn loss(&self) -> Option<&Failure> {
        self.loss.as_ref().map(Loss::failure)
    }

    // The current run.

    /// Later runs are part of a run of the Worker above.
    pub(super) fn set_above(&mut self, above: RunAbove) {
        self.above = Some(above);
    }

    pub(super) fn begin_run(&mut self, run: u64, deadline: Deadline) {
        self.run = run;
        self.in_command = false;
        // Kernels of a run in front of it may have longer.
        let before = self.flight.iter().map(|earlier| earlier.deadline.monotonic_ns()).max();
        self.block.set_run_deadline(deadline.monotonic_ns().max(before.unwrap_or(0)));
    }

    /// Later failures belong to the clean-up `run`, which nothing cancels until
    /// [`end_command`](Self::end_command).
    pub(super) fn begin_clean_up(&mut self, run: u64) {
        self.run = run;
        self.in_command = true;
    }

    pub(super) fn begin_command(&mut self) {
        self.in_command = true;
    }

    pub(super) fn end_command(&mut self) {
        self.in_command = false;
    }

    /// Whether a task of the current run has failed, or of one before it in flight.
    pub(super) fn run_failed(&self) -> bool {
        self.failed_from(self.run)
    }

    /// Whether a task of `child` failed or was skipped in `run`, or in one before it in flight.
    pub(super) fn failed_in(&self, child: usize, run: u64) -> bool {
        covers(self.block.child(child).failed_run(), run)
    }

    /// Tasks of the current run that wait for each other return, and all of them count as failed.
    pub(super) fn cancel_run(&self) {
        self.cancel_from(self.run);
    }

    pub(super) fn run_cancelled(&self) -> bool {
        self.block.parent().is_cancelled(self.run)
    }

    /// After a run that failed or was cancelled has drained, its children may wait for each other again. Also where the task that failed
    /// was the last one, so that nothing was cancelled: its kernel and those of the others ended at different places of their group.
    pub(super) fn settle_broken_run(&self) {
        if let Some(group) = &self.group
            && self.is_broken(self.run)
            && self.loss.is_none()
        {
            group.resume_kernels();
        }
    }

    // Sending.

    /// The sequence number of the next frame to `child`.
    pub(super) fn next_seq(&self, child: usize) -> u64 {
        self.handles[child].ring.next_number()
    }

    /// Sends a frame and returns its sequence number. Waits while the child's ring is full.
    pub(super) fn send(
        &mut self,
        child: usize,
        frame: &Frame<'_>,
        deadline: Deadline,
    ) -> Result<u64, Failure> {
        let seq = self.next_seq(child);
        self.check_run()?;
        if frame.kind == Kind::Join {
            self.chips_stay = Some(IN_A_GROUP);
        }
        if let Some(before) = self.handles[child].ring.blocked_by() {
            self.await_room(child, before, deadline)?;
        }
        if self.trace.is_some() {
            self.trace_frame(child, seq, frame);
        }
        if !frame.is_head_only() {
            self.write_body(child, seq, frame)?;
        }
        let (block, handle) = (&self.block, &mut self.handles[child]);
        let slot = block.slot(child, seq);
        slot.write_head(frame.head());
        fault_point!("worker.send.written");
        // Together with the notification, which cannot fail: a frame that counts as sent is one that the
        // child finishes.
        handle.ring.publish(&slot.number, block.child(child).slot_flag());
        fault_point!("worker.send.notified");
        Ok(seq)
    }

    // What few frames need is apart, or it would make the way of each one longer.

    #[inline(never)]
    fn await_room(&mut self, child: usize, before: u64, deadline: Deadline) -> Result<(), Failure> {
        self.await_done(child, before, deadline)
    }

    #[cold]
    fn trace_frame(&mut self, child: usize, seq: u64, frame: &Frame<'_>) {
        if let Some(trace) = &mut self.trace {
            trace.collect(&self.block, &self.programs, child, self.handles[child].ring.known_done());
            trace.expect(child, seq, frame);
        }
    }

    /// Writes all of a frame that is more than its head.
    #[inline(never)]
    fn write_body(&mut self, child: usize, seq: u64, frame: &Frame<'_>) -> Result<(), Failure> {
        if frame.len() > HEAD_BYTES {
            self.reserve_tails(child)?;
        }
        frame.write_body(|at, bytes| self.block.write_slot(child, seq, at, bytes))
    }

    fn reserve_tails(&mut self, child: usize) -> Result<(), Failure> {
        let handle = &mut self.handles[child];
        if !handle.has_tails {
            self.block.reserve_tails(child).map_err(|error| region_failure(&error).in_phase("submit"))?;
            handle.has_tails = true;
        }
        Ok(())
    }

    /// Refuses a program that is unknown, or whose function the children do not have.
    #[inline]
    pub(super) fn check_program(&mut self, programs: &Programs, program: Program) -> Result<(), Failure> {
        // As the one before, as a rule.
        let fit = Some((program, programs.changes().len()));
        if self.fit == fit {
            return Ok(());
        }
        self.check_other_program(programs, program)?;
        self.fit = fit;
        Ok(())
    }

    #[inline(never)]
    fn check_other_program(&self, programs: &Programs, program: Program) -> Result<(), Failure> {
        programs.get(program)?;
        match &self.inherited {
            Some(inherited) => programs.check_inherited(program, inherited),
            None => Ok(()),
        }
    }

    /// Tells a child which programs were registered and unregistered since it was last told.
    #[inline]
    pub(super) fn register(
        &mut self,
        child: usize,
        programs: &Programs,
        run: u64,
        deadline: Deadline,
    ) -> Result<(), Failure> {
        if self.handles[child].registered == programs.changes().len() {
            return Ok(());
        }
        self.register_all(child, programs, run, deadline)
    }

    #[cold]
    fn register_all(
        &mut self,
        child: usize,
        programs: &Programs,
        run: u64,
        deadline: Deadline,
    ) -> Result<(), Failure> {
        for definition in &programs.definitions()[self.programs.len()..] {
            self.programs.push(definition.name());
        }
        for number in &programs.changes()[self.handles[child].registered..] {
            let blob = programs.definitions()[*number as usize].encode();
            let frame = Frame { program: *number, blob: &blob, ..Frame::new(Kind::Register, run) };
            self.send(child, &frame, deadline)?;
            self.handles[child].registered += 1;
        }
        Ok(())
    }

    // Progress.

    /// Reads how far every child is. One that claims more than it was sent is found by
    /// [`await_done`](Self::await_done).
    pub(super) fn poll_done(&mut self) {
        for (child, handle) in self.handles.iter_mut().enumerate() {
            let words = self.block.child(child);
            let _ = handle.ring.observe(words.done().min(handle.ring.sent()));
            handle.seen_failed_run = words.failed_run();
        }
    }

    /// Frames that `child` was sent and has not finished.
    pub(super) fn backlog(&self, child: usize) -> u64 {
        self.handles[child].ring.sent().saturating_sub(self.block.child(child).done())
    }

    /// Whether a task of the current run is known to have succeeded, without reading shared memory. Once a
    /// child has failed in the run, none of its tasks counts as met (F64): it skips all that follow.
    pub(super) fn is_met(&self, task: Prerequisite) -> bool {
        // A child records its failure before it says that it is done with the task, and the failure was read
        // after that.
        let handle = &self.handles[usize::from(task.child)];
        handle.ring.known_done() >= task.seq && !covers(handle.seen_failed_run, self.run)
    }

    /// The next frame to `child`, as a later one waits for it.
    pub(super) fn next_task(&self, child: usize) -> Prerequisite {
        Prerequisite { child: child as u16, seq: self.next_seq(child) }
    }

    /// The last frame that `child` was sent.
    pub(super) fn last_sent(&self, child: usize) -> Prerequisite {
        Prerequisite { child: child as u16, seq: self.handles[child].ring.sent() }
    }

    /// Waits until `child` has finished frame `seq`. The death of any child ends the wait.
    pub(super) fn await_done(&mut self, child: usize, seq: u64, deadline: Deadline) -> Result<(), Failure> {
        self.check_run()?;
        match self.wait_done(child, seq, deadline) {
            Ok(done) => self.observe(child, done),
            Err(error) => Err(self.interrupted(error)),
        }
    }

    #[inline(always)]
    fn wait_done_until(&self, child: usize, seq: u64, deadline: Deadline) -> Result<u64, WaitError> {
        let mut parked = self.block.park_flag(self.block.children(), child);
        let wait = Wait::until(deadline).watching(self).spinning(&self.spin);
        let wait = wait.abort_on(self.block.parent().death_word());
        self.block.child(child).done_number().wait_for(seq, &wait, &mut parked)
    }

    /// `child` says that it has finished frame `done`.
    #[inline(always)]
    fn observe(&mut self, child: usize, done: u64) -> Result<(), Failure> {
        let handle = &mut self.handles[child];
        handle.seen_failed_run = self.block.child(child).failed_run();
        match handle.ring.observe(done) {
            Ok(()) => Ok(()),
            Err(claim) => Err(self.lose(self.claims_too_much(child, claim))),
        }
    }

    /// Waits until `child` has finished everything that it was sent.
    #[inline]
    pub(super) fn await_all_of(&mut self, child: usize, deadline: Deadline) -> Result<(), Failure> {
        self.await_done(child, self.handles[child].ring.sent(), deadline)
    }

    /// Waits until every child has finished everything that it was sent.
    pub(super) fn drain(&mut self, deadline: Deadline) -> Result<(), Failure> {
        let drained = (0..self.len()).try_for_each(|child| self.await_all_of(child, deadline));
        if self.trace.is_some() {
            let sent = self.sent();
            self.collect_trace(&sent);
        }
        drained
    }

    /// Takes the times of what the children have done, up to these frames.
    fn collect_trace(&mut self, ends: &[u64]) {
        if let Some(trace) = &mut self.trace {
            let ends = ends.iter().enumerate();
            ends.for_each(|(child, end)| trace.collect(&self.block, &self.programs, child, *end));
        }
    }
}
