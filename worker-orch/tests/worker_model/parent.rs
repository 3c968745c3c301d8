//! The steps of the parent. Each names the code that it stands for.

use super::state::{At, Cause, End, Mail, Pc, State, Violation, Wedge};
use super::{Mutant, Worker};

impl Worker {
    /// What the parent does next; `None` while it can only wait.
    pub(crate) fn parent_step(&self, state: &State) -> Option<State> {
        let mut next = *state;
        let gone = |chip: usize| state.chips[chip].pc >= Pc::Gone;
        // children, `Watch for Children`: the first that is dead.
        let dead = || self.all().find(|chip| gone(*chip));
        let after = |chip: u8, step: fn(u8) -> At, then: At| {
            if chip == self.last() { then } else { step(chip + 1) }
        };
        match state.at {
            // bring_up.rs, `bring_up`: channels, control block and the group's memory, all fresh.
            At::Preparing => next.at = At::Forking(0),
            // fork.rs, `fork_all`.
            At::Forking(k) => {
                next.chips[usize::from(k)].pc = Pc::Forked;
                next.at = after(k, At::Forking, At::Gathering);
            }
            // bootstrap-channel, set.rs, `gather`: all ready, or the first error, or a death.
            At::Gathering => {
                let mail = |chip: usize| state.chips[chip].mail;
                let failed = self.all().find_map(|chip| match mail(chip) {
                    Mail::Failed(cause) => Some(cause),
                    _ => None,
                });
                if self.all().all(|chip| mail(chip) == Mail::Ready) {
                    next.at = At::Sending(0);
                } else if let Some(cause) = failed {
                    self.explain(&mut next, cause);
                } else {
                    let dead = dead().filter(|_| self.mutant != Some(Mutant::GatherWatchesNobody))?;
                    self.explain(&mut next, Cause::Died(dead as u8));
                }
            }
            // child-process, child.rs, `Drop for Child`: SIGKILL, then wait.
            At::Dropping(k) => {
                if !gone(usize::from(k)) {
                    next.chips[usize::from(k)].end(End::Forced);
                }
                next.chips[usize::from(k)].pc = Pc::Reaped;
                next.at = after(k, At::Dropping, At::Down);
            }
            // The user calls `init` again on the same Worker.
            At::Down | At::Closed if state.outcome.is_some() && state.attempt == 1 => {
                return Some(state.again());
            }
            At::Down | At::Closed | At::Dead => return None,
            // orchestrator, `submit_group`.
            At::Sending(k) => {
                next.chips[usize::from(k)].task_frame = true;
                next.at = after(k, At::Sending, At::Draining(0));
            }
            // children, `drain`: each in turn; any death ends it.
            At::Draining(k)
                if state.chips[usize::from(k)].done || !state.chips[usize::from(k)].task_frame =>
            {
                next.at = after(k, At::Draining, At::Closing);
            }
            At::Draining(_) => {
                let chip = dead()? as u8;
                // `lose`, `death_of`: first the death is reported to the others.
                next.death_word = Some(chip);
                lose(&mut next, Cause::Died(chip));
            }
            // `stop_all`: abort and halt.
            At::Reported => {
                next.abort = self.mutant != Some(Mutant::StopsNobody);
                next.at = At::Grace(0);
            }
            // Grace for each that is still in its task.
            At::Grace(k) => {
                let chip = &state.chips[usize::from(k)];
                (chip.done || !chip.task_frame || gone(usize::from(k))).then_some(())?;
                next.at = after(k, At::Grace, At::Closing);
            }
            // `close`: the sticky word first.
            At::Closing => (next.shutdown, next.at) = (true, At::Notifying(0)),
            // A frame wakes a parked child; none is sent when the Worker lost a child.
            At::Notifying(k) => {
                let rings = state.lost.is_none() && self.mutant != Some(Mutant::ShutdownWakesNobody);
                next.chips[usize::from(k)].shutdown_frame = rings;
                next.at = after(k, At::Notifying, At::Reaping(0));
            }
            At::Reaping(k) => {
                let chip = usize::from(k);
                if gone(chip) {
                    self.reap(&mut next, chip);
                } else if state.lost.is_some() || state.late {
                    next.stuck |= 1 << k;
                } else {
                    return None;
                }
                let end = if next.stuck == 0 { At::Closed } else { At::Term };
                next.at = after(k, At::Reaping, end);
            }
            At::Term => {
                for chip in self.all().filter(|chip| state.stuck >> chip & 1 == 1) {
                    self.force(&mut next, chip, |wedge| wedge != Wedge::Stopped);
                }
                next.at = At::TermGrace;
            }
            At::TermGrace => {
                let stuck: Vec<usize> = self.all().filter(|chip| state.stuck >> chip & 1 == 1).collect();
                if !stuck.iter().all(|chip| gone(*chip)) {
                    return None;
                }
                stuck.iter().for_each(|chip| next.chips[*chip].pc = Pc::Reaped);
                next.at = At::Closed;
                if state.lost.is_none() {
                    next.report(Cause::TimedOut);
                }
            }
        }
        if next.at == At::Closed && next.crashed.is_some() && next.outcome.is_none() {
            next.record(Violation::Unreported);
        }
        Some(next)
    }

