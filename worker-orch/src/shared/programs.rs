//! The programs of a Worker, and how a child finds the function behind one.
//!
//! A definition crosses a process as plain data: a kernel by path and symbol, a function by its name and its
//! index in a table. The child looks the index up in a table of its own process, so that nothing read from
//! shared memory ever becomes a function pointer.
//!
//! A forked child has the table as it was at the fork. A function that is registered later is not in it, and
//! cannot be added safely: its code need not even be mapped in the child (a library loaded after the fork).
//! So a task with such a function is refused when it is submitted. A child that was started by exec looks
//! functions up by name, in the table that its own `main` passed to
//! [`serve_if_child`](crate::serve_if_child). The functions of that table are also part of every table that
//! is inherited by fork, so that they can be registered at any time, however children are started.

use super::definition::Definition;
use crate::args::Args;
use crate::program::{OrchestrationFn, Program, TaskClosure, TaskFn};
use crate::signature::Signature;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use worker_errors::{ErrorCode, Failure};

/// Functions by index.
#[derive(Clone, Default)]
pub(crate) struct FunctionTable {
    tasks: Vec<TaskFn>,
    orchestrations: Vec<OrchestrationFn>,
    closures: Vec<TaskClosure>,
}

impl std::fmt::Debug for FunctionTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (tasks, orchestrations) = (self.tasks.len(), self.orchestrations.len());
        write!(f, "{tasks} functions, {orchestrations} orchestrations, {} closures", self.closures.len())
    }
}

/// Where a child finds functions.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Functions<'a> {
    /// By index, in the table that was there at the fork.
    Inherited(&'a FunctionTable),
    /// By name, in the table that `main` passed to `serve_if_child`.
    Named(&'a [(&'a str, TaskFn)]),
}

impl Functions<'_> {
    /// The function of a [`Definition::Function`].
    pub(crate) fn task(&self, name: &str, index: u32) -> Result<TaskFn, Failure> {
        let table = match self {
            Self::Inherited(table) => {
                return table.tasks.get(index as usize).copied().ok_or_else(|| not_inherited(name));
            }
            Self::Named(table) => table,
        };
        let mut found = table.iter().filter(|(known, _)| *known == name);
        let problem = match (found.next(), found.next()) {
            (Some((_, function)), None) => return Ok(*function),
            (Some(_), Some(_)) => format!(
                "`{name}` is twice in the table that main passes to serve_if_child; name each function once"
            ),
            (None, _) => format!(
                "`{name}` is not in the table that main passes to serve_if_child; \
                 add `(\"{name}\", its function)` to it"
            ),
        };
        Err(Failure::new(ErrorCode::Invalid, problem))
    }

    /// The function of a [`Definition::Orchestration`]. Workers of Workers are always forked.
    pub(crate) fn orchestration(&self, name: &str, index: u32) -> Result<OrchestrationFn, Failure> {
        let found = match self {
            Self::Inherited(table) => table.orchestrations.get(index as usize).copied(),
            Self::Named(_) => None,
        };
        found.ok_or_else(|| not_inherited(name))
    }

    /// The function of a [`Definition::Closure`].
    pub(crate) fn closure(&self, name: &str, index: u32) -> Result<TaskClosure, Failure> {
        let found = match self {
            Self::Inherited(table) => table.closures.get(index as usize).cloned(),
            Self::Named(_) => None,
        };
        found.ok_or_else(|| not_inherited(name))
    }
}

fn not_inherited(name: &str) -> Failure {
    let text = format!(
        "`{name}` was registered after init, and the processes forked then do not have it; register it before init, \
         or close the Worker and initialise it again (functions passed to serve_if_child can be registered at any time)"
    );
    Failure::new(ErrorCode::Invalid, text)
}

/// How much of a Worker's programs its children inherited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Inherited {
    programs: usize,
    tasks: usize,
    orchestrations: usize,
    closures: usize,
}

/// The programs of a Worker, in the order of their registration.
#[derive(Clone, Debug, Default)]
pub(crate) struct Programs {
    list: Vec<Definition>,
    /// The number of a program each time that it was registered or unregistered: what children learn, in this order.
    changes: Vec<u32>,
    functions: FunctionTable,
    signatures: BTreeMap<u32, Signature>,
    /// Those that run graphs on the chip.
    graphs: BTreeSet<u32>,
}

impl Programs {
    /// No programs yet; `functions` are those that every child of this program has.
    pub(crate) fn new(functions: impl IntoIterator<Item = TaskFn>) -> Self {
        let functions = FunctionTable { tasks: functions.into_iter().collect(), ..FunctionTable::default() };
        Self { functions, ..Self::default() }
    }

    pub(crate) fn add_kernel(&mut self, path: PathBuf, symbol: &str) -> Program {
        self.add(Definition::Kernel { path, symbol: symbol.to_owned() })
    }

