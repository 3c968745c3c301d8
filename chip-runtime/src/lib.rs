//! Graphs of tasks on the cores of one chip, and signals between chips.
//!
//! An *orchestration*, a Rust closure or a C++ function, runs inside the process of a chip and submits tasks with
//! tensors. The cores of the chip run them as their inputs become ready, without the parent in between. There are three
//! [front ends](FrontEnd) over one engine, which differ in when tasks may run and where their edges come from.
//!
//! # Contract
//! - **CR-1** A limit is reported by its name when it is hit, with the code of [`RuntimeError::code`].
//!
//! # What it does not do
//! It starts no process and opens no device. It does not stop a kernel that does not return.

mod args;
mod error;
mod limits;
mod orchestration;
pub mod signals;
mod task;
mod tensor;

pub use args::{Compare, Predicate, TaskArgs, TensorArg};
pub use error::{ArgumentError, At, ErrorKind, RuntimeError};
pub use limits::{FrontEnd, Limits, MAX_SCALARS, MAX_TENSORS, OUTPUT_ALIGN, RINGS, ScopeMode};
pub use task::{KernelId, Kernels, Site, Submitted, TaskId};
pub use tensor::{Create, Element, Tensor};
