//! The protocols hold in every schedule that loom finds. Run with `cargo xtask ci`, or
//! `RUSTFLAGS="--cfg loom" cargo test --release --test loom_models`.
//!
//! # Safety
//! The scenarios share cells between threads without a lock. That the protocols order every access to
//! them is what loom checks.
#![cfg(loom)]
#![allow(unsafe_code, missing_docs)]

mod loom_scenarios;
use loom_scenarios::*;

macro_rules! models {
    ($($check:ident: $($scenario:ident),+;)+) => { $($(
        #[test]
        fn $scenario() {
            $check(loom_scenarios::$scenario);
        }
    )+)+ };
}

models! {
    check: payload_before_state, one_shot_wakes_its_reader, no_wake_up_is_lost_between_last_check_and_park,
        no_wake_up_is_lost_over_two_steps, the_deadline_ends_a_wait,
        a_death_ends_a_parked_wait, an_abort_ends_a_wait, a_cancel_ends_a_wait,
        a_value_stored_before_an_abort_is_delivered, a_value_stored_before_a_death_is_delivered,
        a_value_stored_just_before_the_deadline_is_delivered, the_first_reason_stays;
    check_bounded: a_fast_party_re_enters_the_barrier,
        a_barrier_of_three_publishes_to_all;
}

/// MA-8
#[test]
#[should_panic(expected = "the low 32 bits are equal")]
fn f59_a_step_in_the_high_half_alone_is_refused() {
    check(a_step_in_the_high_half_alone);
}
