//! What the errors of callers say: each is provoked, and its whole text compared. docs/errors.md lists all of them, with
//! those that other tests provoke.
//!
//! # Safety
//! Makes calls in raw parts whose arguments are refused before they are used, and forks a child that makes one call.
#![allow(missing_docs, unsafe_code)]

mod support;

use child_process::Child;
use collectives::{Collectives, DType, Kind, Op, Options, Passing, Plan, Request, Shared, Table};
use comm_context::comm::{Communicator, Timeout};
use deadline::HowDied;
use std::fmt::Debug;
use std::time::Duration;
use support::{in_comms, in_groups, options};

/// The whole text of an error is this, where `…` stands for anything.
fn says<T: Debug, E: ToString>(result: Result<T, E>, expected: &str) -> Result<(), String> {
    let told = match result {
        Ok(value) => return Err(format!("{value:?}, where `{expected}` was expected")),
        Err(error) => error.to_string(),
    };
    let wrong = || format!("expected: {expected}\n    told: {told}");
    let mut rest = told.as_str();
    for (at, part) in expected.split('…').enumerate() {
        let found = if at == 0 { rest.starts_with(part).then_some(0) } else { rest.find(part) };
        rest = &rest[found.ok_or_else(wrong)? + part.len()..];
    }
    (rest.is_empty() || expected.ends_with('…')).then_some(()).ok_or_else(wrong)
}

#[test]
fn arguments_of_calls() {
    in_groups(2, options(), |group| {
        says(
            group.all_reduce(&mut [1_i32; 4], Op::Avg),
            "avg of i32 is not defined; avg is for floating point, bitwise and logical operations for integers and bool",
        )?;
        says(group.broadcast(&mut [1_i32; 4], 2), "root is 2; the group has ranks 0 to 1")?;
        says(
            group.all_reduce_into(&[1_i32; 4], &mut [0; 5], Op::Sum),
            "output has 5 elements; this call takes 4",
        )?;
        says(
            group.gather(&[1_i32; 4], None, group.rank()),
            "gather needs an output on the root; pass it there",
        )?;
        says(
            group.recv(&mut [1_i32], 2, 0),
            "rank 2 cannot be sent to or received from here; the group has ranks 0 to 1, and this is rank …",
        )?;
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
        let raw = |request: Request| unsafe { group.run_raw(request) };
        says(raw(sum), "input and output overlap; pass the same buffer for both, or two that are apart")?;
        says(raw(Request { input: std::ptr::null(), ..sum }), "input is null; pass its address")?;
        says(
            raw(Request { count: usize::MAX / 4, ..sum }),
            "… elements of f32 in each of 1 blocks are more bytes than an address space has; pass a smaller count",
        )?;
        says(
            raw(Request { op: None, ..sum }),
            "all_reduce reduces and needs an operation; pass one, such as sum",
        )?;
        says(
            raw(Request { kind: Kind::Broadcast, ..sum }),
            "broadcast does not reduce and takes no operation; leave it out",
        )?;
        // SAFETY: the address was not allocated, and is refused.
        let freed = unsafe { group.free_raw(std::ptr::NonNull::from(&mut values[0]).cast()) };
        says(freed, "… bytes at … are not memory of this group's pool; allocate them from the group")?;
        let large = group.alloc::<u8>(usize::MAX / 2).map(drop);
        says(
            large,
            "a tensor of … bytes does not fit in the window's pool (… of … bytes free in one piece); make the group with \
             a larger Options::pool, or drop tensors",
        )
    });
}

#[test]
fn arguments_of_plans() {
    in_groups(2, options(), |group| {
        let mut tensor = vec![1.0_f32; 8];
        let of_three =
            Plan::named("direct_one_shot", 3, Passing::Reference).map_err(|error| error.to_string())?;
        says(
            group.run_plan(&of_three, &mut tensor, Some(Op::Sum)),
            "the plan direct_one_shot is for 3 ranks, the group has 2; make it for the group",
        )?;
        let plan = group.plan("direct_one_shot", Passing::Reference).map_err(|error| error.to_string())?;
        says(
            group.run_plan(&plan, &mut tensor, None),
            "the plan direct_one_shot reduces and needs an operation; pass one, such as sum",
        )?;
        let plan = group.plan("broadcast", Passing::Reference).map_err(|error| error.to_string())?;
        says(
            group.run_plan(&plan, &mut tensor, Some(Op::Sum)),
            "the plan broadcast does not reduce and takes no operation; leave it out",
        )
    });
    in_groups(4, options(), |group| {
        let plan = group
            .plan("recursive_doubling", Passing::Value { slots: 2 })
            .map_err(|error| error.to_string())?;
        says(
            group.run_plan(&plan, &mut [1.0_f32; 8], Some(Op::Avg)),
            "the plan recursive_doubling adds up in several passes, where avg is not defined; pass sum, and divide the result",
        )
    });
}

#[test]
fn groups_that_cannot_be_made() {
    in_comms(2, |comm| {
        let (me, peer) = (comm.rank(), 1 - comm.rank());
        says(
            Collectives::over(comm, &[peer], options()).map(drop),
            &format!("the group's ranks [{peer}] do not have this one, {me}; only members make the group"),
        )?;
        says(
            Collectives::over(comm, &[me, me], options()).map(drop),
            &format!("making a group: the list names rank {me} at positions 0 and 1; name each member once"),
        )?;
        says(
            Collectives::new(comm, options().pool(usize::MAX)).map(drop),
            "a pool of … bytes is larger than any window; ask for less",
        )
    });
}

