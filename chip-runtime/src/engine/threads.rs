//! The threads that run kernels. A thread is one core at a time: it takes the next launch, whichever core that is for.
//!
//! Threads are made when they are needed and stay. One that finds nothing to start spins for a while, if a processor is
//! to spare, and then parks. Who makes a task ready calls at most one thread, and none while there are as many busy ones
//! as processors: they take the task when they are done. Kernels may wait for each other, so that this could last for
//! ever; one thread, the *watcher*, therefore looks once in a while whether anything ends, and starts what is ready if
//! not. It also looks at the signals that tasks wait for.
//!
//! The thread that calls `run` can be one more of them, the *caller*, while it waits for the end of a graph: it takes
//! launches, watches and idles as the others do, until the graph has ended or its time is over.
//!
//! A thread that spins is given its launch in its *mailbox*, and leaves there how it ended: the builder takes note of it with its next
//! call, so that the state of the graph stays in the cache of its processor. If nobody does for a moment, the thread does. A thread that
//! came when much was ready takes some launches by itself, and then waits to be given the next.
//!
//! Relaxed accesses are to numbers that bound a cost, and order nothing.
//!
//! # Safety
//! Uses the mailbox of a thread from that thread: there is one for each number. Gives and takes back what is in it where the mutex of
//! the state is held.
#![allow(unsafe_code)]

use super::Engine;
use super::launch::{Scratch, panic_text};
use super::mailbox::{Ended, Given, Mailbox};
use super::places::{MOST_SPINNING, Places};
use super::ready::Launch;
use super::state::State;
use crate::error::ErrorKind;
use crate::record::Span;
use deadline::{Deadline, LONGEST_WAIT, coarse_monotonic_ns, monotonic_ns};
use mailbox_atomics::{AllowedCores, CpuQuota, Listener, ParkFlag, Wait, WordU32};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

/// The shortest and the longest time that an idle thread spins.
const SPIN_NS: (u32, u32) = (2_000, 100_000);
/// How long a thread leaves the end of what it was given to others: some submits.
const PATIENCE_NS: u64 = 2_000;
/// So many launches a thread takes in a row while the graph is built.
const IN_A_ROW: u32 = 8;
/// Checks between two reads of the clock.
const CHECKS: u32 = 64;
/// How long the watcher sleeps.
const WATCH_PAUSE: Duration = Duration::from_millis(1);
/// More than the coarse clock is late.
const COARSE_NS: u64 = 20_000_000;
/// After so many looks at nothing the watcher parks.
const WATCH_ROUNDS: u32 = 8;

/// Where a thread waits to be called. The call and the turn of the mailbox share a line: they are written together, by who gives a
/// launch.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub(super) struct Parking {
    /// Grows when the thread is to come.
    call: WordU32,
    /// What it is called for, if that is one launch.
    mailbox: Mailbox,
    parked: Parked,
}

// What is written for a launch is one line.
const _: () = assert!(size_of::<WordU32>() + size_of::<u32>() + size_of::<Given>() <= 64);

/// Changes rarely, and whoever calls looks at it.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Parked(WordU32);

impl Parking {
    /// Lets the thread come. One writer at a time: who took the thread from the list of idle ones.
    fn call(&self) {
        self.call.store(self.call.load().wrapping_add(1));
    }

    /// Whether it has ended what it was given: a hint.
    pub(super) fn has_ended(&self) -> bool {
        self.mailbox.has_ended()
    }

    /// Wakes it if it sleeps, after a call.
    fn wake(&self) {
        self.call.notify([Listener::new(&self.parked.0)]);
    }

    /// Sleeps until the thread is called; false when that was not before the time.
    fn park_until(&self, seen: u32, until: Deadline) -> bool {
        let mut flag = ParkFlag::new(&self.parked.0);
        Wait::until(until).on(&self.call, Some(&mut flag), |call| (call != seen).then_some(())).is_ok()
    }

