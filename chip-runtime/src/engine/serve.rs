//! The life of a thread that runs kernels: it takes launches, waits to be called, and watches.
//!
//! # Safety
//! Uses the mailbox of a thread from that thread: there is one for each number.
#![allow(unsafe_code)]

use super::Engine;
use super::launch::{Scratch, panic_text};
use super::mailbox::{Ended, Given};
use super::parking::far;
use super::ready::Launch;
use super::state::State;
use super::threads::{Wakes, Watcher};
use crate::error::ErrorKind;
use crate::record::Span;
use deadline::{Deadline, coarse_monotonic_ns, monotonic_ns};
use mailbox_atomics::{Listener, wake_promptly};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

/// So many launches a thread takes in a row while the graph is built.
const IN_A_ROW: u32 = 8;
/// How long the watcher sleeps.
const WATCH_PAUSE: Duration = Duration::from_millis(1);
/// More than the coarse clock is late.
const COARSE_NS: u64 = 20_000_000;
/// After so many looks at nothing the watcher parks.
const WATCH_ROUNDS: u32 = 8;

impl Engine {
    /// Wakes and starts the threads that are called.
    pub(super) fn wake(self: &Arc<Self>, wakes: Wakes) {
        if wakes.builder {
            let next = self.progress.load().wrapping_add(1);
            self.progress.store_and_notify(next, [Listener::new(&self.builder_parked)]);
        }
        if let Some(thread) = wakes.given {
            self.parking[thread].wake();
        }
        for thread in wakes.first.into_iter().chain(wakes.threads) {
            let parking = &self.parking[thread];
            parking.call();
            parking.wake();
        }
        if wakes.watcher {
            let signals = self.lock().poller.signals().clone();
            signals.notify();
        }
        for thread in wakes.new {
            let engine = self.clone();
            let name = format!("core thread {thread}");
            match std::thread::Builder::new().name(name).spawn(move || engine.serve(thread)) {
                Ok(handle) => self.handles.lock().unwrap_or_else(PoisonError::into_inner).push(handle),
                Err(error) => self.thread_refused(error),
            }
        }
    }

    fn thread_refused(self: &Arc<Self>, error: std::io::Error) {
        let mut state = self.lock();
        state.threads.coming -= 1;
        state.fail(ErrorKind::System { what: "a core thread", why: error.to_string() }.into());
        let mut wakes = state.leave();
        // The next would be refused too.
        state.threads.coming -= std::mem::take(&mut wakes.new).len();
        drop(state);
        self.wake(wakes);
    }

    /// The life of a core thread. A panic in it, which is not one of a kernel, ends the graph and not the thread.
    fn serve(self: Arc<Self>, me: usize) {
        let mut scratch = Scratch::new();
        let mut state = self.lock();
        state.threads.coming -= 1;
        // A caller that takes part is the one that waits for signals; the others would only come before it.
        let waits_for_signals = !state.threads.caller_helps;
        drop(state);
        if waits_for_signals {
            // Without it the wake-up takes longer.
            let _ = wake_promptly();
        }
        let mut serve = || drop(self.take_launches(self.lock(), me, &mut scratch, None));
        while let Err(panic) = catch_unwind(AssertUnwindSafe(&mut serve)) {
            let mut state = self.lock();
            state.threads.stop_watching(me);
            state.fail(ErrorKind::Panicked(panic_text(&*panic)).into());
            let wakes = state.leave();
            drop(state);
            self.wake(wakes);
        }
    }

