//! cann-sim: a **test double** of the Ascend vendor libraries. None of it is the vendor's code, and nothing
//! that runs on it has run on hardware.
//!
//! Two sibling crates build `libascendcl.so` and `libhccl.so` with the vendor's symbols; this one holds what they share, and
//! the test's side. Device memory is anonymous shared memory, so that several processes on one host really reach each other's
//! windows. Kernels run in a process of the device, which starts with the first kernel that is loaded and maps device memory
//! at device addresses. In the program's own process nothing lies at these addresses.
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
//! - **CN-6** Device memory cannot be reached on the host by its device address, nor host memory on the device. A kernel that
//!   faults is `507015` from the device until it is reset; one that runs longer than its launch allows is `507014`.
//! - **CN-7** A pointer of the other space is refused (`107000`), in copies, fills and launches.
//! - **CN-8** The words of a launch's argument block are the kernel's parameters. `aclrtLaunchKernel` takes the block from
//!   device memory, `aclrtLaunchKernelWithHostArgs` from host memory. Every block gets the same parameters, and knows
//!   itself by `get_block_idx()`; at most 40 blocks run at the same time.
//! - **CN-9** A kernel whose type neither its files nor a load option states is taken for a cube kernel, and its launch is
//!   refused (`507015`).
//! - **CN-10** The host cannot copy to or from a peer's memory (`107000`); the device can.
//! - **CN-11** To free memory while a living peer has it open is an error (`507899`). The memory is gone all the same.
//! - **CN-13** Two network namespaces are two hosts. Handles and keys of one host are unknown on another (`507899`), but for
//!   Fabric handles, and those can be opened there only when they were exported without the check of pids (`207006`).
//! - **CN-12** To enable a peer a second time is an error (`507899`).
//! - **CN-14** A stream that waits for an event starts no kernel before those have ended that the event's stream had, or
//!   waited for, when it was recorded. To wait for an event that was never recorded, to destroy one that a stream still
//!   waits for, and an event and a stream of two devices, are refused. A kernel that has failed completes no event: whoever asks
//!   gets the fault.
//! - **CN-15** A sum of `aclrtReduceAsync` comes after what is before it on its stream, and is one step for all devices. Both sides are
//!   device memory, own or a peer's (`107000` otherwise), and hold whole elements.
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
//! - It has no timing, and a kernel runs as one block. A stream runs one kernel at a time, and a launch returns only when what is
//!   before it on its stream has ended. Events order kernels; copies and HCCL's operations wait for no kernel. Of the
//!   reductions it has sums of 32-bit integers, which wrap.
//! - A device has one process for each program that opens it, as if its cores were not shared.
//! - Caches are coherent, so a kernel that forgets to write back is not noticed. Alignment does not matter.
//! - It has no timeouts of the device other than a launch's limit, no limit on the sum of allocations, no place holders in
//!   argument blocks and no topology.
//! - A kernel is a shared object of the host, so nothing here says that an object for a chip would be accepted.
//!
//! Where the vendor's documentation is silent, the double follows what the public upstream project (`hw-native-sys/simpler`)
//! reports of A2 and A3 devices with CANN 9.0, or else the strictest reading of the headers. Neither says what the vendor's
//! libraries really do.

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