    /// Sleeps until the thread is called.
    fn park(&self, seen: u32) {
        while !self.park_until(seen, far()) {}
    }

    /// Whether it is called before it should look after the end of its launch itself.
    fn is_called_soon(&self, seen: u32) -> bool {
        let mut end = None;
        loop {
            for _ in 0..CHECKS / 4 {
                if self.call.load() != seen {
                    return true;
                }
                std::hint::spin_loop();
            }
            let now = monotonic_ns();
            if now >= *end.get_or_insert(now + PATIENCE_NS) {
                return false;
            }
        }
    }
}

/// Who looks whether anything ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Watcher {
    Nobody,
    /// The next thread that comes.
    Wanted,
    Thread(usize),
}

/// How soon somebody must watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    Now,
    /// When a thread that sleeps looks again.
    InAMoment,
}

/// Which threads there are and what they do.
#[derive(Debug)]
pub(super) struct Threads {
    parking: Arc<[Parking]>,
    processors: usize,
    /// How many of them are for this chip.
    share: usize,
    started: usize,
    /// Parked or spinning; those that began to spin are the last, and the last of them is the last that ran.
    idle: Vec<usize>,
    /// Called, and not there yet.
    coming: usize,
    watcher: Watcher,
    /// A thread that looks again in a moment, whether it is the watcher or not.
    sleeps: Option<usize>,
    /// The caller runs kernels at the end of a run.
    pub(super) caller_helps: bool,
    /// It does so now.
    caller_serves: bool,
    runs: u64,
    pub(super) shut_down: bool,
}

/// Whom to wake after the mutex is released.
#[derive(Debug, Default)]
pub(super) struct Wakes {
    pub(super) builder: bool,
    /// A thread that has a launch in its mailbox, and was called.
    pub(super) given: Option<usize>,
    /// Mostly there is one at most.
    first: Option<usize>,
    threads: Vec<usize>,
    new: Vec<usize>,
    /// The watcher, which may sleep for signals, is among them.
    watcher: bool,
}

impl Wakes {
    pub(super) fn any_thread(&self) -> bool {
        self.given.is_some() || self.first.is_some() || !self.threads.is_empty() || !self.new.is_empty()
    }

    /// For the builder itself.
    pub(super) fn without_builder(self) -> Self {
        Self { builder: false, ..self }
    }
}

impl Threads {
    pub(super) fn new(parking: Arc<[Parking]>) -> Self {
        let processors = processors();
        Self {
            parking,
            processors,
            share: processors,
            started: 0,
            idle: Vec::new(),
            coming: 0,
            watcher: Watcher::Nobody,
            sleeps: None,
            caller_helps: false,
            caller_serves: false,
            runs: 0,
            shut_down: false,
        }
    }

    /// A run of so many chips begins.
    pub(super) fn begin_run(&mut self, chips: usize) {
        self.runs += 1;
        // Where the caller takes part, what nobody is called for still has a thread that takes it.
        let chips = if self.caller_helps { chips.max(1) } else { 1 };
        self.share = self.processors.div_ceil(chips);
    }

    /// The number of the calling thread.
    pub(super) fn caller(&self) -> usize {
        self.parking.len() - 1
    }

    /// The caller is one of the threads from now on.
    pub(super) fn caller_comes(&mut self) -> usize {
        self.caller_serves = true;
        self.caller()
    }

    /// It is not one of them any more.
    pub(super) fn caller_leaves(&mut self) {
        if std::mem::take(&mut self.caller_serves) {
            let caller = self.caller();
            self.stop_idling(caller);
            self.stop_watching(caller);
        }
    }

    /// Calls the caller if it is one of the threads and waits. False if it is none of them.
    pub(super) fn call_caller(&mut self, wakes: &mut Wakes) -> bool {
        let caller = self.caller();
        if self.caller_serves {
            if self.stop_idling(caller) {
                wakes.threads.push(caller);
                self.coming += 1;
            } else if self.stop_watching(caller) {
                wakes.watcher = true;
                wakes.threads.push(caller);
                self.coming += 1;
            }
        }
        self.caller_serves
    }

