//! Orchestrations and kernels that are wrong: each an error that says what and where, after which the runtime is usable.

use crate::build::{graph, object, orchestration, runtime, small, soon};
use chip_runtime::signals::Signals;
use chip_runtime::{Buffer, Create, FrontEnd, Limits, Orchestration, Runtime, RuntimeError, TensorArg};

const KERNELS: [&str; 7] = ["add", "scale", "add", "add", "fill", "throws", "fails"];

fn run(runtime: &mut Runtime, orchestration: &Orchestration, case: u64) -> Result<(), RuntimeError> {
    let mut buffer = Buffer::<f32>::zeroed(&[16]);
    runtime.run(FrontEnd::Inferred, soon(), |graph| {
        let tensor = *graph.import(&mut buffer)?.desc();
        orchestration.call(graph, &[TensorArg::InOut(tensor)], &[case])
    })
}

/// The code and parts of the text of each mistake, by its number in `mistakes` of graphs.cpp.
const CASES: &[(u64, i32, &[&str])] = &[
    // Without a submit before it, the object and its entry are all that is known of the place.
    (1, 9, &["std::runtime_error: nothing to build", ".so `mistakes`, call:0"]),
    (
        2,
        1,
        &[
            "1 scopes are open at the end of the orchestration; close each scope that it opens",
            ".so `mistakes`, call:1",
        ],
    ),
    (31, 9, &["std::runtime_error: half built", "graphs.cpp:"]),
    (32, 1, &["1 scopes are open", "graphs.cpp:"]),
    (
        3,
        9,
        &[
            "`submit_task` was called by another thread than the one that the entry runs on; a graph is built by one thread",
            "graphs.cpp:",
        ],
    ),
    (4, 5, &["kernel 77 is not registered", "graphs.cpp:"]),
    (5, 5, &["tensor 0: the tensor ends", "graphs.cpp:"]),
    (6, 5, &["is not a task that was submitted", "graphs.cpp:"]),
    (7, 7, &["1000 blocks that start together", "graphs.cpp:"]),
    // The submit that finds no room; the run itself opened the scope.
    (8, 3, &["ring 0 has 8 slots", " (at ", "graphs.cpp:", "; scope opened at ", "mistakes.rs:"]),
    (9, 9, &["mistakes: rounds=3 of four (code 42, reported by the orchestration)", "graphs.cpp:"]),
    (10, 9, &["task 0.0, kernel 5 `throws`", "std::overflow_error: too much", "graphs.cpp:"]),
    (11, 5, &["kernel 77 is not registered", "graphs.cpp:"]),
    (12, 5, &["at most 32 tensors", "graphs.cpp:"]),
    (13, 5, &["there is no argument list (null); pass the address of an OrchTaskArgs"]),
    (14, 1, &["scope_end without a scope_begin; close each scope once"]),
    (15, 9, &["ended abruptly: int"]),
    (16, 9, &["task 0.0, kernel 6 `fails`", "it set the error 17: on purpose", "graphs.cpp:"]),
    (17, 5, &["0 blocks", "graphs.cpp:"]),
    (18, 9, &["std::out_of_range: the entry has fewer tensors"]),
    (19, 101, &["outside window `base`", "graphs.cpp:"]),
    (20, 101, &["there is no rank 9; window `base` has 2, counted from 0", "graphs.cpp:"]),
    (21, 5, &["the argument list is marked as invalid without a reason; check the calls that filled it"]),
    (22, 5, &["3 dependencies at 0x0 cannot be read; pass the address of an array, and its length"]),
    (23, 5, &["tensor 0 has the unknown tag 9; use an OrchTag"]),
    (24, 5, &["the predicate compares by 99; use an OrchComparison"]),
    (25, 5, &["the predicate has 6 indices; pass one for each dimension, at most 5"]),
    (26, 5, &["there are no kernels (null); pass the address of an OrchKernelIds"]),
    (27, 5, &["6 indices; pass one for each dimension, at most 5"]),
    (28, 5, &["only outputs are allocated; pass other tensors to a task"]),
    (29, 5, &["tensor 0: the descriptor of the tensor is null"]),
    (30, 5, &["tensor 0: the description of the tensor is null"]),
];

