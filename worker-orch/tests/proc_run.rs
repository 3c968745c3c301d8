//! Runs on real processes: tasks, order, failures, memory, domains, levels.
#![allow(missing_docs)]

mod support;

use comm_context::abi::{DType, DeviceAddr};
use serial_test::serial;
use std::time::Duration;
use support::{builder, grouped, kernel, plain, platform, says, secs, text, traces};
use worker_orch::{Access, Args, ErrorCode, Failure, Orchestrator, Platform, Task, Worker, flat_tensor};

fn nothing(_: &mut Task<'_>) -> Result<(), Failure> {
    Ok(())
}

/// Adds the scalar to every element.
fn add(task: &mut Task<'_>) -> Result<(), Failure> {
    let amount = task.scalar(0)? as f32;
    let sum: Vec<f32> = task.read::<f32>(0)?.iter().map(|x| x + amount).collect();
    task.write(0, &sum)
}

/// Sleeps, then doubles: a reader that does not wait for it sees the old value.
fn slow_double(task: &mut Task<'_>) -> Result<(), Failure> {
    std::thread::sleep(Duration::from_millis(20));
    let double: Vec<f32> = task.read::<f32>(0)?.iter().map(|x| x * 2.0).collect();
    task.write(0, &double)
}

fn copy(task: &mut Task<'_>) -> Result<(), Failure> {
    task.write(1, &task.read::<f32>(0)?)
}

fn refuse(_: &mut Task<'_>) -> Result<(), Failure> {
    Err(Failure::new(ErrorCode::Task, "it does not want to"))
}

fn panics(_: &mut Task<'_>) -> Result<(), Failure> {
    panic!("a bug in the task")
}

#[test]
#[serial]
fn wo3_tasks_on_different_chips_wait_for_what_they_need() {
    let mut worker = plain(3);
    let (add, double, copy) = (
        worker.register_function("add", add),
        worker.register_function("slow_double", slow_double),
        worker.register_function("copy", copy),
    );
    let (x, y) = (worker.host_buffer::<f32>(8).unwrap(), worker.host_buffer::<f32>(8).unwrap());
    worker.init().unwrap();
    x.write(&[1.0; 8]).unwrap();
    worker
        .run(|orch| {
            let both = |access| Args::new().tensor(&x.tensor(), access);
            orch.submit_next_level(double, &both(Access::InOut), 0)?;
            // Read after write, on another chip.
            let through = both(Access::Input).tensor(&y.tensor(), Access::Output);
            orch.submit_next_level(copy, &through, 1)?;
            // Write after read, on a third.
            orch.submit_next_level(add, &both(Access::InOut).scalar(5), 2)?;
            orch.submit_next_level(double, &both(Access::InOut), 1)
        })
        .unwrap();
    // WO-3
    assert_eq!((y.to_vec(), x.to_vec()), (vec![2.0; 8], vec![14.0; 8]));
}

#[test]
#[serial]
fn wo3_a_task_does_not_run_when_what_it_needs_failed() {
    let mut worker = plain(3);
    let (add, refuse) = (worker.register_function("add", add), worker.register_function("refuse", refuse));
    let (x, other) = (worker.host_buffer::<f32>(4).unwrap(), worker.host_buffer::<f32>(4).unwrap());
    worker.init().unwrap();
    let on = |tensor, access| Args::new().tensor(&tensor, access).scalar(1);
    let reported = worker
        .run(|orch| {
            orch.submit_next_level(refuse, &on(x.tensor(), Access::InOut), 0)?;
            // On another chip, and behind it on the same.
            let _ = orch.submit_next_level(add, &on(x.tensor(), Access::InOut), 1);
            let _ = orch.submit_next_level(add, &on(x.tensor(), Access::InOut), 0);
            Ok(())
        })
        .unwrap_err();
    assert_eq!(x.to_vec(), [0.0; 4]);
    let reported = text(&reported);
    assert!(
        reported.contains("`refuse` failed on chip 0") && reported.contains("it does not want to"),
        "{reported}"
    );
    // WO-4: the next run starts clean, on every chip.
    worker
        .run(|orch| {
            orch.submit_next_level(add, &on(x.tensor(), Access::InOut), 0)?;
            orch.submit_next_level(add, &on(other.tensor(), Access::InOut), 1)
        })
        .unwrap();
    assert_eq!((x.to_vec(), other.to_vec()), (vec![1.0; 4], vec![1.0; 4]));
}

