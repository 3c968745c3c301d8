//! Graphs of tasks on the cores of a chip: what a task needs to run them.
//!
//! # Safety
//! Says to the runtime which memory there is: heaps, which stay mapped as long as the process, and windows of this chip and its peers,
//! which stay mapped as long as the communicator; a domain is released by a later command of the parent only. All of it is memory that
//! processes share, to which there are no Rust references.
#![allow(unsafe_code)]

use super::graph_trace::GraphTrace;
use super::heaps::in_heap;
use super::serve::malformed;
use crate::shared::{ChipTrace, ControlBlock};
use chip_bootstrap::Chip;
use chip_runtime::signals::{SignalError, Signals};
use chip_runtime::{ErrorKind, FrontEnd, Graph, Limits, Recording, Runtime, RuntimeError};
use comm_context::abi::{DeviceAddr, TensorDesc};
use comm_context::comm::AllocationId;
use deadline::{Deadline, LONGEST_WAIT};
use fault_points::fault_point;
use shared_memory::Region;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use worker_errors::{ErrorCode, Failure};

/// How long before the end of the Worker's run that of a graph is.
const MARGIN: Duration = Duration::from_millis(100);

/// What stands for the rank in names of files.
const RANK: &str = "{rank}";

/// The runtime of a chip's process, made with its first graph, and the domains that graphs may signal in.
#[derive(Default)]
pub(super) struct ChipGraphs {
    runtime: Option<Runtime>,
    /// The program whose task used the runtime last.
    last_program: Option<u32>,
    signals: Option<Connected>,
    #[cfg(feature = "ascend")]
    pub(super) on_device: Option<super::device_graphs::KeptDevice>,
    pub(super) domains: Vec<GraphDomain>,
    pub(super) trace: Option<GraphTrace>,
    late: Arc<Mutex<Late>>,
    /// The failure of the last task is on record, by the thread that noticed it.
    is_recorded: bool,
}

/// A domain that graphs may signal in.
#[derive(Clone, Debug)]
pub(super) struct GraphDomain {
    pub(super) id: AllocationId,
    /// The same on all chips, and of no other domain of the Worker.
    pub(super) name: String,
    pub(super) context: DeviceAddr,
    /// Ranks of the communicator.
    pub(super) ranks: Vec<u32>,
}

/// Whether the function of a task has not returned when its time is over. Its failure is recorded then by the thread that
/// notices, and otherwise by the one that serves: whoever has this first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Late {
    #[default]
    No,
    /// The task of this number runs graphs, and its failure is not on record.
    Runs(u64),
    Recorded,
}

fn lock(late: &Mutex<Late>) -> MutexGuard<'_, Late> {
    late.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A task as its failure is recorded.
#[derive(Clone, Copy, Debug)]
pub(super) struct TaskPlace {
    pub(super) child: usize,
    pub(super) run: u64,
    pub(super) seq: u64,
    pub(super) program: u32,
}

struct Connected {
    signals: Arc<Signals>,
    has_peers: bool,
}

/// The graphs that were submitted with one: a number, and the ranks of their chips.
#[derive(Clone, Debug, Default)]
pub(super) struct Session {
    number: u64,
    ranks: Vec<u32>,
}

impl Session {
    pub(super) fn decode(blob: &[u8]) -> Option<Self> {
        let (number, ranks) = blob.split_first_chunk::<8>()?;
        Some(Self {
            number: u64::from_le_bytes(*number),
            ranks: ranks.iter().map(|rank| u32::from(*rank)).collect(),
        })
    }

    /// Its number for the `run`-th graph of its task, the same on all chips whose tasks run as many, and the ranks.
    pub(super) fn of_run(&self, run: u64) -> (u64, &[u32]) {
        (self.number << 16 | run, &self.ranks)
    }
}

impl ChipGraphs {
    pub(super) fn new(trace: Option<&ChipTrace>) -> Self {
        Self { trace: trace.cloned().map(GraphTrace::new), ..Self::default() }
    }

    /// Ends the runtime, and writes what its cores did if there is a trace.
    pub(super) fn write_trace(self) -> Result<(), Failure> {
        self.trace.map_or(Ok(()), |trace| trace.write())
    }

