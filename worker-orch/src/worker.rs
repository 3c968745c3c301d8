//! The Worker: what users hold.

use crate::builder::{CHIP_LEVEL, WorkerBuilder};
use crate::context::ChipContext;
use crate::device_memory::{Dropped, Spaces};
use crate::domain::Base;
use crate::hands::Hands;
use crate::memory::{Backing, ChipMemory, Element, Heap, HostBuffer, region_failure};
use crate::program::{DEFAULT_SYMBOL, Definition, OrchestrationFn, Program, Programs, TaskFn};
use crate::run::Orchestrator;
use crate::trace::Trace;
use chip_bootstrap::{ChipConfig, ChipMemoryKind};
use comm_context::abi::DeviceAddr;
use comm_context::comm::Timeout;
use deadline::Deadline;
use fault_points::fault_point;
use shared_memory::Region;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::Arc;
use worker_errors::{ErrorCode, Failure};

/// Chips (or Workers), the processes that drive them, and the tasks that run on them.
///
/// See the [crate documentation](crate) for an example.
#[derive(Debug)]
pub struct Worker {
    pub(crate) settings: WorkerBuilder,
    pub(crate) init_within: Timeout,
    pub(crate) run_within: Timeout,
    pub(crate) chips: Vec<ChipConfig>,
    pub(crate) workers: Vec<(String, Worker)>,
    pub(crate) heap: Arc<Heap>,
    /// The heaps of the levels above, which this Worker's hands see too.
    pub(crate) heaps_above: Vec<Arc<Region>>,
    pub(crate) programs: Programs,
    pub(crate) hands: Option<Hands>,
    pub(crate) contexts: Vec<ChipContext>,
    pub(crate) base: Base,
    /// Memory of devices that users let go of.
    pub(crate) dropped: Dropped,
    runs: u64,
}

impl Worker {
    /// Starts to describe a Worker.
    pub fn builder() -> WorkerBuilder {
        WorkerBuilder::default()
    }

    pub(crate) fn new(
        settings: WorkerBuilder,
        init_within: Timeout,
        run_within: Timeout,
        chips: Vec<ChipConfig>,
        heap: Arc<Heap>,
        programs: Programs,
    ) -> Self {
        Self {
            settings,
            init_within,
            run_within,
            chips,
            workers: Vec::new(),
            heap,
            heaps_above: Vec::new(),
            programs,
            hands: None,
            contexts: Vec::new(),
            base: Base::default(),
            dropped: Dropped::default(),
            runs: 0,
        }
    }

    /// Says what every chip shall have: one configuration for each device, in the order of the devices. Before [`init`](Self::init).
    pub fn configure_chips(&mut self, chips: Vec<ChipConfig>) -> Result<(), Failure> {
        self.must_be_down("configure_chips")?;
        let given: Vec<i32> = chips.iter().map(ChipConfig::device).collect();
        if given != self.settings.devices {
            let text = format!(
                "the configurations are for devices {given:?}, the Worker has {:?}",
                self.settings.devices
            );
            return Err(invalid(text, "configure_chips"));
        }
        check_group(&chips)?;
        for config in &chips {
            config
                .carve()
                .map_err(|error| invalid(error.to_string(), "configure_chips").on_device(config.device()))?;
        }
        self.chips = chips;
        Ok(())
    }

    /// Puts a Worker of a lower level under this one. Before [`init`](Self::init), which brings it up too.
    pub fn add_worker(&mut self, mut child: Self) -> Result<(), Failure> {
        self.must_be_down("add_worker")?;
        child.must_be_down("add_worker")?;
        if self.settings.level <= CHIP_LEVEL || child.settings.level >= self.settings.level {
            let text = format!(
                "a Worker of level {} cannot be under one of level {}",
                child.settings.level, self.settings.level
            );
            return Err(invalid(text, "add_worker"));
        }
        child.inherit_heaps(&[self.heap.region().clone()]);
        self.workers.push((format!("worker {}", self.workers.len()), child));
        Ok(())
    }

