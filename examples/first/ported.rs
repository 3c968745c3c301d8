//! simpler's `allreduce_distributed` in Rust, as docs/coming-from-simpler.md goes through it.
//!
//! `cargo run --release --bin ported KERNEL.so`

use std::path::Path;
use worker_orch::{Access, Args, DType, Failure, HostBuffer, Signature, Worker};

const COUNT: usize = 256;

fn main() -> Result<(), Failure> {
    let devices = [0, 1];
    let nranks = devices.len();
    let mut worker = Worker::builder().devices(&devices).build()?;

    // 3 tensors and 2 scalars; a task with anything else is refused when it is submitted.
    let kernel = std::env::args().nth(1).unwrap_or("allreduce_onephase_kernel.so".to_owned());
    let allreduce = worker.register_kernel(Path::new(&kernel))?;
    let signature = Signature::new()
        .tensor_of(Access::Input, DType::Float32, COUNT as u64)
        .tensor_of(Access::OutputExisting, DType::Float32, COUNT as u64)
        .tensor(Access::InOut, DType::Float32)
        .scalars(2);
    worker.set_signature(allreduce, signature)?;

    let host = || (0..nranks).map(|_| worker.host_buffer::<f32>(COUNT)).collect::<Result<Vec<_>, _>>();
    let (inputs, outputs): (Vec<HostBuffer<f32>>, _) = (host()?, host()?);
    for (rank, input) in inputs.iter().enumerate() {
        input.write(&(0..COUNT).map(|i| (i + 100 * rank) as f32).collect::<Vec<_>>())?;
    }

    worker.init()?;
    worker.run(|orch| {
        let chips: Vec<usize> = (0..orch.chips()).collect();
        // Behind the floats that kernel has 16 signals.
        let domain =
            orch.allocate_domain("default", &chips, 4096, &[("scratch", DType::Float32, COUNT + 16)])?;
        let mut group = Vec::new();
        for member in domain.contexts() {
            let args = Args::new()
                .tensor(&inputs[member.chip].tensor(), Access::Input)
                .tensor(&outputs[member.chip].tensor(), Access::OutputExisting)
                .tensor(&member.buffer("scratch")?.tensor()?, Access::InOut)
                .scalar(u64::from(member.nranks))
                .scalar(member.device_ctx.0);
            group.push((member.chip, args));
        }
        orch.submit_group(allreduce, &group)
    })?;

    for (rank, output) in outputs.iter().enumerate() {
        let expected = (0..COUNT).map(|i| (nranks * i + 100 * nranks * (nranks - 1) / 2) as f32);
        assert!(output.to_vec().into_iter().eq(expected), "rank {rank}");
    }
    worker.close()
}
