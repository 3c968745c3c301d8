//! One chip's bring-up and teardown, inside the process that drives it.
//!
//! [`bring_up`] takes the device, joins the group, allocates the window, carves it into named buffers in the order in which the
//! [`ChipConfig`] declares them, and stages the inputs. [`bring_up_and_publish`] does the same and tells the parent on the bootstrap channel how it
//! went. The result is a [`Chip`], on which kernels run and which goes down in the reverse order.
//!
//! # Contract
//! - **CB-1** Buffers and regions are apart: the count of a buffer is the number of its elements and nothing else, and what is declared first stands first.
//! - **CB-2** A configuration that cannot work is refused before anything is made, with the part's name.
//! - **CB-3** Every failure names its phase, device and rank, is published when there is a channel, and leaves nothing behind.
//! - **CB-4** Teardown mirrors bring-up, communicator before device, and does nothing the second time.
//! - **CB-5** Outputs that are stored to the host are there before a task is told done.
//! - **CB-6** Nothing above this crate depends on the platform: where chips have their own memory, no addresses of the parent are
//!   reserved for windows, and a platform that is not compiled in is refused with the feature that has it.
//!
//! # Features
//! `sim` (the simulation) and `ascend` (Ascend devices), both on by default; at least one is needed. Without `ascend` the vendor's loader is
//! not built.
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
//! let mut chip = bring_up(Platform::Sim, &config, Some(&Entry::Path(path)), Timeout::DEFAULT, &mut |phase| println!("{phase}"))?;
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
mod device;
mod error;
mod group;
mod host;
mod platform;
#[cfg(feature = "sim")]
mod sim;

pub use bring_up::{BringUpPhase, bring_up, bring_up_and_publish};
pub use chip::{Buffer, Chip};
pub use config::{BUFFER_ALIGN, ChipConfig, ConfigError, MAX_PARTS, PartKind};
pub use device::{ChipMemory, Entry, Kernel, check_kernel};
pub use error::{BringUpCause, BringUpError, ChipError, KernelError, region_failure};
pub use group::{ChipGroup, GroupSpec};
pub use host::HostSpan;
pub use platform::{ChipMemoryKind, Platform, PlatformNotBuilt, UnknownPlatform};
