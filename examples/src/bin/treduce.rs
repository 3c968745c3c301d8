//! Sums the inputs of all chips on one of them, the root; the others' outputs must stay untouched.
//!
//! Rank r's input is `i + 100 r`. The kernel is `kernels/treduce.cpp`.

use chipcomm_examples::{
    ARGS_FLAGS, Collective, CommandLine, DOT_FLAG, FLAGS, Flag, GraphOf, GraphOptions, KERNEL_NOTE, Windows,
    reduce, sum_of_inputs, usage,
};
use std::process::ExitCode;

const LINE: CommandLine = CommandLine {
    program: "treduce",
    about: "Sums the inputs of all chips on one of them, 256 floats each",
    flags: &[
        FLAGS,
        ARGS_FLAGS,
        &[
            Flag::with_value("root", "RANK", "The rank that gets the sum [default: 0]"),
            Flag::with_value(
                "runtime",
                "NAME",
                "As a graph of tasks on each chip, with signals between them, in place of the kernel: prebuilt, explicit or \
                 inferred; host_build_graph, aicpu_build_graph and tensormap_and_ringbuffer are the same",
            ),
            DOT_FLAG,
        ],
    ],
    examples: "Example: the sum of four chips on the last\n  cargo run --release --bin treduce -- -d 0-3 --root 3\n\
               The same with a kernel that finds its input in the window\n  \
               cargo run --release --bin treduce -- -d 0-3 --kernel my.so --args input,output,nranks,root,ctx",
    notes: &[KERNEL_NOTE, "This program adds args[5], the rank of the root, as a number."],
};

fn main() -> ExitCode {
    Collective::main(&LINE, 256, |arguments, n, count| {
        let root = arguments.value("root")?.unwrap_or(0);
        if root >= n {
            return Err(usage(format!("--root {root}: the ranks are 0 to {}", n - 1)));
        }
        let graph = GraphOptions::read(arguments)?.map(|options| -> GraphOf {
            Box::new(move |worker| worker.register_graph("treduce", reduce(options.clone())))
        });
        Ok(Collective {
            windows: Windows::OfChips,
            input_len: count,
            output_len: count,
            scalars: vec![root as u64],
            expected: Box::new(move |rank, i| (rank == root).then(|| sum_of_inputs(n, i))),
            gain: n as f64,
            graph,
        })
    })
}
