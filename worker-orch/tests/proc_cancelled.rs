//! Runs around a cancelled one: kernels of the one in front go on, and in the next those that communicate start afresh.
#![allow(missing_docs)]

mod support;

use comm_context::abi::{CommContext, DeviceAddr};
use comm_context::comm::Membership;
use serial_test::serial;
use std::time::{Duration, Instant};
use support::{builder, grouped, kernel, secs, text};
use worker_orch::{
    Access, Args, ChipConfig, ErrorCode, Failure, HostBuffer, RunState, Task, Timeout, Worker, group_bytes,
};

const CHIPS: usize = 3;
const COUNT: usize = 64;

/// The kernel of the examples, as its users compile it.
const ALLREDUCE: &str =
    concat!("#include \"", env!("CARGO_MANIFEST_DIR"), "/../examples/kernels/allreduce.cpp\"\n");

/// Chips with a window for the kernel's group.
fn worker() -> Worker {
    let mut worker = builder(CHIPS).run_within(secs(10)).build().unwrap();
    let group = group_bytes(CHIPS, 0).unwrap();
    let chip = |rank: usize| {
        ChipConfig::new(rank as i32)
            .communicator(Membership::new(rank as u32, CHIPS as u32).unwrap())
            .window(group)
            .region("group", group)
    };
    worker.configure_chips((0..CHIPS).map(chip).collect()).unwrap();
    worker
}

/// Fails once the kernel on chip 0 is inside its call: it has published the call's first step in its own window.
fn refuse(task: &mut Task<'_>) -> Result<(), Failure> {
    let (group, context_at) = (task.scalar(0)?, DeviceAddr(task.scalar(1)?));
    let comm = task.chip().and_then(|chip| chip.comm());
    let comm = comm.ok_or_else(|| Failure::new(ErrorCode::Invalid, "no communicator"))?;
    let mut bytes = [0; size_of::<CommContext>()];
    comm.read(context_at, &mut bytes)?;
    let context = CommContext::decode(&bytes).map_err(|error| wrong(&error.to_string()))?;
    let offset = group - context.windows_in[context.rank_id as usize];
    // The lines of its progress are in the group's first page.
    let page = || {
        let mut page = [0; 2048];
        comm.read(DeviceAddr(context.windows_in[0] + offset), &mut page).map(|()| page)
    };
    let (first, started) = (page()?, Instant::now());
    while page()? == first && started.elapsed() < Duration::from_millis(300) {
        std::thread::yield_now();
    }
    Err(wrong("refused on purpose"))
}

fn wrong(text: &str) -> Failure {
    Failure::new(ErrorCode::Task, text)
}

// CC-9
#[test]
#[serial]
fn f52_a_kernel_that_communicates_is_right_after_a_cancelled_run() {
    let folder = tempfile::tempdir().unwrap();
    let so = kernel(folder.path(), "allreduce", ALLREDUCE);
    let mut worker = worker();
    let allreduce = worker.register_kernel(&so).unwrap();
    let refuse = worker.register_function("refuse", refuse);
    let inputs: Vec<_> = (0..CHIPS).map(|_| worker.host_buffer::<f32>(COUNT).unwrap()).collect();
    let outputs: Vec<_> = (0..CHIPS).map(|_| worker.host_buffer::<f32>(COUNT).unwrap()).collect();
    worker.init().unwrap();
    let contexts = worker.chip_contexts().unwrap().to_vec();
    let args = |chip: usize| {
        let context = &contexts[chip];
        Args::new()
            .tensor(&inputs[chip].tensor(), Access::Input)
            .tensor(&outputs[chip].tensor(), Access::OutputExisting)
            .scalar(context.buffer("group").unwrap().addr.0)
            .scalar(0)
            .scalar(context.device_ctx.0)
    };
    for round in 0..4 {
        // Chip 0 is a call ahead after each failure: a group that did not start again would mistake that step for a later one.
        for more in 0..3 {
            for (chip, input) in inputs.iter().enumerate() {
                let value = (round * 10 + more + chip) as f32;
                input.write(&[value; COUNT]).unwrap();
            }
            let members: Vec<(usize, Args)> = (0..CHIPS).map(|chip| (chip, args(chip))).collect();
            worker.run(|orch| orch.submit_group(allreduce, &members).map(drop)).unwrap();
            let sum = (CHIPS * (round * 10 + more) + CHIPS * (CHIPS - 1) / 2) as f32;
            for (chip, output) in outputs.iter().enumerate() {
                assert_eq!(output.to_vec(), [sum; COUNT], "chip {chip}, round {round}, run {more}");
            }
        }
        let reported = worker.run(|orch| {
            orch.submit_next_level(allreduce, &args(0), 0)?;
            let group = contexts[1].buffer("group").unwrap().addr.0;
            let args = Args::new().scalar(group).scalar(contexts[1].device_ctx.0);
            orch.submit_next_level(refuse, &args, 1).map(drop)
        });
        let reported = text(&reported.unwrap_err());
        assert!(reported.contains("refused on purpose"), "{reported}");
    }
}

