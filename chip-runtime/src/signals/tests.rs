//! # Safety
//! A completion is armed for a word that is a local of the test.
#![allow(unsafe_code)]

use super::*;
use crate::task::TaskId;
use comm_context::abi::CompletionEntry;
use std::time::Duration;

const WORD: u64 = 64;

fn wait(at_least: u32, from: Signaller) -> Wait {
    Wait { domain: Domain::BASE, offset: WORD, at_least, from }
}

fn add(rank: u32) -> Signal {
    Signal { domain: Domain::BASE, rank, offset: WORD, op: SignalOp::Add(1) }
}

fn pollers<const N: usize>(limit: Duration) -> [Poller; N] {
    let mut chips = Signals::in_process(N as u32, 4096).unwrap().into_iter();
    core::array::from_fn(|_| {
        let mut poller = Poller::new(chips.next().unwrap());
        poller.begin(
            1,
            &core::array::from_fn::<u32, N, _>(|rank| rank as u32),
            Deadline::after(limit).unwrap(),
        );
        poller
    })
}

const LONG: Duration = Duration::from_secs(60);

#[test]
fn a_wait_is_met_by_a_signal_and_by_the_sign_of_the_difference() {
    let [mut one, two] = pollers::<2>(LONG);
    let start = Signal { op: SignalOp::Set(u32::MAX), ..add(0) };
    assert_eq!(two.signals().send(&start).unwrap(), u32::MAX);
    // Behind the wrap of the counter.
    assert!(one.arm(TaskId(5), &wait(1, Signaller::Rank(1))).unwrap());
    assert!(!one.arm(TaskId(6), &wait(u32::MAX, Signaller::Rank(1))).unwrap(), "met already");
    let mut met = Vec::new();
    one.poll(false, &mut met).unwrap();
    assert_eq!((met.as_slice(), one.armed()), (&[][..], 1));
    assert_eq!(two.signals().send(&add(0)).unwrap(), 0);
    assert_eq!(two.signals().send(&add(0)).unwrap(), 1);
    one.poll(true, &mut met).unwrap();
    assert_eq!((met.as_slice(), one.armed()), (&[TaskId(5)][..], 0));
}

#[test]
fn a_sleep_ends_with_a_signal_also_when_it_parks() {
    let [mut one, two] = pollers::<2>(LONG);
    for round in 1..=20 {
        assert!(one.arm(TaskId(round), &wait(round as u32, Signaller::Rank(1))).unwrap());
        let mut met = Vec::new();
        let signals = two.signals().clone();
        let sender = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_micros(100 * (round % 4)));
            signals.send(&add(0)).unwrap();
        });
        let started = deadline::monotonic_ns();
        while met.is_empty() {
            let pause = one.poll(false, &mut met).unwrap();
            if met.is_empty() {
                one.signals().sleep(&pause, || false);
            }
        }
        assert_eq!(met, [TaskId(round)]);
        assert!(deadline::monotonic_ns() - started < 10_000_000_000);
        sender.join().unwrap();
    }
}

#[test]
fn words_outside_the_window_and_ranks_outside_the_domain_are_refused() {
    let [one, _] = pollers::<2>(LONG);
    let signals = one.signals();
    let refused = |wait: Wait| signals.check_wait(&wait).unwrap_err();
    let good = wait(1, Signaller::Rank(1));
    signals.check_wait(&good).unwrap();
    assert!(matches!(refused(Wait { offset: 4096, ..good }), SignalError::OutsideWindow { .. }));
    assert!(matches!(refused(Wait { offset: u64::MAX, ..good }), SignalError::OutsideWindow { .. }));
    assert!(matches!(refused(Wait { offset: 66, ..good }), SignalError::NotAligned { .. }));
    assert!(matches!(refused(Wait { from: Signaller::Rank(2), ..good }), SignalError::NoSuchRank { .. }));
    assert!(matches!(refused(Wait { domain: Domain(1), ..good }), SignalError::NoWindow { .. }));
    assert!(matches!(signals.target(&add(2)), Err(SignalError::NoSuchRank { rank: 2, nranks: 2, .. })));
    assert!(signals.send(&Signal { offset: 4094, ..add(1) }).is_err());
    assert!(Signals::alone().unwrap().check_wait(&good).is_err());
}

#[test]
fn a_named_buffer_has_an_address_in_every_window() {
    let [one, two] = pollers::<2>(LONG);
    let buffer = NamedBuffer { name: "x".into(), offset: 128, count: 10, element: 8 };
    one.signals().name_buffer(Domain::BASE, buffer.clone()).unwrap();
    let table = one.signals().table();
    let at = |rank, index| table.address(Domain::BASE, rank, "x", index);
    assert_eq!(at(1, 3).unwrap().0 - at(0, 0).unwrap().0, 4096 + 24);
    assert!(matches!(at(0, 10), Err(SignalError::NoSuchElement { index: 10, count: 10, .. })));
    assert!(matches!(at(2, 0), Err(SignalError::NoSuchRank { .. })));
    assert!(matches!(table.address(Domain::BASE, 0, "y", 0), Err(SignalError::NoSuchBuffer { .. })));
    let too_long = NamedBuffer { count: u64::MAX, ..buffer };
    assert!(two.signals().name_buffer(Domain::BASE, too_long).is_err());
    assert_eq!(
        (table.domain_named("base"), table.place(Domain::BASE).unwrap()),
        (Some(Domain::BASE), (0, 2))
    );
}

