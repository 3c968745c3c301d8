//! What an orchestration does with memory inside a run: copies, allocations, scopes, staging, domains that end early; and groups of
//! sub-workers.
#![allow(missing_docs)]

mod support;

use comm_context::abi::DType;
use serial_test::serial;
use support::{builder, form_group, plain, text};
use worker_orch::{Access, Args, CollectivesOptions, DomainStaging, ErrorCode, Failure, Op, RunState, Task};

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
    let contexts = worker.chip_contexts().unwrap().to_vec();
    let [data, other] = [0, 1].map(|chip: usize| contexts[chip].buffer("data").unwrap().clone());
    let failure = worker.run(|orch| {
        orch.submit_next_level(fails, &Args::new().tensor(&data.tensor()?, Access::Output), 0)?;
        let copied = orch.copy_from(0, data.addr, &mut [0; 4]);
        // On the other chip, where nothing failed, too.
        assert!(
            copied.is_err() && orch.copy_to(1, other.addr, &[7]).is_err() && orch.chip_alloc(1, 1).is_err()
        );
        copied
    });
    assert!(text(&failure.unwrap_err()).contains("on purpose"));
    worker.run(|orch| orch.copy_from(0, data.addr, &mut [0; 4])).unwrap();
    let mut byte = [1];
    worker.copy_from(1, other.addr, &mut byte).unwrap();
    assert_eq!(byte, [0], "nothing was copied");
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

// WO-22
/// Host buffers, chip memory and domains of a scope make room for those of the next.
#[test]
#[serial]
fn what_is_dropped_in_a_scope_is_free_at_its_end() {
    for checked in [false, true] {
        let plain = builder(2).sub_workers(1);
        let mut worker = if checked { plain.checked() } else { plain }.build().unwrap();
        let double = worker.register_function("double", double);
        let x = worker.host_buffer::<f32>(4).unwrap();
        x.write(&[1.0; 4]).unwrap();
        worker.init().unwrap();
        let step = |from: &_, to: &_| Args::new().tensor(from, Access::Input).tensor(to, Access::Output);
        let places = worker
            .run(|orch| {
                let mut places = Vec::new();
                for round in 1..4 {
                    places.push(orch.scope(|orch| {
                        let memory = orch.chip_alloc(1, 64)?;
                        orch.copy_to(1, memory.addr(), &[7; 64])?;
                        let domain =
                            orch.allocate_domain("pair", &[0, 1], 4096, &[("x", DType::Float32, 4)])?;
                        orch.scope(|orch| orch.allocate_domain("inner", &[1], 4096, &[]).map(drop))?;
                        assert!(orch.domains().eq(["pair"]), "the inner one ended with its scope");
                        let between = orch.host_buffer::<f32>(4)?.tensor();
                        orch.submit_next_level(double, &step(&x.tensor(), &between), 0)?;
                        orch.submit_sub(double, &step(&between, &x.tensor()))?;
                        Ok((between.addr, memory.addr(), domain.contexts()[0].window_base))
                    })?);
                    assert_eq!(x.to_vec(), [4.0_f32.powi(round); 4], "every task of the scope is done");
                    assert_eq!(orch.domains().count(), 0);
                }
                // Without a scope it is kept until the run is over.
                let kept =
                    [orch.host_buffer::<f32>(4)?.tensor().addr, orch.host_buffer::<f32>(4)?.tensor().addr];
                assert_ne!(kept[0], kept[1]);
                Ok(places)
            })
            .unwrap();
        assert!(places.iter().all(|place| *place == places[0]), "{places:?}");
        worker.close().unwrap();
    }
}

