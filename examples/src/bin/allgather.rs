//! Gathers the inputs of all chips on every chip, in rank order.
//!
//! Rank r's input is `i + 100 r`. The kernel is `kernels/allgather.cpp`.

use chipcomm_examples::{ARGS_FLAGS, Collective, CommandLine, FLAGS, KERNEL_NOTE, Windows, input};
use std::process::ExitCode;

const LINE: CommandLine = CommandLine {
    program: "allgather",
    about: "Gathers the inputs of all chips on every chip, 64 floats from each",
    flags: &[FLAGS, ARGS_FLAGS],
    examples: "Example: on four chips\n  cargo run --release --bin allgather -- -d 0-3",
    notes: &[KERNEL_NOTE],
};

fn main() -> ExitCode {
    Collective::main(&LINE, 64, |_, n, count| {
        Ok(Collective {
            windows: Windows::OfDomain,
            input_len: count,
            output_len: n * count,
            scalars: Vec::new(),
            expected: Box::new(move |_, i| Some(input(i / count, i % count))),
            gain: 1.0,
            graph: None,
        })
    })
}
