//! Deadlock verdicts against brute force over all interleavings, and the texts that explain them.

use ccl_schedule::algo::{self, Shape};
use ccl_schedule::{
    CreditPoint, Dir, Goal, Land, Misuse, Op, Program, ProofError, Tile, Wiring, completes, prove,
    smallest_slots,
};
use proptest::prelude::*;
use std::collections::HashSet;

/// A program given as lists, on a ring of E/W channels in both directions.
#[derive(Clone, Debug)]
struct Listed(Vec<Vec<Op>>);

impl Program for Listed {
    fn name(&self) -> &str {
        "listed"
    }
    fn goal(&self) -> Goal {
        Goal::AllReduce
    }
    fn ranks(&self) -> u32 {
        self.0.len() as u32
    }
    fn chunks(&self) -> u32 {
        1
    }
    fn dirs(&self) -> &[Dir] {
        &[Dir::E, Dir::W]
    }
    fn peer(&self, rank: u32, dir: Dir) -> Option<(u32, Dir)> {
        let n = self.ranks();
        Some(if dir == Dir::E { ((rank + 1) % n, Dir::W) } else { ((rank + n - 1) % n, Dir::E) })
    }
    fn op(&self, rank: u32, step: u32) -> Option<Op> {
        self.0[rank as usize].get(step as usize).copied()
    }
    fn messages(&self) -> u64 {
        self.0.iter().flatten().filter(|op| matches!(op, Op::Send { .. })).count() as u64
    }
}

fn send(dir: Dir) -> Op {
    Op::Send { dir, chunk: 0, from: Tile::Mem(0) }
}

fn recv(dir: Dir) -> Op {
    Op::Recv { dir, tile: 0, land: Land::Reduce }
}

/// Whether any interleaving gets stuck, and whether any completes, by visiting every reachable state.
fn brute_force(program: &Listed, slots: u32) -> (bool, bool) {
    let wiring = Wiring::install(program).unwrap();
    let channels = wiring.channels().len();
    let start = (vec![0u32; program.0.len()], vec![0u32; channels]);
    let (mut seen, mut stack) = (HashSet::from([start.clone()]), vec![start]);
    let (mut stuck, mut done) = (false, false);
    while let Some((steps, fill)) = stack.pop() {
        let mut moved = false;
        for rank in 0..program.ranks() {
            let Some(op) = program.op(rank, steps[rank as usize]) else { continue };
            let (mut steps, mut fill) = (steps.clone(), fill.clone());
            match op {
                Op::Send { dir, .. } if fill[wiring.tx(rank, dir) as usize] < slots => {
                    fill[wiring.tx(rank, dir) as usize] += 1;
                }
                Op::Recv { dir, .. } if fill[wiring.rx(rank, dir) as usize] > 0 => {
                    fill[wiring.rx(rank, dir) as usize] -= 1;
                }
                _ => continue,
            }
            steps[rank as usize] += 1;
            moved = true;
            if seen.insert((steps.clone(), fill.clone())) {
                stack.push((steps, fill));
            }
        }
        let finished = (0..program.ranks()).all(|r| program.op(r, steps[r as usize]).is_none());
        done |= finished;
        stuck |= !moved && !finished;
    }
    (stuck, done)
}

fn any_op() -> impl Strategy<Value = Op> {
    prop_oneof![Just(send(Dir::E)), Just(send(Dir::W)), Just(recv(Dir::E)), Just(recv(Dir::W))]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// SC-3: one run decides for all interleavings. SC-4: the smallest slot count is the smallest.
    #[test]
    fn sc_3_verdicts_agree_with_brute_force(
        lists in prop::collection::vec(prop::collection::vec(any_op(), 0..6), 2..5),
        slots in 1u32..4,
    ) {
        let program = Listed(lists);
        let (stuck, done) = brute_force(&program, slots);
        prop_assert_ne!(stuck, done, "the outcome depends on the interleaving");
        prop_assert_eq!(completes(&program, slots, CreditPoint::Recv).unwrap(), done);
        match smallest_slots(&program, CreditPoint::Recv).unwrap() {
            None => prop_assert!(brute_force(&program, 9).0),
            Some(least) => {
                prop_assert!(brute_force(&program, least).1);
                prop_assert!(least == 1 || brute_force(&program, least - 1).0);
            }
        }
    }
}