#[test]
#[serial]
fn a_scope_that_fails_fails_its_run_and_the_next_is_clean() {
    let mut worker = plain(2);
    let (double, fails) =
        (worker.register_function("double", double), worker.register_function("fails", fails));
    worker.init().unwrap();
    let x = worker.host_buffer::<f32>(4).unwrap();
    let args = Args::new().tensor(&x.tensor(), Access::InOut);
    for task_fails in [true, false] {
        let ended = worker.run(|orch| {
            let ended = orch.scope(|orch| {
                orch.allocate_domain("pair", &[0, 1], 4096, &[])?;
                match task_fails {
                    true => orch.submit_next_level(fails, &Args::new(), 1).map(drop),
                    false => Err(Failure::new(ErrorCode::Task, "on purpose")),
                }
            });
            assert!(ended.is_err());
            ended
        });
        assert!(text(&ended.unwrap_err()).contains("on purpose"));
        worker.run(|orch| orch.scope(|orch| orch.submit_next_level(double, &args, 0))).unwrap();
    }
    worker.close().unwrap();
}

// WO-23
/// Inputs are there before the first task, outputs on the host when the domain is released, early or with its run.
#[test]
#[serial]
fn buffers_of_a_domain_are_staged_from_the_host_and_back() {
    let mut worker = plain(3);
    let (double, fails) =
        (worker.register_function("double", double), worker.register_function("fails", fails));
    worker.init().unwrap();
    let host = [(); 4].map(|()| worker.host_buffer::<f32>(16).unwrap());
    let [x, y, back_x, back_y] = &host;
    let staging = DomainStaging::new()
        .load_from(0, "x", &x.span())
        .load_from(1, "y", &y.span())
        .store_to(0, "x", &back_x.span())
        .store_to(1, "y", &back_y.span());
    let buffers = [("x", DType::Float32, 16), ("y", DType::Float32, 16)];
    for (round, early) in [false, true, true, false].into_iter().enumerate() {
        x.write(&[round as f32; 16]).unwrap();
        y.write(&[10.0 + round as f32; 16]).unwrap();
        worker
            .run(|orch| {
                let pair = orch.allocate_domain_staged("pair", &[2, 0], 4096, &buffers, &staging)?;
                for (member, name) in pair.contexts().iter().zip(["x", "y"]) {
                    let args = Args::new().tensor(&member.buffer(name)?.tensor()?, Access::InOut);
                    orch.submit_next_level(double, &args, member.chip)?;
                }
                if early {
                    orch.release_domain(&pair)?;
                    assert_eq!(back_x.to_vec(), [2.0 * round as f32; 16]);
                }
                Ok(())
            })
            .unwrap();
        assert_eq!(back_x.to_vec(), [2.0 * round as f32; 16]);
        assert_eq!(back_y.to_vec(), [20.0 + 2.0 * round as f32; 16]);
    }
    // In flight: on the host when the run is over.
    x.write(&[50.0; 16]).unwrap();
    let (_, run) = worker
        .submit_run(|orch| orch.allocate_domain_staged("pair", &[2, 0], 4096, &buffers, &staging).map(drop))
        .unwrap();
    assert_eq!(run.wait(&mut worker, support::secs(60)).unwrap(), RunState::Done);
    assert_eq!(back_x.to_vec(), [50.0; 16]);
    // After a failure nothing is copied back.
    x.write(&[99.0; 16]).unwrap();
    let failed = worker.run(|orch| {
        orch.allocate_domain_staged("pair", &[2, 0], 4096, &buffers, &staging)?;
        orch.submit_next_level(fails, &Args::new(), 1)
    });
    assert!(failed.is_err());
    assert_eq!(back_x.to_vec(), [50.0; 16]);
    worker
        .run(|orch| {
            let wrong = DomainStaging::new().store_to(2, "x", &back_x.span());
            let refused = orch.allocate_domain_staged("pair", &[2, 0], 4096, &buffers, &wrong).unwrap_err();
            assert!(text(&refused).contains("domain `pair`: there is no rank 2"), "{refused}");
            assert_eq!(orch.domains().count(), 0);
            Ok(())
        })
        .unwrap();
    worker.close().unwrap();
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
