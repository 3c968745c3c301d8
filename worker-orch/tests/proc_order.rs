//! The order of tasks on real processes: groups, failed prerequisites, named prerequisites, barriers.
#![allow(missing_docs)]

mod support;

use serial_test::serial;
use std::time::Duration;
use support::{builder, plain, says, text};
use worker_orch::{Access, Args, DType, DeviceAddr, ErrorCode, Failure, Task, TensorDesc, flat_tensor};

/// Long enough that whoever does not wait is seen.
const LATE: u64 = 50;

/// Waits for as many milliseconds as scalar 0 says, then writes scalar 1 into the last tensor.
fn put(task: &mut Task<'_>) -> Result<(), Failure> {
    std::thread::sleep(Duration::from_millis(task.scalar(0)?));
    let value = task.scalar(1)? as f32;
    task.write(task.tensors().len() - 1, &[value])
}

/// Copies tensor 0 to tensor 1, if there is one.
fn copy(task: &mut Task<'_>) -> Result<(), Failure> {
    match task.tensors().len() {
        1 => Ok(()),
        _ => task.write(1, &task.read::<f32>(0)?),
    }
}

fn refuse(_: &mut Task<'_>) -> Result<(), Failure> {
    Err(Failure::new(ErrorCode::Task, "it does not want to"))
}

/// Element `index` of a tensor of floats.
fn element(of: &TensorDesc, index: u64) -> TensorDesc {
    flat_tensor(DeviceAddr(of.addr + 4 * index), DType::Float32, 1).unwrap()
}

#[test]
#[serial]
fn f63_a_member_of_a_group_waits_for_the_producer_of_what_it_reads() {
    let mut worker = plain(3);
    let (put, copy) = (worker.register_function("put", put), worker.register_function("copy", copy));
    let (x, y) = (worker.host_buffer::<f32>(1).unwrap(), worker.host_buffer::<f32>(1).unwrap());
    worker.init().unwrap();
    worker
        .run(|orch| {
            let producer = Args::new().tensor(&x.tensor(), Access::Output).scalar(LATE).scalar(1);
            orch.submit_next_level(put, &producer, 0)?;
            // The first member writes what the second reads; neither waits for the other, both for chip 0.
            let writer = Args::new().tensor(&x.tensor(), Access::InOut);
            let reader = Args::new().tensor(&x.tensor(), Access::Input).tensor(&y.tensor(), Access::Output);
            orch.submit_group(copy, &[(1, writer), (2, reader)])
        })
        .unwrap();
    assert_eq!(y.to_vec(), [1.0]);
}

#[test]
#[serial]
fn f63_a_later_reader_waits_for_all_writers_of_a_group() {
    let mut worker = plain(3);
    let (put, copy) = (worker.register_function("put", put), worker.register_function("copy", copy));
    let (x, y) = (worker.host_buffer::<f32>(2).unwrap(), worker.host_buffer::<f32>(2).unwrap());
    worker.init().unwrap();
    worker
        .run(|orch| {
            let half = |index, late| {
                let all = Args::new().tensor(&x.tensor(), Access::OutputExisting);
                all.tensor(&element(&x.tensor(), index), Access::NoDependency).scalar(late).scalar(index + 1)
            };
            // The slow one first: whoever knows the last writer only does not wait for it.
            orch.submit_group(put, &[(0, half(0, LATE)), (1, half(1, 0))])?;
            let reader = Args::new().tensor(&x.tensor(), Access::Input).tensor(&y.tensor(), Access::Output);
            orch.submit_next_level(copy, &reader, 2)
        })
        .unwrap();
    assert_eq!(y.to_vec(), [1.0, 2.0]);
}

