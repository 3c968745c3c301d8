//! Prebuilt graphs on the device of a chip.
//!
//! # Safety
//! Says to the runtime which host memory there is: heaps, which stay mapped as long as the process, and to which there are no Rust
//! references.
#![allow(unsafe_code)]

use super::graph_trace::GraphTrace;
use super::graphs::{GraphDomain, GraphParts, Session, invalid, run_deadline, write_dot};
use super::heaps::in_heap;
use super::serve::malformed;
use crate::shared::ControlBlock;
use chip_bootstrap::{Chip, ChipError};
use chip_runtime::on_device::{DeviceGraph, GraphDevice, OnDeviceError};
use chip_runtime::signals::Domain;
use chip_runtime::{FrontEnd, KernelId};
use comm_context::abi::{DeviceAddr, TensorDesc};
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
        block: &ControlBlock,
        domains: &[GraphDomain],
    ) -> Result<(), Failure> {
        let device = chip.ascend_device().ok_or_else(|| {
            invalid("this chip has no device, where graphs could run: use `graphs`, which runs them in its process")
        })?;
        device.bind_thread().map_err(ChipError::from)?;
        let failed = |error| failure(&error);
        let this = match kept {
            Some(this) => this,
            none => {
                let graphs = GraphDevice::new(&device).map_err(failed)?;
                none.insert(Self { graphs, kernels: Vec::new(), has_peers: false })
            }
        };
        if let Some(comm) = chip.shared_comm().filter(|_| !this.has_peers) {
            let (words, at) = block.signal_words();
            this.graphs.connect(comm).and_then(|()| this.graphs.exchange_over(words, at)).map_err(failed)?;
            this.has_peers = true;
        }
        this.graphs.forget_domains();
        for GraphDomain { name, context, ranks, .. } in domains {
            this.graphs.add_domain(name, *context, ranks).map_err(failed)?;
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
/// Graphs may use the tensors of the task and the windows of this chip and its peers. What tasks use of tensors in host memory is copied
/// to the device before a graph starts, and what they write copied back when it has ended well.
#[derive(Debug)]
pub struct DeviceGraphs<'t> {
    kept: &'t mut KeptDevice,
    tensors: &'t [TensorDesc],
    heaps: &'t [Arc<Region>],
    deadline: Deadline,
    session: Session,
    /// In the communicator; 0 without one.
    rank: u32,
    runs: u64,
    trace: Option<&'t mut GraphTrace>,
}

impl<'t> DeviceGraphs<'t> {
    pub(super) fn new(
        parts: GraphParts<'t>,
        chip: &'t Chip,
        tensors: &'t [TensorDesc],
        heaps: &'t [Arc<Region>],
    ) -> Result<Self, Failure> {
        let GraphParts { graphs, block, session, .. } = parts;
        let session = Session::decode(session).ok_or_else(malformed)?;
        let deadline = run_deadline(block)?;
        KeptDevice::update(&mut graphs.on_device, chip, block, &graphs.domains)?;
        let kept = graphs.on_device.as_mut().ok_or_else(malformed)?;
        let trace = graphs.trace.as_mut();
        if trace.is_some() {
            kept.graphs.record();
        }
        let rank = chip.shared_comm().map_or(0, |comm| comm.rank());
        Ok(Self { kept, tensors, heaps, deadline, session, rank, runs: 0, trace })
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

    /// The same under a number of the caller's. The kernel that had it before is not there any more.
    pub fn set_kernel(&mut self, id: KernelId, path: &Path, symbol: &str) -> Result<(), Failure> {
        let entry = (path.to_owned(), symbol.to_owned(), id);
        if !self.kept.kernels.contains(&entry) {
            self.kept.kernels.retain(|(.., known)| *known != id);
            self.kept.graphs.set_kernel(id, path, symbol).map_err(|error| failure(&error))?;
            self.kept.kernels.push(entry);
        }
        Ok(())
    }

    /// Tensor `index` of the task.
    pub fn tensor(&self, index: usize) -> Result<TensorDesc, Failure> {
        let have = self.tensors.len();
        let known = self.tensors.get(index).copied();
        known.ok_or_else(|| {
            invalid(&format!("there is no tensor {index}; the task has {have}, counted from 0"))
        })
    }

    /// Records the graphs that follow and what runs when, with the times of the host: see [`GraphDevice::record`].
    pub fn record(&mut self) {
        self.kept.graphs.record();
    }

    #[cfg(feature = "cxx")]
    pub(crate) fn is_recorded(&self) -> bool {
        self.kept.graphs.recording().is_some()
    }

    /// Writes the graph of the last run, which was [recorded](Self::record), to a file: see
    /// [`Graphs::write_dot`](crate::Graphs::write_dot).
    pub fn write_dot(&self, file: &Path, shown: u32) -> Result<(), Failure> {
        write_dot(self.kept.graphs.recording(), self.rank, file, shown)
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
        self.run_in(FrontEnd::Prebuilt, orchestration)
    }

    /// The same for a front end that was asked for: every other one is refused.
    #[track_caller]
    pub(crate) fn run_in<T>(
        &mut self,
        front_end: FrontEnd,
        orchestration: impl FnOnce(&mut DeviceGraph<'_>) -> Result<T, OnDeviceError>,
    ) -> Result<T, Failure> {
        self.runs += 1;
        let (session, ranks) = self.session.of_run(self.runs);
        self.kept.graphs.session(session, ranks);
        let is_host = |tensor: &TensorDesc| in_heap(self.heaps, tensor.addr, tensor.size as usize).is_some();
        fault_point!("worker.graph.run");
        let ended = self.kept.graphs.run(front_end, self.deadline, |graph| {
            for tensor in self.tensors {
                if is_host(tensor) {
                    // SAFETY: see the top of the file.
                    unsafe { graph.import_host_raw(tensor) }?;
                } else {
                    graph.import_raw(tensor);
                }
            }
            orchestration(graph)
        });
        if let (Some(trace), Some(recording)) = (&mut self.trace, self.kept.graphs.recording()) {
            trace.add(recording.clone());
        }
        ended.map_err(|error| failure(&error))
    }
}

/// A failure of a graph on a device as that of its task.
fn failure(error: &OnDeviceError) -> Failure {
    let code = match error {
        OnDeviceError::Graph(error) => format!("; graph code {}", error.code()),
        _ => String::new(),
    };
    Failure::new(error.cause(), format!("{error}{code}")).in_phase("graph")
}
