//! The models of the progress protocol can fail: each mutant breaks one step of the real code, and loom must reject it.
//!
//! # Safety
//! The scenarios share cells between threads without a lock. A mutant lets accesses race, in loom's model only: loom's threads take
//! turns on one thread, and it reports the race instead of having it.
#![cfg(loom)]
#![allow(unsafe_code, missing_docs)]

mod progress_scenarios;
use mailbox_atomics::{Site, mutants};
use progress_scenarios::*;
use std::process::Command;

const INSIDE: &str = "CHIPCOMM_LOOM_MUTANT";

/// Runs the mutant in a process of its own (loom aborts on a deadlock while it unwinds) and expects `loom_error`.
fn rejected(name: &str, site: Site, check: fn(fn()), scenario: fn(), loom_error: &str) {
    if std::env::var_os(INSIDE).is_some() {
        return mutants::with(site, || check(scenario));
    }
    let this = std::env::current_exe().unwrap();
    let run = Command::new(this).args(["--exact", name, "--nocapture"]).env(INSIDE, "1").output().unwrap();
    let output = String::from_utf8_lossy(&run.stderr);
    assert!(!run.status.success(), "loom accepted the mutant {site:?}: the model is too weak");
    assert!(
        output.contains(loom_error),
        "the mutant {site:?} failed for another reason than \"{loom_error}\":\n{output}"
    );
}

macro_rules! mutants {
    ($($name:ident: $site:ident breaks $check:ident $scenario:ident with $loom_error:literal;)+) => { $(
        #[test]
        fn $name() {
            rejected(stringify!($name), Site::$site, $check, progress_scenarios::$scenario, $loom_error);
        }
    )+ };
}

// MA-11: a step brings its payload.
mutants! {
    mutant_relaxed_publish_of_a_step: PublishStore breaks check a_step_carries_its_payload with "Causality violation";
    mutant_relaxed_load_of_a_step: ObserveLoad breaks check a_step_carries_its_payload with "Causality violation";
}

// MA-12: lines and buffers are written again when all their readers have finished.
mutants! {
    mutant_single_half: TwoHalves breaks check_bounded pieces_are_not_overwritten_while_they_are_read with "the piece of another step";
    mutant_step_taken_as_credit: CreditIsWhatWasRead breaks check_bounded a_started_call_keeps_its_half with "the piece of another step";
    mutant_writer_does_not_check_a_half: WriterChecksReaders breaks check_bounded a_started_call_keeps_its_half with "the piece of another step";
    mutant_writer_does_not_check_a_line: WriterChecksReaders breaks check_bounded lines_are_not_overwritten_while_they_are_read with "Ahead";
    mutant_writer_does_not_check_two_readers: WriterChecksReaders breaks check_bounded the_slowest_of_two_readers_holds_a_line with "Ahead";
}

// MA-13: a record is there as long as somebody may still make its call.
mutants! {
    mutant_record_overwritten: RecordsInARing breaks check_bounded a_record_outlives_the_next_calls with "the record of call 1";
}

// MA-2: no wake-up is lost.
mutants! {
    mutant_reading_wakes_nobody: ReadingNotifies breaks check reading_wakes_whoever_waits_for_it with "deadlock";
    mutant_no_fence_before_the_check_for_parked_ranks: NotifyFence breaks check reading_wakes_whoever_waits_for_it with "deadlock";
    mutant_stamp_wakes_nobody: StampNotifies breaks check a_stamp_carries_what_was_done_before_it with "deadlock";
    mutant_no_fence_behind_a_stamp: NotifyFence breaks check a_stamp_carries_what_was_done_before_it with "deadlock";
    mutant_receiver_wakes_nobody: ReadingNotifies breaks check_bounded a_pair_ring_carries_messages_in_order with "deadlock";
}

// MA-14: messages of a pair arrive once, in order, with their bytes.
mutants! {
    mutant_sender_does_not_check_its_slot: WriterChecksReaders breaks check_bounded a_pair_ring_carries_messages_in_order with "another message";
}

// MA-21: a stamp brings what was done before it and the label of its call, and gives no credit for its own piece.
mutants! {
    mutant_relaxed_publish_of_a_stamp: PublishStore breaks check a_stamp_carries_what_was_done_before_it with "Causality violation";
    mutant_relaxed_load_of_a_stamp: ObserveLoad breaks check a_stamp_carries_what_was_done_before_it with "Causality violation";
    mutant_label_behind_its_stamp: LabelBeforeStamp breaks check_bounded a_stamp_has_the_label_of_its_call_or_of_a_later_one with "the label of an earlier call";
    mutant_single_half_of_a_plan: TwoHalves breaks check_bounded pieces_of_a_plan_are_not_overwritten_while_they_are_read with "the piece of another step";
    mutant_stamp_taken_as_credit: StampIsNoCredit breaks check_bounded a_stamp_gives_no_credit_for_its_own_piece with "Causality violation";
    mutant_writer_of_a_plan_does_not_check: WriterChecksReaders breaks check_bounded a_stamp_gives_no_credit_for_its_own_piece with "Causality violation";
}