    pub(crate) fn add_function(&mut self, name: &str, function: TaskFn) -> Program {
        let tasks = &mut self.functions.tasks;
        let known = tasks.iter().position(|known| std::ptr::fn_addr_eq(*known, function));
        let index = index_in(tasks, known, function);
        self.add(Definition::Function { name: name.to_owned(), index })
    }

    pub(crate) fn add_orchestration(&mut self, name: &str, function: OrchestrationFn) -> Program {
        let orchestrations = &mut self.functions.orchestrations;
        let known = orchestrations.iter().position(|known| std::ptr::fn_addr_eq(*known, function));
        let index = index_in(orchestrations, known, function);
        self.add(Definition::Orchestration { name: name.to_owned(), index })
    }

    /// Two closures are never the same program.
    pub(crate) fn add_closure(&mut self, name: &str, closure: TaskClosure) -> Program {
        let index = index_in(&mut self.functions.closures, None, closure);
        self.add(Definition::Closure { name: name.to_owned(), index })
    }

    /// A closure that runs graphs on its chip.
    pub(crate) fn add_graph(&mut self, name: &str, closure: TaskClosure) -> Program {
        let program = self.add_closure(name, closure);
        self.graphs.insert(program.number());
        program
    }

    #[inline]
    pub(crate) fn is_graph(&self, program: Program) -> bool {
        !self.graphs.is_empty() && self.graphs.contains(&program.number())
    }

    fn add(&mut self, definition: Definition) -> Program {
        let known = self.list.iter().position(|known| *known == definition);
        let number = index_in(&mut self.list, known, definition);
        if known.is_none() {
            self.changes.push(number);
        }
        Program::from_number(number)
    }

    /// No task has this program any more. Its number is not used again.
    pub(crate) fn remove(&mut self, program: Program) -> Result<(), Failure> {
        let name = self.get(program)?.name();
        self.list[program.number() as usize] = Definition::Removed { name };
        self.signatures.remove(&program.number());
        self.changes.push(program.number());
        Ok(())
    }

    pub(crate) fn set_signature(&mut self, program: Program, signature: Signature) -> Result<(), Failure> {
        self.get(program)?;
        self.signatures.insert(program.number(), signature);
        Ok(())
    }

    /// Refuses arguments that do not fit the program's signature, when it has one.
    #[inline]
    pub(crate) fn check_signature(&self, program: Program, args: &Args) -> Result<(), Failure> {
        if self.signatures.is_empty() { Ok(()) } else { self.check_its_signature(program, args) }
    }

    #[inline(never)]
    fn check_its_signature(&self, program: Program, args: &Args) -> Result<(), Failure> {
        match self.signatures.get(&program.number()) {
            Some(signature) => signature.check(&self.get(program)?.name(), args),
            None => Ok(()),
        }
    }

    #[inline]
    pub(crate) fn get(&self, program: Program) -> Result<&Definition, Failure> {
        match self.list.get(program.number() as usize) {
            Some(Definition::Removed { name }) => Err(unknown(Some(name))),
            Some(definition) => Ok(definition),
            None => Err(unknown(None)),
        }
    }

    /// Refuses more than one block for what is not a kernel.
    pub(crate) fn check_blocks(&self, program: Program) -> Result<(), Failure> {
        let definition = self.get(program)?;
        if matches!(definition, Definition::Kernel { .. }) {
            return Ok(());
        }
        let text = format!(
            "{} is a Rust function, which runs once; only kernels have several blocks: leave `blocks` out, \
             or submit several tasks",
            definition.name()
        );
        Err(Failure::new(ErrorCode::Invalid, text))
    }

    /// All of them, by number.
    pub(crate) fn definitions(&self) -> &[Definition] {
        &self.list
    }

    /// The number of a program each time that it was registered or unregistered, in order.
    pub(crate) fn changes(&self) -> &[u32] {
        &self.changes
    }

    pub(crate) fn functions(&self) -> &FunctionTable {
        &self.functions
    }

    /// What a child that is forked now inherits.
    pub(crate) fn inherited(&self) -> Inherited {
        Inherited {
            programs: self.list.len(),
            tasks: self.functions.tasks.len(),
            orchestrations: self.functions.orchestrations.len(),
            closures: self.functions.closures.len(),
        }
    }

    /// Refuses a function that children with `inherited` do not have.
    pub(crate) fn check_inherited(&self, program: Program, inherited: &Inherited) -> Result<(), Failure> {
        // Registered before the fork, as most are: nothing to look up.
        if (program.number() as usize) < inherited.programs {
            return Ok(());
        }
        match self.get(program)? {
            Definition::Function { name, index } if *index as usize >= inherited.tasks => {
                Err(not_inherited(name))
            }
            Definition::Orchestration { name, index } if *index as usize >= inherited.orchestrations => {
                Err(not_inherited(name))
            }
            Definition::Closure { name, index } if *index as usize >= inherited.closures => {
                Err(not_inherited(name))
            }
            _ => Ok(()),
        }
    }
}

