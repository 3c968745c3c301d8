//! The simulation backend: each rank is a process, its windows are shared memory, and a kernel gets a `CommContext` whose
//! addresses work.
//!
//! [`SimComm`] is a [`Communicator`]. Ranks that one parent forks
//! [join](SimComm::join) a group that the parent [prepared](SimComm::prepare_group); every window then has the same
//! address in all of them and in the parent. Ranks that were started in any other way join at a
//! [path](SimComm::rendezvous). For C, C++ and Python the package `comm-sim-c` builds `libcomm_sim.so`.
//!
//! # Contract
//! - **CS-1** A window is zeroed before any peer can reach it, also when its memory was used before.
//! - **CS-2** Memory is reserved when a window is allocated: too little is an error that says need and have, never a
//!   SIGBUS.
//! - **CS-3** An allocation succeeds on every member or on none. The communicator is usable either way.
//! - **CS-4** What was released can be allocated again, any number of times, without growth.
//! - **CS-5** In a forked group every window has the same address in all processes.
//! - **CS-6** A rank that dies once the others can know of it is named to every rank that still needs it, and leaves
//!   nothing behind: no process, no file, no shared memory. The next group at the same path works.
//! - **CS-7** Any thread may call, and many at once (up to 128 collective calls of a rank). A call waits for its own
//!   peers only.
//! - **CS-9** Each rank has addresses for its windows: as many as the caller or `CHIPCOMM_WINDOW_SPACE` asks for, else
//!   64 GiB, or less where a process may not have that many. What does not fit is an error that names the limit.
//! - **CS-10** Ranks that allocate at the same time get an error rather than, together, more memory than there is.
//! - **CS-8** The page behind every window is inaccessible to every member, and contexts are not behind windows: a
//!   kernel that writes beyond a window is ended with SIGSEGV at once. A window's size is rounded up to whole pages;
//!   what is in between belongs to the window, and an access there is not noticed.
//!
//! # Example
//! ```
//! use comm_sim::{CommError, Communicator, Membership, SimComm, Timeout};
//!
//! let path = std::env::temp_dir().join(format!("comm-sim-example-{}", std::process::id()));
//! let comm = SimComm::rendezvous(&path, Membership::new(0, 1)?, Timeout::DEFAULT)?;
//! let window = comm.alloc_windows(1 << 16, Timeout::DEFAULT)?;
//! comm.write(window.base, b"hello")?;
//! comm.barrier(Timeout::DEFAULT)?;
//! Box::new(comm).destroy(Timeout::DEFAULT)?;
//! # Ok::<_, CommError>(())
//! ```
//!
//! # Inspecting a run
//! `cargo run -p comm-sim --bin comm-inspect -- PATH|PID` shows which ranks have come to a rendezvous, or the phase of
//! every rank of a process's groups, and what every child of a Worker does.
//!
//! # What it does not do
//! It does not start processes and does not run kernels. It does not keep ranks of one user from writing into each other's
//! windows: that is what windows are for. One machine only.

mod comm;
#[cfg(fuzzing)]
pub mod fuzzing;
mod guards;
mod host_windows;
mod kernel_wait;
mod message;
mod space;
mod workers;

pub use comm::SimComm;
pub use comm_context::abi::{AbiError, CommContext, CommWait, DeviceAddr};
pub use comm_context::comm::{
    AddressSpace, AllocationId, ArgumentError, CommError, Communicator, DomainSpec, Membership, SubsetView,
    Timeout, Window,
};
pub use kernel_wait::kernel_wait;
pub use rendezvous::{Launched, LauncherError, Prepared, Ticket, from_launcher};
pub use workers::workers_of;
