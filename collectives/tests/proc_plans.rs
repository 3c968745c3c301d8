//! Plans on windows give the bytes that `ipcq-sim` computes, and those of the calls of this crate.
#![allow(missing_docs)]

#[path = "support/replay.rs"]
mod replay;
mod support;

use ccl_schedule::algo::{self, Shape};
use collectives::{CollError, Collectives, Op, Options, Passing, Plan, bf16, f16};
use comm_context::comm::{CommError, Communicator};
use ipcq_sim::config::DType;
use replay::{Case, all_run};
use std::num::NonZeroU32;
use std::time::Duration;
use support::{Number, Random, Ranks, elements, in_comms, in_groups, millis, options, same_bits, secs};

const PASSINGS: [Passing; 3] = [Passing::Value { slots: 2 }, Passing::Value { slots: 4 }, Passing::Reference];

/// Every schedule of the library, with both ways of passing, at sizes from less than one element a chunk to several pieces.
fn library(nranks: usize, counts: &[usize], every_type: bool) {
    let mut random = Random::new(nranks as u64);
    let mut cases = Vec::new();
    for names in algo::NAMES {
        for passing in PASSINGS {
            let window = if let Passing::Value { slots } = passing { slots } else { 4 };
            let shape = Shape { window, ..Shape::default() };
            let Ok(program) = algo::build(names[0], nranks as u32, &shape) else { continue };
            for count in counts {
                let types = [DType::F32, DType::F16, DType::Bf16];
                let one = random.below(3);
                for dtype in
                    types.into_iter().enumerate().filter(|(at, _)| every_type || *at == one).map(|of| of.1)
                {
                    cases.extend(Case::new(&*program, passing, dtype, *count, &mut random));
                }
            }
        }
    }
    let names = algo::NAMES.iter().filter(|names| cases.iter().any(|case| case.what.starts_with(names[0])));
    assert!(
        names.count() >= algo::NAMES.len() - 2,
        "not of every number of ranks are there a mesh and a cube"
    );
    all_run(nranks, &cases);
}

#[test]
fn pl_2_every_schedule_of_the_library_gives_what_its_replay_gives_on_three_ranks() {
    library(3, &[37], true);
}

// PL-2
#[test]
fn every_schedule_of_the_library_gives_what_its_replay_gives_on_two_to_five_ranks() {
    for nranks in 2..=5 {
        library(nranks, &[1, 37, 3000], true);
    }
}

// PL-2
#[test]
fn every_schedule_of_the_library_gives_what_its_replay_gives_on_six_to_sixteen_ranks() {
    for nranks in 6..=16 {
        library(nranks, &[if nranks % 3 == 0 { nranks - 1 } else { 301 }], false);
    }
}

// PL-2
#[test]
#[ignore = "slow: cargo xtask ci slow"]
fn tensors_that_take_several_pieces_give_what_a_replay_gives() {
    for (nranks, names) in
        [(2, ["direct_one_shot", "ring_accumulate"]), (4, ["direct_two_shot", "mesh_allreduce"])]
    {
        let mut random = Random::new(9);
        let mut cases = Vec::new();
        for (name, passing) in names.into_iter().flat_map(|name| PASSINGS.map(|passing| (name, passing))) {
            let program = algo::build(name, nranks as u32, &Shape { window: 2, ..Shape::default() }).unwrap();
            cases.extend(Case::new(&*program, passing, DType::F32, 900_001, &mut random));
        }
        assert_eq!(cases.len(), 6);
        all_run(nranks, &cases);
    }
}

