//! The Ascend backend. It finds and loads the vendor's ACL and HCCL libraries at run time, drives
//! one device, brings up a communicator whose ranks reach each other's windows in the best mode that the machine supports,
//! and reports each vendor code with its name and what to do about it.
//!
//! Nothing here has run on hardware. The declarations are compared with the vendor's own headers
//! (`cargo xtask abi-check`). Sequence, clean-up and failures are tested on `cann-sim`, this project's double of the
//! vendor's libraries (`cargo xtask hw-test --layer comm --double`).
//!
//! # Contract
//! - [`sys`] declares, [`VendorError`] names codes, the rest is typed and releases what it makes.
//! - [`Vendor::load`] loads both libraries, or returns an error with every place that it tried. Nothing is loaded before
//!   that call, it is made in chip processes only, and nothing ever falls back to simulation.
//! - [`Runtime`] → [`Device`] → [`Stream`], [`Event`], [`DeviceMemory`], [`KernelBinary`], [`LocalWindow`], [`PeerWindow`], [`Group`].
//!   Each has `release`, which returns the vendor's answer, and a `Drop` that does the same and leaves its error to
//!   [`Device::close`].
//! - A kernel gets the device address of its argument list, which is in device memory. Its [type](KernelType) must be known
//!   before it is loaded, and the device ends it after the [limit](LaunchSpec::limit) of its launch.
//! - [`HcclComm`] is the [`Communicator`](comm_context::comm::Communicator). Ranks that one parent forks
//!   [join](HcclComm::join) what it [prepared](HcclComm::prepare_group); others join at a [path](HcclComm::rendezvous), or, on several hosts, at an address. For
//!   C the package `comm-hccl-c` builds `libcomm_hccl.so`, where the caller owns device and stream.
//! - Objects of the device layer wait without a limit, except in [`PeerWindow::open`]. The communicator's waits are limited:
//!   it makes vendor calls on a [`VendorThread`], which is left behind when a call does not return.
//! - Every vendor call is logged where `CHIPCOMM_VENDOR_LOG` ([`ENV_LOG`]) names a file: when it starts, and when it returns.
//!
//! # A vendor call that hangs
//! `HcclCommInitRootInfo` and `HcclBarrier` wait for all ranks inside the vendor's code, for minutes, and only the end of
//! the process ends them. So ranks enter them only when every rank is known to be coming, watch each other while inside, and
//! return at the deadline, or as soon as a rank is dead or has failed, with the function's name
//! ([`CommError::Stuck`](comm_context::comm::CommError::Stuck) when it is this rank's own call). The communicator cannot be
//! used after that, and what the lost thread holds stays until its call returns or the process ends:
//! [`destroy`](comm_context::comm::Communicator::destroy) and [`Device::close_within`] wait for it until their deadlines;
//! `destroy` only for five seconds when the communicator has failed already.
//! There is no watchdog that kills the process, because the process is the caller's. Inside a Worker the parent kills a
//! chip process that does not end.
//!
//! # Invariants
//! - **HC-1** Every vendor declaration is in a table of [`sys`], and every table entry is compared with the headers.
//! - **HC-2** Every required symbol is resolved before the first vendor call; a missing one is refused by name.
//! - **HC-3** `aclInit` is called once per process, never in a forked child, and only the code that initialised finalises.
//! - **HC-4** Logical, driver-visible and physical device ids are different types.
//! - **HC-5** A failure leaves no vendor object behind. Release is in order and the first error is kept. Nothing is acquired
//!   that the library cannot release.
//! - **HC-6** A call leaves the thread's ACL context as it was.
//! - **HC-7** A window is zero before a peer can reach it.
//! - **HC-8** After [`Device::abandon`] nothing is released any more.
//! - **CH-1** All members share a window in one mode, the best that each of them supports. Why each better one was refused,
//!   and by which rank, is kept; a mode that was refused once is not tried again.
//! - **CH-2** No call of a communicator waits for the vendor beyond its deadline; the error names the function. The state of
//!   a vendor thread is made, used and released there.
//! - **CH-3** A window is zero before any peer has its ticket.
//! - **CH-4** An allocation succeeds on every member or on none, and leaves the communicator usable either way.
//! - **CH-5** A rank that dies or fails is named to the others at once, everything that a hung call does not hold is
//!   released, and later calls repeat the first cause.
//! - **CH-6** The barrier switches the ACL context of the communicator's own thread only.
//! - **CH-7** In C, device and stream stay the caller's, and a wrong argument is refused before the vendor is called.
//! - **CH-9** Windows of ranks on several hosts are shared by Fabric or not at all; the error names two ranks and their
//!   hosts, and nothing is left behind. Ranks of one host share theirs as ever.
//! - **CH-8** A rank frees its windows after every living rank that has them open has closed them, or at the deadline. When a
//!   rank has failed already, the wait is a few seconds, and so is the wait for a hung vendor call.
//!
//! # Example
//! ```no_run
//! use comm_context::comm::{Communicator, Membership, Timeout};
//! use comm_hccl::*;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (rank, nranks) = (0, 2);
//! let runtime = Runtime::start(Vendor::load(None)?)?;
//! let device = Device::open(runtime, LogicalDevice(rank), &VisibleDevices::from_env()?)?;
//! let me = Membership::new(rank, nranks)?;
//! let comm = HcclComm::rendezvous(&device, "/tmp/my-job/rootinfo".as_ref(), me, Timeout::DEFAULT)?;
//! let window = comm.alloc_windows(1 << 20, Timeout::DEFAULT)?;
//! println!("windows shared by {:?}; refused: {:?}", comm.share_mode(), comm.refusals());
//! comm.write(window.base, b"hello")?;
//! comm.barrier(Timeout::DEFAULT)?;
//! Box::new(comm).destroy(Timeout::DEFAULT)?;
//! device.close()?;
//! runtime.finalise()?;
//! # Ok(())
//! # }
//! ```
//!
//! # What it does not do
//! It has no collectives of its own: it passes those of the crate `collectives` on to HCCL's
//! ([`DeviceCollectives`](comm_context::comm::DeviceCollectives)). It uses no private vendor structure, and cannot end a
//! vendor call that hangs.

