//! Chips up in one call, tasks in a graph, errors at the caller.
//!
//! A [`Worker`] starts one process for each chip, brings all of them up at once, and submits tasks to them:
//! kernels from shared objects, or Rust functions. The order of the tasks follows from the tensors that they
//! read and write. When something fails, [`Worker::run`] returns the first cause, and a process that dies is
//! reported at once to all that wait for it.
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
//! - **WO-1** `init` returns when every chip is ready, or with the first cause after everything is cleaned up;
//!   then it may be called again.
//! - **WO-2** Every failure of a child process reaches `run`: an error, a panic, an exit, a signal. The first
//!   cause is reported, with the name of the chip, sub-worker or Worker that it happened on.
//! - **WO-3** A task that needs another task's result runs after it, and not at all when that one failed.
//!   Independent tasks overlap.
//! - **WO-4** After a failed task the next run starts clean; only a chip that waited in its communicator for the
//!   failed task has left its group. After a child process died every call repeats the cause until the Worker is
//!   closed.
//! - **WO-5** Submitting does not allocate without bound: a full ring makes the submit wait.
//! - **WO-6** Child processes never outlive the parent, and `close` ends within its deadline whatever they do.
//! - **WO-7** A host buffer has one address in the parent and in all its children, whenever it was made and
//!   however they were started. Reading and writing it is sound while others write it.
//! - **WO-8** The memory of a domain is released when its run has drained, also when the run failed.
//! - **WO-9** A task runs after the tasks that [`Args::after`] names and after what is before a
//!   [barrier](Orchestrator::barrier) of its chip, and not at all when one of them failed.
//! - **WO-10** A task takes 32 tensors, 16 scalars and 1024 blocks, whatever else is under way; more is refused.
//! - **WO-11** [`copy_to`](Worker::copy_to) and [`copy_from`](Worker::copy_from) touch the chip's window and memory
//!   of that chip that is allocated now, and nothing else.
//! - **WO-12** [`Task::collectives`] are made by the parent, before the task, and never inside it. They are the same calls as outside a
//!   Worker. A member that fails tells the others at once, and a later run has a new group.
//! - **WO-13** A kernel runs once for each of its task's [blocks](Args::blocks), and the task is done when all have run. Only kernels
//!   have more than one block.
//! - **WO-14** A task whose arguments do not fit its program's [signature](Worker::set_signature) is refused when it is submitted, and so is
//!   one whose program was [unregistered](Worker::unregister).
//! - **WO-15** In a Worker that is [checked](WorkerBuilder::checked), a task fails that accesses memory beside its buffers, writes to an input,
//!   or reads an output before it wrote it; the error names chip, program, task, argument and offset.
//! - **WO-16** [`copy_to`](Orchestrator::copy_to) and [`copy_from`](Orchestrator::copy_from) of a run come after its earlier tasks that touch these bytes
//!   and before the later ones, and do nothing after a failed task.
//! - **WO-17** Runs of [`submit_run`](Worker::submit_run) are in flight up to a limit, and behave as if each was submitted when the one before it
//!   was over: tasks of a chip run in the order of the submits, and those that touch memory that an earlier run touches wait for that.
//! - **WO-18** When a run in flight fails, takes too long or has a closure that fails, no task of a run behind it begins any more, and each
//!   handle says what became of its run. Those in front are not touched. The next run begins clean, and no failure goes untold.
//! - **WO-19** A run that is [cancelled](Run::cancel) ends as a failed one does. Kernels that wait return, but none of a run in front of it.
//! - **WO-20** [`Worker::task`] says what became of a task. One that is [cancelled](Worker::cancel_task) does not begin, or counts as
//!   failed; one that takes longer than its [limit](Args::within) ends its run, whose error names it.
//! - **WO-21** [`Worker::metrics`] counts for each child what it has finished and what waits for it, and in a Worker that is
//!   [measured](WorkerBuilder::measured) how long it was busy and waited.
//! - **WO-22** When a [scope](Orchestrator::scope) of a run returns, the tasks that were submitted before are done, what was dropped is free, and the
//!   domains made in it are released.
//! - **WO-23** A buffer of a domain that is [staged](DomainStaging) holds the bytes of the host before a task can reach it, and they are on the host when the
//!   domain is released, unless the run failed.
//! - **WO-24** A child runs only functions that it has: a copy of the parent those registered before `init`, a new process
//!   those that `main` passed to [`serve_if_child`]. A task with another one is refused, and nothing is started by a `main`
//!   that does not call it.
//!
//! # The order of tasks
//! Each chip executes its tasks in the order of the submits. Between chips the order follows from memory: a task
//! that reads bytes waits for the last tasks that write them, and one that writes them also for those that read
//! them. A [group](Orchestrator::submit_group) counts as one task.
//!
//! Some tasks touch memory that no tensor of theirs says, such as kernels that reach into their peers' windows.
//! Two calls order these: [`Args::after`] names tasks to wait for, and [`Orchestrator::barrier`] separates what
//! was submitted to the chips before it from what comes after.
//!
//! ```
//! use worker_orch::{Access, Args, Failure, Task, Worker};
//!
//! fn put(task: &mut Task<'_>) -> Result<(), Failure> {
//!     task.write(0, &[1.0_f32])
//! }
//! fn add_up(task: &mut Task<'_>) -> Result<(), Failure> {
//!     let sum = task.read::<f32>(0)?[0] + task.read::<f32>(1)?[0];
//!     task.write(2, &[sum])
//! }
//!
//! let mut worker = Worker::builder().devices(&[0, 1]).build()?;
//! let (put, add_up) = (worker.register_function("put", put), worker.register_function("add_up", add_up));
//! let [x, y, sum] = [worker.host_buffer::<f32>(1)?, worker.host_buffer(1)?, worker.host_buffer(1)?];
//! worker.init()?;
//! let unordered = |tensor| Args::new().tensor(tensor, Access::NoDependency);
//! let (of_x, of_y) = (unordered(&x.tensor()), unordered(&y.tensor()));
//! let both = of_x.clone().tensor(&y.tensor(), Access::NoDependency).tensor(&sum.tensor(), Access::Output);
//! worker.run(|orch| {
//!     let first = orch.submit_next_level(put, &of_x, 0)?;
//!     let second = orch.submit_next_level(put, &of_y, 1)?;
//!     orch.submit_next_level(add_up, &both.clone().after(&[first, second]), 0)
//! })?;
//! worker.run(|orch| {
//!     orch.submit_next_level(put, &of_x, 0)?;
//!     orch.submit_next_level(put, &of_y, 1)?;
//!     orch.barrier()?;
//!     orch.submit_next_level(add_up, &both, 0)
//! })?;
//! assert_eq!(sum.to_vec(), [2.0]);
//! # Ok::<_, Failure>(())
//! ```
//!
//! A barrier orders tasks, not kernels that run at the same time: those meet in their own barriers
//! (`comm_kernel.h`). A [`TaskId`] is good in its own run and in those that are in flight with it; one of
//! a run that is over is refused, since everything in that run is done. What a nested Worker's tasks touch is not seen by the level above: there the
//! tensors of the orchestration count.
//!
//! # Runs in flight
//! [`Worker::run`] waits for its tasks. [`Worker::submit_run`] returns when the closure has submitted them, with a handle to wait for; several
//! runs are then in flight, and the chips go from one to the next without the parent.
//! ```
//! use worker_orch::{Access, Args, Failure, RunState, Task, Timeout, Worker};
//!
//! fn add_one(task: &mut Task<'_>) -> Result<(), Failure> {
//!     let sum = task.read::<f32>(0)?[0] + 1.0;
//!     task.write(0, &[sum])
//! }
//!
//! let mut worker = Worker::builder().devices(&[0, 1]).build()?;
//! let add_one = worker.register_function("add_one", add_one);
//! let x = worker.host_buffer::<f32>(1)?;
//! worker.init()?;
//! let args = Args::new().tensor(&x.tensor(), Access::InOut);
//! let (_, first) = worker.submit_run(|orch| orch.submit_next_level(add_one, &args, 0))?;
//! // On another chip, after the first, because of x.
//! let (_, second) = worker.submit_run(|orch| orch.submit_next_level(add_one, &args, 1))?;
//! assert_eq!(second.wait(&mut worker, Timeout::default())?, RunState::Done);
//! assert!(first.is_done(&mut worker) && x.to_vec() == [2.0]);
//! # Ok::<_, Failure>(())
//! ```
//!
//! # Graphs on a chip
//! A program of [`Worker::register_graph`] runs graphs of tasks on the cores of its chip ([`runtime`]), and the parent does nothing
//! from their start to their end. Graphs that are submitted together wait for each other's signals.
//! ```
//! use worker_orch::runtime::{FrontEnd, Kernels, Limits, TaskArgs};
//! use worker_orch::{Access, Args, Worker};
//!
//! let mut worker = Worker::builder().devices(&[0]).build()?;
//! let twice = worker.register_graph("twice", |task| {
//!     let mut graphs = task.graphs(&Limits::default())?;
//!     let double = graphs.runtime().kernel("double", |block| {
//!         let doubled: Vec<f32> = block.read::<f32>(0)?.iter().map(|value| value * 2.0).collect();
//!         Ok(block.write(0, &doubled)?)
//!     });
//!     let x = graphs.tensor(0)?;
//!     graphs.run(FrontEnd::Inferred, |graph| {
//!         // The second waits for the first, because of x.
//!         graph.submit(Kernels::aiv(double), &TaskArgs::new().inout(&x))?;
//!         graph.submit(Kernels::aiv(double), &TaskArgs::new().inout(&x)).map(drop)
//!     })
//! })?;
//! let x = worker.host_buffer::<f32>(4)?;
//! x.write(&[1.0, 2.0, 3.0, 4.0])?;
//! worker.init()?;
//! let args = Args::new().tensor(&x.tensor(), Access::InOut);
//! worker.run(|orch| orch.submit_next_level(twice, &args, 0))?;
//! assert_eq!(x.to_vec(), [4.0, 8.0, 12.0, 16.0]);
//! # Ok::<_, worker_orch::Failure>(())
//! ```
//!
//! # Collectives
//! Functions on chips reduce and exchange data with [`Task::collectives`], over the chips that they were submitted to together. The
//! parent makes the group, once; later runs use it again.
//! ```
//! use worker_orch::{Access, Args, CollectivesOptions, Failure, Op, Task, Worker};
//!
//! fn sum(task: &mut Task<'_>) -> Result<(), Failure> {
//!     let mut values = task.read::<f32>(0)?;
//!     task.collectives()?.all_reduce(&mut values, Op::Sum)?;
//!     task.write(0, &values)
//! }
//!
//! let mut worker = Worker::builder().devices(&[0, 1]).build()?;
//! let sum = worker.register_function("sum", sum);
//! let data = [worker.host_buffer::<f32>(2)?, worker.host_buffer::<f32>(2)?];
//! data[0].write(&[1.0, 2.0])?;
//! data[1].write(&[10.0, 20.0])?;
//! worker.init()?;
//! worker.run(|orch| {
//!     orch.collectives(&[0, 1], CollectivesOptions::new())?;
//!     let args = |chip: usize| (chip, Args::new().tensor(&data[chip].tensor(), Access::InOut));
//!     orch.submit_group(sum, &[args(0), args(1)])
//! })?;
//! assert_eq!(data[0].to_vec(), [11.0, 22.0]);
//! worker.close()?;
//! # Ok::<_, Failure>(())
//! ```
//!
//! # How child processes are started
//! By default children are **forked**: copies of the parent in which only the thread that called
//! [`Worker::init`] exists. A function that runs in a child must not use locks, loggers or standard output that
//! other threads of the parent may have held at that moment; it may allocate, compute, use its [`Task`] and
//! write to files that it opens. Initialise the Worker before starting threads where you can. A child has the
//! functions that were registered before `init`; a task with a later one is refused.
//!
//! Where a copy of the parent is impossible (a library that does not survive a fork, threads whose locks the
//! functions need, a host that would count the parent's memory again for every chip), children are started by
//! **exec**: new processes of the same program. Then functions may use what they like, but they run in a fresh
//! program: no state of the parent is there, `main` must call [`serve_if_child`] first, and only functions in
//! its table can run.
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
//!     let args = Args::new().tensor(&x.tensor(), Access::InOut);
//!     worker.run(|orch| orch.submit_next_level(double, &args, 1))?;
//!     assert_eq!(x.to_vec(), [2.0, 4.0]);
//!     worker.close()
//! }
//! ```
//!
//! A Worker of Workers forks the Workers below it; those of level 3 may start their chips by exec.
//!
//! # Inside
//! There are three modules: `parent` is what the caller's process does, `child` what a child process does, and
//! `shared` the control block and the wire forms that both read. `parent` and `child` do not import from each
//! other. The public types stand at the top.
//!
//! # What it does not do
//! It does not cross machines, does not retry, and does not copy memory on its own, with one exception: on
//! devices with memory of their own a kernel's tensors in host buffers are copied to the device before it runs,
//! and what it changed is copied back before the task is done. It adds no functions to children that are up.

