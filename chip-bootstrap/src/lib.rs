//! One chip's bring-up and teardown, inside the process that drives it, on any platform.
//!
//! [`bring_up`] opens the device, joins the group, allocates the window, lays it out as named buffers in the
//! order of the [`ChipConfig`], and stages the inputs. [`bring_up_and_publish`] does the same and publishes
//! the result on the bootstrap channel. The result is a [`Chip`], which runs kernels and is torn down in
//! reverse order. [`ChipGroup`] is the parent's side of the chips' group.
//!
//! # Contract
//! - **CB-1** Buffers and regions are different: the count of a buffer is its number of elements and nothing
//!   else. Parts lie in the order of their declaration.
//! - **CB-2** A configuration that cannot work is refused before anything is created, with the name of the
//!   part.
//! - **CB-3** Every error of a bring-up names its phase, device and rank, keeps its sources, is published
//!   when there is a channel, and leaves nothing behind.
//! - **CB-4** Teardown mirrors bring-up, communicator before device, and does nothing the second time.
//! - **CB-5** Outputs are stored to the host before their task counts as done.
//! - **CB-6** Nothing above this crate depends on the platform: where chips have their own memory, the parent
//!   reserves no addresses for windows, and a platform that is not compiled in is refused with the feature
//!   that has it.
//! - **CB-7** A kernel gets 50 arguments on every platform: its tensors and scalars, at most 48, then where it runs. A
//!   task with more is refused, and so is a kernel that asks for deferred completion.
//! - **CB-8** A C++ exception that leaves a kernel fails its task with the exception's type and text, and the chip
//!   runs the next kernel (the simulation).
//! - **CB-9** A kernel runs once for each block of its launch, with its own arguments and contexts, which say which block
//!   it is. On the simulation blocks run one after the other, so that one must not wait for another.
//!
//! # Features
//! `sim` (the simulation) and `ascend` (Ascend devices), both on by default; at least one is needed. Without
//! `ascend` the vendor's loader is not built.
//!
//! # Example
//! ```
//! use chip_bootstrap::{ChipConfig, Entry, Platform, bring_up};
//! use comm_context::{abi::DType, comm::{Membership, Timeout}};
//!
//! let path = std::env::temp_dir().join(format!("chip-example-{}", std::process::id()));
//! let config = ChipConfig::new(0)
//!     .communicator(Membership::new(0, 1)?)
//!     .window(1 << 16)
//!     .buffer("x", DType::Float32, 256)
//!     .region("signals", 64);
//! let entry = Entry::Path(path);
//! let mut show = |phase| println!("{phase}");
//! let mut chip = bring_up(Platform::Sim, &config, Some(&entry), Timeout::DEFAULT, &mut show)?;
//! assert_eq!(chip.buffer("x").map(|buffer| buffer.bytes), Some(1024));
//! chip.tear_down()?;
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it does not do
//! It starts no process and schedules no task.

#[cfg(not(any(feature = "sim", feature = "ascend")))]
compile_error!("chip-bootstrap needs a platform: enable the feature `sim`, `ascend`, or both");

#[cfg(feature = "ascend")]
mod ascend;
mod bring_up;
mod chip;
mod config;
#[cfg(feature = "sim")]
mod cxx_exception;
mod device;
mod error;
mod group;
mod host;
#[cfg(feature = "sim")]
mod kernel_call;
mod platform;
#[cfg(feature = "sim")]
mod sim;

pub use bring_up::{BringUpPhase, bring_up, bring_up_and_publish};
pub use chip::{Buffer, Chip};
pub use config::{BUFFER_ALIGN, ChipConfig, ConfigError, MAX_PARTS, PartKind};
pub use device::{ChipMemory, Entry, Kernel, MAX_BLOCKS, check_kernel};
pub use error::{BringUpCause, BringUpError, ChipError, KernelError, region_failure};
pub use group::{ChipGroup, GroupSpec, KernelWait};
pub use host::HostSpan;
pub use platform::{ChipMemoryKind, Platform, PlatformNotBuilt, UnknownPlatform};
