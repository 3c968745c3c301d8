//! What an orchestration does with memory inside a run: copies, allocations, domains that end early; and groups of sub-workers.
#![allow(missing_docs)]

mod support;

use comm_context::abi::DType;
use serial_test::serial;
use support::{builder, form_group, plain, text};
use worker_orch::{Access, Args, CollectivesOptions, ErrorCode, Failure, Op, Task};

fn double(task: &mut Task<'_>) -> Result<(), Failure> {
    let x = task.read::<f32>(0)?;
    std::thread::sleep(std::time::Duration::from_millis(20));
    task.write(task.tensors().len() - 1, &x.iter().map(|x| 2.0 * x).collect::<Vec<_>>())
}

fn fails(_: &mut Task<'_>) -> Result<(), Failure> {
    Err(Failure::new(ErrorCode::Task, "on purpose"))
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

// WO-16
#[test]
#[serial]
fn copies_in_a_run_are_ordered_with_its_tasks() {
    let mut worker = plain(2);
    form_group(&mut worker, 2, 16);
    let double = worker.register_function("double", double);
    worker.init().unwrap();
    let contexts = worker.chip_contexts().unwrap().to_vec();
    let pids: Vec<u32> = contexts.iter().map(|chip| chip.pid as u32).collect();
    assert_eq!(pids, support::children_of(std::process::id()));
    let memory = worker.chip_alloc(1, 100).unwrap();
    let window = contexts[1].window_size as u64;
    assert_eq!((worker.chip_bytes(1).unwrap(), worker.chip_bytes(0).unwrap()), (window + 100, window));
    drop(memory);
    assert_eq!(worker.chip_bytes(1).unwrap(), window);
    assert!(worker.chip_bytes(2).is_err());
    let windows: Vec<_> = contexts.iter().map(|chip| chip.buffer("data").unwrap().clone()).collect();
    let out = worker.host_buffer::<f32>(16).unwrap();
    worker
        .run(|orch| {
            let mut back = vec![0; 64];
            for round in 1..4 {
                let data = vec![round as f32; 16];
                orch.copy_to(0, windows[0].addr, &bytes(&data))?;
                let in_place = Args::new().tensor(&windows[0].tensor()?, Access::InOut);
                orch.submit_next_level(double, &in_place, 0)?;
                let over = Args::new().tensor(&windows[0].tensor()?, Access::Input);
                orch.submit_next_level(double, &over.tensor(&out.tensor(), Access::Output), 1)?;
                // After the first task, which writes the window, and before what comes next.
                orch.copy_from(0, windows[0].addr, &mut back)?;
                assert_eq!(back, bytes(&[2.0 * round as f32; 16]));
                // Waits for the task of the other chip, which reads these bytes.
                orch.copy_to(0, windows[0].addr, &bytes(&[0.0; 16]))?;
                assert_eq!(out.to_vec(), [4.0 * round as f32; 16]);
            }
            let memory = orch.chip_alloc(1, 64)?;
            orch.copy_to(1, memory.addr(), &[7; 64])?;
            orch.copy_from(1, memory.addr(), &mut back)?;
            assert_eq!(back, [7; 64]);
            for refused in [
                orch.copy_to(0, memory.addr(), &[1]),
                orch.copy_to(1, memory.addr(), &[1; 65]),
                orch.copy_from(2, memory.addr(), &mut back[..1]),
                orch.chip_alloc(9, 1).map(drop),
            ] {
                assert_eq!(refused.unwrap_err().code, ErrorCode::Invalid);
            }
            Ok(())
        })
        .unwrap();
    worker.close().unwrap();
}

// WO-16
#[test]
#[serial]
fn a_copy_after_a_failed_task_fails_with_it() {
    let mut worker = plain(2);
    form_group(&mut worker, 2, 16);
    let fails = worker.register_function("fails", fails);
    worker.init().unwrap();
    let data = worker.chip_contexts().unwrap()[0].buffer("data").unwrap().clone();
    let failure = worker.run(|orch| {
        orch.submit_next_level(fails, &Args::new().tensor(&data.tensor()?, Access::Output), 0)?;
        let copied = orch.copy_from(0, data.addr, &mut [0; 4]);
        assert!(
            copied.is_err() && orch.copy_to(1, data.addr, &[0]).is_err() && orch.chip_alloc(0, 1).is_err()
        );
        copied
    });
    assert!(text(&failure.unwrap_err()).contains("on purpose"));
    worker.run(|orch| orch.copy_from(0, data.addr, &mut [0; 4])).unwrap();
    worker.close().unwrap();
}

fn sum_in_domain(task: &mut Task<'_>) -> Result<(), Failure> {
    let mut values = [1.0_f32; 100];
    task.collectives_of("pair")?.all_reduce(&mut values, Op::Sum)?;
    assert_eq!(values, [2.0; 100]);
    Ok(())
}

/// Staged in, used, staged out, released; the next domain gets the same addresses, zeroed.
#[test]
#[serial]
fn a_domain_that_is_released_early_makes_room_for_the_next() {
    for checked in [false, true] {
        let plain = builder(3);
        let mut worker = if checked { plain.checked() } else { plain }.build().unwrap();
        let double = worker.register_function("double", double);
        let sum = worker.register_function("sum_in_domain", sum_in_domain);
        worker.init().unwrap();
        worker
            .run(|orch| {
                let mut bases = Vec::new();
                for _ in 0..3 {
                    let domain = orch.allocate_domain("pair", &[0, 2], 4096, &[("x", DType::Float32, 16)])?;
                    let member = &domain.contexts()[1];
                    let x = member.buffer("x")?;
                    assert_eq!((x.bytes(), member.chip), (64, 2));
                    let missing = text(&member.buffer("y").unwrap_err());
                    assert!(missing.contains("no buffer `y`") && missing.contains("\"x\""), "{missing}");
                    let mut back = [1; 64];
                    orch.copy_from(2, x.addr, &mut back)?;
                    assert_eq!(back, [0; 64]);
                    orch.copy_to(2, x.addr, &bytes(&[3.0; 16]))?;
                    assert!(orch.copy_to(1, x.addr, &[0]).is_err(), "chip 1 is not a member");
                    orch.submit_next_level(double, &Args::new().tensor(&x.tensor()?, Access::InOut), 2)?;
                    orch.copy_from(2, x.addr, &mut back)?;
                    assert_eq!(back.to_vec(), bytes(&[6.0; 16]));
                    orch.domain_collectives(&domain, CollectivesOptions::new().pool(0))?;
                    orch.submit_group(sum, &[(0, Args::new()), (2, Args::new())])?;
                    bases.push(member.window_base);
                    assert!(orch.domains().eq(["pair"]));
                    orch.release_domain(&domain)?;
                    assert_eq!(orch.domains().count(), 0);
                    assert!(text(&orch.release_domain(&domain).unwrap_err()).contains("released before"));
                    assert!(orch.copy_to(2, x.addr, &[0]).is_err(), "it is gone");
                }
                assert!(bases.iter().all(|base| *base == bases[0]), "{bases:?}");
                Ok(())
            })
            .unwrap();
        worker.close().unwrap();
    }
}

fn pid(task: &mut Task<'_>) -> Result<(), Failure> {
    task.write(0, &[std::process::id()])
}

#[test]
#[serial]
fn a_group_of_sub_workers_has_another_process_for_each_member() {
    let mut worker = builder(1).sub_workers(3).build().unwrap();
    let pid = worker.register_function("pid", pid);
    worker.init().unwrap();
    let out = [(); 4].map(|()| worker.host_buffer::<u32>(1).unwrap());
    let members: Vec<Args> =
        out.iter().map(|out| Args::new().tensor(&out.tensor(), Access::Output)).collect();
    let ids = worker.run(|orch| orch.submit_sub_group(pid, &members[..3])).unwrap();
    let mut pids: Vec<u32> = out[..3].iter().map(|out| out.to_vec()[0]).collect();
    pids.sort_unstable();
    pids.dedup();
    assert_eq!((ids.len(), pids.len()), (3, 3));
    let refused = worker.run(|orch| orch.submit_sub_group(pid, &members)).unwrap_err();
    assert!(text(&refused).contains("a group of 4 tasks on 3 sub-workers"), "{refused}");
    assert_eq!(worker.run(|orch| orch.submit_sub_group(pid, &[])).unwrap(), []);
    worker.close().unwrap();
}
