//! What ranks and callers get wrong: always an error that names both sides, never a hang, and a group in a known state.
//!
//! # Safety
//! Makes calls in raw parts with pointers to live buffers, or with arguments that are refused before they are used.
#![allow(missing_docs, unsafe_code)]

mod support;

use child_process::Child;
use collectives::{BadArgument, CollError, Collectives, DType, Kind, Op, Options, Request, Shared};
use comm_context::comm::{AllocationId, CommError, Communicator, DomainSpec};
use comm_sim::SimComm;
use deadline::HowDied;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};
use support::{Ranks, in_comms, in_groups, millis, options, same_bits, secs};

fn text(error: CollError) -> String {
    error.to_string()
}

/// Makes a call on one rank.
type Act = fn(&Collectives<'_>) -> Result<(), CollError>;

/// Two calls that do not go together, and what the error says of each.
struct Case {
    name: &'static str,
    zero: Act,
    others: Act,
    says: [&'static str; 2],
}

const CASES: &[Case] = &[
    Case {
        name: "counts",
        zero: |group| group.all_reduce(&mut [1.0_f32; 1024], Op::Sum),
        others: |group| group.all_reduce(&mut [1.0_f32; 1023], Op::Sum),
        says: ["rank 0: all_reduce f32 sum × 1024, call", ": all_reduce f32 sum × 1023, call"],
    },
    Case {
        name: "a zero count",
        zero: |group| group.all_reduce(&mut [0.0_f32; 0], Op::Sum),
        others: |group| group.all_reduce(&mut [1.0_f32; 4], Op::Sum),
        says: ["rank 0: all_reduce f32 sum × 0", "all_reduce f32 sum × 4"],
    },
    Case {
        name: "types",
        zero: |group| group.all_gather(&[1.0_f32; 4], &mut vec![0.0; 4 * group.nranks()]),
        others: |group| group.all_gather(&[1_i32; 4], &mut vec![0; 4 * group.nranks()]),
        says: ["rank 0: all_gather f32 × 4", "all_gather i32 × 4"],
    },
    Case {
        name: "operations",
        zero: |group| group.all_reduce(&mut vec![1_u8; 100_000], Op::Sum),
        others: |group| group.all_reduce(&mut vec![1_u8; 100_000], Op::BitXor),
        says: ["all_reduce u8 sum × 100000", "all_reduce u8 bitwise xor × 100000"],
    },
    Case {
        name: "kinds",
        zero: |group| group.all_reduce(&mut [1.0_f32; 1024], Op::Sum),
        others: |group| group.broadcast(&mut [1.0_f32; 1024], 0),
        says: ["rank 0: all_reduce f32 sum × 1024", "broadcast f32 × 1024 from 0"],
    },
    Case {
        name: "each the other's root",
        zero: |group| group.broadcast(&mut [1.0_f32; 8], 1),
        others: |group| group.broadcast(&mut [1.0_f32; 8], 0),
        says: ["rank 0: broadcast f32 × 8 from 1", "broadcast f32 × 8 from 0"],
    },
    Case {
        name: "each its own root",
        zero: |group| group.broadcast(&mut [1.0_f32; 8], 0),
        others: |group| group.broadcast(&mut [1.0_f32; 8], 1),
        says: ["rank 0: broadcast f32 × 8 from 0", "broadcast f32 × 8 from 1"],
    },
    Case {
        name: "each its own root, several pieces",
        zero: |group| group.broadcast(&mut vec![1_u8; 600_000], 0),
        others: |group| group.broadcast(&mut vec![1_u8; 600_000], 1),
        says: ["rank 0: broadcast u8 × 600000 from 0", "broadcast u8 × 600000 from 1"],
    },
    Case {
        name: "gather to different roots",
        zero: |group| {
            group.gather(&[1_u16; 9], (group.rank() == 0).then_some(&mut vec![0; 9 * group.nranks()]), 0)
        },
        others: |group| {
            group.gather(&[1_u16; 9], (group.rank() == 1).then_some(&mut vec![0; 9 * group.nranks()]), 1)
        },
        says: ["gather u16 × 9 to 0", "gather u16 × 9 to 1"],
    },
    Case {
        name: "a barrier and a gather",
        zero: |group| group.barrier(),
        others: |group| group.gather(&[1_u16; 9], None, 0),
        says: ["rank 0: barrier", "gather u16 × 9 to 0"],
    },
    Case {
        name: "lists of counts",
        zero: |group| {
            let mut counts = vec![3; group.nranks()];
            counts[1] = 4;
            group.all_gather_v(&[1.0_f64; 3], &mut vec![0.0; 3 * group.nranks() + 1], &counts)
        },
        others: |group| {
            group.all_gather_v(&[1.0_f64; 3], &mut vec![0.0; 3 * group.nranks()], &vec![3; group.nranks()])
        },
        says: ["rank 0: all_gather_v f64 with counts of hash", "all_gather_v f64 with counts of hash"],
    },
    Case {
        name: "order",
        zero: |group| group.barrier().and_then(|()| group.all_reduce(&mut [1_u64], Op::Max)),
        others: |group| group.all_reduce(&mut [1_u64], Op::Max).and_then(|()| group.barrier()),
        says: ["rank 0: barrier", "all_reduce u64 max × 1"],
    },
    Case {
        name: "a started one",
        zero: |group| {
            let mut values = vec![1.0_f32; 700_000];
            group.scope(|calls| {
                calls.start_all_reduce(&mut values, Op::Sum).and_then(collectives::Pending::wait).map(drop)
            })?
        },
        others: |group| group.reduce_scatter(&vec![1.0_f32; 700 * group.nranks()], &mut [0.0; 700], Op::Sum),
        says: ["rank 0: all_reduce f32 sum × 700000", "reduce_scatter f32 sum × 700"],
    },
];

/// What every rank says after a mismatch.
fn mismatch(comm: &SimComm, case: &Case, before: u64) -> Result<(), String> {
    let group = Collectives::new(comm, options()).map_err(text)?;
    for _ in 0..before {
        group.barrier().map_err(text)?;
    }
    let act = if group.rank() == 0 { case.zero } else { case.others };
    // A root may return before anybody could know; its next calls find out.
    let mut outcome = act(&group);
    let mut more = 0;
    while outcome.is_ok() && more < 20 {
        outcome = group.barrier();
        more += 1;
    }
    let error = outcome.err().ok_or("nobody noticed")?;
    let CollError::Mismatch { one, other } = &error else { return Err(format!("another error: {error}")) };
    let said = error.to_string();
    if !(case.says.iter().all(|part| said.contains(part))
        && one.number == other.number
        && one.number > before)
    {
        return Err(format!("it says: {said}"));
    }
    // The group repeats it, and a tensor of it is poisoned.
    let again = group.barrier().unwrap_err();
    if !matches!(&again, CollError::Broken { .. }) || again.root_cause().to_string() != said {
        return Err(format!("then it says: {again}"));
    }
    drop(group);
    // The communicator and new groups are as good as before.
    let group = Collectives::new(comm, options()).map_err(text)?;
    let mut sum = [1_u32];
    group.all_reduce(&mut sum, Op::Sum).map_err(text)?;
    same_bits("sum", &sum, &[comm.nranks()])?;
    group.close().map_err(text)
}

#[test]
fn co_3_two_ranks_whose_first_calls_differ_name_both() {
    all_mismatch(&[(2, 0)]);
}

// CO-3, CO-5, CO-6
#[test]
fn f85_different_calls_are_an_error_that_names_both_on_every_rank() {
    all_mismatch(&[(2, 40), (3, 5), (8, 1)]);
}

/// Every case with so many ranks, after so many calls that were the same.
fn all_mismatch(groups: &[(usize, u64)]) {
    for case in CASES {
        for &(nranks, before) in groups {
            let started = Instant::now();
            let ended = Ranks::start(nranks, |comm| {
                mismatch(&comm, case, before).map_or_else(|text| text, |()| "ok".to_owned())
            })
            .end();
            let wrong: Vec<String> = ended
                .into_iter()
                .enumerate()
                .filter(|(_, (end, said))| *end != Some(HowDied::Exited(0)) || said != "ok")
                .map(|(rank, (end, said))| format!("rank {rank} {end:?}: {said}"))
                .collect();
            assert!(wrong.is_empty(), "{}, {nranks} ranks:\n{}", case.name, wrong.join("\n"));
            let took = started.elapsed();
            assert!(took < Duration::from_secs(30), "{}: {took:?}", case.name);
        }
    }
}

// CO-3
#[test]
fn counts_of_a_pair_that_differ_name_both_ranks() {
    in_groups(3, options(), |group| {
        // Rank 2 expects one more element from rank 0 than that one sends.
        let (mut send, mut receive) = (vec![5; 3], vec![5; 3]);
        if group.rank() == 2 {
            receive[0] = 6;
        }
        if group.rank() == 1 {
            send.rotate_left(1);
        }
        let (input, mut output) = (vec![1_i32; 15], vec![0; receive.iter().sum()]);
        let mut outcome = group.all_to_all_v(&input, &send, &mut output, &receive);
        for _ in 0..20 {
            outcome = outcome.and_then(|()| group.barrier());
        }
        let said = outcome.map_err(|error| error.root_cause().to_string()).err().ok_or("nobody noticed")?;
        let wanted = "rank 0 sends 5 i32 in all_to_all_v, call 1 to rank 2, which expects 6 i32 in all_to_all_v, call 1";
        said.contains(wanted).then_some(()).ok_or(said)
    });
}

// CO-3
#[test]
fn a_message_of_another_length_or_type_names_both_ranks() {
    for other_type in [false, true] {
        in_groups(2, options(), |group| {
            let outcome = if group.rank() == 0 {
                let sent = group.send(&[1.0_f32; 100], 1, 7);
                (0..20).try_fold((), |(), _| group.barrier()).and(sent)
            } else if other_type {
                group.recv(&mut [0_u32; 100], 0, 7)
            } else {
                group.recv(&mut [0.0_f32; 99], 0, 7)
            };
            let said =
                outcome.map_err(|error| error.root_cause().to_string()).err().ok_or("nobody noticed")?;
            let expected = if other_type { "u32 × 100" } else { "f32 × 99" };
            let wanted = format!(
                "rank 0 sends f32 × 100 with tag 7 to rank 1, which expects {expected} with tag 7; let both sides say \
                 the same"
            );
            said.contains(&wanted).then_some(()).ok_or(said)
        });
    }
}

// CO-5
#[test]
fn a_wrong_argument_is_refused_and_leaves_the_group_as_it_was() {
    in_groups(2, options(), |group| {
        let refused = |outcome: Result<(), CollError>| match outcome {
            Err(CollError::Argument(argument)) => Ok(argument),
            other => Err(format!("{other:?}")),
        };
        let is = |found: BadArgument, wanted: &str| {
            found.to_string().contains(wanted).then_some(()).ok_or(format!("{found}"))
        };
        is(refused(group.all_reduce(&mut [1_i32; 4], Op::Avg))?, "avg of i32")?;
        is(refused(group.all_reduce(&mut [1.0_f32; 4], Op::BitAnd))?, "bitwise and of f32")?;
        is(refused(group.all_reduce(&mut [true; 4], Op::Sum))?, "sum of bool")?;
        is(refused(group.broadcast(&mut [1_i32; 4], 2))?, "root is 2")?;
        is(refused(group.broadcast(&mut [1_i32; 4], usize::MAX))?, "root is")?;
        is(refused(group.all_reduce_into(&[1_i32; 4], &mut [0; 5], Op::Sum))?, "output has 5 elements")?;
        is(refused(group.all_gather(&[1_i32; 4], &mut [0; 9]))?, "takes 8")?;
        is(refused(group.all_gather_v(&[1_i32; 4], &mut [0; 8], &[4, 4, 4]))?, "counts has 3 elements")?;
        is(refused(group.all_gather_v(&[1_i32; 4], &mut [0; 8], &[usize::MAX, 9]))?, "elements")?;
        is(refused(group.reduce_scatter(&[1_i32; 5], &mut [0; 2], Op::Sum))?, "input has 5 elements")?;
        is(refused(group.all_to_all(&[1_i32; 5], &mut [0; 5]))?, "input has 5 elements")?;
        is(refused(group.gather(&[1_i32; 4], None, group.rank()))?, "needs an output on the root")?;
        is(refused(group.scatter(None::<&[i32]>, &mut [0; 2], group.rank()))?, "needs an input on the root")?;
        is(refused(group.send(&[1_i32], group.rank(), 0))?, "cannot be sent to")?;
        is(refused(group.recv(&mut [1_i32], 2, 0))?, "ranks 0 to 1")?;
        // Raw calls know less, and check more.
        let mut values = vec![1.0_f32; 1000];
        let (at, later) =
            (values.as_mut_ptr().cast::<u8>(), values.as_mut_ptr().wrapping_add(1).cast::<u8>());
        let sum = Request {
            kind: Kind::AllReduce,
            dtype: DType::F32,
            op: Some(Op::Sum),
            count: 999,
            input: at.cast_const(),
            output: later,
            shared: Shared::Both,
            ..Request::BARRIER
        };
        // SAFETY: refused before anything is read or written.
        let raw = |request: Request| refused(unsafe { group.run_raw(request) });
        is(raw(sum)?, "overlap")?;
        is(raw(Request { input: std::ptr::null(), ..sum })?, "input is null")?;
        is(raw(Request { output: std::ptr::null_mut(), ..sum })?, "output is null")?;
        is(raw(Request { count: usize::MAX / 4, ..sum })?, "more bytes than")?;
        // One block fits, one for each rank does not.
        let gather = Request { kind: Kind::AllGather, op: None, count: usize::MAX / 8, ..sum };
        is(raw(gather)?, "more bytes than")?;
        is(raw(Request { kind: Kind::AllToAll, ..gather })?, "more bytes than")?;
        is(raw(Request { kind: Kind::ReduceScatter, op: Some(Op::Sum), ..gather })?, "more bytes than")?;
        is(raw(Request { op: None, ..sum })?, "needs an operation; pass one")?;
        is(raw(Request { kind: Kind::AllGather, count: 4, ..sum })?, "takes no operation; leave it out")?;
        is(raw(Request { kind: Kind::AllGather, op: None, count: 400, ..sum })?, "overlap")?;
        is(raw(Request { kind: Kind::AllToAllV, op: None, count: 0, ..sum })?, "counts is null")?;
        // SAFETY: the address was not allocated, and is refused.
        let freed = refused(unsafe { group.free_raw(std::ptr::NonNull::from(&mut values[0]).cast()) })?;
        is(freed, "not memory of this group's pool")?;
        let of_pool = group.alloc_raw(64).map_err(text)?;
        // SAFETY: in the pool, but nothing that was allocated starts there; refused. Then what was allocated.
        let middle = refused(unsafe { group.free_raw(of_pool.add(8)) })?;
        is(middle, "not memory of this group's pool")?;
        // SAFETY: allocated above and not used any more.
        unsafe { group.free_raw(of_pool) }.map_err(text)?;
        // SAFETY: the second time it is refused.
        is(refused(unsafe { group.free_raw(of_pool) })?, "not memory of this group's pool")?;
        // All of that without a peer's knowledge: the group goes on.
        // SAFETY: in place on a live buffer of 1000 elements.
        unsafe { group.run_raw(Request { count: 1000, output: at, ..sum }) }.map_err(text)?;
        same_bits("sums", &values, &vec![2.0; 1000])
    });
}

// CO-1
#[test]
fn zero_counts_on_all_ranks_are_fine() {
    in_groups(3, options(), |group| {
        let none: [f32; 0] = [];
        for _ in 0..20 {
            group.all_reduce(&mut [0.0_f32; 0], Op::Sum).map_err(text)?;
            group.all_gather(&none, &mut []).map_err(text)?;
            group.reduce_scatter(&none, &mut [], Op::Sum).map_err(text)?;
            group.broadcast(&mut [0.0_f32; 0], 1).map_err(text)?;
            group.all_to_all(&none, &mut []).map_err(text)?;
            group.all_to_all_v(&none, &[0; 3], &mut [], &[0; 3]).map_err(text)?;
            group.gather(&none, (group.rank() == 2).then_some(&mut []), 2).map_err(text)?;
            group.scatter((group.rank() == 0).then_some(&none), &mut [], 0).map_err(text)?;
        }
        Ok(())
    });
}

#[test]
fn co_6_what_a_rank_published_before_it_gave_up_or_died_is_delivered() {
    // In the line of the step, and staged.
    for (count, dies) in [(4, false), (4, true), (1000, false), (1000, true)] {
        let ended = Ranks::start(2, |comm| {
            let group = Collectives::new(&comm, options()).unwrap();
            if comm.rank() == 0 {
                // The root of a broadcast waits for nobody.
                group.broadcast(&mut vec![7_u32; count], 0).unwrap();
                if dies {
                    nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL).unwrap();
                }
                group.give_up("its own reasons");
                return "ok".to_owned();
            }
            // Later than that.
            std::thread::sleep(Duration::from_millis(300));
            let mut values = vec![0_u32; count];
            match (group.broadcast(&mut values, 0), group.barrier()) {
                (Ok(()), Err(_)) if values.iter().all(|value| *value == 7) => "ok".to_owned(),
                other => format!("{other:?}, {:?}", &values[..4]),
            }
        });
        assert_eq!(ended.end()[1].1, "ok", "{count} elements, of a rank that dies: {dies}");
    }
}

// CO-4
#[test]
fn a_peer_that_does_not_come_is_named_at_the_deadline() {
    let ended = Ranks::start(2, |comm| {
        let group = Collectives::new(&comm, Options::new().timeout(millis(300))).unwrap();
        if comm.rank() == 1 {
            std::thread::sleep(Duration::from_millis(1500));
            return "ok".to_owned();
        }
        match group.all_reduce(&mut [1.0_f32; 3], Op::Sum) {
            Err(CollError::Wait { call, cause: CommError::TimedOut { missing, .. } })
                if missing == [1] && call.to_string() == "all_reduce f32 sum × 3, call 1 of rank 0" =>
            {
                "ok".to_owned()
            }
            other => format!("{other:?}"),
        }
    });
    assert!(ended.end().iter().all(|(_, said)| said == "ok"));
}

// CO-4, CO-5
#[test]
fn a_call_on_a_group_whose_member_has_died_names_it() {
    let ended = Ranks::start(3, |comm| {
        let group = Collectives::new(&comm, options()).unwrap();
        group.barrier().unwrap();
        if comm.rank() == 2 {
            nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL).unwrap();
        }
        // Its death is known before the call is made.
        std::thread::sleep(Duration::from_millis(300));
        let named = |cause: &CommError| {
            matches!(cause, CommError::PeerDied { rank: 2, .. } | CommError::PeerLeft { rank: 2, .. })
        };
        let call = group.all_reduce(&mut vec![1.0_f32; 300_000], Op::Sum);
        match &call {
            Err(CollError::Wait { cause, .. }) if named(cause) => {}
            // The other survivor may have failed first.
            Err(CollError::PeerGaveUp { .. }) => {}
            other => return format!("{other:?}"),
        }
        match group.barrier() {
            Err(error @ CollError::Broken { .. })
                if error.root_cause().to_string() == call.unwrap_err().to_string() => {}
            other => return format!("then {other:?}"),
        }
        match Collectives::new(&comm, options()).map(drop) {
            Err(error @ CollError::Setup { .. }) if error.to_string().contains("rank 2") => "ok".to_owned(),
            other => format!("a new group: {other:?}"),
        }
    });
    for (rank, (_, said)) in ended.end().into_iter().enumerate().take(2) {
        assert_eq!(said, "ok", "rank {rank}");
    }
}

