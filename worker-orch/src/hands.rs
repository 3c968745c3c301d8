//! The processes of a Worker that is up, as their parent sees them.

use crate::board::{Board, RING};
use crate::frame::{Frame, Kind, Prerequisite};
use crate::lost::Lost;
use crate::program::Programs;
use crate::serve::{parting_failure, slot_is_free};
use crate::trace::Trace;
use bootstrap_channel::ChannelSet;
use child_process::Child;
use chip_bootstrap::{BringUpPhase, ChipGroup};
use deadline::{Deadline, Death, HowDied, Watch, monotonic_ns};
use fault_points::fault_point;
use mailbox_atomics::{Listener, SpinBudget, Wait, WaitError};
use nix::sys::signal::Signal;
use std::fmt::Write;
use std::num::NonZeroU32;
use std::time::Duration;
use worker_errors::{ErrorCode, Failure};

/// One process.
#[derive(Debug)]
pub(crate) struct Hand {
    pub(crate) name: String,
    pub(crate) child: Child,
    /// Frames sent so far.
    pub(crate) sent: u64,
    /// What `done` was when it was last looked at.
    seen_done: u64,
    /// Programs that it knows.
    known: usize,
}

/// All of them, and the memory they share with the parent.
#[derive(Debug)]
pub(crate) struct Hands {
    pub(crate) board: Board,
    pub(crate) hands: Vec<Hand>,
    pub(crate) group: Option<ChipGroup>,
    spin: SpinBudget,
    /// The run that is on.
    pub(crate) run: u64,
    /// How a hand died, once one did: everything later repeats it.
    pub(crate) lost: Option<Lost>,
    /// A collective command is under way. It ends on all its hands by itself, and must not be cancelled on some of them.
    pub(crate) in_command: bool,
    pub(crate) trace: Option<Trace>,
}

impl Watch for Hands {
    fn first_death(&self) -> Option<Death> {
        self.cancel_failed_run();
        self.dead()
    }
}

impl Hands {
    pub(crate) fn new(
        board: Board,
        children: Vec<(String, Child)>,
        group: Option<ChipGroup>,
        programs: &Programs,
    ) -> Self {
        let known = programs.iter().count();
        let spin = SpinBudget::for_parties(children.len() + 1);
        let hands =
            children.into_iter().map(|(name, child)| Hand { name, child, sent: 0, seen_done: 0, known });
        Self {
            board,
            hands: hands.collect(),
            group,
            spin,
            run: 0,
            lost: None,
            in_command: false,
            trace: None,
        }
    }

    fn dead(&self) -> Option<Death> {
        self.hands.iter().enumerate().find_map(|(number, hand)| {
            let how = hand.child.watch().death()?;
            Some(Death { peer: number as u32, pid: hand.child.pid(), how })
        })
    }