#[test]
#[serial]
fn f33_every_kind_of_failure_reaches_run_and_later_submits() {
    // WO-2
    let mut worker = plain(2);
    let programs = [
        (worker.register_function("refuse", refuse), "it does not want to"),
        (worker.register_function("panics", panics), "a bug in the task"),
        (worker.register_function("add", add), "there is no scalar 0"),
    ];
    let nothing = worker.register_function("nothing", nothing);
    worker.init().unwrap();
    for (program, word) in programs {
        let mut late = None;
        let reported = worker
            .run(|orch| {
                orch.submit_next_level(program, &Args::new(), 1)?;
                // Sooner or later a submit fails with it.
                for _ in 0..10_000 {
                    if let Err(failure) = orch.submit_next_level(nothing, &Args::new(), 1) {
                        late = Some(failure);
                        break;
                    }
                }
                Ok(())
            })
            .unwrap_err();
        assert!(text(&reported).contains(word), "{}", text(&reported));
        assert!(late.is_none_or(|failure| text(&failure).contains(word)));
        worker.run(|orch| orch.submit_next_level(nothing, &Args::new(), 1)).unwrap();
    }
}

#[test]
#[serial]
fn f47_runs_and_workers_without_work_return_at_once() {
    let mut worker = plain(2);
    worker.init().unwrap();
    worker.run(|_| Ok(())).unwrap();
    worker.close().unwrap();
    let mut nobody = Worker::builder().build().unwrap();
    nobody.init().unwrap();
    nobody.run(|_| Ok(())).unwrap();
    nobody.close().unwrap();
}

#[test]
#[serial]
fn f48_host_buffers_made_after_start_up_are_there_on_every_chip() {
    // WO-7
    let mut worker = plain(2);
    let add = worker.register_function("add", add);
    worker.init().unwrap();
    for round in 0..50 {
        let late = worker.host_buffer::<f32>(1000 * (round + 1)).unwrap();
        let args = Args::new().tensor(&late.tensor(), Access::InOut).scalar(round as u64);
        worker.run(|orch| orch.submit_next_level(add, &args, round % 2)).unwrap();
        assert!(late.to_vec().iter().all(|x| *x == round as f32));
    }
}

#[test]
#[serial]
fn functions_registered_after_init_are_refused_unless_the_children_have_them() {
    // WO-24
    let mut worker = Worker::builder().devices(&[0]).sub_workers(1).build().unwrap();
    worker.register_function("add", add);
    worker.init().unwrap();
    // The same function under another name is in the table that the children inherited.
    let again = worker.register_function("add again", add);
    let late = worker.register_function("copy", copy);
    let x = worker.host_buffer::<f32>(1).unwrap();
    let args = Args::new().tensor(&x.tensor(), Access::InOut).scalar(3);
    for _ in 0..2 {
        says(
            worker.run(|orch| orch.submit_next_level(late, &args, 0)),
            "in submit: invalid argument: `copy` was registered after init, and the processes forked then do not have it; \
             register it before init, or close the Worker and initialise it again (functions passed to serve_if_child can be \
             registered at any time)",
        );
        assert!(worker.run(|orch| orch.submit_sub(late, &args)).is_err());
        worker.run(|orch| orch.submit_next_level(again, &args, 0)).unwrap();
    }
    assert_eq!(x.to_vec(), [6.0]);
    worker.close().unwrap();
    worker.init().unwrap();
    let through = Args::new().tensor(&x.tensor(), Access::Input).tensor(&x.tensor(), Access::InOut);
    worker.run(|orch| orch.submit_next_level(late, &through, 0)).unwrap();
}

