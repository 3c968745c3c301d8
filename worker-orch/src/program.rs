//! What hands can run.
//!
//! # Safety
//! Turns the address of a function back into the function, in a process that was forked from the one where the address was taken. A process that was not finds
//! functions by name.
#![allow(unsafe_code)]

use crate::run::Orchestrator;
use crate::task::Task;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use worker_errors::{ErrorCode, Failure};

/// A Rust function that runs on a chip or a sub-worker.
pub type TaskFn = fn(&mut Task<'_>) -> Result<(), Failure>;
/// A Rust function that runs on a Worker of the next level and gives tasks to *its* chips.
pub type OrchestrationFn = fn(&mut Orchestrator<'_>, &Task<'_>) -> Result<(), Failure>;

/// A registered program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Program(pub(crate) u32);

impl Program {
    /// Its number, to hand on to a Worker of another level as a scalar.
    pub fn number(self) -> u32 {
        self.0
    }

    /// The program with that number, of the Worker that it is used with.
    pub fn from_number(number: u32) -> Self {
        Self(number)
    }
}

/// How a program is made; the same in parent and hand.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Definition {
    Kernel { path: PathBuf, symbol: String },
    Function { name: String, address: usize },
    Orchestration { name: String, address: usize },
}

impl Definition {
    pub(crate) fn function(name: &str, function: TaskFn) -> Self {
        Self::Function { name: name.to_owned(), address: function as usize }
    }

    pub(crate) fn orchestration(name: &str, function: OrchestrationFn) -> Self {
        Self::Orchestration { name: name.to_owned(), address: function as usize }
    }

    pub(crate) fn name(&self) -> String {
        match self {
            Self::Kernel { path, symbol } => {
                let file = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
                if symbol == DEFAULT_SYMBOL { file } else { format!("{file}:{symbol}") }
            }
            Self::Function { name, .. } | Self::Orchestration { name, .. } => name.clone(),
        }
    }

    /// As a blob of a `Learn` frame.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (kind, first, second) = match self {
            Self::Kernel { path, symbol } => (1_u8, path.as_os_str().as_encoded_bytes().to_vec(), symbol),
            Self::Function { name, address } => (2, address.to_le_bytes().to_vec(), name),
            Self::Orchestration { name, address } => (3, address.to_le_bytes().to_vec(), name),
        };
        let mut bytes = vec![kind];
        bytes.extend((first.len() as u16).to_le_bytes());
        bytes.extend(first);
        bytes.extend(second.as_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (&[kind, low, high], rest) = bytes.split_first_chunk::<3>()?;
        let (first, second) = rest.split_at_checked(u16::from_le_bytes([low, high]).into())?;
        let name = String::from_utf8(second.to_vec()).ok()?;
        let address = || Some(usize::from_le_bytes(first.try_into().ok()?));
        match kind {
            1 => {
                use std::os::unix::ffi::OsStrExt;
                let path = Path::new(std::ffi::OsStr::from_bytes(first)).to_owned();
                Some(Self::Kernel { path, symbol: name })
            }
            2 => Some(Self::Function { name, address: address()? }),
            3 => Some(Self::Orchestration { name, address: address()? }),
            _ => None,
        }
    }
}

pub(crate) const DEFAULT_SYMBOL: &str = "kernel_entry";

/// How a hand finds the function behind a definition.
#[derive(Clone, Debug, Default)]
pub(crate) enum Functions {
    /// Where it was in the process that this one was forked from.
    #[default]
    Inherited,
    /// In the table that `main` gave to `serve_if_child`.
    Named(Arc<[(String, TaskFn)]>),
}

impl Functions {
    pub(crate) fn by_name(table: &[(&str, TaskFn)]) -> Self {
        Self::Named(table.iter().map(|(name, function)| ((*name).to_owned(), *function)).collect())
    }

