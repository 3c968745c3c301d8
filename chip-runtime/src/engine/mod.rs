//! The engine: tasks in slots, ready ones on cores, all under one mutex that is held for a moment only.

mod build;
mod exchange;
mod kernels;
mod launch;
mod mailbox;
mod overdue;
mod parking;
mod places;
mod ready;
mod serve;
mod slots;
mod state;
mod threads;

pub(crate) use build::Work;
#[cfg(feature = "ascend")]
pub(crate) use build::{NOTHING_YET, check, check_tensor, creates, existing, extent_of, output, room_of};
pub(crate) use launch::{Scratch, panic_text};
pub(crate) use ready::Core;

use crate::error::{ErrorKind, RuntimeError};
use crate::kernel::{Code, Kernel};
use crate::limits::{FrontEnd, Limits, ScopeMode};
use crate::orchestration::lane::ClusterStates;
use crate::record::Recording;
use crate::signals::{Domain, Poller, SignalError, Signals};
use crate::task::{KernelId, Site};
use comm_context::abi::DeviceAddr;
use deadline::Deadline;
use fault_points::fault_point;
use kernels::Kernels;
use mailbox_atomics::{ParkFlag, SpinBudget, Wait, WordU32};
use overdue::Overdue;
use parking::{Parking, Spinning};
use places::{BuilderPlacement, Places};
use state::{Goal, Scope, State};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use threads::Threads;

/// The highest bit of the number of a session.
const OWN_SESSIONS: u64 = 1 << 63;

/// The chips that run graphs together, and the number that they have for it.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) number: u64,
    pub(crate) members: Vec<u32>,
}

impl Session {
    /// The `run`-th run of this chip, of its own. Such numbers are of this process, unlike those that several agree on.
    pub(crate) fn alone(run: u64, rank: u32) -> Self {
        Self { number: OWN_SESSIONS | run, members: vec![rank] }
    }
}

#[derive(Debug)]
pub(crate) struct Engine {
    state: Mutex<State>,
    parking: Arc<[Parking]>,
    spinning: Spinning,
    /// Grows when the builder has what it waits for.
    progress: WordU32,
    builder_parked: WordU32,
    builder_spins: SpinBudget,
    placement: BuilderPlacement,
    overdue: Overdue,
    handles: Mutex<Vec<JoinHandle<()>>>,
    /// What the kernels of each cluster keep.
    clusters: Vec<Arc<ClusterStates>>,
}

