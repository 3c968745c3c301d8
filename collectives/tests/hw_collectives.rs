//! The calls on devices, with one process for each: `cargo xtask hw-test --layer collectives`, with `--double` where there is none.
//!
//! # Safety
//! Forks before any vendor call. The children use the communicator and the group only, and no lock of the test harness. Calls in raw
//! parts get memory of the device that is there until they are over.
#![allow(missing_docs, unsafe_code)]

use cann_sim::hw_test::devices;
use child_process::Child;
use collectives::{
    CollError, Collectives, DType, Element, Kind, Op, Options, Passing, Plan, Request, Shared, bf16, f16,
};
use comm_context::comm::{CommError, Communicator, Timeout};
use comm_hccl::{Device, HcclComm, LogicalDevice, Runtime, Vendor, VisibleDevices};
use deadline::{Deadline, HowDied};
use shared_memory::Region;
use std::time::Duration;

const TEXT: usize = 4096;

fn within() -> Timeout {
    Timeout::new(Duration::from_secs(120)).unwrap()
}

fn options() -> Options {
    Options::new().timeout(within())
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, got: T, wanted: T) -> Result<(), String> {
    if got == wanted { Ok(()) } else { Err(format!("{what}: {got:?}, not {wanted:?}")) }
}

/// Runs `body` as every rank, each in a process of its own with a device of its own.
fn on_devices(name: &str, body: impl Fn(&HcclComm) -> Result<(), String>) {
    let ended = ends(&body);
    let failed: Vec<String> = ended
        .into_iter()
        .enumerate()
        .filter(|(_, (how, _))| *how != Some(HowDied::Exited(0)))
        .map(|(rank, (how, said))| format!("rank {rank} {how:?}: {said}"))
        .collect();
    assert!(failed.is_empty(), "{name}:\n{}", failed.join("\n"));
}

/// How every rank ended, and what it said.
fn ends(body: &dyn Fn(&HcclComm) -> Result<(), String>) -> Vec<(Option<HowDied>, String)> {
    let devices = devices();
    let prepared = HcclComm::prepare_group(devices.len() as u32).unwrap();
    let texts = Region::create("texts", devices.len() * TEXT).unwrap();
    let rank_main = |rank: u32, device: u32| -> Result<(), String> {
        let runtime = Runtime::start(Vendor::load(None).map_err(text)?).map_err(text)?;
        let list = VisibleDevices::from_env().map_err(text)?;
        let device = Device::open(runtime, LogicalDevice(device), &list).map_err(text)?;
        let comm = HcclComm::join(&device, &prepared, rank, within()).map_err(text)?;
        let done = body(&comm);
        let left = Box::new(comm).destroy(within()).map_err(text);
        let closed = device.close().and_then(|()| runtime.finalise()).map_err(text);
        done.and(left).and(closed)
    };
    let children: Vec<Child> = devices
        .iter()
        .enumerate()
        .map(|(rank, device)| {
            let run = || match rank_main(rank as u32, *device) {
                Ok(()) => 0,
                Err(said) => {
                    let _ = texts.write(rank * TEXT, worker_errors::clip(&said, TEXT).as_bytes());
                    1
                }
            };
            // SAFETY: see the head of the file.
            unsafe { Child::fork(&prepared.fds().collect::<Vec<_>>(), run) }.unwrap()
        })
        .collect();
    let end = Deadline::after(Duration::from_secs(300)).unwrap();
    let how: Vec<_> = children.iter().map(|child| child.reap(end)).collect();
    how.into_iter()
        .enumerate()
        .map(|(rank, how)| {
            let mut said = vec![0; TEXT];
            texts.read(rank * TEXT, &mut said).unwrap();
            (how, String::from_utf8_lossy(&said).trim_end_matches('\0').to_owned())
        })
        .collect()
}

/// What rank `rank` gives: small whole numbers, so that every order of a sum gives the same.
fn give(rank: usize, count: usize) -> Vec<i32> {
    (0..count).map(|at| (at % 7) as i32 + rank as i32).collect()
}

fn sums(nranks: usize, count: usize) -> Vec<i32> {
    (0..count).map(|at| (0..nranks).map(|rank| (at % 7) as i32 + rank as i32).sum()).collect()
}

