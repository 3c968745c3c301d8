//! The dispatch ring holds in every schedule that loom finds. Run with `cargo xtask ci`, or
//! `RUSTFLAGS="--cfg loom" cargo test --release --test loom_dispatch_models`.
//!
//! # Safety
//! The scenarios share cells between threads without a lock. That the protocol orders every access to them is what loom checks.
#![cfg(loom)]
#![allow(unsafe_code, missing_docs)]

mod loom_dispatch_scenarios;
use loom_dispatch_scenarios::{check, check_bounded};

macro_rules! models {
    ($($check:ident: $($scenario:ident),+;)+) => { $($(
        #[test]
        fn $scenario() {
            $check(loom_dispatch_scenarios::$scenario);
        }
    )+)+ };
}

models! {
    check: a_frame_arrives_whole, shutdown_wakes_an_idle_receiver;
    check_bounded: a_slot_is_written_again_when_its_frame_is_done, others_wait_for_a_frame_and_see_what_it_did,
        shutdown_ends_a_receiver_whose_ring_is_full;
}