    pub(super) fn add_domain(&mut self, domain: GraphDomain) {
        self.domains.push(domain);
    }

    pub(super) fn remove_domain(&mut self, id: AllocationId) {
        if let Some(connected) = &self.signals {
            connected.signals.forget_domains();
        }
        #[cfg(feature = "ascend")]
        if let Some(kept) = &mut self.on_device {
            kept.forget_domains();
        }
        self.domains.retain(|domain| domain.id != id);
    }

    /// The function of a task with graphs has returned. One that was late has failed, and so has one that left a kernel behind.
    pub(super) fn returned(&mut self, returned: Result<(), Failure>) -> Result<(), Failure> {
        self.is_recorded = std::mem::take(&mut *lock(&self.late)) == Late::Recorded;
        self.runtime.iter_mut().for_each(Runtime::forget_own_kernels);
        let late = |text| Err(Failure::new(ErrorCode::TimedOut, text).in_phase("graph"));
        if self.is_recorded {
            return late("the orchestration returned after its time was over");
        }
        if returned.is_ok() && self.runtime.as_ref().is_some_and(Runtime::is_running) {
            return late("a kernel of a graph that has failed has not returned");
        }
        returned
    }

    pub(super) fn was_recorded(&mut self) -> bool {
        std::mem::take(&mut self.is_recorded)
    }

    /// Waits for kernels that have not returned. If they never do, the parent ends this process with the run.
    pub(super) fn await_kernels(&mut self) {
        let Some(runtime) = &mut self.runtime else { return };
        while runtime.is_running() {
            let Ok(long) = Deadline::after(LONGEST_WAIT) else { return };
            runtime.await_kernels(long);
        }
    }

    /// This chip's end of the signals, with the domains that it has now.
    fn signals(&mut self, chip: &Chip, block: &ControlBlock) -> Result<Arc<Signals>, SignalError> {
        let comm = chip.shared_comm();
        let known = self.signals.as_ref().filter(|connected| connected.has_peers == comm.is_some());
        let signals = match (known, comm) {
            (Some(connected), _) => connected.signals.clone(),
            (None, None) => Signals::alone()?,
            (None, Some(comm)) => {
                let (region, at) = block.signal_words();
                Signals::over(region, at, comm)?
            }
        };
        self.signals = Some(Connected { signals: signals.clone(), has_peers: chip.shared_comm().is_some() });
        signals.forget_domains();
        for GraphDomain { name, context, ranks, .. } in &self.domains {
            // SAFETY: see the top of the file; `remove_domain` forgets it.
            unsafe { signals.add_domain(name, *context, ranks) }?;
        }
        Ok(signals)
    }
}

/// What the task of a graph has besides its arguments.
pub(super) struct GraphParts<'a> {
    pub(super) graphs: &'a mut ChipGraphs,
    pub(super) block: &'a Arc<ControlBlock>,
    pub(super) session: &'a [u8],
    pub(super) task: TaskPlace,
}

/// Runs graphs of tasks on the cores of the chip: what the closure of [`register_graph`](crate::Worker::register_graph) gets from
/// [`Task::graphs`](crate::Task::graphs).
///
/// The runtime, with its threads and the kernels that the caller [numbered](Runtime::set_kernel), is kept from task to task as long as
/// its limits stay the same. Kernels that the runtime [numbered itself](Runtime::kernel) are forgotten with the task.
pub struct Graphs<'t> {
    runtime: &'t mut Runtime,
    /// Nobody used the runtime since the last task of this program.
    #[cfg_attr(not(feature = "cxx"), expect(dead_code, reason = "only graphs of objects ask"))]
    is_as_left: bool,
    signals: Arc<Signals>,
    chip: &'t Chip,
    tensors: &'t [TensorDesc],
    heaps: &'t [Arc<Region>],
    deadline: Deadline,
    session: Session,
    runs: u64,
    trace: Option<&'t mut GraphTrace>,
}

