//! The protocols hold in every schedule that loom finds. Run with `cargo xtask ci`, or
//! `RUSTFLAGS="--cfg loom" cargo test --release --test loom_models`.
//!
//! # Safety
//! The scenes share cells between threads without a lock. That the protocols order every access to them is what loom checks.
#![cfg(loom)]
#![allow(unsafe_code, missing_docs)]

mod loom_scenes;
use loom_scenes::*;

macro_rules! models {
    ($($check:ident: $($scene:ident),+;)+) => { $($(
        #[test]
        fn $scene() {
            $check(loom_scenes::$scene);
        }
    )+)+ };
}

models! {
    check: payload_before_state, one_shot_wakes_its_reader, no_wake_up_is_lost_between_last_look_and_park,
        no_wake_up_is_lost_over_two_steps, shutdown_wakes_a_parked_responder,
        an_abort_ends_a_wait_unless_the_word_came_first;
    check_bounded: request_and_reply_carry_their_payloads, shutdown_survives_a_late_reply,
        a_reply_answers_its_own_request_only, a_fast_party_re_enters_the_barrier, a_barrier_of_three_publishes_to_all;
}
