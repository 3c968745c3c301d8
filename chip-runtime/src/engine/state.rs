//! The state of a graph: what the mutex of the engine guards.
//!
//! # Safety
//! Reads the elements of predicates, in memory of tensors that were checked at their submit, and names of kernels,
//! which are kept as long as a task of the graph, or a launch, names them.
#![allow(unsafe_code)]

use super::kernels::Kernels;
use super::launch::{Outcome, panic_text};
use super::mailbox::{Ended, Given};
use super::overdue::Orchestrating;
use super::ready::{Cores, Launch, Ready};
use super::slots::{Ring, Shape, Slot, Stage};
use super::threads::{Threads, Wakes, When};
use crate::buffer::Memory;
use crate::element;
use crate::error::{At, ErrorKind, RuntimeError};
use crate::kernel::Kernel;
use crate::limits::{FrontEnd, Limits, RINGS, ScopeMode};
use crate::record::{Recording, SignalRecord, Span, WaitRecord};
use crate::signals::{Pause, Poller, SignalError, Signals};
use crate::task::{KernelId, Site, TaskId};
use crate::tensor_map::{Extent, TensorMap, Use};
use deadline::{Deadline, coarse_monotonic_ns, monotonic_ns};
use fault_points::fault_point;
use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

/// What the builder waits for.
#[derive(Debug)]
pub(super) enum Goal {
    /// A slot, so many bytes of heap, and room for an edge.
    Room { ring: usize, bytes: u64 },
    /// The end of these tasks.
    Done(Vec<TaskId>),
    /// The end of all tasks.
    End,
}

#[derive(Debug)]
pub(super) struct Scope {
    pub(super) mode: ScopeMode,
    pub(super) site: Option<Site>,
    /// Its tasks, without those of the scopes inside.
    pub(super) tasks: Vec<TaskId>,
}

/// A kernel on a core.
#[derive(Clone, Copy, Debug)]
struct Running {
    launch: Launch,
    thread: usize,
    since_ns: u64,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) limits: Limits,
    pub(super) front_end: FrontEnd,
    pub(super) rings: [Ring; RINGS],
    pub(super) map: TensorMap<TaskId>,
    pub(super) scopes: Vec<Scope>,
    /// Lists of scopes that were closed, for the next ones.
    pub(super) spare: Vec<Vec<TaskId>>,
    ready: Ready,
    cores: Cores,
    running_on: Vec<Option<Running>>,
    /// Kernels that have not returned.
    pub(super) running: usize,
    /// Tasks that have not ended.
    pub(super) live: usize,
    /// Edges to tasks that have not ended.
    pub(super) edges: usize,
    /// Tasks submitted.
    pub(super) seq: u64,
    /// Whether an edge goes from a task to an older one; only then can there be a cycle.
    pub(super) backward: bool,
    /// Kernels that returned and tasks that ended, in all runs.
    pub(super) ended: u64,
    pub(super) error: Option<RuntimeError>,
    pub(super) goal: Option<Goal>,
    /// Whether the orchestration runs and does not wait.
    pub(super) building: bool,
    /// Whether the run has ended.
    pub(super) over: bool,
    pub(super) orchestrating: Orchestrating,
    /// The task that was submitted last, and where.
    pub(super) last: Option<(TaskId, Site)>,
    pub(super) threads: Threads,
    /// Threads that were given a launch, whose end nobody has taken note of.
    fed: Vec<(usize, Launch)>,
    pub(super) kernels: Kernels,
    /// Memory that the graph was given, by its start.
    pub(super) given: BTreeMap<u64, u64>,
    pub(super) imports: Vec<Arc<Memory>>,
    pub(super) recording: Option<Box<Recording>>,
    pub(super) poller: Poller,
    /// Tasks that are about to end.
    ending: Vec<TaskId>,
    /// Tasks of a poll, empty between two.
    met: Vec<TaskId>,
    /// Lists of a submit, empty between two: who made its tensors, what it has to come after, what it touches.
    pub(super) owners: Vec<TaskId>,
    pub(super) found: Vec<TaskId>,
    pub(super) entries: Vec<(Extent, Use)>,
}

