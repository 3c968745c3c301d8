//! What goes wrong with children: deaths, deadlines, claims that cannot be, and failures of their tasks.

use super::loss::Loss;
use super::{ChildHandle, Children};
use crate::parent::first_cause::{Event, Problems, is_because_of_peer};
use crate::program::Program;
use crate::shared::{Activity, FailedAt, Programs};
use deadline::{Death, HowDied, monotonic_ns};
use mailbox_atomics::{Overclaimed, WaitError};
use std::fmt::Write;
use std::time::Duration;
use worker_errors::{ErrorCode, Failure};

impl Children {
    pub(super) fn find_death(&self) -> Option<Death> {
        self.handles.iter().enumerate().find_map(|(number, handle)| {
            let how = handle.process.watch().death()?;
            Some(Death { peer: number as u32, pid: handle.pid(), how })
        })
    }

    /// Looks for a dead child when only what followed from its death may be known.
    pub(in crate::parent) fn check_for_death(&mut self) {
        if self.loss.is_none()
            && let Some(death) = self.find_death()
        {
            self.lose(self.death_of(death));
        }
    }

    /// Everything that is known to have gone wrong in `run`.
    pub(in crate::parent) fn problems(&self, programs: &Programs, run: u64) -> Problems {
        let mut problems = Problems::default();
        if let Some(loss) = self.loss.as_ref().filter(|loss| loss.run() == run) {
            problems.add(loss.event(), loss.failure().clone());
        }
        for child in 0..self.len() {
            match self.block.failed_at(child, run) {
                Some(FailedAt::Time(at_ns)) => {
                    let cause = self.block.failure(child);
                    let because_of_peer = is_because_of_peer(&cause);
                    let failure = self.task_failure(child, programs).caused_by(cause);
                    problems.add(Event::Task { at_ns, because_of_peer }, failure);
                }
                Some(FailedAt::Followed) => {
                    let failure = Failure::new(ErrorCode::Aborted, "the run was aborted").in_phase("run");
                    problems.add(Event::Followed, failure);
                }
                None => {}
            }
        }
        problems
    }

    /// That the program which `child` recorded failed on it.
    fn task_failure(&self, child: usize, programs: &Programs) -> Failure {
        let program = Program::from_number(self.block.failed_program(child));
        let name =
            programs.get(program).map_or("a command".to_owned(), |found| format!("`{}`", found.name()));
        let handle = &self.handles[child];
        Failure::new(ErrorCode::Task, format!("{name} failed on {}", handle.name))
            .in_phase("run")
            .in_process(handle.pid() as u32)
    }

    /// A child is gone or does not answer: all of them stop, and the Worker cannot be used until it is
    /// initialised again.
    pub(super) fn lose(&mut self, failure: Failure) -> Failure {
        let failure = failure.in_phase("run");
        self.loss = Some(Loss::new(failure.clone(), self.run, monotonic_ns()));
        self.stop_all();
        failure
    }

    pub(super) fn interrupted(&self, error: WaitError) -> Failure {
        match error {
            WaitError::PeerDied(death) => self.death_of(death),
            WaitError::TimedOut { waited, limit } => Failure::new(
                ErrorCode::TimedOut,
                format!(
                    "not finished after {waited:.1?} of {limit:?}; what every process is doing:\n{}",
                    self.table()
                ),
            ),
            WaitError::Aborted { .. } => Failure::new(ErrorCode::Aborted, "the run was aborted"),
        }
    }

    /// A child that claims to have finished what it was never sent: nothing that it says can be trusted.
    pub(super) fn claims_too_much(&self, child: usize, Overclaimed { done, sent }: Overclaimed) -> Failure {
        let ChildHandle { name, process, .. } = &self.handles[child];
        let text = format!("{name} (pid {}) claims to have finished {done} tasks of {sent}", process.pid());
        Failure::new(ErrorCode::Protocol, text).in_process(process.pid() as u32)
    }

    /// The death of a child, reaped, with its name.
    fn death_of(&self, death: Death) -> Failure {
        let number = death.peer as usize;
        let handle = &self.handles[number];
        let how = handle.process.try_reap().unwrap_or(death.how);
        if let (Some(group), Some(rank)) = (&self.group, self.ranks.get(number)) {
            group.report_death(*rank, how);
        }
        let when = match self.block.child(number).activity() {
            Activity::Idle => "while it was idle".to_owned(),
            Activity::Task { seq, .. } => format!("in its task {seq}"),
        };
        let text = format!("{} (pid {}) died: {how}, {when}", handle.name, death.pid);
        Failure::new(death_code(how), text).in_process(death.pid as u32)
    }

    /// One line for each child: what it is working on, and since when.
    fn table(&self) -> String {
        let now = monotonic_ns();
        let mut table = String::new();
        for (child, handle) in self.handles.iter().enumerate() {
            let words = self.block.child(child);
            let doing = match words.activity() {
                Activity::Idle => format!("idle, {} of {} tasks done", words.done(), handle.ring.sent()),
                Activity::Task { seq, since_ns } => {
                    let since = Duration::from_nanos(now.saturating_sub(since_ns));
                    format!("in task {seq} of {} for {since:.1?}", handle.ring.sent())
                }
            };
            let _ = writeln!(table, "  {:<12} pid {:<8} {doing}", handle.name, handle.pid());
        }
        table
    }
}

pub(in crate::parent) fn death_code(how: HowDied) -> ErrorCode {
    match how {
        HowDied::Exited(_) => ErrorCode::Exited,
        HowDied::Signalled(_) => ErrorCode::Killed,
        HowDied::Unknown => ErrorCode::PeerDied,
    }
}
