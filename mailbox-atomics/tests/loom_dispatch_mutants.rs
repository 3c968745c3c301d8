//! The models of the dispatch ring can fail: each mutant breaks one ordering or one step of the real code, and loom must reject it
//! (F30, F69).
//!
//! # Safety
//! The scenarios share cells between threads without a lock. A mutant lets accesses race, in loom's model only: loom's threads take
//! turns on one thread, and it reports the race instead of having it.
#![cfg(loom)]
#![allow(unsafe_code, missing_docs)]

mod loom_dispatch_scenarios;
mod loom_rejected;
use loom_dispatch_scenarios::{check, check_bounded};
use loom_rejected::rejected;
use mailbox_atomics::Site;

const RACE: &str = "Causality violation";
const DEADLOCK: &str = "deadlock";
const LEFT_OUT: &str = "frames were left out";
const OTHER_FRAME: &str = "the frame of another number";

macro_rules! mutants {
    ($($name:ident: $site:ident breaks $check:ident $scenario:ident with $loom_error:ident;)+) => { $(
        #[test]
        fn $name() {
            rejected(stringify!($name), Site::$site, $check, loom_dispatch_scenarios::$scenario, $loom_error);
        }
    )+ };
}

// MA-16: frames arrive whole, in order, and slots are not written too early.
mutants! {
    mutant_relaxed_publish_of_a_frame: PublishStore
        breaks check a_frame_arrives_whole with RACE;
    mutant_relaxed_load_of_a_slot: ObserveLoad
        breaks check a_frame_arrives_whole with RACE;
    mutant_slot_written_again_before_its_frame_is_done: SlotFreedByDone
        breaks check_bounded a_slot_is_written_again_when_its_frame_is_done with DEADLOCK;
    mutant_slot_taken_with_an_old_frame: SlotHoldsThisFrame
        breaks check_bounded a_slot_is_written_again_when_its_frame_is_done with OTHER_FRAME;
    mutant_relaxed_done: PublishStore
        breaks check_bounded others_wait_for_a_frame_and_see_what_it_did with RACE;
}

// MA-2: no wake-up is lost, in either direction.
mutants! {
    mutant_frame_wakes_nobody: FrameNotifies
        breaks check a_frame_arrives_whole with DEADLOCK;
    mutant_no_fence_after_a_frame: NotifyFence
        breaks check a_frame_arrives_whole with DEADLOCK;
    mutant_receiver_parks_without_a_fence: ParkFence
        breaks check a_frame_arrives_whole with DEADLOCK;
    mutant_done_wakes_no_sender: DoneNotifies
        breaks check_bounded a_slot_is_written_again_when_its_frame_is_done with DEADLOCK;
    mutant_done_wakes_no_other: DoneNotifies
        breaks check_bounded others_wait_for_a_frame_and_see_what_it_did with DEADLOCK;
}

// MA-17 and MA-5: a shutdown ends the receiver.
mutants! {
    mutant_shutdown_does_not_notify: ShutdownNotifies
        breaks check shutdown_wakes_an_idle_receiver with DEADLOCK;
    mutant_shutdown_shares_the_receivers_word: ShutdownHasOwnWord
        breaks check_bounded shutdown_ends_a_receiver_whose_ring_is_full with DEADLOCK;
    mutant_shutdown_overtakes_a_frame: FramesBeforeShutdown
        breaks check_bounded shutdown_ends_a_receiver_whose_ring_is_full with LEFT_OUT;
    mutant_no_fence_after_a_shutdown: ShutdownFence
        breaks check_bounded shutdown_ends_a_receiver_whose_ring_is_full with DEADLOCK;
}