#[test]
fn a_completion_that_a_kernel_asked_for_is_a_wait() {
    let [mut one] = pollers::<1>(LONG);
    let word = core::sync::atomic::AtomicU32::new(0);
    let address = word.as_ptr() as u64;
    let entry = CompletionEntry { address, cookie: 0, expected: 2, engine: 0, kind: 0, reserved: 0 };
    let mut arm = |entry: &CompletionEntry| {
        // SAFETY: the word is a local, and refused entries are not followed.
        unsafe { one.arm_completion(TaskId(1), entry) }
    };
    assert!(arm(&entry).unwrap());
    for (wrong, what) in [
        (CompletionEntry { kind: 1, ..entry }, "type 1, where only 0 is known"),
        (CompletionEntry { address: 0, ..entry }, "a word at address 0"),
    ] {
        assert_eq!(
            arm(&wrong).unwrap_err().to_string(),
            format!(
                "a kernel asked for its completion to wait in a way that is not known: {what}; use complete_when of kernel_completion.h"
            )
        );
    }
    assert!(matches!(
        arm(&CompletionEntry { address: address + 1, ..entry }),
        Err(SignalError::NotAligned { .. })
    ));
    let mut met = Vec::new();
    // Nobody notifies for such a word, and there is no proof about it.
    let pauses: Vec<Duration> = (0..100).map(|_| one.poll(true, &mut met).unwrap().pause).collect();
    assert!(
        pauses[0] == Duration::from_micros(20) && pauses[99] == mailbox_atomics::POLL_INTERVAL,
        "{pauses:?}"
    );
    // What comes during a pause is seen late by a part of what was waited.
    let mut waited = Duration::ZERO;
    for pair in pauses.windows(2) {
        waited += pair[0];
        assert!(
            pair[1] <= 2 * waited && (pair[0] < Duration::from_millis(2) || pair[1] <= waited / 6),
            "{pauses:?}"
        );
    }
    word.store(2, core::sync::atomic::Ordering::Release);
    one.poll(true, &mut met).unwrap();
    assert_eq!(met, [TaskId(1)]);
}

/// Polls until it fails.
fn failure(poller: &mut Poller) -> SignalError {
    let mut met = Vec::new();
    loop {
        match poller.poll(true, &mut met) {
            Ok(pause) => poller.signals().sleep(&pause, || false),
            Err(error) => return error,
        }
        assert!(met.is_empty());
    }
}

#[test]
fn chips_that_wait_for_each_other_fail_at_once_and_name_the_cycle() {
    let [mut one, mut two, mut three] = pollers::<3>(LONG);
    one.arm(TaskId(4), &wait(1, Signaller::Rank(2))).unwrap();
    two.arm(TaskId(5), &wait(7, Signaller::Rank(0))).unwrap();
    three.arm(TaskId(6), &wait(1, Signaller::Rank(0))).unwrap();
    let mut met = Vec::new();
    three.poll(true, &mut met).unwrap();
    two.poll(true, &mut met).unwrap();
    let SignalError::Deadlock(deadlock) = failure(&mut one) else { panic!("no deadlock") };
    assert!(deadlock.is_cycle && deadlock.chain.len() == 2, "{deadlock:?}");
    assert_eq!(
        deadlock.to_string(),
        "no chip can go on: task 0.6 of rank 2 waits for rank 0 (word 0x40 of window `base` is 0, not 1); task 0.4 of \
         rank 0 waits for rank 2 (word 0x40 of window `base` is 0, not 1); each waits for the next, the last for the first"
    );
    let error = failure(&mut two);
    assert!(matches!(error, SignalError::StuckElsewhere { by: 0, .. }), "{error}");
    let start = "rank 0 found that no chip can go on, see its error; here task 0.5 waits for rank 0 (word 0x40 of window `base` is";
    assert!(error.to_string().starts_with(start), "{error}");
}

