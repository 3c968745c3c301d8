//! The programs that a child can run.

use super::serve::malformed;
use crate::program::{OrchestrationFn, TaskClosure, TaskFn};
use crate::shared::{ChildContext, Definition, Functions, ReceivedFrame};
use chip_bootstrap::Kernel;
use fault_points::fault_point;
use worker_errors::{ErrorCode, Failure};

/// A program in this process.
#[derive(Clone)]
pub(super) enum Loaded {
    Kernel(Kernel),
    Function(TaskFn),
    Closure(TaskClosure),
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

    /// Adds the program of a `Register` frame, or puts it in the place of another one. `unload` unloads a kernel that had the place.
    pub(super) fn register(
        &mut self,
        frame: &ReceivedFrame,
        unload: impl FnOnce(Kernel),
    ) -> Result<(), Failure> {
        let definition = Definition::decode(&frame.blob).ok_or_else(malformed)?;
        fault_point!("worker.register");
        let (number, known) = (frame.program as usize, self.entries.len());
        match self.entries.get_mut(number) {
            Some(entry) => {
                let before = std::mem::replace(entry, Entry::Defined(definition));
                if let Entry::Loaded(Loaded::Kernel(kernel)) = before {
                    fault_point!("worker.unload");
                    unload(kernel);
                }
            }
            None if number == known => self.entries.push(Entry::Defined(definition)),
            None => return Err(malformed()),
        }
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
                Definition::Closure { name, index } => Loaded::Closure(self.functions.closure(name, *index)?),
                Definition::Kernel { path, symbol } => Loaded::Kernel(load(path, symbol)?),
                // Refused when it was submitted.
                Definition::Removed { .. } => return Err(malformed()),
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
