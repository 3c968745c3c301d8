//! A call under way.

use super::Group;
use crate::hosts::Event;
use comm_context::comm::{ArgumentError, CommError, Phase, Timeout};
use deadline::{Deadline, LONGEST_WAIT, coarse_monotonic_ns};

/// A call under way: its phase is published until the step is dropped, and all its waits share one deadline.
#[derive(Debug)]
pub struct Step<'a> {
    group: &'a Group,
    phase: Phase,
    deadline: Deadline,
}

impl Group {
    /// Starts a call and publishes its phase. Fails when the group is broken.
    pub fn step(&self, phase: Phase, within: Timeout) -> Result<Step<'_>, CommError> {
        self.check()?;
        Ok(self.begin(phase, deadline(within)?))
    }

    pub(super) fn begin(&self, phase: Phase, deadline: Deadline) -> Step<'_> {
        self.memory.publish_phase(self.me.rank(), phase, deadline.start_ns());
        self.tell(|| Event::Phase(phase));
        Step { group: self, phase, deadline }
    }

    /// Publishes a phase that begins now. Tables show seconds, so the coarse clock is precise enough; reading
    /// it takes a third of the time.
    pub(super) fn publish(&self, phase: Phase) {
        self.memory.publish_phase(self.me.rank(), phase, coarse_monotonic_ns());
        self.tell(|| Event::Phase(phase));
    }
}

impl Step<'_> {
    /// The end of all waits of this call.
    pub fn deadline(&self) -> Deadline {
        self.deadline
    }

    pub(super) fn phase(&self) -> Phase {
        self.phase
    }
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        if !self.group.memory.has_left(self.group.me.rank()) {
            self.group.publish(Phase::Idle);
        }
    }
}

// A time limit that a caller may ask for is one that can be waited for.
const _: () = assert!(Timeout::MAX.get().as_nanos() == LONGEST_WAIT.as_nanos());

/// The deadline of a call that starts now.
pub fn deadline(within: Timeout) -> Result<Deadline, CommError> {
    Deadline::after(within.get()).map_err(|_| ArgumentError::Timeout { given: within.get() }.into())
}
