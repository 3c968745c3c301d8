//! The Worker: what users hold.

use crate::builder::{CHIP_LEVEL, Settings, WorkerBuilder};
use crate::chip_context::ChipContext;
use crate::heap::{Guards, Heap};
use crate::host_buffer::{Element, HostBuffer};
use crate::log;
use crate::parent::{Call, ChipMemory, Ended, Orchestrator, Plan, TraceFile, Up, bring_up, replace_ended};
use crate::program::{OrchestrationFn, Program, TaskFn};
use crate::shared::{DEFAULT_SYMBOL, Programs, RunAbove};
use crate::signature::Signature;
use crate::task_id::{RunId, TaskId};
use crate::{Start, Task};
use chip_bootstrap::{ChipConfig, check_kernel};
use comm_context::abi::DeviceAddr;
use comm_context::comm::Timeout;
use deadline::Deadline;
use fault_points::fault_point;
use shared_memory::Region;
use std::path::Path;
use std::sync::Arc;
use worker_errors::{ErrorCode, Failure};

/// Chips (or Workers), the processes that drive them, and the tasks that run on them.
///
/// See the [crate documentation](crate) for an example.
#[derive(Debug)]
pub struct Worker {
    settings: Settings,
    init_within: Timeout,
    run_within: Timeout,
    chips: Vec<ChipConfig>,
    /// Workers of the next level, by name.
    workers: Vec<(String, Worker)>,
    heap: Arc<Heap>,
    /// The heaps of the levels above, which this Worker's children see too.
    heaps_above: Vec<Arc<Region>>,
    programs: Programs,
    up: Option<Up>,
}

impl Worker {
    /// Starts the description of a Worker.
    pub fn builder() -> WorkerBuilder {
        WorkerBuilder::default()
    }

    pub(crate) fn new(
        settings: Settings,
        init_within: Timeout,
        run_within: Timeout,
        heap: Arc<Heap>,
        programs: Programs,
    ) -> Self {
        let chips = settings.devices.iter().map(|device| ChipConfig::new(*device)).collect();
        let (workers, heaps_above) = (Vec::new(), Vec::new());
        Self { settings, init_within, run_within, chips, workers, heap, heaps_above, programs, up: None }
    }

