//! Litmus tests: two processes, and outcomes that the orderings of this crate rule out. They are for the host of an
//! NPU, which mostly is an aarch64 machine: there the processor itself reorders what x86 keeps in order.
//! `cargo xtask hw-test --layer atomics`.
//!
//! Each round uses fresh words, so that nothing but the orderings under test keeps the two apart.
//!
//! # Safety
//! Forks. The children use shared memory and system calls, and no lock of the test harness.
#![cfg(not(loom))]
#![allow(unsafe_code, missing_docs)]

use child_process::Child;
use deadline::{Deadline, Death, HowDied};
use mailbox_atomics::{
    Barrier, Listener, MessageSlot, OneShot, ParkFlag, Place, SpinBudget, Wait, WordI32, WordU32, WordU64,
};
use shared_memory::Region;
use std::num::NonZeroI32;
use std::time::Duration;

const ROUNDS: usize = 20_000;

fn far() -> Deadline {
    Deadline::after(Duration::from_secs(120)).unwrap()
}

/// Runs `peer` in another process and `here` in this one; both must end well.
fn together(peer: impl FnOnce(), here: impl FnOnce(&Wait<'_>)) {
    let body = || {
        peer();
        0
    };
    // SAFETY: see the head of the file.
    let child = unsafe { Child::fork(&[], body) }.unwrap();
    let watch = || child.watch().death().map(|how| Death { peer: 1, pid: child.pid(), how });
    here(&Wait::until(far()).watching(&watch));
    assert_eq!(child.reap(far()), Some(HowDied::Exited(0)));
}

/// Message passing: a process that sees the word sees what was written before it.
#[test]
#[ignore = "a test of this host's processor: cargo xtask hw-test --layer atomics"]
fn a_payload_is_seen_with_the_word_that_announces_it() {
    // MA-1
    let region = Region::create("t", ROUNDS * 64).unwrap();
    let payload =
        |round: usize| [round as u64, !(round as u64), round as u64 * 3].map(u64::to_le_bytes).concat();
    let shot = |round: usize| OneShot::new(region.words::<WordI32>(round * 64).unwrap());
    let publish = |round: usize| {
        let write = || region.write(round * 64 + 8, &payload(round)).unwrap();
        shot(round).publish(NonZeroI32::MIN, write).unwrap();
    };
    together(
        || (0..ROUNDS).for_each(publish),
        |wait| {
            for round in 0..ROUNDS {
                shot(round).wait(wait).unwrap();
                let mut seen = [0; 24];
                region.read(round * 64 + 8, &mut seen).unwrap();
                assert_eq!(seen[..], payload(round)[..], "round {round}");
            }
        },
    );
}

/// Write-to-read causality: the word of the second process, which has seen the first one's, carries the first one's
/// payload to a third.
#[test]
#[ignore = "a test of this host's processor: cargo xtask hw-test --layer atomics"]
fn what_a_process_has_seen_is_seen_by_those_that_it_tells() {
    // MA-1
    let region = Region::create("t", ROUNDS * 64).unwrap();
    let word = |round: usize, at: usize| region.words::<WordU32>(round * 64 + at).unwrap();
    let is_set = |value: u32| (value > 0).then_some(());
    let tell = |round: usize| {
        Wait::until(far()).on(word(round, 8), None, is_set).unwrap();
        word(round, 16).store_and_wake(1);
    };
    let first = || {
        for round in 0..ROUNDS {
            region.write(round * 64 + 24, &[round as u8, 7]).unwrap();
            word(round, 8).store_and_wake(1);
        }
    };
    // SAFETY: see the head of the file.
    let first = unsafe {
        Child::fork(&[], || {
            first();
            0
        })
    }
    .unwrap();
    let middle = || (0..ROUNDS).for_each(tell);
    together(middle, |wait| {
        for round in 0..ROUNDS {
            wait.on(word(round, 16), None, is_set).unwrap();
            let mut seen = [0; 2];
            region.read(round * 64 + 24, &mut seen).unwrap();
            assert_eq!(seen, [round as u8, 7], "round {round}");
        }
    });
    assert_eq!(first.reap(far()), Some(HowDied::Exited(0)));
}

/// Store buffering: of a waiter that announces that it parks and a writer that stores, at least one sees the other. The
/// waiters park at once and poll nothing, so that a lost wake-up lasts to the deadline.
#[test]
#[ignore = "a test of this host's processor: cargo xtask hw-test --layer atomics"]
fn no_wake_up_is_lost_between_two_processes_that_park() {
    // MA-2
    let region = Region::create("t", 4096).unwrap();
    let words = [0, 128].map(|at| region.words::<WordU64>(at).unwrap());
    let flags = [256, 384].map(|at| region.words::<WordU32>(at).unwrap());
    let rounds = ROUNDS as u64;
    let play = |me: usize, wait: &Wait<'_>| {
        let mut flag = ParkFlag::new(flags[me]);
        for round in 1..=rounds {
            if me == 0 {
                words[0].store_and_notify(round, [Listener::new(flags[1])]);
            }
            wait.on(words[1 - me], Some(&mut flag), |value| (value >= round).then_some(())).unwrap();
            if me == 1 {
                words[1].store_and_notify(round, [Listener::new(flags[0])]);
            }
        }
    };
    let patient = || Wait::until(far()).polling_every(Duration::MAX);
    together(|| play(1, &patient()), |_| play(0, &patient()));
}