/// Rank 1 gives the group up while rank 0 waits for it, and lives on.
#[test]
fn co_4_a_peer_that_leaves_ends_the_waits_for_it() {
    let ended = Ranks::start(2, |comm| {
        let group = Collectives::new(&comm, Options::new().timeout(secs(30))).unwrap();
        if comm.rank() == 1 {
            std::thread::sleep(Duration::from_millis(500));
            group.give_up("its own reasons");
            std::thread::sleep(Duration::from_secs(3));
            return "ok".to_owned();
        }
        match group.all_reduce(&mut [1.0_f32; 4000], Op::Sum) {
            Err(CollError::Wait { cause: CommError::TimedOut { .. }, .. }) => "at the deadline".to_owned(),
            Err(error) if error.to_string().contains("rank 1") => "ok".to_owned(),
            other => format!("{other:?}"),
        }
    });
    assert_eq!(ended.end()[0].1, "ok");
}

// CO-4
#[test]
fn an_abort_ends_a_wait() {
    let ranks = Ranks::start(2, |comm| {
        let group = Collectives::new(&comm, options()).unwrap();
        if comm.rank() == 1 {
            std::thread::sleep(Duration::from_secs(4));
            return "ok".to_owned();
        }
        match group.all_reduce(&mut vec![1.0_f32; 30_000], Op::Sum) {
            Err(CollError::Wait { cause: CommError::Aborted { .. }, .. }) => "ok".to_owned(),
            other => format!("{other:?}"),
        }
    });
    std::thread::sleep(Duration::from_millis(500));
    ranks.prepared.halt(NonZeroU32::MIN);
    let ended = ranks.end();
    assert_eq!(ended[0], (Some(HowDied::Exited(0)), "ok".to_owned()));
}

