//! Three chips whose inputs are staged into their windows, and one of them, the root, sums all of them:
//! `kernels/staged_reduce.cpp` gets five scalars and no tensor.
//!
//! `cargo run --release --bin hello_staged`

use std::io::{Write, stdout};
use std::path::Path;
use worker_orch::{Args, ChipConfig, DType, Failure, HostBuffer, Membership, Signature, Worker};

const CHIPS: usize = 3;
const COUNT: usize = 256;
const ROOT: usize = 1;

fn main() -> Result<(), Failure> {
    let mut worker = Worker::builder().devices(&[0, 1, 2]).build()?;
    let reduce = worker.register_kernel(Path::new(concat!(env!("OUT_DIR"), "/staged_reduce.so")))?;
    // A task with fewer would be refused, where the kernel would read what is not there.
    worker.set_signature(reduce, Signature::new().scalars(5))?;

    let host = || (0..CHIPS).map(|_| worker.host_buffer::<f32>(COUNT)).collect::<Result<Vec<_>, _>>();
    let (inputs, outputs): (Vec<HostBuffer<f32>>, _) = (host()?, host()?);
    for (rank, input) in inputs.iter().enumerate() {
        input.write(&(0..COUNT).map(|i| (i + 100 * rank) as f32).collect::<Vec<_>>())?;
    }
    let chip = |rank: usize| -> Result<ChipConfig, Failure> {
        let member = Membership::new(rank as u32, CHIPS as u32).map_err(worker_orch::CommError::from)?;
        let window = ChipConfig::new(rank as i32).communicator(member).window(4096);
        let input = window.buffer("input", DType::Float32, COUNT).load_from(&inputs[rank].span());
        Ok(input.buffer("output", DType::Float32, COUNT).store_to(&outputs[rank].span()))
    };
    worker.configure_chips((0..CHIPS).map(chip).collect::<Result<_, _>>()?)?;

    worker.init()?; // the inputs are in the windows when it returns
    let chips = worker.chip_contexts()?.to_vec();
    worker.run(|orch| {
        for (number, chip) in chips.iter().enumerate() {
            let (input, output) = (chip.buffer("input")?.addr.0, chip.buffer("output")?.addr.0);
            let scalars = [input, output, u64::from(chip.nranks), ROOT as u64, chip.device_ctx.0];
            let args = scalars.into_iter().fold(Args::new(), Args::scalar);
            orch.submit_next_level(reduce, &args, number)?;
        }
        Ok(())
    })?;

    // The sum is in the root's window and, because of `store_to`, on the host.
    let mut bytes = [0; COUNT * size_of::<f32>()];
    worker.copy_from(ROOT, chips[ROOT].buffer("output")?.addr, &mut bytes)?;
    worker.close()?;
    let sum: Vec<f32> = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    assert_eq!(sum, (0..COUNT).map(|i| (3 * i + 300) as f32).collect::<Vec<_>>());
    assert_eq!(outputs[ROOT].to_vec(), sum);
    assert_eq!(outputs[0].to_vec(), [0.0; COUNT]);
    let _ = writeln!(stdout(), "chip {ROOT} has the sum, from {} to {}", sum[0], sum[COUNT - 1]);
    Ok(())
}
