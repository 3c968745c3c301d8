//! An orchestration that does not return, or a kernel on the thread of the orchestration: the thread that says so when the
//! time is over.
//!
//! The thread is there only where somebody wants to know, sleeps until the deadline of a run that began, and is not
//! woken by runs that may take longer than that one.

use super::Engine;
use crate::error::{At, ErrorKind, RuntimeError};
use deadline::{Deadline, LONGEST_WAIT, monotonic_ns};
use mailbox_atomics::{Listener, ParkFlag, Wait, WordU32};
use std::fmt;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// An orchestration that ends with its deadline, as most do whose graph has failed, has this much longer.
const GRACE: Duration = Duration::from_millis(20);

type Tell = Arc<dyn Fn(RuntimeError) + Send + Sync>;

/// Whom to tell, and where the thread waits.
#[derive(Default)]
pub(super) struct Overdue {
    /// Grows when a run begins that may take less time than the one that the thread waits for.
    call: WordU32,
    parked: WordU32,
}

/// Part of the state that the mutex guards.
#[derive(Default)]
pub(super) struct Orchestrating {
    tell: Option<Tell>,
    has_thread: bool,
    /// What the calling thread does and when it is overdue; `None` when it waits or has returned, or that was reported.
    until: Option<(Phase, Deadline)>,
    /// Until when the thread sleeps, on the monotonic clock.
    sleeps_until_ns: u64,
}

/// What the calling thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Orchestration,
    /// Runs kernels, or waits for them.
    Kernels,
}

impl fmt::Debug for Overdue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Overdue")
    }
}

impl fmt::Debug for Orchestrating {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Orchestrating").field("until", &self.until).finish_non_exhaustive()
    }
}

impl Orchestrating {
    /// The orchestration of a run is called. Whether the thread must look.
    pub(super) fn begin(&mut self, deadline: Deadline) -> bool {
        if self.tell.is_none() {
            return false;
        }
        self.until = Some((Phase::Orchestration, deadline));
        deadline.monotonic_ns() < self.sleeps_until_ns
    }

    /// It has returned, and its thread runs kernels.
    pub(super) fn serves(&mut self) {
        if let Some((phase, _)) = &mut self.until {
            *phase = Phase::Kernels;
        }
    }

    /// The thread runs neither.
    pub(super) fn end(&mut self) {
        self.until = None;
    }
}

impl Engine {
    /// From the next run on, calls `tell` when the deadline of a run has passed and its orchestration has not returned.
    pub(crate) fn on_overdue(self: &Arc<Self>, tell: Tell) -> Result<(), RuntimeError> {
        let mut state = self.lock();
        state.orchestrating.tell = Some(tell);
        if state.orchestrating.has_thread {
            return Ok(());
        }
        let engine = self.clone();
        let thread =
            std::thread::Builder::new().name("graph deadline".into()).spawn(move || engine.watch_deadlines());
        let handle =
            thread.map_err(|error| ErrorKind::System { what: "a thread", why: error.to_string() })?;
        state.orchestrating.has_thread = true;
        drop(state);
        self.handles.lock().unwrap_or_else(PoisonError::into_inner).push(handle);
        Ok(())
    }

    /// Has the thread look at what it waits for.
    pub(super) fn call_overdue(&self) {
        // One writer: who begins runs and ends the engine.
        let next = self.overdue.call.load().wrapping_add(1);
        self.overdue.call.store_and_notify(next, [Listener::new(&self.overdue.parked)]);
    }

    fn watch_deadlines(self: Arc<Self>) {
        let mut flag = ParkFlag::new(&self.overdue.parked);
        loop {
            let mut state = self.lock();
            if state.threads.shut_down {
                return;
            }
            let seen = self.overdue.call.load();
            let now = monotonic_ns();
            let until = match state.orchestrating.until {
                None => Deadline::since(now, LONGEST_WAIT),
                Some((_, deadline)) if !deadline.has_passed() => deadline,
                Some((phase, deadline)) => {
                    if let Some(error) = state.overdue(phase, deadline) {
                        let tell = state.orchestrating.tell.clone();
                        drop(state);
                        tell.iter().for_each(|tell| tell(error.clone()));
                        continue;
                    }
                    Deadline::since(now, GRACE)
                }
            };
            state.orchestrating.sleeps_until_ns = until.monotonic_ns();
            drop(state);
            // How it ends does not matter: the loop looks at everything.
            let _ = Wait::until(until)
                .on(&self.overdue.call, Some(&mut flag), |call| (call != seen).then_some(()));
        }
    }
}

impl super::State {
    /// The time of the run is over. If the calling thread does not notice that itself, the graph fails: with what its
    /// orchestration submitted last, or with the table that names its kernel, unless it has failed before.
    fn overdue(&mut self, phase: Phase, deadline: Deadline) -> Option<RuntimeError> {
        let (limit, table) = (deadline.limit(), self.table());
        let error = match phase {
            Phase::Orchestration => {
                if !Deadline::since(deadline.start_ns(), limit + GRACE).has_passed() {
                    return None;
                }
                let at = match self.last {
                    Some((task, site)) => At { task: Some(task), site: Some(site), ..At::default() },
                    None => At { site: self.scopes.first().and_then(|scope| scope.site), ..At::default() },
                };
                RuntimeError { kind: ErrorKind::NotReturned { limit, submitted: self.seq, table }, at }
            }
            Phase::Kernels => {
                if !self.caller_runs() {
                    return None;
                }
                self.error.clone().unwrap_or_else(|| ErrorKind::TimedOut { limit, table }.into())
            }
        };
        self.orchestrating.until = None;
        self.fail(error.clone());
        Some(error)
    }
}