/// Coherence: what a process reads of one word never goes back.
#[test]
#[ignore = "a test of this host's processor: cargo xtask hw-test --layer atomics"]
fn a_word_that_only_grows_never_goes_back() {
    // MA-6
    let region = Region::create("t", 4096).unwrap();
    let (word, last) = (region.words::<WordU64>(0).unwrap(), 50 * ROUNDS as u64);
    together(
        || (1..=last).for_each(|value| word.store(value)),
        |wait| {
            let mut seen = 0;
            while seen < last {
                let before = seen;
                seen = wait.on(word, None, Some).unwrap();
                assert!(seen >= before, "{seen} after {before}");
            }
        },
    );
}

/// A sequence lock: readers get whole messages only.
#[test]
#[ignore = "a test of this host's processor: cargo xtask hw-test --layer atomics"]
fn messages_that_are_replaced_while_they_are_read_are_whole() {
    // MA-10
    type Slot = MessageSlot<2, 30>;
    let region = Region::create("t", 4096).unwrap();
    let slot = region.words::<Slot>(0).unwrap();
    let last = 5 * ROUNDS as u64;
    together(
        || (1..=last).for_each(|number| slot.post(number, [number; 2], &[number; 30])),
        |_| {
            let (mut seen, until) = (0, far());
            while seen < last && !until.has_passed() {
                let Some(message) = slot.read(seen, |_| Some(30)) else { continue };
                let number = message.generation;
                assert!(number >= seen, "{number} after {seen}");
                assert_eq!((message.header, message.payload), ([number; 2], vec![number; 30]));
                seen = number;
            }
            assert_eq!(seen, last, "the last message did not come");
        },
    );
}

/// A barrier of as many processes as there are cores, at least three: all see what all wrote before.
#[test]
#[ignore = "a test of this host's processor: cargo xtask hw-test --layer atomics"]
fn a_barrier_carries_the_stores_of_every_process_to_every_other() {
    // MA-6
    let parties = std::thread::available_parallelism().map_or(3, |cores| cores.get().clamp(3, 64));
    let rounds = (ROUNDS / parties) as u64;
    let region = Region::create("t", parties * 256).unwrap();
    let places = region.word_slice::<Place>(0, parties).unwrap();
    let stamp = |party: usize| parties * 128 + party * 128;
    let play = |me: usize| {
        let budget = SpinBudget::for_parties(parties);
        let (wait, barrier) = (Wait::until(far()).spinning(&budget), Barrier::new(places, me));
        for round in 1..=rounds {
            region.write(stamp(me), &round.to_le_bytes()).unwrap();
            barrier.wait(&wait).unwrap();
            for party in 0..parties {
                let mut seen = [0; 8];
                region.read(stamp(party), &mut seen).unwrap();
                assert_eq!(u64::from_le_bytes(seen), round, "party {me} of {parties} reads party {party}");
            }
            barrier.wait(&wait).unwrap();
        }
        0
    };
    // SAFETY: see the head of the file.
    let start = |me: usize| unsafe { Child::fork(&[], || play(me)) }.unwrap();
    let children: Vec<Child> = (0..parties).map(start).collect();
    for child in children {
        assert_eq!(child.reap(far()), Some(HowDied::Exited(0)), "of {parties} parties");
    }
}
