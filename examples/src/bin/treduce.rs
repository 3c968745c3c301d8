//! Sums the inputs of all chips on one of them, the root; the others' outputs must stay untouched.
//!
//! Rank r's input is `i + 100 r`. The kernel is `kernels/treduce.cpp`.

use chipcomm_examples::{
    ARGS_FLAGS, Collective, CommandLine, FLAGS, Flag, GraphOf, KERNEL_NOTE, Windows, reduce, sum_of_inputs,
    usage,
};
use std::process::ExitCode;
use worker_orch::runtime::{FrontEnd, Limits};

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
            Flag::with_value(
                "dot",
                "FILE",
                "With --runtime: write the root's graph to this file, for Graphviz",
            ),
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
        let dot = arguments.path("dot");
        let front_end = arguments.value_with("runtime", |name| {
            FrontEnd::by_name(name).ok_or_else(|| "write prebuilt, explicit or inferred".to_owned())
        })?;
        let graph = front_end.map(|front_end| -> GraphOf {
            Box::new(move |worker| {
                worker.register_graph("treduce", reduce(front_end, Limits::default(), dot.clone()))
            })
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
