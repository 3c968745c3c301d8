//! The programs that a child can run.

use super::serve::malformed;
use crate::program::{OrchestrationFn, TaskFn};
use crate::shared::{ChildContext, Definition, Functions, ReceivedFrame};
use chip_bootstrap::Kernel;
use fault_points::fault_point;
use worker_errors::{ErrorCode, Failure};

/// A program in this process.
#[derive(Clone)]
pub(super) enum Loaded {
    Kernel(Kernel),
    Function(TaskFn),
    Orchestration(OrchestrationFn),
}

enum Entry {
    Loaded(Loaded),
    /// Looked up, or loaded from its file, at first use.
    Defined(Definition),
}

/// The programs of the Worker that this child knows, by number.
pub(super) struct LoadedPrograms<'a> {
    entries: Vec<Entry>,
    functions: Functions<'a>,
}

impl<'a> LoadedPrograms<'a> {
    pub(super) fn new(context: &ChildContext<'a>) -> Self {
        let entries = context.programs.iter().cloned().map(Entry::Defined).collect();
        Self { entries, functions: context.functions }
    }

    /// Adds the program of a `Register` frame.
    pub(super) fn register(&mut self, frame: &ReceivedFrame) -> Result<(), Failure> {
        let definition = Definition::decode(&frame.blob).ok_or_else(malformed)?;
        fault_point!("worker.register");
        self.entries.push(Entry::Defined(definition));
        Ok(())
    }

    /// The program of a task. `load` loads a kernel.
    pub(super) fn of_task(
        &mut self,
        frame: &ReceivedFrame,
        load: impl FnOnce(&std::path::Path, &str) -> Result<Kernel, Failure>,
    ) -> Result<&Loaded, Failure> {
        let entry = self.entries.get_mut(frame.program as usize).ok_or_else(malformed)?;
        if let Entry::Defined(definition) = entry {
            let loaded = match definition {
                Definition::Function { name, index } => Loaded::Function(self.functions.task(name, *index)?),
                Definition::Orchestration { name, index } => {
                    Loaded::Orchestration(self.functions.orchestration(name, *index)?)
                }
                Definition::Kernel { path, symbol } => Loaded::Kernel(load(path, symbol)?),
            };
            *entry = Entry::Loaded(loaded);
        }
        match entry {
            Entry::Loaded(loaded) => Ok(loaded),
            Entry::Defined(_) => Err(malformed()),
        }
    }
}

/// A program was submitted to a child that cannot run it.
pub(super) fn cannot_run(what: &str, child: &str) -> Failure {
    Failure::new(
        ErrorCode::Invalid,
        format!("{what} cannot run on {child}; see Worker::register_* for what runs where"),
    )
}