    /// The thread is not the watcher any more, nor does it sleep; whether it was.
    fn stop_watching(&mut self, thread: usize) -> bool {
        let slept = self.sleeps.take_if(|sleeps| *sleeps == thread).is_some();
        let watched = self.watcher == Watcher::Thread(thread);
        if watched {
            self.watcher = Watcher::Nobody;
        }
        watched || slept
    }

    /// Whether a thread without work may watch: nobody does, one that is still to come, or one that looks only in a moment.
    fn may_watch(&self) -> bool {
        match self.watcher {
            Watcher::Nobody | Watcher::Wanted => true,
            Watcher::Thread(thread) => self.sleeps == Some(thread),
        }
    }

    /// Whether so many threads use all processors that are for this chip.
    pub(super) fn are_enough(&self, busy: usize) -> bool {
        busy >= self.share
    }

    pub(super) fn coming(&self) -> usize {
        self.coming
    }

    /// Calls threads: as many as there are launches that `must` run, and one if something `could` start and there is
    /// a processor to spare beside the `busy` threads.
    pub(super) fn call(&mut self, wakes: &mut Wakes, must: usize, could: bool, busy: usize) {
        while self.coming < must && self.call_one(wakes) {}
        if self.coming > 0 || !could {
            return;
        }
        if self.spinning().is_some() || !self.are_enough(busy) {
            self.call_one(wakes);
        } else {
            self.call_watcher(wakes, When::InAMoment);
        }
    }

    /// The idle thread that ran last, if it spins.
    pub(super) fn spinning(&self) -> Option<usize> {
        // Acquire, in `load`, although nothing is read after it: a guess that costs a system call where it is wrong.
        self.idle.last().copied().filter(|thread| self.parking[*thread].parked.0.load() == 0)
    }

    /// Gives a launch to the thread that spins, which is not idle any more.
    pub(super) fn give(&mut self, thread: usize, given: Given) {
        self.idle.pop();
        let parking = &self.parking[thread];
        // SAFETY: a state, of which this is a part, is used by who holds its mutex; the thread was idle, so that its last launch was
        // taken back.
        unsafe { parking.mailbox.give(given) };
        // At once: the line would come back for a call that is made later.
        parking.call();
    }

    /// How the launch ended that the thread was given, once.
    pub(super) fn take_ended(&mut self, thread: usize) -> Option<Ended> {
        // SAFETY: as above.
        let ended = unsafe { self.parking[thread].mailbox.take_ended() }?;
        Some(ended.unwrap_or_else(Ended::plain))
    }

    /// What the thread was given has ended: it is idle, and spins.
    pub(super) fn idles(&mut self, thread: usize) {
        self.idle.push(thread);
    }

    /// Has a thread watch, unless one does.
    pub(super) fn call_watcher(&mut self, wakes: &mut Wakes, when: When) {
        match (self.watcher, self.sleeps, when) {
            (Watcher::Nobody, Some(thread), When::InAMoment) => self.watcher = Watcher::Thread(thread),
            (Watcher::Nobody, ..) if self.call_one(wakes) => self.watcher = Watcher::Wanted,
            (Watcher::Thread(watcher), Some(thread), When::Now) if watcher == thread => {
                self.stop_watching(thread);
                wakes.threads.push(thread);
                self.coming += 1;
                self.watcher = Watcher::Wanted;
            }
            _ => {}
        }
    }

    fn call_one(&mut self, wakes: &mut Wakes) -> bool {
        if let Some(thread) = self.idle.pop() {
            match wakes.first {
                None => wakes.first = Some(thread),
                Some(_) => wakes.threads.push(thread),
            }
        } else if self.started < self.caller() {
            wakes.new.push(self.started);
            self.started += 1;
        } else if let Some(thread) = self.watching() {
            wakes.watcher = self.stop_watching(thread);
            wakes.threads.push(thread);
        } else {
            return false;
        }
        self.coming += 1;
        true
    }

