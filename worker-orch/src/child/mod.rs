//! What a child process does: it is brought up, serves its ring of tasks until it is shut down, and ends.
//!
//! A child is a chip, a sub-worker, or a Worker of the next level. This room knows `shared` and the public
//! types of the crate, and of the parent only what stands in shared memory: it imports nothing from `parent`.
//! A Worker of the next level is a parent itself, and is used here through the same calls that its users
//! have.
//!
//! Between a fork and its end a child takes no lock that another thread of the parent may have held: it does
//! not print through the standard library, does not log, and uses only memory of the thread that forked.

mod check;
mod chip;
mod collectives;
#[cfg(feature = "ascend")]
mod device_graphs;
mod exec;
mod graph_trace;
mod graphs;
mod heaps;
mod host;
mod loaded;
mod roles;
mod serve;
mod task;

#[cfg(feature = "ascend")]
pub use device_graphs::DeviceGraphs;
pub(crate) use exec::main_after_exec;
pub use graphs::Graphs;
pub(crate) use roles::main;
pub use task::Task;
