//! What hands can run.
//!
//! # Safety
//! Turns the address of a function back into the function, in a process that was forked from the one where the address was taken.
#![allow(unsafe_code)]

use crate::run::Orchestrator;
use crate::task::Task;
use std::path::{Path, PathBuf};
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

/// The function behind an address that [`Definition::function`] took.
pub(crate) fn task_fn(address: usize) -> TaskFn {
    // SAFETY: the address was taken from a `TaskFn` in the process from which this one was forked (or in this one), so the same code
    // stands there; the parent is the only writer of the frame that carried it.
    unsafe { std::mem::transmute::<usize, TaskFn>(address) }
}

/// The function behind an address that [`Definition::orchestration`] took.
pub(crate) fn orchestration_fn(address: usize) -> OrchestrationFn {
    // SAFETY: as in `task_fn`, for an `OrchestrationFn`.
    unsafe { std::mem::transmute::<usize, OrchestrationFn>(address) }
}

/// The programs of a Worker, in the order of their registration.
#[derive(Clone, Debug, Default)]
pub(crate) struct Programs {
    list: Vec<Definition>,
}

impl Programs {
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
    fn a_program_registered_twice_is_one_program() {
        let mut programs = Programs::default();
        let first = programs.add(Definition::function("nothing", nothing));
        assert_eq!(programs.add(Definition::function("nothing", nothing)), first);
        assert!(programs.get(Program(5)).is_err());
    }
}
