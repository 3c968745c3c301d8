//! The models of the message slot can fail: each mutant breaks one ordering or one step of the real code, and
//! loom must reject it (F30, F69).
#![cfg(loom)]
#![allow(missing_docs)]

mod loom_message_scenarios;
mod loom_rejected;
use loom_message_scenarios::{check, check_bounded, check_one_switch};
use loom_rejected::rejected;
use mailbox_atomics::Site;

macro_rules! mutants {
    ($($name:ident: $site:ident breaks $check:ident $scenario:ident with $loom_error:literal;)+) => { $(
        #[test]
        fn $name() {
            rejected(stringify!($name), Site::$site, $check, loom_message_scenarios::$scenario, $loom_error);
        }
    )+ };
}

// MA-10: a reader gets whole messages, and each once.
mutants! {
    mutant_f30_relaxed_message_publish: MessagePublish breaks
        check a_copy_is_whole_while_the_slot_is_used_again with "words of another";
    mutant_f30_relaxed_message_observe: MessageObserve breaks
        check a_copy_is_whole_while_the_slot_is_used_again with "words of another";
    mutant_stamp_stays_valid_while_words_change: MessageInvalidated breaks
        check a_copy_is_whole_while_the_slot_is_used_again with "words of another";
    mutant_no_fence_before_the_words_change: MessageReuseFence breaks
        check a_copy_is_whole_while_the_slot_is_used_again with "words of another";
    mutant_no_fence_after_the_copy: MessageCopyFence breaks
        check a_copy_is_whole_while_the_slot_is_used_again with "words of another";
    mutant_no_second_load_of_the_stamp: MessageRechecked breaks
        check_bounded a_copy_is_whole_for_every_reader with "words of another";
    mutant_taken_message_is_taken_again: MessageTakenOnce breaks
        check a_message_is_taken_once with "taken twice";
    mutant_members_exchange_an_old_message: MessageTakenOnce breaks
        check_one_switch two_members_exchange_twice with "another exchange's message";
    mutant_refused_message_is_gone: MessageRefusalStays breaks
        check a_late_reader_finds_a_refused_message with "the refusal";
    mutant_fast_member_is_waited_for: MessageMovedOn breaks
        check_one_switch two_members_exchange_twice with "deadlock";
}
