//! An orchestration that does not return: the thread that says so when the time is over.
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
    /// When that of the run is overdue; `None` when it has returned, or that was reported.
    until: Option<Deadline>,
    /// Until when the thread sleeps, on the monotonic clock.
    sleeps_until_ns: u64,
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
        let until = Deadline::since(deadline.start_ns(), deadline.limit() + GRACE);
        self.until = Some(until);
        until.monotonic_ns() < self.sleeps_until_ns
    }

    /// It has returned.
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
            let until = state.orchestrating.until;
            if until.is_some_and(|until| until.has_passed()) {
                let error = state.overdue();
                let tell = state.orchestrating.tell.clone();
                drop(state);
                tell.iter().for_each(|tell| tell(error.clone()));
                continue;
            }
            let until = until.unwrap_or_else(|| Deadline::since(monotonic_ns(), LONGEST_WAIT));
            state.orchestrating.sleeps_until_ns = until.monotonic_ns();
            drop(state);
            // How it ends does not matter: the loop looks at everything.
            let _ = Wait::until(until)
                .on(&self.overdue.call, Some(&mut flag), |call| (call != seen).then_some(()));
        }
    }
}

impl super::State {
    /// The graph fails, since its orchestration has not returned: with what it submitted last.
    fn overdue(&mut self) -> RuntimeError {
        let limit = self.orchestrating.until.take().map(|until| until.limit().saturating_sub(GRACE));
        let kind = ErrorKind::NotReturned {
            limit: limit.unwrap_or_default(),
            submitted: self.seq,
            table: self.table(),
        };
        let at = match self.last {
            Some((task, site)) => At { task: Some(task), kernel: None, site: Some(site) },
            None => At { site: self.scopes.first().and_then(|scope| scope.site), ..At::default() },
        };
        let error = RuntimeError { kind, at };
        self.fail(error.clone());
        error
    }
}
