//! Sums the inputs of all chips on every chip.
//!
//! Rank r's input is `i + 100 r`, so the output is `n i + 100 n (n - 1) / 2` everywhere. The kernel is
//! `kernels/allreduce.cpp`.

use chipcomm_examples::{ARGS_FLAGS, Collective, CommandLine, FLAGS, KERNEL_NOTE, Windows, sum_of_inputs};
use std::process::ExitCode;

const LINE: CommandLine = CommandLine {
    program: "allreduce",
    about: "Sums the inputs of all chips on every chip, 256 floats each",
    flags: &[FLAGS, ARGS_FLAGS],
    examples: "Example: four chips, a thousand times, with a picture of when each task ran\n  \
        cargo run --release -- -d 0-3 --iters 1000 --trace allreduce.json",
    notes: &[KERNEL_NOTE],
};

fn main() -> ExitCode {
    Collective::main(&LINE, 256, |_, n, count| {
        Ok(Collective {
            windows: Windows::OfChips,
            input_len: count,
            output_len: count,
            scalars: Vec::new(),
            expected: Box::new(move |_, i| Some(sum_of_inputs(n, i))),
            gain: n as f64,
            graph: None,
        })
    })
}