/// The domain of the group that failed is free for the next one of the same ranks.
#[test]
fn co_5_a_group_that_failed_is_released_and_others_go_on() {
    in_comms(2, |comm| {
        let other = Collectives::new(comm, options()).map_err(text)?;
        let failed = Collectives::new(comm, options()).map_err(text)?;
        let op = if comm.rank() == 0 { Op::Sum } else { Op::Max };
        failed.all_reduce(&mut [1.0_f32; 100], op).unwrap_err();
        let name = format!("{failed:?}");
        failed.close().map_err(text)?;
        let next = Collectives::new(comm, options()).map_err(text)?;
        if format!("{next:?}") != name {
            return Err(format!("{name} is not released: {next:?}"));
        }
        for group in [&other, &next] {
            let mut ones = [1.0_f32; 100];
            group.all_reduce(&mut ones, Op::Sum).map_err(text)?;
            same_bits("sums", &ones, &[2.0; 100])?;
        }
        Ok(())
    });
}

// CO-5
#[test]
fn after_a_failed_call_tensors_are_poisoned_and_can_be_copied_out() {
    in_comms(2, |comm| {
        let group = Collectives::new(comm, options()).map_err(text)?;
        let mut tensor = group.alloc::<f32>(4000).map_err(text)?;
        tensor.as_mut_slice().map_err(text)?.fill(3.0);
        if comm.rank() == 0 {
            group.all_reduce(&mut tensor, Op::Sum).unwrap_err();
        } else {
            group.all_reduce(&mut tensor, Op::Max).unwrap_err();
        }
        let poisoned = |outcome: Result<(), CollError>| matches!(outcome, Err(CollError::Poisoned));
        if !poisoned(tensor.as_slice().map(drop)) || !poisoned(tensor.as_mut_slice().map(drop)) {
            return Err("not poisoned".to_owned());
        }
        let mut copy = vec![0.0; 4000];
        tensor.copy_out(&mut copy);
        same_bits("copy", &copy, &vec![3.0; 4000])
    });
}