#[test]
fn a_ring_that_sends_too_much_names_the_cycle_and_the_smallest_slot_count() {
    let rank = [vec![send(Dir::E); 5], vec![recv(Dir::W); 5]].concat();
    let program = Listed(vec![rank; 3]);
    let Err(ProofError::Deadlock(deadlock)) = prove(&program, 4, CreditPoint::LastUse) else { panic!() };
    assert_eq!(deadlock.cycle.iter().map(|b| b.rank).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(deadlock.smallest, Some(5));
    assert_eq!(
        deadlock.to_string(),
        "deadlock with n_slots = 4: rank 0 at step 4 in send(E, chunk 0, tile 0) -> rank 1 at step 4 in send(E, chunk \
         0, tile 0) -> rank 2 at step 4 in send(E, chunk 0, tile 0) -> back to rank 0; the smallest n_slots that works \
         is 5"
    );
}

#[test]
fn a_wait_for_a_rank_that_has_finished_is_told_apart_from_a_cycle() {
    let program = Listed(vec![vec![recv(Dir::E)], vec![]]);
    let text = prove(&program, 4, CreditPoint::LastUse).unwrap_err().to_string();
    assert!(text.contains("-> rank 1, which has finished; no n_slots helps"), "{text}");
}

#[test]
fn everyone_receiving_first_is_a_deadlock_for_every_slot_count() {
    let program = Listed(vec![vec![recv(Dir::W), send(Dir::E)]; 4]);
    let Err(ProofError::Deadlock(deadlock)) = prove(&program, 4, CreditPoint::LastUse) else { panic!() };
    assert_eq!((deadlock.cycle.len(), deadlock.smallest), (4, None));
}

#[test]
fn sc_5_what_is_left_over_or_misused_is_an_error() {
    let run = |lists: Vec<Vec<Op>>| prove(&Listed(lists), 4, CreditPoint::LastUse).unwrap_err();
    assert!(matches!(run(vec![vec![send(Dir::E)], vec![]]), ProofError::Unreceived { dst: 1, count: 1, .. }));
    let hold = Op::Recv { dir: Dir::W, tile: 0, land: Land::Forward };
    assert!(matches!(
        run(vec![vec![send(Dir::E)], vec![hold]]),
        ProofError::Unreleased { rank: 1, dir: Dir::W }
    ));
    let misuse = |lists| match run(lists) {
        ProofError::Misuse { what, .. } => what,
        other => panic!("{other}"),
    };
    assert_eq!(misuse(vec![vec![send(Dir::E); 2], vec![hold, hold]]), Misuse::Busy(Dir::W));
    assert_eq!(misuse(vec![vec![Op::Wait { dir: Dir::E }], vec![]]), Misuse::NothingPosted(Dir::E));
    assert_eq!(misuse(vec![vec![send(Dir::N)], vec![]]), Misuse::NoPeer(Dir::N));
    let take = Op::Reduce { from: Tile::Take(Dir::W), to: 0 };
    assert_eq!(misuse(vec![vec![take], vec![]]), Misuse::NothingHeld(Dir::W));
    assert_eq!(misuse(vec![vec![Op::Copy { from: Tile::Mem(3), to: 0 }], vec![]]), Misuse::NoTile(3));
    assert_eq!(prove(&Listed(vec![vec![]]), 0, CreditPoint::Recv), Err(ProofError::NoSlots));
    assert!(matches!(
        prove(&Listed(vec![]), 4, CreditPoint::Recv),
        Err(ProofError::Wiring(ccl_schedule::WiringError::NoRanks))
    ));
}

#[test]
fn sc_1_two_ranks_that_reach_each_other_twice_have_two_channels_each_way() {
    // With two ranks, E and W lead to the same peer; pairing by sender would mix them up.
    let wiring = Wiring::install(&Listed(vec![vec![], vec![]])).unwrap();
    assert_eq!(wiring.channels().len(), 4);
    for rank in [0, 1] {
        assert_ne!(wiring.rx(rank, Dir::E), wiring.rx(rank, Dir::W));
        assert_eq!(wiring.tx(rank, Dir::E), wiring.rx(1 - rank, Dir::W));
    }
    let ring = algo::build("ring_accumulate", 2, &Shape::default()).unwrap();
    prove(&*ring, 1, CreditPoint::LastUse).unwrap();
}

#[test]
fn a_forwarded_slot_needs_its_slot_until_the_last_use() {
    // Rank 1 holds the only slot while it waits for a second token: fine if the credit goes back at the recv.
    let hold = Op::Recv { dir: Dir::W, tile: 0, land: Land::Forward };
    let program = Listed(vec![
        vec![send(Dir::E), send(Dir::E), send(Dir::W)],
        vec![hold, recv(Dir::E), Op::Reduce { from: Tile::Take(Dir::W), to: 0 }, recv(Dir::W)],
    ]);
    assert!(completes(&program, 1, CreditPoint::Recv).unwrap());
    assert!(!completes(&program, 1, CreditPoint::LastUse).unwrap());
    assert_eq!(smallest_slots(&program, CreditPoint::LastUse).unwrap(), Some(2));
}
