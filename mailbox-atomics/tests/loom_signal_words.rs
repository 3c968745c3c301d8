//! Signals and the proof that nothing moves any more, under loom (MA-18, MA-19), with mutants of the real code.
//!
//! # Safety
//! A scenario shares a cell between threads without a lock. That the protocol orders every access to it is what loom checks.
#![cfg(loom)]
#![allow(unsafe_code, missing_docs)]

mod loom_rejected;

use deadline::{Deadline, LONGEST_WAIT};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use loom_rejected::rejected;
use mailbox_atomics::{SignalWords, Site, Stander, Wait, WordU32, prove};

const SESSION: u64 = 3;

fn check(scenario: fn()) {
    loom::model(scenario);
}

fn check_bounded(scenario: fn()) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(scenario);
}

#[derive(Default)]
struct Chips {
    chips: [SignalWords; 2],
    words: [WordU32; 2],
    payload: UnsafeCell<u32>,
}

// SAFETY: see the top of the file.
unsafe impl Sync for Chips {}
// SAFETY: as above.
unsafe impl Send for Chips {}

impl Chips {
    fn signal(&self, chip: usize) {
        self.words[chip].add(1);
        self.chips[chip].notify();
    }

    /// Chip `me` rests until its word is `want`, unless it is already; returns whether it is.
    fn rest(&self, me: usize, stander: &mut Stander<'_>, want: u32) -> bool {
        let mut met = false;
        stander.rest(|waits| {
            met = self.words[me].load() >= want;
            // One more than the words of the model hold.
            waits.extend([[u64::from(want); 2], [9; 2]]);
            !met
        });
        met
    }
}

/// A signal wakes a chip that parks, and brings what was written before.
fn a_signal_wakes_its_chip() {
    let chips = Arc::new(Chips::default());
    let there = chips.clone();
    let signaller = thread::spawn(move || {
        // SAFETY: as at the top; the signal orders it before the read.
        there.payload.with_mut(|payload| unsafe { *payload = 7 });
        there.signal(0);
    });
    let wait = Wait::until(Deadline::after(LONGEST_WAIT).unwrap());
    while chips.words[0].load() == 0 {
        let seen = chips.chips[0].doorbell();
        if chips.words[0].load() == 0 {
            chips.chips[0].sleep(seen, &wait, || false).unwrap();
        }
    }
    // SAFETY: as above.
    assert_eq!(chips.payload.with(|payload| unsafe { *payload }), 7);
    signaller.join().unwrap();
}

/// Chip 1 signals chip 0 and ends: chip 0 is never stuck.
fn a_signal_under_way_is_no_deadlock() {
    let chips = Arc::new(Chips::default());
    let there = chips.clone();
    let signaller = thread::spawn(move || {
        let mut stander = Stander::new(&there.chips[1], SESSION);
        stander.stir();
        there.signal(0);
        stander.end();
    });
    let mut stander = Stander::new(&chips.chips[0], SESSION);
    stander.stir();
    if !chips.rest(0, &mut stander, 1) {
        assert_eq!(prove(chips.chips.iter(), SESSION), None, "a deadlock where there is none");
    }
    signaller.join().unwrap();
}

/// Chip 1 answers a signal of chip 0, while somebody else looks at both.
fn an_answer_under_way_is_no_deadlock() {
    let chips = Arc::new(Chips::default());
    let there = chips.clone();
    let answerer = thread::spawn(move || {
        let mut stander = Stander::new(&there.chips[1], SESSION);
        stander.stir();
        if !there.rest(1, &mut stander, 1) {
            // It is notified for certain: chip 0 signals before it rests.
            while there.chips[1].doorbell() == 0 {
                thread::yield_now();
            }
        }
        stander.stir();
        there.signal(0);
        stander.end();
    });
    let mut stander = Stander::new(&chips.chips[0], SESSION);
    stander.stir();
    chips.signal(1);
    if !chips.rest(0, &mut stander, 1) {
        assert_eq!(prove(chips.chips.iter(), SESSION), None, "a deadlock where there is none");
    }
    answerer.join().unwrap();
}

/// Who looks at a chip that changes sees one state of it.
fn a_standing_is_copied_whole() {
    let chips = Arc::new(Chips::default());
    let there = chips.clone();
    let looking = thread::spawn(move || {
        if let Some(quiet) = prove(there.chips[..1].iter(), SESSION) {
            let waits = &quiet[0].waits;
            assert!(*waits == [[1; 2]] || *waits == [[2; 2]], "mixed of two: {waits:?}");
        }
    });
    let mut stander = Stander::new(&chips.chips[0], SESSION);
    stander.stir();
    chips.rest(0, &mut stander, 1);
    chips.rest(0, &mut stander, 2);
    looking.join().unwrap();
}

macro_rules! models {
    ($($check:ident $scenario:ident: $model:ident;)+) => { $(
        #[test]
        fn $model() {
            $check($scenario);
        }
    )+ };
}

macro_rules! mutants {
    ($($name:ident: $site:ident breaks $check:ident $scenario:ident with $loom_error:literal;)+) => { $(
        #[test]
        fn $name() {
            rejected(stringify!($name), Site::$site, $check, $scenario, $loom_error);
        }
    )+ };
}

models! {
    check a_signal_wakes_its_chip: model_a_signal_wakes_its_chip;
    check a_signal_under_way_is_no_deadlock: model_a_signal_under_way_is_no_deadlock;
    check_bounded an_answer_under_way_is_no_deadlock: model_an_answer_under_way_is_no_deadlock;
    check_bounded a_standing_is_copied_whole: model_a_standing_is_copied_whole;
}

// MA-18: every signal wakes its chip, and brings what was written before.
mutants! {
    mutant_signal_that_notifies_nobody: SignalNotifies breaks check a_signal_wakes_its_chip with "deadlock";
    mutant_no_fence_after_a_signal: NotifyFence breaks check a_signal_wakes_its_chip with "deadlock";
    mutant_no_fence_before_a_sleep: ParkFence breaks check a_signal_wakes_its_chip with "deadlock";
    mutant_relaxed_signal: PublishStore breaks check a_signal_wakes_its_chip with "deadlock";
}

// MA-19: chips are found stuck only when none will ever signal again.
mutants! {
    mutant_silent_signal: SignalNotifies breaks check a_signal_under_way_is_no_deadlock with "where there is none";
    mutant_doorbell_not_compared: DoorbellCompared breaks check a_signal_under_way_is_no_deadlock with "where there is none";
    mutant_doorbell_after_words: DoorbellBeforeWords breaks check a_signal_under_way_is_no_deadlock with "where there is none";
    mutant_relaxed_quiet: StandingPublish breaks check_bounded a_standing_is_copied_whole with "mixed of two";
    mutant_relaxed_look: StandingObserve breaks check a_signal_under_way_is_no_deadlock with "where there is none";
    mutant_doorbell_not_compared_with_an_answer: DoorbellCompared breaks check_bounded an_answer_under_way_is_no_deadlock with "where there is none";
    mutant_no_second_look: StandingRechecked breaks check_bounded a_standing_is_copied_whole with "mixed of two";
    mutant_no_fence_after_stirring: StandingReuseFence breaks check_bounded a_standing_is_copied_whole with "mixed of two";
    mutant_no_fence_after_the_copy: StandingCopyFence breaks check_bounded a_standing_is_copied_whole with "mixed of two";
}
