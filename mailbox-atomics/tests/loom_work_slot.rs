//! Work that is given to a thread and back, under loom (MA-22): alone, with two that may take note of its end, and with the call and the
//! list of idle threads around it as chip-runtime has them. The models reject the code without any of its steps.
//!
//! # Safety
//! The scenarios call the place as its contract says: with the mutex held, or from the one thread that works. What the work writes is
//! in a cell without a lock; loom checks that its accesses are ordered.
#![cfg(loom)]
#![allow(unsafe_code, missing_docs)]

mod loom_rejected;

use deadline::{Deadline, LONGEST_WAIT};
use loom::cell::UnsafeCell;
use loom::sync::{Arc, Mutex, MutexGuard};
use loom::thread;
use loom_rejected::rejected;
use mailbox_atomics::{Listener, ParkFlag, Site, Wait, WordU32, WorkSlot};

fn check(scenario: fn()) {
    loom::model(scenario);
}

fn check_bounded(scenario: fn()) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(scenario);
}

/// What the mutex guards.
#[derive(Default)]
struct State {
    /// Pieces of work that wait for a thread.
    waiting: u32,
    /// Whether one was given and nobody took note of its end.
    fed: bool,
    /// Whether the thread may be given something.
    idle: bool,
    /// Pieces of work whose end was noted.
    done: u32,
}

struct Chip {
    state: Mutex<State>,
    place: WorkSlot<u32, u32>,
    /// What the work writes.
    memory: UnsafeCell<u32>,
    call: WordU32,
    parked: WordU32,
}

// SAFETY: see the head of the file.
unsafe impl Sync for Chip {}
// SAFETY: as above.
unsafe impl Send for Chip {}

impl Chip {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            place: WorkSlot::default(),
            memory: UnsafeCell::new(0),
            call: WordU32::new(0),
            parked: WordU32::new(0),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn give(&self, state: &mut State, work: u32) {
        state.fed = true;
        // SAFETY: the mutex is held, and what was given last was taken back.
        unsafe { self.place.give(work) };
    }

    /// Takes note of an end, if there is one; the memory is that of who does.
    fn take_ended(&self, state: &mut State) -> bool {
        // SAFETY: the mutex is held.
        let Some(end) = (unsafe { self.place.take_ended() }) else { return false };
        assert!(state.fed, "an end was taken twice");
        (state.fed, state.idle) = (false, true);
        state.done += 1;
        // SAFETY: the work has ended.
        let written = self.memory.with(|memory| unsafe { *memory });
        // Odd ones say what they wrote.
        assert_eq!(end, (written % 2 == 1).then_some(written));
        true
    }

    /// Does what was given, and says so.
    fn work(&self) -> bool {
        // SAFETY: called by the thread that works.
        let Some(work) = (unsafe { self.place.given() }) else { return false };
        // SAFETY: the work has been given, and has not ended.
        self.memory.with_mut(|memory| unsafe { *memory = work });
        // SAFETY: once for this work.
        unsafe { self.place.end((work % 2 == 1).then_some(work)) };
        true
    }

    /// Before the mutex is released: calls the thread if there is work for it, and says whether it did.
    fn leave(&self, state: &mut State) -> bool {
        let calls = state.idle && state.waiting > 0;
        if calls {
            state.idle = false;
            state.waiting -= 1;
            let work = state.done + 1;
            self.give(state, work);
            self.call.store(self.call.load().wrapping_add(1));
        }
        calls
    }

    /// After that.
    fn wake(&self, calls: bool) {
        if calls {
            self.call.notify([Listener::new(&self.parked)]);
        }
    }

    fn park(&self, seen: u32) {
        let mut flag = ParkFlag::new(&self.parked);
        let wait = Wait::until(Deadline::after(LONGEST_WAIT).unwrap());
        wait.on(&self.call, Some(&mut flag), |call| (call != seen).then_some(())).unwrap();
    }