/// Every call of the family and the direct schedule that does the same: the same bits for every type and operation.
fn same_as_calls<T: Number>(group: &Collectives<'_>, count: usize, ops: &[Op]) -> Result<(), String> {
    let (me, nranks) = (group.rank(), group.nranks());
    let text = |error: collectives::CollError| error.to_string();
    let tensor = |rank: usize, len: usize| elements::<T>(count as u64 + 1, rank, len);
    let plan = |name: &str| group.plan(name, Passing::Reference).map_err(text);
    let differ = |what: &str, got: &[T], wanted: &[T]| {
        same_bits(&format!("{what} × {count}, {nranks} ranks"), got, wanted)
    };
    for op in ops.iter().copied().filter(|op| op.applies_to(T::DTYPE)) {
        let mut called = tensor(me, count);
        group.all_reduce(&mut called, op).map_err(text)?;
        for name in ["direct_one_shot", "direct_two_shot"] {
            if op == Op::Avg && nranks == 1 {
                continue;
            }
            let mut planned = tensor(me, count);
            group.run_plan(&plan(name)?, &mut planned, Some(op)).map_err(text)?;
            differ(&format!("all_reduce {op} and {name}"), &planned, &called)?;
        }
        let (given, mut called) = (tensor(me, count), tensor(me, count));
        group.reduce(&given, (me == 0).then_some(&mut called[..]), op, 0).map_err(text)?;
        for name in ["reduce", "direct_reduce_two_shot"] {
            let mut planned = tensor(me, count);
            group.run_plan(&plan(name)?, &mut planned, Some(op)).map_err(text)?;
            if me == 0 {
                differ(&format!("reduce {op} and {name}"), &planned, &called)?;
            }
        }
        let (given, mut called) = (tensor(me, count * nranks), tensor(me, count));
        group.reduce_scatter(&given, &mut called, op).map_err(text)?;
        let mut planned = given.clone();
        group.run_plan(&plan("direct_reduce_scatter")?, &mut planned, Some(op)).map_err(text)?;
        differ(&format!("reduce_scatter {op}"), &planned[me * count..][..count], &called)?;
    }
    let mut called = tensor(me, count);
    group.broadcast(&mut called, 0).map_err(text)?;
    let mut planned = tensor(me, count);
    group.run_plan(&plan("broadcast")?, &mut planned, None).map_err(text)?;
    differ("broadcast", &planned, &called)?;

    // What a rank gives lies where it belongs in the whole tensor.
    let whole = |len: usize| {
        let mut whole = tensor(63, len * nranks);
        whole[me * len..][..len].copy_from_slice(&tensor(me, len));
        whole
    };
    let mut called = tensor(63, count * nranks);
    group.all_gather(&tensor(me, count), &mut called).map_err(text)?;
    for name in ["all_gather", "direct_all_gather"] {
        let mut planned = whole(count);
        group.run_plan(&plan(name)?, &mut planned, None).map_err(text)?;
        differ(name, &planned, &called)?;
    }
    let mut planned = whole(count);
    group.run_plan(&plan("gather")?, &mut planned, None).map_err(text)?;
    if me == 0 {
        differ("gather", &planned, &called)?;
    }
    let (given, mut called) = (tensor(me, count * nranks), tensor(me, count));
    group.scatter((me == 0).then_some(&given), &mut called, 0).map_err(text)?;
    let mut planned = given.clone();
    group.run_plan(&plan("scatter")?, &mut planned, None).map_err(text)?;
    differ("scatter", &planned[me * count..][..count], &called)?;

    // Chunk s·n + d of an exchange goes from s to d.
    let (given, mut called) = (tensor(me, count * nranks), tensor(me, count * nranks));
    group.all_to_all(&given, &mut called).map_err(text)?;
    let mut planned = tensor(63, count * nranks * nranks);
    planned[me * count * nranks..][..count * nranks].copy_from_slice(&given);
    group.run_plan(&plan("all_to_all")?, &mut planned, None).map_err(text)?;
    let arrived: Vec<T> =
        (0..nranks).flat_map(|from| planned[(from * nranks + me) * count..][..count].to_vec()).collect();
    differ("all_to_all", &arrived, &called)
}

// PL-3
#[test]
fn pl_3_calls_of_three_ranks_have_the_bits_of_their_plans() {
    in_groups(3, options(), |group| {
        same_as_calls::<f32>(group, 13, &[Op::Sum])?;
        same_as_calls::<f16>(group, 300, &[Op::Sum, Op::Avg])
    });
}

// PL-3
#[test]
#[ignore = "slow: cargo xtask ci slow"]
fn calls_have_the_bits_of_their_plans() {
    for nranks in [2, 3, 5] {
        in_groups(nranks, options(), |group| {
            for count in [1, 12, 13, 300, 5000] {
                same_as_calls::<f32>(group, count, Op::ALL)?;
                same_as_calls::<f16>(group, count, Op::ALL)?;
                same_as_calls::<bf16>(group, count, &[Op::Sum, Op::Avg])?;
                same_as_calls::<i16>(group, count, Op::ALL)?;
            }
            same_as_calls::<f64>(group, 40_000, &[Op::Sum, Op::Avg])?;
            same_as_calls::<bool>(group, 1000, Op::ALL)?;
            same_as_calls::<f16>(group, 200_000, &[Op::Sum])
        });
    }
}

