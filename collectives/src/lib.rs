//! All-reduce and its family, for ranks that reach each other's windows as memory.
//!
//! A [`Collectives`] is one rank's end of a group, made over a communicator. Its windows hold a line of progress for each step, a staging
//! area in two halves, and a pool for [tensors](WindowTensor) that peers read and write where they stand. Every call is a number of steps
//! that all ranks count alike; a rank publishes a step, waits for the same step of those it needs, and reads what they staged.
//!
//! # Contract
//! - **CO-1** Every call does what its documentation says, for 1 to 64 ranks, any count, more ranks than cores, groups of some ranks in any
//!   order, and any sequence of calls.
//! - **CO-2** The same bits on every rank and in every algorithm: values are combined in the order of the ranks, [`f16`](struct@f16) and [`bf16`] in
//!   `f32` and rounded once. Results do not depend on size, pieces, place, timing or processor. A result that is NaN is the one NaN of its
//!   type.
//! - **CO-3** Different calls on different ranks are an error on every rank that names two of them; on devices, whose library
//!   does not compare them, at the deadline and without their names. No rank hangs.
//! - **CO-4** A peer that dies, leaves or gives up ends every wait that needs it, also for something else that is under way, within 200 ms,
//!   with its rank and cause. So do the deadline of [`Options::timeout`] and an abort.
//! - **CO-5** A wrong argument is refused before a peer knows of the call and leaves the group as it was. Any other failure breaks the group:
//!   later calls repeat the first cause, and its tensors are poisoned. The communicator and other groups are as before, unless the
//!   cause is theirs.
//! - **CO-6** What a rank published before it gave up or died is delivered.
//! - **CO-7** Started calls go on in every call of this crate that their thread makes, on any group, so that groups may be waited for in
//!   different orders; with [`Options::progress_thread`] also while it makes none.
//! - **CO-8** Ranks with different layouts, pools or [tables](Table) refuse each other when the group is made.
//! - **CO-9** A group belongs to the process that made it. A forked copy is refused.
//! - **CO-12** Kernels in C++ (`comm_collectives.h`) have the same layout, steps, records and algorithms: a rank of a group may be either,
//!   with the same bits.
//! - **CO-13** Started calls are over at the end of their [scope](Collectives::scope), also when their handles were dropped or the scope
//!   panics. Nothing touches their buffers afterwards. What one of them failed with, the scope returns.
//! - **CO-14** One thread at a time uses a group; different threads may use different groups. The compiler sees to it.
//!
//! # Example
//! ```
//! use collectives::{Collectives, Op, Options};
//! use comm_context::comm::{Membership, Timeout};
//! use comm_sim::SimComm;
//!
//! let path = std::env::temp_dir().join(format!("collectives-example-{}", std::process::id()));
//! // One rank is a group too.
//! let comm = SimComm::rendezvous(&path, Membership::new(0, 1)?, Timeout::DEFAULT)?;
//! let group = Collectives::new(&comm, Options::new())?;
//! let mut gradients = vec![1.5_f32; 1000];
//! group.all_reduce(&mut gradients, Op::Sum)?;
//! // In the window: no staging when every rank passes a tensor.
//! let mut weights = group.alloc::<f32>(100_000)?;
//! weights.as_mut_slice()?.fill(0.5);
//! group.all_reduce(&mut weights, Op::Avg)?;
//! assert_eq!(weights.as_slice()?[0], 0.5);
//! # drop(weights);
//! group.close()?;
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! # Schedules
//! A schedule that was proved runs on the same windows: see [`schedule`].
//!
//! # Waiting
//! A call polls for its peers for some microseconds without a lock, a clock or a system call. Then it waits through the communicator
//! ([`HostWindows::wait_on`](comm_context::comm::HostWindows::wait_on)), which knows who is alive, when to yield and when to park. It wakes
//! ranks that are parked last.
//!
//! # Cache lines
//! A half belongs to the rank that fills it until it publishes the step, and then to its readers until they finish it. A reader that is
//! the only one stores to each line what stands there: then the next fill finds the lines in one cache and need not end copies, which
//! takes most of the time of a staged call where processors share no cache.
//!
//! # What it does not do
//! It reaches no other machine. It does not protect a group from a rank that writes where it should not. It has no communicator of
//! its own and starts no processes.

mod at_once;
mod call;
mod calls;
pub mod capi;
mod crowded;
mod device;
mod element;
mod engine;
mod error;
mod fault;
mod fold_ahead;
mod fork_guard;
#[cfg(fuzzing)]
pub mod fuzzing;
mod group;
mod in_window;
mod kernels;
mod layout;
mod memory;
mod moves;
mod options;
mod pairs;
mod plan;
mod pool;
mod raw;
mod registry;
mod request;
mod requests;
pub mod schedule;
mod scope;
mod split;
mod started;
mod table;
mod tensor;
mod thread;

pub use element::{DType, Element, Op, bf16, f16};
pub use error::{BadArgument, CallOf, CollError};
pub use group::{Collectives, CommRef};
pub use layout::{group_bytes, group_hash};
pub use options::Options;
pub use registry::set_wait_hook;
pub use request::{CallText, Kind, Request, Shared};
pub use schedule::{Passing, Plan, PlanError, Sums};
pub use scope::{Pending, Scope};
pub use started::Ticket;
pub use table::Table;
pub use tensor::{Buffer, Input, WindowTensor};
