//! What a chip's process does with its frames.

use super::collectives::ChipCollectives;
use super::heaps::in_heap;
use super::loaded::{Loaded, LoadedPrograms, cannot_run};
use super::serve::{Executor, malformed};
use super::task::Task;
use crate::shared::{ChildContext, ControlBlock, Kind, ReceivedFrame};
use chip_bootstrap::{Chip, Entry, region_failure};
use comm_context::abi::DeviceAddr;
use comm_context::comm::{AllocationId, DomainSpec, Membership};
use deadline::Deadline;
use fault_points::fault_point;
use shared_memory::Region;
use std::sync::Arc;
use worker_errors::Failure;

pub(super) struct ChipExecutor<'a> {
    // Dropped before the chip, whose communicator it uses.
    collectives: ChipCollectives,
    chip: Chip,
    programs: LoadedPrograms<'a>,
    heaps: &'a [Arc<Region>],
    block: &'a ControlBlock,
    base: Option<(Entry, Membership)>,
}

impl<'a> ChipExecutor<'a> {
    /// `base` is the group of all chips of the Worker and this chip's place in it, for domains of chips that
    /// were configured without a communicator.
    pub(super) fn new(chip: Chip, context: &ChildContext<'a>, base: Option<(Entry, Membership)>) -> Self {
        Self {
            collectives: ChipCollectives::default(),
            chip,
            programs: LoadedPrograms::new(context),
            heaps: context.heaps,
            block: context.block,
            base,
        }
    }

    pub(super) fn tear_down(mut self) -> Result<(), Failure> {
        self.collectives = ChipCollectives::default();
        Ok(self.chip.tear_down()?)
    }

    fn run(&mut self, frame: &ReceivedFrame) -> Result<(), Failure> {
        let chip = &mut self.chip;
        let program = self.programs.of_task(frame, |path, symbol| Ok(chip.load(path, symbol)?))?;
        fault_point!("worker.task.before-program");
        match program {
            Loaded::Kernel(kernel) => {
                let until = Deadline::at_monotonic_ns(self.block.run_deadline());
                self.chip.limit_kernels(until.ok().map(|until| until.left()));
                self.chip.launch(*kernel, frame.blocks, &frame.tensors, &frame.scalars, self.heaps)?
            }
            Loaded::Function(function) => {
                function(&mut Task::on_chip(frame, self.heaps, &mut self.chip, &self.collectives))?;
            }
            Loaded::Closure(closure) => {
                closure(&mut Task::on_chip(frame, self.heaps, &mut self.chip, &self.collectives))?;
            }
            Loaded::Orchestration(_) => return Err(cannot_run("an orchestration", "a chip")),
        }
        fault_point!("worker.task.after-program");
        Ok(self.chip.flush_outputs()?)
    }

    fn register(&mut self, frame: &ReceivedFrame) -> Result<(), Failure> {
        let chip = &mut self.chip;
        self.programs.register(frame, |kernel| chip.unload(kernel))
    }

    fn join(&mut self) -> Result<(), Failure> {
        let (entry, me) = self.base.clone().ok_or_else(malformed)?;
        fault_point!("worker.join");
        self.chip.ensure_communicator(&entry, me)?;
        Ok(())
    }

    fn alloc_domain(&mut self, frame: &ReceivedFrame) -> Result<Vec<u8>, Failure> {
        let &[id, size, position] = frame.scalars.as_slice() else { return Err(malformed()) };
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

    fn release_domain(&mut self, frame: &ReceivedFrame) -> Result<(), Failure> {
        let &[id] = frame.scalars.as_slice() else { return Err(malformed()) };
        fault_point!("worker.domain.release");
        Ok(self.chip.release_domain(AllocationId(id))?)
    }

    /// Commands on memory of the device's own, which the parent cannot map.
    fn memory_command(&self, frame: &ReceivedFrame) -> Result<Vec<u8>, Failure> {
        let memory = || self.chip.memory().ok_or_else(malformed);
        match (frame.kind, frame.scalars.as_slice()) {
            (Some(Kind::Malloc), &[len]) => {
                fault_point!("worker.malloc");
                Ok(memory()?.allocate(len as usize)?.0.to_le_bytes().to_vec())
            }
            (Some(Kind::Free), &[addr]) => {
                fault_point!("worker.free");
                memory()?.free(DeviceAddr(addr))?;
                Ok(Vec::new())
            }
            (Some(Kind::CopyIn), &[to, from, len]) => {
                let (heap, at) = in_heap(self.heaps, from, len as usize).ok_or_else(malformed)?;
                let mut bytes = vec![0; len as usize];
                heap.read(at, &mut bytes).map_err(|error| region_failure(&error))?;
                fault_point!("worker.copy-in");
                self.chip.write(DeviceAddr(to), &bytes)?;
                Ok(Vec::new())
            }
            (Some(Kind::CopyOut), &[from, to, len]) => {
                let (heap, at) = in_heap(self.heaps, to, len as usize).ok_or_else(malformed)?;
                let mut bytes = vec![0; len as usize];
                self.chip.read(DeviceAddr(from), &mut bytes)?;
                fault_point!("worker.copy-out");
                heap.write(at, &bytes).map_err(|error| region_failure(&error))?;
                Ok(Vec::new())
            }
            _ => Err(malformed()),
        }
    }
}

impl Executor for ChipExecutor<'_> {
    fn execute(&mut self, frame: &ReceivedFrame) -> Result<Vec<u8>, Failure> {
        let empty = |()| Vec::new();
        match frame.kind {
            Some(Kind::Task) => self.run(frame).map(empty),
            Some(Kind::Register) => self.register(frame).map(empty),
            Some(Kind::Join) => self.join().map(empty),
            Some(Kind::AllocDomain) => self.alloc_domain(frame),
            Some(Kind::ReleaseDomain) => self.release_domain(frame).map(empty),
            Some(Kind::MakeCollectives) => self.collectives.make(frame, &self.chip).map(empty),
            Some(Kind::CloseCollectives) => self.collectives.close(frame).map(empty),
            Some(Kind::Malloc | Kind::Free | Kind::CopyIn | Kind::CopyOut) => self.memory_command(frame),
            Some(Kind::Shutdown | Kind::Wait) | None => Err(malformed()),
        }
    }

    fn not_done(&mut self) {
        self.collectives.give_up();
    }
}