// SAFETY: the pointers in slots and launches are to kernels in `kernels`, which are `Send` and `Sync` and are dropped with
// the state or when no launch is left and no task of the graph is looked at again, and to lists of slots of this state.
unsafe impl Send for State {}

impl State {
    pub(super) fn new(limits: &Limits, threads: Threads, signals: Arc<Signals>) -> Self {
        Self {
            limits: limits.clone(),
            front_end: FrontEnd::Inferred,
            rings: std::array::from_fn(|_| Ring::new(limits)),
            map: TensorMap::new(),
            scopes: Vec::new(),
            spare: Vec::new(),
            ready: Ready::default(),
            cores: Cores::new(limits.clusters),
            running_on: vec![None; 3 * limits.clusters],
            running: 0,
            live: 0,
            edges: 0,
            seq: 0,
            backward: false,
            ended: 0,
            error: None,
            goal: None,
            building: false,
            over: true,
            orchestrating: Orchestrating::default(),
            last: None,
            threads,
            fed: Vec::new(),
            kernels: Kernels::default(),
            given: BTreeMap::new(),
            imports: Vec::new(),
            recording: None,
            poller: Poller::new(signals),
            ending: Vec::new(),
            met: Vec::new(),
            owners: Vec::new(),
            found: Vec::new(),
            entries: Vec::new(),
        }
    }

    /// For the next graph; nothing runs.
    pub(super) fn clear(&mut self) {
        self.rings.iter_mut().for_each(Ring::clear);
        self.map.clear();
        self.scopes.clear();
        self.ending.clear();
        self.ready.give_up();
        (self.live, self.edges, self.seq, self.backward) = (0, 0, 0, false);
        (self.error, self.goal, self.last) = (None, None, None);
        self.release_imports();
    }

    fn release_imports(&mut self) {
        self.imports.drain(..).for_each(|memory| memory.end_use());
        self.given.clear();
    }

    pub(super) fn slot(&self, task: TaskId) -> &Slot {
        self.rings[task.ring()].slot(task.local())
    }

    pub(super) fn slot_mut(&mut self, task: TaskId) -> &mut Slot {
        self.rings[task.ring()].slot_mut(task.local())
    }

    /// Whether the task is one of this graph.
    pub(super) fn exists(&self, task: TaskId) -> bool {
        task.ring() < RINGS && {
            let ring = &self.rings[task.ring()];
            ring.holds(task.local()) || task.local() < ring.head()
        }
    }

    pub(super) fn has_ended(&self, task: TaskId) -> bool {
        has_ended(&self.rings, task)
    }

    /// Adds the edge unless it is there or `before` has ended.
    pub(super) fn add_edge(&mut self, before: TaskId, after: TaskId) {
        if let Some(recording) = &mut self.recording {
            recording.edge(before, after);
        }
        if self.has_ended(before) {
            return;
        }
        let seq = self.slot(after).seq;
        let slot = self.slot_mut(before);
        if slot.linked == seq {
            return;
        }
        slot.linked = seq;
        let backward = slot.seq > seq;
        slot.fanout.push(after);
        self.backward |= backward;
        self.edges += 1;
        self.slot_mut(after).unmet += 1;
    }

    /// Lets the task start once its prerequisites are met.
    pub(super) fn publish(&mut self, task: TaskId) {
        let slot = self.slot_mut(task);
        if slot.stage != Stage::Unpublished {
            return;
        }
        slot.stage = Stage::Published;
        self.meet(task);
        self.end_tasks();
    }

