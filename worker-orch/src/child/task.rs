//! A task as the function that runs it sees it.

use super::collectives::ChipCollectives;
#[cfg(feature = "ascend")]
use super::device_graphs::DeviceGraphs;
use super::graphs::{GraphParts, Graphs, invalid};
use super::heaps::in_heap;
use crate::host_buffer::Element;
use crate::shared::ReceivedFrame;
use chip_bootstrap::{Chip, region_failure};
use chip_runtime::Limits;
use collectives::Collectives;
use comm_context::abi::{DeviceAddr, TensorDesc};
use shared_memory::Region;
use std::sync::Arc;
use worker_errors::{ErrorCode, Failure};

/// What a function gets that runs in a child process: its arguments and, on a chip, the chip.
pub struct Task<'a> {
    tensors: &'a [TensorDesc],
    scalars: &'a [u64],
    chip: Option<&'a mut Chip>,
    /// On a chip, its groups and which of them the task came with.
    collectives: Option<(&'a ChipCollectives, u8)>,
    graphs: Option<GraphParts<'a>>,
    heaps: &'a [Arc<Region>],
}

impl<'a> Task<'a> {
    pub(super) fn on_chip(
        frame: &'a ReceivedFrame,
        heaps: &'a [Arc<Region>],
        chip: &'a mut Chip,
        collectives: &'a ChipCollectives,
    ) -> Self {
        let collectives = Some((collectives, frame.collectives));
        Self { chip: Some(chip), collectives, ..Self::on_host(frame, heaps) }
    }

    pub(super) fn on_host(frame: &'a ReceivedFrame, heaps: &'a [Arc<Region>]) -> Self {
        let (tensors, scalars) = (&frame.tensors, &frame.scalars);
        Self { tensors, scalars, chip: None, collectives: None, graphs: None, heaps }
    }
}

impl<'a> Task<'a> {
    /// The same with what runs graphs.
    pub(super) fn with_graphs(self, graphs: Option<GraphParts<'a>>) -> Self {
        Self { graphs, ..self }
    }

    /// Graphs of tasks on the cores of this chip. For closures of [`register_graph`](crate::Worker::register_graph).
    pub fn graphs(&mut self, limits: &Limits) -> Result<Graphs<'_>, Failure> {
        let (tensors, heaps) = (self.tensors, self.heaps);
        let (parts, chip) = self.graph_parts()?;
        Graphs::new(parts, chip, tensors, heaps, limits)
    }

    /// Prebuilt graphs of tasks on the device of this chip. For closures of
    /// [`register_graph`](crate::Worker::register_graph), on a chip that is not simulated.
    #[cfg(feature = "ascend")]
    pub fn device_graphs(&mut self) -> Result<DeviceGraphs<'_>, Failure> {
        let (tensors, heaps) = (self.tensors, self.heaps);
        let (parts, chip) = self.graph_parts()?;
        DeviceGraphs::new(parts, chip, tensors, heaps)
    }

    /// Whether this chip has a device, where its kernels run.
    #[cfg(all(feature = "ascend", feature = "cxx"))]
    pub(crate) fn has_device(&self) -> bool {
        self.chip.as_deref().is_some_and(|chip| chip.memory().is_some())
    }

    fn graph_parts(&mut self) -> Result<(GraphParts<'_>, &Chip), Failure> {
        let none = || invalid("this task runs no graphs: register its closure with `register_graph`");
        let GraphParts { graphs, block, session, task } = self.graphs.as_mut().ok_or_else(none)?;
        let chip = self.chip.as_deref().ok_or_else(none)?;
        Ok((GraphParts { graphs, block, session, task: *task }, chip))
    }

    /// The collectives of the chips that this task was submitted to together, in the order of the
    /// [`submit_group`](crate::Orchestrator::submit_group): rank 0 is its first member. The parent makes them, with
    /// [`Orchestrator::collectives`](crate::Orchestrator::collectives).
    ///
    /// A task that fails, or is skipped, breaks the group for the members that wait for it; the parent then makes it anew.
    pub fn collectives(&self) -> Result<&'a Collectives<'static>, Failure> {
        let (groups, of_task) = self.collectives.ok_or_else(on_a_chip_only)?;
        groups.of_group(of_task)
    }

    /// The collectives of a domain of this run, made with
    /// [`Orchestrator::domain_collectives`](crate::Orchestrator::domain_collectives).
    pub fn collectives_of(&self, domain: &str) -> Result<&'a Collectives<'static>, Failure> {
        let (groups, _) = self.collectives.ok_or_else(on_a_chip_only)?;
        groups.of_domain(domain)
    }

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
            Failure::new(
                ErrorCode::Invalid,
                format!("there is no scalar {index}; the task has {have}, counted from 0"),
            )
        })
    }

    /// The chip that the task runs on; `None` on a sub-worker.
    pub fn chip(&mut self) -> Option<&mut Chip> {
        self.chip.as_deref_mut()
    }

    /// Copies the elements of tensor `index` out. The tensor must be contiguous and have elements of this
    /// type.
    pub fn read<T: Element>(&self, index: usize) -> Result<Vec<T>, Failure> {
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
    pub fn write<T: Element>(&self, index: usize, elements: &[T]) -> Result<(), Failure> {
        let (addr, count) = self.contiguous::<T>(index)?;
        if elements.len() > count {
            let text = format!(
                "{} elements do not fit into tensor {index} of {count}; write fewer, or pass a longer one",
                elements.len()
            );
            return Err(Failure::new(ErrorCode::Invalid, text));
        }
        let bytes = bytemuck::cast_slice(elements);
        match in_heap(self.heaps, addr, bytes.len()) {
            Some((heap, at)) => heap.write(at, bytes).map_err(|error| region_failure(&error)),
            None => Ok(self.window()?.write(DeviceAddr(addr), bytes)?),
        }
    }

    fn contiguous<T: Element>(&self, index: usize) -> Result<(u64, usize), Failure> {
        let bad = |text: String| Failure::new(ErrorCode::Invalid, text);
        let tensor = self.tensors.get(index).ok_or_else(|| {
            bad(format!("there is no tensor {index}; the task has {}, counted from 0", self.tensors.len()))
        })?;
        let dtype = tensor.dtype().map_err(|error| bad(error.to_string()))?;
        if dtype != T::DTYPE {
            return Err(bad(format!(
                "tensor {index} has elements of {dtype:?}, and the call is for {:?}; use the type of the tensor",
                T::DTYPE
            )));
        }
        if tensor.is_contiguous == 0 {
            return Err(bad(format!("tensor {index} is not contiguous; pass one that is, or use a kernel")));
        }
        let size = dtype.size();
        Ok((tensor.addr + tensor.start_offset * size, tensor.extent as usize))
    }

    fn window(&self) -> Result<&Chip, Failure> {
        let text = "the address is neither in a host buffer nor in a window of this chip; pass a tensor of host_buffer or of a domain";
        self.chip.as_deref().ok_or_else(|| Failure::new(ErrorCode::Invalid, text))
    }
}

fn on_a_chip_only() -> Failure {
    let text =
        "collectives are between chips, and this task does not run on one; submit it with `submit_group`";
    Failure::new(ErrorCode::Invalid, text).in_phase("collectives")
}
