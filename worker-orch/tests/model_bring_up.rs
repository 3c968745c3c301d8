//! Bring-up and shutdown of a Worker in every interleaving, with a process that crashes or gets stuck at any
//! point: all states checked by stateright.
//!
//! The model is in `worker_model`; each of its steps names the code that it stands for. The mutants are
//! defects of the kind that such code has had elsewhere, and the model finds each of them.
#![allow(missing_docs)]

mod worker_model;

use stateright::{Checker, HasDiscoveries, Model};
use worker_model::{ENDS, FIRST_CAUSE, IN_TIME, Mutant, NOT_DEAD, Worker};

/// All states of `chips` chips with one crash, of a chip or of the parent, and so many mishaps: chips that
/// get stuck or fail by themselves.
fn holds(chips: usize, mishaps: u8) {
    let model = Worker { chips, crashes: 1, mishaps, mutant: None };
    let checked = model.checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    for (name, path) in checked.discoveries() {
        if checked.discovery_classification(name).to_string() == "counterexample" {
            for (state, action) in path.into_vec() {
                eprintln!(
                    "{:?} {:?} {:?} crashed {:?} outcome {:?} violation {:?} -> {action:?}",
                    state.at,
                    state.chips[0].pc,
                    state.chips[1].pc,
                    state.crashed,
                    state.outcome,
                    state.violation
                );
            }
        }
    }
    checked.assert_properties();
    assert!(checked.is_done());
    let states = checked.unique_state_count();
    println!("{chips} chips, a crash and {mishaps} mishaps: {states} states");
}

/// Checks that the defect shows with so many crashes and mishaps, and prints the path.
fn is_found(mutant: Mutant, chips: usize, crashes: u8, mishaps: u8, property: &'static str) {
    let model = Worker { chips, crashes, mishaps, mutant: Some(mutant) };
    let checked = model.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let path = checked.assert_any_discovery(property);
    println!("{mutant:?}: {property}, but {:?}", path.into_actions());
}

#[test]
fn f01_f02_f03_with_2_chips_every_path_ends_well() {
    holds(2, 1);
}

#[test]
fn f01_f02_f03_with_3_chips_every_path_ends_well() {
    holds(3, 0);
}

#[test]
#[ignore = "a minute; cargo test --release -p worker-orch --test model_bring_up -- --ignored"]
fn f01_f02_f03_with_3_and_4_chips_and_a_mishap_every_path_ends_well() {
    holds(3, 1);
    holds(4, 0);
    holds(4, 1);
}

#[test]
fn mutant_stops_nobody() {
    is_found(Mutant::StopsNobody, 2, 1, 0, IN_TIME);
}

#[test]
fn mutant_gather_watches_nobody() {
    is_found(Mutant::GatherWatchesNobody, 2, 1, 0, IN_TIME);
}

#[test]
fn f32_mutant_a_late_reply_erases_the_shutdown() {
    is_found(Mutant::ReplyErasesShutdown, 2, 0, 0, IN_TIME);
}

#[test]
fn mutant_shutdown_wakes_nobody() {
    is_found(Mutant::ShutdownWakesNobody, 2, 0, 0, IN_TIME);
}

#[test]
fn mutant_a_failed_closure_cancels_nothing() {
    is_found(Mutant::FailedClosureCancelsNothing, 2, 0, 0, IN_TIME);
}

#[test]
fn f38_mutant_the_parent_reaps_without_a_deadline() {
    is_found(Mutant::ReapsWithoutDeadline, 2, 0, 1, ENDS);
}

#[test]
fn f03_mutant_a_child_does_not_check_whether_its_parent_was_gone_before() {
    is_found(Mutant::ParentDeathNotChecked, 2, 1, 0, ENDS);
}

#[test]
fn f07_mutant_a_leaving_hides_the_death_behind_it() {
    is_found(Mutant::LeavingHidesDeath, 3, 1, 0, FIRST_CAUSE);
}

#[test]
fn mutant_leaving_is_checked_before_death() {
    is_found(Mutant::LeftCheckedFirst, 3, 0, 1, NOT_DEAD);
}