mod args;
mod builder;
mod child;
mod chip_context;
#[cfg(fuzzing)]
pub mod fuzzing;
#[cfg(feature = "cxx")]
mod graph_object;
mod heap;
mod host_buffer;
mod log;
mod metrics;
mod parent;
mod program;
mod run_handle;
mod shared;
mod signature;
mod start;
mod task_id;
mod task_report;
mod worker;

pub use args::{Access, Args};
pub use builder::{CHIP_LEVEL, WorkerBuilder};
#[cfg(feature = "ascend")]
pub use child::DeviceGraphs;
pub use child::{Graphs, Task};
pub use chip_bootstrap::{Chip, ChipConfig, ChipMemoryKind, HostSpan, PartKind, Platform, UnknownPlatform};
pub use chip_context::{ChipBuffer, ChipContext};
pub use chip_runtime as runtime;
pub use collectives::{
    CollError, Collectives, Op, Options as CollectivesOptions, WindowTensor, bf16, f16, group_bytes,
};
pub use comm_context::abi::{
    AbiError, COMM_MAX_RANK_NUM, CommContext, DType, DeviceAddr, TensorBuilder, TensorDesc,
};
pub use comm_context::comm::{AddressSpace, ArgumentError, CommError, Membership, Timeout};
#[cfg(feature = "cxx")]
pub use graph_object::GraphObject;
pub use host_buffer::{Element, HostBuffer, flat_tensor};
pub use metrics::{ChildMetrics, Metrics};
pub use parent::{ChipMemory, Domain, DomainContext, DomainStaging, Orchestrator};
pub use program::{OrchestrationFn, Program, TaskFn};
pub use run_handle::{Run, RunState};
pub use signature::Signature;
pub use start::{Start, serve_if_child};
pub use task_id::TaskId;
pub use task_report::{TaskReport, TaskState};
pub use worker::Worker;
pub use worker_errors::{ErrorCode, Failure, Report};

/// The programs of the guide to collectives, compiled and run.
#[cfg(doctest)]
#[allow(rustdoc::invalid_codeblock_attributes, reason = "`file=` is for the lane that types the commands")]
#[doc = include_str!("../../docs/guide-collectives.md")]
struct GuideCollectives;

/// The programs of the guide to graphs, compiled and run.
#[cfg(doctest)]
#[allow(rustdoc::invalid_codeblock_attributes, reason = "`file=` is for the lane that types the commands")]
#[doc = include_str!("../../docs/guide-graphs.md")]
struct GuideGraphs;
