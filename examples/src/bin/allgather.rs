//! Gathers the inputs of all chips on every chip, in rank order.
//!
//! Rank r's input is `100 r + i`. The kernel is `kernels/allgather.cpp`.

use chipcomm_examples::{Collective, Job, Options, main as run};
use clap::Parser;
use std::process::ExitCode;

/// Gathers the inputs of all chips on every chip, 64 floats from each
#[derive(Parser)]
#[command(after_help = "Example: on four chips\n  cargo run --release --bin allgather -- -d 0-3")]
struct Cli {
    #[command(flatten)]
    options: Options,
}

fn main() -> ExitCode {
    run(|cli: &Cli| {
        let options = &cli.options;
        let (devices, count) = (options.devices_or(2)?, options.count_or(64));
        let input = |rank: usize, i: usize| 100.0 * rank as f64 + i as f64;
        let allgather = Collective {
            kernel: "allgather",
            input_len: count,
            output_len: devices.ids().len() * count,
            scalars: &[],
            input: &input,
            expected: &|_, i| Some(input(i / count, i % count)),
            gain: 1.0,
        };
        allgather.run(options, Job::new("allgather", options, devices, count)?)
    })
}
