//! The dispatch ring as small scenarios for loom: one or two slots, one or two frames, at most three threads.
//!
//! Budget: every scenario ends within some seconds in a release build. Scenarios of two threads and one frame are explored with
//! unbounded preemptions, the others with at most [`PREEMPTIONS`].
#![allow(dead_code, reason = "models and mutants each use most of the scenarios")]

use deadline::Deadline;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use mailbox_atomics::{
    DispatchReceiver, DispatchSender, DoneNumber, Listener, ParkFlag, SlotNumber, StickyWord, Wait, WordU32,
};
use std::num::NonZeroU32;
use std::time::Duration;

/// Two suffice for every mutant.
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

/// A slot: its number, and the frame, which only the protocol protects.
#[derive(Default)]
struct Slot {
    number: SlotNumber,
    frame: UnsafeCell<u64>,
}

/// A ring with all its words, what the receiver makes of the last frame, and the flags of those who wait for it.
struct Ring {
    slots: Vec<Slot>,
    done: DoneNumber,
    parked: WordU32,
    shutdown: StickyWord,
    result: UnsafeCell<u64>,
    sender_parked: WordU32,
    other_parked: WordU32,
}

// SAFETY: the scenarios show that the protocol orders all accesses to the cells; loom reports one that it does not.
unsafe impl Sync for Ring {}
// SAFETY: as above.
unsafe impl Send for Ring {}

impl Ring {
    fn new(slots: usize) -> Arc<Self> {
        Arc::new(Self {
            slots: (0..slots).map(|_| Slot::default()).collect(),
            done: DoneNumber::default(),
            parked: WordU32::new(0),
            shutdown: StickyWord::new(),
            result: UnsafeCell::new(0),
            sender_parked: WordU32::new(0),
            other_parked: WordU32::new(0),
        })
    }

    fn slot(&self, number: u64) -> &Slot {
        &self.slots[number as usize % self.slots.len()]
    }

    /// Sends the next frame, which says its own number, when there is room for it.
    fn send(&self, sender: &mut DispatchSender) {
        if let Some(before) = sender.blocked_by() {
            let mut parked = ParkFlag::new(&self.sender_parked);
            let done = self.done.wait_for(before, &long(), &mut parked).unwrap();
            sender.observe(done).unwrap();
        }
        let slot = self.slot(sender.next_number());
        slot.frame.with_mut(|frame| unsafe { *frame = sender.next_number() });
        sender.publish(&slot.number, &self.parked);
    }

    /// Receives one frame and checks it; `None` at shutdown.
    fn receive(&self, receiver: &mut DispatchReceiver<'_>) -> Option<u64> {
        let slot = self.slot(receiver.next_number());
        let number = receiver.next(&slot.number, &long()).unwrap()?;
        let frame = slot.frame.with(|frame| unsafe { *frame });
        assert_eq!(frame, number, "the frame of another number");
        Some(number)
    }

    fn finish(&self, receiver: &mut DispatchReceiver<'_>) {
        let listeners = [&self.sender_parked, &self.other_parked].map(Listener::new);
        receiver.finish(listeners);
    }

    fn receiver(&self) -> DispatchReceiver<'_> {
        DispatchReceiver::new(&self.done, &self.parked, &self.shutdown)
    }

    fn sender(&self) -> DispatchSender {
        DispatchSender::new(self.slots.len() as u64)
    }
}

/// MA-16, MA-2: the receiver gets the frame whole, also when it sleeps.
pub(crate) fn a_frame_arrives_whole() {
    let ring = Ring::new(1);
    let there = ring.clone();
    let sender = thread::spawn(move || there.send(&mut there.sender()));
    assert_eq!(ring.receive(&mut ring.receiver()), Some(1));
    sender.join().unwrap();
}

/// MA-16: two frames through one slot. The second is written when the first is done, and is not taken for it.
pub(crate) fn a_slot_is_written_again_when_its_frame_is_done() {
    let ring = Ring::new(1);
    let there = ring.clone();
    let sender = thread::spawn(move || {
        let mut sender = there.sender();
        there.send(&mut sender);
        there.send(&mut sender);
    });
    let mut receiver = ring.receiver();
    for number in 1..=2 {
        assert_eq!(ring.receive(&mut receiver), Some(number));
        ring.finish(&mut receiver);
    }
    sender.join().unwrap();
}

/// MA-16, MA-2: somebody else waits for a frame and finds what it did.
pub(crate) fn others_wait_for_a_frame_and_see_what_it_did() {
    let ring = Ring::new(2);
    let (there, other) = (ring.clone(), ring.clone());
    let receiver = thread::spawn(move || {
        let mut receiver = there.receiver();
        assert_eq!(there.receive(&mut receiver), Some(1));
        there.result.with_mut(|result| unsafe { *result = 7 });
        there.finish(&mut receiver);
    });
    let waiter = thread::spawn(move || {
        other.done.wait_for(1, &long(), &mut ParkFlag::new(&other.other_parked)).unwrap();
        assert_eq!(other.result.with(|result| unsafe { *result }), 7);
    });
    ring.send(&mut ring.sender());
    receiver.join().unwrap();
    waiter.join().unwrap();
}

/// Asks the receiver to stop; the frame that may be needed for that is the last one.
fn shut_down(ring: &Ring, sender: &mut DispatchSender) {
    if sender.shut_down(&ring.shutdown, NonZeroU32::MIN, &ring.done) {
        ring.send(sender);
    }
}

/// Serves until shutdown: no frame is left out, and none but the last, which asks for it, comes after the first `frames`.
fn serve(ring: &Ring, frames: u64) {
    let mut receiver = ring.receiver();
    let mut served = 0;
    while let Some(number) = ring.receive(&mut receiver) {
        if number > frames {
            break;
        }
        served += 1;
        ring.finish(&mut receiver);
    }
    assert_eq!(served, frames, "frames were left out");
}

/// MA-17, MA-2: a receiver that sleeps ends.
pub(crate) fn shutdown_wakes_an_idle_receiver() {
    let ring = Ring::new(1);
    let there = ring.clone();
    let receiver = thread::spawn(move || serve(&there, 0));
    shut_down(&ring, &mut ring.sender());
    receiver.join().unwrap();
}

/// MA-17, MA-5: so does one whose ring is full, after its last frame.
pub(crate) fn shutdown_ends_a_receiver_whose_ring_is_full() {
    let ring = Ring::new(1);
    let there = ring.clone();
    let receiver = thread::spawn(move || serve(&there, 1));
    let mut sender = ring.sender();
    ring.send(&mut sender);
    shut_down(&ring, &mut sender);
    receiver.join().unwrap();
}