    /// Fails with the first cause when a hand died.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        self.lost.as_ref().map_or(Ok(()), |lost| Err(lost.with_advice()))
    }

    /// Whether a task of the run that is on has failed.
    pub(crate) fn run_failed(&self) -> bool {
        (0..self.hands.len()).any(|hand| self.board.hand(hand).progress.failed_run.load() == self.run)
    }

    /// Once a task has failed, those that wait for it would wait in vain: they are told to return.
    fn cancel_failed_run(&self) {
        if !self.run_cancelled() && !self.in_command && self.run_failed() {
            self.cancel_run();
        }
    }

    /// Has those that wait for each other in this run return, and its other tasks count for nothing.
    pub(crate) fn cancel_run(&self) {
        self.board.parent().cancelled_run.store(self.run);
        if let Some(group) = &self.group {
            group.cancel_kernels();
        }
    }

    /// Whether those that wait for each other in the run that is on were told to return.
    pub(crate) fn run_cancelled(&self) -> bool {
        self.board.parent().cancelled_run.load() == self.run
    }

    /// After a cancelled run has drained, its hands may wait for each other again.
    pub(crate) fn settle_cancelled_run(&self) {
        if let Some(group) = &self.group
            && self.run_cancelled()
            && self.lost.is_none()
        {
            group.resume_kernels();
        }
    }

    /// Sends a frame and returns its number. Waits while the hand's ring is full.
    pub(crate) fn send(
        &mut self,
        hand: usize,
        frame: &Frame<'_>,
        deadline: Deadline,
    ) -> Result<u64, Failure> {
        let seq = self.hands[hand].sent + 1;
        if !slot_is_free(seq, self.hands[hand].seen_done) {
            self.await_done(hand, seq - RING, deadline)?;
        }
        if let Some(trace) = &mut self.trace {
            trace.collect(&self.board, hand, self.hands[hand].seen_done);
            trace.expect(hand, seq, frame);
        }
        frame.write(|at, bytes| self.board.write_slot(hand, seq, at, bytes))?;
        fault_point!("worker.send.written");
        // Together with the ring, which cannot fail: a frame that counts as sent is one that the hand will finish.
        self.hands[hand].sent = seq;
        self.board
            .slot(hand, seq)
            .store_and_notify(seq, [Listener::new(&self.board.hand(hand).parking.parked)]);
        fault_point!("worker.send.rung");
        Ok(seq)
    }

    /// Tells a hand of the programs that it does not know yet.
    pub(crate) fn teach(
        &mut self,
        hand: usize,
        programs: &Programs,
        run: u64,
        deadline: Deadline,
    ) -> Result<(), Failure> {
        for definition in programs.iter().skip(self.hands[hand].known) {
            let blob = definition.encode();
            self.send(hand, &Frame { blob: &blob, ..Frame::new(Kind::Learn, run) }, deadline)?;
            self.hands[hand].known += 1;
        }
        Ok(())
    }

    /// How far a hand has come; looked at afresh. One that says that it is further than that is told by [`await_done`](Self::await_done).
    pub(crate) fn done(&mut self, hand: usize) -> u64 {
        let done = self.board.hand(hand).progress.done.load().min(self.hands[hand].sent);
        self.hands[hand].seen_done = done;
        done
    }

    /// Whether a task is known to be finished, without looking afresh.
    pub(crate) fn is_known_done(&self, task: Prerequisite) -> bool {
        self.hands.get(usize::from(task.hand)).is_none_or(|hand| hand.seen_done >= task.seq)
    }

    /// Waits until `hand` has finished frame `seq`. A hand's death, anybody's, ends it with that death.
    pub(crate) fn await_done(&mut self, hand: usize, seq: u64, deadline: Deadline) -> Result<(), Failure> {
        self.check()?;
        let mut listener = self.board.listener(self.board.hands(), hand);
        let wait = Wait::until(deadline).watching(self).spinning(&self.spin);
        let waited = wait.on(&self.board.hand(hand).progress.done, Some(&mut listener), |done| {
            (done >= seq).then_some(done)
        });
        match waited {
            Ok(done) if done <= self.hands[hand].sent => {
                self.hands[hand].seen_done = done;
                Ok(())
            }
            Ok(done) => Err(self.lost(self.overdone(hand, done))),
            Err(error) => Err(self.lost(self.interrupted(error))),
        }
    }

    /// Waits until every hand has finished what it was sent.
    pub(crate) fn drain(&mut self, deadline: Deadline) -> Result<(), Failure> {
        (0..self.hands.len()).try_for_each(|hand| self.await_done(hand, self.hands[hand].sent, deadline))?;
        if let Some(trace) = &mut self.trace {
            (0..self.hands.len()).for_each(|hand| trace.collect(&self.board, hand, self.hands[hand].sent));
        }
        Ok(())
    }

    /// Looks whether a hand has died, for who knows only of what followed from it.
    pub(crate) fn look_for_death(&mut self) {
        if self.lost.is_none()
            && let Some(death) = self.dead()
        {
            self.lost(self.death_of(death));
        }
    }

    fn interrupted(&self, error: WaitError) -> Failure {
        match error {
            WaitError::PeerDied(death) => self.death_of(death),
            WaitError::TimedOut { waited, limit } => Failure::new(
                ErrorCode::TimedOut,
                format!(
                    "not finished after {waited:.1?} of {limit:?}; what every hand is doing:\n{}",
                    self.table()
                ),
            ),
            WaitError::Aborted { .. } => Failure::new(ErrorCode::Aborted, "the run was aborted"),
        }
    }

    /// A hand that says that it has finished what it was never sent: nothing that it says can be believed.
    fn overdone(&self, hand: usize, done: u64) -> Failure {
        let Hand { name, child, sent, .. } = &self.hands[hand];
        let text = format!("{name} (pid {}) says that it has done {done} frames of {sent}", child.pid());
        Failure::new(ErrorCode::Protocol, text).in_process(child.pid() as u32)
    }

    /// A hand is gone or does not answer: everybody stops, and the Worker is of no use until it is initialised again.
    fn lost(&mut self, failure: Failure) -> Failure {
        let failure = failure.in_phase("run");
        let (run, failed_before) = (self.run, self.run_failed());
        self.lost = Some(Lost { failure: failure.clone(), run, failed_before });
        self.stop_everybody();
        failure
    }

    fn stop_everybody(&mut self) {
        self.board.parent().abort.raise(NonZeroU32::MIN);
        if let Some(group) = &self.group {
            group.halt(NonZeroU32::MIN);
        }
        // A moment for kernels that look at their abort word; those that do not are killed when the hands are dropped.
        let Ok(grace) = Deadline::after(GRACE) else { return };
        let alive = |(_, hand): &(usize, &Hand)| hand.child.watch().death().is_none();
        for (number, hand) in self.hands.iter().enumerate().filter(alive) {
            let words = self.board.hand(number);
            let watching = Only(hand);
            let wait = Wait::until(grace).watching(&watching);
            let mut listener = self.board.listener(self.board.hands(), number);
            let _ =
                wait.on(&words.progress.done, Some(&mut listener), |done| (done >= hand.sent).then_some(()));
        }
    }

    /// The death of a hand, reaped, with its name.
    fn death_of(&self, death: Death) -> Failure {
        let number = death.peer as usize;
        let how = self.hands[number].child.try_reap().unwrap_or(death.how);
        if let (Some(group), Ok(rank)) = (&self.group, u32::try_from(number)) {
            group.report_death(rank, how);
        }
        let (code, hand) = (death_code(how), &self.hands[number]);
        let working = match self.board.hand(number).doing.frame.load() {
            0 => "while it was idle".to_owned(),
            frame => format!("in its frame {frame}"),
        };
        Failure::new(code, format!("{} (pid {}) died: {how}, {working}", hand.name, death.pid))
            .in_process(death.pid as u32)
    }

    /// One line for each hand: what it is working on, and since when.
    pub(crate) fn table(&self) -> String {
        let now = monotonic_ns();
        let mut table = String::new();
        for (number, hand) in self.hands.iter().enumerate() {
            let words = self.board.hand(number);
            let doing = match words.doing.frame.load() {
                0 => format!("idle, {} of {} frames done", words.progress.done.load(), hand.sent),
                frame => {
                    let since = Duration::from_nanos(now.saturating_sub(words.doing.since_ns.load()));
                    format!("in frame {frame} of {} for {since:.1?}", hand.sent)
                }
            };
            let _ = writeln!(table, "  {:<12} pid {:<8} {doing}", hand.name, hand.child.pid());
        }
        table
    }

    /// Asks all to go, waits for all under one deadline, then makes them go.
    pub(crate) fn close(mut self, patience: Duration) -> Result<(), Failure> {
        self.board.parent().shutdown.raise(NonZeroU32::MIN);
        let Ok(deadline) = Deadline::after(patience) else {
            return Err(Failure::new(ErrorCode::Invalid, "no time to close"));
        };
        for hand in 0..self.hands.len() {
            let idle = slot_is_free(self.hands[hand].sent + 1, self.done(hand));
            // A hand whose ring is full is not idle and sees the shutdown word when it comes to its next frame.
            if idle && self.lost.is_none() {
                let _ = self.send(hand, &Frame::new(Kind::Shutdown, 0), deadline);
            }
        }
        fault_point!("worker.close.asked");
        let mut worst = Ok(());
        let mut stuck: Vec<&Hand> = Vec::new();
        for (number, hand) in self.hands.iter().enumerate() {
            let end = if self.lost.is_some() { hand.child.try_reap() } else { hand.child.reap(deadline) };
            match end {
                Some(HowDied::Exited(0)) => {}
                Some(how) if self.lost.is_none() => {
                    let text = format!("{} (pid {}) ended badly: {how}", hand.name, hand.child.pid());
                    let failure = Failure::new(death_code(how), text).in_phase("close");
                    let cause = parting_failure(&self.board, number);
                    worst = worst.and(Err(cause.into_iter().fold(failure, Failure::caused_by)));
                }
                Some(_) => {}
                None => stuck.push(hand),
            }
        }
        fault_point!("worker.close.waited");
        for signal in [Signal::SIGTERM, Signal::SIGKILL] {
            stuck.iter().for_each(|hand| hand.child.signal(signal));
            let Ok(moment) = Deadline::after(GRACE) else { break };
            for hand in &stuck {
                hand.child.reap(moment);
            }
        }
        if self.lost.is_none()
            && let Some(hand) = stuck.first()
        {
            let text = format!(
                "{} (pid {}) did not go within {patience:?} and was killed",
                hand.name,
                hand.child.pid()
            );
            worst = worst.and(Err(Failure::new(ErrorCode::TimedOut, text).in_phase("close")));
        }
        fault_point!("worker.close.gone");
        // Dropping the children kills and reaps whoever is left, should there be any.
        worst
    }
}

/// What kernels get to notice an abort before their process is killed.
const GRACE: Duration = Duration::from_millis(100);

/// Watches one hand.
struct Only<'a>(&'a Hand);

impl Watch for Only<'_> {
    fn first_death(&self) -> Option<Death> {
        self.0.child.watch().death().map(|how| Death { peer: 0, pid: self.0.child.pid(), how })
    }
}

pub(crate) fn death_code(how: HowDied) -> ErrorCode {
    match how {
        HowDied::Exited(_) => ErrorCode::Exited,
        HowDied::Signalled(_) => ErrorCode::Killed,
        HowDied::Unknown => ErrorCode::PeerDied,
    }
}

/// One line for each chip in its bring-up.
pub(crate) fn bring_up_table(channels: &ChannelSet, names: &[String]) -> String {
    let mut table = String::new();
    for (number, name) in names.iter().enumerate() {
        let code = channels.reader(number).map_or(0, |reader| reader.phase());
        let phase = BringUpPhase::from_code(code).map_or("?", BringUpPhase::name);
        let _ = writeln!(table, "  {name:<12} {phase}");
    }
    table
}
