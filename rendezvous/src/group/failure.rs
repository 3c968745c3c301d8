//! What breaks a group, how the cause is found, and how a rank leaves.

use super::Group;
use crate::error::{INTERRUPTED, RendezvousError};
use crate::hosts::Event;
use comm_context::comm::{CommError, DESTROYED, DROPPED, Phase};
use deadline::Death;
use fault_points::fault_point;
use mailbox_atomics::WaitError;
use std::sync::{Arc, PoisonError};

impl Group {
    /// Fails with the first cause when the group is broken.
    pub fn check(&self) -> Result<(), CommError> {
        self.broken.get().map_or(Ok(()), |first| Err(CommError::broken(first)))
    }

    /// Fails in a forked copy of the process that joined, which may change nothing that the group shares.
    pub fn check_process(&self) -> Result<(), CommError> {
        if std::process::id() == self.owner {
            return Ok(());
        }
        Err(RendezvousError::ForkedCopy { owner: self.owner }.into())
    }

    /// Breaks the group with `error` as its cause if the ranks cannot work together after it. Returns
    /// `error`.
    pub fn record_failure(&self, error: CommError) -> CommError {
        use CommError::{Aborted, PeerDied, PeerLeft, Stuck, TimedOut};
        if matches!(
            error,
            TimedOut { .. } | PeerDied { .. } | PeerLeft { .. } | Aborted { .. } | Stuck { .. }
        ) {
            let _ = self.broken.set(Arc::new(error.clone()));
        }
        error
    }

    /// Breaks the group with `error` as its cause and leaves with that reason, since this rank cannot go on.
    /// Returns `error`.
    pub fn fail(&self, error: CommError) -> CommError {
        let _ = self.broken.set(Arc::new(error.clone()));
        self.leave(&error.to_string());
        error
    }

    /// Leaves the group. Ranks that wait for this one fail with `reason`. What this rank owns of the memory
    /// must be released before. Does nothing in a forked copy of the process that joined.
    pub fn leave(&self, reason: &str) {
        if self.check_process().is_err() {
            return;
        }
        // One writer of the reason: threads that fail at the same time leave one after the other.
        let _turn = self.leave_turn.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.memory.has_left(self.me.rank()) {
            fault_point!("rendezvous.leaving");
            self.publish(Phase::Gone);
            self.memory.publish_departure(self.me.rank(), reason);
            self.tell(|| Event::Left(reason.to_owned()));
            self.outbox.notify();
            fault_point!("rendezvous.left");
        }
    }

    /// Leaves because the communicator is destroyed. Fails with what broke the group, if anything did.
    pub fn leave_destroyed(&self) -> Result<(), CommError> {
        let broken = self.check();
        let reason = match &broken {
            Ok(()) => DESTROYED.to_owned(),
            Err(error) => format!("it destroyed its communicator, because {}", error.root_cause()),
        };
        self.leave(&reason);
        broken
    }

    /// A wait failed: breaks the group and leaves it, since no rank may wait for this one any more. Returns
    /// the error with the first cause that can be found.
    pub(super) fn give_up(&self, error: WaitError, phase: Phase, missing: Vec<u32>) -> CommError {
        let error = self.record_failure(self.describe(error, phase, missing));
        self.leave(&format!("it gave up, because {error}"));
        error
    }

    /// Why a wait failed: the first cause that can be found, not what followed from it.
    pub(super) fn describe(&self, error: WaitError, phase: Phase, missing: Vec<u32>) -> CommError {
        match (self.memory.reported_death(), error) {
            (Some(death), _) => self.died(death, phase),
            (None, WaitError::TimedOut { waited, limit }) => {
                CommError::TimedOut { phase, waited, limit, missing, table: self.table() }
            }
            (None, WaitError::Aborted { .. }) => {
                let halted = self.memory.halt_word().raised().is_some();
                let what =
                    if halted { "the parent process stopped the run" } else { "a task of the run failed" };
                let reason =
                    format!("{what}; the first error of the run says why, this one only follows from it");
                CommError::Aborted { phase, reason }
            }
            (None, WaitError::Interrupted) => CommError::Aborted { phase, reason: INTERRUPTED.to_owned() },
            (None, WaitError::PeerDied(death)) if self.memory.has_left(death.peer) => {
                match self.first_dead() {
                    Some(cause) => self.died(cause, phase),
                    None => CommError::PeerLeft {
                        rank: death.peer,
                        reason: self.memory.reason(death.peer),
                        phase,
                    },
                }
            }
            (None, WaitError::PeerDied(death)) => self.died(death, phase),
        }
    }

    fn died(&self, death: Death, phase: Phase) -> CommError {
        let pid = self.memory.pid(death.peer);
        let lost = self.hosts.as_ref().and_then(|hosts| hosts.lost(death.peer));
        let how = lost.map_or_else(|| how_died(death.how), |(_, how)| how.death());
        CommError::PeerDied { rank: death.peer, pid, how, phase }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.leave(DROPPED);
    }
}

/// How a process died, in the terms of a communicator.
pub(crate) fn how_died(how: deadline::HowDied) -> comm_context::comm::Death {
    use comm_context::comm::Death::{Exited, Signalled, Vanished};
    use deadline::HowDied;
    match how {
        HowDied::Exited(status) => Exited { status },
        HowDied::Signalled(signal) => Signalled { signal },
        HowDied::Unknown => Vanished,
    }
}
