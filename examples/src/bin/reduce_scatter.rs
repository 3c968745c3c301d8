//! Sums the inputs of all chips and gives every chip its chunk of the sum.
//!
//! Rank r's input is `i + 100 r`, n chunks of it; rank d gets chunk d of the sum. The kernel is
//! `kernels/reduce_scatter.cpp`.

use chipcomm_examples::{Collective, Job, Options, main as run};
use clap::Parser;
use std::process::ExitCode;

/// Sums the inputs of all chips and gives each its chunk of the sum, 64 floats
#[derive(Parser)]
#[command(after_help = "Example: on four chips\n  cargo run --release --bin reduce_scatter -- -d 0-3")]
struct Cli {
    #[command(flatten)]
    options: Options,
}

fn main() -> ExitCode {
    run(|cli: &Cli| {
        let options = &cli.options;
        let (devices, chunk) = (options.devices_or(2)?, options.count_or(64));
        let chips = devices.ids().len();
        let n = chips as f64;
        let reduce_scatter = Collective {
            kernel: "reduce_scatter",
            input_len: chips * chunk,
            output_len: chunk,
            scalars: &[],
            input: &|rank, i| i as f64 + 100.0 * rank as f64,
            expected: &|rank, j| Some(n * (chunk * rank + j) as f64 + 100.0 * n * (n - 1.0) / 2.0),
            gain: n,
        };
        reduce_scatter.run(options, Job::new("reduce_scatter", options, devices, chunk)?)
    })
}
