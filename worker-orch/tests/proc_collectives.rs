//! Collectives between the functions of chips: over the chips of a `submit_group`, and over a domain.
#![allow(missing_docs)]

mod support;

use nix::sys::signal::{Signal, raise};
use serial_test::serial;
use support::{builder, platform, secs, text, traces};
use worker_orch::{
    Access, Args, CollectivesOptions, DType, ErrorCode, Failure, HostBuffer, Op, Platform, Task, Worker,
};

const COUNT: usize = 5000;

fn options() -> CollectivesOptions {
    CollectivesOptions::new().pool(1 << 20).timeout(secs(30))
}

fn ints(from: Vec<f32>) -> Vec<i64> {
    from.into_iter().map(|value| value as i64).collect()
}

/// Sums tensor 0 of all members, and checks the rest of the family on the way.
fn sum(task: &mut Task<'_>) -> Result<(), Failure> {
    let group = task.collectives()?;
    let (me, nranks) = (group.rank(), group.nranks());
    let mut values = task.read::<f32>(0)?;
    group.all_reduce(&mut values, Op::Sum)?;
    let mut ranks = vec![0_i32; nranks];
    group.all_gather(&[me as i32], &mut ranks)?;
    let mut root = [me as i64 + 7];
    group.broadcast(&mut root, nranks - 1)?;
    group.barrier()?;
    let right = ranks.iter().copied().eq(0..nranks as i32) && root[0] == nranks as i64 + 6;
    if !right {
        return Err(Failure::new(ErrorCode::Task, format!("{ranks:?}, {root:?}")));
    }
    task.write(0, &values)
}

/// The same, started, from a tensor in the window where there are windows.
fn sum_started(task: &mut Task<'_>) -> Result<(), Failure> {
    let group = task.collectives()?;
    let mut values = task.read::<f32>(0)?;
    if platform() == Platform::Sim {
        let mut tensor = group.alloc::<f32>(values.len())?;
        tensor.as_mut_slice()?.copy_from_slice(&values);
        group.scope(|calls| calls.start_all_reduce(&mut tensor, Op::Sum)?.wait().map(drop))??;
        values.copy_from_slice(tensor.as_slice()?);
    } else {
        group.scope(|calls| calls.start_all_reduce(&mut values, Op::Sum)?.wait().map(drop))??;
    }
    task.write(0, &values)
}

fn sum_of_domain(task: &mut Task<'_>) -> Result<(), Failure> {
    let name = if task.scalar(0)? == 0 { "left" } else { "right" };
    let mut values = task.read::<f32>(0)?;
    task.collectives_of(name)?.all_reduce(&mut values, Op::Sum)?;
    task.write(0, &values)
}

/// The member that scalar 0 names fails; the others wait for it.
fn sum_unless(task: &mut Task<'_>) -> Result<(), Failure> {
    let group = task.collectives()?;
    if group.rank() as u64 == task.scalar(0)? {
        match task.scalar(1)? {
            0 => return Err(Failure::new(ErrorCode::Task, "refused on purpose")),
            1 => panic!("panicked on purpose"),
            _ => {
                let _ = raise(Signal::SIGKILL);
            }
        }
    }
    group.barrier()?;
    Ok(())
}

/// Members that call different things.
fn differ(task: &mut Task<'_>) -> Result<(), Failure> {
    let group = task.collectives()?;
    let mut values = [1.0_f32; 3];
    match group.rank() {
        0 => group.all_reduce(&mut values, Op::Sum)?,
        _ => group.broadcast(&mut values, 0)?,
    }
    Ok(())
}

fn quiet(_: &mut Task<'_>) -> Result<(), Failure> {
    Ok(())
}

fn buffers(worker: &Worker, chips: usize) -> Vec<HostBuffer<f32>> {
    (0..chips).map(|_| worker.host_buffer::<f32>(COUNT).unwrap()).collect()
}

fn fill(buffers: &[HostBuffer<f32>]) {
    for (chip, buffer) in buffers.iter().enumerate() {
        buffer.write(&vec![(chip + 1) as f32; COUNT]).unwrap();
    }
}

