//! Every algorithm is right for every rank count that it supports, and refuses the others.

use ccl_schedule::algo::{self, BuildError, Shape};
use ccl_schedule::{CreditPoint, Method, Op, Program, prove, smallest_slots};

/// A queue to every rank.
const DIRECT: &[&str] = &[
    "direct_one_shot",
    "direct_two_shot",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all_to_all",
    "direct_all_gather",
    "direct_reduce_scatter",
    "direct_reduce_two_shot",
];

const POINTS: [CreditPoint; 2] = [CreditPoint::Recv, CreditPoint::LastUse];

fn counted(program: &dyn Program) -> u64 {
    (0..program.ranks())
        .map(|r| {
            (0..).map_while(|s| program.op(r, s)).filter(|op| matches!(op, Op::Send { .. })).count() as u64
        })
        .sum()
}

fn check(name: &str, ranks: u32, shape: &Shape, slots: u32) {
    let program = algo::build(name, ranks, shape).unwrap_or_else(|e| panic!("{name} {ranks}: {e}"));
    for point in POINTS {
        // A rank that forwards out of a slot holds it while it waits for a free one: whole-tile rings need a
        // second slot.
        let holds = ["ring_accumulate", "mesh_allreduce"].contains(&program.name());
        let slots = if holds && point == CreditPoint::LastUse { slots.max(2) } else { slots };
        let proof =
            prove(&*program, slots, point).unwrap_or_else(|e| panic!("{name} {ranks} {shape:?}: {e}"));
        // SC-6
        assert_eq!(proof.messages, program.messages(), "{name} {ranks}");
        assert_eq!(counted(&*program), program.messages(), "{name} {ranks}");
        assert_eq!(proof.method, Method::Multisets);
    }
}

#[test]
fn sc_2_every_algorithm_is_right_from_1_to_64_ranks() {
    for ranks in 1..=64u32 {
        for slots in [1, 4] {
            let shape = Shape { window: slots, ..Shape::default() };
            for name in [
                "ring_accumulate",
                "ring_reduce_scatter_allgather",
                "tree_allreduce",
                "hierarchical",
                "all_gather",
                "reduce_scatter",
            ]
            .iter()
            .chain(DIRECT)
            {
                check(name, ranks, &shape, slots);
            }
            if ranks > 1 {
                check("hello_send", ranks, &shape, slots);
            }
            if ranks.is_power_of_two() {
                check("recursive_doubling", ranks, &shape, slots);
            }
            for height in (1..=ranks).filter(|h| ranks % h == 0) {
                let mesh = Shape { mesh: Some((ranks / height, height)), ..shape };
                check("mesh_allreduce", ranks, &mesh, slots);
            }
        }
    }
}

#[test]
fn split_and_window_keep_rings_and_trees_right() {
    for ranks in [1, 2, 3, 7, 16] {
        for split in [1, 2, 3, 8] {
            for slots in [1, 2, 4, 16] {
                let shape = Shape { split, window: slots, ..Shape::default() };
                for name in
                    ["ring_reduce_scatter_allgather", "tree_allreduce", "all_gather", "reduce_scatter"]
                {
                    check(name, ranks, &shape, slots);
                }
            }
        }
    }
}

#[test]
fn hierarchies_of_every_shape_are_right() {
    for levels in [[8, 16, 2], [1, 1, 1], [2, 3, 4], [5, 1, 2], [1, 6, 1], [3, 3, 3], [4, 4, 1], [2, 2, 2]] {
        for window in [1, 2, 4] {
            let shape = Shape { levels: Some(levels), window, ..Shape::default() };
            check("hierarchical", levels.iter().product(), &shape, window);
        }
    }
}

#[test]
fn the_names_of_kernbench2_are_known() {
    for (name, ranks) in [
        ("ring_allreduce_tcm", 8),
        ("ring_allreduce_hbm", 16),
        ("ring_allreduce_sram", 256),
        ("mesh_allreduce_4", 4),
        ("tree_allreduce_7", 7),
    ] {
        check(name, ranks, &Shape::default(), 4);
    }
}

#[test]
fn impossible_rank_counts_are_refused_with_a_sentence() {
    let build = |name, ranks, shape: Shape| algo::build(name, ranks, &shape).err().expect(name).to_string();
    let plain = Shape::default();
    assert_eq!(
        build("recursive_doubling", 12, plain),
        "recursive_doubling needs a number of ranks that is a power of two, and world_size is 12; use 8 or 16"
    );
    assert_eq!(build("hello_send", 1, plain), "hello_send needs at least 2 ranks, world_size is 1");
    assert_eq!(
        build("mesh_allreduce", 7, plain),
        "7 ranks have no 2-D mesh but 7x1; give a width and height, or use a ring"
    );
    assert_eq!(
        build("all_to_all", 65, plain),
        "all_to_all has a queue to every rank, for at most 64 ranks, and world_size is 65; use fewer ranks, a ring or a tree"
    );
    assert_eq!(
        build("mesh_allreduce", 10, Shape { mesh: Some((4, 4)), ..plain }),
        "a mesh of 4x4 has 16 places, world_size is 10"
    );
    assert!(build("hierarchical", 10, Shape { levels: Some([2, 2, 2]), ..plain }).contains("make 8 ranks"));
    assert!(build("ring", 4, plain).contains("unknown algorithm \"ring\"; known: hello_send, "));
    for name in ["ring_accumulate", "tree_allreduce", "all_gather", "mesh_allreduce", "hierarchical"] {
        assert!(matches!(algo::build(name, 0, &plain), Err(BuildError::TooFew { .. })));
    }
    assert_eq!(
        build("all_gather", u32::MAX, Shape { split: 9, ..plain }),
        "all_gather with 4294967295 ranks and split 9 needs more than 2^31 chunks or steps; use fewer ranks, or a smaller split"
    );
}

#[test]
fn beyond_4096_ranks_fingerprints_take_over_and_still_find_a_fault() {
    use ccl_schedule::mutate::{Broken, Fault};
    let tree = algo::TreeAllReduce::new(5000, 2).unwrap();
    assert_eq!(prove(&tree, 4, CreditPoint::Recv).unwrap().method, Method::Fingerprints);
    let broken = Broken::new(tree, Fault::Drop { rank: 3, nth: 1 }).unwrap();
    let text = prove(&broken, 4, CreditPoint::Recv).unwrap_err().to_string();
    assert!(text.contains("rank 0 ends with a wrong chunk 0: its fingerprint"), "{text}");
}

// SC-4
#[test]
fn algorithms_need_no_more_slots_than_stated() {
    let shape = Shape { window: 1, ..Shape::default() };
    for (name, held, copied) in [
        ("ring_accumulate", 2, 1),
        ("mesh_allreduce", 2, 1),
        ("ring_reduce_scatter_allgather", 1, 1),
        ("tree_allreduce", 1, 1),
        ("recursive_doubling", 1, 1),
    ] {
        let program = algo::build(name, 16, &shape).unwrap();
        assert_eq!(smallest_slots(&*program, CreditPoint::LastUse).unwrap(), Some(held), "{name}");
        assert_eq!(smallest_slots(&*program, CreditPoint::Recv).unwrap(), Some(copied), "{name}");
    }
    // A window of 4 needs 4 slots in a ring, because all ranks first fill their window.
    let ring =
        algo::build("ring_reduce_scatter_allgather", 8, &Shape { split: 4, window: 4, ..shape }).unwrap();
    assert_eq!(smallest_slots(&*ring, CreditPoint::LastUse).unwrap(), Some(4));
}
