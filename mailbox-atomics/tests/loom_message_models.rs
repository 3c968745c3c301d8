//! The message slot holds in every schedule that loom finds. Run with `cargo xtask ci`, or
//! `RUSTFLAGS="--cfg loom" cargo test --release --test loom_message_models`.
#![cfg(loom)]
#![allow(missing_docs)]

mod loom_message_scenarios;
use loom_message_scenarios::{check, check_bounded, check_one_switch};

macro_rules! models {
    ($($check:ident: $($scenario:ident),+;)+) => { $($(
        #[test]
        fn $scenario() {
            $check(loom_message_scenarios::$scenario);
        }
    )+)+ };
}

models! {
    check: a_copy_is_whole_while_the_slot_is_used_again, a_message_is_taken_once,
        a_late_reader_finds_a_refused_message;
    check_bounded: a_copy_is_whole_for_every_reader;
    check_one_switch: two_members_exchange_twice;
}
