//! Sums the inputs of all chips on every chip.
//!
//! Rank r's input is `i + 100 r`, so the output is `n i + 100 n (n - 1) / 2` everywhere. The kernel is
//! `kernels/allreduce.cpp`.

use chipcomm_examples::{Collective, Job, Options, main as run};
use clap::Parser;
use std::process::ExitCode;

/// Sums the inputs of all chips on every chip, 256 floats each
#[derive(Parser)]
#[command(after_help = "Example: four chips, a thousand times, with a picture of when each task ran\n  \
    cargo run --release -- -d 0-3 --iters 1000 --trace allreduce.json")]
struct Cli {
    #[command(flatten)]
    options: Options,
}

fn main() -> ExitCode {
    run(|cli: &Cli| {
        let options = &cli.options;
        let (devices, count) = (options.devices_or(2)?, options.count_or(256));
        let n = devices.ids().len() as f64;
        let allreduce = Collective {
            kernel: "allreduce",
            input_len: count,
            output_len: count,
            scalars: &[],
            input: &|rank, i| i as f64 + 100.0 * rank as f64,
            expected: &|_, i| Some(n * i as f64 + 100.0 * n * (n - 1.0) / 2.0),
            gain: n,
        };
        allreduce.run(options, Job::new("allreduce", options, devices, count)?)
    })
}
