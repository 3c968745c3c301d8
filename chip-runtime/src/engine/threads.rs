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
//! This file has who does what, in memory that the mutex of the state protects; what a thread does in its life is in `serve`.
//!
//! # Safety
//! Gives to the mailbox of a thread, and takes back what is in it, where the mutex of the state is held.
#![allow(unsafe_code)]

use super::mailbox::{Ended, Given};
use super::parking::Parking;
use mailbox_atomics::{AllowedCores, CpuQuota};
use std::sync::Arc;

/// Who looks whether anything ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Watcher {
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
    pub(super) processors: usize,
    /// How many of them are for this chip.
    pub(super) share: usize,
    started: usize,
    /// Parked or spinning; those that began to spin are the last, and the last of them is the last that ran.
    pub(super) idle: Vec<usize>,
    /// Called, and not there yet.
    pub(super) coming: usize,
    pub(super) watcher: Watcher,
    /// A thread that looks again in a moment, whether it is the watcher or not.
    pub(super) sleeps: Option<usize>,
    /// The caller runs kernels at the end of a run.
    pub(super) caller_helps: bool,
    /// It does so now.
    caller_serves: bool,
    pub(super) runs: u64,
    pub(super) shut_down: bool,
}

/// Whom to wake after the mutex is released.
#[derive(Debug, Default)]
pub(super) struct Wakes {
    pub(super) builder: bool,
    /// A thread that has a launch in its mailbox, and was called.
    pub(super) given: Option<usize>,
    /// Mostly there is one at most.
    pub(super) first: Option<usize>,
    pub(super) threads: Vec<usize>,
    pub(super) new: Vec<usize>,
    /// The watcher, which may sleep for signals, is among them.
    pub(super) watcher: bool,
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
    pub(super) fn stop_watching(&mut self, thread: usize) -> bool {
        let slept = self.sleeps.take_if(|sleeps| *sleeps == thread).is_some();
        let watched = self.watcher == Watcher::Thread(thread);
        if watched {
            self.watcher = Watcher::Nobody;
        }
        watched || slept
    }

    /// Whether a thread without work may watch: nobody does, one that is still to come, or one that looks only in a moment.
    pub(super) fn may_watch(&self) -> bool {
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
        self.idle.last().copied().filter(|thread| !self.parking[*thread].is_parked())
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
    pub(super) fn stop_idling(&mut self, thread: usize) -> bool {
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
