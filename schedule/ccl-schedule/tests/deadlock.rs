//! Deadlock decisions compared with a search over all interleavings, and the texts that explain them.

use ccl_schedule::algo::{self, Shape};
use ccl_schedule::{
    CreditPoint, Dir, Goal, Land, ListedProgram, Misuse, Op, Program, ProofError, Tile, Wiring, completes,
    prove, smallest_slots,
};
use proptest::prelude::*;
use std::collections::HashSet;

/// Lists of operations on a ring with channels in both directions.
fn listed(lists: Vec<Vec<Op>>) -> ListedProgram {
    ListedProgram::new("listed", Goal::AllReduce, 1, lists).on_two_way_ring()
}

fn send(dir: Dir) -> Op {
    Op::Send { dir, chunk: 0, from: Tile::Mem(0) }
}

fn recv(dir: Dir) -> Op {
    Op::Recv { dir, tile: 0, land: Land::Reduce }
}

fn hold(dir: Dir) -> Op {
    Op::Recv { dir, tile: 0, land: Land::Forward }
}

/// A channel as a state of the search: slots in use, tokens to receive, and what the receiver has there.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Queue {
    used: u32,
    ready: u32,
    held: bool,
    posted: bool,
    landed: bool,
}

/// What a program can end in.
#[derive(Default)]
struct Outcomes {
    stuck: bool,
    done: bool,
    misused: bool,
}

/// Visits every reachable state of every interleaving; a posted receive takes its token at any time after its
/// arrival.
fn brute_force(program: &ListedProgram, slots: u32, credit: CreditPoint) -> Outcomes {
    let wiring = Wiring::install(program).unwrap();
    let ranks = program.ranks();
    let start = (vec![0u32; ranks as usize], vec![Queue::default(); wiring.channels().len()]);
    let (mut seen, mut stack) = (HashSet::from([start.clone()]), vec![start]);
    let mut found = Outcomes::default();
    while let Some((steps, queues)) = stack.pop() {
        let finished = (0..ranks).all(|rank| program.op(rank, steps[rank as usize]).is_none());
        let mut next = Vec::new();
        for (id, queue) in queues.iter().enumerate() {
            if queue.posted && !queue.landed && queue.ready > 0 {
                let mut queues = queues.clone();
                queues[id] = Queue { ready: queue.ready - 1, used: queue.used - 1, landed: true, ..*queue };
                next.push((steps.clone(), queues));
            }
        }
        for rank in 0..ranks {
            let Some(op) = program.op(rank, steps[rank as usize]) else { continue };
            let (mut steps, mut queues) = (steps.clone(), queues.clone());
            match act(op, rank, &wiring, &mut queues, slots, credit) {
                Some(true) => {
                    steps[rank as usize] += 1;
                    next.push((steps, queues));
                }
                Some(false) => {}
                None => {
                    found.misused = true;
                    return found;
                }
            }
        }
        found.done |= finished;
        found.stuck |= next.is_empty() && !finished;
        stack.extend(next.into_iter().filter(|state| seen.insert(state.clone())));
    }
    found
}

/// Executes one operation, or returns false if it has to wait; `None` if it is invalid.
fn act(
    op: Op,
    rank: u32,
    wiring: &Wiring,
    queues: &mut [Queue],
    slots: u32,
    credit: CreditPoint,
) -> Option<bool> {
    let take = |queues: &mut [Queue], dir| {
        let queue = &mut queues[wiring.rx(rank, dir) as usize];
        queue.used -= u32::from(queue.held && credit == CreditPoint::LastUse);
        std::mem::take(&mut queue.held).then_some(())
    };
    let at = |dir| wiring.rx(rank, dir) as usize;
    match op {
        Op::Send { dir, from, .. } => {
            let to = wiring.tx(rank, dir) as usize;
            if queues[to].used >= slots {
                return Some(false);
            }
            queues[to].used += 1;
            queues[to].ready += 1;
            if let Tile::Take(dir) = from {
                take(queues, dir)?;
            }
        }
        Op::Recv { dir, land, .. } => {
            let queue = &mut queues[at(dir)];
            if queue.held || queue.posted {
                return None;
            }
            if queue.ready == 0 {
                return Some(false);
            }
            queue.ready -= 1;
            queue.held = land == Land::Forward;
            queue.used -= u32::from(!queue.held || credit == CreditPoint::Recv);
        }
        Op::RecvAsync { dir, .. } => {
            let queue = &mut queues[at(dir)];
            if queue.held || queue.posted {
                return None;
            }
            queue.posted = true;
        }
        Op::Wait { dir } => {
            let queue = &mut queues[at(dir)];
            if !queue.posted {
                return None;
            }
            if !queue.landed {
                return Some(false);
            }
            (queue.posted, queue.landed) = (false, false);
        }
        Op::Reduce { from: Tile::Take(dir), .. } => take(queues, dir)?,
        _ => {}
    }
    Some(true)
}

