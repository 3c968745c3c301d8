//! What a chip's process does with its device, whatever the platform.

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

    /// Runs a kernel to its end. Tensors may lie in device memory or in the regions `host`. Where the kernel runs apart from this process,
    /// `meanwhile` is called every few milliseconds.
    fn launch(
        &mut self,
        kernel: Kernel,
        tensors: &[TensorDesc],
        scalars: &[u64],
        host: &[Arc<Region>],
        meanwhile: &dyn Fn(),
    ) -> Result<(), ChipError>;

    /// The device's own memory; `None` where chips use the host's, as in the simulation.
    fn memory(&self) -> Option<&dyn ChipMemory>;

    /// Gives the device back. Called once, after the communicator is gone.
    fn close(&mut self) -> Result<(), ChipError>;
}

/// Memory that only the device reaches, beside its windows.
pub trait ChipMemory {
    /// Allocates so many bytes; what is in them is undefined.
    fn allocate(&self, bytes: usize) -> Result<DeviceAddr, ChipError>;

    /// Frees what [`allocate`](Self::allocate) gave.
    fn free(&self, addr: DeviceAddr) -> Result<(), ChipError>;

    /// Copies bytes of one allocation out.
    fn read(&self, from: DeviceAddr, into: &mut [u8]) -> Result<(), ChipError>;

    /// Copies bytes into one allocation.
    fn write(&self, to: DeviceAddr, bytes: &[u8]) -> Result<(), ChipError>;
}

/// Takes the device.
pub(crate) fn open(platform: Platform, device: i32, within: Timeout) -> Result<Box<dyn Device>, ChipError> {
    let logical = u32::try_from(device).map_err(|_| ChipError::NoSuchDevice { device })?;
    // Each platform has its own use for them.
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

/// Checks, where the platform can without a device, that a kernel's file can be loaded and has the symbol: a mistake is then reported
/// when the kernel is registered, not when it first runs.
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