    /// bring_up_error.rs, `explain`: a process that died explains what the others then reported. Dropping the
    /// children ends them.
    fn explain(&self, next: &mut State, said: Cause) {
        let dead = self.all().find(|chip| {
            let chip = &next.chips[*chip];
            chip.pc >= Pc::Gone && chip.end != End::NotUp
        });
        next.report(dead.map_or(said, |chip| Cause::Died(chip as u8)));
        next.at = At::Dropping(0);
    }

    /// children/close.rs, `close`: how a child ended.
    fn reap(&self, next: &mut State, chip: usize) {
        next.chips[chip].pc = Pc::Reaped;
        if next.chips[chip].end != End::Clean && next.lost.is_none() {
            next.report(Cause::Died(chip as u8));
        }
    }

    /// A signal ends a process, if the process handles it.
    fn force(&self, next: &mut State, chip: usize, takes: impl Fn(Wedge) -> bool) {
        let one = &mut next.chips[chip];
        if !one.is_alive() || !takes(one.wedge) {
            return;
        }
        // After a loss idle children may be killed at once; busy ones had the grace period to return.
        let idle = matches!(
            one.pc,
            Pc::Polling | Pc::Parked | Pc::PollingAgain | Pc::ParkedAgain | Pc::TearingDown | Pc::Ending
        );
        let excused = one.wedge != Wedge::No || (next.lost.is_some() && idle);
        one.end(End::Forced);
        if !excused {
            next.record(Violation::KilledNeedlessly);
        }
    }

    /// up/run.rs, `run`: the user's closure fails or panics in the middle of its submits.
    pub(crate) fn closure_fails(&self, state: &State) -> Option<State> {
        matches!(state.at, At::Sending(1..)).then_some(())?;
        let cancelled = self.mutant != Some(Mutant::FailedClosureCancelsNothing);
        Some(State { cancelled, at: At::Draining(0), ..*state })
    }

    /// Time passes for the parent, and a wait of its own ends.
    pub(crate) fn parent_deadline(&self, state: &State) -> Option<State> {
        let mut next = *state;
        let stuck =
            self.all().any(|chip| state.chips[chip].wedge != Wedge::No && state.chips[chip].is_alive());
        let unreported = state.crashed.is_some() && state.outcome.is_none() && state.at < At::Closing;
        if !stuck || unreported {
            next.record(Violation::WaitedOut);
        }
        match state.at {
            At::Gathering => self.explain(&mut next, Cause::TimedOut),
            At::Draining(_) => lose(&mut next, Cause::TimedOut),
            At::Grace(k) => next.at = if k == self.last() { At::Closing } else { At::Grace(k + 1) },
            At::Reaping(_) if self.mutant != Some(Mutant::ReapsWithoutDeadline) => next.late = true,
            // children/close.rs, `end_by_signals`: SIGKILL.
            At::TermGrace => {
                for chip in self.all().filter(|chip| state.stuck >> chip & 1 == 1) {
                    self.force(&mut next, chip, |_| true);
                }
            }
            _ => return None,
        }
        Some(next)
    }
}

/// children/failures.rs, `lose`.
fn lose(next: &mut State, cause: Cause) {
    next.lost = Some(cause);
    next.report(cause);
    next.at = At::Reported;
}
