//! One run: tasks are submitted, ordered by what they touch, and drained.

use crate::args::Args;
use crate::deps::{Tracker, condense};
use crate::device_memory::Spaces;
use crate::domain::{Base, Domains};
use crate::frame::{Frame, Kind, Prerequisite};
use crate::hands::Hands;
use crate::program::{Program, Programs};
use deadline::Deadline;
use worker_errors::{ErrorCode, Failure};

/// A submitted task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskId {
    hand: u16,
    seq: u64,
}

/// Hands out tasks inside [`Worker::run`](crate::Worker::run).
///
/// A hand works on its tasks in the order in which they were submitted. Tasks on different hands overlap, unless the tensors say that one needs the
/// other; the hands then wait for each other without the parent.
pub struct Orchestrator<'w> {
    pub(crate) hands: &'w mut Hands,
    pub(crate) programs: &'w Programs,
    pub(crate) run: u64,
    pub(crate) deadline: Deadline,
    pub(crate) domains: Domains,
    pub(crate) base: &'w mut Base,
    /// Hands `0..next_level` are chips or Workers, the others are sub-workers.
    pub(crate) next_level: usize,
    pub(crate) spaces: Spaces,
    tracker: Tracker,
    needs: Vec<Prerequisite>,
    failed: Option<Failure>,
    next_sub: usize,
}

impl<'w> Orchestrator<'w> {
    pub(crate) fn new(
        hands: &'w mut Hands,
        programs: &'w Programs,
        base: &'w mut Base,
        next_level: usize,
        spaces: Spaces,
        run: u64,
        deadline: Deadline,
    ) -> Self {
        hands.run = run;
        hands.board.run().until_ns.store(deadline.monotonic_ns());
        hands.in_command = false;
        Self {
            hands,
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
                self.tracker.enter(self.spaces.tell_apart(range, *to), access, task, &mut self.needs);
            }
            all_needs.push(std::mem::take(&mut self.needs));
        }
        let group: Vec<Prerequisite> = members.iter().map(|(to, _)| self.next_task(*to)).collect();
        let mut ids = Vec::with_capacity(members.len());
        for ((to, args), mut needs) in members.iter().zip(all_needs) {
            condense(&mut needs, |need| {
                usize::from(need.hand) == *to || group.contains(&need) || self.hands.is_known_done(need)
            });
            ids.push(self.send(program, args, *to, &needs)?);
        }
        Ok(ids)
    }

    /// Submits a task to whichever sub-worker is next.
    pub fn submit_sub(&mut self, program: Program, args: &Args) -> Result<TaskId, Failure> {
        let subs = self.hands.hands.len() - self.next_level;
        if subs == 0 {
            let text = "this Worker has no sub-workers; ask for some with `.sub_workers(n)`";
            return Err(Failure::new(ErrorCode::Invalid, text).in_phase("submit"));
        }
        // The one with the fewest tasks ahead of it, starting after the last that was chosen.
        let order = (0..subs).map(|step| self.next_level + (self.next_sub + step) % subs);
        let ahead = |hand: &usize| {
            self.hands.hands[*hand].sent.saturating_sub(self.hands.board.hand(*hand).progress.done.load())
        };
        let to = order.min_by_key(ahead).unwrap_or(self.next_level);
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
            self.tracker.enter(self.spaces.tell_apart(range, to), access, task, &mut self.needs);
        }
        let mut needs = std::mem::take(&mut self.needs);
        if !needs.is_empty() {
            condense(&mut needs, |need| usize::from(need.hand) == to || self.hands.is_known_done(need));
        }
        let sent = self.send(program, args, to, &needs);
        self.needs = needs;
        sent
    }

    fn next_task(&self, to: usize) -> Prerequisite {
        Prerequisite { hand: to as u16, seq: self.hands.hands[to].sent + 1 }
    }

    /// Nothing goes out after a failure; the hand knows the program.
    fn prepare(&mut self, program: Program, to: usize) -> Result<(), Failure> {
        if let Some(first) = &self.failed {
            return Err(first.clone());
        }
        self.programs.get(program)?;
        self.hands.teach(to, self.programs, self.run, self.deadline)?;
        self.notice(to)
    }

    fn send(
        &mut self,
        program: Program,
        args: &Args,
        to: usize,
        needs: &[Prerequisite],
    ) -> Result<TaskId, Failure> {
        let frame = Frame {
            program: program.0,
            prerequisites: needs,
            scalars: args.scalars(),
            tensors: args.tensors(),
            ..Frame::new(Kind::Task, self.run)
        };
        let sent = self.hands.send(to, &frame, self.deadline);
        let seq = sent.inspect_err(|failure| self.failed = Some(failure.clone()))?;
        if seq.is_multiple_of(crate::board::RING) {
            for hand in 0..self.hands.hands.len() {
                self.hands.done(hand);
            }
            self.tracker.tidy(|task| self.hands.is_known_done(task));
        }
        Ok(TaskId { hand: to as u16, seq })
    }

    /// Keeps a failure of `hand` in this run, if it has had one.
    pub(crate) fn notice(&mut self, hand: usize) -> Result<(), Failure> {
        if self.hands.board.hand(hand).progress.failed_run.load() != self.run {
            return Ok(());
        }
        let failure = first_failure(self.hands, self.programs, self.run);
        self.failed = Some(failure.clone());
        Err(failure)
    }

    /// Waits for everything that was submitted, and says what failed first. A failure explains a deadline that passes later.
    pub(crate) fn finish(&mut self) -> Result<(), Failure> {
        let drained = self.hands.drain(self.deadline);
        self.hands.settle_cancelled_run();
        self.verdict(self.run, drained)
    }

    /// How run `run` went, after its frames have drained or could not.
    pub(crate) fn verdict(&mut self, run: u64, drained: Result<(), Failure>) -> Result<(), Failure> {
        if self.hands.run_failed() {
            self.hands.look_for_death();
        }
        let first = || first_failure(self.hands, self.programs, run);
        match &self.hands.lost {
            Some(lost) if lost.run == run && lost.failed_before => Err(lost.or(first())),
            // Tasks that fail because a lost hand made everybody stop are not the cause.
            Some(lost) if lost.run == run => Err(lost.failure.clone()),
            None if self.hands.run_failed() => Err(first()),
            _ => drained,
        }
    }
}

/// The earliest failure of a run, as its hand tells it.
pub(crate) fn first_failure(hands: &Hands, programs: &Programs, run: u64) -> Failure {
    let failed =
        (0..hands.hands.len()).filter(|hand| hands.board.hand(*hand).progress.failed_run.load() == run);
    let first = failed.min_by_key(|hand| hands.board.hand(*hand).progress.failed_at.load());
    let Some(hand) = first.filter(|hand| hands.board.hand(*hand).progress.failed_at.load() != u64::MAX)
    else {
        return Failure::new(ErrorCode::Aborted, "the run was aborted").in_phase("run");
    };
    let cause = Failure::decode(&hands.board.read_failure(hand)).unwrap_or_else(|error| {
        Failure::new(ErrorCode::Protocol, format!("its failure could not be read: {error}"))
    });
    let program = Program(hands.board.hand(hand).progress.failed_program.load());
    let name =
        programs.get(program).map_or("a command".to_owned(), |definition| format!("`{}`", definition.name()));
    let at = &hands.hands[hand];
    Failure::new(ErrorCode::Task, format!("{name} failed on {}", at.name))
        .in_phase("run")
        .in_process(at.child.pid() as u32)
        .caused_by(cause)
}
