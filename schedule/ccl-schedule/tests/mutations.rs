//! A schedule that loses, repeats or misroutes one contribution is always found, at every rank count from 2
//! to 64.

use ccl_schedule::algo::{self, Shape};
use ccl_schedule::mutate::{Broken, Fault};
use ccl_schedule::{CreditPoint, Dir, Program, ProofError, Wrong, prove};

fn programs(ranks: u32) -> Vec<Box<dyn Program>> {
    let shape = Shape { window: 4, ..Shape::default() };
    algo::NAMES
        .iter()
        .filter(|names| !["hello_send", "all_gather"].contains(&names[0]))
        .filter_map(|names| algo::build(names[0], ranks, &shape).ok())
        .collect()
}

fn wrong(program: &dyn Program) -> Wrong {
    match prove(program, 4, CreditPoint::LastUse) {
        Err(ProofError::Contribution(wrong)) => wrong,
        other => panic!("{} with {} ranks: {other:?}", program.name(), program.ranks()),
    }
}

/// Breaks the first addition of some ranks of every algorithm; `shows` checks what the proof reports.
fn found_everywhere(fault: impl Fn(u32) -> Fault, shows: impl Fn(&Wrong) -> bool) {
    for ranks in 2..=64 {
        for rank in [0, ranks / 2, ranks - 1] {
            for program in programs(ranks) {
                let name = program.name().to_owned();
                if let Some(broken) = Broken::new(program, fault(rank)) {
                    assert!(shows(&wrong(&broken)), "{name} {ranks}");
                }
            }
        }
    }
}

#[test]
fn sc_2_a_dropped_contribution_is_found_at_every_rank_count() {
    found_everywhere(|rank| Fault::Drop { rank, nth: 0 }, |wrong| !wrong.missing.is_empty());
}

#[test]
fn sc_2_a_repeated_contribution_is_found_at_every_rank_count() {
    found_everywhere(|rank| Fault::Duplicate { rank, nth: 0 }, |wrong| !wrong.extra.is_empty());
}

#[test]
fn a_ring_with_two_neighbours_swapped_is_found_at_every_rank_count() {
    for ranks in 2..=64 {
        let ring = algo::RingAccumulate::new(ranks).unwrap();
        let broken = Broken::new(ring, Fault::Swap { first: 0, second: ranks / 2, dir: Dir::E }).unwrap();
        let found = wrong(&broken);
        assert!(!found.missing.is_empty() && !found.extra.is_empty(), "{ranks}: {found}");
    }
}

#[test]
fn sc_1_a_send_to_a_neighbour_that_has_a_sender_is_refused_at_every_rank_count() {
    for ranks in 2..=64 {
        let ring = algo::RingAccumulate::new(ranks).unwrap();
        let broken = Broken::new(ring, Fault::WrongPeer { rank: 0, dir: Dir::E }).unwrap();
        let text = prove(&broken, 4, CreditPoint::LastUse).unwrap_err().to_string();
        assert!(text.contains("both send into direction W"), "{text}");
    }
}

#[test]
fn the_first_wrong_rank_and_chunk_are_named() {
    let ring = algo::build("ring_reduce_scatter_allgather", 6, &Shape::default()).unwrap();
    let broken = Broken::new(ring, Fault::Drop { rank: 2, nth: 1 }).unwrap();
    let text = prove(&broken, 4, CreditPoint::LastUse).unwrap_err().to_string();
    assert_eq!(text, "rank 0 ends with a wrong chunk 0: missing rank 0, 1");
    let tree =
        Broken::new(algo::TreeAllReduce::new(7, 1).unwrap(), Fault::Duplicate { rank: 1, nth: 1 }).unwrap();
    let text = prove(&tree, 4, CreditPoint::LastUse).unwrap_err().to_string();
    assert_eq!(text, "rank 0 ends with a wrong chunk 0: too much: rank 4 (2 times)");
}
