//! cann-sim: a **test double** of the Ascend vendor libraries. None of it is the vendor's code, and nothing
//! that runs on it has run on hardware.
//!
//! Two sibling crates build `libascendcl.so` and `libhccl.so` with the vendor's symbols; this one holds what they share, and
//! the test's side. Device memory is anonymous shared memory, so that several processes on one host really reach each other's
//! windows.
//!
//! # Contract
//! A *session* is a directory, named to the libraries by `CANN_SIM_DIR`. It holds
//! - `config`: the machine ([`Config`]): devices, versions, which modes of sharing memory exist;
//! - `faults`: the script of faults ([`faults`]); `CANN_SIM_FAULTS` adds rules for one process;
//! - `control`: shared memory with every process, its live objects, the exports and the communicators.
//!
//! `CANN_SIM_RANK` is a process's rank for rules with `rank=`; without it, the device that it opens is the rank.
//!
//! A test makes a [`Session`], prepares each rank's command with [`Session::enlist_as`] (or one command that
//! forks its own ranks with [`Session::enlist`]), lets them run, and gets from [`Session::report`] what they left. The program
//! `cann-sim DIR` prints the same report. Hardware tests, which may run on the double, read their settings with [`hw_test`].
//!
//! # Invariants
//! - **CN-1** Every object that a vendor call creates is counted until a vendor call destroys it; what a device reset or
//!   `aclFinalize` had to clean up is counted apart, as reclaimed.
//! - **CN-2** Fresh device memory is not zero.
//! - **CN-3** Nothing that a process makes outlives it: memory is anonymous, and table entries of dead processes are ignored.
//! - **CN-4** An unknown word in `config` or in `faults` is refused, not skipped.
//! - **CN-5** A call made after a fork is refused (`507000`), as the vendor forbids it.
//!
//! # Example
//! ```
//! let dir = tempfile::tempdir()?;
//! let session = cann_sim::Session::create(dir.path())?;
//! session.configure("devices = 2\nfabric = off\n")?;
//! session.script("rank=1 aclrtMalloc#2 return 507899\n")?;
//! assert!(session.report()?.is_clean());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it does not do
//! It has no timing: a kernel runs inside `aclrtLaunchKernel`, as one block, in the calling thread. It has no timeouts of the
//! device, no limit on the sum of allocations and no topology. Where the vendor's documentation is silent, the double follows
//! what the public upstream project (`hw-native-sys/simpler`) reports of A2 and A3 devices with CANN 9.0, or else the
//! strictest reading of the headers. Neither says what the vendor's libraries really do.

#![deny(unsafe_code)]

mod attach;
mod config;
mod control;
pub mod faults;
pub mod gate;
pub mod hw_test;
mod objects;
mod session;
mod shared;

pub use attach::{AttachError, Attachment, Entry, attach, log};
pub use config::{Config, ConfigError};
pub use control::{CommSlot, Control, ControlLock, EXPORT_PIDS, ExportKind, ExportSlot, ProcessSlot};
pub use objects::Kind;
pub use session::{ProcessReport, Session, SessionError, SessionReport, library_dir};
pub use shared::{SharedMemory, futex_wait, futex_wake, process_start};