/// The group's memory is larger than what is left of the window: the kernel's task fails, and no process is hurt.
// CO-12
#[test]
#[serial]
fn a_group_that_does_not_fit_in_the_window_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let so = kernel(folder.path(), "allreduce", ALLREDUCE);
    let mut worker = worker();
    let allreduce = worker.register_kernel(&so).unwrap();
    let buffer = worker.host_buffer::<f32>(COUNT).unwrap();
    let output = worker.host_buffer::<f32>(COUNT).unwrap();
    worker.init().unwrap();
    let contexts = worker.chip_contexts().unwrap().to_vec();
    // A device may give a window more than was asked for.
    let least = if support::platform() == worker_orch::Platform::Sim { 64 } else { 1 << 29 };
    for outside in [least, 1 << 30, u64::MAX - 63] {
        let members = contexts.iter().enumerate().map(|(chip, context)| {
            let args = Args::new()
                .tensor(&buffer.tensor(), Access::Input)
                .tensor(&output.tensor(), Access::OutputExisting)
                .scalar(context.buffer("group").unwrap().addr.0.wrapping_add(outside))
                .scalar(0)
                .scalar(context.device_ctx.0);
            (chip, args)
        });
        let members: Vec<(usize, Args)> = members.collect();
        let refused = worker.run(|orch| orch.submit_group(allreduce, &members).map(drop)).unwrap_err();
        let refused = text(&refused);
        assert!(refused.contains("the kernel reports error 1 in its completion slab"), "{refused}");
    }
    worker.close().unwrap();
}

/// Returns when its tensor is not 0.
fn hold(task: &mut Task<'_>) -> Result<(), Failure> {
    while task.read::<f32>(0)?[0] == 0.0 {
        std::thread::sleep(Duration::from_micros(200));
    }
    Ok(())
}

fn put(task: &mut Task<'_>) -> Result<(), Failure> {
    task.write(0, &[1.0_f32])
}

/// Waits in a barrier of kernels, and says in its tensor that it has begun, and whether all ranks came.
const ALL_CAME: &str = r#"
#include "comm_kernel.h"
#include "tensor.h"
extern "C" void kernel_entry(int64_t *args) {
    auto *out = tensor_data<float>(reinterpret_cast<TensorDesc *>(args[0]));
    auto *context = reinterpret_cast<CommContext *>(args[1]);
    *static_cast<volatile float *>(out) = 1;
    *out = comm_phase_barrier(context, reinterpret_cast<CommPhaseBarrier *>(args[2])) ? 2 : 3;
}
"#;

// WO-19
#[test]
#[serial]
fn f46_kernels_of_a_run_in_front_of_a_cancelled_one_go_on() {
    if support::platform() != worker_orch::Platform::Sim {
        // What a kernel on a device writes to a host buffer is there when it has ended.
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut worker = grouped(2, 16);
    let barrier = worker.register_kernel(&kernel(folder.path(), "all_came", ALL_CAME)).unwrap();
    let (hold, put) = (worker.register_function("hold", hold), worker.register_function("put", put));
    let [gate, first, second, x] = [(); 4].map(|()| worker.host_buffer::<f32>(1).unwrap());
    worker.init().unwrap();
    let contexts = worker.chip_contexts().unwrap().to_vec();
    let args = |chip: usize, out: &HostBuffer<f32>| {
        let context = &contexts[chip];
        let args = Args::new().tensor(&out.tensor(), Access::Output);
        args.scalar(context.device_ctx.0).scalar(context.buffer("barrier").unwrap().addr.0)
    };
    let held = Args::new().tensor(&gate.tensor(), Access::Input);
    let written = Args::new().tensor(&x.tensor(), Access::Output);
    // Chip 0 waits in the barrier for chip 1, which is held.
    let (_, front) = worker
        .submit_run(|orch| {
            orch.submit_next_level(barrier, &args(0, &first), 0)?;
            orch.submit_next_level(hold, &held, 1)?;
            orch.submit_next_level(barrier, &args(1, &second), 1)
        })
        .unwrap();
    let (_, run) = worker.submit_run(|orch| orch.submit_next_level(put, &written, 0)).unwrap();
    while first.to_vec() == [0.0] {
        std::thread::yield_now();
    }
    run.cancel(&mut worker).unwrap();
    // What is missed by the cancel, the wait would do.
    assert_eq!(
        front.wait(&mut worker, Timeout::new(Duration::from_millis(20)).unwrap()).unwrap(),
        RunState::UnderWay
    );
    gate.write(&[1.0]).unwrap();
    assert_eq!(front.wait(&mut worker, secs(60)).unwrap(), RunState::Done);
    assert_eq!((first.to_vec(), second.to_vec()), (vec![2.0], vec![2.0]), "they met");
    assert_eq!(run.wait(&mut worker, secs(60)).unwrap_err().code, ErrorCode::Aborted);
    assert_eq!(x.to_vec(), [0.0]);
}
