//! The simulation backend: each rank is a process, its windows are shared memory, and a kernel gets a `CommContext` whose
//! addresses work.
//!
//! [`SimComm`] implements [`Communicator`]. Ranks that one parent forks [join](SimComm::join) a group that it
//! [prepared](prepare) before, and then every window has the same address in all of them and in the parent. Ranks that were started
//! by anything else [meet](SimComm::rendezvous) at a path. From C, C++ and Python the same is `libcomm_sim.so` with `comm.h`.
//!
//! # Contract
//! - **CS-1** A window is zeroed before any peer can reach it, also when its memory was used before.
//! - **CS-2** Memory is reserved when a window is allocated: too little is an error that says need and have, never a SIGBUS.
//! - **CS-3** An allocation succeeds on every member or on none; afterwards the communicator is usable either way.
//! - **CS-4** What was allocated and released can be allocated again, any number of times, without growth.
//! - **CS-5** In a forked group all windows have one address everywhere.
//! - **CS-6** Nothing that a C caller passes crashes: NULL, stale handles, wrong counts are errors with a text.
//! - **CS-7** A rank that dies, at any point after the others can know of it, is named to every rank that still needs it, and leaves nothing
//!   behind: no process, no file, no shared memory; the next group at the same path works.
//! - **CS-8** Calls may be made from any thread and from many at once (up to 128 collective ones of a rank); one waits for its own peers only.
//!
//! # Example
//! ```
//! use comm_context::comm::{Communicator, Membership, Timeout};
//! use comm_sim::SimComm;
//!
//! let path = std::env::temp_dir().join(format!("comm-sim-example-{}", std::process::id()));
//! let comm = SimComm::rendezvous(&path, Membership::new(0, 1)?, Timeout::DEFAULT)?;
//! let window = comm.alloc_windows(1 << 16, Timeout::DEFAULT)?;
//! comm.write(window.base, b"hello")?;
//! comm.barrier(Timeout::DEFAULT)?;
//! Box::new(comm).destroy(Timeout::DEFAULT)?;
//! # Ok::<_, comm_context::comm::CommError>(())
//! ```
//!
//! # From C, C++ and Python
//! `cargo build --release -p comm-sim` makes `target/release/libcomm_sim.so`; the headers are in `comm-context/include`. `tests/c` has a
//! program in each language. `cargo run -p comm-sim --bin comm-inspect -- PATH|PID` shows who is at a meeting, or where the ranks of a
//! process's group are.
//!
//! # What it does not do
//! It does not start processes and does not run kernels. It does not keep ranks of one user from writing into each other's windows:
//! that is what windows are for. One machine only.

mod comm;
mod host_windows;
mod note;

pub use comm::{EXTENT, SimComm, prepare};
pub use rendezvous::{Prepared, Ticket};

use comm_context::comm::{CommError, Communicator, Membership, Timeout};
use std::path::Path;

/// The way in for C: independent ranks that share a path. The simulator has no use for the stream.
fn open(
    me: Membership,
    _stream: *mut core::ffi::c_void,
    path: &Path,
    within: Timeout,
) -> Result<Box<dyn Communicator>, CommError> {
    Ok(Box::new(SimComm::rendezvous(path, me, within)?))
}

comm_context::export_c_api!(crate::open);
