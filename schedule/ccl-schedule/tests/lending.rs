//! Rank order, passing by reference, and tables in C.

use ccl_schedule::algo::{self, Shape};
use ccl_schedule::{
    CreditPoint, Dir, Goal, Land, LendError, ListedProgram, Op, OrderError, Program, ProofError, Tile,
    prove_by_reference, prove_rank_order, unguarded_writes,
};

fn build(name: &str, ranks: u32) -> Box<dyn Program> {
    algo::build(name, ranks, &Shape { window: 4, ..Shape::default() }).unwrap()
}

fn order(program: &dyn Program) -> Result<(), OrderError> {
    prove_rank_order(program, 4, CreditPoint::LastUse)
}

#[test]
fn sc_7_direct_schedules_add_in_the_order_of_the_ranks() {
    for ranks in 1..=64 {
        for name in [
            "direct_one_shot",
            "direct_two_shot",
            "reduce",
            "direct_reduce_scatter",
            "direct_reduce_two_shot",
        ] {
            order(&*build(name, ranks)).unwrap_or_else(|error| panic!("{name} of {ranks}: {error}"));
        }
    }
    // Nothing is added, so there is nothing to prove.
    for name in ["all_gather", "broadcast", "all_to_all"] {
        order(&*build(name, 8)).unwrap();
    }
}

#[test]
fn sc_7_another_order_is_named_with_rank_and_chunk() {
    let text = |name: &str, ranks| order(&*build(name, ranks)).unwrap_err().to_string();
    assert_eq!(
        text("ring_accumulate", 3),
        "rank 0, chunk 0: adds (0 + 2) + 1, not in the order of the ranks"
    );
    // Every rank adds what has come around the ring to its own.
    assert_eq!(
        text("ring_reduce_scatter_allgather", 4),
        "rank 0, chunk 0: adds 3 + (2 + (1 + 0)), not in the order of the ranks"
    );
    assert!(text("tree_allreduce", 7).starts_with("rank 0, chunk 0: adds "));
    // Two ranks in a tree, or at a hypercube's corner 0, are in order; rank 1 of the latter is not.
    order(&*build("tree_allreduce", 2)).unwrap();
    assert!(text("recursive_doubling", 2).starts_with("rank 1, chunk 0: adds 1 + 0"));
    // Sums of neighbours that are added together are rounded elsewhere than one rank after the other.
    assert!(text("recursive_doubling", 4).starts_with("rank 0, chunk 0: adds (0 + 1) + (2 + 3)"));
    // What is not a sum at all is the other kind of error.
    let nothing = ListedProgram::new("nothing", Goal::AllReduce, 1, vec![vec![]; 2]).on_ring();
    assert!(matches!(order(&nothing), Err(OrderError::Order(_))));
    let alone = vec![Op::Recv { dir: Dir::W, tile: 0, land: Land::Copy }];
    let stuck = ListedProgram::new("stuck", Goal::AllReduce, 1, vec![alone; 2]).on_ring();
    assert!(matches!(order(&stuck), Err(OrderError::Proof(ProofError::Deadlock(_)))));
}

#[test]
fn sc_8_every_algorithm_is_right_by_reference() {
    for ranks in (1..=24).chain([32, 47, 64]) {
        for names in algo::NAMES.iter().filter(|names| names[0] != "hello_send" || ranks > 1) {
            let Ok(program) = algo::build(names[0], ranks, &Shape { window: 4, ..Shape::default() }) else {
                continue;
            };
            match prove_by_reference(&*program) {
                Ok(proof) => assert_eq!(proof.messages, program.messages(), "{} of {ranks}", names[0]),
                // In place, each rank would have to write what the next one still reads.
                Err(LendError::Deadlock(text)) => {
                    let in_place = ["recursive_doubling", "hello_send"];
                    assert!(in_place.contains(&names[0]), "{} of {ranks}: {text}", names[0]);
                }
                Err(error) => panic!("{} of {ranks}: {error}", names[0]),
            }
        }
    }
}

/// Two ranks: rank 0 lends its tile and writes it again; rank 1 reads it, and may answer first.
fn lender(answers: bool) -> ListedProgram {
    let send = Op::Send { dir: Dir::E, chunk: 0, from: Tile::Mem(0) };
    let recv = Op::Recv { dir: Dir::W, tile: 0, land: Land::Copy };
    let write = Op::Copy { from: Tile::Mem(0), to: 1 };
    let wait = Op::Recv { dir: Dir::W, tile: 2, land: Land::Copy };
    let overwrite = Op::Copy { from: Tile::Mem(1), to: 0 };
    let lists = if answers {
        vec![vec![write, send, wait, overwrite], vec![recv, send]]
    } else {
        vec![vec![write, send, overwrite], vec![recv]]
    };
    ListedProgram::new("lender", Goal::Broadcast { root: 0 }, 1, lists).with_scratch(2).on_ring()
}

#[test]
fn sc_8_a_lent_tile_that_is_written_too_early_is_found() {
    let found = unguarded_writes(&lender(false)).unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(
        found[0].to_string(),
        "rank 0 writes tile 0 at step 2, which rank 1 has borrowed and reads until its step 0; nothing orders the two"
    );
    // With an answer, the read is before the write whoever is faster; and a write that waits is right in any case.
    assert_eq!(unguarded_writes(&lender(true)).unwrap(), []);
    prove_by_reference(&lender(false)).unwrap();
    // In one shot a rank stores its sum when it has read all others, but not when all others have read it. An exchange writes only
    // what nobody borrows.
    for ranks in 2..=16 {
        let pairs = (ranks * (ranks - 1)) as usize;
        assert_eq!(unguarded_writes(&*build("direct_one_shot", ranks)).unwrap().len(), pairs);
        assert_eq!(unguarded_writes(&*build("all_to_all", ranks)).unwrap(), []);
    }
}

#[test]
fn sc_8_two_ranks_that_borrow_from_each_other_and_write_deadlock() {
    let exchange = vec![
        Op::Send { dir: Dir::E, chunk: 0, from: Tile::Mem(0) },
        Op::Recv { dir: Dir::W, tile: 0, land: Land::Reduce },
    ];
    let program = ListedProgram::new("exchange", Goal::AllReduce, 1, vec![exchange; 2]).on_ring();
    let text = prove_by_reference(&program).unwrap_err().to_string();
    assert!(
        text.contains("rank 0 at step 1 in recv(W, tile 0, reduce) waits until rank 1 has read the tile"),
        "{text}"
    );
    assert!(text.contains("rank 1 at step 1"), "{text}");
}
