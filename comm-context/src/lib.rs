//! The bytes that kernels read, the headers that kernels include, and the communicator that every backend
//! implements.
//!
//! - [`abi`]: [`CommContext`](abi::CommContext), [`TensorDesc`](abi::TensorDesc) and what else kernels get
//!   ([`KernelContexts`](abi::KernelContexts)), pinned to the byte.
//!   `no_std`, no allocation; the only part without the feature `std`.
//!   [`abi::orchestration`] is what orchestrations and the runtime exchange.
//! - [`INCLUDE_DIR`]: `comm_context.h`, `tensor.h`, `kernel_context.h`, `comm_kernel.h` (helpers for kernels),
//!   `orchestration.h` (graphs of tasks) and `comm.h` (the C API of a backend). [`COMPAT_INCLUDE_DIR`] has headers for
//!   sources that were written for upstream.
//! - [`comm`]: the [`Communicator`](comm::Communicator) trait, its errors, and what backends share: argument
//!   checks and the table of allocations.
//! - [`capi`]: the C API of `comm.h` for any backend.
//! - `conformance` (a feature): the cases that the tests of every backend run.
//!
//! # Contract
//! - **CC-1** Every size, alignment, offset and constant is the same in C11, C++17 and Rust.
//! - **CC-2** A remote address is inside the peer's window, or is refused.
//! - **CC-3** A kernel's wait ends when it is satisfied or when the run is aborted, never otherwise, and says
//!   which.
//! - **CC-4** Decoding is total: any bytes give a consistent value or an [`AbiError`](abi::AbiError).
//! - **CC-5** A wrong argument is refused before anything is created, with the same error by every backend.
//! - **CC-6** A time limit is more than zero and at most ten years, wherever it comes from.
//! - **CC-7** A code that crosses a process or a language comes back as the same code, and every other number
//!   is refused.
//! - **CC-8** A broken communicator repeats its first cause, unnested, whatever happens later.
//! - **CC-9** Barriers of kernels start again with every generation, and signals are compared by their difference:
//!   what an aborted run left, and counts that wrap, are not mistaken for progress.
//! - **CC-10** A size is a plain number of bytes above zero, with or without a unit, wherever it comes from.
//!
//! # Example
//! ```
//! use comm_context::abi::{AbiError, CommContext, DeviceAddr};
//!
//! // Two ranks with windows of 4 KiB, as rank 0 reaches them.
//! let context = CommContext::new(0, &[DeviceAddr(0x10000), DeviceAddr(0x20000)], 4096)?;
//! assert_eq!(context.as_bytes().len(), 1056);
//!
//! // What `CommRemotePtr(ctx, ptr, 1)` computes in a kernel, with bounds.
//! assert_eq!(context.remote(DeviceAddr(0x10040), 1)?, DeviceAddr(0x20040));
//! assert!(matches!(context.remote(DeviceAddr(0x11000), 1), Err(AbiError::NotInWindow { .. })));
//! # Ok::<(), AbiError>(())
//! ```
//!
//! # What it does not do
//! It implements no communicator, opens no file and no library, and never dereferences a device address.
#![cfg_attr(not(feature = "std"), no_std)]

pub mod abi;
#[cfg(feature = "std")]
pub mod capi;
#[cfg(feature = "std")]
pub mod comm;
#[cfg(feature = "conformance")]
pub mod conformance;

/// The folder of the C and C++ headers in the source tree, for build scripts, tests, and programs that run
/// where they were built.
pub const INCLUDE_DIR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/include");

/// The folder of headers under the paths and names of upstream, for sources that were written for it.
pub const COMPAT_INCLUDE_DIR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/include/compat");