    /// Arms the waits of a task that waits for nothing else: there are never more than can be met next.
    fn arm(&mut self, task: TaskId) {
        fault_point!("graph.wait.arming");
        let slot = self.rings[task.ring()].slot_mut(task.local());
        slot.armed = true;
        let mut failed = None;
        for wait in &slot.waits {
            match self.poller.arm(task, wait) {
                Ok(armed) => {
                    slot.unmet += u32::from(armed);
                    if let Some(recording) = &mut self.recording {
                        let (signals, armed_ns) = (self.poller.signals(), monotonic_ns());
                        let (rank, window) = (signals.rank(), signals.table().name(wait.domain).into());
                        let met_ns = (!armed).then_some(armed_ns);
                        recording.wait(WaitRecord { task, wait: *wait, window, rank, armed_ns, met_ns });
                    }
                }
                Err(error) => failed = Some(error),
            }
        }
        if let Some(error) = failed {
            let at = self.at(task);
            self.fail(RuntimeError { at, ..error.into() });
        }
    }

    /// Looks at the signals. `None` if no wait is armed.
    pub(super) fn poll(&mut self) -> Option<Pause> {
        if self.over || self.error.is_some() || self.poller.armed() == 0 {
            return None;
        }
        let quiet = self.running == 0 && self.ready.is_empty() && self.goal.is_some();
        let mut met = std::mem::take(&mut self.met);
        let pause = self.poller.poll(quiet, &mut met);
        for task in met.drain(..) {
            fault_point!("graph.wait.met");
            if let Some(recording) = &mut self.recording {
                recording.met(task, monotonic_ns());
            }
            let slot = self.slot_mut(task);
            // Before it starts a task waits for its own words, after that for those that its kernels named.
            if slot.unmet > 0 {
                self.meet(task);
            } else {
                self.finish_part(task);
            }
        }
        self.met = met;
        self.end_tasks();
        pause.map_err(|error| self.fail_by_signal(error)).ok()
    }

    fn fail_by_signal(&mut self, error: SignalError) {
        // What is armed has not ended, and has its slot.
        let at = self.poller.task_of(&error).map(|task| self.at(task)).unwrap_or_default();
        self.fail(RuntimeError { at, ..error.into() });
    }

    /// One prerequisite is met.
    fn meet(&mut self, task: TaskId) {
        let slot = self.slot_mut(task);
        slot.unmet -= 1;
        let arms = !slot.waits.is_empty() && !slot.armed;
        if slot.unmet > 0 || self.error.is_some() {
            return;
        }
        if arms {
            self.arm(task);
        }
        let slot = self.rings[task.ring()].slot_mut(task.local());
        if slot.unmet > 0 || self.error.is_some() {
            return;
        }
        // SAFETY: the predicate's tensor was checked at the submit, and this task keeps it.
        let skipped = slot.predicate.as_ref().is_some_and(|predicate| !unsafe { element::holds(predicate) });
        if skipped || slot.shape == Shape::Dummy {
            self.ending.push(task);
        } else {
            self.ready.push(task, slot);
        }
    }

    /// Ends the tasks that are about to, and those that end with them.
    fn end_tasks(&mut self) {
        while let Some(task) = self.ending.pop() {
            // First the signals: who sees the task ended may count on them.
            if !self.slot(task).signals.is_empty() && self.error.is_none() {
                self.send_signals(task);
            }
            fault_point!("graph.task.ended");
            let slot = self.slot_mut(task);
            slot.stage = Stage::Done;
            let fanout = std::mem::take(&mut slot.fanout);
            let owners = std::mem::take(&mut slot.owners);
            self.live -= 1;
            self.ended += 1;
            self.edges -= fanout.len();
            fanout.iter().for_each(|after| self.meet(*after));
            for owner in &owners {
                self.slot_mut(*owner).holds -= 1;
                self.rings[owner.ring()].reclaim();
            }
            let slot = self.slot_mut(task);
            (slot.fanout, slot.owners) = (fanout, owners);
            self.rings[task.ring()].reclaim();
        }
    }

    fn send_signals(&mut self, task: TaskId) {
        for (signal, target) in &self.rings[task.ring()].slot(task.local()).signals {
            fault_point!("graph.signal.sending");
            // SAFETY: found at the submit by the poller's signals, in this run: no domain is released meanwhile.
            let value = unsafe { target.send(signal.op) };
            if let Some(recording) = &mut self.recording {
                let window = self.poller.signals().table().name(signal.domain).into();
                recording.signal(SignalRecord { task, signal: *signal, window, to: target.to, value });
            }
            fault_point!("graph.signal.sent");
        }
    }