fn family(group: &Collectives<'_>, count: usize) -> Result<(), String> {
    let (me, n) = (group.rank(), group.nranks());
    let mine = give(me, count);
    let all: Vec<i32> = (0..n).flat_map(|rank| give(rank, count)).collect();
    let mut out = mine.clone();
    group.all_reduce(&mut out, Op::Sum).map_err(text)?;
    same("all_reduce", out, sums(n, count))?;
    let mut out = vec![0; count];
    group.all_reduce_into(&mine, &mut out, Op::Max).map_err(text)?;
    same("all_reduce_into", out, give(n - 1, count))?;
    let mut out = vec![0; count * n];
    group.all_gather(&mine, &mut out).map_err(text)?;
    same("all_gather", &out, &all)?;
    let whole: Vec<i32> = (0..n).flat_map(|_| mine.clone()).collect();
    let mut part = vec![0; count];
    group.reduce_scatter(&whole, &mut part, Op::Sum).map_err(text)?;
    same("reduce_scatter", part, sums(n, count))?;
    for root in 0..n {
        // 64-bit elements, which the device only moves.
        let mut sent: Vec<u64> = mine.iter().map(|value| *value as u64).collect();
        group.broadcast(&mut sent, root).map_err(text)?;
        same("broadcast", sent, give(root, count).iter().map(|value| *value as u64).collect())?;
        let mut out = vec![0; count];
        group.reduce(&mine, (me == root).then_some(&mut out[..]), Op::Sum, root).map_err(text)?;
        same("reduce", out, if me == root { sums(n, count) } else { vec![0; count] })?;
        let mut out = vec![0; count * n];
        group.gather(&mine, (me == root).then_some(&mut out[..]), root).map_err(text)?;
        same("gather", &out, if me == root { &all } else { &out })?;
        let mut part = vec![0; count];
        group.scatter((me == root).then_some(&all), &mut part, root).map_err(text)?;
        same("scatter", part, mine.clone())?;
    }
    let blocks: Vec<i32> = (0..n).flat_map(|to| give(me * 10 + to, count)).collect();
    let mut out = vec![0; count * n];
    group.all_to_all(&blocks, &mut out).map_err(text)?;
    same("all_to_all", out, (0..n).flat_map(|from| give(from * 10 + me, count)).collect())?;
    // Rank r gives r blocks less one, so that rank 1 gives nothing.
    let counts: Vec<usize> = (0..n).map(|rank| rank.abs_diff(1) * count).collect();
    let mut out = vec![0; counts.iter().sum()];
    group.all_gather_v(&give(me, counts[me]), &mut out, &counts).map_err(text)?;
    same("all_gather_v", out, (0..n).flat_map(|rank| give(rank, counts[rank])).collect())?;
    let total: usize = counts.iter().sum();
    let start: usize = counts[..me].iter().sum();
    let mut out = vec![0; counts[me]];
    group.reduce_scatter_v(&give(me, total), &mut out, &counts, Op::Sum).map_err(text)?;
    same("reduce_scatter_v", out, sums(n, total)[start..start + counts[me]].to_vec())?;
    let sent: Vec<usize> = (0..n).map(|to| (me + to) % 3 * count).collect();
    let data: Vec<i32> = (0..n).flat_map(|to| give(me * 10 + to, sent[to])).collect();
    let mut out = vec![0; sent.iter().sum()];
    group.all_to_all_v(&data, &sent, &mut out, &sent).map_err(text)?;
    same("all_to_all_v", out, (0..n).flat_map(|from| give(from * 10 + me, sent[from])).collect())?;
    // A ring of messages.
    if n > 1 {
        let (next, last) = ((me + 1) % n, (me + n - 1) % n);
        let mut got = vec![0; count];
        if me == 0 {
            group.send(&mine, next, 0).map_err(text)?;
            group.recv(&mut got, last, 0).map_err(text)?;
        } else {
            group.recv(&mut got, last, 0).map_err(text)?;
            group.send(&mine, next, 0).map_err(text)?;
        }
        same("recv", got, give(last, count))?;
    }
    group.barrier().map_err(text)
}

// CO-1
#[test]
#[ignore = "needs devices: cargo xtask hw-test --layer collectives"]
fn the_family_on_devices() {
    on_devices("family", |comm| {
        let group = Collectives::new(comm, options()).map_err(text)?;
        for count in [1, 1000, 40_000] {
            family(&group, count).map_err(|error| format!("{count} elements: {error}"))?;
        }
        let mut nothing: [f32; 0] = [];
        group.all_reduce(&mut nothing, Op::Sum).map_err(text)?;
        group.close().map_err(text)
    });
}