#[test]
#[serial]
fn wo5_a_full_ring_makes_submits_wait() {
    // WO-5
    let mut worker = plain(2);
    let add = worker.register_function("add", add);
    let x = worker.host_buffer::<f32>(1).unwrap();
    worker.init().unwrap();
    worker
        .run(|orch| {
            let args = Args::new().tensor(&x.tensor(), Access::InOut).scalar(1);
            (0..5000).try_for_each(|step| orch.submit_next_level(add, &args, step % 2).map(drop))
        })
        .unwrap();
    assert_eq!(x.to_vec(), [5000.0]);
}

#[test]
#[serial]
fn sub_workers_run_functions_and_refuse_kernels() {
    let folder = tempfile::tempdir().unwrap();
    let so =
        kernel(folder.path(), "empty", "#include <cstdint>\nextern \"C\" void kernel_entry(int64_t *) {}\n");
    let mut worker = Worker::builder().sub_workers(3).run_within(secs(60)).build().unwrap();
    let add = worker.register_function("add", add);
    let empty = worker.register_kernel(&so).unwrap();
    let parts: Vec<_> = (0..9).map(|_| worker.host_buffer::<f32>(2).unwrap()).collect();
    worker.init().unwrap();
    worker
        .run(|orch| {
            parts.iter().enumerate().try_for_each(|(index, part)| {
                let args = Args::new().tensor(&part.tensor(), Access::InOut).scalar(index as u64);
                orch.submit_sub(add, &args).map(drop)
            })
        })
        .unwrap();
    assert!(parts.iter().enumerate().all(|(index, part)| part.to_vec() == [index as f32; 2]));
    let reported = worker.run(|orch| orch.submit_sub(empty, &Args::new())).unwrap_err();
    assert!(text(&reported).contains("a kernel cannot run on a sub-worker"), "{}", text(&reported));
    let reported = worker.run(|orch| orch.submit_next_level(add, &Args::new(), 0)).unwrap_err();
    assert!(text(&reported).contains("there is no chip 0"), "{}", text(&reported));
}

/// Adds the peers' `data` into the output, with a barrier before and after.
const SUM_KERNEL: &str = r#"
#include "comm_kernel.h"
#include "tensor.h"
extern "C" void kernel_entry(int64_t *args) {
    auto *out_desc = reinterpret_cast<TensorDesc *>(args[0]);
    auto *ctx = reinterpret_cast<CommContext *>(args[1]);
    auto *data = reinterpret_cast<float *>(args[2]);
    auto *barrier = reinterpret_cast<CommPhaseBarrier *>(args[3]);
    auto count = static_cast<size_t>(args[4]);
    auto *out = tensor_data<float>(out_desc);
    for (size_t i = 0; i < count; ++i) data[i] = static_cast<float>(i) + 100.0f * static_cast<float>(ctx->rankId);
    if (!comm_phase_barrier(ctx, barrier)) return;
    for (size_t i = 0; i < count; ++i) out[i] = 0.0f;
    for (uint32_t peer = 0; peer < ctx->rankNum; ++peer) comm_add(out, CommRemotePtr(ctx, data, static_cast<int>(peer)), count);
    if (!comm_phase_barrier(ctx, barrier)) return;
}
"#;

/// Stores the sum of its scalars.
const SCALAR_KERNEL: &str = r#"
#include "tensor.h"
extern "C" void add_up(int64_t *args) {
    *tensor_data<int64_t>(reinterpret_cast<TensorDesc *>(args[0])) = args[1] + args[2];
}
"#;

