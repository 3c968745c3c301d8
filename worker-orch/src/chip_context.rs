//! A chip that is up, as users see it.

use crate::host_buffer::flat_tensor;
use chip_bootstrap::PartKind;
use comm_context::abi::{DeviceAddr, TensorDesc};
use worker_errors::{ErrorCode, Failure};

/// A named part of a chip's window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChipBuffer {
    /// Its name in the configuration.
    pub name: String,
    /// What it holds.
    pub kind: PartKind,
    /// Its address, as the chip sees it.
    pub addr: DeviceAddr,
}

/// A chip that is up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChipContext {
    /// The device.
    pub device: i32,
    /// The process that drives it. Another one after a run that it did not come back from, where a chip can be replaced.
    pub pid: i32,
    /// Its rank in the group; 0 without a communicator.
    pub rank: u32,
    /// The size of the group; 0 without a communicator.
    pub nranks: u32,
    /// Its `CommContext`; null without a window.
    pub device_ctx: DeviceAddr,
    /// Its window; null without one.
    pub window_base: DeviceAddr,
    /// The window's real size; 0 without one.
    pub window_size: usize,
    /// Its buffers and regions, in the order of the configuration.
    pub buffers: Vec<ChipBuffer>,
}

impl ChipContext {
    /// The buffer or region called `name`.
    pub fn buffer(&self, name: &str) -> Result<&ChipBuffer, Failure> {
        self.buffers.iter().find(|buffer| buffer.name == name).ok_or_else(|| {
            let known: Vec<&str> = self.buffers.iter().map(|buffer| buffer.name.as_str()).collect();
            Failure::new(
                ErrorCode::Invalid,
                format!("device {} has no buffer `{name}`; it has {known:?}", self.device),
            )
        })
    }
}

impl ChipBuffer {
    /// Its size in bytes; the number of elements is in its [`kind`](Self::kind).
    pub fn bytes(&self) -> usize {
        // It is in a window, so that its size fits.
        self.kind.bytes().unwrap_or(0)
    }

    /// The buffer as a tensor of one dimension; a region of bytes is refused.
    pub fn tensor(&self) -> Result<TensorDesc, Failure> {
        match self.kind {
            PartKind::Buffer { dtype, count } => flat_tensor(self.addr, dtype, count),
            PartKind::Region { .. } => Err(Failure::new(
                ErrorCode::Invalid,
                format!(
                    "`{}` is a region of bytes and not a tensor; use its address, or declare a buffer",
                    self.name
                ),
            )),
        }
    }
}
