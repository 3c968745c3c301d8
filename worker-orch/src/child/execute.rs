//! What a hand does with its frames: on a chip, on a sub-worker, and on a Worker of the next level.

use crate::board::Board;
use crate::frame::{Kind, Received};
use crate::program::{Definition, Functions, Programs};
use crate::serve::Executor;
use crate::task::Task;
use crate::worker::Worker;
use chip_bootstrap::{Chip, Entry, Kernel};
use comm_context::comm::{AllocationId, DomainSpec, Membership, Timeout};
use deadline::Deadline;
use fault_points::fault_point;
use shared_memory::Region;
use std::sync::Arc;
use std::time::Duration;
use worker_errors::{ErrorCode, Failure};

/// A program that is ready to run in this process.
enum Ready {
    Kernel(Kernel),
    Function(crate::program::TaskFn),
    Orchestration(crate::program::OrchestrationFn),
    /// Not prepared yet; kernels are loaded at first use.
    NotYet(Definition),
}

/// The programs that a hand knows.
struct Known {
    programs: Vec<Ready>,
    functions: Functions,
}

impl Known {
    fn new(programs: &Programs) -> Self {
        let functions = programs.functions.clone();
        Self { programs: programs.iter().cloned().map(Ready::NotYet).collect(), functions }
    }

    fn learn(&mut self, frame: &Received) -> Result<(), Failure> {
        let definition = Definition::decode(&frame.blob).ok_or_else(nonsense)?;
        fault_point!("worker.learn");
        self.programs.push(Ready::NotYet(definition));
        Ok(())
    }

    /// The program of a task, prepared.
    fn ready(
        &mut self,
        frame: &Received,
        load: impl FnOnce(&Definition) -> Result<Ready, Failure>,
    ) -> Result<&Ready, Failure> {
        let slot = self.programs.get_mut(frame.program as usize).ok_or_else(nonsense)?;
        if let Ready::NotYet(definition) = slot {
            let ready = match definition {
                Definition::Function { name, address } => {
                    Ready::Function(self.functions.task(name, *address)?)
                }
                Definition::Orchestration { address, .. } => {
                    let function = self.functions.orchestration(*address);
                    Ready::Orchestration(function.ok_or_else(|| wrong_hand("an orchestration", "this hand"))?)
                }
                kernel @ Definition::Kernel { .. } => load(kernel)?,
            };
            *slot = ready;
        }
        Ok(slot)
    }
}

/// A chip's hand.
pub(crate) struct ChipExecutor {
    pub(crate) chip: Chip,
    known: Known,
    heaps: Vec<Arc<Region>>,
    base: Option<(Entry, Membership)>,
}

impl ChipExecutor {
    /// `base` is the group of all chips of the Worker, and this chip's place in it, for domains on chips without a configuration.
    pub(crate) fn new(
        chip: Chip,
        programs: &Programs,
        heaps: Vec<Arc<Region>>,
        base: Option<(Entry, Membership)>,
    ) -> Self {
        Self { chip, known: Known::new(programs), heaps, base }
    }

    fn run(&mut self, frame: &Received) -> Result<(), Failure> {
        let chip = &mut self.chip;
        let ready = self.known.ready(frame, |definition| match definition {
            Definition::Kernel { path, symbol } => Ok(Ready::Kernel(chip.load(path, symbol)?)),
            _ => Err(nonsense()),
        })?;
        fault_point!("worker.task.before-program");
        match ready {
            Ready::Kernel(kernel) => {
                self.chip.launch(*kernel, &frame.tensors, &frame.scalars, &self.heaps)?
            }
            Ready::Function(function) => function(&mut Task {
                tensors: &frame.tensors,
                scalars: &frame.scalars,
                chip: Some(&mut self.chip),
                heaps: &self.heaps,
            })?,
            Ready::Orchestration(_) | Ready::NotYet(_) => {
                return Err(wrong_hand("an orchestration", "a chip"));
            }
        }
        fault_point!("worker.task.after-program");
        Ok(self.chip.flush_outputs()?)
    }

    fn alloc_domain(&mut self, frame: &Received) -> Result<Vec<u8>, Failure> {
        let &[id, size, position] = frame.scalars.as_slice() else { return Err(nonsense()) };
        let ranks: Vec<u32> = frame.blob.iter().map(|rank| u32::from(*rank)).collect();
        let spec = DomainSpec {
            id: AllocationId(id),
            ranks: &ranks,
            domain_rank: position as u32,
            window_size: size as usize,
        };
        fault_point!("worker.domain.allocate");
        let window = self.chip.alloc_domain(&spec)?;
        fault_point!("worker.domain.allocated");
        Ok([window.context.0, window.base.0, window.size as u64].map(u64::to_le_bytes).concat())
    }
}

