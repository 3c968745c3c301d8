//! A run that takes too long: its tasks are cancelled, and processes that do not come back are ended.

use super::Children;
use crate::parent::first_cause::Event;
use crate::shared::Activity;
use deadline::{Deadline, monotonic_ns};
use fault_points::fault_point;
use nix::sys::signal::Signal;
use std::time::Duration;
use worker_errors::{ErrorCode, Failure};

/// How long a process has to come back from a run that was cancelled: four times what a wait takes to notice.
const COME_BACK: Duration = Duration::from_millis(200);

/// The last run that took too long.
#[derive(Debug)]
pub(super) struct TimedOut {
    pub(super) run: u64,
    pub(super) noticed_ns: u64,
    pub(super) failure: Failure,
}

impl Children {
    /// The current run has taken `waited` of `limit`. When all children come back from it, the next run starts
    /// clean; one that does not is ended, and gets another process before the next call if it can have one.
    /// Otherwise the Worker has lost it.
    pub(super) fn time_out(&mut self, waited: Duration, limit: Duration) -> Failure {
        if let Some(death) = self.find_death() {
            return self.lose(self.death_of(death));
        }
        let what =
            self.over_limit().unwrap_or_else(|| format!("not finished after {waited:.1?} of {limit:?}"));
        let text = format!("{what}; what every process is doing:\n{}", self.table());
        let noticed_ns = monotonic_ns();
        let failed = |text: String| Failure::new(ErrorCode::TimedOut, text).in_phase("run");
        if self.in_command {
            // A collective command that is under way on some of them cannot be cancelled.
            return self.lose(failed(text + "close the Worker and initialise it again"));
        }
        // Those in front of it that are not over keep it from being over.
        let first = self.first_under_way();
        self.cancel_from(first);
        fault_point!("worker.run.timed-out");
        let stuck = self.end_stuck();
        let names: Vec<&str> = stuck.iter().map(|child| &*self.handles[*child].name).collect();
        let names = names.join(", ");
        let chips = self.ranks.len();
        let lost = self.chips_stay.filter(|_| stuck.iter().any(|child| *child < chips));
        let advice = match lost {
            Some(why) => format!(
                "{names} did not come back within {COME_BACK:?} and was ended; {why}: \
                 close the Worker and initialise it again"
            ),
            None if !stuck.is_empty() => format!(
                "{names} did not come back within {COME_BACK:?} and was ended; the next call starts a new process \
                 in its place"
            ),
            None => "every process has come back; the next run starts clean. Give the run more time with \
                     run_within, or see what was awaited above"
                .to_owned(),
        };
        let failure = failed(text + &advice);
        if lost.is_some() {
            return self.lose_at(noticed_ns, failure);
        }
        self.timed_out = Some(TimedOut { run: first, noticed_ns, failure: failure.clone() });
        failure
    }

    /// Ends the children that do not come back from the cancelled run, and returns their numbers.
    fn end_stuck(&mut self) -> Vec<usize> {
        let mut stuck = self.not_back(COME_BACK);
        // Those that only wait for a task of another come back when that one is over.
        let waits = |child: &usize| {
            matches!(self.block.child(*child).activity(), Activity::Task { need: Some(_), .. })
        };
        let mut in_programs: Vec<usize> = stuck.iter().copied().filter(|child| !waits(child)).collect();
        if in_programs.len() < stuck.len() {
            self.end(&in_programs);
            stuck = self.not_back(COME_BACK);
            self.end(&stuck);
            in_programs.extend(stuck);
            return in_programs;
        }
        self.end(&stuck);
        stuck
    }

    fn end(&mut self, children: &[usize]) {
        if children.is_empty() {
            return;
        }
        // These deaths are none to report.
        self.deaths = None;
        self.kill(children);
        for child in children {
            let handle = &mut self.handles[*child];
            handle.ended = true;
            handle.seen_failed_run = self.run;
            self.block.abandon(*child, &mut handle.ring, self.run);
        }
        self.watch_deaths();
    }

    /// Kills children and reaps them.
    pub(super) fn kill(&self, children: &[usize]) {
        children.iter().for_each(|child| self.handles[*child].process.signal(Signal::SIGKILL as i32));
        let Ok(deadline) = Deadline::after(COME_BACK) else { return };
        for child in children {
            self.handles[*child].process.reap(deadline);
        }
    }
}

impl TimedOut {
    pub(super) fn event(&self) -> Event {
        Event::TimedOut { noticed_ns: self.noticed_ns }
    }
}