#[test]
#[serial]
fn kernels_in_cpp_give_right_results_on_many_chips() {
    let folder = tempfile::tempdir().unwrap();
    let sum = kernel(folder.path(), "sum", SUM_KERNEL);
    let scalar = kernel(folder.path(), "scalar", SCALAR_KERNEL);
    for chips in [2, 4, 8, 16] {
        let count = 256;
        let mut worker = grouped(chips, count);
        let sum = worker.register_kernel(&sum).unwrap();
        worker.init().unwrap();
        // Registered after init.
        let add_up = worker.register_kernel_symbol(&scalar, "add_up").unwrap();
        let outs: Vec<_> = (0..chips).map(|_| worker.host_buffer::<f32>(count).unwrap()).collect();
        let cells: Vec<_> = (0..chips).map(|_| worker.host_buffer::<i64>(1).unwrap()).collect();
        let contexts = worker.chip_contexts().unwrap().to_vec();
        for _ in 0..3 {
            worker
                .run(|orch| {
                    let members: Vec<(usize, Args)> = contexts
                        .iter()
                        .zip(&outs)
                        .enumerate()
                        .map(|(chip, (context, out))| {
                            let args = Args::new()
                                .tensor(&out.tensor(), Access::Output)
                                .scalar(context.device_ctx.0)
                                .scalar(context.buffer("data")?.addr.0)
                                .scalar(context.buffer("barrier")?.addr.0)
                                .scalar(count as u64);
                            Ok((chip, args))
                        })
                        .collect::<Result<_, Failure>>()?;
                    orch.submit_group(sum, &members)?;
                    cells.iter().enumerate().try_for_each(|(chip, cell)| {
                        let args =
                            Args::new().tensor(&cell.tensor(), Access::Output).scalar(40).scalar(chip as u64);
                        orch.submit_next_level(add_up, &args, chip).map(drop)
                    })
                })
                .unwrap();
            let n = chips as f32;
            let golden: Vec<f32> = (0..count).map(|i| n * i as f32 + 100.0 * n * (n - 1.0) / 2.0).collect();
            assert!(outs.iter().all(|out| out.to_vec() == golden), "{chips} chips");
            assert!(cells.iter().enumerate().all(|(chip, cell)| cell.to_vec() == [40 + chip as i64]));
        }
        // CS-5: the parent reads the windows where they are.
        let data = contexts[1].buffer("data").unwrap();
        let mut bytes = [0; 8];
        worker.copy_from(1, data.addr, &mut bytes).unwrap();
        assert_eq!(bytes, bytemuck::cast::<[f32; 2], [u8; 8]>([100.0, 101.0]));
    }
}

#[test]
#[serial]
fn missing_kernels_are_named_when_they_are_registered_or_used() {
    let folder = tempfile::tempdir().unwrap();
    let so = kernel(folder.path(), "scalar", SCALAR_KERNEL);
    let mut worker = plain(1);
    worker.init().unwrap();
    let reported = text(&worker.register_kernel(&folder.path().join("no.so")).unwrap_err());
    assert!(reported.contains("no.so") && reported.contains("check the path"), "{reported}");
    // Only the device can load a file that is made for it.
    let mut refused = |file: &std::path::Path| {
        let program = worker.register_kernel(file);
        text(
            &program
                .and_then(|program| {
                    worker.run(|orch| orch.submit_next_level(program, &Args::new(), 0)).map(drop)
                })
                .unwrap_err(),
        )
    };
    let reported = refused(&so);
    assert!(reported.contains("kernel_entry") && reported.contains("scalar.so"), "{reported}");
    let not_a_library = folder.path().join("text.so");
    std::fs::write(&not_a_library, "not a library").unwrap();
    let reported = refused(&not_a_library);
    assert!(reported.contains("text.so"), "{reported}");
    assert!(platform() != Platform::Sim || reported.contains("shared object"), "{reported}");
}

