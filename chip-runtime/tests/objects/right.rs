//! Orchestrations that are right.

use crate::build::{VERSION, graph, object, orchestration, runtime, small, soon};
use chip_runtime::signals::Signals;
use chip_runtime::{Buffer, FrontEnd, LoadError, Orchestration, Runtime, TensorArg};
use std::path::Path;
use std::thread;

const LENGTH: usize = 300;
/// The bits of 0.5.
const HALF: u64 = 0x3f00_0000;

/// Runs (a + b) * 0.5 and returns the result and the flags.
fn run(
    runtime: &mut Runtime,
    front_end: FrontEnd,
    orchestration: &Orchestration,
    flags: bool,
    scalars: &[u64],
) -> (Vec<f32>, Vec<f32>) {
    let count: Vec<f32> = (0..LENGTH).map(|at| at as f32).collect();
    let mut a = Buffer::of(&count);
    let mut b = Buffer::of(&vec![2.0f32; LENGTH]);
    let mut out = Buffer::<f32>::zeroed(&[LENGTH as u32]);
    let mut seen = Buffer::<f32>::zeroed(&[3]);
    let result = runtime.run(front_end, soon(), |graph| {
        let mut tensors = vec![
            TensorArg::Input(*graph.import(&mut a)?.desc()),
            TensorArg::Input(*graph.import(&mut b)?.desc()),
            TensorArg::OutputExisting(*graph.import(&mut out)?.desc()),
        ];
        if flags {
            tensors.push(TensorArg::InOut(*graph.import(&mut seen)?.desc()));
        }
        orchestration.call(graph, &tensors, scalars)
    });
    result.unwrap_or_else(|error| panic!("{}: {error}", front_end.name()));
    (out.to_vec().unwrap(), seen.to_vec().unwrap())
}

fn expected() -> Vec<f32> {
    (0..LENGTH).map(|at| (at as f32 + 2.0) * 0.5).collect()
}

#[test]
fn an_object_that_was_written_against_the_layouts_alone_runs_unchanged() {
    for (front_end, flag) in
        [(FrontEnd::Inferred, "-DRING"), (FrontEnd::Explicit, "-DRING"), (FrontEnd::Prebuilt, "-DPREBUILT")]
    {
        let object = object("layouts_only.cpp", flag);
        let mut runtime = runtime(small(), &object, &["add", "scale", "mix", "zero"]);
        let orchestration = orchestration(&object, None);
        for _ in 0..3 {
            let (out, flags) = run(&mut runtime, front_end, &orchestration, true, &[HALF, LENGTH as u64]);
            assert_eq!((out, flags), (expected(), vec![1.0; 3]), "{}", front_end.name());
        }
    }
}

#[test]
fn a_source_with_the_names_of_upstream_runs_with_the_compatible_headers() {
    let object = object("upstream.cpp", "-DUPSTREAM");
    let mut runtime = runtime(small(), &object, &["add", "scale", "exchange"]);
    let orchestration = orchestration(&object, None);
    for front_end in FrontEnd::ALL {
        let (out, flags) = run(&mut runtime, front_end, &orchestration, true, &[HALF]);
        assert_eq!((out, flags), (expected(), vec![1.0; 3]), "{}", front_end.name());
    }
}

#[test]
fn one_object_with_our_header_gives_the_same_on_every_front_end() {
    let orchestration = graph("add_and_scale");
    let mut runtime = runtime(small(), &object("kernels.cpp", "-DOWN"), &["add", "scale"]);
    for front_end in FrontEnd::ALL {
        let (out, _) = run(&mut runtime, front_end, &orchestration, false, &[HALF]);
        assert_eq!(out, expected(), "{}", front_end.name());
    }
}

