//! Two chips that sum their inputs through each other's windows, with the kernel `kernels/allreduce.cpp`.
//!
//! `cargo run --release --bin hello_collective`

use std::io::{Write, stdout};
use std::path::Path;
use worker_orch::{Access, Args, Element, Failure, Worker, group_bytes};

const LEN: usize = 4;

fn main() -> Result<(), Failure> {
    let mut worker = Worker::builder().devices(&[0, 1]).build()?;
    let sum = worker.register_kernel(Path::new(concat!(env!("OUT_DIR"), "/allreduce.so")))?;
    let buffer = || worker.host_buffer::<f32>(LEN);
    let (inputs, outputs) = ([buffer()?, buffer()?], [buffer()?, buffer()?]);
    inputs[0].write(&[1.0, 2.0, 3.0, 4.0])?;
    inputs[1].write(&[10.0, 20.0, 30.0, 40.0])?;

    worker.init()?;
    worker.run(|orch| {
        // A window on each chip that the other one can read and write, with a named buffer. It is zero at first: a
        // group for the kernel's collectives (comm_collectives.h).
        let bytes = group_bytes(2, 0).unwrap_or(0);
        let pair = orch.allocate_domain("pair", &[0, 1], bytes, &[("group", u8::DTYPE, bytes)])?;
        let tasks = pair.contexts().iter().map(|member| {
            let args = Args::new()
                .tensor(&inputs[member.chip].tensor(), Access::Input)
                .tensor(&outputs[member.chip].tensor(), Access::Output)
                .scalar(member.buffer("group")?.addr.0)
                .scalar(0) // where other kernels have signals of their own
                .scalar(member.device_ctx.0); // the CommContext: this rank, and where all windows are
            Ok((member.chip, args))
        });
        // As a group, so that all its tasks run at once: they wait for each other inside the kernel.
        orch.submit_group(sum, &tasks.collect::<Result<Vec<_>, Failure>>()?)
    })?;
    worker.close()?;

    for (chip, output) in outputs.iter().enumerate() {
        let _ = writeln!(stdout(), "chip {chip} has the sum {:?}", output.to_vec());
        assert_eq!(output.to_vec(), [11.0, 22.0, 33.0, 44.0]);
    }
    Ok(())
}