/// A program that was unregistered, with its name, or that never was one of this Worker.
#[cold]
fn unknown(removed: Option<&String>) -> Failure {
    let text = removed.map_or_else(
        || "this program was registered with another Worker; register it here too".to_owned(),
        |name| format!("`{name}` was unregistered; register it again and use the new Program"),
    );
    Failure::new(ErrorCode::Invalid, text)
}

/// The index of an item that is `known` already, or else of the new last one.
fn index_in<T>(list: &mut Vec<T>, known: Option<usize>, item: T) -> u32 {
    let index = known.unwrap_or_else(|| {
        list.push(item);
        list.len() - 1
    });
    index as u32
}

#[cfg(test)]
mod tests {
    use super::super::definition::DEFAULT_SYMBOL;
    use super::*;
    use crate::{Orchestrator, Task};

    fn nothing(_: &mut Task<'_>) -> Result<(), Failure> {
        Ok(())
    }

    fn something(task: &mut Task<'_>) -> Result<(), Failure> {
        task.scalar(0).map(drop)
    }

    fn fan_out(_: &mut Orchestrator<'_>, _: &Task<'_>) -> Result<(), Failure> {
        Ok(())
    }

    #[test]
    fn a_child_started_by_exec_finds_functions_by_name() {
        // WO-24
        let table: [(&str, TaskFn); 3] = [("nothing", nothing), ("two", nothing), ("two", nothing)];
        let functions = Functions::Named(&table);
        assert!(functions.task("nothing", 1000).is_ok());
        assert!(functions.task("nothin", 0).unwrap_err().to_string().contains("(\"nothin\", "));
        assert!(functions.task("two", 0).unwrap_err().to_string().contains("once"));
        assert!(functions.orchestration("fan_out", 0).is_err());
    }

    #[test]
    fn f29_an_index_outside_the_table_is_refused() {
        let mut programs = Programs::default();
        programs.add_function("nothing", nothing);
        programs.add_orchestration("fan_out", fan_out);
        let functions = Functions::Inherited(programs.functions());
        assert!(functions.task("any", 0).is_ok() && functions.orchestration("any", 0).is_ok());
        for index in [1, 2, u32::MAX] {
            assert!(functions.task("any", index).is_err() && functions.orchestration("any", index).is_err());
        }
    }

    #[test]
    fn functions_registered_after_the_fork_are_refused_unless_the_child_has_them() {
        let mut programs = Programs::new([nothing as TaskFn]);
        let early = programs.add_orchestration("fan_out", fan_out);
        let inherited = programs.inherited();
        // Of the program's own table, and a kernel, which is loaded from its file.
        let table = programs.add_function("nothing", nothing);
        let kernel = programs.add_kernel("/a/b.so".into(), DEFAULT_SYMBOL);
        for program in [early, table, kernel] {
            programs.check_inherited(program, &inherited).unwrap();
        }
        let late = programs.add_function("something", something);
        let refused = programs.check_inherited(late, &inherited).unwrap_err().to_string();
        assert!(refused.contains("`something`") && refused.contains("register it before init"), "{refused}");
        programs.check_inherited(late, &programs.inherited()).unwrap();
    }

    #[test]
    fn a_program_registered_twice_is_one_program() {
        let mut programs = Programs::default();
        let first = programs.add_function("nothing", nothing);
        assert_eq!(programs.add_function("nothing", nothing), first);
        assert_ne!(programs.add_function("other name", nothing), first);
        assert!(programs.get(Program::from_number(5)).is_err());
    }

    #[test]
    fn a_program_that_is_removed_is_refused_and_comes_back_with_another_number() {
        let mut programs = Programs::default();
        let first = programs.add_function("nothing", nothing);
        let closure = programs.add_closure("c", std::sync::Arc::new(nothing));
        programs.set_signature(first, Signature::new()).unwrap();
        assert!(programs.check_signature(first, &Args::new().scalar(1)).is_err());
        assert!(programs.check_signature(closure, &Args::new().scalar(1)).is_ok());
        programs.remove(first).unwrap();
        let refused = programs.get(first).unwrap_err().to_string();
        assert!(refused.contains("`nothing` was unregistered"), "{refused}");
        assert!(programs.remove(first).is_err() && programs.set_signature(first, Signature::new()).is_err());
        let again = programs.add_function("nothing", nothing);
        assert_ne!(again, first);
        assert!(programs.check_signature(again, &Args::new().scalar(1)).is_ok());
        assert_eq!(programs.changes(), [0, 1, 0, 2]);
        assert_eq!(programs.definitions()[0].name(), "nothing");
    }
}