#[test]
fn an_orchestration_reads_what_its_tasks_wrote() {
    let kernels = ["add", "scale", "add", "add", "fill"];
    let mut runtime = runtime(small(), &object("kernels.cpp", "-DOWN"), &kernels);
    let mut out = Buffer::<f32>::zeroed(&[4]);
    let orchestration = graph("reads_back");
    let run = runtime.run(FrontEnd::Inferred, soon(), |graph| {
        let tensor = *graph.import(&mut out)?.desc();
        orchestration.call(graph, &[TensorArg::InOut(tensor)], &[])
    });
    run.unwrap();
    assert_eq!(out.to_vec().unwrap(), [2.0, 4.0, 2.0, 2.0]);
}

// F89
#[test]
fn only_an_object_of_the_known_version_with_its_functions_is_loaded() {
    let path = object("graphs.cpp", "-DOWN");
    let load = |path: &Path, entry, version| Orchestration::load(path, entry, version).unwrap_err();
    for version in ["pto2-2026-09", "", "PTO2-2026-08"] {
        let error = load(&path, Some("mistakes"), version);
        assert!(matches!(&error, LoadError::Version { given } if given == version), "{error}");
    }
    assert_eq!(
        load(&path, Some("mistakes"), "later").to_string(),
        "objects of version `later` are not supported, only `pto2-2026-08`; compile the orchestration for that version"
    );
    let error = load(&path, None, VERSION).to_string();
    let none = " does not export `aicpu_orchestration_entry`, which builds the graph; declare it extern \"C\", or name another";
    assert!(error.ends_with(none), "{error}");
    let error = load(&object("kernels.cpp", "-DOWN"), Some("add"), VERSION).to_string();
    let none = "`framework_bind_runtime`, which gets the runtime; include orchestration.h, which has it; ";
    assert!(error.contains(none), "{error}");
    assert!(matches!(load(Path::new("missing.so"), None, VERSION), LoadError::File { .. }));
    let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let error = load(&text, None, VERSION).to_string();
    let loader = "; build it as a shared object for this machine, with -shared -fPIC, and see ldd for the libraries that it needs";
    assert!(error.contains("Cargo.toml cannot be loaded: ") && error.ends_with(loader), "{error}");
}

/// One tensor of one float, and what it is in the end.
fn one(runtime: &mut Runtime, front_end: FrontEnd, orchestration: &Orchestration, scalars: &[u64]) -> f32 {
    let mut data = Buffer::<f32>::zeroed(&[1]);
    let run = runtime.run(front_end, soon(), |graph| {
        let tensor = *graph.import(&mut data)?.desc();
        orchestration.call(graph, &[TensorArg::InOut(tensor)], scalars)
    });
    run.unwrap_or_else(|error| panic!("{}: {error}", front_end.name()));
    data.to_vec().unwrap()[0]
}

#[test]
fn chips_whose_orchestrations_are_in_cpp_wait_for_each_other() {
    const ROUNDS: u64 = 50;
    let graphs = [graph("takes_turns"), graph("takes_turns")];
    let kernels = object("kernels.cpp", "-DOWN");
    for front_end in FrontEnd::ALL {
        let chips = Signals::in_process(2, 4096).unwrap();
        let play = |rank: usize| {
            let mut runtime = runtime(small(), &kernels, &["counts"]);
            runtime.connect(chips[rank].clone());
            runtime.session(1, &[0, 1]);
            one(&mut runtime, front_end, &graphs[rank], &[rank as u64, ROUNDS])
        };
        let both = thread::scope(|scope| {
            [0, 1].map(|rank| scope.spawn(move || play(rank))).map(|chip| chip.join().unwrap())
        });
        assert_eq!(both, [ROUNDS as f32; 2], "{}", front_end.name());
    }
}

#[test]
fn a_kernel_in_cpp_leaves_its_core_and_completes_when_a_word_is_raised() {
    let mut runtime = runtime(small(), &object("kernels.cpp", "-DOWN"), &["defers", "raises", "reads"]);
    let orchestration = graph("completes_later");
    for round in 1..=20u16 {
        assert_eq!(one(&mut runtime, FrontEnd::Inferred, &orchestration, &[round.into()]), f32::from(round));
    }
}
