//! Graphs of tasks on the cores of one chip, and signals between chips.
//!
//! An *orchestration*, a Rust closure or a C++ function, runs inside the process of a chip and submits tasks with
//! tensors. The cores of the chip run them as their inputs become ready, without the parent in between. There are three
//! [front ends](FrontEnd) over one engine, which differ in when tasks may run and where their edges come from.
//!
//! # Contract
//! - **CR-1** A limit is reported by its name when it is hit, with the code of [`RuntimeError::code`].
//! - **CR-2** A graph gives the same bytes in every front end, and those of its tasks run one after the other in the
//!   order of their submits, if its edges are inferred, or name what would be.
//! - **CR-3** A submit waits for room only if room can come. Where it cannot, that is reported at once, with the scope.
//! - **CR-4** A run ends by its deadline: with all tasks done, with the first failure, or with a table of what ran.
//!   An error names the task, its kernel and the place of its submit.
//! - **CR-5** A failed graph leaves the runtime usable. Where a kernel has not returned, the next run is refused, and
//!   the buffers of the failed one stay in use, until it has.
//! - **CR-6** Memory is bounded by the limits, however many tasks pass through the rings.
//! - **CR-7** Whatever safe code submits, kernels in Rust access no memory but that of buffers and of the heap.
//! - **CR-8** An idle runtime uses no processor.
//! - **CR-9** No kernel runs on the thread of an orchestration that has not returned. Where [kernels run there
//!   afterwards](Runtime::use_calling_thread), one that holds it beyond the deadline is reported by
//!   [`on_overdue`](Runtime::on_overdue), with the error that the run ends with when it has returned.
//! - **CR-10** A task starts when its [front end](FrontEnd) says, and no earlier: when the orchestration has returned, when
//!   the task is published, or when it is submitted.
//! - **CR-11** An orchestration that neither returns nor calls its graph by the deadline is reported by
//!   [`on_overdue`](Runtime::on_overdue), with the task that it submitted last.
//!
//! # Example
//! ```
//! use chip_runtime::{Buffer, Create, FrontEnd, Kernels, Limits, Runtime, TaskArgs};
//! use deadline::Deadline;
//! use std::time::Duration;
//!
//! let mut runtime = Runtime::new(Limits::default())?;
//! let scale = runtime.kernel("scale", |block| {
//!     let factor = block.scalar(0)? as f32;
//!     let scaled: Vec<f32> = block.read::<f32>(0)?.iter().map(|x| x * factor).collect();
//!     Ok(block.write(1, &scaled)?)
//! });
//! let add = runtime.kernel("add", |block| {
//!     let (a, b) = (block.read::<f32>(0)?, block.read::<f32>(1)?);
//!     let sum: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
//!     Ok(block.write(2, &sum)?)
//! });
//!
//! let mut x = Buffer::of(&[1.0f32, 2.0, 3.0]);
//! let mut y = Buffer::<f32>::zeroed(&[3]);
//! let deadline = Deadline::after(Duration::from_secs(10))?;
//! runtime.run(FrontEnd::Inferred, deadline, |graph| {
//!     let (x, y) = (graph.import(&mut x)?, graph.import(&mut y)?);
//!     let args = |factor| TaskArgs::new().input(&x).output(Create::of::<f32>(&[3])).scalar(factor);
//!     // These two may run at the same time, the third when both have ended.
//!     let ten = graph.submit(Kernels::aiv(scale), &args(10))?.tensor::<f32>(0)?;
//!     let hundred = graph.submit(Kernels::aiv(scale), &args(100))?.tensor::<f32>(0)?;
//!     graph.submit(Kernels::aiv(add), &TaskArgs::new().input(&ten).input(&hundred).output_existing(&y))?;
//!     Ok(())
//! })?;
//! assert_eq!(y.to_vec()?, [110.0, 220.0, 330.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it does not do
//! It starts no process and opens no device. It stops neither a kernel that does not return nor an orchestration that
//! neither returns nor calls its graph: who owns the process replaces it, as a Worker does. It learns of the first from
//! the error of the run and [`Runtime::is_running`], of the second, and of a kernel on the thread that it called `run` on,
//! by [`Runtime::on_overdue`].

mod args;
mod buffer;
mod element;
mod engine;
mod error;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;
mod graph;
mod heap;
mod kernel;
mod limits;
#[cfg(feature = "ascend")]
pub mod on_device;
mod orchestration;
mod record;
mod runtime;
pub mod signals;
mod task;
mod tensor;
mod tensor_map;
mod trace;

pub use args::{Compare, Predicate, TaskArgs, TensorArg};
pub use buffer::Buffer;
pub use error::{ArgumentError, At, ErrorKind, RuntimeError};
pub use graph::Graph;
pub use kernel::{Block, Elements, KernelResult, Lane};
pub use limits::{FrontEnd, Limits, MAX_SCALARS, MAX_TENSORS, OUTPUT_ALIGN, RINGS, ScopeMode};
#[cfg(feature = "cxx")]
pub use orchestration::{KernelObject, LoadError, Orchestration};
pub use record::{Recording, SignalRecord, Span, TaskRecord, WaitRecord};
pub use runtime::Runtime;
pub use task::{KernelId, Kernels, Site, Submitted, TaskId};
pub use tensor::{Create, Element, Tensor};
pub use trace::{TraceProcess, TraceWriter};