    /// The scope of the task was closed: its tensors are kept by tasks that use them only.
    pub(super) fn close_for(&mut self, task: TaskId) {
        let slot = self.slot_mut(task);
        slot.scope_open = false;
        slot.holds -= 1;
        self.rings[task.ring()].reclaim();
    }

    /// The next launch, which begins, on this thread.
    pub(super) fn begin(&mut self, thread: usize) -> Option<Launch> {
        // The pointers of a launch stay valid while its task has not ended.
        let launch = self.ready.take(&mut self.cores, &mut self.rings)?;
        self.running += 1;
        let running = Running { launch, thread, since_ns: coarse_monotonic_ns() };
        self.running_on[launch.core.index()] = Some(running);
        Some(launch)
    }

    /// Whether the calling thread runs a kernel.
    pub(super) fn caller_runs(&self) -> bool {
        let caller = self.threads.caller();
        self.running_on.iter().flatten().any(|running| running.thread == caller)
    }

    /// The launch has returned.
    pub(super) fn finish(&mut self, launch: &Launch, outcome: Outcome, span: Option<Span>) {
        self.running -= 1;
        self.ended += 1;
        self.running_on[launch.core.index()] = None;
        self.cores.release(launch.core);
        fault_point!("graph.kernel.finished");
        if let (Some(recording), Some(span)) = (&mut self.recording, span) {
            recording.span(span);
        }
        if let Err(text) = outcome.result {
            let at = At { kernel: Some(kernel_names(launch.kernel)), ..self.at(launch.task) };
            self.fail(RuntimeError { kind: ErrorKind::Kernel { text, block: launch.block }, at });
        }
        if self.over && self.nothing_runs() {
            // This was the last kernel that did not end in time.
            self.release_imports();
        }
        // After the end nobody would look at them.
        let completions = if self.over { &[] } else { &outcome.completions[..] };
        for entry in completions {
            // SAFETY: the kernel promises that its words stay; a kernel that names others is outside of the contract of
            // `set_raw_kernel`.
            match unsafe { self.poller.arm_completion(launch.task, entry) } {
                Ok(armed) => {
                    self.slot_mut(launch.task).unfinished += u32::from(armed);
                    fault_point!("graph.completion.armed");
                }
                Err(error) => {
                    let at = At { kernel: Some(kernel_names(launch.kernel)), ..self.at(launch.task) };
                    self.fail(RuntimeError { at, ..error.into() });
                }
            }
        }
        self.finish_part(launch.task);
        self.end_tasks();
    }

    /// One kernel of the task has returned, or one word is there that its completion waits for.
    fn finish_part(&mut self, task: TaskId) {
        let slot = self.slot_mut(task);
        slot.unfinished -= 1;
        if slot.unfinished == 0 {
            self.ending.push(task);
        }
    }

    /// Where an error of this task is.
    pub(super) fn at(&self, task: TaskId) -> At {
        let slot = self.slot(task);
        let kernel = slot.kernels.iter().flatten().next().map(|kernel| kernel_names(*kernel));
        At { task: Some(task), kernel, site: slot.site }
    }

    /// The graph has failed; the first error stays. Nothing starts any more.
    pub(super) fn fail(&mut self, error: RuntimeError) {
        if self.error.is_none() {
            self.error = Some(error);
            self.ready.give_up();
        }
    }

    /// The deadline of what the builder waits for has passed.
    pub(super) fn too_late(&self, deadline: Deadline) -> RuntimeError {
        let Some(Goal::Done(tasks)) = &self.goal else { return self.timed_out(deadline) };
        let (limit, table) = (deadline.limit(), self.table());
        let at = tasks.iter().find(|task| !self.has_ended(**task)).map(|task| self.at(*task));
        RuntimeError { kind: ErrorKind::DataTimedOut { limit, table }, at: at.unwrap_or_default() }
    }

