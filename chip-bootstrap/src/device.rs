//! The device of a chip, on any platform.

#[cfg(feature = "ascend")]
use crate::ascend::AscendDevice;
use crate::error::ChipError;
use crate::group::ChipGroup;
use crate::platform::Platform;
#[cfg(feature = "sim")]
use crate::sim::SimDevice;
use comm_context::abi::{DeviceAddr, TensorDesc};
use comm_context::comm::{CommError, Communicator, Membership, Timeout};
#[cfg(feature = "ascend")]
use comm_hccl::LogicalDevice;
use shared_memory::Region;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How a chip finds its group.
#[derive(Clone, Debug)]
pub enum Entry {
    /// The parent prepared it before it forked this process.
    Forked(ChipGroup),
    /// At a path, with ranks that were started independently.
    Path(PathBuf),
}

/// A loaded kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel(pub(crate) usize);

/// What a kernel left in its completion slab: nothing, unless it asks for what is not supported.
pub(crate) fn check_completion(count: u32, error: i32) -> Result<(), ChipError> {
    match (count, error) {
        (0, 0) => Ok(()),
        (words, 0) => Err(ChipError::DeferredCompletion { words }),
        (_, error) => Err(ChipError::CompletionError { error, text: None }),
    }
}

/// The most blocks of a launch: many times the cores of any chip. Each takes 3 KiB for its list and contexts.
pub const MAX_BLOCKS: u32 = 1024;

/// A kernel with its arguments, at most `KERNEL_LOCAL_CONTEXT_ARG`.
#[cfg_attr(not(feature = "ascend"), expect(dead_code, reason = "the simulation runs kernels in place"))]
pub(crate) struct Launch<'a> {
    pub(crate) kernel: Kernel,
    /// At least 1, at most [`MAX_BLOCKS`].
    pub(crate) blocks: u32,
    /// In device memory or in the regions `host`.
    pub(crate) tensors: &'a [TensorDesc],
    pub(crate) scalars: &'a [u64],
    pub(crate) host: &'a [Arc<Region>],
    /// Where the kernel runs outside this process, called every few milliseconds.
    pub(crate) meanwhile: &'a dyn Fn(),
    /// After this time the device may end the kernel; where kernels run in this process, its parent does.
    pub(crate) limit: Option<Duration>,
}

/// One device, held by one process.
pub(crate) trait Device {
    /// Joins the group.
    fn communicator(
        &self,
        entry: &Entry,
        me: Membership,
        within: Timeout,
    ) -> Result<Box<dyn Communicator>, CommError>;

    /// Loads `symbol` of the kernel binary at `path`; once for each pair.
    fn load(&mut self, path: &Path, symbol: &str) -> Result<Kernel, ChipError>;

    /// Unloads a kernel, where that is possible before the device is closed.
    fn unload(&mut self, _kernel: Kernel) {}

    /// Runs all blocks of a kernel to completion.
    fn launch(&mut self, launch: &Launch<'_>) -> Result<(), ChipError>;

    /// The device's own memory; `None` where chips use host memory.
    fn memory(&self) -> Option<&dyn ChipMemory>;

    /// The Ascend device, if it is one that is open.
    #[cfg(feature = "ascend")]
    fn ascend(&self) -> Option<comm_hccl::Device> {
        None
    }

    /// Closes the device. Called once, after the communicator is gone.
    fn close(&mut self) -> Result<(), ChipError>;
}

/// Memory that only the device reaches, beside its windows.
pub trait ChipMemory {
    /// Allocates bytes with undefined contents.
    fn allocate(&self, bytes: usize) -> Result<DeviceAddr, ChipError>;

    /// Frees what [`allocate`](Self::allocate) returned.
    fn free(&self, addr: DeviceAddr) -> Result<(), ChipError>;

    /// Copies bytes of one allocation out.
    fn read(&self, from: DeviceAddr, into: &mut [u8]) -> Result<(), ChipError>;

    /// Copies bytes into one allocation.
    fn write(&self, to: DeviceAddr, bytes: &[u8]) -> Result<(), ChipError>;
}

/// Opens the device.
pub(crate) fn open(platform: Platform, device: i32, within: Timeout) -> Result<Box<dyn Device>, ChipError> {
    let logical = u32::try_from(device).map_err(|_| ChipError::NoSuchDevice { device })?;
    // The simulation needs neither.
    let _ = (logical, within);
    match platform {
        #[cfg(feature = "sim")]
        Platform::Sim => Ok(Box::new(SimDevice::new())),
        #[cfg(feature = "ascend")]
        Platform::A2a3 | Platform::A5 => Ok(Box::new(AscendDevice::open(LogicalDevice(logical), within)?)),
        #[cfg(not(all(feature = "sim", feature = "ascend")))]
        other => Err(other.not_built().into()),
    }
}

/// Checks, where the platform can without a device, that a kernel's file can be loaded and has the symbol: a
/// mistake is then reported when the kernel is registered, not when it first runs.
pub fn check_kernel(platform: Platform, path: &Path, symbol: &str) -> Result<(), ChipError> {
    match platform {
        #[cfg(feature = "sim")]
        Platform::Sim => crate::sim::check_kernel(path, symbol),
        _ => {
            let _ = (path, symbol);
            Ok(())
        }
    }
}