#![deny(unsafe_code)]

mod arguments;
mod collective;
mod comm;
mod device;
mod error;
mod event;
#[cfg(fuzzing)]
pub mod fuzzing;
mod group;
mod ids;
mod ipc;
mod kernel;
mod kernel_type;
mod load;
mod memory;
mod peer;
mod physical;
mod result;
mod runtime;
mod stream;
pub mod sys;
mod vendor_call;
mod vendor_thread;
mod warning;
mod window;

pub use arguments::Arguments;
pub use collective::Buffers;
pub use comm::{HcclComm, NotAcrossHosts, NotShareable, Refusal};
pub use device::{Device, Generation, VendorPid};
pub use error::DeviceError;
pub use event::Event;
pub use group::{Group, RootInfo};
pub use ids::{
    ListProblem, LogicalDevice, PhysicalDevice, VisibleDevice, VisibleDevices, VisibleDevicesError,
};
pub use ipc::{IpcExport, IpcImport, IpcKey};
pub use kernel::{Kernel, KernelBinary, LaunchSpec};
pub use kernel_type::KernelType;
pub use load::{AclVersion, Attempt, ENV_LIB_DIR, LoadError, MINIMUM_ACL, Vendor};
pub use memory::DeviceMemory;
pub use physical::{FabricHandle, Mapping, Pages, PhysicalMemory, ShareableHandle};
pub use rendezvous::{Prepared, Ticket};
pub use result::{Code, VendorError};
pub use runtime::Runtime;
pub use stream::Stream;
pub use vendor_call::ENV_LOG;
pub use vendor_thread::{NotStarted, Overrun, VendorThread};
pub use warning::PeerWarning;
pub use window::{Importers, LocalWindow, PeerWindow, ShareMode, TicketError, WindowTicket};