    /// Runs kernels and waits for more. The caller, which has a deadline, returns when the run is over or its time is.
    pub(super) fn take_launches<'e>(
        self: &'e Arc<Self>,
        mut state: MutexGuard<'e, State>,
        me: usize,
        scratch: &mut Scratch,
        until: Option<Deadline>,
    ) -> MutexGuard<'e, State> {
        let mut row = 0;
        while !state.threads.shut_down {
            if until.is_some() && state.goal_is_reached() {
                state.goal = None;
            }
            if until.is_some_and(|until| state.goal.is_none() || is_over(until)) {
                break;
            }
            if until.is_none() && state.threads.watcher == Watcher::Wanted && state.nothing_must_start() {
                state = self.watch(state, me, until);
                continue;
            }
            // The builder, which is about to submit more, can give it the next.
            let waits_for_more = state.building && row >= IN_A_ROW && state.nothing_must_start();
            if waits_for_more && self.spinning.has_room(state.threads.share) {
                state = self.idle(state, me, scratch, until);
                row = 0;
                continue;
            }
            row += 1;
            let Some(launch) = state.begin(me) else {
                row = 0;
                let wanted = state.poller.armed() > 0 || state.threads.watcher == Watcher::Wanted;
                let watches = wanted && state.threads.may_watch();
                state = match watches {
                    true => self.watch(state, me, until),
                    false => self.idle(state, me, scratch, until),
                };
                continue;
            };
            if state.threads.watcher == Watcher::Wanted && state.threads.coming == 0 {
                // This one was to watch.
                state.threads.watcher = Watcher::Nobody;
            }
            let recorded = state.recording.is_some();
            let wakes = state.leave();
            drop(state);
            self.wake(wakes);
            let Ended { outcome, span } = self.call_kernel(&launch, scratch, recorded);
            state = self.lock();
            state.finish(&launch, outcome, span);
            state.take_ended();
        }
        state
    }

    fn call_kernel(&self, launch: &Launch, scratch: &mut Scratch, recorded: bool) -> Ended {
        let start_ns = if recorded { monotonic_ns() } else { 0 };
        let outcome = scratch.run(launch, &self.clusters[usize::from(launch.core.cluster)]);
        let span =
            recorded.then(|| Span::new(launch.task, launch.block, launch.core, start_ns, monotonic_ns()));
        Ended { outcome, span }
    }

    /// Waits until the thread is called. Meanwhile it runs what it is given.
    fn idle<'e>(
        self: &'e Arc<Self>,
        mut state: MutexGuard<'e, State>,
        me: usize,
        scratch: &mut Scratch,
        until: Option<Deadline>,
    ) -> MutexGuard<'e, State> {
        let parking = &self.parking[me];
        let mut seen = parking.call.load();
        let order = self.spinning.begin(state.threads.share);
        match order {
            Some(_) => state.threads.idle.push(me),
            // Who spins is called first: that costs no system call.
            None => state.threads.idle.insert(0, me),
        }
        let wakes = state.leave();
        drop(state);
        self.wake(wakes);
        let is_called = || parking.call.load() != seen;
        let came = order.is_some_and(|order| self.spinning.spin(order, until.is_some(), is_called));
        if !came && !parking.park_until(seen, until.unwrap_or_else(far)) {
            let mut state = self.lock();
            if state.threads.stop_idling(me) {
                return state;
            }
            // Who took this thread from the list of idle ones is about to call it.
            drop(state);
            parking.park(seen);
        }
        // SAFETY: here and below: the mailbox is this thread's.
        while let Some(Given { launch, recorded }) = unsafe { parking.mailbox.given() } {
            seen = parking.call.load();
            let ended = self.call_kernel(&launch, scratch, recorded);
            // SAFETY: this launch, once.
            unsafe { parking.mailbox.end(ended.unless_plain()) };
            if !until.is_some_and(is_over) && parking.is_called_soon(seen) {
                continue;
            }
            let mut state = self.lock();
            state.take_ended();
            if state.threads.stop_idling(me) {
                return state;
            }
            // Who took this thread from the list of idle ones is about to call it.
            let wakes = state.leave();
            drop(state);
            self.wake(wakes);
            parking.park(seen);
        }
        let mut state = self.lock();
        state.threads.coming -= 1;
        state.take_ended();
        state
    }

    /// Looks once in a while whether anything ends. Returns when something is ready and nothing ended for as long, when
    /// there was nothing to look at for some time, or when the thread is called.
    fn watch<'e>(
        self: &'e Arc<Self>,
        mut state: MutexGuard<'e, State>,
        me: usize,
        until: Option<Deadline>,
    ) -> MutexGuard<'e, State> {
        let parking = &self.parking[me];
        let seen = parking.call.load();
        state.threads.watcher = Watcher::Thread(me);
        let mut quiet = 0;
        loop {
            state.take_ended();
            let (run, ended) = (state.threads.runs, state.ended);
            // Another thread may have taken the role while this one slept.
            let watches = state.threads.watcher == Watcher::Thread(me);
            let waits = if watches { state.poll() } else { None };
            if waits.is_some() && state.threads.coming == 0 && state.can_start() {
                // What a signal made ready starts here. Another thread is called to watch only if more waits are armed.
                state.threads.stop_watching(me);
                return state;
            }
            let stalls = watches && state.can_start();
            // While it is built, what waits is mostly left to the caller, which will sleep at the doorbell.
            let waits = waits.filter(|_| !(state.building && state.threads.caller_helps));
            let signals = waits.map(|pause| (state.poller.signals().clone(), pause));
            if signals.is_none() {
                state.threads.sleeps.get_or_insert(me);
            }
            let wakes = state.leave();
            drop(state);
            self.wake(wakes);
            let called = if let Some((signals, pause)) = signals {
                let pause = if stalls { pause.at_most(WATCH_PAUSE) } else { pause };
                let pause = until.map_or(pause, |until| pause.at_most(until.left()));
                signals.sleep(&pause, || parking.call.load() != seen);
                parking.call.load() != seen
            } else {
                parking.park_until(seen, Deadline::since(monotonic_ns(), WATCH_PAUSE))
            };
            state = self.lock();
            if called {
                // Who called took the roles away.
                state.threads.coming -= 1;
                return state;
            }
            let watches = state.threads.watcher == Watcher::Thread(me);
            let sleeps = state.threads.sleeps.take_if(|sleeps| *sleeps == me).is_some();
            if !watches && !sleeps {
                // It is about to be called.
                drop(state);
                parking.park(seen);
                state = self.lock();
                state.threads.coming -= 1;
                return state;
            }
            let looks = watches && (state.can_start() || state.poller.armed() > 0);
            quiet = if looks { 0 } else { quiet + 1 };
            // Nothing ends, or there is more to do than one chip's share of the processors can.
            let stands = state.ended == ended || state.busy() < state.threads.processors;
            let stands = stands && stalls && watches && state.threads.runs == run && state.can_start();
            if stands || quiet >= WATCH_ROUNDS || until.is_some_and(is_over) {
                state.threads.stop_watching(me);
                return state;
            }
        }
    }
}

/// Whether it has passed: asked often, and mostly it is far.
fn is_over(until: Deadline) -> bool {
    coarse_monotonic_ns() + COARSE_NS >= until.monotonic_ns() && until.has_passed()
}
