//! Sums the inputs of all chips on one of them, the root; the others' outputs must stay untouched.
//!
//! Rank r's input is `i + 100 r`. The kernel is `kernels/treduce.cpp`.

use chipcomm_examples::{Collective, Job, Options, Stop, main as run};
use clap::Parser;
use std::process::ExitCode;

/// Sums the inputs of all chips on one of them, 256 floats each
#[derive(Parser)]
#[command(after_help = "Example: the sum of four chips on the last\n  \
    cargo run --release --bin treduce -- -d 0-3 --root 3")]
struct Cli {
    #[command(flatten)]
    options: Options,
    /// The rank that gets the sum
    #[arg(long, value_name = "RANK", default_value_t = 0)]
    root: usize,
}

fn main() -> ExitCode {
    run(|cli: &Cli| {
        let (options, root) = (&cli.options, cli.root);
        let (devices, count) = (options.devices_or(2)?, options.count_or(256));
        let chips = devices.ids().len();
        if root >= chips {
            return Err(Stop::Usage(format!("--root {root}: the ranks are 0 to {}", chips - 1)));
        }
        let n = chips as f64;
        let sum = |i: usize| n * i as f64 + 100.0 * n * (n - 1.0) / 2.0;
        let treduce = Collective {
            kernel: "treduce",
            input_len: count,
            output_len: count,
            scalars: &[root as u64],
            input: &|rank, i| i as f64 + 100.0 * rank as f64,
            expected: &|rank, i| (rank == root).then(|| sum(i)),
            gain: n,
        };
        treduce.run(options, Job::new("treduce", options, devices, count)?)
    })
}