fn members(chips: &[usize], buffers: &[HostBuffer<f32>], scalars: &[u64]) -> Vec<(usize, Args)> {
    let args = |chip: usize| {
        let args = Args::new().tensor(&buffers[chip].tensor(), Access::InOut);
        scalars.iter().fold(args, |args, scalar| args.scalar(*scalar))
    };
    chips.iter().map(|chip| (*chip, args(*chip))).collect()
}

// WO-12
#[test]
#[serial]
fn functions_of_a_group_make_collective_calls_in_many_runs() {
    let before = traces();
    let mut worker = builder(3).build().unwrap();
    let (sum, sum_started) =
        (worker.register_function("sum", sum), worker.register_function("sum_started", sum_started));
    let buffers = buffers(&worker, 3);
    worker.init().unwrap();
    for run in 0..6 {
        // Overlapping groups, in an order that is not that of the chips.
        for (chips, total) in [(&[2, 0][..], 4.0), (&[0, 1, 2][..], 6.0)] {
            fill(&buffers);
            let program = if run % 2 == 0 { sum } else { sum_started };
            worker
                .run(|orch| {
                    orch.collectives(chips, options())?;
                    orch.submit_group(program, &members(chips, &buffers, &[])).map(drop)
                })
                .unwrap();
            for chip in chips {
                assert_eq!(buffers[*chip].to_vec(), vec![total; COUNT], "run {run}, chip {chip}");
            }
        }
    }
    worker.close().unwrap();
    drop(buffers);
    drop(worker);
    assert_eq!(traces(), before, "something is left");
}

// WO-12
#[test]
#[serial]
fn domains_have_collectives_of_their_own() {
    let mut worker = builder(3).build().unwrap();
    let sum = worker.register_function("sum_of_domain", sum_of_domain);
    let buffers = buffers(&worker, 3);
    worker.init().unwrap();
    for _ in 0..3 {
        fill(&buffers);
        worker
            .run(|orch| {
                let data = [("data", DType::Float32, 4)];
                let left = orch.allocate_domain("left", &[0, 1], 4096, &data)?;
                let right = orch.allocate_domain("right", &[2, 1], 4096, &data)?;
                orch.domain_collectives(&left, options())?;
                orch.domain_collectives(&right, options())?;
                orch.domain_collectives(&left, options())?;
                orch.submit_group(sum, &members(&[0, 1], &buffers, &[0]))?;
                orch.submit_group(sum, &members(&[2, 1], &buffers, &[1])).map(drop)
            })
            .unwrap();
        let values = [0, 1, 2].map(|chip: usize| ints(buffers[chip].to_vec())[0]);
        assert_eq!(values, [3, 6, 6]);
    }
    // They ended with their domain.
    let late = worker.run(|orch| orch.submit_group(sum, &members(&[0, 1], &buffers, &[0])).map(drop));
    let late = text(&late.unwrap_err());
    assert!(late.contains("`left`") && late.contains("domain_collectives"), "{late}");
    worker.close().unwrap();
}

// WO-12
#[test]
#[serial]
fn a_task_without_a_group_is_told_what_to_do() {
    let mut worker = builder(2).sub_workers(1).build().unwrap();
    let sum = worker.register_function("sum", sum);
    let buffers = buffers(&worker, 2);
    worker.init().unwrap();
    let args = Args::new().tensor(&buffers[0].tensor(), Access::InOut);
    // Submitted to one chip, though the group is there.
    let alone = worker.run(|orch| {
        orch.collectives(&[0, 1], options())?;
        orch.submit_next_level(sum, &args, 0).map(drop)
    });
    // Submitted to other chips than those of the group, or to these in another order.
    let unknown = worker.run(|orch| {
        orch.collectives(&[0, 1], options())?;
        orch.submit_group(sum, &members(&[1, 0], &buffers, &[])).map(drop)
    });
    for error in [alone, unknown] {
        let error = text(&error.unwrap_err());
        assert!(
            error.contains("call `collectives` of the orchestrator")
                && error.contains("submit the task to that group"),
            "{error}"
        );
    }
    let sub = text(&worker.run(|orch| orch.submit_sub(sum, &args).map(drop)).unwrap_err());
    assert!(sub.contains("between chips"), "{sub}");
    for (chips, part) in [(&[][..], "at least one chip"), (&[0, 0], "twice"), (&[0, 2], "there are 2")] {
        let refused = worker.run(|orch| orch.collectives(chips, options()));
        let refused = text(&refused.unwrap_err());
        assert!(refused.contains(part), "{refused}");
    }
    worker.close().unwrap();
}

