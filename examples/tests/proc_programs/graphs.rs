//! Graphs: the programs with `--runtime`, and an orchestration of a user's own.

use crate::support::{compile, run};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

/// The events of the trace in `file`, which is all that there is in its folder.
fn events(file: &Path) -> Vec<Value> {
    let left: Vec<_> =
        file.parent().unwrap().read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(left, [file], "parts are left");
    let trace: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    trace["traceEvents"].as_array().unwrap().clone()
}

fn at_ns(event: &Value) -> u64 {
    (event["ts"].as_f64().unwrap() * 1e3).round() as u64
}

#[test]
fn a_trace_shows_the_tasks_of_each_core_their_waits_and_the_arrows_of_signals() {
    const CHIPS: usize = 3;
    const ROUNDS: usize = 4;
    for runtime in ["host_build_graph", "aicpu_build_graph", "tensormap_and_ringbuffer"] {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("trace.json");
        let args =
            ["-d", "3", "--runtime", runtime, "--iters", "4", "--trace", file.to_str().unwrap(), "--quiet"];
        let ended = run("tp_ffn", &args);
        assert_eq!(ended.code, Some(0), "{}{}", ended.out, ended.err);
        let events = events(&file);
        let of_kind = |kind: &'static str| events.iter().filter(move |event| event["ph"] == kind);
        let mut chips = Vec::new();
        for chip in 0..CHIPS {
            let name = format!("cores of chip {chip}");
            let named = |event: &&Value| event["name"] == "process_name" && event["args"]["name"] == *name;
            chips.push(&of_kind("M").find(named).expect("a process for the cores of each chip")["pid"]);
        }
        for pid in &chips {
            let named = |core: &Value| {
                of_kind("M").any(|event| {
                    event["name"] == "thread_name" && event["pid"] == **pid && event["tid"] == *core
                })
            };
            let tasks: Vec<_> = of_kind("X").filter(|event| event["pid"] == **pid).collect();
            let count = |kernel: &str| tasks.iter().filter(|task| task["name"] == kernel).count();
            let counts = ["linear", "add", "ffn"].map(count);
            assert_eq!(counts, [ROUNDS, ROUNDS * (CHIPS - 1), ROUNDS], "{runtime}");
            assert!(tasks.iter().all(|task| named(&task["tid"])), "{runtime}: {tasks:#?}");
            // Linear and ffn are on a cube core, add is on a vector core.
            let cores = |kernel: &str| {
                let of_kernel = tasks.iter().filter(|task| task["name"] == kernel);
                of_kernel.map(|task| task["tid"].as_u64().unwrap() % 3).collect::<BTreeSet<u64>>()
            };
            assert_eq!((cores("linear"), cores("ffn")), ([0].into(), [0].into()), "{runtime}");
            assert!(!cores("add").contains(&0), "{runtime}");
            // Each wait begins, and ends after that.
            let waits: Vec<_> = of_kind("b").filter(|event| event["pid"] == **pid).collect();
            assert_eq!(waits.len(), 2 * ROUNDS * (CHIPS - 1), "{runtime}");
            for wait in waits {
                let met = of_kind("e").find(|event| event["id"] == wait["id"]).expect("it was met");
                assert!(at_ns(met) >= at_ns(wait), "{wait} {met}");
            }
        }
        // From the end of the task that signals to the start of the one that waited, on another chip.
        let ends = of_kind("f").filter(|event| event["cat"] == "signal");
        let mut arrows = 0;
        for end in ends {
            let mut starts =
                of_kind("s").filter(|event| event["cat"] == "signal" && event["id"] == end["id"]);
            let (start, more) = (starts.next().expect("it was signalled"), starts.next());
            assert!(
                start["pid"] != end["pid"] && at_ns(start) <= at_ns(end) && more.is_none(),
                "{start} {end}"
            );
            let inside = |task: &&Value| {
                let (at, length) = (at_ns(task), (task["dur"].as_f64().unwrap() * 1e3).round() as u64);
                let here = task["pid"] == start["pid"] && task["tid"] == start["tid"];
                here && (at..=at + length).contains(&at_ns(start))
            };
            assert!(of_kind("X").any(|task| inside(&task)), "{start} is in no task");
            arrows += 1;
        }
        // Data that is written in each round, and read in all but the last.
        assert_eq!(arrows, CHIPS * (CHIPS - 1) * (2 * ROUNDS - 1), "{runtime}");
    }
}

#[test]
fn the_graph_is_written_for_graphviz() {
    let folder = tempfile::tempdir().unwrap();
    let written = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    for runtime in ["prebuilt", "explicit", "inferred"] {
        let of_each = path("tp{rank}.dot");
        let ended =
            run("tp_ffn", &["-d", "4", "--runtime", runtime, "--iters", "3", "--dot", &of_each, "-q"]);
        assert_eq!(ended.code, Some(0), "{}{}", ended.out, ended.err);
        for rank in 0..4 {
            let dot = written(&format!("tp{rank}.dot"));
            assert!(dot.starts_with("digraph") && dot.ends_with("}\n"), "{dot}");
            // Linear, three sums, ffn in a row; each of three peers is waited for and told, twice.
            let count = |text: &str| dot.matches(text).count();
            let tasks = ["linear", "add", "ffn"].map(|kernel| count(&format!(" {kernel}\\n")));
            assert_eq!(tasks, [1, 3, 1], "{runtime}: {dot}");
            assert_eq!((count("waits for word"), count("signals rank")), (6, 6), "{runtime}: {dot}");
            let edges = dot.lines().filter(|line| line.contains(" -> ") && !line.contains("dashed")).count();
            assert_eq!(edges, if runtime == "explicit" { 4 } else { edges.max(4) }, "{runtime}: {dot}");
        }
        let file = path("root.dot");
        let ended = run("treduce", &["-d", "3", "--root", "1", "--runtime", runtime, "--dot", &file, "-q"]);
        assert_eq!(ended.code, Some(0), "{}{}", ended.out, ended.err);
        let dot = written("root.dot");
        assert_eq!((dot.matches(" copy\\n").count(), dot.matches(" add\\n").count()), (1, 2), "{dot}");
    }
}