impl Engine {
    pub(crate) fn new(limits: &Limits, signals: Arc<Signals>) -> Arc<Self> {
        // A thread for each core, one that watches while all are busy, and the calling thread, which is the last.
        let parking: Arc<[Parking]> = (0..3 * limits.clusters + 2).map(|_| Parking::default()).collect();
        let places = Arc::<Places>::default();
        Arc::new(Self {
            state: Mutex::new(State::new(limits, Threads::new(parking.clone()), signals)),
            parking,
            spinning: Spinning::new(places.clone()),
            progress: WordU32::new(0),
            builder_parked: WordU32::new(0),
            builder_spins: SpinBudget::for_parties(2),
            placement: BuilderPlacement(places.clone()),
            overdue: Overdue::default(),
            handles: Mutex::default(),
            clusters: (0..limits.clusters).map(|_| Arc::default()).collect(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // What a panic inside left behind is a bug, and not made better by a second one.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From the next run on, whoever ends it runs kernels too: see [`end`](Self::end).
    pub(crate) fn use_calling_thread(&self) {
        self.lock().threads.caller_helps = true;
    }

    /// Takes part in these signals from the next run on.
    pub(crate) fn connect(&self, signals: Arc<Signals>) {
        self.lock().poller = Poller::new(signals);
    }

    pub(crate) fn rank(&self) -> u32 {
        self.lock().poller.signals().rank()
    }

    /// The domain whose context is at this address.
    pub(crate) fn domain(&self, context: DeviceAddr) -> Result<Domain, SignalError> {
        let signals = self.lock().poller.signals().clone();
        let found = signals.table().domain(context);
        found.ok_or(SignalError::NoContext { context: context.0 })
    }

    pub(crate) fn set_kernel(&self, id: KernelId, name: &str, code: Code) {
        let kernel = Arc::new(Kernel { id, name: name.into(), code });
        self.change_kernels(|kernels| kernels.set(kernel));
    }

    /// Registers a kernel under the next number, and returns that.
    pub(crate) fn add_kernel(&self, name: &str, code: Code) -> KernelId {
        self.change_kernels(|kernels| {
            let id = kernels.next();
            kernels.set(Arc::new(Kernel { id, name: name.into(), code }));
            id
        })
    }

    pub(crate) fn forget_kernel(&self, id: KernelId) -> bool {
        self.change_kernels(|kernels| kernels.forget(id))
    }

    /// Forgets those of `add_kernel`.
    pub(crate) fn forget_added_kernels(&self) {
        self.change_kernels(Kernels::forget_added);
    }

    fn change_kernels<T>(&self, change: impl FnOnce(&mut Kernels) -> T) -> T {
        let mut state = self.lock();
        let result = change(&mut state.kernels);
        state.take_ended();
        let unused = state.unused_kernels();
        drop(state);
        // Code of the user's may run here, so not under the mutex.
        drop(unused);
        result
    }

    /// Begins a graph, and its outer scope.
    pub(crate) fn begin(
        &self,
        front_end: FrontEnd,
        recording: Option<Recording>,
        session: &Session,
        site: Site,
        deadline: Deadline,
    ) -> Result<(), RuntimeError> {
        self.placement.publish_builder();
        fault_point!("graph.begin");
        let mut state = self.lock();
        state.take_ended();
        if !state.nothing_runs() {
            return Err(ErrorKind::StillRunning { table: state.table() }.into());
        }
        state.clear();
        let unused = state.unused_kernels();
        state.front_end = front_end;
        (state.building, state.over) = (true, false);
        state.threads.begin_run(session.members.len());
        state.poller.begin(session.number, &session.members, deadline);
        if front_end != FrontEnd::Prebuilt {
            state.poller.declare_any();
        }
        state.recording = recording.map(Box::new);
        let tasks = state.spare.pop().unwrap_or_default();
        state.scopes.push(Scope { mode: ScopeMode::Auto, site: Some(site), tasks });
        let must_look = state.orchestrating.begin(deadline);
        drop(state);
        drop(unused);
        if must_look {
            self.call_overdue();
        }
        Ok(())
    }

    /// Waits for `goal`; the error of the graph if it has one.
    fn wait_for<'e>(
        self: &'e Arc<Self>,
        mut state: MutexGuard<'e, State>,
        goal: Goal,
        deadline: Deadline,
    ) -> Result<MutexGuard<'e, State>, RuntimeError> {
        fault_point!("graph.builder.waits");
        state.goal = Some(goal);
        state.building = false;
        let mut flag = ParkFlag::new(&self.builder_parked);
        loop {
            let seen = self.progress.load();
            let wakes = state.leave();
            // While it spins, the builder takes note of what the thread ends that was given something last.
            let fed = state.last_fed();
            drop(state);
            // What is there already has changed the word by now.
            self.wake(wakes);
            let wait = Wait::until(deadline).spinning(&self.builder_spins).placed_by(&self.placement);
            let ended = || fed.is_some_and(|thread| self.parking[thread].has_ended());
            // How it ended does not matter: what counts is whether the goal is still there.
            let _ = wait
                .on(&self.progress, Some(&mut flag), |progress| (progress != seen || ended()).then_some(()));
            state = self.lock();
            if state.take_ended() {
                let wakes = state.leave();
                if wakes.any_thread() {
                    drop(state);
                    self.wake(wakes.without_builder());
                    state = self.lock();
                }
            }
            if state.goal.is_none() {
                break;
            }
            if deadline.has_passed() {
                let error = state.too_late(deadline);
                state.goal = None;
                state.fail(error);
                break;
            }
        }
        state.building = true;
        match &state.error {
            Some(error) => Err(error.clone()),
            None => Ok(state),
        }
    }

    /// Waits for the end of all tasks as `wait_for` does, and runs kernels meanwhile.
    fn serve_to_end<'e>(
        self: &'e Arc<Self>,
        mut state: MutexGuard<'e, State>,
        deadline: Deadline,
        scratch: &mut Scratch,
    ) -> Result<MutexGuard<'e, State>, RuntimeError> {
        fault_point!("graph.builder.waits");
        state.goal = Some(Goal::End);
        state.building = false;
        let me = state.threads.caller_comes();
        state = self.take_launches(state, me, scratch, Some(deadline));
        state.threads.caller_leaves();
        if state.goal.take().is_some() {
            let error = state.timed_out(deadline);
            state.fail(error);
            // What has its core and was left to this thread.
            let wakes = state.leave();
            drop(state);
            self.wake(wakes);
            state = self.lock();
        }
        state.building = true;
        match &state.error {
            Some(error) => Err(error.clone()),
            None => Ok(state),
        }
    }

