//! What goes wrong with children: deaths, deadlines, claims that cannot be, and failures of their tasks.

use super::loss::Loss;
use super::{ChildHandle, Children};
use crate::parent::first_cause::{Event, Problems, is_because_of_peer};
use crate::shared::{Activity, FailedAt, LOST};
use deadline::{Death, HowDied, monotonic_ns};
use mailbox_atomics::{Overclaimed, WaitError};
use worker_errors::{ErrorCode, Failure};

impl Children {
    pub(super) fn find_death(&self) -> Option<Death> {
        self.handles.iter().enumerate().filter(|(_, handle)| !handle.ended).find_map(|(number, handle)| {
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
    pub(in crate::parent) fn problems(&self, run: u64) -> Problems {
        let mut problems = Problems::default();
        if let Some(loss) = self.loss.as_ref().filter(|loss| loss.run() == run) {
            problems.add(loss.event(), loss.failure().clone());
        }
        if let Some(timed_out) = self.timed_out.as_ref().filter(|timed_out| timed_out.run == run) {
            problems.add(timed_out.event(), timed_out.failure.clone());
        }
        for child in 0..self.len() {
            match self.block.failed_at(child, run) {
                Some(FailedAt::Time(at_ns)) => {
                    let cause = self.block.failure(child);
                    let because_of_peer = is_because_of_peer(&cause);
                    let failure = self.task_failure(child).caused_by(cause);
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
    fn task_failure(&self, child: usize) -> Failure {
        let name = self.program_words(self.block.failed_program(child));
        let handle = &self.handles[child];
        Failure::new(ErrorCode::Task, format!("{name} failed on {}", handle.name))
            .in_phase("run")
            .in_process(handle.pid() as u32)
    }

    /// A child is gone or does not answer: all of them stop, and the Worker cannot be used until it is
    /// initialised again.
    pub(in crate::parent) fn lose(&mut self, failure: Failure) -> Failure {
        self.lose_at(monotonic_ns(), failure)
    }

    /// The same for what was noticed at this time: tasks that failed later did so because they were stopped.
    pub(super) fn lose_at(&mut self, noticed_ns: u64, failure: Failure) -> Failure {
        let failure = failure.in_phase("run");
        self.loss = Some(Loss::new(failure.clone(), self.run, noticed_ns));
        self.stop_all();
        failure
    }

    pub(super) fn interrupted(&mut self, error: WaitError) -> Failure {
        match error {
            WaitError::PeerDied(death) => self.lose(self.death_of(death)),
            // Only the death thread raises the word.
            WaitError::Aborted { reason } => {
                let found = self.find_death().or_else(|| self.reported_death(reason.get()));
                let failure = found.map(|death| self.death_of(death));
                let unknown =
                    || Failure::new(ErrorCode::Internal, "a process died, and it is not known which");
                self.lose(failure.unwrap_or_else(unknown))
            }
            WaitError::Interrupted => {
                let text = "this process was interrupted while it waited for its chips; they are stopped";
                self.lose(Failure::new(ErrorCode::Aborted, text))
            }
            WaitError::TimedOut { waited, limit } => self.time_out(waited, limit),
        }
    }

    /// The child whose number, from 1, the death thread has reported.
    fn reported_death(&self, number: u32) -> Option<Death> {
        let number = number.checked_sub(1)?;
        let pid = self.handles.get(number as usize)?.pid();
        Some(Death { peer: number, pid, how: HowDied::Unknown })
    }

    /// A child that claims to have finished what it was never sent: nothing that it says can be trusted.
    pub(super) fn claims_too_much(&self, child: usize, Overclaimed { done, sent }: Overclaimed) -> Failure {
        let ChildHandle { name, process, .. } = &self.handles[child];
        let text = format!(
            "{name} (pid {}) claims to have finished {done} of {sent} tasks; it runs another build, or something overwrote its memory",
            process.pid()
        );
        Failure::new(ErrorCode::Protocol, text).in_process(process.pid() as u32)
    }

    /// The death of a child, reaped, with its name.
    pub(super) fn death_of(&self, death: Death) -> Failure {
        let number = death.peer as usize;
        let handle = &self.handles[number];
        let how = handle.process.try_reap().unwrap_or(death.how);
        if let (Some(group), Some(rank)) = (&self.group, self.ranks.get(number)) {
            group.report_death(*rank, how);
        }
        let when = match self.block.child(number).activity() {
            Activity::Idle => "while it was idle".to_owned(),
            Activity::Task { .. } => self.activity(number),
        };
        let below = self.block.exit_failure(number).filter(|_| how == HowDied::Exited(LOST));
        if let Some(below) = below {
            let text = format!("{} (pid {}) lost a process below it, {when}", handle.name, death.pid);
            return Failure::new(below.code, text).in_process(death.pid as u32).caused_by(below);
        }
        let text = format!("{} (pid {}) died: {how}, {when}{}", handle.name, death.pid, advice(how));
        Failure::new(death_code(how), text).in_process(death.pid as u32)
    }
}

/// What the caller does next, where the signal says something about that.
fn advice(how: HowDied) -> &'static str {
    use nix::libc::{SIGBUS, SIGKILL, SIGSEGV};
    match how {
        HowDied::Signalled(SIGBUS | SIGSEGV) => "; run it with CHIPCOMM_CHECK=1, or look at it with gdb",
        HowDied::Signalled(SIGKILL) => {
            "; somebody killed it, or the system was out of memory: see the system's log"
        }
        _ => "",
    }
}

pub(in crate::parent) fn death_code(how: HowDied) -> ErrorCode {
    match how {
        HowDied::Exited(_) => ErrorCode::Exited,
        HowDied::Signalled(_) => ErrorCode::Killed,
        HowDied::Unknown => ErrorCode::PeerDied,
    }
}