#[test]
#[serial]
fn f64_a_prerequisite_that_failed_long_ago_is_not_met() {
    let mut worker = plain(2);
    let (refuse, put) = (worker.register_function("refuse", refuse), worker.register_function("put", put));
    let (x, other) = (worker.host_buffer::<f32>(1).unwrap(), worker.host_buffer::<f32>(1).unwrap());
    worker.init().unwrap();
    let write = |tensor: &TensorDesc| Args::new().tensor(tensor, Access::InOut).scalar(0).scalar(1);
    let reported = worker
        .run(|orch| {
            orch.submit_next_level(refuse, &Args::new().tensor(&x.tensor(), Access::InOut), 0)?;
            std::thread::sleep(Duration::from_millis(LATE));
            // More than a ring holds: meanwhile the parent has read that chip 0 is done with its task.
            for _ in 0..40 {
                orch.submit_next_level(put, &write(&other.tensor()), 1)?;
            }
            let _ = orch.submit_next_level(put, &write(&x.tensor()), 1);
            Ok(())
        })
        .unwrap_err();
    assert_eq!(x.to_vec(), [0.0], "it ran although what it needs failed");
    assert!(text(&reported).contains("`refuse` failed on chip 0"), "{}", text(&reported));
}

/// Waits until tensor 0 is not zero any more.
fn await_change(task: &mut Task<'_>) -> Result<(), Failure> {
    for _ in 0..20_000 {
        if task.read::<f32>(0)? != [0.0] {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Err(Failure::new(ErrorCode::Task, "nobody changed it"))
}

/// A tensor that orders nothing: what is tested is the order that does not come from memory.
fn unordered(tensor: &TensorDesc) -> Args {
    Args::new().tensor(tensor, Access::NoDependency)
}

/// WO-9
#[test]
#[serial]
fn a_task_waits_for_the_tasks_that_it_names() {
    let mut worker = builder(3).sub_workers(1).build().unwrap();
    let (put, copy) = (worker.register_function("put", put), worker.register_function("copy", copy));
    let (x, y) = (worker.host_buffer::<f32>(3).unwrap(), worker.host_buffer::<f32>(3).unwrap());
    worker.init().unwrap();
    worker
        .run(|orch| {
            let write = |index, late| unordered(&element(&x.tensor(), index)).scalar(late).scalar(index + 1);
            let named = [
                orch.submit_next_level(put, &write(0, LATE), 0)?,
                orch.submit_sub(put, &write(1, LATE))?,
                // Its own chip's tasks come first anyway.
                orch.submit_next_level(put, &write(2, 0), 2)?,
            ];
            let both = unordered(&x.tensor()).tensor(&y.tensor(), Access::NoDependency);
            orch.submit_next_level(copy, &both.after(&named), 2)
        })
        .unwrap();
    assert_eq!(y.to_vec(), [1.0, 2.0, 3.0]);
}

/// WO-9
#[test]
#[serial]
fn a_task_is_skipped_when_one_that_it_names_failed() {
    let mut worker = plain(2);
    let (refuse, put) = (worker.register_function("refuse", refuse), worker.register_function("put", put));
    let x = worker.host_buffer::<f32>(1).unwrap();
    worker.init().unwrap();
    let write = unordered(&x.tensor()).scalar(0).scalar(1);
    for late in [0, LATE] {
        let reported = worker
            .run(|orch| {
                let failing = orch.submit_next_level(refuse, &Args::new(), 0)?;
                std::thread::sleep(Duration::from_millis(late));
                let _ = orch.submit_next_level(put, &write.clone().after(&[failing]), 1);
                Ok(())
            })
            .unwrap_err();
        assert_eq!(x.to_vec(), [0.0]);
        assert!(text(&reported).contains("`refuse` failed on chip 0"), "{}", text(&reported));
        let reported = worker
            .run(|orch| {
                orch.submit_next_level(refuse, &Args::new(), 0)?;
                std::thread::sleep(Duration::from_millis(late));
                orch.barrier()?;
                let _ = orch.submit_next_level(put, &write, 1);
                Ok(())
            })
            .unwrap_err();
        assert_eq!(x.to_vec(), [0.0]);
        assert!(text(&reported).contains("`refuse` failed on chip 0"), "{}", text(&reported));
    }
}

/// WO-9
#[test]
#[serial]
fn tasks_of_another_run_or_worker_are_refused_as_prerequisites() {
    let mut workers = [plain(1), plain(1)];
    let put = workers.each_mut().map(|worker| worker.register_function("put", put))[0];
    let x = workers.each_mut().map(|worker| worker.host_buffer::<f32>(1).unwrap());
    let args = |worker: usize| unordered(&x[worker].tensor()).scalar(0).scalar(1);
    workers.iter_mut().for_each(|worker| worker.init().unwrap());
    // The first run of both, so that the tasks have the same numbers.
    let first = workers[0].run(|orch| orch.submit_next_level(put, &args(0), 0)).unwrap();
    for worker in [1, 0] {
        workers[worker]
            .run(|orch| {
                says(
                    orch.submit_next_level(put, &args(worker).after(&[first]), 0),
                    "in submit: invalid argument: a task to wait for is of a run that is over or of another Worker, which this \
                     run does not wait for; name tasks that were submitted in this run or in one that is in flight with it",
                );
                let group = [(0, args(worker).after(&[first]))];
                assert!(orch.submit_group(put, &group).is_err());
                // The run goes on.
                let own = orch.submit_next_level(put, &args(worker), 0)?;
                orch.submit_next_level(put, &args(worker).after(&[own]), 0)
            })
            .unwrap();
    }
}

/// WO-9
#[test]
#[serial]
fn a_barrier_orders_tasks_of_all_its_chips() {
    const CHIPS: usize = 4;
    let mut worker = plain(CHIPS);
    let (put, copy) = (worker.register_function("put", put), worker.register_function("copy", copy));
    let x = worker.host_buffer::<f32>(CHIPS).unwrap();
    let seen: Vec<_> = (0..CHIPS).map(|_| worker.host_buffer::<f32>(CHIPS).unwrap()).collect();
    worker.init().unwrap();
    let write = |chip: usize, value| {
        let late = if chip == 0 { LATE } else { 0 };
        unordered(&element(&x.tensor(), chip as u64)).scalar(late).scalar(value)
    };
    let read = |chip: usize| unordered(&x.tensor()).tensor(&seen[chip].tensor(), Access::NoDependency);
    worker
        .run(|orch| {
            for round in 1..=3 {
                (0..CHIPS)
                    .try_for_each(|chip| orch.submit_next_level(put, &write(chip, round), chip).map(drop))?;
                orch.barrier()?;
                (0..CHIPS).try_for_each(|chip| orch.submit_next_level(copy, &read(chip), chip).map(drop))?;
                // Nobody writes the next round before all have read this one.
                orch.barrier()?;
            }
            Ok(())
        })
        .unwrap();
    seen.iter().for_each(|seen| assert_eq!(seen.to_vec(), [3.0; CHIPS]));
    // One barrier after the other: chip 2 waits for chip 0 through chip 1, which has no task in between.
    worker
        .run(|orch| {
            orch.submit_next_level(put, &write(0, 9), 0)?;
            orch.barrier_of(&[0, 1])?;
            orch.barrier_of(&[1, 2])?;
            orch.submit_next_level(copy, &read(2), 2)
        })
        .unwrap();
    assert_eq!(seen[2].to_vec(), [9.0, 3.0, 3.0, 3.0]);
    let refused = worker.run(|orch| orch.barrier_of(&[0, CHIPS])).unwrap_err();
    assert!(text(&refused).contains("there is no chip 4"), "{refused}");
}

/// WO-9: a chip that is not part of a barrier goes on.
#[test]
#[serial]
fn a_barrier_holds_back_its_own_chips_only() {
    let mut worker = plain(3);
    let (put, await_change) =
        (worker.register_function("put", put), worker.register_function("await_change", await_change));
    let x = worker.host_buffer::<f32>(1).unwrap();
    worker.init().unwrap();
    worker
        .run(|orch| {
            orch.submit_next_level(await_change, &unordered(&x.tensor()), 0)?;
            orch.barrier_of(&[0, 1])?;
            orch.submit_next_level(put, &unordered(&x.tensor()).scalar(0).scalar(1), 2)
        })
        .unwrap();
}
