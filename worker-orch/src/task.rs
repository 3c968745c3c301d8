//! A task as the function that runs it sees it.

use crate::device_memory::in_heap;
use bytemuck::Pod;
use chip_bootstrap::Chip;
use comm_context::abi::{DeviceAddr, TensorDesc};
use shared_memory::Region;
use std::sync::Arc;
use worker_errors::{ErrorCode, Failure};

/// What a function that runs on a hand gets: its arguments and, on a chip, the chip.
pub struct Task<'a> {
    pub(crate) tensors: &'a [TensorDesc],
    pub(crate) scalars: &'a [u64],
    pub(crate) chip: Option<&'a mut Chip>,
    pub(crate) heaps: &'a [Arc<Region>],
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

    /// Copies the elements of tensor `index` out. The tensor must be contiguous and of this element size.
    pub fn read<T: Pod>(&self, index: usize) -> Result<Vec<T>, Failure> {
        let (addr, count) = self.contiguous::<T>(index)?;
        let mut elements = vec![T::zeroed(); count];
        let bytes = bytemuck::cast_slice_mut(&mut elements);
        match in_heap(self.heaps, addr, bytes.len()) {
            Some((heap, at)) => {
                heap.read(at, bytes).map_err(|error| crate::memory::region_failure(&error))?
            }
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
            Some((heap, at)) => heap.write(at, bytes).map_err(|error| crate::memory::region_failure(&error)),
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
        let text = "that address is neither in a host buffer nor in a window of this chip";
        self.chip.as_deref().ok_or_else(|| Failure::new(ErrorCode::Invalid, text))
    }
}