    /// The deadline of the run has passed. Where only signals could make it go on, that is at the first task that waits for one;
    /// the table names what runs.
    pub(super) fn timed_out(&self, deadline: Deadline) -> RuntimeError {
        let waits = self.running == 0 && self.ready.is_empty();
        let at = self.poller.first_waiting().filter(|_| waits).map(|task| self.at(task));
        let kind = ErrorKind::TimedOut { limit: deadline.limit(), table: self.table() };
        RuntimeError { kind, at: at.unwrap_or_default() }
    }

    /// Whether no kernel runs, and none has its core and waits for a thread.
    pub(super) fn nothing_runs(&self) -> bool {
        self.running == 0 && self.nothing_must_start()
    }

    /// Kernels that were replaced or forgotten, once nothing can name them: the graph is over, so no task of it is looked
    /// at again, and no launch is left.
    pub(super) fn unused_kernels(&mut self) -> Vec<Arc<Kernel>> {
        if self.over && self.nothing_runs() { self.kernels.take_dropped() } else { Vec::new() }
    }

    /// Whether no launch has its core and waits for a thread.
    pub(super) fn nothing_must_start(&self) -> bool {
        self.ready.committed.is_empty()
    }

    /// Whether nothing will ever change without the builder.
    pub(super) fn is_still(&self) -> bool {
        self.running == 0 && self.ready.is_empty() && self.poller.armed() == 0
    }

    pub(super) fn goal_is_reached(&self) -> bool {
        let Some(goal) = &self.goal else { return false };
        if self.error.is_some() {
            return !matches!(goal, Goal::End) || self.nothing_runs();
        }
        let reached = match goal {
            Goal::Room { ring, bytes } => self.has_room(*ring, *bytes),
            Goal::Done(tasks) => tasks.iter().all(|task| self.has_ended(*task)),
            Goal::End => self.live == 0,
        };
        // A builder that waits for what cannot come finds out.
        reached || self.is_still()
    }

    pub(super) fn has_room(&self, ring: usize, bytes: u64) -> bool {
        let ring = &self.rings[ring];
        !ring.is_full() && ring.heap.has_room(bytes) && self.edges < self.limits.edges
    }

    pub(super) fn can_start(&self) -> bool {
        self.ready.can_start(&self.cores, |task| self.slot(task))
    }

    /// Enters the ends that threads have left in their mailboxes; says whether there was one. Who calls it calls `leave` too.
    pub(super) fn take_ended(&mut self) -> bool {
        let mut at = 0;
        let before = self.fed.len();
        while let Some((thread, launch)) = self.fed.get(at).copied() {
            match self.threads.take_ended(thread) {
                None => at += 1,
                Some(Ended { outcome, span }) => {
                    self.fed.swap_remove(at);
                    self.threads.idles(thread);
                    // As on a core thread, a panic here ends the graph and nothing else.
                    let entered = catch_unwind(AssertUnwindSafe(|| self.finish(&launch, outcome, span)));
                    if let Err(panic) = entered {
                        self.fail(ErrorKind::Panicked(panic_text(&*panic)).into());
                    }
                }
            }
        }
        self.fed.len() != before
    }

    /// The thread that was given a launch last and has not ended it, as far as is known.
    pub(super) fn last_fed(&self) -> Option<usize> {
        self.fed.last().map(|(thread, _)| *thread)
    }

    /// Gives the next launch to a thread that spins, if there is one.
    fn give_launch(&mut self, wakes: &mut Wakes) {
        let Some(thread) = self.threads.spinning().filter(|_| self.nothing_must_start()) else { return };
        if let Some(launch) = self.begin(thread) {
            self.fed.push((thread, launch));
            self.threads.give(thread, Given { launch, recorded: self.recording.is_some() });
            wakes.given = Some(thread);
        }
    }

    /// How many threads use a processor.
    pub(super) fn busy(&self) -> usize {
        self.running + usize::from(self.building)
    }