    /// Ends the graph: closes the outer scope, publishes what is not, waits for all tasks, and forgets them. `built` is
    /// how the orchestration ended. The first failure is the result. With `scratch`, this thread runs kernels while it
    /// waits, and returns when these do.
    pub(crate) fn end<T>(
        self: &Arc<Self>,
        built: Result<T, RuntimeError>,
        deadline: Deadline,
        scratch: Option<&mut Scratch>,
    ) -> Result<T, RuntimeError> {
        let mut state = self.lock();
        state.threads.caller_leaves();
        match scratch {
            Some(_) => state.orchestrating.serves(),
            None => state.orchestrating.end(),
        }
        fault_point!("graph.built");
        state.take_ended();
        let built = built.and_then(|value| state.close_outer().map(|()| value));
        if let Err(error) = &built {
            state.fail(error.clone());
        }
        if state.error.is_none() && state.front_end == FrontEnd::Prebuilt {
            state = self.exchange(state, deadline);
        }
        if state.error.is_none() && !state.front_end.publishes_at_submit() {
            state.publish_all();
            fault_point!("graph.published");
        }
        if state.live == 0 && state.error.is_none() {
            state.after_run();
            return built;
        }
        let ended = match scratch {
            Some(scratch) => self.serve_to_end(state, deadline, scratch),
            None => self.wait_for(state, Goal::End, deadline),
        };
        let (mut state, result) = match ended {
            Ok(after) if after.live == 0 => (after, Ok(())),
            Ok(after) => {
                let (left, cycle) = (after.live, after.cycle());
                let at = cycle.first().map(|task| after.at(*task)).unwrap_or_default();
                (after, Err(RuntimeError { kind: ErrorKind::NothingCompletes { left, cycle }, at }))
            }
            Err(error) => (self.lock(), Err(error)),
        };
        if let Err(error) = &result {
            state.fail(error.clone());
        }
        state.after_run();
        fault_point!("graph.over");
        // A failure of a task comes before one of the orchestration that followed from it.
        result.and(built)
    }

    pub(crate) fn is_running(&self) -> bool {
        let mut state = self.lock();
        state.take_ended();
        !state.nothing_runs()
    }

    /// Waits until the kernels of a run that has ended have returned. False when they have not by the deadline.
    pub(crate) fn await_kernels(self: &Arc<Self>, deadline: Deadline) -> bool {
        let mut state = self.lock();
        state.take_ended();
        if state.nothing_runs() {
            return true;
        }
        // The run has failed, or its kernels would have ended before it.
        drop(self.wait_for(state, Goal::End, deadline));
        let mut state = self.lock();
        state.building = false;
        state.nothing_runs()
    }

    /// The graph has failed outside of the engine.
    pub(crate) fn fail(&self, error: RuntimeError) {
        self.lock().fail(error);
    }

    pub(crate) fn error(&self) -> Option<RuntimeError> {
        self.lock().error.clone()
    }

    pub(crate) fn recording(&self) -> Option<Recording> {
        self.lock().recording.as_deref().cloned()
    }

    pub(crate) fn take_recording(&self) -> Option<Recording> {
        self.lock().recording.take().map(|recording| *recording)
    }

    /// Ends the threads. One whose kernel has not returned ends when it has.
    pub(crate) fn shut_down(self: &Arc<Self>) {
        let mut state = self.lock();
        state.take_ended();
        state.threads.shut_down = true;
        let wakes = state.threads.call_all();
        let running = state.running;
        drop(state);
        self.wake(wakes);
        self.call_overdue();
        let handles = std::mem::take(&mut *self.handles.lock().unwrap_or_else(PoisonError::into_inner));
        if running == 0 {
            handles.into_iter().for_each(|handle| drop(handle.join()));
        }
    }
}
