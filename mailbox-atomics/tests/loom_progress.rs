//! The protocol below the collectives holds in every schedule that loom finds. Run with `cargo xtask ci`, or
//! `RUSTFLAGS="--cfg loom" cargo test --release --test loom_progress`.
//!
//! # Safety
//! The scenarios share cells between threads without a lock. That the protocol orders every access to them is what loom checks.
#![cfg(loom)]
#![allow(unsafe_code, missing_docs)]

mod progress_scenarios;
use progress_scenarios::*;

macro_rules! models {
    ($($check:ident: $($scenario:ident),+;)+) => { $($(
        #[test]
        fn $scenario() {
            $check(progress_scenarios::$scenario);
        }
    )+)+ };
}

models! {
    check: a_step_carries_its_payload, reading_wakes_whoever_waits_for_it, giving_up_takes_nothing_back,
        a_stamp_carries_what_was_done_before_it;
    check_bounded: pieces_are_not_overwritten_while_they_are_read, a_started_call_keeps_its_half,
        lines_are_not_overwritten_while_they_are_read, the_slowest_of_two_readers_holds_a_line,
        a_record_outlives_the_next_calls, a_pair_ring_carries_messages_in_order,
        pieces_of_a_plan_are_not_overwritten_while_they_are_read, a_stamp_gives_no_credit_for_its_own_piece,
        a_stamp_has_the_label_of_its_call_or_of_a_later_one;
}