#[test]
fn tables_that_cannot_be_used() {
    let name = Table::names().next().unwrap();
    let told = |result: Result<Table, _>, expected: &str| says(result, expected).unwrap();
    told(
        Table::default().with("nonesuch", 1),
        "a table of collectives: there is no entry \"nonesuch\"; there are …",
    );
    told(
        Table::read("/nowhere/table"),
        "a table of collectives: /nowhere/table: No such file or directory (os error 2)",
    );
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("table");
    for (line, expected) in [
        ("just words", "\"just words\" is not \"name: value\""),
        (&format!("{name}: many"), &format!("{name} is \"many\"; give a number such as 4096, 64 KiB or any")),
        (&format!("{name}: 64\n{name}: 64"), &format!("{name} is given twice; give it once")),
        (&format!("{name}: 1"), &format!("{name} is 1; give 64 to 262144")),
    ] {
        std::fs::write(&file, line).unwrap();
        told(Table::read(&file), &format!("a table of collectives: …{expected}"));
    }
}

/// What later calls say once a group has failed.
#[test]
fn a_group_that_has_failed() {
    in_comms(2, |comm| {
        let group =
            Collectives::new(comm, Options::new().pool(1 << 16)).map_err(|error| error.to_string())?;
        let tensor = group.alloc::<f32>(4).map_err(|error| error.to_string())?;
        let count = 4 + group.rank();
        let differ = group.all_reduce(&mut vec![1.0_f32; count], Op::Sum);
        says(
            differ,
            "ranks made different calls: rank 0: all_reduce f32 sum × 4, call 1; rank 1: all_reduce f32 sum × 5, call 1; \
             let every rank make the same calls in the same order",
        )?;
        says(
            group.barrier(),
            "this group failed before and can only be dropped; the first cause: ranks made different calls: …",
        )?;
        says(
            tensor.as_slice().map(drop),
            "the group failed before, and a peer may still write to this tensor; copy it out, or make a new group",
        )
    });
}

#[test]
fn a_forked_copy_of_a_rank() {
    in_groups(1, options(), |group| {
        const TEXT: &str = "this group belongs to the process that made it, and this is a forked copy; make the group after the fork";
        // SAFETY: the child makes one call, which is refused.
        let child = unsafe { Child::fork(&[], || i32::from(says(group.barrier(), TEXT).is_err())) };
        let ended = child.map_err(|error| error.to_string())?.reap(support::far());
        (ended == Some(HowDied::Exited(0))).then_some(()).ok_or(format!("{ended:?}"))
    });
}

/// At the deadline it is said which call or message did not go on, also where a call waits until peers have read.
// CO-4
#[test]
fn what_waits_is_named_at_the_deadline() {
    type Act = fn(&Collectives<'_>) -> Result<(), String>;
    let error = |error: collectives::CollError| error.to_string();
    let [nothing, sends, sends_tag_3]: [Act; 3] = [
        |_| Ok(()),
        |group| {
            let expected =
                "send of f32 × 1000000 with tag 1 to rank 1, on rank 0: timed out in collective after …";
            says(group.send(&vec![1.0_f32; 1_000_000], 1, 1), expected)
        },
        |group| group.send(&[1.0_f32; 10], 1, 3).map_err(|error| error.to_string()),
    ];
    let broadcasts: Act = |group| {
        let expected = "broadcast f32 × 1000000 from 0, call 1 of rank 0: timed out in collective after …";
        says(group.broadcast(&mut vec![1.0_f32; 1_000_000], 0), expected)
    };
    let receives: Act = |group| {
        let expected = "recv of f32 × 10 with tag 4 from rank 0, on rank 1 (what came has another tag: f32 × 10 with \
                        tag 3): timed out in collective after …; rank 0 had not arrived; …";
        says(group.recv(&mut [0.0_f32; 10], 0, 4), expected)
    };
    let receives_later: Act = |group| {
        let expected = "recv of f32 × 10 with tag 4 from rank 0, on rank 1 (what came has other tags: 2 messages from \
                        f32 × 10 with tag 3 to f32 × 10 with tag 3): timed out in collective after …";
        says(group.recv(&mut [0.0_f32; 10], 0, 4), expected)
    };
    let sends_twice: Act =
        |group| (0..2).try_for_each(|_| group.send(&[1.0_f32; 10], 1, 3)).map_err(|error| error.to_string());
    for (zero, one) in
        [(sends, nothing), (broadcasts, nothing), (sends_tag_3, receives), (sends_twice, receives_later)]
    {
        in_comms(2, |comm| {
            let within = Timeout::new(Duration::from_millis(300)).map_err(|error| error.to_string())?;
            let group = Collectives::new(comm, options().timeout(within)).map_err(error)?;
            let done = if comm.rank() == 0 { zero(&group) } else { one(&group) };
            // The other rank stays until this one has seen its deadline.
            std::thread::sleep(Duration::from_millis(1200));
            done
        });
    }
}