fn any_op() -> impl Strategy<Value = Op> {
    let dir = || prop_oneof![Just(Dir::E), Just(Dir::W)];
    prop_oneof![
        4 => dir().prop_map(send),
        4 => dir().prop_map(recv),
        1 => dir().prop_map(hold),
        1 => dir().prop_map(|dir| Op::Reduce { from: Tile::Take(dir), to: 0 }),
        1 => (dir(), dir()).prop_map(|(dir, from)| Op::Send { dir, chunk: 0, from: Tile::Take(from) }),
        1 => dir().prop_map(|dir| Op::RecvAsync { dir, tile: 0, land: Land::Reduce }),
        1 => dir().prop_map(|dir| Op::Wait { dir }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// SC-3: one run decides for all interleavings, with held slots and posted receives too. SC-4: the
    /// smallest slot count is the smallest.
    #[test]
    fn sc_3_one_run_agrees_with_a_search_over_all_interleavings(
        lists in prop::collection::vec(prop::collection::vec(any_op(), 0..6), 2..5),
        slots in 1u32..4,
        credit in prop_oneof![Just(CreditPoint::Recv), Just(CreditPoint::LastUse)],
    ) {
        let program = listed(lists);
        let found = brute_force(&program, slots, credit);
        let completed = completes(&program, slots, credit);
        prop_assert_eq!(completed.is_err(), found.misused);
        if found.misused {
            return Ok(());
        }
        prop_assert_ne!(found.stuck, found.done, "the outcome depends on the interleaving");
        prop_assert_eq!(completed.unwrap(), found.done);
        // With more slots it may get as far as an invalid operation.
        match smallest_slots(&program, credit) {
            Err(_) => prop_assert!(brute_force(&program, 9, credit).misused),
            Ok(None) => prop_assert!(brute_force(&program, 9, credit).stuck),
            Ok(Some(least)) => {
                prop_assert!(brute_force(&program, least, credit).done);
                prop_assert!(least == 1 || brute_force(&program, least - 1, credit).stuck);
            }
        }
    }
}

#[test]
fn f86_a_ring_that_sends_too_much_names_the_cycle_and_the_smallest_slot_count() {
    let rank = [vec![send(Dir::E); 5], vec![recv(Dir::W); 5]].concat();
    let program = listed(vec![rank; 3]);
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
fn a_wait_for_a_finished_rank_is_distinguished_from_a_cycle() {
    let program = listed(vec![vec![recv(Dir::E)], vec![]]);
    let text = prove(&program, 4, CreditPoint::LastUse).unwrap_err().to_string();
    assert!(text.contains("-> rank 1, which has finished; no n_slots helps"), "{text}");
}

#[test]
fn a_receive_first_on_every_rank_is_a_deadlock_for_every_slot_count() {
    let program = listed(vec![vec![recv(Dir::W), send(Dir::E)]; 4]);
    let Err(ProofError::Deadlock(deadlock)) = prove(&program, 4, CreditPoint::LastUse) else { panic!() };
    assert_eq!((deadlock.cycle.len(), deadlock.smallest), (4, None));
}

#[test]
fn sc_5_what_is_left_over_or_misused_is_an_error() {
    let run = |lists: Vec<Vec<Op>>| prove(&listed(lists), 4, CreditPoint::LastUse).unwrap_err();
    assert!(matches!(run(vec![vec![send(Dir::E)], vec![]]), ProofError::Unreceived { dst: 1, count: 1, .. }));
    let hold = hold(Dir::W);
    assert!(matches!(
        run(vec![vec![send(Dir::E)], vec![hold]]),
        ProofError::Unreleased { rank: 1, dir: Dir::W }
    ));
    let post = Op::RecvAsync { dir: Dir::W, tile: 0, land: Land::Reduce };
    assert!(matches!(
        run(vec![vec![send(Dir::E)], vec![post]]),
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
    assert_eq!(prove(&listed(vec![vec![]]), 0, CreditPoint::Recv), Err(ProofError::NoSlots));
    assert!(matches!(
        prove(&listed(vec![]), 4, CreditPoint::Recv),
        Err(ProofError::Wiring(ccl_schedule::WiringError::NoRanks))
    ));
}

#[test]
fn sc_5_data_of_one_chunk_does_not_count_for_another() {
    // Two chunks, and one scratch tile (2), which has the name of what was copied there last.
    let misuse = |first: Vec<Op>, second: Vec<Op>| {
        let program = ListedProgram::new("chunks", Goal::AllReduce, 2, vec![first, second]);
        match prove(&program.with_scratch(1).on_two_way_ring(), 4, CreditPoint::LastUse) {
            Err(ProofError::Misuse { what: Misuse::OtherChunk { holds, wants }, .. }) => (holds, wants),
            other => panic!("{other:?}"),
        }
    };
    // Under the name of another chunk, or landed in another.
    let named = |chunk, tile| Op::Send { dir: Dir::E, chunk, from: Tile::Mem(tile) };
    assert_eq!(misuse(vec![named(1, 0)], vec![]), (0, 1));
    for land in [Land::Reduce, Land::Copy] {
        assert_eq!(misuse(vec![named(1, 1)], vec![Op::Recv { dir: Dir::W, tile: 0, land }]), (1, 0));
    }
    // By way of the scratch tile.
    let copy = |from, to| Op::Copy { from: Tile::Mem(from), to };
    let add = |from, to| Op::Reduce { from: Tile::Mem(from), to };
    assert_eq!(misuse(vec![copy(0, 2), add(2, 1)], vec![]), (0, 1));
    assert_eq!(misuse(vec![copy(1, 2), add(0, 2)], vec![]), (0, 1));
    assert_eq!(misuse(vec![copy(1, 2), named(0, 2)], vec![]), (1, 0));
}

#[test]
fn sc_1_two_ranks_that_send_to_each_other_twice_have_two_channels_each_way() {
    // With two ranks, E and W have the same peer; pairing by sender would confuse them.
    let wiring = Wiring::install(&listed(vec![vec![], vec![]])).unwrap();
    assert_eq!(wiring.channels().len(), 4);
    for rank in [0, 1] {
        assert_ne!(wiring.rx(rank, Dir::E), wiring.rx(rank, Dir::W));
        assert_eq!(wiring.tx(rank, Dir::E), wiring.rx(1 - rank, Dir::W));
    }
    let ring = algo::build("ring_accumulate", 2, &Shape::default()).unwrap();
    prove(&*ring, 1, CreditPoint::LastUse).unwrap();
}

// SC-3, SC-4
#[test]
fn a_forwarded_slot_needs_its_slot_until_the_last_use() {
    // Rank 1 holds the only slot while it waits for a second token: fine if the credit is returned at the
    // recv.
    let hold = hold(Dir::W);
    let program = listed(vec![
        vec![send(Dir::E), send(Dir::E), send(Dir::W)],
        vec![hold, recv(Dir::E), Op::Reduce { from: Tile::Take(Dir::W), to: 0 }, recv(Dir::W)],
    ]);
    assert!(completes(&program, 1, CreditPoint::Recv).unwrap());
    assert!(!completes(&program, 1, CreditPoint::LastUse).unwrap());
    assert_eq!(smallest_slots(&program, CreditPoint::LastUse).unwrap(), Some(2));
}

/// A ring whose author forgot the direction that its ranks receive from.
struct OneDirection(ListedProgram);

impl Program for OneDirection {
    fn name(&self) -> &str {
        self.0.name()
    }
    fn goal(&self) -> Goal {
        self.0.goal()
    }
    fn ranks(&self) -> u32 {
        self.0.ranks()
    }
    fn chunks(&self) -> u32 {
        self.0.chunks()
    }
    fn dirs(&self) -> &[Dir] {
        &[Dir::E]
    }
    fn peer(&self, rank: u32, dir: Dir) -> Option<(u32, Dir)> {
        self.0.peer(rank, dir)
    }
    fn op(&self, rank: u32, step: u32) -> Option<Op> {
        self.0.op(rank, step)
    }
    fn messages(&self) -> u64 {
        self.0.messages()
    }
}

#[test]
fn schedules_that_cannot_be_wired_are_refused_with_a_sentence() {
    let error = |program: &dyn Program| prove(program, 1, CreditPoint::Recv).unwrap_err().to_string();
    assert_eq!(error(&listed(Vec::new())), "the schedule has no ranks; give it at least one");
    let ring = listed(vec![vec![send(Dir::E), recv(Dir::W)]; 2]);
    assert_eq!(prove(&ring, 1, CreditPoint::Recv).map(|_| ()), Ok(()));
    assert_eq!(
        error(&OneDirection(ring)),
        "rank 0 is wired to direction W of rank 1, which is not in `dirs` of the schedule; add it there"
    );
}