    /// Called before the mutex is released: whom to wake.
    pub(super) fn leave(&mut self) -> Wakes {
        let mut wakes = Wakes::default();
        if self.goal_is_reached() {
            self.goal = None;
            wakes.builder = !self.threads.call_caller(&mut wakes);
        }
        if !self.ready.is_empty() {
            self.give_launch(&mut wakes);
        }
        if !self.ready.is_empty() {
            let must = self.ready.committed.len();
            // Only looked at where nobody comes anyway.
            let could = self.threads.coming() > must || self.can_start();
            self.threads.call(&mut wakes, must, could, self.busy());
        }
        if self.poller.armed() > 0 && self.error.is_none() {
            // While it is built, what waits is mostly left to the caller, if that takes part.
            let is_left = self.building && self.threads.caller_helps;
            let later = is_left || self.threads.are_enough(self.busy());
            self.threads.call_watcher(&mut wakes, if later { When::InAMoment } else { When::Now });
        }
        wakes
    }

    /// What runs and what waits, for an error. `None` for neither.
    pub(super) fn table(&self) -> String {
        let now = coarse_monotonic_ns();
        let mut lines = Vec::new();
        for running in self.running_on.iter().flatten() {
            let Running { launch, since_ns, .. } = running;
            let (id, name) = kernel_names(launch.kernel);
            let site =
                self.slot(launch.task).site.map(|site| format!(", submitted at {site}")).unwrap_or_default();
            let since = Duration::from_millis(now.saturating_sub(*since_ns) / 1_000_000);
            lines.push(format!(
                "{} runs block {} of kernel {id} `{name}` on {} since {since:?}{site}",
                launch.task, launch.block, launch.core
            ));
        }
        if self.poller.armed() > 0 {
            lines.push(self.poller.table());
        }
        lines.push(format!("{} tasks are ready, {} have not ended", self.ready.len(), self.live));
        lines.join("; ")
    }

    /// Tasks that have not ended, each of which waits for the next, the last for the first.
    pub(super) fn cycle(&self) -> Vec<TaskId> {
        let tasks: Vec<TaskId> = self
            .rings
            .iter()
            .enumerate()
            .flat_map(|(ring, slots)| slots.locals().map(move |local| TaskId::new(ring, local)))
            .filter(|task| !self.has_ended(*task))
            .collect();
        let mut waits_for: BTreeMap<TaskId, TaskId> = BTreeMap::new();
        for before in &tasks {
            for after in &self.slot(*before).fanout {
                waits_for.entry(*after).or_insert(*before);
            }
        }
        let Some(first) = tasks.first() else { return Vec::new() };
        let (mut path, mut at) = (vec![*first], *first);
        while let Some(next) = waits_for.get(&at) {
            if let Some(start) = path.iter().position(|task| task == next) {
                return path.split_off(start);
            }
            path.push(*next);
            at = *next;
        }
        Vec::new()
    }

    /// After a run: whether all kernels have returned. If not, the last of them gives back what the graph used.
    pub(super) fn after_run(&mut self) {
        (self.building, self.over) = (false, true);
        self.orchestrating.end();
        self.poller.end();
        if self.nothing_runs() {
            self.release_imports();
        }
    }

    /// The bytes of the task's tensors, or those that the graph was given.
    pub(super) fn given_contains(&self, range: &Range<u64>) -> bool {
        let below = self.given.range(..=range.start).next_back();
        below.is_some_and(|(_, end)| range.end <= *end)
    }
}

pub(super) fn has_ended(rings: &[Ring; RINGS], task: TaskId) -> bool {
    let ring = &rings[task.ring()];
    !ring.holds(task.local()) || ring.slot(task.local()).stage == Stage::Done
}

pub(super) fn kernel_names(kernel: NonNull<Kernel>) -> (KernelId, Arc<str>) {
    // SAFETY: called while a task of the graph, or a launch, names the kernel; see `unused_kernels`.
    let kernel = unsafe { kernel.as_ref() };
    (kernel.id, kernel.name.clone())
}
