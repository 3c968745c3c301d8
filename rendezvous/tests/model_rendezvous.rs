//! A rendezvous of independent ranks, every interleaving of it, with a rank that crashes at any point:
//! checked by stateright over all states.
//!
//! Each step of the model in `rendezvous_model` names the code that it stands for. The mutants are defects
//! that such code can have, and the model finds each of them.
#![allow(missing_docs)]

mod rendezvous_model;

use rendezvous_model::{BLAMED, Mutant, Rendezvous};
use stateright::{Checker, HasDiscoveries, Model};

/// All states of a rendezvous of `ranks` ranks of which one may crash.
fn holds(ranks: usize) {
    let model = Rendezvous { ranks, crashes: 1, mutant: None };
    let checked = model.checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    checked.assert_properties();
    assert!(checked.is_done());
    println!("{ranks} ranks: {} states", checked.unique_state_count());
}

fn is_found(mutant: Mutant, ranks: usize) {
    let model = Rendezvous { ranks, crashes: 1, mutant: Some(mutant) };
    let checked = model.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let path = checked.assert_any_discovery(BLAMED);
    println!("{mutant:?}: {BLAMED}, but {:?}", path.into_actions());
}

#[test]
fn rv9_f20_every_rank_that_joined_names_the_rank_that_crashed() {
    holds(2);
    holds(3);
}

#[test]
#[ignore = "a minute; cargo test --release -p chipcomm-rendezvous --test model_rendezvous -- --ignored"]
fn rv9_f20_every_rank_that_joined_names_the_rank_that_crashed_among_4() {
    holds(4);
}

#[test]
fn mutant_the_barrier_watches_no_process() {
    is_found(Mutant::BarrierWatchesNobody, 2);
}

#[test]
fn mutant_the_leader_ends_without_a_message() {
    is_found(Mutant::LeaderEndsSilently, 3);
}

#[test]
fn mutant_pids_are_known_only_from_the_ranks_themselves() {
    is_found(Mutant::LeaderWritesNoPids, 2);
}