impl<'t> Graphs<'t> {
    pub(super) fn new(
        parts: GraphParts<'t>,
        chip: &'t Chip,
        tensors: &'t [TensorDesc],
        heaps: &'t [Arc<Region>],
        limits: &Limits,
    ) -> Result<Self, Failure> {
        if chip.memory().is_some() {
            return Err(invalid(
                "this chip has memory of its own, where kernels do not run in its process: use `device_graphs`, which runs \
                 prebuilt graphs there",
            ));
        }
        let GraphParts { graphs, block, session, task } = parts;
        let session = Session::decode(session).ok_or_else(malformed)?;
        let deadline = run_deadline(block)?;
        let signals = graphs.signals(chip, block).map_err(|error| graph_failure(&error.into()))?;
        if graphs.runtime.as_ref().is_none_or(|runtime| runtime.limits() != limits) {
            graphs.runtime = Some(Runtime::new(limits.clone()).map_err(|error| graph_failure(&error))?);
            graphs.last_program = None;
        }
        let is_as_left = graphs.last_program.replace(task.program) == Some(task.program);
        let Some(runtime) = &mut graphs.runtime else { return Err(malformed()) };
        runtime.connect(signals.clone());
        *lock(&graphs.late) = Late::Runs(task.seq);
        let (late, shared) = (graphs.late.clone(), block.clone());
        let told = runtime.on_overdue(move |error| {
            let mut late = lock(&late);
            if *late == Late::Runs(task.seq) {
                let failure = overdue(&error);
                shared.record_failure(task.child, task.run, task.seq, task.program, Some(&failure));
                *late = Late::Recorded;
                fault_point!("worker.graph.overdue");
                shared.nudge_parent();
            }
        });
        told.map_err(|error| graph_failure(&error))?;
        // The parent replaces this process where a kernel on this thread does not return.
        runtime.use_calling_thread();
        let trace = graphs.trace.as_mut();
        if trace.is_some() {
            runtime.record();
        }
        Ok(Self { runtime, is_as_left, signals, chip, tensors, heaps, deadline, session, runs: 0, trace })
    }

    /// The runtime, to register kernels with.
    pub fn runtime(&mut self) -> &mut Runtime {
        self.runtime
    }

    /// Whether the runtime has the numbered kernels that the last task of this program left, and no others.
    #[cfg(feature = "cxx")]
    pub(crate) fn is_as_left(&self) -> bool {
        self.is_as_left
    }

    /// The signals between this chip and its peers, and where their windows are.
    pub fn signals(&self) -> &Arc<Signals> {
        &self.signals
    }

    /// Tensor `index` of the task.
    pub fn tensor(&self, index: usize) -> Result<TensorDesc, Failure> {
        let have = self.tensors.len();
        self.tensors.get(index).copied().ok_or_else(|| {
            Failure::new(
                ErrorCode::Invalid,
                format!("there is no tensor {index}; the task has {have}, counted from 0"),
            )
        })
    }

