//! What the parent knows of a chip that is up.

use crate::memory::flat_tensor;
use chip_bootstrap::PartKind;
use comm_context::abi::{DeviceAddr, TensorDesc};
use shared_memory::Region;
use worker_errors::{ErrorCode, Failure};

/// A named part of a chip's window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChipBuffer {
    /// Its name in the configuration.
    pub name: String,
    /// What it holds.
    pub kind: PartKind,
    /// Where it is, as the chip sees it.
    pub addr: DeviceAddr,
}

/// A chip that is up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChipContext {
    /// The device.
    pub device: i32,
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
                format!("chip {} has no buffer `{name}`; it has {known:?}", self.device),
            )
        })
    }
}

impl ChipBuffer {
    /// The buffer as a tensor of one dimension; a region is no tensor.
    pub fn tensor(&self) -> Result<TensorDesc, Failure> {
        match self.kind {
            PartKind::Buffer { dtype, count } => flat_tensor(self.addr, dtype, count),
            PartKind::Region { .. } => Err(Failure::new(
                ErrorCode::Invalid,
                format!("`{}` is a region of bytes and not a tensor", self.name),
            )),
        }
    }
}

/// Whether a window that a chip tells of can be one: at least as large as was asked for, and where windows are. `shared` is the memory of the group
/// where the chips' addresses are the parent's own.
pub(crate) fn window_fits(base: u64, size: u64, asked: usize, shared: Option<&Region>) -> bool {
    let inside = |end: u64| {
        shared.is_none_or(|region| {
            let start = region.base().as_ptr() as u64;
            start <= base && end <= start + region.len() as u64
        })
    };
    base > 0 && size >= asked as u64 && base.checked_add(size).is_some_and(inside)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f29_a_window_that_cannot_be_is_recognised() {
        let region = Region::create("t", 8192).unwrap();
        let base = region.base().as_ptr() as u64;
        assert!(window_fits(base + 4096, 4096, 4096, Some(&region)));
        assert!(window_fits(0x1000, 1 << 40, 4096, None), "a device's addresses mean nothing here");
        for (base, size) in [(base + 4096, 4097), (base - 1, 4096), (base, 4095), (0, 4096), (u64::MAX, 4096)]
        {
            assert!(!window_fits(base, size, 4096, Some(&region)), "{base:#x} {size}");
        }
        for (base, size) in [(0, 4096), (u64::MAX, 4096), (0x1000, 1)] {
            assert!(!window_fits(base, size, 4096, None), "{base:#x} {size}");
        }
    }
}
