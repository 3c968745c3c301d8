//! Chips up in one call, tasks in a graph, errors at the caller.
//!
//! A [`Worker`] starts one process for each chip, brings all of them up at once and gives them tasks: kernels from shared objects or Rust functions.
//! The order of tasks follows from the tensors that they read and write. When something fails, [`Worker::run`] returns the first cause, and when a
//! process dies, everybody learns of it at once.
//!
//! # Example
//! ```
//! use worker_orch::{Access, Args, Failure, Task, Worker};
//!
//! fn double(task: &mut Task<'_>) -> Result<(), Failure> {
//!     let input = task.read::<f32>(0)?;
//!     task.write(1, &input.iter().map(|x| 2.0 * x).collect::<Vec<_>>())
//! }
//!
//! let mut worker = Worker::builder().devices(&[0]).build()?;
//! let double = worker.register_function("double", double);
//! let (x, y) = (worker.host_buffer::<f32>(4)?, worker.host_buffer::<f32>(4)?);
//! x.write(&[1.0, 2.0, 3.0, 4.0])?;
//! worker.init()?;
//! worker.run(|orch| {
//!     let args = Args::new().tensor(&x.tensor(), Access::Input).tensor(&y.tensor(), Access::Output);
//!     orch.submit_next_level(double, &args, 0)
//! })?;
//! assert_eq!(y.to_vec(), [2.0, 4.0, 6.0, 8.0]);
//! worker.close()?;
//! # Ok::<_, Failure>(())
//! ```
//!
//! # Contract
//! - **WO-1** `init` returns when every chip is ready, or with the first cause when everything is cleaned up again; then it may be called again.
//! - **WO-2** Every kind of failure of a hand reaches `run`: error, panic, exit, signal. The first cause is reported, with the hand's name.
//! - **WO-3** A task that needs another's result runs after it, and not at all when that one failed. Independent tasks overlap.
//! - **WO-4** After a failed task the next run starts clean; only a chip that waited in its communicator for that task has left its group. After a dead hand
//!   every call repeats the cause until the Worker is closed.
//! - **WO-5** Submitting never grows memory: a full ring makes the submit wait.
//! - **WO-6** Hands never outlive the parent, and `close` ends within its deadline whatever the hands do.
//! - **WO-7** A host buffer has one address in parent and hands, whenever it was made and however they were started.
//! - **WO-8** A domain's memory goes when the run has drained, also when the run failed.
//!
//! # How hands are started, and what users may not do
//! By default hands are **forked**: copies of the parent in which only the thread that called [`Worker::init`] exists. A function that runs on a hand must not use
//! locks, loggers or standard output that other threads of the parent may have held at that moment; it may allocate, compute, use its [`Task`] and
//! write to files that it opens. Initialise the Worker before starting threads where you can.
//!
//! Where a copy of the parent is out of the question (a library that does not survive a fork, threads whose locks the functions need, a host that counts the
//! parent's memory again for every chip), hands are started by **exec**: new processes of the same program. Then functions may use whatever they like, but
//! what they find is a fresh program: no state of the parent's is there, `main` must call [`serve_if_child`] first thing, and only functions in its table can run.
//!
//! ```standalone_crate
//! use worker_orch::{Access, Args, Failure, Start, Task, Worker, serve_if_child};
//!
//! fn double(task: &mut Task<'_>) -> Result<(), Failure> {
//!     let input = task.read::<f32>(0)?;
//!     task.write(0, &input.iter().map(|x| 2.0 * x).collect::<Vec<_>>())
//! }
//!
//! fn main() -> Result<(), Failure> {
//!     serve_if_child(&[("double", double)]);
//!     // Only the parent comes here.
//!     let mut worker = Worker::builder().start(Start::Exec).devices(&[0, 1]).build()?;
//!     let double = worker.register_function("double", double);
//!     let x = worker.host_buffer::<f32>(2)?;
//!     worker.init()?;
//!     x.write(&[1.0, 2.0])?;
//!     worker.run(|orch| orch.submit_next_level(double, &Args::new().tensor(&x.tensor(), Access::InOut), 1))?;
//!     assert_eq!(x.to_vec(), [2.0, 4.0]);
//!     worker.close()
//! }
//! ```
//!
//! A Worker of Workers forks its child Workers; those of level 3 may start their chips by exec.
//!
//! # What it does not do
//! It does not cross machines, does not retry, and does not move memory behind the user's back, with one exception:
//! on Ascend a kernel's tensors in host buffers are copied to the device before it runs, and what it changed of them is
//! copied back before the task is done.

mod args;
mod builder;
mod child;
mod chip_context;
#[cfg(fuzzing)]
pub mod fuzzing;
mod heap;
mod host_buffer;
mod parent;
mod program;
mod shared;
mod start;
mod worker;

pub use args::{Access, Args};
pub use builder::{CHIP_LEVEL, WorkerBuilder};
pub use child::Task;
pub use chip_bootstrap::{ChipConfig, HostSpan, PartKind, Platform};
pub use chip_context::{ChipBuffer, ChipContext};
pub use host_buffer::{Element, HostBuffer, flat_tensor};
pub use parent::{ChipMemory, Domain, DomainContext, Orchestrator, TaskId};
pub use program::{OrchestrationFn, Program, TaskFn};
pub use start::{Start, serve_if_child};
pub use worker::Worker;
pub use worker_errors::{ErrorCode, Failure};
