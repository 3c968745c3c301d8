//! What a Worker can run, as users name it.

use crate::{Orchestrator, Task};
use worker_errors::Failure;

/// A Rust function that runs on a chip or a sub-worker.
pub type TaskFn = fn(&mut Task<'_>) -> Result<(), Failure>;
/// A Rust function with what it captured, in the processes that were forked with it.
pub(crate) type TaskClosure = std::sync::Arc<dyn Fn(&mut Task<'_>) -> Result<(), Failure> + Send + Sync>;
/// A Rust function that runs on a Worker of the next level and submits tasks to the chips of *that* Worker.
pub type OrchestrationFn = fn(&mut Orchestrator<'_>, &Task<'_>) -> Result<(), Failure>;

/// A registered program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Program(u32);

impl Program {
    /// Its number, to pass to a Worker of another level as a scalar.
    pub fn number(self) -> u32 {
        self.0
    }

    /// The program with that number, of the Worker that it is used with.
    pub fn from_number(number: u32) -> Self {
        Self(number)
    }
}
