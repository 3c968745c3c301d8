//! comm-hccl: the Ascend backend (layer L1a). It finds and loads the vendor's ACL and HCCL libraries at run
//! time, drives one device, shares windows of its memory with peers by the best way that the machine offers,
//! and turns each vendor code into an error that a person can act on.
//!
//! Nothing here has run on hardware. The declarations are compared with the vendor's own headers
//! (`cargo xtask abi-check`), and sequence, clean-up and failures are tested on `cann-sim`, a double of the vendor's
//! libraries that belongs to this project.
//!
//! # Contract
//! - [`sys`] declares, [`result`](VendorError) names codes, the rest is typed and releases what it makes.
//! - [`Vendor::load`] loads both libraries or says everything it tried. Nothing is loaded before that call,
//!   it is made in chip processes only, and nothing ever falls back to simulation.
//! - [`Runtime`] → [`Device`] → [`Stream`], [`DeviceMemory`], [`KernelBinary`], [`LocalWindow`],
//!   [`PeerWindow`], [`Group`]. Each has `release`, which gives the vendor's answer, and a `Drop` that does
//!   the same and leaves its error to [`Device::close`].
//! - No call here waits on a peer with a bound of its own, except [`PeerWindow::open`]: what the vendor
//!   blocks in, the parent process ends.
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
//!
//! # Example
//! ```no_run
//! use comm_hccl::*;
//! use std::time::{Duration, Instant};
//!
//! # fn exchange(ticket: &WindowTicket) -> WindowTicket { *ticket }
//! # fn peer_pids() -> Vec<VendorPid> { vec![] }
//! let runtime = Runtime::start(Vendor::load(None)?)?;
//! let device = Device::open(runtime, LogicalDevice(0), &VisibleDevices::from_env()?)?;
//! let window = LocalWindow::create(&device, WindowWay::Fabric, 1 << 20)?;
//! window.allow(&peer_pids())?;
//! let peer = PeerWindow::open(&device, &exchange(window.ticket()), Instant::now() + Duration::from_secs(120))?;
//! device.write(peer.addr(), b"hello")?;
//! peer.release()?;
//! window.release()?;
//! device.close()?;
//! runtime.finalise()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it does not do
//! It has no collectives of its own (HCCL's are declared in [`sys`] and callable there), uses no private
//! vendor structure, and enforces no deadline inside a vendor call.

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
pub use result::{Code, VendorError};
pub use runtime::Runtime;
pub use stream::Stream;
pub use window::{LocalWindow, PeerWindow, TicketError, WindowTicket, WindowWay};