impl Executor for ChipExecutor {
    fn execute(&mut self, frame: &Received) -> Result<Vec<u8>, Failure> {
        match frame.kind {
            Some(Kind::Task) => self.run(frame).map(|()| Vec::new()),
            Some(Kind::Learn) => self.known.learn(frame).map(|()| Vec::new()),
            Some(Kind::Join) => {
                let (entry, me) = self.base.clone().ok_or_else(nonsense)?;
                fault_point!("worker.join");
                self.chip.ensure_communicator(&entry, me)?;
                Ok(Vec::new())
            }
            Some(Kind::AllocDomain) => self.alloc_domain(frame),
            Some(Kind::ReleaseDomain) => {
                let &[id] = frame.scalars.as_slice() else { return Err(nonsense()) };
                fault_point!("worker.domain.release");
                self.chip.release_domain(AllocationId(id))?;
                Ok(Vec::new())
            }
            Some(Kind::Malloc | Kind::Free | Kind::CopyIn | Kind::CopyOut) => {
                crate::device_memory::execute(&self.chip, frame, &self.heaps)
            }
            Some(Kind::Shutdown) | None => Err(nonsense()),
        }
    }
}

/// A sub-worker's hand: Rust functions on the host.
pub(crate) struct SubExecutor {
    known: Known,
    heaps: Vec<Arc<Region>>,
}

impl SubExecutor {
    pub(crate) fn new(programs: &Programs, heaps: Vec<Arc<Region>>) -> Self {
        Self { known: Known::new(programs), heaps }
    }
}

impl Executor for SubExecutor {
    fn execute(&mut self, frame: &Received) -> Result<Vec<u8>, Failure> {
        match frame.kind {
            Some(Kind::Task) => {
                let ready = self.known.ready(frame, |_| Err(wrong_hand("a kernel", "a sub-worker")))?;
                let Ready::Function(function) = ready else {
                    return Err(wrong_hand("that program", "a sub-worker"));
                };
                fault_point!("worker.task.before-program");
                function(&mut Task {
                    tensors: &frame.tensors,
                    scalars: &frame.scalars,
                    chip: None,
                    heaps: &self.heaps,
                })?;
                fault_point!("worker.task.after-program");
                Ok(Vec::new())
            }
            Some(Kind::Learn) => self.known.learn(frame).map(|()| Vec::new()),
            _ => Err(nonsense()),
        }
    }
}

/// The hand of a Worker of the next level: it gives its tasks to its own chips.
pub(crate) struct WorkerExecutor<'a> {
    worker: &'a mut Worker,
    board: &'a Board,
    known: Known,
    heaps: Vec<Arc<Region>>,
}

impl<'a> WorkerExecutor<'a> {
    pub(crate) fn new(
        worker: &'a mut Worker,
        board: &'a Board,
        programs: &Programs,
        heaps: Vec<Arc<Region>>,
    ) -> Self {
        Self { worker, board, known: Known::new(programs), heaps }
    }
}

impl Executor for WorkerExecutor<'_> {
    fn execute(&mut self, frame: &Received) -> Result<Vec<u8>, Failure> {
        match frame.kind {
            Some(Kind::Task) => {
                let ready =
                    self.known.ready(frame, |_| Err(wrong_hand("a kernel", "a Worker of Workers")))?;
                let Ready::Orchestration(function) = *ready else {
                    return Err(wrong_hand("that program", "a Worker of Workers"));
                };
                let task =
                    Task { tensors: &frame.tensors, scalars: &frame.scalars, chip: None, heaps: &self.heaps };
                fault_point!("worker.task.before-program");
                // F07: over before the run above is, so that what went wrong here is told and not only that something did.
                let own = self.worker.run_within;
                let above = Deadline::at_monotonic_ns(self.board.run().until_ns.load());
                self.worker.run_within = inside_of(above.map_or(Duration::ZERO, |above| above.left()), own);
                let ran = self.worker.run(|orch| function(orch, &task));
                self.worker.run_within = own;
                ran?;
                fault_point!("worker.task.after-program");
                Ok(Vec::new())
            }
            Some(Kind::Learn) => self.known.learn(frame).map(|()| Vec::new()),
            _ => Err(nonsense()),
        }
    }
}

/// A limit for what runs inside something that has `left` to go: what it may take itself, and a moment less than that.
pub(crate) fn inside_of(left: Duration, own: Timeout) -> Timeout {
    let inner = left.saturating_sub((left / 4).min(MOMENT)).max(Duration::from_millis(1));
    if inner < own.get() { Timeout::new(inner).unwrap_or(own) } else { own }
}

/// What it takes to tell a failure from one level to the next, at most.
const MOMENT: Duration = Duration::from_secs(5);

fn wrong_hand(what: &str, hand: &str) -> Failure {
    Failure::new(
        ErrorCode::Invalid,
        format!("{what} cannot run on {hand}; see Worker::register_* for what runs where"),
    )
}

/// The parent wrote a frame that this hand does not understand.
pub(crate) fn nonsense() -> Failure {
    Failure::new(ErrorCode::Protocol, "the frame makes no sense to this hand")
}