    fn inherit_heaps(&mut self, heaps: &[Arc<Region>]) {
        self.heaps_above.extend(heaps.iter().cloned());
        self.workers.iter_mut().for_each(|(_, child)| child.inherit_heaps(heaps));
    }

    /// Registers a kernel: the function `kernel_entry` of a shared object.
    pub fn register_kernel(&mut self, path: &Path) -> Result<Program, Failure> {
        self.register_kernel_symbol(path, DEFAULT_SYMBOL)
    }

    /// Registers a kernel: a function of a shared object. On the simulation a missing file or symbol is told here.
    pub fn register_kernel_symbol(&mut self, path: &Path, symbol: &str) -> Result<Program, Failure> {
        chip_bootstrap::check_kernel(self.settings.platform, path, symbol)?;
        let path = std::fs::canonicalize(path).map_err(|error| {
            let text = format!("kernel {}: {error}; check the path", path.display());
            Failure::new(ErrorCode::Load, text).in_phase("register")
        })?;
        Ok(self.programs.add(Definition::Kernel { path, symbol: symbol.to_owned() }))
    }

    /// Registers a Rust function for chips and sub-workers, before or after [`init`](Self::init).
    pub fn register_function(&mut self, name: &str, function: TaskFn) -> Program {
        self.programs.add(Definition::function(name, function))
    }

    /// Registers a Rust function that runs on a Worker of the next level.
    pub fn register_orchestration(&mut self, name: &str, function: OrchestrationFn) -> Program {
        self.programs.add(Definition::orchestration(name, function))
    }

    /// Memory of the host that every chip sees at the same address, whether it is made before or after [`init`](Self::init).
    pub fn host_buffer<T: Element>(&self, len: usize) -> Result<HostBuffer<T>, Failure> {
        HostBuffer::new(&self.heap, len)
    }

    /// Brings all chips up at once. Returns when every one is ready, or when everything is cleaned up again; then it may be called again.
    pub fn init(&mut self) -> Result<(), Failure> {
        self.must_be_down("init")?;
        let span = tracing::info_span!("init", level = self.settings.level, chips = self.chips.len());
        let _entered = span.enter();
        crate::start::start(self)
    }

    /// Changes how long each later run may take.
    pub fn set_run_within(&mut self, limit: Timeout) {
        self.run_within = limit;
    }

    /// What every chip has: the result of [`init`](Self::init), which must have been called.
    pub fn chip_contexts(&self) -> Result<&[ChipContext], Failure> {
        if self.hands.is_some() { Ok(&self.contexts) } else { Err(not_up("chip_contexts")) }
    }

