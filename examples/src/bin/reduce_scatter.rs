//! Sums the inputs of all chips and leaves one chunk of the sum on each chip.
//!
//! Rank r's input is `i + 100 r`, n chunks long; rank d gets chunk d of the sum. The kernel is
//! `kernels/reduce_scatter.cpp`.

use chipcomm_examples::{ARGS_FLAGS, Collective, CommandLine, FLAGS, KERNEL_NOTE, Windows, sum_of_inputs};
use std::process::ExitCode;

const LINE: CommandLine = CommandLine {
    program: "reduce_scatter",
    about: "Sums the inputs of all chips and leaves one chunk of the sum on each, 64 floats",
    flags: &[FLAGS, ARGS_FLAGS],
    examples: "Example: on four chips\n  cargo run --release --bin reduce_scatter -- -d 0-3",
    notes: &[KERNEL_NOTE],
};

fn main() -> ExitCode {
    Collective::main(&LINE, 64, |_, n, chunk| {
        Ok(Collective {
            windows: Windows::OfDomain,
            input_len: n * chunk,
            output_len: chunk,
            scalars: Vec::new(),
            expected: Box::new(move |rank, i| Some(sum_of_inputs(n, rank * chunk + i))),
            gain: n as f64,
            graph: None,
        })
    })
}
