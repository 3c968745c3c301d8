//! Names of submitted tasks.

use crate::shared::{Prerequisite, covers};

/// One run of one Worker, among all in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RunId {
    /// Which Worker, counted by bring-ups.
    pub(crate) worker: u64,
    pub(crate) run: u64,
}

impl RunId {
    /// Whether tasks of a run `other` can wait for tasks of this one: it is the same, or in front of it in flight.
    pub(crate) fn may_precede(self, other: Self) -> bool {
        self.worker == other.worker && covers(self.run, other.run)
    }
}

/// A submitted task. Later tasks of the same run, and of runs that are in flight with it, can [wait](crate::Args::after) for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TaskId {
    run: RunId,
    child: u16,
    seq: u64,
}

impl TaskId {
    pub(crate) fn new(run: RunId, task: Prerequisite) -> Self {
        Self { run, child: task.child, seq: task.seq }
    }

    pub(crate) fn run(self) -> RunId {
        self.run
    }

    pub(crate) fn prerequisite(self) -> Prerequisite {
        Prerequisite { child: self.child, seq: self.seq }
    }
}
