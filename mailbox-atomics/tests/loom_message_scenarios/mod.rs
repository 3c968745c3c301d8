//! The message slot as small scenarios for loom: two or three threads, one word each of header and payload.
//!
//! Budget: every scenario ends within some seconds in a release build.

use deadline::Deadline;
use loom::sync::Arc;
use loom::thread;
use mailbox_atomics::{Message, MessageSlot, MessageState, Wait, WordU64};
use std::time::Duration;

type Slot = MessageSlot<1, 1>;

pub(crate) fn check(scenario: fn()) {
    loom::model(scenario);
}

/// All schedules with at most two forced switches.
pub(crate) fn check_bounded(scenario: fn()) {
    bounded(scenario, 2);
}

/// All schedules with at most one forced switch: for scenarios with many parks.
pub(crate) fn check_one_switch(scenario: fn()) {
    bounded(scenario, 1);
}

fn bounded(scenario: fn(), switches: usize) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(switches);
    model.check(scenario);
}

/// Posts a message whose words are its generation.
fn post(slot: &Slot, generation: u64) {
    slot.post(generation, [generation], &[generation]);
}

/// The message in `slot` unless it was `taken`, all of whose words must be its own.
fn read(slot: &Slot, taken: u64) -> Option<Message<1>> {
    let message = slot.read(taken, |_| Some(1))?;
    let own = ([message.generation], vec![message.generation]);
    assert_eq!((message.header, message.payload.clone()), own, "a message has the words of another");
    Some(message)
}

/// MA-10: a copy that overlaps with the next message is never a mixture of both, and what was published is
/// whole.
pub(crate) fn a_copy_is_whole_while_the_slot_is_used_again() {
    let slot = Arc::new(Slot::default());
    let there = slot.clone();
    let writer = thread::spawn(move || {
        post(&there, 1);
        there.withdraw(1);
        post(&there, 2);
    });
    read(&slot, 0);
    writer.join().unwrap();
    assert_eq!(read(&slot, 0).map(|message| message.generation), Some(2));
}

/// MA-10 for two readers at once.
pub(crate) fn a_copy_is_whole_for_every_reader() {
    let slot = Arc::new(Slot::default());
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let there = slot.clone();
            thread::spawn(move || drop(read(&there, 0)))
        })
        .collect();
    post(&slot, 1);
    post(&slot, 2);
    readers.into_iter().for_each(|reader| reader.join().unwrap());
}

/// MA-10: neither a new state nor a withdrawal brings a message back that was taken.
pub(crate) fn a_message_is_taken_once() {
    let slot = Arc::new(Slot::default());
    let there = slot.clone();
    let writer = thread::spawn(move || {
        post(&there, 1);
        there.mark(1, MessageState::Seen);
        there.withdraw(1);
        post(&there, 2);
    });
    let mut taken = Vec::new();
    for _ in 0..2 {
        let last = taken.last().copied().unwrap_or(0);
        taken.extend(read(&slot, last).map(|message| message.generation));
    }
    writer.join().unwrap();
    assert!(taken.is_sorted_by(|a, b| a < b), "a message was taken twice: {taken:?}");
}

/// A refusal is still there for a reader that comes late, with the words that were refused.
pub(crate) fn a_late_reader_finds_a_refused_message() {
    let shared = Arc::new((Slot::default(), WordU64::new(0)));
    let there = shared.clone();
    let writer = thread::spawn(move || {
        post(&there.0, 1);
        there.0.mark(1, MessageState::Refused);
        there.1.store_and_wake(1);
    });
    long().on(&shared.1, None, |value| (value == 1).then_some(())).unwrap();
    let state = read(&shared.0, 0).map(|message| message.state);
    assert_eq!(state, Some(MessageState::Refused), "the refusal is not there");
    writer.join().unwrap();
}

/// One member's slot and the doorbell that its peers park on. That messages are whole is shown above, so one
/// word will do.
#[derive(Default)]
struct Member {
    slot: MessageSlot<1, 0>,
    doorbell: WordU64,
}

/// An exchange as `rendezvous` does it: post, take the other's message, mark the own one as seen, wait until
/// the other has done so too, withdraw.
fn exchange(mine: &Member, theirs: &Member, generation: u64) {
    mine.slot.post(generation, [generation], &[]);
    mine.doorbell.store_and_wake(2 * generation - 1);
    let message =
        long().on(&theirs.doorbell, None, |_| theirs.slot.read(generation - 1, |_| Some(0))).unwrap();
    assert_eq!(
        (message.generation, message.header),
        (generation, [generation]),
        "another exchange's message"
    );
    mine.slot.mark(generation, MessageState::Seen);
    mine.doorbell.store_and_wake(2 * generation);
    long().on(&theirs.doorbell, None, |_| (!theirs.slot.is_posted(generation)).then_some(())).unwrap();
    mine.slot.withdraw(generation);
}

/// Both members of an exchange get the other's message, and their slots serve the next exchange at once.
pub(crate) fn two_members_exchange_twice() {
    let members = Arc::new([Member::default(), Member::default()]);
    let run = |me: usize, members: &[Member; 2]| {
        (1..=2).for_each(|generation| exchange(&members[me], &members[1 - me], generation));
    };
    let there = members.clone();
    let other = thread::spawn(move || run(1, &there));
    run(0, &members);
    other.join().unwrap();
}

fn long() -> Wait<'static> {
    Wait::until(Deadline::after(Duration::from_secs(60 * 60)).unwrap())
}
