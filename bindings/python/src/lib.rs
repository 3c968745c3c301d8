//! The native half of the Python package `chipcomm`; `python/chipcomm` is the other.
//!
//! # Contract
//! - **PY-1** No argument of a Python caller ends the interpreter: a wrong one is an exception that says what to do.
//! - **PY-2** No call holds the interpreter's lock while it waits, and a signal that has a Python handler ends the wait.
//! - **PY-3** Memory that a numpy array shows stays mapped as long as the array lives, whatever was closed before.
//! - **PY-4** An array that a started call uses is kept until the call is over.
//! - **PY-5** A forked copy of an object is refused, and dropping it changes nothing in the process that made it.
//!
//! # What it does not do
//! Nothing here is used by Rust programs: they use `comm-sim`, `collectives` and `worker-orch` themselves.

mod array;
mod calls;
mod comm;
mod error;
mod group;
mod interrupt;
mod memory;
mod raw;
mod worker;

use pyo3::prelude::*;

/// What `chipcomm` imports.
#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::comm::Communicator;
    #[pymodule_export]
    use crate::group::{Group, Request};
    #[pymodule_export]
    use crate::memory::Memory;
    #[pymodule_export]
    use crate::worker::{ChipMemory, HostBuffer, Orchestrator, Run, TaskId, TaskView, Worker};
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        crate::interrupt::install();
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