    /// The thread goes on by itself, if it is idle.
    fn stop_idling(&mut self, thread: usize) -> bool {
        let place = self.idle.iter().rposition(|idle| *idle == thread);
        place.map(|place| self.idle.remove(place)).is_some()
    }

    /// All that wait.
    pub(super) fn call_all(&mut self) -> Wakes {
        let mut threads = std::mem::take(&mut self.idle);
        let mut watcher = false;
        while let Some(thread) = self.watching() {
            watcher |= self.stop_watching(thread);
            threads.push(thread);
        }
        self.coming += threads.len();
        Wakes { threads, watcher, ..Wakes::default() }
    }

    /// One that looks again in a moment, or watches.
    fn watching(&self) -> Option<usize> {
        let watcher = if let Watcher::Thread(thread) = self.watcher { Some(thread) } else { None };
        self.sleeps.or(watcher)
    }
}

/// How many processors this process may use all the time.
fn processors() -> usize {
    let allowed = AllowedCores::of_this_process().count().max(1);
    CpuQuota::of_this_process().map_or(allowed, |quota| allowed.min(quota.whole_cores()))
}

/// How long idle threads spin, adapted to whether it was worth it.
#[derive(Debug)]
pub(super) struct Spinning {
    places: Arc<Places>,
    now: AtomicU32,
    ns: AtomicU32,
}

impl Spinning {
    pub(super) fn new(places: Arc<Places>) -> Self {
        Self { places, now: AtomicU32::new(0), ns: AtomicU32::new(SPIN_NS.1) }
    }

    /// Whether one more thread may spin: a hint.
    fn has_room(&self, processors: usize) -> bool {
        (self.now.load(Ordering::Relaxed) as usize) < most_spinning(processors)
    }

    /// Whether the thread may spin beside those that work, on so many processors: its place among those that do; `None`
    /// where enough threads spin.
    fn begin(&self, processors: usize) -> Option<u32> {
        let order = self.now.fetch_add(1, Ordering::Relaxed);
        if order as usize >= most_spinning(processors) {
            self.now.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(order)
    }

    /// Whether `ready` held before the time was up. A thread that is not the builder makes room for it.
    fn spin(&self, order: u32, is_builder: bool, ready: impl Fn() -> bool) -> bool {
        let ns = self.ns.load(Ordering::Relaxed);
        let mut end = None;
        let came = 'spinning: loop {
            for _ in 0..CHECKS {
                if ready() {
                    break 'spinning true;
                }
                std::hint::spin_loop();
            }
            let now = monotonic_ns();
            if now >= *end.get_or_insert(now + u64::from(ns)) {
                break false;
            }
            // The thread that is waited for may be on this processor.
            std::thread::yield_now();
            if !is_builder {
                self.places.look_after_spinning(order, now);
            }
        };
        self.now.fetch_sub(1, Ordering::Relaxed);
        let next = if came { ns.saturating_mul(2) } else { ns / 2 }.clamp(SPIN_NS.0, SPIN_NS.1);
        if next != ns {
            self.ns.store(next, Ordering::Relaxed);
        }
        came
    }
}

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
        self.lock().threads.coming -= 1;
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

fn most_spinning(processors: usize) -> usize {
    // One processor is the builder's, or that of the kernel that is waited for.
    processors.saturating_sub(1).min(MOST_SPINNING)
}

fn far() -> Deadline {
    Deadline::since(monotonic_ns(), LONGEST_WAIT)
}

/// Whether it has passed: asked often, and mostly it is far.
fn is_over(until: Deadline) -> bool {
    coarse_monotonic_ns() + COARSE_NS >= until.monotonic_ns() && until.has_passed()
}
