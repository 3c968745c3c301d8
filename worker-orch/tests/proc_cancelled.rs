//! A run that follows a cancelled one: kernels that communicate start afresh.
#![allow(missing_docs)]

mod support;

use comm_context::abi::{DType, DeviceAddr};
use comm_context::comm::Membership;
use serial_test::serial;
use std::time::{Duration, Instant};
use support::{builder, kernel, secs, text};
use worker_orch::{Access, Args, ChipConfig, ErrorCode, Failure, Task, Worker, group_bytes};

const CHIPS: usize = 3;
const COUNT: usize = 64;

/// The kernel of the examples, as its users compile it.
const ALLREDUCE: &str =
    concat!("#include \"", env!("CARGO_MANIFEST_DIR"), "/../examples/kernels/allreduce.cpp\"\n");

/// The bytes of the memory of the kernel's group.
fn group() -> usize {
    group_bytes(CHIPS, 0).unwrap()
}

/// Chips with a window for the kernel: the memory of a group, and signals that it does not use.
fn worker() -> Worker {
    let mut worker = builder(CHIPS).run_within(secs(10)).build().unwrap();
    let chip = |rank: usize| {
        ChipConfig::new(rank as i32)
            .communicator(Membership::new(rank as u32, CHIPS as u32).unwrap())
            .window(group() + 8192)
            .region("signals", 4096)
            .buffer("data", DType::Float32, group() / size_of::<f32>())
    };
    worker.configure_chips((0..CHIPS).map(chip).collect()).unwrap();
    worker
}

/// Fails once the kernel on chip 0 is under way: the group's memory in this chip's window changes.
fn refuse(task: &mut Task<'_>) -> Result<(), Failure> {
    let memory = DeviceAddr(task.scalar(0)?);
    let comm = task.chip().and_then(|chip| chip.comm());
    let comm = comm.ok_or_else(|| Failure::new(ErrorCode::Invalid, "no communicator"))?;
    let bytes = || {
        let mut bytes = vec![0; group()];
        comm.read(memory, &mut bytes).map(|()| bytes)
    };
    let (first, started) = (bytes()?, Instant::now());
    while bytes()? == first && started.elapsed() < Duration::from_millis(300) {
        std::thread::yield_now();
    }
    Err(Failure::new(ErrorCode::Task, "refused on purpose"))
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
            .scalar(context.buffer("data").unwrap().addr.0)
            .scalar(context.buffer("signals").unwrap().addr.0)
            .scalar(context.device_ctx.0)
    };
    for round in 0..4 {
        // A rank that is one barrier ahead reads the other half of the data, and waits for ever; so the
        // kernels run an odd number of times between two failures.
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
            let memory = contexts[1].buffer("data").unwrap().addr.0;
            orch.submit_next_level(refuse, &Args::new().scalar(memory), 1).map(drop)
        });
        let reported = text(&reported.unwrap_err());
        assert!(reported.contains("refused on purpose"), "{reported}");
    }
}
