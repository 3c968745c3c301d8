//! The models can fail: each mutant breaks one ordering or one step of the real code, and loom must reject it (F30).
//!
//! # Safety
//! The scenes share cells between threads without a lock. A mutant lets accesses race, in loom's model only: loom's threads
//! take turns on one thread, and it reports the race instead of having it.
#![cfg(loom)]
#![allow(unsafe_code, missing_docs)]

mod loom_scenes;
use loom_scenes::*;
use mailbox_atomics::{Site, mutants};
use std::process::Command;

const INSIDE: &str = "CHIPCOMM_LOOM_MUTANT";

/// Runs the mutant in a process of its own (loom aborts when it meets a deadlock while it unwinds) and expects that loom rejects it
/// with `verdict`.
fn rejected(name: &str, site: Site, check: fn(fn()), scene: fn(), verdict: &str) {
    if std::env::var_os(INSIDE).is_some() {
        return mutants::with(site, || check(scene));
    }
    let this = std::env::current_exe().unwrap();
    let run = Command::new(this).args(["--exact", name, "--nocapture"]).env(INSIDE, "1").output().unwrap();
    let said = String::from_utf8_lossy(&run.stderr);
    assert!(!run.status.success(), "loom accepted the mutant {site:?}: the model is too weak");
    assert!(
        said.contains(verdict),
        "the mutant {site:?} failed for another reason than \"{verdict}\":\n{said}"
    );
}

macro_rules! mutants {
    ($($name:ident: $site:ident breaks $check:ident $scene:ident with $verdict:literal;)+) => { $(
        #[test]
        fn $name() {
            rejected(stringify!($name), Site::$site, $check, loom_scenes::$scene, $verdict);
        }
    )+ };
}

mutants! {
    mutant_relaxed_publish: PublishStore breaks check payload_before_state with "Causality violation";
    mutant_relaxed_observe: ObserveLoad breaks check payload_before_state with "Causality violation";
    mutant_no_fence_before_the_last_look: ParkFence breaks check no_wake_up_is_lost_between_last_look_and_park with "deadlock";
    mutant_no_fence_before_looking_for_sleepers: NotifyFence breaks check no_wake_up_is_lost_between_last_look_and_park with "deadlock";
    mutant_parks_on_a_value_it_never_judged: ParkOnJudgedValue breaks check no_wake_up_is_lost_over_two_steps with "deadlock";
    mutant_shutdown_does_not_ring: ShutdownNotifies breaks check shutdown_wakes_a_parked_responder with "deadlock";
    mutant_shutdown_shares_the_reply_word: ShutdownHasOwnWord breaks check_bounded shutdown_survives_a_late_reply with "one request was sent";
    mutant_reply_without_its_number: ReplyNumbered breaks check_bounded a_reply_answers_its_own_request_only with "Causality violation";
    mutant_barrier_wants_the_exact_phase: BarrierAcceptsLaterPhase breaks check_bounded a_fast_party_re_enters_the_barrier with "deadlock";
    mutant_barrier_with_relaxed_arrival: PublishStore breaks check_bounded a_barrier_of_three_publishes_to_all with "Causality violation";
}