    /// The function that was defined by [`Definition::function`].
    pub(crate) fn task(&self, name: &str, address: usize) -> Result<TaskFn, Failure> {
        let Self::Named(table) = self else {
            // SAFETY: the address was taken from a `TaskFn` in the process from which this one was forked (or in this one), so the same code
            // stands there; the parent is the only writer of the frame that carried it.
            return Ok(unsafe { std::mem::transmute::<usize, TaskFn>(address) });
        };
        let mut found = table.iter().filter(|(known, _)| known == name);
        match (found.next(), found.next()) {
            (Some((_, function)), None) => Ok(*function),
            (Some(_), Some(_)) => {
                let text = format!(
                    "`{name}` is twice in the table that main gives to serve_if_child; name each function once"
                );
                Err(Failure::new(ErrorCode::Invalid, text))
            }
            (None, _) => {
                let text = format!(
                    "`{name}` is not in the table that main gives to serve_if_child; add `(\"{name}\", its function)` to it"
                );
                Err(Failure::new(ErrorCode::Invalid, text))
            }
        }
    }

    /// The function that was defined by [`Definition::orchestration`]; `None` where no Worker of Workers can be.
    pub(crate) fn orchestration(&self, address: usize) -> Option<OrchestrationFn> {
        match self {
            // SAFETY: as in `task`, for an `OrchestrationFn`.
            Self::Inherited => Some(unsafe { std::mem::transmute::<usize, OrchestrationFn>(address) }),
            Self::Named(_) => None,
        }
    }
}

/// The programs of a Worker, in the order of their registration.
#[derive(Clone, Debug, Default)]
pub(crate) struct Programs {
    list: Vec<Definition>,
    pub(crate) functions: Functions,
}

impl Programs {
    /// What a hand that was not forked knows of its Worker's programs.
    pub(crate) fn of_hand(list: Vec<Definition>, functions: Functions) -> Self {
        Self { list, functions }
    }

    pub(crate) fn add(&mut self, definition: Definition) -> Program {
        if let Some(known) = self.list.iter().position(|known| *known == definition) {
            return Program(known as u32);
        }
        self.list.push(definition);
        Program(self.list.len() as u32 - 1)
    }

    pub(crate) fn get(&self, program: Program) -> Result<&Definition, Failure> {
        self.list.get(program.0 as usize).ok_or_else(|| {
            Failure::new(
                ErrorCode::Invalid,
                "this program was registered with another Worker; register it here too",
            )
        })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Definition> {
        self.list.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing(_: &mut Task<'_>) -> Result<(), Failure> {
        Ok(())
    }

    #[test]
    fn definitions_survive_the_frame_and_nonsense_is_refused() {
        for definition in [
            Definition::Kernel { path: "/a/b.so".into(), symbol: "entry".into() },
            Definition::function("nothing", nothing),
        ] {
            let bytes = definition.encode();
            assert_eq!(Definition::decode(&bytes), Some(definition));
            for len in 0..bytes.len().min(8) {
                let _ = Definition::decode(&bytes[..len]);
            }
        }
        for nonsense in [&[][..], &[1], &[9, 0, 0], &[1, 255, 255, 0], &[2, 1, 0, 7]] {
            assert_eq!(Definition::decode(nonsense), None);
        }
    }

    #[test]
    fn functions_are_found_by_name_where_addresses_mean_nothing() {
        let table = Functions::by_name(&[("nothing", nothing), ("two", nothing), ("two", nothing)]);
        assert!(table.task("nothing", 1).is_ok());
        assert!(table.task("nothin", 1).unwrap_err().to_string().contains("(\"nothin\", "));
        assert!(table.task("two", 1).unwrap_err().to_string().contains("once"));
        assert!(table.orchestration(1).is_none());
    }

    #[test]
    fn a_program_registered_twice_is_one_program() {
        let mut programs = Programs::default();
        let first = programs.add(Definition::function("nothing", nothing));
        assert_eq!(programs.add(Definition::function("nothing", nothing)), first);
        assert!(programs.get(Program(5)).is_err());
    }
}
