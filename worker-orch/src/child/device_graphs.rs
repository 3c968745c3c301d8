//! Prebuilt graphs on the device of a chip.

use super::graphs::{GraphParts, invalid, run_deadline};
use super::heaps::in_heap;
use chip_bootstrap::{Chip, ChipError};
use chip_runtime::on_device::{DeviceGraph, GraphDevice, OnDeviceError};
use chip_runtime::signals::Domain;
use chip_runtime::{FrontEnd, KernelId};
use comm_context::abi::{DeviceAddr, TensorDesc};
use comm_context::comm::AllocationId;
use deadline::Deadline;
use fault_points::fault_point;
use shared_memory::Region;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use worker_errors::Failure;

/// The streams and kernels of a chip's graphs, made with the first and kept from task to task.
#[derive(Debug)]
pub(super) struct KeptDevice {
    graphs: GraphDevice,
    kernels: Vec<(PathBuf, String, KernelId)>,
    has_peers: bool,
}

impl KeptDevice {
    /// For a chip, with the domains that it has now.
    fn update(
        kept: &mut Option<Self>,
        chip: &Chip,
        domains: &[(AllocationId, DeviceAddr, Vec<u32>)],
    ) -> Result<(), Failure> {
        let device = chip.ascend_device().ok_or_else(|| {
            invalid("this chip has no device, where graphs could run: use `graphs`, which runs them in its process")
        })?;
        device.bind_thread().map_err(ChipError::from)?;
        let this = match kept {
            Some(this) => this,
            none => {
                let graphs = GraphDevice::new(&device).map_err(|error| failure(&error))?;
                none.insert(Self { graphs, kernels: Vec::new(), has_peers: false })
            }
        };
        if let Some(comm) = chip.shared_comm().filter(|_| !this.has_peers) {
            this.graphs.connect(comm).map_err(|error| failure(&error))?;
            this.has_peers = true;
        }
        this.graphs.forget_domains();
        for (id, context, ranks) in domains {
            let added = this.graphs.add_domain(&id.0.to_string(), *context, ranks);
            added.map_err(|error| failure(&error))?;
        }
        Ok(())
    }

    pub(super) fn forget_domains(&mut self) {
        self.graphs.forget_domains();
    }
}

/// Runs prebuilt graphs of tasks on the device of a chip, driven from its process: what the closure of
/// [`register_graph`](crate::Worker::register_graph) gets from [`Task::device_graphs`](crate::Task::device_graphs).
///
/// Graphs may use the windows of this chip and its peers, and those tensors of the task that are not in host memory.
#[derive(Debug)]
pub struct DeviceGraphs<'t> {
    kept: &'t mut KeptDevice,
    tensors: &'t [TensorDesc],
    heaps: &'t [Arc<Region>],
    deadline: Deadline,
}

impl<'t> DeviceGraphs<'t> {
    pub(super) fn new(
        parts: GraphParts<'t>,
        chip: &'t Chip,
        tensors: &'t [TensorDesc],
        heaps: &'t [Arc<Region>],
    ) -> Result<Self, Failure> {
        let deadline = run_deadline(parts.block)?;
        let graphs = parts.graphs;
        KeptDevice::update(&mut graphs.on_device, chip, &graphs.domains)?;
        let kept = graphs.on_device.as_mut().ok_or_else(super::serve::malformed)?;
        Ok(Self { kept, tensors, heaps, deadline })
    }

    /// The kernel `symbol` of a binary for the device, which is loaded once.
    pub fn kernel(&mut self, path: &Path, symbol: &str) -> Result<KernelId, Failure> {
        let known = self.kept.kernels.iter().find(|(file, name, _)| file == path && name == symbol);
        if let Some((.., kernel)) = known {
            return Ok(*kernel);
        }
        let kernel = self.kept.graphs.kernel(path, symbol).map_err(|error| failure(&error))?;
        self.kept.kernels.push((path.to_owned(), symbol.to_owned(), kernel));
        Ok(kernel)
    }

    /// The domain whose `CommContext` is at `context`.
    pub fn domain(&self, context: DeviceAddr) -> Option<Domain> {
        self.kept.graphs.domain(context)
    }

    /// Runs a graph to its end, which is at the latest that of the Worker's run.
    #[track_caller]
    pub fn run<T>(
        &mut self,
        orchestration: impl FnOnce(&mut DeviceGraph<'_>) -> Result<T, OnDeviceError>,
    ) -> Result<T, Failure> {
        let is_host = |tensor: &TensorDesc| in_heap(self.heaps, tensor.addr, tensor.size as usize).is_some();
        fault_point!("worker.graph.run");
        let ended = self.kept.graphs.run(FrontEnd::Prebuilt, self.deadline, |graph| {
            self.tensors.iter().filter(|tensor| !is_host(tensor)).for_each(|tensor| graph.import_raw(tensor));
            orchestration(graph)
        });
        ended.map_err(|error| failure(&error))
    }
}

/// A failure of a graph on a device as that of its task.
fn failure(error: &OnDeviceError) -> Failure {
    Failure::new(error.cause(), error.to_string()).in_phase("graph")
}