// CO-9
#[test]
fn f61_a_forked_copy_of_a_rank_is_refused_and_leaves_the_group_alone() {
    in_groups(2, options(), |group| {
        group.barrier().map_err(text)?;
        // SAFETY: the child makes calls that are refused, and drops what it has.
        let child = unsafe {
            Child::fork(&[], || {
                let refused = |outcome: Result<(), CollError>| matches!(outcome, Err(CollError::Forked));
                let fine = refused(group.barrier())
                    && refused(group.all_reduce(&mut [1_u8], Op::Max))
                    && refused(
                        group.scope(|calls| calls.start_barrier().map(drop)).and_then(|inside| inside),
                    )
                    && refused(group.alloc::<u8>(1).map(drop));
                i32::from(!fine)
            })
        }
        .map_err(|error| error.to_string())?;
        if child.reap(support::far()) != Some(HowDied::Exited(0)) {
            return Err("the copy was not refused".to_owned());
        }
        group.barrier().map_err(text)
    });
}

// CO-8
#[test]
fn ranks_with_other_options_are_refused_by_name() {
    in_comms(2, |comm| {
        let pool = if comm.rank() == 0 { 1 << 20 } else { 2 << 20 };
        let said = Collectives::new(comm, options().pool(pool)).map(drop).unwrap_err().to_string();
        said.contains("disagree").then_some(()).ok_or(said)
    });
}

