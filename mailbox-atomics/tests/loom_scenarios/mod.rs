//! The protocols as small scenarios for loom: at most three threads, parks instead of spins, one or two
//! rounds.
//!
//! Budget: every scenario ends within some seconds in a release build, with loom's default of unbounded
//! preemptions for most scenarios of two threads and at most [`PREEMPTIONS`] for the others.
#![allow(dead_code, reason = "models and mutants each use most of the scenarios")]

mod endings;

pub(crate) use endings::*;

use deadline::Deadline;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use mailbox_atomics::{Barrier, Listener, OneShot, ParkFlag, Place, Wait, WordI32, WordU32, WordU64};
use std::num::NonZeroI32;
use std::time::Duration;

/// Bounded scenarios explore all schedules with this many forced switches; two suffice for every mutant.
const PREEMPTIONS: usize = 2;

pub(crate) fn check(scenario: fn()) {
    loom::model(scenario);
}

pub(crate) fn check_bounded(scenario: fn()) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(PREEMPTIONS);
    model.check(scenario);
}

fn long() -> Wait<'static> {
    Wait::until(Deadline::after(Duration::from_secs(60 * 60)).unwrap())
}

/// A word and the park flag of its one waiter.
type Flagged = (WordU64, WordU32);

fn wait_for((word, flag): &Flagged, value: u64) {
    let reached = |found: u64| (found >= value).then_some(());
    long().on(word, Some(&mut ParkFlag::new(flag)), reached).unwrap();
}

/// Bytes that only the protocol protects: loom reports any access that is not ordered after the last one.
struct Payload(UnsafeCell<u32>);

// SAFETY: the scenarios show that the protocol orders all accesses; loom reports one that it does not.
unsafe impl Sync for Payload {}
// SAFETY: as above.
unsafe impl Send for Payload {}

impl Payload {
    fn new() -> Self {
        Self(UnsafeCell::new(0))
    }
    fn set(&self, value: u32) {
        self.0.with_mut(|cell| unsafe { *cell = value });
    }
    fn get(&self) -> u32 {
        self.0.with(|cell| unsafe { *cell })
    }
}

/// MA-1: a reader that sees the state sees the payload.
pub(crate) fn payload_before_state() {
    let shared = Arc::new((WordI32::new(0), Payload::new()));
    let there = shared.clone();
    let writer = thread::spawn(move || {
        OneShot::new(&there.0).publish(NonZeroI32::MIN, || there.1.set(7)).unwrap();
    });
    while OneShot::new(&shared.0).peek().is_none() {
        thread::yield_now();
    }
    assert_eq!(shared.1.get(), 7);
    writer.join().unwrap();
}

/// MA-2 for a writer that always wakes.
pub(crate) fn one_shot_wakes_its_reader() {
    let shared = Arc::new((WordI32::new(0), Payload::new()));
    let there = shared.clone();
    let writer = thread::spawn(move || {
        OneShot::new(&there.0).publish(NonZeroI32::MIN, || there.1.set(7)).unwrap();
    });
    OneShot::new(&shared.0).wait(&long()).unwrap();
    assert_eq!(shared.1.get(), 7);
    writer.join().unwrap();
}

/// MA-2 for a writer that wakes only a waiter that it sees parked.
pub(crate) fn no_wake_up_is_lost_between_last_check_and_park() {
    let shared: Arc<Flagged> = Arc::default();
    let there = shared.clone();
    let writer = thread::spawn(move || there.0.store_and_notify(1, [Listener::new(&there.1)]));
    wait_for(&shared, 1);
    writer.join().unwrap();
}

/// MA-2 with two steps: the waiter parks on the first value and must notice the second.
pub(crate) fn no_wake_up_is_lost_over_two_steps() {
    let shared: Arc<Flagged> = Arc::default();
    let there = shared.clone();
    let writer = thread::spawn(move || {
        there.0.store_and_notify(1, [Listener::new(&there.1)]);
        there.0.store_and_notify(2, [Listener::new(&there.1)]);
    });
    wait_for(&shared, 2);
    writer.join().unwrap();
}

/// MA-6: a fast party enters the next phase while a slow one still leaves the last.
pub(crate) fn a_fast_party_re_enters_the_barrier() {
    let shared = Arc::new(([Place::default(), Place::default()], [Payload::new(), Payload::new()]));
    let there = shared.clone();
    let rounds = |me: usize, shared: &([Place; 2], [Payload; 2])| {
        let barrier = Barrier::new(&shared.0, me);
        shared.1[me].set(1);
        assert_eq!(barrier.wait(&long()).unwrap(), 1);
        assert_eq!(shared.1[1 - me].get(), 1);
        assert_eq!(barrier.wait(&long()).unwrap(), 2);
    };
    let other = thread::spawn(move || rounds(1, &there));
    rounds(0, &shared);
    other.join().unwrap();
}

/// MA-6 and MA-1 for three parties: what each wrote before is visible to all after.
pub(crate) fn a_barrier_of_three_publishes_to_all() {
    let shared = Arc::new(([(); 3].map(|()| Place::default()), [(); 3].map(|()| Payload::new())));
    let round = |me: usize, shared: &([Place; 3], [Payload; 3])| {
        shared.1[me].set(me as u32 + 1);
        Barrier::new(&shared.0, me).wait(&long()).unwrap();
        let seen: u32 = shared.1.iter().map(Payload::get).sum();
        assert_eq!(seen, 6);
    };
    let others: Vec<_> = (1..3)
        .map(|me| {
            let there = shared.clone();
            thread::spawn(move || round(me, &there))
        })
        .collect();
    round(0, &shared);
    others.into_iter().for_each(|other| other.join().unwrap());
}

/// MA-8: a step that leaves the low half as it is. The store refuses it; without that check the waiter
/// compares equal in the kernel and sleeps through it.
pub(crate) fn a_step_in_the_high_half_alone() {
    let shared: Arc<Flagged> = Arc::default();
    let there = shared.clone();
    let writer = thread::spawn(move || there.0.store_and_notify(1 << 32, [Listener::new(&there.1)]));
    wait_for(&shared, 1 << 32);
    writer.join().unwrap();
}

/// MA-9: what the types forbid. The first waiter to return withdraws the announcement of the other.
pub(crate) fn two_waiters_with_one_flag() {
    let shared: Arc<Flagged> = Arc::default();
    let waiters = [1, 2].map(|value| {
        let there = shared.clone();
        thread::spawn(move || wait_for(&there, value))
    });
    shared.0.store_and_notify(1, [Listener::new(&shared.1)]);
    shared.0.store_and_notify(2, [Listener::new(&shared.1)]);
    waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
}