    /// Configures all chips: one configuration for each device, in the order of the devices. Before
    /// [`init`](Self::init).
    pub fn configure_chips(&mut self, chips: Vec<ChipConfig>) -> Result<(), Failure> {
        self.must_be_down("configure_chips")?;
        let given: Vec<i32> = chips.iter().map(ChipConfig::device).collect();
        if given != self.settings.devices {
            let text = format!(
                "the configurations are for devices {given:?}, the Worker has {:?}; give one for each, in that order",
                self.settings.devices
            );
            return Err(invalid(text, "configure_chips"));
        }
        check_group(&chips)?;
        let chips: Vec<ChipConfig> = match self.heap.guards() {
            Guards::Without => chips,
            Guards::With => chips.into_iter().map(ChipConfig::guarded).collect(),
        };
        for config in &chips {
            config
                .layout()
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
                "a Worker of level {} cannot be under one of level {}; put it under one of a higher level",
                child.settings.level, self.settings.level
            );
            return Err(invalid(text, "add_worker"));
        }
        child.inherit_heaps(&[self.heap.region().clone()]);
        child.inherit_heaps(&self.heaps_above);
        self.workers.push((format!("worker {}", self.workers.len()), child));
        Ok(())
    }

    /// The Worker that the call number `number` of [`add_worker`](Self::add_worker) put under this one, to configure it and to register programs
    /// with it. Before [`init`](Self::init), which starts a process with it: what is up is reached by the tasks of an orchestration.
    pub fn nested(&mut self, number: usize) -> Result<&mut Self, Failure> {
        self.must_be_down("nested")?;
        let workers = self.workers.len();
        let found = self.workers.get_mut(number).map(|(_, child)| child);
        found.ok_or_else(|| {
            invalid(format!("there is no Worker {number} under this one; it has {workers}"), "nested")
        })
    }

    fn inherit_heaps(&mut self, heaps: &[Arc<Region>]) {
        self.heaps_above.extend(heaps.iter().cloned());
        self.workers.iter_mut().for_each(|(_, child)| child.inherit_heaps(heaps));
    }

    /// The heaps of this Worker and of those below it.
    pub(crate) fn own_heaps(&self) -> Vec<Arc<Region>> {
        let below = self.workers.iter().flat_map(|(_, child)| child.own_heaps());
        std::iter::once(self.heap.region().clone()).chain(below).collect()
    }

    /// Registers a kernel: the function `kernel_entry` of a shared object.
    pub fn register_kernel(&mut self, path: &Path) -> Result<Program, Failure> {
        self.register_kernel_symbol(path, DEFAULT_SYMBOL)
    }

    /// Registers a kernel: a function of a shared object, before or after [`init`](Self::init). Where the
    /// host can load kernels, as in the simulation, a missing file or symbol is an error here; otherwise at
    /// the first task.
    pub fn register_kernel_symbol(&mut self, path: &Path, symbol: &str) -> Result<Program, Failure> {
        check_kernel(self.settings.platform, path, symbol)?;
        let path = std::fs::canonicalize(path).map_err(|error| {
            let text = format!("kernel {}: {error}; check the path", path.display());
            Failure::new(ErrorCode::Load, text).in_phase("register")
        })?;
        Ok(self.programs.add_kernel(path, symbol))
    }

    /// Registers a Rust function for chips and sub-workers, before [`init`](Self::init).
    ///
    /// A child process has the functions that were registered when it was started. A task with one that is
    /// registered later is refused, unless the function is in the table of
    /// [`serve_if_child`](crate::serve_if_child), which every child has; after `close` and another `init` it
    /// runs.
    pub fn register_function(&mut self, name: &str, function: TaskFn) -> Program {
        self.programs.add_function(name, function)
    }

    /// Registers a Rust function that runs on a Worker of the next level, before [`init`](Self::init).
    ///
    /// ```
    /// use worker_orch::{Access, Args, Failure, Orchestrator, Program, Task, Worker};
    ///
    /// fn negate(task: &mut Task<'_>) -> Result<(), Failure> {
    ///     task.write(0, &task.read::<f32>(0)?.iter().map(|x| -x).collect::<Vec<_>>())
    /// }
    ///
    /// /// Runs in the process of the lower Worker, and submits to its chips.
    /// fn below(orch: &mut Orchestrator<'_>, task: &Task<'_>) -> Result<(), Failure> {
    ///     let x = Args::new().tensor(&task.tensors()[0], Access::InOut);
    ///     orch.submit_next_level(Program::from_number(0), &x, 0).map(drop)
    /// }
    ///
    /// let mut lower = Worker::builder().devices(&[0]).build()?;
    /// lower.register_function("negate", negate); // its program 0
    /// let mut upper = Worker::builder().level(4).build()?;
    /// let below = upper.register_orchestration("below", below);
    /// upper.add_worker(lower)?;
    /// let x = upper.host_buffer::<f32>(2)?;
    /// x.write(&[1.0, 2.0])?;
    /// upper.init()?; // both levels
    /// upper.run(|orch| {
    ///     orch.submit_next_level(below, &Args::new().tensor(&x.tensor(), Access::InOut), 0)
    /// })?;
    /// assert_eq!(x.to_vec(), [-1.0, -2.0]);
    /// upper.close()?;
    /// # Ok::<_, Failure>(())
    /// ```
    pub fn register_orchestration(&mut self, name: &str, function: OrchestrationFn) -> Program {
        self.programs.add_orchestration(name, function)
    }

    /// Registers a Rust function that captures what it needs, for chips and sub-workers, before [`init`](Self::init).
    ///
    /// Every child process has a copy of its own of what it captured, as it was at [`init`](Self::init): what a task changes in it
    /// stays in that process. Children that are started by exec are new processes that have no copy, so with
    /// [`Start::Exec`](crate::Start::Exec) it is refused. As with all functions in a forked child, what it captured must not hold a
    /// lock that another thread of the parent may have.
    ///
    /// ```
    /// # use worker_orch::{Access, Args, Failure, Worker};
    /// let mut worker = Worker::builder().devices(&[0]).build()?;
    /// let weights = vec![2.0_f32, 3.0]; // loaded once, and there in every child
    /// let scale = worker.register_closure("scale", move |task| {
    ///     let scaled: Vec<f32> = task.read::<f32>(0)?.iter().zip(&weights).map(|(x, weight)| x * weight).collect();
    ///     task.write(0, &scaled)
    /// })?;
    /// let x = worker.host_buffer::<f32>(2)?;
    /// x.write(&[10.0, 10.0])?;
    /// worker.init()?;
    /// worker.run(|orch| orch.submit_next_level(scale, &Args::new().tensor(&x.tensor(), Access::InOut), 0))?;
    /// assert_eq!(x.to_vec(), [20.0, 30.0]);
    /// # Ok::<_, Failure>(())
    /// ```
    pub fn register_closure(
        &mut self,
        name: &str,
        closure: impl Fn(&mut Task<'_>) -> Result<(), Failure> + Send + Sync + 'static,
    ) -> Result<Program, Failure> {
        if self.settings.start == Start::Exec {
            let text = format!(
                "`{name}` captures state, which children that are started by exec do not have; start them by fork, \
                 or register a plain function and pass the state in tensors and scalars"
            );
            return Err(invalid(text, "register"));
        }
        Ok(self.programs.add_closure(name, Arc::new(closure)))
    }

    /// Registers a graph: a closure that runs graphs of tasks on its chip, with [`Task::graphs`](crate::Task::graphs), before
    /// [`init`](Self::init) and with children that are forked.
    ///
    /// Graphs that signal each other are submitted together, with [`submit_group`](crate::Orchestrator::submit_group): then a chip that
    /// waits for a signal that no chip of the group will send is found out at once.
    pub fn register_graph(
        &mut self,
        name: &str,
        graph: impl Fn(&mut Task<'_>) -> Result<(), Failure> + Send + Sync + 'static,
    ) -> Result<Program, Failure> {
        if self.settings.start == Start::Exec {
            let text = format!(
                "`{name}` is a graph, which children that are started by exec do not have; start them by fork"
            );
            return Err(invalid(text, "register"));
        }
        Ok(self.programs.add_graph(name, Arc::new(graph)))
    }

    /// Says what a program takes: a submit that does not fit is refused, with the argument that does not. It replaces the signature that
    /// the program had.
    pub fn set_signature(&mut self, program: Program, signature: Signature) -> Result<(), Failure> {
        self.programs.set_signature(program, signature).map_err(|failure| failure.in_phase("register"))
    }

    /// Unregisters a program: tasks with it are refused from here on. On the simulation a chip unloads the kernel before its next
    /// task, so that a file that was compiled again can be registered again; a device keeps it until [`close`](Self::close).
    pub fn unregister(&mut self, program: Program) -> Result<(), Failure> {
        self.programs.remove(program).map_err(|failure| failure.in_phase("unregister"))
    }

    /// Host memory that every chip sees at the same address, made before or after [`init`](Self::init).
    pub fn host_buffer<T: Element>(&self, len: usize) -> Result<HostBuffer<T>, Failure> {
        HostBuffer::new(&self.heap, len)
    }

    /// Brings all chips up at once. Returns when every one is ready, or with the first cause when everything
    /// is cleaned up again; then it may be called again.
    pub fn init(&mut self) -> Result<(), Failure> {
        self.must_be_down("init")?;
        self.workers.iter().try_for_each(|(_, child)| child.must_be_down("init"))?;
        let (level, chips) = (self.settings.level, self.chips.len());
        let span = log::span(|| tracing::info_span!("init", level, chips));
        let _entered = span.enter();
        crate::start::check(self.settings.start)?;
        let (plan, up) = self.plan();
        *up = Some(bring_up(plan)?);
        Ok(())
    }

    /// What is to be brought up, and where it goes.
    fn plan(&mut self) -> (Plan<'_>, &mut Option<Up>) {
        let plan = Plan {
            start: self.settings.start,
            platform: self.settings.platform,
            windows: self.settings.windows,
            chips: &self.chips,
            workers: &mut self.workers,
            sub_workers: self.settings.sub_workers,
            programs: &self.programs,
            heap: &self.heap,
            heaps_above: &self.heaps_above,
            init_within: self.init_within,
            close_within: self.settings.close_within,
            trace: self.settings.trace.as_ref(),
            measured: self.settings.measured,
            child_main: crate::child::main,
        };
        (plan, &mut self.up)
    }

    /// The Worker must be up and have lost nobody. Children that did not come back from a run get another process.
    fn up(&mut self, call: &'static str) -> Result<(&mut Up, &Programs), Failure> {
        if let Some(up) = &self.up {
            up.check()?;
            if up.has_ended_children() {
                self.replace_ended()?;
            }
        }
        let Self { up, programs, .. } = self;
        Ok((up.as_mut().ok_or_else(|| not_up(call))?, programs))
    }

    #[cold]
    fn replace_ended(&mut self) -> Result<(), Failure> {
        match self.plan() {
            (plan, Some(up)) => replace_ended(plan, up),
            (_, None) => Ok(()),
        }
    }

    /// What was lost, if a child process died or cannot be replaced.
    pub(crate) fn loss(&self) -> Option<Failure> {
        self.up.as_ref()?.loss().cloned()
    }

    /// Where the trace goes when the Worker above has one: to its file, unless this one has a file of its own.
    /// Says whether it goes there.
    pub(crate) fn set_trace_part(&mut self, part: TraceFile) -> bool {
        let own = self.settings.trace.as_ref().is_some_and(|file| !file.is_part());
        if !own {
            self.settings.trace = Some(part);
        }
        !own
    }

    /// Writes the trace of a Worker that is lost and ends without `close`.
    pub(crate) fn write_trace(&mut self) {
        if let Some(up) = &mut self.up {
            // There is no caller to report an error to.
            let _ = up.write_trace(&self.programs);
        }
    }

    /// The next runs are part of this run of the Worker above.
    pub(crate) fn set_above(&mut self, above: RunAbove) {
        if let Some(up) = &mut self.up {
            up.set_above(above);
        }
    }

    /// Changes how long each later run may take.
    pub fn set_run_within(&mut self, limit: Timeout) {
        self.run_within = limit;
    }

    pub(crate) fn run_within(&self) -> Timeout {
        self.run_within
    }

    /// Shortens the limits of `init` and `close` to what the level above leaves.
    pub(crate) fn shorten_limits(
        &mut self,
        init: impl FnOnce(Timeout) -> Timeout,
        close: impl FnOnce(Timeout) -> Timeout,
    ) {
        self.init_within = init(self.init_within);
        self.settings.close_within = close(self.settings.close_within);
    }

    /// The chips that [`init`](Self::init) brought up.
    pub fn chip_contexts(&self) -> Result<&[ChipContext], Failure> {
        self.up.as_ref().map(Up::contexts).ok_or_else(|| not_up("chip_contexts"))
    }

    /// How many bytes of memory a chip has at the moment: its window, and what [`chip_alloc`](Self::chip_alloc) made and was not dropped.
    /// Windows of domains are not among them: they end with their run.
    pub fn chip_bytes(&self, chip: usize) -> Result<u64, Failure> {
        let up = self.up.as_ref().ok_or_else(|| not_up("chip_bytes"))?;
        up.chip_bytes(chip).ok_or_else(|| {
            let text =
                format!("there is no chip {chip}; this Worker has {}, counted from 0", up.contexts().len());
            invalid(text, "chip_bytes")
        })
    }

    /// Runs tasks: `body` submits them. Returns when all are done, or with the first cause when one failed.
    ///
    /// After a failed task the next run starts clean, and so it does after a run that took too long. A child process
    /// that does not come back from that is ended with the run, and the next call starts another one in its place;
    /// a chip that is a rank of a communicator, or has memory on a device, cannot be replaced. Then, and after a
    /// child process died, the Worker must be closed and initialised again; every call until then repeats the cause.
    pub fn run<T>(
        &mut self,
        body: impl FnOnce(&mut Orchestrator<'_>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let deadline = self.deadline()?;
        let (up, programs) = self.up("run")?;
        up.run(programs, deadline, body)
    }

    pub(crate) fn submit_in_flight<T>(
        &mut self,
        body: impl FnOnce(&mut Orchestrator<'_>) -> Result<T, Failure>,
    ) -> Result<(T, RunId, Ended), Failure> {
        let (deadline, limit) = (self.deadline()?, self.settings.runs_in_flight);
        let (up, programs) = self.up("submit_run")?;
        up.submit(programs, limit, deadline, body)
    }

    pub(crate) fn is_brought_up_as(&self, run: RunId) -> bool {
        self.up.as_ref().is_some_and(|up| up.id() == run.worker)
    }

    pub(crate) fn settle_through(&mut self, run: RunId, until: Deadline) {
        self.with_up(|up, programs| up.settle_through(programs, run, until));
    }

    pub(crate) fn settle_over(&mut self) {
        self.with_up(Up::settle_over);
    }

    pub(crate) fn cancel(&mut self, run: RunId) {
        self.with_up(|up, programs| up.cancel(programs, run));
    }

    pub(crate) fn result_of(&mut self, run: RunId, ended: &Ended) -> Result<(), Failure> {
        match self.up.as_mut().filter(|up| up.id() == run.worker) {
            Some(up) => up.result_of(run, ended),
            None => ended.get().cloned().unwrap_or(Ok(())),
        }
    }

    pub(crate) fn up_now(&self, call: &'static str) -> Result<&Up, Failure> {
        self.up.as_ref().ok_or_else(|| not_up(call))
    }

    /// What is up, when a task is of it.
    pub(crate) fn up_of(&self, task: TaskId, call: &'static str) -> Result<&Up, Failure> {
        let up = self.up_now(call)?;
        match up.id() == task.run().worker {
            true => Ok(up),
            false => {
                Err(invalid("this task is of another Worker, or from before its last init; ask the one that it was submitted to".to_owned(), call))
            }
        }
    }

    fn with_up(&mut self, call: impl FnOnce(&mut Up, &Programs)) {
        if let Some(up) = &mut self.up {
            call(up, &self.programs);
        }
    }

    /// Allocates memory on a chip.
    ///
    /// ```
    /// # use worker_orch::{Failure, Worker};
    /// let mut worker = Worker::builder().devices(&[0]).build()?;
    /// worker.init()?;
    /// let memory = worker.chip_alloc(0, 5)?;
    /// worker.copy_to(0, memory.addr(), b"hello")?;
    /// let mut back = [0; 5];
    /// worker.copy_from(0, memory.addr(), &mut back)?;
    /// assert_eq!(&back, b"hello");
    /// drop(memory); // freed on the chip
    /// # worker.close()?;
    /// # Ok::<_, Failure>(())
    /// ```
    pub fn chip_alloc(&mut self, chip: usize, bytes: usize) -> Result<ChipMemory, Failure> {
        let (up, call) = self.command("chip_alloc")?;
        up.chip_alloc(chip, bytes, call)
    }

    /// Copies bytes to a chip: into memory made by [`chip_alloc`](Self::chip_alloc) for it that was not dropped,
    /// or into its window. Anything else is refused, and the error names the chip that it belongs to.
    pub fn copy_to(&mut self, chip: usize, to: DeviceAddr, bytes: &[u8]) -> Result<(), Failure> {
        let span = log::span(|| tracing::debug_span!("copy_to", chip, ?to, bytes = bytes.len()));
        let _entered = span.enter();
        let (up, call) = self.command("copy_to")?;
        up.copy_to(chip, to, bytes, call)
    }

    /// Copies bytes from a chip, as they are there now; from where [`copy_to`](Self::copy_to) copies to.
    pub fn copy_from(&mut self, chip: usize, from: DeviceAddr, into: &mut [u8]) -> Result<(), Failure> {
        let span = log::span(|| tracing::debug_span!("copy_from", chip, ?from, bytes = into.len()));
        let _entered = span.enter();
        let (up, call) = self.command("copy_from")?;
        up.copy_from(chip, from, into, call)
    }

    /// Ends all child processes: asks, waits under one deadline, then kills. Does nothing when the Worker is
    /// not up.
    pub fn close(&mut self) -> Result<(), Failure> {
        let Some(up) = self.up.take() else { return Ok(()) };
        let span = log::span(|| tracing::info_span!("close"));
        let _entered = span.enter();
        fault_point!("worker.close.begun");
        up.close(&self.programs, self.settings.close_within)
    }

    fn deadline(&self) -> Result<Deadline, Failure> {
        Deadline::after(self.run_within.get())
            .map_err(|error| Failure::new(ErrorCode::Invalid, error.to_string()))
    }

    /// What a command to a chip needs, when the Worker is up.
    fn command(&mut self, name: &'static str) -> Result<(&mut Up, Call), Failure> {
        let deadline = self.deadline()?;
        let (up, programs) = self.up(name)?;
        up.settle_for_call(programs)?;
        Ok((up, Call { deadline, name }))
    }

    fn must_be_down(&self, call: &'static str) -> Result<(), Failure> {
        match self.up {
            None => Ok(()),
            Some(_) => Err(invalid("the Worker is up already; close it first".to_owned(), call)),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // There is no caller to report an error to.
        let _ = self.close();
    }
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
        "the chips' ranks are {ranks:?}; give all {0} chips a communicator of {0} ranks, each rank once, or none: \
         a group is of the chips of one Worker",
        chips.len()
    );
    Err(invalid(text, "configure_chips"))
}

fn invalid(text: String, phase: &'static str) -> Failure {
    Failure::new(ErrorCode::Invalid, text).in_phase(phase)
}

fn not_up(call: &'static str) -> Failure {
    invalid("the Worker is not up; call init first".to_owned(), call)
}