    /// Runs a graph to its end, which is at the latest that of the Worker's run. It may use the task's tensors, and all windows of this
    /// chip and its peers.
    #[track_caller]
    pub fn run<T>(
        &mut self,
        front_end: FrontEnd,
        orchestration: impl FnOnce(&mut Graph<'_>) -> Result<T, RuntimeError>,
    ) -> Result<T, Failure> {
        let memory = self.memory()?;
        self.runs += 1;
        let (session, ranks) = self.session.of_run(self.runs);
        self.runtime.session(session, ranks);
        fault_point!("worker.graph.run");
        let ended = self.runtime.run(front_end, self.deadline, |graph| {
            for part in &memory {
                // SAFETY: see the top of the file; `memory` names heaps and windows only.
                unsafe { graph.import_raw(part) };
            }
            fault_point!("worker.graph.build");
            orchestration(graph)
        });
        fault_point!("worker.graph.ended");
        if let (Some(trace), Some(recording)) = (&mut self.trace, self.runtime.recording()) {
            trace.add(recording);
        }
        ended.map_err(|error| {
            if is_late(&error) && self.runtime.is_running() {
                return overdue(&error);
            }
            let failure = graph_failure(&error);
            if is_late(&error) {
                // It waited for a chip whose kernel may not have returned: the failure of that one is to be the first.
                std::thread::sleep(MARGIN.min(self.deadline.limit() / 10) / 2);
            }
            failure
        })
    }

    /// Writes the graph of the last run to a file, for Graphviz; the runtime must [record](Runtime::record) it. `{rank}` in the
    /// file's name is the chip's rank; without it, only chip `shown` writes.
    pub fn write_dot(&self, file: &Path, shown: u32) -> Result<(), Failure> {
        write_dot(self.runtime.recording().as_ref(), self.signals.rank(), file, shown)
    }

    /// Memory that graphs may use, as descriptors of bytes.
    fn memory(&self) -> Result<Vec<TensorDesc>, Failure> {
        let mut memory = Vec::new();
        for (index, tensor) in self.tensors.iter().enumerate() {
            let in_heap = in_heap(self.heaps, tensor.addr, tensor.size as usize).is_some();
            if !in_heap && !self.signals.table().holds(tensor.addr, tensor.size) {
                let text = format!(
                    "tensor {index} lies neither in a host buffer nor in a window of chip {}; pass one of host_buffer or of a domain",
                    self.chip.device_id()
                );
                return Err(Failure::new(ErrorCode::Invalid, text).in_phase("graph"));
            }
            memory.push(*tensor);
        }
        memory.extend(self.signals.table().windows());
        Ok(memory)
    }
}

/// Writes a recorded graph to a file, as [`Graphs::write_dot`] says.
pub(super) fn write_dot(
    recording: Option<&Recording>,
    rank: u32,
    file: &Path,
    shown: u32,
) -> Result<(), Failure> {
    let name = file.to_string_lossy();
    if rank != shown && !name.contains(RANK) {
        return Ok(());
    }
    let name = name.replace(RANK, &rank.to_string());
    let failed = |text: String| Failure::new(ErrorCode::System, text).in_phase("graph");
    let recording = recording.ok_or_else(|| {
        failed(format!("{name}: the run was not recorded; call `record` of the runtime before it"))
    })?;
    std::fs::write(&name, recording.dot()).map_err(|error| failed(format!("{name}: {error}")))
}

/// When the graphs of a run end at the latest.
pub(super) fn run_deadline(block: &ControlBlock) -> Result<Deadline, Failure> {
    let deadline = Deadline::at_monotonic_ns(block.run_deadline());
    let deadline = deadline.map_err(|late| Failure::new(ErrorCode::TimedOut, late.to_string()))?;
    // Before the parent's: this failure names the kernels that ran.
    let margin = MARGIN.min(deadline.left() / 10);
    Ok(Deadline::since(deadline.start_ns(), deadline.limit().saturating_sub(margin)))
}

pub(super) fn invalid(text: &str) -> Failure {
    Failure::new(ErrorCode::Invalid, text).in_phase("graph")
}

fn is_late(error: &RuntimeError) -> bool {
    matches!(
        error.kind,
        ErrorKind::TimedOut { .. }
            | ErrorKind::DataTimedOut { .. }
            | ErrorKind::Signal { cause: ErrorCode::TimedOut, .. }
    )
}

/// The failure of a graph of which a kernel, or the orchestration, has not returned.
fn overdue(error: &RuntimeError) -> Failure {
    let mut failure = graph_failure(error);
    if is_late(error) {
        failure.message += "; a kernel that does not return cannot be stopped: unless it does, the process of this chip ends \
                            with the run";
    }
    failure
}

/// A failure of a graph as that of its task, with the code that C callers know it by.
pub(super) fn graph_failure(error: &RuntimeError) -> Failure {
    let code = match &error.kind {
        ErrorKind::TimedOut { .. } | ErrorKind::DataTimedOut { .. } | ErrorKind::NotReturned { .. } => {
            ErrorCode::TimedOut
        }
        ErrorKind::Panicked(_) => ErrorCode::Panic,
        ErrorKind::HeapMemory { .. } => ErrorCode::OutOfMemory,
        ErrorKind::Signal { cause, .. } => *cause,
        ErrorKind::Argument(_) | ErrorKind::Limit { .. } => ErrorCode::Invalid,
        _ => ErrorCode::Task,
    };
    let advice = match &error.kind {
        ErrorKind::StillRunning { .. } => "; close the Worker and initialise it again",
        _ => "",
    };
    Failure::new(code, format!("{error}{advice}; graph code {}", error.code())).in_phase("graph")
}