// WO-2, WO-4, WO-12
#[test]
#[serial]
fn f52_a_failed_member_is_the_first_cause_and_the_next_run_has_a_new_group() {
    let mut worker = builder(3).build().unwrap();
    let sum = worker.register_function("sum", sum);
    let sum_unless = worker.register_function("sum_unless", sum_unless);
    let differ = worker.register_function("differ", differ);
    let buffers = buffers(&worker, 3);
    worker.init().unwrap();
    let chips = [0, 1, 2];
    let mut round = |program, scalars: &[u64], expected: &[&str]| {
        let failed = worker.run(|orch| {
            orch.collectives(&chips, options())?;
            orch.submit_group(program, &members(&chips, &buffers, scalars)).map(drop)
        });
        let failed = text(&failed.unwrap_err());
        assert!(expected.iter().all(|part| failed.contains(part)), "{failed}");
        fill(&buffers);
        worker
            .run(|orch| {
                orch.collectives(&chips, options())?;
                orch.submit_group(sum, &members(&chips, &buffers, &[])).map(drop)
            })
            .unwrap_or_else(|error| panic!("after {expected:?}: {error}"));
        assert_eq!(buffers[1].to_vec(), [6.0; COUNT]);
    };
    for rank in 0..3 {
        let name = format!("chip {rank}");
        round(sum_unless, &[rank, 0], &["refused on purpose", &name]);
        round(sum_unless, &[rank, 1], &["panicked on purpose", &name]);
    }
    if platform() == Platform::Sim {
        round(differ, &[], &["rank 0: all_reduce f32 sum × 3", "broadcast f32 × 3 from 0"]);
    }
    worker.close().unwrap();
}

// WO-2
#[test]
#[serial]
fn f02_a_member_that_is_killed_in_a_collective_is_reported() {
    let mut worker = builder(3).run_within(secs(30)).build().unwrap();
    let sum_unless = worker.register_function("sum_unless", sum_unless);
    let buffers = buffers(&worker, 3);
    worker.init().unwrap();
    let killed = worker.run(|orch| {
        orch.collectives(&[0, 1, 2], options())?;
        orch.submit_group(sum_unless, &members(&[0, 1, 2], &buffers, &[1, 2])).map(drop)
    });
    let killed = text(&killed.unwrap_err());
    assert!(killed.contains("chip 1") && killed.contains("SIGKILL"), "{killed}");
    assert!(!killed.contains("not finished after"), "{killed}");
    let _ = worker.close();
}

/// The parent asks for more than there is: refused with need and have, and nothing stays behind.
// WO-12
#[test]
#[serial]
fn windows_of_collectives_are_counted() {
    if platform() != Platform::Sim {
        return;
    }
    let mut worker = builder(2).build().unwrap();
    let (sum, quiet) = (worker.register_function("sum", sum), worker.register_function("quiet", quiet));
    let buffers = buffers(&worker, 2);
    worker.init().unwrap();
    let huge = worker.run(|orch| orch.collectives(&[0, 1], options().pool(60 << 30)));
    let huge = text(&huge.unwrap_err());
    assert!(huge.contains("bytes"), "{huge}");
    worker.run(|orch| orch.submit_group(quiet, &members(&[0, 1], &buffers, &[])).map(drop)).unwrap();
    fill(&buffers);
    worker
        .run(|orch| {
            orch.collectives(&[0, 1], options())?;
            orch.submit_group(sum, &members(&[0, 1], &buffers, &[])).map(drop)
        })
        .unwrap();
    assert_eq!(buffers[0].to_vec(), [3.0; COUNT]);
    worker.close().unwrap();
}