#[test]
fn each_mistake_is_an_error_that_names_what_and_where() {
    let limits = Limits { slots: 8, ..small() };
    let mut runtime = runtime(limits, &object("kernels.cpp", "-DOWN"), &KERNELS);
    runtime.connect(Signals::in_process(2, 4096).unwrap().swap_remove(0));
    let orchestration = graph("mistakes");
    for &(case, code, parts) in CASES {
        let error = run(&mut runtime, &orchestration, case).unwrap_err();
        let text = error.to_string();
        assert!(parts.iter().all(|part| text.contains(part)), "case {case}: {text}");
        assert_eq!(error.code(), code, "case {case}: {text}");
        run(&mut runtime, &orchestration, 0).unwrap_or_else(|error| panic!("after case {case}: {error}"));
    }
}

/// Edges that cannot be, by the scalar of `edges` in graphs.cpp: the tasks are 1.0 and 1.1 with 1.2 between them.
const EDGES: &[(u64, &[&str])] = &[
    (1, &["task 1.1, kernel 4 `fill`: the edge from task 1.0 to task 1.1 closes a cycle"]),
    (2, &["task 1.1, kernel 4 `fill`: the edge from task 1.1 to task 1.1 closes a cycle"]),
    (3, &["task 0.77 is not a task that was submitted"]),
];

#[test]
fn a_cycle_of_edges_is_an_error_that_names_its_task_and_where_that_was_submitted() {
    let mut runtime = runtime(small(), &object("kernels.cpp", "-DOWN"), &KERNELS);
    let orchestration = graph("edges");
    let mut run = |front_end, case| {
        let mut buffer = Buffer::of(&[0.0f32; 16]);
        runtime
            .run(front_end, soon(), |graph| {
                let tensor = *graph.import(&mut buffer)?.desc();
                orchestration.call(graph, &[TensorArg::InOut(tensor)], &[case])
            })
            .map(|()| buffer.to_vec().unwrap())
    };
    for front_end in [FrontEnd::Explicit, FrontEnd::Prebuilt] {
        for &(case, parts) in EDGES {
            let error = run(front_end, case).unwrap_err();
            let text = error.to_string();
            assert!(parts.iter().all(|part| text.contains(part)), "case {case}: {text}");
            assert!(text.contains("graphs.cpp:"), "case {case}: {text}");
            assert_eq!(error.code(), 5, "case {case}: {text}");
            assert_eq!(run(front_end, 0).unwrap(), [6.0; 16], "after case {case}");
        }
    }
    // Too late for an edge.
    for (front_end, case) in [(FrontEnd::Explicit, 4), (FrontEnd::Inferred, 0)] {
        let text = run(front_end, case).unwrap_err().to_string();
        assert!(text.contains("published") && text.contains("graphs.cpp:"), "{text}");
    }
}

#[test]
fn an_entry_with_another_number_of_arguments_is_refused_before_it_starts() {
    let object = object("layouts_only.cpp", "-DRING");
    let mut runtime = runtime(small(), &object, &["add"]);
    let orchestration = orchestration(&object, None);
    let error = run(&mut runtime, &orchestration, 0).unwrap_err();
    assert!(
        error.to_string().contains("expects 6 arguments, not 2; pass its tensors and scalars, each once"),
        "{error}"
    );
}

#[test]
fn an_entry_with_too_many_arguments_or_ones_to_be_made_is_refused() {
    let mut runtime = runtime(small(), &object("kernels.cpp", "-DOWN"), &KERNELS);
    let orchestration = graph("mistakes");
    let mut call = |tensors: &[TensorArg], scalars: &[u64]| {
        let run =
            runtime.run(FrontEnd::Inferred, soon(), |graph| orchestration.call(graph, tensors, scalars));
        run.unwrap_err().to_string()
    };
    let made = TensorArg::Output(Create::of::<f32>(&[16]));
    let told = call(&[made], &[0]);
    assert!(
        told.contains(
            "an entry takes tensors that exist, and one of these is to be made; pass it as input, inout or output"
        ),
        "{told}"
    );
    let told = call(&[], &[0; 129]);
    assert!(told.contains("a task or an entry has at most 128 scalars, not 129; join tensors"), "{told}");
}
