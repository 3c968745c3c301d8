//! What a chip's process does with its device, whatever the platform.

use crate::failure::comm_failure;
use crate::platform::Platform;
use crate::sim::SimDevice;
use comm_context::abi::TensorDesc;
use comm_context::comm::{CommError, Communicator, Membership, Timeout};
use rendezvous::Prepared;
use std::path::{Path, PathBuf};
use worker_errors::{ErrorCode, Failure};

/// How a chip finds its group.
#[derive(Clone, Debug)]
pub enum Entry {
    /// The parent prepared it before it forked this process.
    Forked(Prepared),
    /// At a path, with ranks that were started independently.
    Path(PathBuf),
}

/// A loaded kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel(pub(crate) usize);

/// One device, held by one process.
pub trait Device {
    /// Joins the group.
    fn communicator(
        &self,
        entry: &Entry,
        me: Membership,
        within: Timeout,
    ) -> Result<Box<dyn Communicator>, CommError>;

    /// Loads `symbol` of the kernel binary at `path`; once for each pair.
    fn load(&mut self, path: &Path, symbol: &str) -> Result<Kernel, Failure>;

    /// Runs a kernel to its end.
    fn launch(&mut self, kernel: Kernel, tensors: &[TensorDesc], scalars: &[u64]) -> Result<(), Failure>;

    /// Gives the device back. Called once, after the communicator is gone.
    fn close(&mut self) -> Result<(), Failure>;
}

/// Takes the device.
pub(crate) fn open(platform: Platform, device: i32) -> Result<Box<dyn Device>, Failure> {
    if device < 0 {
        return Err(Failure::new(
            ErrorCode::Invalid,
            format!("there is no device {device}; devices count from 0"),
        ));
    }
    match platform {
        Platform::Sim => Ok(Box::new(SimDevice::new())),
        Platform::A2a3 | Platform::A5 => Err(Failure::new(
            ErrorCode::Load,
            format!("this build has no backend for {platform}; use -p sim"),
        )),
    }
}

/// Joins a group, with the error as a carrier.
pub(crate) fn join(
    device: &dyn Device,
    entry: &Entry,
    me: Membership,
    within: Timeout,
) -> Result<Box<dyn Communicator>, Failure> {
    device.communicator(entry, me, within).map_err(|error| comm_failure(&error))
}