fn reduces<T: Element>(group: &Collectives<'_>, one: T, wanted: T) -> Result<(), String> {
    let mut values = [one; 100];
    group.all_reduce(&mut values, Op::Sum).map_err(text)?;
    same(T::DTYPE.name(), values, [wanted; 100])
}

// CO-5
#[test]
#[ignore = "needs devices: cargo xtask hw-test --layer collectives"]
fn what_devices_have_not_is_refused_and_the_group_is_as_before() {
    on_devices("types", |comm| {
        let group = Collectives::new(comm, options()).map_err(text)?;
        let n = group.nranks();
        reduces(&group, 1.5_f32, 1.5 * n as f32)?;
        reduces(&group, f16::from_f32(1.5), f16::from_f32(1.5 * n as f32))?;
        reduces(&group, bf16::from_f32(1.5), bf16::from_f32(1.5 * n as f32))?;
        reduces(&group, 3_i8, 3 * n as i8)?;
        reduces(&group, 3_i16, 3 * n as i16)?;
        let refused = |result: Result<(), CollError>, parts: &[&str]| match result {
            Err(error @ (CollError::Unsupported { .. } | CollError::NoHostWindows)) => {
                let said = error.to_string();
                let all = parts.iter().all(|part| said.contains(part));
                if all { Ok(()) } else { Err(format!("it says {said}")) }
            }
            other => Err(format!("{parts:?}: {other:?}")),
        };
        refused(
            group.all_reduce(&mut [1.0_f32], Op::Avg),
            &["all_reduce f32 avg", "devices have sum, prod, max and min, not avg"],
        )?;
        refused(group.all_reduce(&mut [1_u32], Op::BitAnd), &["bitwise and"])?;
        refused(group.all_reduce(&mut [1.0_f64], Op::Sum), &["devices do not reduce f64"])?;
        refused(group.all_reduce(&mut [1_u64], Op::Sum), &["HcclAllReduce", "Uint64"])?;
        refused(group.reduce_scatter(&vec![1_i16; n], &mut [0], Op::Sum), &["HcclReduceScatter", "Int16"])?;
        refused(
            group.send(&[1], (group.rank() + 1) % n, 5),
            &["messages on devices have no tags and arrive in the order in which they are sent; pass tag 0"],
        )?;
        refused(
            group.alloc::<f32>(1).map(drop),
            &[
                "this communicator's windows are not memory of this process; pass slices instead of tensors in windows, and where \
                 the devices have no engine for collectives use a backend such as comm-sim",
            ],
        )?;
        let plan = Plan::named("broadcast", n as u32, Passing::Reference).map_err(text)?;
        refused(
            group.run_plan(&plan, &mut [1.0_f32], None),
            &["plan broadcast", "the devices' engine has its own schedules; make the call itself"],
        )?;
        family(&group, 10)?;
        group.close().map_err(text)
    });
}