/// More waits than a chip can publish: all of them count, and the last of them keeps it from being stuck.
#[test]
fn hundreds_of_waits_are_proved_stuck_unless_one_is_met() {
    let [mut one, mut two] = pollers::<2>(LONG);
    for index in 0..300 {
        for (poller, from) in [(&mut one, 1), (&mut two, 0)] {
            let wait = Wait { offset: 8 * index, ..wait(1, Signaller::Rank(from)) };
            assert!(poller.arm(TaskId(index), &wait).unwrap());
        }
    }
    let mut met = Vec::new();
    two.poll(true, &mut met).unwrap();
    one.signals().send(&Signal { offset: 8 * 299, ..add(1) }).unwrap();
    for _ in 0..3 {
        one.next_check();
        one.poll(true, &mut met).unwrap();
    }
    two.poll(true, &mut met).unwrap();
    assert_eq!(met, [TaskId(299)]);
    two.poll(true, &mut met).unwrap();
    let SignalError::Deadlock(deadlock) = failure(&mut one) else { panic!("no deadlock") };
    assert!(deadlock.is_cycle, "{deadlock:?}");
    assert_eq!(deadlock.chain.iter().map(|wait| wait.rank).collect::<Vec<_>>(), [0, 1]);
}

#[test]
fn a_chip_that_ended_without_its_signal_is_named() {
    let [mut one, mut two] = pollers::<2>(LONG);
    two.arm(TaskId(5), &wait(1, Signaller::Rank(0))).unwrap();
    let mut met = Vec::new();
    two.poll(true, &mut met).unwrap();
    one.end();
    let error = failure(&mut two);
    assert_eq!(error.code(), 103);
    assert!(error.to_string().ends_with("rank 0 has ended without that signal"), "{error}");
}

#[test]
fn a_wait_for_nobody_in_particular_has_the_deadline() {
    let [mut one] = pollers::<1>(Duration::from_millis(30));
    one.arm(TaskId(5), &wait(1, Signaller::Unknown)).unwrap();
    let error = failure(&mut one);
    assert!(matches!(error, SignalError::TimedOut { .. }) && error.code() == 102, "{error}");
    assert_eq!(
        error.to_string(),
        "no signal came within 30ms; give it more time, or see what was awaited: task 0.5 waits for somebody (word 0x40 of \
         window `base` is 0, not 1)"
    );
}

/// A ring of chips passes a token on, with every schedule that threads happen to have: no false proof, no lost signal.
#[test]
fn a_token_goes_round_without_a_false_proof() {
    let rounds: u32 = std::env::var("CHIPCOMM_TOKEN_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(300);
    let pollers = pollers::<3>(LONG);
    std::thread::scope(|scope| {
        for (rank, mut poller) in pollers.into_iter().enumerate() {
            scope.spawn(move || {
                let (before, after) = ((rank as u32 + 2) % 3, (rank as u32 + 1) % 3);
                let mut met = Vec::new();
                for round in 1..=rounds {
                    if rank == 0 {
                        poller.signals().send(&add(after)).unwrap();
                    }
                    if poller.arm(TaskId(u64::from(round)), &wait(round, Signaller::Rank(before))).unwrap() {
                        while met.is_empty() {
                            let pause = poller.poll(true, &mut met).unwrap();
                            if met.is_empty() {
                                poller.signals().sleep(&pause, || false);
                            }
                        }
                        met.clear();
                    }
                    if rank != 0 {
                        poller.signals().send(&add(after)).unwrap();
                    }
                }
            });
        }
    });
}

/// A chip that stands still, after it was signalled or before it began, may be what the others wait for in a way that they
/// do not publish.
#[test]
fn who_may_be_the_reason_is_named_though_nobody_waits_for_it() {
    let [mut one, _two, mut three, mut four] = pollers::<4>(LONG);
    assert!(one.arm(TaskId(1), &wait(1, Signaller::Rank(1))).unwrap());
    for poller in [&mut three, &mut four] {
        assert!(poller.arm(TaskId(1), &wait(2, Signaller::Rank(0))).unwrap());
        poller.poll(true, &mut Vec::new()).unwrap();
    }
    let stands = |rank| format!("rank {rank} runs something, has not begun, or does not look at its signals");
    let table = one.table();
    assert!(table.contains("rank 1 runs something, or has not begun"), "{table}");
    assert!([2, 3].iter().all(|rank| !table.contains(&stands(rank))), "{table}");
    // Rank 3 looks, rank 2 does not.
    one.signals().send(&add(2)).unwrap();
    one.signals().send(&add(3)).unwrap();
    four.poll(true, &mut Vec::new()).unwrap();
    let table = one.table();
    assert!(table.contains(&stands(&2)) && !table.contains(&stands(&3)), "{table}");
}

#[test]
fn a_wait_of_another_chip_names_its_window() {
    let [one, _two] = pollers::<2>(LONG);
    let text = |window: &str| {
        let published = StuckWait::encode(TaskId(6), (window, 64), 0, 2, 3);
        StuckWait::decode(1, &published, &one.signals().table()).to_string()
    };
    assert_eq!(text("base"), "task 0.6 of rank 1 waits for rank 0 (word 0x40 of window `base` is 2, not 3)");
    assert_eq!(
        text("theirs"),
        "task 0.6 of rank 1 waits for rank 0 (word 0x40 of a window of other ranks is 2, not 3)"
    );
}
