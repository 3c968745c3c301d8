//! What a chip's process does with its frames.

use super::check::Checks;
use super::collectives::ChipCollectives;
use super::graphs::{ChipGraphs, GraphDomain, GraphParts, TaskPlace};
use super::heaps::in_heap;
use super::loaded::{Loaded, LoadedPrograms, cannot_run};
use super::serve::{Executor, malformed};
use super::task::Task;
use crate::shared::{ChildContext, ChipTrace, ControlBlock, Kind, ReceivedFrame};
use chip_bootstrap::{Buffer, Chip, Entry, region_failure};
use comm_context::abi::DeviceAddr;
use comm_context::comm::{AllocationId, DomainSpec, Membership};
use deadline::Deadline;
use fault_points::fault_point;
use shared_memory::Region;
use std::sync::Arc;
use worker_errors::Failure;

/// Whether the buffers of a chip's window lie between guard pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Checked {
    No,
    Yes,
}

pub(super) struct ChipExecutor<'a> {
    // Dropped before the chip, whose communicator they use.
    collectives: ChipCollectives,
    graphs: ChipGraphs,
    chip: Chip,
    programs: LoadedPrograms<'a>,
    heaps: &'a [Arc<Region>],
    block: &'a Arc<ControlBlock>,
    base: Option<(Entry, Membership)>,
    checks: Checks,
    number: usize,
}

impl<'a> ChipExecutor<'a> {
    /// `base` is the group of all chips of the Worker and this chip's place in it, for domains of chips that
    /// were configured without a communicator.
    pub(super) fn new(
        chip: Chip,
        context: &ChildContext<'a>,
        base: Option<(Entry, Membership)>,
        checked: Checked,
        trace: Option<&ChipTrace>,
    ) -> Result<Self, Failure> {
        let mut checks = Checks::default();
        if checked == Checked::Yes {
            let bytes = |buffer: &Buffer| buffer.addr.0..buffer.addr.0 + buffer.bytes as u64;
            let buffers = chip
                .buffers()
                .iter()
                .map(|buffer| (format!("`{}` of the window", buffer.name), bytes(buffer)));
            checks.add_window(&chip, None, buffers)?;
        }
        Ok(Self {
            collectives: ChipCollectives::default(),
            graphs: ChipGraphs::new(trace),
            chip,
            programs: LoadedPrograms::new(context),
            heaps: context.heaps,
            block: context.block,
            base,
            checks,
            number: context.number,
        })
    }

    pub(super) fn tear_down(mut self) -> Result<(), Failure> {
        self.collectives = ChipCollectives::default();
        let traced = std::mem::take(&mut self.graphs).write_trace();
        self.chip.tear_down()?;
        traced
    }

    fn run(&mut self, frame: &ReceivedFrame) -> Result<(), Failure> {
        let chip = &mut self.chip;
        let program = self.programs.of_task(frame, |path, symbol| Ok(chip.load(path, symbol)?))?;
        fault_point!("worker.task.before-program");
        let armed = self.checks.arm(self.heaps)?;
        let returned = match program {
            Loaded::Kernel(kernel) => {
                let until = Deadline::at_monotonic_ns(self.block.run_deadline());
                self.chip.limit_kernels(until.ok().map(|until| until.left()));
                let launched =
                    self.chip.launch(*kernel, frame.blocks, &frame.tensors, &frame.scalars, self.heaps);
                launched.map_err(Failure::from)
            }
            Loaded::Function(function) => {
                function(&mut Task::on_chip(frame, self.heaps, &mut self.chip, &self.collectives))
            }
            Loaded::Closure(closure) => {
                let seq = self.block.child(self.number).task_number();
                let place = TaskPlace { child: self.number, run: frame.run, seq, program: frame.program };
                let (graphs, block) = (&mut self.graphs, self.block);
                let parts = GraphParts { graphs, block, session: &frame.blob, task: place };
                let task = Task::on_chip(frame, self.heaps, &mut self.chip, &self.collectives);
                // The parent sends a session to graphs only.
                let parts = Some(parts).filter(|parts| !parts.session.is_empty());
                let runs_graphs = parts.is_some();
                let returned = closure(&mut task.with_graphs(parts));
                if runs_graphs { self.graphs.returned(returned) } else { returned }
            }
            Loaded::Orchestration(_) => Err(cannot_run("an orchestration", "a chip")),
        };
        match armed {
            None => returned?,
            Some(armed) => {
                let task = self.block.child(self.number).task_number();
                self.checks.finish(armed, self.heaps, Some(&self.chip), task, returned)?;
            }
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
        let &[id, size, position, ref checked @ ..] = frame.scalars.as_slice() else {
            return Err(malformed());
        };
        let (count, members) = frame.blob.split_first().ok_or_else(malformed)?;
        let (ranks, name) = members.split_at_checked(usize::from(*count)).ok_or_else(malformed)?;
        let (ranks, name): (Vec<u32>, _) =
            (ranks.iter().copied().map(u32::from).collect(), String::from_utf8_lossy(name));
        let spec = DomainSpec {
            id: AllocationId(id),
            ranks: &ranks,
            domain_rank: position as u32,
            window_size: size as usize,
        };
        fault_point!("worker.domain.allocate");
        let window = self.chip.alloc_domain(&spec)?;
        self.graphs.add_domain(GraphDomain {
            id: spec.id,
            name: name.into_owned(),
            context: window.context,
            ranks: ranks.clone(),
        });
        fault_point!("worker.domain.allocated");
        // Offset and length of each buffer, in a Worker that is checked.
        let buffers = checked.chunks_exact(2).enumerate().map(|(number, at)| {
            let start = window.base.0.saturating_add(at[0]);
            (format!("buffer {number} of a domain"), start..start.saturating_add(at[1]))
        });
        self.checks.add_window(&self.chip, Some(id), buffers)?;
        Ok([window.context.0, window.base.0, window.size as u64].map(u64::to_le_bytes).concat())
    }

    fn release_domain(&mut self, frame: &ReceivedFrame) -> Result<(), Failure> {
        let &[id] = frame.scalars.as_slice() else { return Err(malformed()) };
        self.graphs.remove_domain(AllocationId(id));
        fault_point!("worker.domain.release");
        self.checks.remove_domain(id);
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
            Some(Kind::Spans) => self.checks.expect(frame).map(empty),
            Some(Kind::Shutdown | Kind::Wait) | None => Err(malformed()),
        }
    }

    fn was_recorded(&mut self) -> bool {
        self.graphs.was_recorded()
    }

    fn not_done(&mut self) {
        self.collectives.give_up();
        self.graphs.await_kernels();
    }
}