#[test]
#[serial]
fn chip_memory_is_the_chips_and_copies_are_real() {
    let mut worker = plain(2);
    let add = worker.register_function("add", add);
    worker.init().unwrap();
    let memory = worker.chip_alloc(1, 64).unwrap();
    worker.copy_to(1, memory.addr(), bytemuck::bytes_of(&[1.0_f32; 16])).unwrap();
    let tensor = flat_tensor(memory.addr(), DType::Float32, 16).unwrap();
    let args = Args::new().tensor(&tensor, Access::InOut).scalar(9);
    worker.run(|orch| orch.submit_next_level(add, &args, 1)).unwrap();
    let mut back = [0.0_f32; 16];
    worker.copy_from(1, memory.addr(), bytemuck::bytes_of_mut(&mut back)).unwrap();
    assert_eq!(back, [10.0; 16]);
    for (chip, addr, word) in
        [(1, 0, "not inside"), (1, u64::MAX, "not inside"), (7, memory.addr().0, "no chip 7")]
    {
        let reported = text(&worker.copy_from(chip, DeviceAddr(addr), &mut [0; 8]).unwrap_err());
        assert!(reported.contains(word), "{reported}");
    }
    assert!(worker.chip_alloc(9, 8).is_err() && worker.chip_alloc(0, 0).is_err());
}

#[test]
#[serial]
fn f27_domains_overlap_and_go_when_the_run_has_drained() {
    // WO-8, with chips that have no configuration: the base group is made when the first domain needs it.
    let folder = tempfile::tempdir().unwrap();
    let sum = kernel(folder.path(), "sum", SUM_KERNEL);
    for mut worker in [plain(3), grouped(3, 16)] {
        let sum = worker.register_kernel(&sum).unwrap();
        let refuse = worker.register_function("refuse", refuse);
        let outs: Vec<_> = (0..4).map(|_| worker.host_buffer::<f32>(16).unwrap()).collect();
        worker.init().unwrap();
        let mut places = Vec::new();
        for round in 0..20 {
            let reported = worker.run(|orch| {
                let buffers = [("data", DType::Float32, 16), ("barrier", DType::Uint8, 4096)];
                let left = orch.allocate_domain("left", &[0, 1], 8192, &buffers)?;
                let right = orch.allocate_domain("right", &[2, 1], 8192, &buffers)?;
                places.push([&left, &right].map(|domain| domain.contexts()[1].window_base));
                for (domain, outs) in [(&left, &outs[..2]), (&right, &outs[2..])] {
                    let members: Vec<(usize, Args)> = domain
                        .contexts()
                        .iter()
                        .zip(outs)
                        .map(|(member, out)| {
                            let args = Args::new()
                                .tensor(&out.tensor(), Access::Output)
                                .scalar(member.device_ctx.0)
                                .scalar(member.buffer("data").unwrap().addr.0)
                                .scalar(member.buffer("barrier").unwrap().addr.0)
                                .scalar(16);
                            (member.chip, args)
                        })
                        .collect();
                    orch.submit_group(sum, &members)?;
                }
                if round % 2 == 1 {
                    orch.submit_next_level(refuse, &Args::new(), 1)?;
                }
                Ok(())
            });
            assert_eq!(reported.is_err(), round % 2 == 1, "{reported:?}");
            let golden: Vec<f32> = (0..16).map(|i| 2.0 * i as f32 + 100.0).collect();
            assert!(outs.iter().all(|out| out.to_vec() == golden), "round {round}");
        }
        // Where a device puts its memory is its own affair.
        assert!(
            platform() != Platform::Sim || places.iter().all(|place| *place == places[0]),
            "what was released is used again: {places:?}"
        );
        // Sizes and members are checked before anything is made.
        worker
            .run(|orch| {
                let big = [("data", DType::Float32, 4096)];
                assert!(
                    text(&orch.allocate_domain("d", &[0, 1], 64, &big).unwrap_err())
                        .contains("need 16384 bytes")
                );
                assert!(orch.allocate_domain("d", &[], 64, &[]).is_err());
                assert!(orch.allocate_domain("d", &[0, 0], 64, &[]).is_err());
                assert!(orch.allocate_domain("d", &[5], 64, &[]).is_err());
                assert!(orch.allocate_domain("d", &[0], 0, &[]).is_err());
                Ok(())
            })
            .unwrap();
    }
}