/// Rank 1 is of another build: in the window of the same domain, of the same size, it has another hash.
// CO-8
#[test]
fn two_builds_with_different_layouts_refuse_each_other_by_name() {
    in_comms(2, |comm| {
        let group = Collectives::new(comm, options()).map_err(text)?;
        let shown = format!("{group:?}");
        let (_, _, bytes) = group.for_kernels().ok_or("no window")?;
        group.close().map_err(text)?;
        if comm.rank() == 0 {
            return match Collectives::new(comm, options()).map(drop) {
                Err(error @ CollError::Layout { rank: 1, theirs: 0xbad, mine }) => {
                    let expected = format!(
                        "rank 1 has another layout of the group's memory (0000000000000bad, here {mine:016x}); run the same build \
                         with the same options on every rank"
                    );
                    if error.to_string() == expected { Ok(()) } else { Err(error.to_string()) }
                }
                other => Err(format!("{other:?}")),
            };
        }
        // The next group of the same ranks has the same id.
        let id =
            shown.split("0x").nth(1).and_then(|id| u64::from_str_radix(id.trim_end_matches(')'), 16).ok());
        let id = AllocationId(id.ok_or(shown)?);
        let said = |error: CommError| error.to_string();
        let spec = DomainSpec { id, ranks: &[0, 1], domain_rank: 1, window_size: bytes };
        let window = comm.alloc_domain(&spec, secs(20)).map_err(said)?;
        comm.write(window.base, &0xbad_u64.to_le_bytes()).map_err(said)?;
        let _ = comm.release_domain(id, secs(5));
        Ok(())
    });
}

#[test]
fn a_group_of_ranks_that_are_not_there_is_refused() {
    in_comms(2, |comm| {
        for ranks in [&[0, 2][..], &[0, 0, 1], &[], &[1 - comm.rank()]] {
            let said = Collectives::over(comm, ranks, options()).map(drop).unwrap_err();
            if !matches!(
                &said,
                CollError::Argument(_) | CollError::Setup { cause: CommError::Argument(_), .. }
            ) {
                return Err(format!("{ranks:?}: {said}"));
            }
        }
        let huge = Collectives::new(comm, options().pool(usize::MAX)).map(drop).unwrap_err();
        matches!(huge, CollError::Argument(BadArgument::Pool { .. }))
            .then_some(())
            .ok_or(huge.to_string())?;
        // Domains of the caller's own are not in the way.
        let members: Vec<u32> = (0..2).collect();
        let spec =
            DomainSpec { id: AllocationId(1), ranks: &members, domain_rank: comm.rank(), window_size: 4096 };
        comm.alloc_domain(&spec, secs(20)).map_err(|error| error.to_string())?;
        Collectives::new(comm, options()).and_then(Collectives::close).map_err(text)
    });
}
