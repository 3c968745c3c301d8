//! The models can fail: each mutant breaks one ordering or one step of the real code, and loom must
//! reject it (F30, F69). Every clause of the contract has at least one.
//!
//! # Safety
//! The scenarios share cells between threads without a lock. A mutant lets accesses race, in loom's
//! model only: loom's threads take turns on one thread, and it reports the race instead of having it.
#![cfg(loom)]
#![allow(unsafe_code, missing_docs)]

mod loom_rejected;
mod loom_scenarios;
use loom_rejected::{rejected, rejected_model};
use loom_scenarios::*;
use mailbox_atomics::Site;

const RACE: &str = "Causality violation";
const DEADLOCK: &str = "deadlock";
const WRONG_END: &str = "assertion";
/// The waiter goes on for ever instead of parking or giving up.
const ENDLESS: &str = "exceeded maximum number of branches";

macro_rules! mutants {
    ($($name:ident: $site:ident breaks $check:ident $scenario:ident with $loom_error:ident;)+) => { $(
        #[test]
        fn $name() {
            rejected(stringify!($name), Site::$site, $check, loom_scenarios::$scenario, $loom_error);
        }
    )+ };
}

// MA-1: what is published is visible.
mutants! {
    mutant_f30_relaxed_publish: PublishStore
        breaks check payload_before_state with RACE;
    mutant_f30_relaxed_observe: ObserveLoad
        breaks check payload_before_state with RACE;
}

// MA-2: no wake-up is lost.
mutants! {
    mutant_parks_unannounced: AnnouncePark
        breaks check no_wake_up_is_lost_between_last_check_and_park with DEADLOCK;
    mutant_no_fence_before_the_last_check: ParkFence
        breaks check no_wake_up_is_lost_between_last_check_and_park with DEADLOCK;
    mutant_no_fence_before_checking_for_waiters: NotifyFence
        breaks check no_wake_up_is_lost_between_last_check_and_park with DEADLOCK;
    mutant_parks_on_a_value_it_never_checked: ParkOnCheckedValue
        breaks check no_wake_up_is_lost_over_two_steps with DEADLOCK;
    mutant_store_without_a_wake: StoreWakes
        breaks check one_shot_wakes_its_reader with DEADLOCK;
}

// MA-3: every wait ends, and says why.
mutants! {
    mutant_deadline_is_ignored: DeadlineEndsWait
        breaks check the_deadline_ends_a_wait with ENDLESS;
    mutant_death_is_ignored: DeathEndsWait
        breaks check a_death_ends_a_parked_wait with ENDLESS;
    mutant_parked_to_the_deadline: WakesToPoll
        breaks check a_death_ends_a_parked_wait with DEADLOCK;
    mutant_abort_is_ignored: AbortEndsWait
        breaks check an_abort_ends_a_wait with ENDLESS;
    mutant_cancel_is_ignored: AbortEndsWait
        breaks check a_cancel_ends_a_wait with ENDLESS;
}

// MA-4: what was delivered wins.
mutants! {
    mutant_f69_no_last_check_after_an_abort: CheckBeforeGivingUp
        breaks check a_value_stored_before_an_abort_is_delivered with WRONG_END;
    mutant_f69_no_last_check_after_a_death: CheckBeforeGivingUp
        breaks check a_value_stored_before_a_death_is_delivered with WRONG_END;
    mutant_f69_no_last_check_at_the_deadline: CheckBeforeGivingUp
        breaks check a_value_stored_just_before_the_deadline_is_delivered with WRONG_END;
}

// MA-5: a raised word stays raised.
mutants! {
    mutant_the_last_reason_counts: FirstReasonStays
        breaks check the_first_reason_stays with WRONG_END;
}

// MA-6: a barrier can be entered again at once.
mutants! {
    mutant_barrier_wants_the_exact_phase: BarrierAcceptsLaterPhase
        breaks check_bounded a_fast_party_re_enters_the_barrier with DEADLOCK;
    mutant_barrier_with_relaxed_arrival: PublishStore
        breaks check_bounded a_barrier_of_three_publishes_to_all with RACE;
}

// MA-7: a waiter parks. MA-8: the kernel compares the low half (F59).
mutants! {
    mutant_never_parks: Parks
        breaks check no_wake_up_is_lost_between_last_check_and_park with ENDLESS;
    mutant_f59_steps_in_the_high_half_alone: LowHalfChanges
        breaks check a_step_in_the_high_half_alone with DEADLOCK;
}

/// MA-9: why a park flag has one waiter (F66). The types forbid it within a process; here two waiters
/// are made for one flag on purpose.
#[test]
fn mutant_f66_two_waiters_with_one_flag() {
    let name = "mutant_f66_two_waiters_with_one_flag";
    rejected_model(name, || check_bounded(two_waiters_with_one_flag), DEADLOCK);
}
