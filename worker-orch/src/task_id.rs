//! Names of submitted tasks.

use crate::shared::Prerequisite;

/// One run of one Worker, among all in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RunId {
    /// Which Worker, counted by bring-ups.
    pub(crate) worker: u64,
    pub(crate) run: u64,
}

/// A submitted task. Later tasks of the same run can [wait](crate::Args::after) for it.
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