const WIDE: &str = r#"
#include "orchestration.h"

extern "C" void aicpu_orchestration_entry(const chip::EntryArgs &args) {
    chip::TaskArgs all;
    all.inout(args.tensor(0));
    all.launch_spec.set_block_num(static_cast<int16_t>(args.scalar(0)));
    all.launch_spec.set_require_sync_start(true);
    chip::submit(chip::Kernels::aiv(0), all);
}
"#;

const SCALARS: &str = r#"
#include "orchestration.h"

extern "C" void aicpu_orchestration_entry(const chip::EntryArgs &args) {
    auto *out = args.tensor(0).data_as<float>();
    out[0] = args.scalar<float>(0);
    out[1] = static_cast<float>(args.scalar<double>(1));
    out[2] = static_cast<float>(args.scalar<int32_t>(2));
    out[3] = static_cast<float>(args.scalar<uint64_t>(3) >> 32);
}
"#;

/// Each as the type that it is read as, which the shell cannot know.
#[test]
fn scalars_of_the_command_line_have_their_types() {
    let folder = tempfile::tempdir().unwrap();
    let orchestration = compile(folder.path(), "scalars", SCALARS);
    let result = folder.path().join("scalars.bin");
    let (object, tensor) = (orchestration.to_str().unwrap(), format!("out:f32:4>{}", result.display()));
    let scalars = ["f32:0.5", "f64:-1.25", "-7", "18446744073709551615"];
    let flags = scalars.iter().flat_map(|scalar| ["--scalar", scalar]);
    let args: Vec<&str> = ["--orchestration", object, "--tensor", &tensor].into_iter().chain(flags).collect();
    let ran = run("graph", &args);
    assert_eq!(ran.code, Some(0), "{}{}", ran.out, ran.err);
    let written = std::fs::read(&result).unwrap();
    let want = [0.5f32, -1.25, -7.0, 4294967295.0].map(f32::to_le_bytes).concat();
    assert_eq!(written, want);
}

const COUNT: &str = r#"
#include "comm_kernel.h"

extern "C" void kernel_entry(int64_t *args) {
    __atomic_fetch_add(comm_tensor<uint32_t>(args[0]).data, 1, __ATOMIC_RELAXED);
}
"#;

/// As many blocks at once as the platform has vector cores, and not one more.
#[test]
fn a_platform_has_its_clusters() {
    let folder = tempfile::tempdir().unwrap();
    let orchestration = compile(folder.path(), "wide", WIDE);
    let kernel = format!("0={}", compile(folder.path(), "count", COUNT).display());
    let result = folder.path().join("blocks.bin");
    let tensor = format!("blocks:u32:1>{}", result.display());
    let ran = |platform: &str, blocks: u32| {
        let blocks = blocks.to_string();
        let object = orchestration.to_str().unwrap();
        let args = ["-p", platform, "--orchestration", object, "--kernel", &kernel, "--tensor", &tensor];
        run("graph", &[&args[..], &["--scalar", &blocks]].concat())
    };
    for (platform, clusters) in [("sim", 8), ("a2a3sim", 24), ("a5sim", 36)] {
        let fits = ran(platform, 2 * clusters);
        assert_eq!(fits.code, Some(0), "{platform}: {}{}", fits.out, fits.err);
        assert_eq!(std::fs::read(&result).unwrap(), (2 * clusters).to_le_bytes(), "{platform}");
        let more = ran(platform, 2 * clusters + 1);
        assert_eq!(more.code, Some(3), "{platform}: {}{}", more.out, more.err);
        assert!(more.err.contains(&format!("the chip has {}", 2 * clusters)), "{platform}: {}", more.err);
    }
}

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
        ("graph", &["--orchestration", "/etc/passwd", "--tensor", "x:f32:10=/no/such/file"][..]),
        ("graph", &["--orchestration", "/etc/passwd", "--tensor", "x:f32:10=/etc/passwd"]),
        ("graph", &["--orchestration", "/etc/passwd", "--tensor", "x:f32:10>/no/such/folder/x"]),
        ("graph", &["--orchestration", "/etc/passwd", "--scalar", "seven"]),
        (
            "graph",
            &["--orchestration", "/etc/passwd", "--kernel", "0=/etc/passwd", "--kernel", "0=/etc/passwd"],
        ),
        ("graph", &["--orchestration", "/dev/null", "--tensor", "x:f32"]),
        ("graph", &["--tensor", "x:f32:10"]),
        ("treduce", &["--runtime", "sideways"]),
        ("treduce", &["--dot", "x.dot"]),
        ("tp_ffn", &["--runtime", "inferred", "--dot", "/no/such/folder/x.dot"]),
    ] {
        let ended = run(name, args);
        assert_eq!((ended.code, &*ended.out), (Some(2), ""), "{name} {args:?}: {}", ended.err);
    }
}