// CO-3, PL-4
// F85
#[test]
fn ranks_that_run_different_plans_name_both() {
    let run = |group: &Collectives<'_>, which: usize| {
        let mut tensor = vec![1.0_f32; 1000];
        let plan = |name| group.plan(name, Passing::Reference);
        match which {
            0 => group.run_plan(&plan("direct_one_shot")?, &mut tensor, Some(Op::Sum)),
            1 => group.run_plan(&plan("ring_accumulate")?, &mut tensor, Some(Op::Sum)),
            2 => group.all_reduce(&mut tensor, Op::Sum),
            _ => group.run_plan(&plan("direct_one_shot")?, &mut tensor[..999], Some(Op::Sum)),
        }
    };
    for (others, text) in [
        (1, "the schedule ring_accumulate f32 sum × 1000, call 3"),
        (2, "all_reduce f32 sum × 1000, call 3"),
        (3, "the schedule direct_one_shot f32 sum × 999, call 3"),
    ] {
        in_groups_that_break(3, |group| {
            let which = if group.rank() == 1 { others } else { 0 };
            run(group, 0).and_then(|()| run(group, 2)).map_err(|error| error.to_string())?;
            let error = run(group, which).expect_err("the calls differ").to_string();
            let both = error.contains("the schedule direct_one_shot f32 sum × 1000, call 3")
                && error.contains(text)
                && error.contains("rank 1: ");
            if !both {
                return Err(error);
            }
            // The group is broken, with the same cause.
            run(group, 0)
                .expect_err("broken")
                .to_string()
                .contains("failed before")
                .then_some(())
                .ok_or(error)
        });
    }
}

/// Rank 1 dies, comes too late, or is waited for when the run is aborted.
// CO-4
#[test]
fn pl_4_deaths_deadlines_and_aborts_end_a_plan() {
    for case in ["death", "deadline", "abort"] {
        let ranks = Ranks::start(2, |comm| {
            let within = if case == "deadline" { millis(300) } else { secs(60) };
            let group = Collectives::new(&comm, Options::new().timeout(within)).unwrap();
            let plan = group.plan("ring_accumulate", Passing::Reference).unwrap();
            if comm.rank() == 1 {
                if case == "death" {
                    nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL).unwrap();
                }
                std::thread::sleep(Duration::from_secs(4));
                return "ok".to_owned();
            }
            let ended = group.run_plan(&plan, &mut [1.0_f32; 1000], Some(Op::Sum));
            let Err(CollError::Wait { cause, .. }) = &ended else { return format!("{ended:?}") };
            let right = match cause {
                CommError::PeerDied { rank: 1, .. } => case == "death",
                CommError::TimedOut { missing, .. } => case == "deadline" && *missing == [1],
                CommError::Aborted { .. } => case == "abort",
                _ => false,
            };
            if right { "ok".to_owned() } else { format!("{ended:?}") }
        });
        if case == "abort" {
            std::thread::sleep(Duration::from_millis(500));
            ranks.prepared.halt(NonZeroU32::MIN);
        }
        assert_eq!(ranks.end()[0].1, "ok", "{case}");
    }
}

/// Runs `body` as every rank of a group that fails, so that it is not closed together.
fn in_groups_that_break(nranks: usize, body: impl Fn(&Collectives<'_>) -> Result<(), String>) {
    in_comms(nranks, |comm| {
        let group = Collectives::new(comm, options()).map_err(|error| format!("new: {error}"))?;
        body(&group)
    });
}

// CO-5
#[test]
fn a_wrong_argument_of_a_plan_leaves_the_group_as_it_was() {
    in_groups(2, options(), |group| {
        let plan =
            Plan::named("direct_one_shot", 3, Passing::Reference).map_err(|error| error.to_string())?;
        let mut tensor = vec![1.0_f32; 8];
        let refused = |plan: &Plan, tensor: &mut [f32], op| {
            group.run_plan(plan, tensor, op).map_or_else(|error| error.to_string(), |()| "ran".to_owned())
        };
        let mut texts = vec![refused(&plan, &mut tensor, Some(Op::Sum))];
        let plan = group.plan("direct_one_shot", Passing::Reference).map_err(|error| error.to_string())?;
        texts.push(refused(&plan, &mut tensor, None));
        texts.push(refused(&plan, &mut tensor, Some(Op::BitAnd)));
        let ring =
            group.plan("ring_accumulate", Passing::Value { slots: 2 }).map_err(|error| error.to_string())?;
        texts.push(
            group
                .plan("none", Passing::Reference)
                .map_or_else(|error| error.to_string(), |_| "made".to_owned()),
        );
        for (text, part) in texts.iter().zip([
            "for 3 ranks",
            "needs an operation; pass one",
            "is not defined",
            "unknown algorithm",
        ]) {
            if !text.contains(part) {
                return Err(format!("{text} does not contain {part}"));
            }
        }
        group.run_plan(&ring, &mut tensor, Some(Op::Sum)).map_err(|error| error.to_string())?;
        group.all_reduce(&mut tensor, Op::Sum).map_err(|error| error.to_string())?;
        (tensor == [4.0; 8]).then_some(()).ok_or(format!("{tensor:?}"))
    });
}
