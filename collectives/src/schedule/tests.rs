//! Plans without windows: what is refused, and that a plan with a fault is found.

use super::code::{Code, Instr, Place};
use super::{Passing, Plan, PlanError, Sums, check, lower};
use ccl_schedule::algo::{self, NAMES, Shape};
use ccl_schedule::{Dir, Goal, ListedProgram, Op, Program};

const PASSINGS: [Passing; 3] = [Passing::Value { slots: 1 }, Passing::Value { slots: 4 }, Passing::Reference];

fn build(name: &str, ranks: u32, passing: Passing) -> Option<Box<dyn Program>> {
    let window = if let Passing::Value { slots } = passing { slots } else { 4 };
    algo::build(name, ranks, &Shape { window, ..Shape::default() }).ok()
}

// PL-1
#[test]
fn every_schedule_of_the_library_has_a_plan_or_is_refused_by_the_prover() {
    for ranks in (1..=16).chain([33, 64]) {
        for (name, passing) in NAMES.iter().flat_map(|names| PASSINGS.map(|passing| (names[0], passing))) {
            let Some(program) = build(name, ranks, passing) else { continue };
            for sums in [Sums::RoundedOnce, Sums::RoundedEach] {
                match Plan::new(&*program, passing, sums) {
                    Ok(plan) => assert_eq!((plan.ranks(), plan.chunks()), (ranks as usize, program.chunks())),
                    Err(PlanError::Refused { why, .. }) => {
                        // In place, each rank would have to write what another still reads; and a slot that is passed on needs a second.
                        let known = match passing {
                            Passing::Reference => ["recursive_doubling", "hello_send"].contains(&name),
                            Passing::Value { slots } => slots == 1,
                        };
                        assert!(known && why.contains("deadlock"), "{name} of {ranks}, {passing:?}: {why}");
                    }
                    Err(error) => panic!("{name} of {ranks}, {passing:?}, {sums:?}: {error}"),
                }
            }
        }
    }
}

/// Every plan with one instruction left out. Some waits of a ring are implied by later ones; everything else is needed.
// F86
#[test]
fn a_plan_without_one_of_its_instructions_is_found() {
    for (name, passing) in [
        ("direct_one_shot", Passing::Reference),
        ("direct_two_shot", Passing::Reference),
        ("ring_reduce_scatter_allgather", Passing::Reference),
        ("ring_accumulate", Passing::Value { slots: 2 }),
        ("recursive_doubling", Passing::Value { slots: 1 }),
        ("tree_allreduce", Passing::Reference),
        ("all_to_all", Passing::Reference),
    ] {
        let program = build(name, 4, passing).unwrap();
        let codes = lower::lower(&*program, passing, true).unwrap();
        check::check(&*program, &codes).unwrap();
        let (mut found, mut waits) = (0, 0);
        for (rank, code) in codes.iter().enumerate() {
            for at in 0..code.instrs.len() {
                let mut broken: Vec<Code> = codes.clone();
                let instr = broken[rank].instrs.remove(at);
                let is_found = check::check(&*program, &broken).is_err();
                if matches!(instr, Instr::Wait { .. }) {
                    (found, waits) = (found + usize::from(is_found), waits + 1);
                } else {
                    assert!(is_found, "{name}: rank {rank} without {at}, {instr:?}");
                }
            }
        }
        let implied = if name.starts_with("ring_reduce") { waits / 4 } else { 0 };
        assert!(found + implied >= waits && waits > 0, "{name}: {found} of {waits} waits are needed");
    }
}

/// A sum that has everybody's contribution, and one of them twice: a set of ranks alone would not show it.
// PL-1
#[test]
fn a_plan_that_adds_a_contribution_twice_is_found() {
    for (name, passing) in [("direct_one_shot", PASSINGS[2]), ("ring_accumulate", PASSINGS[1])] {
        let program = build(name, 4, passing).unwrap();
        let mut codes = lower::lower(&*program, passing, true).unwrap();
        let Code { instrs, sources, .. } = &mut codes[1];
        let fold = instrs.iter_mut().find(|instr| matches!(instr, Instr::Fold { .. })).unwrap();
        let Instr::Fold { first, count, chunk, .. } = fold else { unreachable!("it is a fold") };
        let again: Vec<Place> = sources[*first as usize..][..*count as usize].to_vec();
        (*first, *count) = (sources.len() as u32, *count + 1);
        sources.extend(again.iter().chain(&again[..1]));
        let wanted = format!("rank 1 adds a contribution to chunk {chunk} twice");
        assert_eq!(check::check(&*program, &codes), Err(wanted), "{name}");
    }
}

// PL-5
#[test]
fn a_plan_that_writes_to_another_window_is_found() {
    let program = build("direct_one_shot", 2, Passing::Reference).unwrap();
    let mut codes = lower::lower(&*program, Passing::Reference, true).unwrap();
    let copy = codes[0].instrs.iter_mut().find(|instr| matches!(instr, Instr::Copy { .. })).unwrap();
    let Instr::Copy { to, .. } = copy else { unreachable!("it is a copy") };
    *to = Place::Window { rank: 1, room: 0 };
    assert_eq!(check::check(&*program, &codes).unwrap_err(), "rank 0 writes to the window of rank 1");
}

