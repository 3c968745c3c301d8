//! comm-hccl: the Ascend backend (layer L1a). It finds and loads the vendor's ACL and HCCL libraries at run
//! time, drives one device, brings up a communicator whose ranks reach each other's windows by the best way that
//! the machine offers, and turns each vendor code into an error that a person can act on.
//!
//! Nothing here has run on hardware. The declarations are compared with the vendor's own headers
//! (`cargo xtask abi-check`), and sequence, clean-up and failures are tested on `cann-sim`, a double of the vendor's
//! libraries that belongs to this project (`cargo xtask hw-test --layer comm --double`).
//!
//! # Contract
//! - [`sys`] declares, [`result`](VendorError) names codes, the rest is typed and releases what it makes.
//! - [`Vendor::load`] loads both libraries or says everything it tried. Nothing is loaded before that call,
//!   it is made in chip processes only, and nothing ever falls back to simulation.
//! - [`Runtime`] → [`Device`] → [`Stream`], [`DeviceMemory`], [`KernelBinary`], [`LocalWindow`],
//!   [`PeerWindow`], [`Group`]. Each has `release`, which gives the vendor's answer, and a `Drop` that does
//!   the same and leaves its error to [`Device::close`].
//! - [`HcclComm`] is the [`Communicator`](comm_context::comm::Communicator). Ranks that one parent forks
//!   [join](HcclComm::join) what it [prepared](prepare); others [meet](HcclComm::rendezvous) at a path. From C it is
//!   `libcomm_hccl.so` (the crate `comm-hccl-c`), where the caller owns device and stream.
//! - No object of the device layer waits with a bound of its own, except [`PeerWindow::open`]. The communicator does:
//!   its vendor calls run on a [`Lane`], a thread that is left behind when a call does not come back.
//!
//! # A vendor call that hangs
//! `HcclCommInitRootInfo` and `HcclBarrier` wait for all ranks inside the vendor's code, for minutes, and nothing can
//! end them but the end of the process. So ranks enter them only when every rank is known to be coming, watch each
//! other while inside, and return at the deadline, or as soon as a rank is dead or has failed, with the
//! function's name ([`CommError::Stuck`](comm_context::comm::CommError::Stuck) when it is this rank's own call). The
//! communicator is then of no use, and what the lost thread holds stays until its call returns or the process
//! ends: [`destroy`](comm_context::comm::Communicator::destroy) and [`Device::close_within`] wait for it as long as they are
//! allowed to. A watchdog that killed the process was decided against: the process is the caller's. Inside a
//! Worker the parent kills what does not go.
//!
//! # Invariants
//! - **HC-1** Every vendor declaration is in a table of [`sys`], and every table entry is compared with the
//!   headers.
//! - **HC-2** Every required symbol is resolved before the first vendor call; a missing one is refused by
//!   name.
//! - **HC-3** `aclInit` is called once per process, never in a forked child, and finalised only by who
//!   initialised.
//! - **HC-4** Logical, driver-visible and physical device ids are different types.
//! - **HC-5** Every failure leaves no vendor object behind; release is in order and the first error is kept;
//!   nothing is acquired that the library cannot release.
//! - **HC-6** The thread's ACL context after a call is what it was before.
//! - **HC-7** A window is zero before a peer can reach it.
//! - **HC-8** After [`Device::abandon`] nothing is released any more.
//! - **CH-1** All members share a window by one way, the best that each of them has; why each better one was refused,
//!   and by whom, is kept, and a way that was refused once is not tried again.
//! - **CH-2** No call of a communicator waits for the vendor beyond its deadline; the error names the function. What lives
//!   on a lane is made, used and released there.
//! - **CH-3** A window is zero before any peer knows of it.
//! - **CH-4** An allocation succeeds on every member or on none, and leaves the communicator usable either way.
//! - **CH-5** A rank that dies or fails is named to the others at once, everything that is not lost with a hung call is
//!   released, and later calls repeat the first cause.
//! - **CH-6** The barrier's switch of the ACL context reaches no thread but the communicator's own.
//! - **CH-7** From C, device and stream stay the caller's, and a wrong argument is refused before the vendor is touched.
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
//! println!("windows by {:?}; refused: {:?}", comm.way(), comm.refusals());
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
//! It has no collectives of its own (HCCL's are declared in [`sys`] and callable there), uses no private
//! vendor structure, and cannot end a vendor call that hangs. One machine only.

#![deny(unsafe_code)]

mod comm;
mod device;
mod error;
mod group;
mod ids;
mod inside;
mod ipc;
mod kernel;
mod lane;
mod load;
mod memory;
mod peer;
mod physical;
mod result;
mod runtime;
mod stream;
pub mod sys;
mod window;

pub use comm::{HcclComm, NoWay, prepare};
pub use device::{Device, VendorPid};
pub use error::DeviceError;
pub use group::{Group, RootInfo};
pub use ids::{
    ListProblem, LogicalDevice, PhysicalDevice, VisibleDevice, VisibleDevices, VisibleDevicesError,
};
pub use ipc::{IpcExport, IpcImport, IpcKey};
pub use kernel::{Kernel, KernelBinary};
pub use lane::{Lane, NotStarted, Overrun};
pub use load::{AclVersion, Attempt, ENV_LIB_DIR, LoadError, MINIMUM_ACL, Vendor};
pub use memory::DeviceMemory;
pub use physical::{FabricHandle, Mapping, Pages, PhysicalMemory, ShareableHandle};
pub use rendezvous::{Prepared, Ticket};
pub use result::{Code, VendorError};
pub use runtime::Runtime;
pub use stream::Stream;
pub use window::{LocalWindow, PeerWindow, TicketError, WindowTicket, WindowWay};