    /// The life of the thread, until it and others have done `most` pieces of work.
    fn serve(&self, most: u32) {
        let mut state = self.lock();
        while state.done < most {
            if state.waiting > 0 {
                state.waiting -= 1;
                state.done += 1;
                // SAFETY: nothing is given, as the thread is here.
                self.memory.with_mut(|memory| unsafe { *memory = 0 });
                continue;
            }
            state.idle = true;
            let mut seen = self.call.load();
            drop(state);
            self.park(seen);
            state = loop {
                seen = self.call.load();
                assert!(self.work(), "called, and given nothing");
                let mut state = self.lock();
                self.take_ended(&mut state);
                if std::mem::take(&mut state.idle) {
                    break state;
                }
                // Somebody has taken note and given the next, and is about to call.
                drop(state);
                self.park(seen);
            };
        }
    }
}

/// Two pieces of work, one after the other.
fn there_and_back() {
    let here = Chip::new();
    let there = here.clone();
    let worker = thread::spawn(move || {
        for _ in 0..2 {
            while !there.work() {
                thread::yield_now();
            }
        }
    });
    for work in 1..=2 {
        here.give(&mut here.lock(), work);
        while !here.take_ended(&mut here.lock()) {
            thread::yield_now();
        }
    }
    worker.join().unwrap();
    assert_eq!(here.lock().done, 2);
}

/// One piece of work, whose end two may take note of.
fn one_of_two_takes_note() {
    let here = Chip::new();
    here.give(&mut here.lock(), 1);
    let [worker, other] = [here.clone(), here.clone()];
    let worker = thread::spawn(move || worker.work());
    let other = thread::spawn(move || other.take_ended(&mut other.lock()));
    let first = here.take_ended(&mut here.lock());
    worker.join().unwrap();
    let second = other.join().unwrap();
    let third = here.take_ended(&mut here.lock());
    assert_eq!([first, second, third].iter().filter(|took| **took).count(), 1);
}

/// Two submits to a thread that parks when it has nothing to do, and takes note itself where the submits do not.
fn submits_to_a_thread_that_parks() {
    let here = Chip::new();
    let there = here.clone();
    let worker = thread::spawn(move || there.serve(2));
    for _ in 0..2 {
        let mut state = here.lock();
        here.take_ended(&mut state);
        state.waiting += 1;
        let calls = here.leave(&mut state);
        drop(state);
        here.wake(calls);
    }
    worker.join().unwrap();
    assert_eq!(here.lock().done, 2);
}

#[test]
fn model_work_goes_there_and_back() {
    check(there_and_back);
}

#[test]
fn model_one_takes_note_of_an_end() {
    check_bounded(one_of_two_takes_note);
}

#[test]
fn model_no_submit_is_lost() {
    check_bounded(submits_to_a_thread_that_parks);
}

macro_rules! mutants {
    ($($name:ident: $site:ident breaks $check:ident $scenario:ident with $loom_error:literal;)+) => { $(
        #[test]
        fn $name() {
            rejected(stringify!($name), Site::$site, $check, $scenario, $loom_error);
        }
    )+ };
}

// MA-22: work is done once, and one takes note of its end.
mutants! {
    mutant_relaxed_work: WorkGiven breaks check there_and_back with "Causality violation";
    mutant_relaxed_look_for_work: WorkObserved breaks check there_and_back with "Causality violation";
    mutant_relaxed_end: EndGiven breaks check there_and_back with "Causality violation";
    mutant_relaxed_look_for_an_end: EndObserved breaks check there_and_back with "Causality violation";
    mutant_end_taken_twice: EndTakenOnce breaks check_bounded one_of_two_takes_note with "taken twice";
    mutant_no_fence_after_the_call: NotifyFence breaks check_bounded submits_to_a_thread_that_parks with "deadlock";
    mutant_no_fence_before_the_park: ParkFence breaks check_bounded submits_to_a_thread_that_parks with "deadlock";
}
