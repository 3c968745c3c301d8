//! The entry lock under loom: one thread at a time is inside (MA-20), however the bias of its owner ends, and the models reject the
//! code without any of its steps.
//!
//! `membarrier` is a barrier in every thread, wherever it is just then. Against a pair of a store and a load it does what a fence
//! between the two does, so the models have a fence in both threads.
//!
//! # Safety
//! The cells are accessed by the thread that is inside; loom checks it.
#![cfg(loom)]
#![allow(missing_docs, unsafe_code)]

mod loom_rejected;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use loom_rejected::rejected;
use mailbox_atomics::{EntryLock, NotEntered, Site, ThreadNumber};

const KEY: u64 = 5;

struct Guarded {
    lock: EntryLock,
    /// How often a thread was inside; nothing once the lock was closed.
    entries: UnsafeCell<Option<u32>>,
}

// SAFETY: see the head of the file.
unsafe impl Sync for Guarded {}

impl Guarded {
    fn opened_by(owner: ThreadNumber) -> Arc<Self> {
        let lock = EntryLock::new();
        assert!(lock.reserve());
        lock.open(KEY, owner);
        Arc::new(Self { lock, entries: UnsafeCell::new(Some(0)) })
    }

    /// Tries once. 1 when it was inside.
    fn enter(&self, me: ThreadNumber) -> u32 {
        match self.lock.enter(KEY, me) {
            Ok(_inside) => {
                // SAFETY: this thread is inside.
                self.entries.with_mut(|entries| {
                    let entries = unsafe { &mut *entries }.as_mut();
                    *entries.expect("the lock is closed, and a thread is inside") += 1;
                });
                1
            }
            Err(_) => 0,
        }
    }

    fn close(&self, me: ThreadNumber) -> bool {
        let Ok(inside) = self.lock.enter(KEY, me) else { return false };
        // SAFETY: this thread is inside.
        self.entries.with_mut(|entries| unsafe { *entries = None });
        inside.close();
        true
    }
}

fn check(scenario: fn()) {
    let mut builder = loom::model::Builder::new();
    // Threads that are preempted up to three times: seconds in a release build.
    builder.preemption_bound = Some(3);
    builder.check(scenario);
}

fn threads() -> [ThreadNumber; 3] {
    [1, 2, 3].map(ThreadNumber::model)
}

/// The owner enters twice while another thread takes its bias away.
fn the_owner_and_another() {
    let [one, two, _] = threads();
    let here = Guarded::opened_by(one);
    let there = here.clone();
    let other = thread::spawn(move || there.enter(two) + there.enter(two));
    let entered = here.enter(one) + here.enter(one) + other.join().unwrap();
    // Both are outside now, and the lock is free for either.
    let entered = entered + here.enter(two) + here.enter(one);
    here.entries.with(|entries| assert_eq!(unsafe { *entries }, Some(entered), "an entry was lost"));
}

/// The owner, and two threads that both want the bias gone.
fn the_owner_and_two_others() {
    let [one, two, three] = threads();
    let here = Guarded::opened_by(one);
    let others = [two, three].map(|me| {
        let there = here.clone();
        thread::spawn(move || there.enter(me))
    });
    let mut entered = here.enter(one);
    for other in others {
        entered += other.join().unwrap();
    }
    here.entries.with(|entries| assert_eq!(unsafe { *entries }, Some(entered), "an entry was lost"));
}

/// The owner closes it while another thread takes its bias away.
fn the_owner_closes_it() {
    let [one, two, _] = threads();
    let here = Guarded::opened_by(one);
    let there = here.clone();
    let other = thread::spawn(move || there.enter(two));
    let closed = here.close(one);
    other.join().unwrap();
    let after = here.lock.enter(KEY, two).map(drop);
    assert_eq!(
        after.err(),
        closed.then_some(NotEntered::Closed),
        "a closed lock was entered, or an open one not"
    );
}

#[test]
fn model_one_thread_at_a_time_is_inside() {
    check(the_owner_and_another);
}

#[test]
fn model_one_of_three_threads_at_a_time_is_inside() {
    check(the_owner_and_two_others);
}

#[test]
fn model_nobody_is_inside_a_closed_lock() {
    check(the_owner_closes_it);
}

/// What loom says of two threads in the cell at once.
const BOTH_INSIDE: &str = "Causality violation";

/// MA-20: one at a time.
#[test]
fn mutant_owner_without_a_fence() {
    rejected("mutant_owner_without_a_fence", Site::OwnerFence, check, the_owner_and_another, BOTH_INSIDE);
}

/// MA-20: one at a time.
#[test]
fn mutant_owner_does_not_look_again() {
    let test = "mutant_owner_does_not_look_again";
    rejected(test, Site::OwnerLooksAgain, check, the_owner_and_another, BOTH_INSIDE);
}

/// MA-20: one at a time.
#[test]
fn mutant_revoker_without_a_barrier() {
    let test = "mutant_revoker_without_a_barrier";
    rejected(test, Site::RevokerFence, check, the_owner_and_another, BOTH_INSIDE);
}

/// MA-20: one at a time.
#[test]
fn mutant_revoker_does_not_look() {
    rejected("mutant_revoker_does_not_look", Site::RevokerLooks, check, the_owner_and_another, BOTH_INSIDE);
}

/// MA-20: one at a time.
#[test]
fn mutant_revoker_relaxed() {
    rejected("mutant_revoker_relaxed", Site::RevokerObserves, check, the_owner_and_another, BOTH_INSIDE);
}

/// MA-20: one at a time.
#[test]
fn mutant_owner_leaves_relaxed() {
    rejected("mutant_owner_leaves_relaxed", Site::OwnerLeaves, check, the_owner_and_another, BOTH_INSIDE);
}

/// MA-20: none once it is closed.
#[test]
fn mutant_left_before_it_is_closed() {
    let test = "mutant_left_before_it_is_closed";
    rejected(test, Site::ClosedBeforeLeft, check, the_owner_closes_it, "a thread is inside");
}