// CO-1, CO-7
#[test]
#[ignore = "needs devices: cargo xtask hw-test --layer collectives"]
fn started_calls_split_groups_and_device_memory() {
    on_devices("started", |comm| {
        let group = Collectives::new(comm, options()).map_err(text)?;
        let (me, n) = (group.rank(), group.nranks());
        let (mut a, mut b) = (give(me, 5000), give(me + 1, 300));
        let counted = group
            .scope(|calls| {
                let first = calls.start_all_reduce(&mut a, Op::Sum)?;
                let mut second = calls.start_all_reduce(&mut b, Op::Sum)?;
                while !second.test()? {
                    std::thread::yield_now();
                }
                second.wait()?;
                first.wait().map(|values| values.len())
            })
            .map_err(text)?
            .map_err(text)?;
        same("elements", counted, 5000)?;
        same("first", a, sums(n, 5000))?;
        same("second", b, sums(n, 300).iter().map(|sum| sum + n as i32).collect())?;
        // Two groups that are waited for in different orders.
        let color = (me % 2) as u32;
        let half = group.split(Some(color), -(me as i64)).map_err(text)?.ok_or("no group")?;
        let expected: Vec<u32> = (0..n as u32).rev().filter(|rank| rank % 2 == color).collect();
        same("members", half.members(), &expected[..])?;
        let (mut whole, mut part) = (vec![1_i32; 100], vec![1_i32; 100]);
        group
            .scope(|calls| {
                let whole = calls.start_all_reduce(&mut whole, Op::Sum)?;
                half.scope(|inner| {
                    let part = inner.start_all_reduce(&mut part, Op::Sum)?;
                    if me == 0 {
                        part.wait()?;
                        whole.wait().map(drop)
                    } else {
                        whole.wait()?;
                        part.wait().map(drop)
                    }
                })?
            })
            .map_err(text)?
            .map_err(text)?;
        same("of all", whole, vec![n as i32; 100])?;
        same("of some", part, vec![expected.len() as i32; 100])?;
        family(&half, 50)?;
        half.close().map_err(text)?;
        // From device memory to device memory.
        let at = group.alloc_raw(400).map_err(text)?;
        let mut ones = vec![1_i32; 100];
        let request = |input: *const u8, output: *mut u8| Request {
            kind: Kind::AllReduce,
            dtype: DType::I32,
            op: Some(Op::Sum),
            count: 100,
            input,
            output,
            shared: Shared::Nothing,
            ..Request::BARRIER
        };
        // SAFETY: all buffers have 100 elements, on the host or on the device.
        unsafe {
            group.run_raw(request(ones.as_ptr().cast(), at.as_ptr())).map_err(text)?;
            group.run_raw(request(at.as_ptr(), at.as_ptr())).map_err(text)?;
            group.run_raw(request(at.as_ptr(), ones.as_mut_ptr().cast())).map_err(text)?;
        }
        same("device memory", ones, vec![(n * n * n) as i32; 100])?;
        // In place only on the host, whose memory is copied.
        let scatter = |at: *mut u8, count: usize| {
            let output = at.wrapping_add(me * 4 * count);
            let kind = Kind::ReduceScatter;
            // SAFETY: the buffers have a block for each rank.
            unsafe { group.run_raw(Request { kind, count, ..request(at.cast_const(), output) }) }
        };
        let mut blocks = vec![1_i32; 10 * n];
        scatter(blocks.as_mut_ptr().cast(), 10).map_err(text)?;
        let expected = |at: usize| if at / 10 == me { n as i32 } else { 1 };
        same("in place", blocks, (0..10 * n).map(expected).collect())?;
        let said = scatter(at.as_ptr(), 100 / n).err().map(text).unwrap_or_default();
        let refused = said.contains("devices have no reduce_scatter in place; pass an output that is apart");
        if !refused {
            return Err(format!("in place on the device: {said:?}"));
        }
        // SAFETY: nothing uses it any more.
        unsafe { group.free_raw(at) }.map_err(text)?;
        group.close().map_err(text)
    });
}

// CO-4
#[test]
#[ignore = "needs devices: cargo xtask hw-test --layer collectives"]
fn f20_a_rank_that_dies_ends_the_calls_of_the_others() {
    let ended = ends(&|comm| {
        let group = Collectives::new(comm, options()).map_err(text)?;
        if comm.rank() == 1 {
            std::process::abort();
        }
        let failed = group.all_reduce(&mut [1.0_f32; 10], Op::Sum).err().ok_or("it returned")?;
        let named = matches!(
            failed.root_cause(),
            CollError::Wait { cause: CommError::PeerDied { rank: 1, .. } | CommError::PeerLeft { .. }, .. }
        );
        let again = group.all_reduce(&mut [1.0_f32; 10], Op::Sum).err().map(text).unwrap_or_default();
        drop(group);
        Err(if named && again.contains("failed before") { "told".to_owned() } else { text(failed) })
    });
    for (rank, (how, said)) in ended.into_iter().enumerate().filter(|(rank, _)| *rank != 1) {
        assert_eq!((how, said.as_str()), (Some(HowDied::Exited(1)), "told"), "rank {rank}");
    }
}

#[test]
#[ignore = "needs devices: cargo xtask hw-test --layer collectives"]
fn one_rank_is_a_group_too() {
    on_devices("alone", |comm| {
        let group = Collectives::over(comm, &[comm.rank()], options()).map_err(text)?;
        family(&group, 20)?;
        group.close().map_err(text)
    });
}