#[test]
fn additions_become_one_pass_and_what_stays_is_not_waited_for() {
    // Publish, a wait for each other rank, one pass over all, and one copy to the window.
    for ranks in [2, 5, 64] {
        let plan = Plan::named("direct_one_shot", ranks as u32, Passing::Reference).unwrap();
        assert_eq!(plan.instructions(0), [1, ranks - 1, 1, 1], "{ranks} ranks");
        let plan = Plan::named("direct_two_shot", ranks as u32, Passing::Reference).unwrap();
        assert_eq!(plan.instructions(0), [2, 2 * (ranks - 1), 1, 2 * (ranks - 1)], "{ranks} ranks");
    }
    let program = build("direct_one_shot", 5, Passing::Reference).unwrap();
    let plan = Plan::new(&*program, Passing::Reference, Sums::RoundedEach).unwrap();
    assert_eq!(plan.instructions(0)[2], 4, "each addition by itself");
}

#[test]
fn the_hash_tells_plans_apart() {
    let mut hashes = Vec::new();
    for (name, ranks) in NAMES.iter().flat_map(|names| [2, 4, 8].map(|ranks| (names[0], ranks))) {
        for passing in [Passing::Value { slots: 4 }, Passing::Reference] {
            hashes.extend(Plan::named(name, ranks, passing).map(|plan| plan.hash()));
        }
    }
    assert_eq!(
        Plan::named("ring_accumulate", 4, PASSINGS[1]),
        Plan::named("ring_allreduce_tcm", 4, PASSINGS[1])
    );
    let all = hashes.len();
    hashes.sort_unstable();
    hashes.dedup();
    assert!(
        hashes.len() > all * 3 / 4,
        "{} of {all} differ; with two ranks some schedules are the same",
        hashes.len()
    );
}

#[test]
fn what_is_no_sum_of_ranks_is_refused_with_its_reason() {
    let error = Plan::named("none", 4, Passing::Reference).unwrap_err().to_string();
    assert!(error.contains("unknown algorithm"), "{error}");
    let error = Plan::named("recursive_doubling", 6, PASSINGS[1]).unwrap_err().to_string();
    assert!(error.contains("power of two"), "{error}");
    let ring = algo::RingAccumulate::new(65).unwrap();
    assert_eq!(Plan::new(&ring, PASSINGS[1], Sums::RoundedOnce), Err(PlanError::TooManyRanks(65)));
    let error = Plan::named("ring_accumulate", 4, Passing::Value { slots: 1 }).unwrap_err().to_string();
    assert!(error.contains("the smallest n_slots that works is 2"), "{error}");
    let plan = Plan::named("hello_send", 3, PASSINGS[1]).unwrap();
    assert_eq!((plan.goal(), plan.combines()), (Goal::Shift, false));
    let waits = plan.inner.codes.iter().flat_map(|code| &code.instrs);
    assert!(waits.filter(|instr| matches!(instr, Instr::Wait { .. })).count() >= 3);
}

/// A schedule as lists, so that one operation can be changed.
fn listed(program: &dyn Program, change: impl Fn(u32, Vec<Op>) -> Vec<Op>) -> ListedProgram {
    let ranks = program.ranks();
    let ops = |rank| (0..).map_while(|step| program.op(rank, step)).collect();
    let lists = (0..ranks).map(|rank| change(rank, ops(rank))).collect();
    let mut list = ListedProgram::new(program.name(), program.goal(), program.chunks(), lists)
        .with_scratch(program.scratch());
    for (rank, dir) in (0..ranks).flat_map(|rank| program.dirs().iter().map(move |dir| (rank, *dir))) {
        if let Some(to) = program.peer(rank, dir) {
            list.connect((rank, dir), to);
        }
    }
    list
}

// PL-1
#[test]
fn f86_a_schedule_with_one_operation_dropped_doubled_or_misdirected_is_refused_at_every_rank_count() {
    let moves = |op: &Op| !matches!(op, Op::Copy { .. } | Op::Store { .. });
    for ranks in 2..=64_u32 {
        let names = ["direct_one_shot", "direct_two_shot", "ring_reduce_scatter_allgather", "tree_allreduce"];
        for (name, passing) in names.into_iter().flat_map(|name| [(name, PASSINGS[1]), (name, PASSINGS[2])]) {
            let program = build(name, ranks, passing).unwrap();
            let right = listed(&*program, |_, ops| ops);
            if ranks < 9 {
                Plan::new(&right, passing, Sums::RoundedOnce).unwrap();
            }
            let rank = ranks * 7 / 11;
            for fault in 0..3 {
                let broken = listed(&*program, |of, mut ops| {
                    if of == rank {
                        // Copies may be made twice without harm, so they are only left out.
                        let places = (0..ops.len()).filter(|at| fault == 0 || moves(&ops[*at]));
                        let places: Vec<usize> = places.collect();
                        let at = places[(ranks as usize * 5 + name.len()) % places.len()];
                        match (fault, &mut ops[at]) {
                            (0, _) => drop(ops.remove(at)),
                            (2, Op::Send { dir, .. } | Op::Recv { dir, .. }) => *dir = Dir::exchange(31),
                            _ => ops.insert(at, ops[at]),
                        }
                    }
                    ops
                });
                let refused = Plan::new(&broken, passing, Sums::RoundedOnce);
                assert!(
                    matches!(refused, Err(PlanError::Refused { .. })),
                    "{name} of {ranks}, {passing:?}, fault {fault}: {refused:?}"
                );
            }
        }
    }
}
