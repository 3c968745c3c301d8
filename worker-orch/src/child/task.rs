//! A task as the function that runs it sees it.

use super::heaps::in_heap;
use crate::shared::ReceivedFrame;
use bytemuck::Pod;
use chip_bootstrap::{Chip, region_failure};
use comm_context::abi::{DeviceAddr, TensorDesc};
use shared_memory::Region;
use std::sync::Arc;
use worker_errors::{ErrorCode, Failure};

/// What a function gets that runs in a child process: its arguments and, on a chip, the chip.
pub struct Task<'a> {
    tensors: &'a [TensorDesc],
    scalars: &'a [u64],
    chip: Option<&'a mut Chip>,
    heaps: &'a [Arc<Region>],
}

impl<'a> Task<'a> {
    pub(super) fn on_chip(frame: &'a ReceivedFrame, heaps: &'a [Arc<Region>], chip: &'a mut Chip) -> Self {
        Self { chip: Some(chip), ..Self::on_host(frame, heaps) }
    }

    pub(super) fn on_host(frame: &'a ReceivedFrame, heaps: &'a [Arc<Region>]) -> Self {
        Self { tensors: &frame.tensors, scalars: &frame.scalars, chip: None, heaps }
    }
}

impl Task<'_> {
    /// The tensors, in the order of the arguments.
    pub fn tensors(&self) -> &[TensorDesc] {
        self.tensors
    }

    /// The scalars, in the order of the arguments.
    pub fn scalars(&self) -> &[u64] {
        self.scalars
    }

    /// Scalar number `index`.
    pub fn scalar(&self, index: usize) -> Result<u64, Failure> {
        let have = self.scalars.len();
        self.scalars.get(index).copied().ok_or_else(|| {
            Failure::new(ErrorCode::Invalid, format!("there is no scalar {index}; the task has {have}"))
        })
    }

    /// The chip that the task runs on; `None` on a sub-worker.
    pub fn chip(&mut self) -> Option<&mut Chip> {
        self.chip.as_deref_mut()
    }

    /// Copies the elements of tensor `index` out. The tensor must be contiguous and have elements of this
    /// size.
    pub fn read<T: Pod>(&self, index: usize) -> Result<Vec<T>, Failure> {
        let (addr, count) = self.contiguous::<T>(index)?;
        let mut elements = vec![T::zeroed(); count];
        let bytes = bytemuck::cast_slice_mut(&mut elements);
        match in_heap(self.heaps, addr, bytes.len()) {
            Some((heap, at)) => heap.read(at, bytes).map_err(|error| region_failure(&error))?,
            None => self.window()?.read(DeviceAddr(addr), bytes)?,
        }
        Ok(elements)
    }

    /// Copies `elements` into tensor `index`.
    pub fn write<T: Pod>(&self, index: usize, elements: &[T]) -> Result<(), Failure> {
        let (addr, count) = self.contiguous::<T>(index)?;
        if elements.len() > count {
            let text = format!("{} elements do not fit into tensor {index} of {count}", elements.len());
            return Err(Failure::new(ErrorCode::Invalid, text));
        }
        let bytes = bytemuck::cast_slice(elements);
        match in_heap(self.heaps, addr, bytes.len()) {
            Some((heap, at)) => heap.write(at, bytes).map_err(|error| region_failure(&error)),
            None => Ok(self.window()?.write(DeviceAddr(addr), bytes)?),
        }
    }

    fn contiguous<T>(&self, index: usize) -> Result<(u64, usize), Failure> {
        let bad = |text: String| Failure::new(ErrorCode::Invalid, text);
        let tensor = self
            .tensors
            .get(index)
            .ok_or_else(|| bad(format!("there is no tensor {index}; the task has {}", self.tensors.len())))?;
        let size = tensor.dtype().map_err(|error| bad(error.to_string()))?.size();
        if size != size_of::<T>() as u64 || tensor.is_contiguous == 0 {
            return Err(bad(format!(
                "tensor {index} is not a contiguous one of {}-byte elements",
                size_of::<T>()
            )));
        }
        Ok((tensor.addr + tensor.start_offset * size, tensor.extent as usize))
    }

    fn window(&self) -> Result<&Chip, Failure> {
        let text = "the address is neither in a host buffer nor in a window of this chip";
        self.chip.as_deref().ok_or_else(|| Failure::new(ErrorCode::Invalid, text))
    }
}