    /// Runs tasks: `body` submits them; returns when all are done, or with the first cause when one failed.
    ///
    /// After a failed task the next run starts clean. After a chip died the Worker must be closed and initialised again; every call until
    /// then repeats the cause.
    pub fn run<T>(
        &mut self,
        body: impl FnOnce(&mut Orchestrator<'_>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let deadline = deadline(self.run_within)?;
        self.must_be_up("run")?;
        self.free_dropped()?;
        let run = self.next_run();
        let span = tracing::debug_span!("run", number = run / 2 + 1);
        let _entered = span.enter();
        fault_point!("worker.run.begun");
        self.heap.set_in_run(true);
        let next_level = self.chips.len() + self.workers.len();
        let spaces = Spaces::of(self);
        let hands = self.hands.as_mut().ok_or_else(|| not_up("run"))?;
        let mut orchestrator =
            Orchestrator::new(hands, &self.programs, &mut self.base, next_level, spaces, run, deadline);
        let said = catch_unwind(AssertUnwindSafe(|| body(&mut orchestrator)));
        // After a failed task the wait for the others does so, when no collective command is under way.
        if !matches!(said, Ok(Ok(_))) && !orchestrator.hands.run_failed() {
            // Some may wait for others that will not be submitted any more.
            orchestrator.hands.cancel_run();
        }
        fault_point!("worker.run.submitted");
        let finished = orchestrator.finish();
        fault_point!("worker.run.drained");
        let swept = orchestrator.sweep_domains(run + 1);
        self.heap.set_in_run(false);
        fault_point!("worker.run.over");
        match (said.unwrap_or_else(|panic| resume_unwind(panic)), finished) {
            (Ok(value), finished) => finished.and(swept).map(|()| value),
            // What a chip told explains what the body then returned; a failure of the body itself is its own.
            (Err(_), Err(told)) if told.root_cause().code != ErrorCode::Aborted => Err(told),
            (Err(own), _) => Err(own),
        }
    }

    /// Makes memory on a chip.
    pub fn chip_alloc(&mut self, chip: usize, bytes: usize) -> Result<ChipMemory, Failure> {
        self.must_be_up("chip_alloc")?;
        if chip >= self.chips.len() || bytes == 0 {
            let text = format!(
                "{bytes} bytes on chip {chip}; there are {} chips, and memory has at least a byte",
                self.chips.len()
            );
            return Err(invalid(text, "chip_alloc"));
        }
        let backing = match self.settings.platform.chip_memory() {
            ChipMemoryKind::Host => Backing::Heap(self.heap.take(bytes)?),
            ChipMemoryKind::Device => Backing::Device(self.remote_alloc(chip, bytes)?),
        };
        Ok(ChipMemory { backing, chip })
    }

    /// Copies bytes to a chip: into memory made by [`chip_alloc`](Self::chip_alloc), or into one of its window's buffers.
    pub fn copy_to(&mut self, chip: usize, to: DeviceAddr, bytes: &[u8]) -> Result<(), Failure> {
        let _span = tracing::debug_span!("copy_to", chip, ?to, bytes = bytes.len()).entered();
        if self.settings.platform.chip_memory() == ChipMemoryKind::Device {
            return self.remote_copy_to(chip, to, bytes);
        }
        let (region, at) = self.chip_bytes(chip, to, bytes.len(), "copy_to")?;
        fault_point!("worker.copy-to");
        region.write(at, bytes).map_err(|error| region_failure(&error))
    }

    /// Copies bytes from a chip, as they are there now.
    pub fn copy_from(&mut self, chip: usize, from: DeviceAddr, into: &mut [u8]) -> Result<(), Failure> {
        let _span = tracing::debug_span!("copy_from", chip, ?from, bytes = into.len()).entered();
        if self.settings.platform.chip_memory() == ChipMemoryKind::Device {
            return self.remote_copy_from(chip, from, into);
        }
        let (region, at) = self.chip_bytes(chip, from, into.len(), "copy_from")?;
        fault_point!("worker.copy-from");
        region.read(at, into).map_err(|error| region_failure(&error))
    }

    /// The shared memory behind an address of a chip. In the simulation the parent maps it too: nothing has to be asked for.
    fn chip_bytes(
        &self,
        chip: usize,
        addr: DeviceAddr,
        len: usize,
        call: &'static str,
    ) -> Result<(&Region, usize), Failure> {
        let hands = self.must_be_up(call)?;
        self.must_have_chip(chip, call)?;
        let inside = |region: &Region, at: usize, end: usize| {
            let start = addr.0.checked_sub(region.base().as_ptr() as u64 + at as u64)? as usize;
            (start.checked_add(len)? <= end - at).then_some(at + start)
        };
        let window = self.contexts.get(chip).filter(|context| context.window_size > 0).and_then(|context| {
            let group = hands.group.as_ref()?.region();
            let at = context.window_base.0.checked_sub(group.base().as_ptr() as u64)? as usize;
            Some((group, inside(group, at, at + context.window_size)?))
        });
        let heap = self.heap.region();
        let found = window.or_else(|| Some((heap.as_ref(), inside(heap, 0, heap.len())?)));
        found.ok_or_else(|| not_of_chip(chip, addr, len, call))
    }

    pub(crate) fn must_have_chip(&self, chip: usize, call: &'static str) -> Result<(), Failure> {
        if chip < self.chips.len() {
            return Ok(());
        }
        Err(invalid(format!("there is no chip {chip}; this Worker has {}", self.chips.len()), call))
    }

    /// Ends all processes: asks, waits under one deadline, then makes them go. Does nothing when the Worker is not up.
    pub fn close(&mut self) -> Result<(), Failure> {
        let Some(mut hands) = self.hands.take() else { return Ok(()) };
        let span = tracing::info_span!("close");
        let _entered = span.enter();
        fault_point!("worker.close.begun");
        self.contexts.clear();
        self.base = Base::default();
        // The devices free everything themselves.
        self.dropped = Dropped::default();
        let traced = hands.trace.take().map_or(Ok(()), |trace| self.write_trace(&hands, &trace));
        hands.close(self.settings.close_within.get()).and(traced)
    }

    /// Two numbers a run: one for its tasks, one for the clean-up that must not be skipped when they failed.
    pub(crate) fn next_run(&mut self) -> u64 {
        self.runs += 2;
        self.runs - 1
    }

    fn write_trace(&self, hands: &Hands, trace: &Trace) -> Result<(), Failure> {
        let names: Vec<String> = hands.hands.iter().map(|hand| hand.name.clone()).collect();
        let program =
            |number| self.programs.get(Program(number)).map_or_else(|_| "?".to_owned(), Definition::name);
        trace.write(&names, program).map_err(|error| {
            Failure::new(ErrorCode::System, format!("the trace could not be written: {error}"))
                .in_phase("close")
        })
    }

    fn must_be_up(&self, call: &'static str) -> Result<&Hands, Failure> {
        let hands = self.hands.as_ref().ok_or_else(|| not_up(call))?;
        hands.check()?;
        Ok(hands)
    }

    pub(crate) fn must_be_down(&self, call: &'static str) -> Result<(), Failure> {
        match self.hands {
            None => Ok(()),
            Some(_) => Err(invalid("the Worker is up already; close it first".to_owned(), call)),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Nobody is left to tell.
        let _ = self.close();
    }
}

pub(crate) fn not_of_chip(chip: usize, addr: DeviceAddr, len: usize, call: &'static str) -> Failure {
    invalid(format!("{len} bytes at {addr} are not inside memory or the window of chip {chip}"), call)
}

/// The chips of a Worker form one group: every rank once.
fn check_group(chips: &[ChipConfig]) -> Result<(), Failure> {
    let members: Vec<_> = chips.iter().filter_map(ChipConfig::member).collect();
    let mut ranks: Vec<u32> = members.iter().map(|member| member.rank()).collect();
    ranks.sort_unstable();
    let whole = members.iter().all(|member| member.nranks() as usize == members.len());
    if members.is_empty()
        || (members.len() == chips.len() && whole && ranks.iter().copied().eq(0..members.len() as u32))
    {
        return Ok(());
    }
    let text = format!(
        "the chips' ranks are {ranks:?}; give all {0} chips a communicator of {0} ranks, each rank once, or none",
        chips.len()
    );
    Err(invalid(text, "configure_chips"))
}

pub(crate) fn deadline(within: Timeout) -> Result<Deadline, Failure> {
    Deadline::after(within.get()).map_err(|error| Failure::new(ErrorCode::Invalid, error.to_string()))
}

fn invalid(text: String, phase: &'static str) -> Failure {
    Failure::new(ErrorCode::Invalid, text).in_phase(phase)
}

pub(crate) fn not_up(call: &'static str) -> Failure {
    invalid("the Worker is not up; call init first".to_owned(), call)
}
