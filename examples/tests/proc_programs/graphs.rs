//! Graphs: the programs with `--runtime`, and an orchestration of a user's own.

use crate::support::{compile, run};

const ORCHESTRATION: &str = r#"
#include "orchestration.h"

extern "C" void aicpu_orchestration_entry(const chip::EntryArgs &args) {
    const uint32_t shape[] = {1000};
    const chip::CreateInfo made(shape, 1, chip::DataType::FLOAT32);
    chip::TaskArgs first;
    first.input(args.tensor(0));
    first.output(made);
    const chip::Submitted doubled = chip::submit(chip::Kernels::aiv(3), first);
    chip::TaskArgs second;
    second.input(doubled.tensor(0));
    second.output(args.tensor(1));
    chip::submit(chip::Kernels::aiv(3), second);
}
"#;

const KERNEL: &str = r#"
#include "comm_kernel.h"

extern "C" void twice(int64_t *args) {
    const auto input = comm_tensor<const float>(args[0]);
    const auto output = comm_tensor<float>(args[1]);
    for (uint64_t i = 0; i < input.count; ++i) {
        output.data[i] = 2.0f * input.data[i];
    }
}
"#;

#[test]
fn an_orchestration_of_ones_own_runs_on_every_chip() {
    let folder = tempfile::tempdir().unwrap();
    let orchestration = compile(folder.path(), "orch", ORCHESTRATION);
    let kernel = format!("3={}:twice@aiv", compile(folder.path(), "twice", KERNEL).display());
    let result = folder.path().join("y{rank}.bin");
    let output = format!("y:f32:1000@window>{}", result.display());
    let orchestration = orchestration.to_str().unwrap();
    for runtime in ["prebuilt", "inferred"] {
        let ended = run(
            "graph",
            &[
                "-d",
                "2",
                "--runtime",
                runtime,
                "--orchestration",
                orchestration,
                "--kernel",
                &kernel,
                "--tensor",
                "x:f32:1000={rank}.5",
                "--tensor",
                &output,
                "--iters",
                "3",
            ],
        );
        assert_eq!(ended.code, Some(0), "{}{}", ended.out, ended.err);
        for rank in 0..2 {
            let bytes = std::fs::read(folder.path().join(format!("y{rank}.bin"))).unwrap();
            let expected = (4.0 * (rank as f32 + 0.5)).to_le_bytes().repeat(1000);
            assert_eq!(bytes, expected, "rank {rank}, {runtime}");
        }
    }
    let wrong = run("graph", &["--orchestration", orchestration, "--abi", "other", "--tensor", "x:f32:1000"]);
    assert!(wrong.code != Some(0) && wrong.err.contains("other"), "{}{}", wrong.out, wrong.err);
}

#[test]
fn a_bad_tensor_or_runtime_is_a_usage_error() {
    for (name, args) in [
        ("graph", &["--orchestration", "/dev/null", "--tensor", "x:f32"][..]),
        ("graph", &["--tensor", "x:f32:10"]),
        ("treduce", &["--runtime", "sideways"]),
    ] {
        let ended = run(name, args);
        assert_eq!(ended.code, Some(2), "{name} {args:?}: {}{}", ended.out, ended.err);
    }
}