fn fan_out(orch: &mut Orchestrator<'_>, task: &Task<'_>) -> Result<(), Failure> {
    let program = worker_orch::Program::from_number(task.scalar(0)? as u32);
    for chip in 0..orch.chips() {
        let args = task.tensors().iter().fold(Args::new(), |args, tensor| args.tensor(tensor, Access::InOut));
        orch.submit_next_level(program, &args.scalar(1), chip)?;
    }
    Ok(())
}

#[test]
#[serial]
fn a_worker_of_workers_runs_tasks_three_levels_down_and_errors_come_back_with_every_name() {
    let chip_level = |program: worker_orch::TaskFn, name: &str| {
        let mut worker = plain(2);
        let program = worker.register_function(name, program);
        (worker, program)
    };
    let (good, add_number) = chip_level(add, "add");
    let (bad, refuse_number) = chip_level(refuse, "refuse");
    let mut middle = Worker::builder().level(4).build().unwrap();
    let below = middle.register_orchestration("fan_out", fan_out);
    middle.add_worker(good).unwrap();
    middle.add_worker(bad).unwrap();
    let mut top = Worker::builder().level(5).build().unwrap();
    let relay = top.register_orchestration("relay", relay);
    top.add_worker(middle).unwrap();
    let x = top.host_buffer::<f32>(2).unwrap();
    top.init().unwrap();
    let args = |to: u64, program: worker_orch::Program| {
        Args::new()
            .tensor(&x.tensor(), Access::InOut)
            .scalar(to)
            .scalar(below.number().into())
            .scalar(program.number().into())
    };
    top.run(|orch| orch.submit_next_level(relay, &args(0, add_number), 0)).unwrap();
    assert_eq!(x.to_vec(), [2.0, 2.0]);
    let reported =
        text(&top.run(|orch| orch.submit_next_level(relay, &args(1, refuse_number), 0)).unwrap_err());
    for name in [
        "`relay` failed on worker 0",
        "`fan_out` failed on worker 1",
        "`refuse` failed on chip",
        "does not want to",
    ] {
        assert!(reported.contains(name), "{name} is missing:\n{reported}");
    }
    top.close().unwrap();
}

fn relay(orch: &mut Orchestrator<'_>, task: &Task<'_>) -> Result<(), Failure> {
    let program = worker_orch::Program::from_number(task.scalar(1)? as u32);
    let args = task.tensors().iter().fold(Args::new(), |args, tensor| args.tensor(tensor, Access::InOut));
    orch.submit_next_level(program, &args.scalar(task.scalar(2)?), task.scalar(0)? as usize).map(drop)
}

#[test]
#[serial]
fn a_trace_has_a_track_for_every_chip() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.json");
    let mut worker = builder(2).trace(&file).build().unwrap();
    let nothing = worker.register_function("nothing", nothing);
    worker.init().unwrap();
    worker
        .run(|orch| {
            (0..300).try_for_each(|step| orch.submit_next_level(nothing, &Args::new(), step % 2).map(drop))
        })
        .unwrap();
    worker.close().unwrap();
    let trace = std::fs::read_to_string(&file).unwrap();
    assert_eq!(trace.matches("\"name\":\"nothing\"").count(), 300);
    assert!(trace.contains("chip 0") && trace.contains("chip 1"), "{trace}");
}

#[test]
#[serial]
fn ten_workers_in_a_row_leave_nothing() {
    let before = traces();
    for chips in 1..=10 {
        let mut worker = plain(chips);
        worker.init().unwrap();
        worker.run(|_| Ok(())).unwrap();
    }
    assert_eq!(traces(), before);
}
