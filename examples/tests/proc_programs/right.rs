//! Every program computes the right result, for any number of chips.

use crate::support::{COLLECTIVES, compile, run};
use std::path::Path;
use std::process::Command;

/// Runs a program whose result must be right.
fn right(name: &str, args: &[&str]) {
    let ended = run(name, args);
    assert_eq!(ended.code, Some(0), "{name} {args:?}\n{}{}", ended.out, ended.err);
    assert!(ended.out.contains("right"), "{name} {args:?}\n{}", ended.out);
    assert!(ended.err.is_empty(), "{name} {args:?}\n{}", ended.err);
}

fn right_on(chips: &str, iters: &str) {
    for name in COLLECTIVES {
        right(name, &["-d", chips, "--iters", iters]);
    }
    right("treduce", &["-d", chips, "--iters", iters, "--root", "1"]);
    right("independent_ranks", &["--spawn", chips, "--iters", iters]);
    for runtime in ["prebuilt", "aicpu_build_graph", "inferred"] {
        right("treduce", &["-d", chips, "--iters", "10", "--root", "1", "--runtime", runtime]);
    }
    if chips != "16" {
        right("tp_ffn", &["-d", chips, "--iters", iters, "--runtime", "inferred"]);
    }
}

#[test]
fn all_are_right_on_2_chips() {
    right_on("2", "50");
}

#[test]
fn all_are_right_on_3_chips() {
    right_on("3", "50");
}

#[test]
fn all_are_right_on_4_chips() {
    right_on("4", "50");
}

#[test]
fn all_are_right_on_8_chips() {
    right_on("8", "20");
}

#[test]
fn all_are_right_on_16_chips() {
    right_on("16", "20");
}

#[test]
fn allreduce_is_right_on_64_chips() {
    right("allreduce", &["-d", "64", "--iters", "5"]);
}

#[test]
fn any_count_of_floats_is_right() {
    for count in ["1", "7", "4096", "4097", "100003"] {
        right("allreduce", &["-d", "3", "--count", count, "--iters", "5"]);
        right("reduce_scatter", &["-d", "3", "--count", count, "--iters", "5"]);
    }
    right("allgather", &["-d", "3", "--count", "5"]);
    // Above 2^24 an f32 has no room for every whole number.
    right("allreduce", &["-d", "4", "--count", "5000000"]);
}

#[test]
fn any_devices_may_be_chosen() {
    for list in ["1,3", "0,2,5", "4-6", "63,0", "5-5"] {
        right("allreduce", &["-d", list]);
    }
}

#[test]
fn the_json_is_one_object_with_the_outcome() {
    for name in COLLECTIVES.into_iter().chain(["tp_ffn"]) {
        let ended = run(name, &["-d", "2", "--json"]);
        let json: serde_json::Value = serde_json::from_str(&ended.out).expect(&ended.out);
        assert_eq!((&json["program"], &json["outcome"]), (&name.into(), &"right".into()));
        assert_eq!(json["chips"].as_array().unwrap().len(), 2);
        assert_eq!(json["chips"][1]["max_error"], 0.0);
    }
    let rank =
        run("independent_ranks", &["--rank", "0", "--nranks", "1", "--json", "--path", "json-of-one-rank"]);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&rank.out).unwrap()["outcome"], "right");
}

#[test]
fn quiet_is_one_line_and_text_shows_the_chips() {
    assert_eq!(run("allreduce", &["-q"]).out.lines().count(), 1);
    let text = run("allreduce", &["-d", "0,5"]).out;
    assert!(text.contains("chip 1: device 5, rank 1 of 2, window of"), "{text}");
    assert!(text.contains("signals (4096 bytes), data (657408 x Float32)"), "{text}");
    assert!(text.contains("chip 1: max |out - expected| = 0"), "{text}");
}

#[test]
fn the_trace_has_a_track_for_each_chip_with_all_its_tasks() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.json");
    right("allreduce", &["-d", "3", "--iters", "10", "--trace", file.to_str().unwrap()]);
    let json: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let events = json["traceEvents"].as_array().unwrap();
    let tracks: Vec<_> = events.iter().filter(|event| event["name"] == "thread_name").collect();
    assert_eq!(tracks.len(), 3);
    for chip in 0..3 {
        let tasks = events.iter().filter(|event| event["tid"] == chip && event["name"] == "allreduce.so");
        assert_eq!(tasks.count(), 10);
    }
}

#[test]
fn a_kernel_of_the_user_takes_the_place_of_ours() {
    let folder = tempfile::tempdir().unwrap();
    let mine = compile(folder.path(), "mine", "#define kernel_entry mine\n#include \"allreduce.cpp\"\n");
    let mine = format!("{}:mine", mine.display());
    for name in ["allreduce", "domains", "tp_ffn"] {
        right(name, &["-d", "3", "--iters", "5", "--kernel", &mine]);
    }
}

/// Five scalars and no tensor, as the kernel of `hello_staged` takes them, on chips' windows and in a domain; and with other
/// arguments.
#[test]
fn a_kernel_of_the_user_is_given_what_the_command_line_says() {
    let folder = tempfile::tempdir().unwrap();
    let staged = compile(folder.path(), "staged", "#include \"staged_reduce.cpp\"\n");
    let staged = staged.to_str().unwrap();
    let given = ["--kernel", staged, "--args", "input,output,nranks,root,ctx"];
    right("treduce", &[&["-d", "3", "--iters", "20", "--root", "2"], &given[..]].concat());
    let all = compile(
        folder.path(),
        "all",
        "#include \"sum_ranks.h\"\nCOMM_KERNEL void kernel_entry(int64_t *args) {\n\
         sum_ranks(comm_pointer<const CommContext>(args[0]), comm_pointer<float>(args[3]), comm_pointer<float>(args[2]), \
         args[1]); }\n",
    );
    let given = ["--kernel", all.to_str().unwrap(), "--args", "ctx,count,input,output"];
    right("allreduce", &[&["-d", "3", "--count", "1000", "--iters", "20"], &given[..]].concat());
    for (args, told) in [
        (&["--kernel", staged, "--args", "inptu"][..], "there is no argument \"inptu\""),
        (&["--args", "input"], "--kernel"),
    ] {
        let ended = run("treduce", args);
        assert!(ended.code == Some(2) && ended.err.contains(told), "{:?} {}", ended.code, ended.err);
    }
}

#[test]
fn the_programs_keep_to_their_memory_and_a_kernel_that_does_not_is_found() {
    for name in COLLECTIVES.into_iter().chain(["tp_ffn"]) {
        right(name, &["-d", "3", "--iters", "5", "--check"]);
    }
    let folder = tempfile::tempdir().unwrap();
    let beyond = compile(
        folder.path(),
        "beyond",
        "#include \"comm_kernel.h\"\nCOMM_KERNEL void kernel_entry(int64_t *args) {\n\
         const auto out = comm_tensor<float>(args[1]); out.data[out.count] = 1;\n}\n",
    );
    let beyond = beyond.to_str().unwrap();
    let ended = run("allreduce", &["-d", "2", "--check", "--kernel", beyond]);
    assert!(ended.code != Some(0) && ended.err.contains("wrote to offset 1024 of tensor 1"), "{}", ended.err);
}

/// F46: a kernel that does nothing, or works on data of another round, is found.
#[test]
fn f46_a_wrong_kernel_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let wrong = |name: &str, source: &str, program: &str| {
        let kernel = compile(folder.path(), name, source);
        let ended = run(program, &["-d", "3", "--iters", "20", "--kernel", kernel.to_str().unwrap()]);
        assert_eq!(ended.code, Some(1), "{name}\n{}{}", ended.out, ended.err);
        assert!(ended.out.contains("WRONG") && ended.out.contains("should be"), "{}", ended.out);
    };
    let empty = "#include \"comm_kernel.h\"\nCOMM_KERNEL void kernel_entry(int64_t *) {}\n";
    wrong("empty", empty, "allreduce");
    wrong("empty", empty, "domains");
    wrong("empty", empty, "tp_ffn");
    // Copies its input in the first round only; all later rounds sum that stale copy.
    let stale = "#include \"sum_ranks.h\"\nCOMM_KERNEL void kernel_entry(int64_t *args) {\n\
         const auto in = comm_tensor<const float>(args[0]); const auto out = comm_tensor<float>(args[1]);\n\
         auto *data = comm_pointer<float>(args[2]); auto *signals = comm_pointer<CommPhaseBarrier>(args[3]);\n\
         const auto *ctx = comm_pointer<const CommContext>(args[4]);\n\
         if (comm_phase(ctx, signals) == 0) comm_copy(data, in.data, in.count);\n\
         if (comm_phase_barrier(ctx, signals)) sum_ranks(ctx, out.data, data, out.count);\n}\n";
    wrong("stale", stale, "allreduce");
    // Ranks other than the root write their outputs, which must stay untouched.
    let rootless = "#include \"allreduce.cpp\"\n";
    wrong("rootless", rootless, "treduce");
}

/// A thousand rounds of the tensor-parallel layer as one graph per chip, in the same windows, with each front end once; each
/// chip compares every element of every round.
#[test]
#[ignore = "slow: cargo xtask ci slow"]
fn tp_ffn_is_right_in_1000_rounds_on_2_4_and_8_chips() {
    for (chips, runtime) in [("2", "prebuilt"), ("4", "explicit"), ("8", "inferred")] {
        right("tp_ffn", &["-d", chips, "--iters", "1000", "--runtime", runtime]);
    }
}

/// The long form: `cargo test --release -p chipcomm-examples -- --ignored`.
#[test]
#[ignore = "takes minutes"]
fn all_are_right_20_times_with_100_iterations() {
    for _ in 0..20 {
        for chips in ["2", "3", "4", "8", "16"] {
            right_on(chips, "100");
        }
        right("allreduce", &["-d", "64", "--iters", "100"]);
    }
}

/// Checks every kernel with every compiler of this machine.
fn kernels_compile(extra: &[&str]) {
    let compilers = ["g++", "clang++"].into_iter().filter(|compiler| {
        Command::new(compiler).arg("--version").output().is_ok_and(|out| out.status.success())
    });
    let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
    let mut compiled = 0;
    for compiler in compilers {
        for kernel in std::fs::read_dir(&kernels).unwrap().map(|entry| entry.unwrap().path()) {
            if kernel.extension().is_none_or(|end| end != "cpp") {
                continue;
            }
            let mut command = Command::new(compiler);
            command.args(["-std=c++17", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]).args(extra);
            let ran = command.arg("-I").arg(comm_context::INCLUDE_DIR).arg(&kernel).output().unwrap();
            let errors = String::from_utf8_lossy(&ran.stderr);
            assert!(ran.status.success(), "{compiler} {}\n{errors}", kernel.display());
            compiled += 1;
        }
    }
    assert!(compiled > 0, "neither g++ nor clang++ is installed");
}

#[test]
fn kernels_compile_with_every_compiler() {
    kernels_compile(&[]);
}

/// The Ascend build replaces one header. Stubs replace the keywords and cache instructions of the vendor's
/// compiler, so this shows only that the sources fit that header, and that its barrier holds on coherent
/// memory.
#[test]
fn kernels_compile_against_the_header_for_ascend_and_its_barrier_holds() {
    let folder = tempfile::tempdir().unwrap();
    let vendor = folder.path().join("vendor.h");
    let text = "#define __gm__\n#define __aicore__\n#define __global__\n\
        enum { SINGLE_CACHE_LINE, DSB_DDR };\ninline void dcci(void *, int) {}\n\
        inline void dsb(int) { __sync_synchronize(); }\n";
    std::fs::write(&vendor, text).unwrap();
    let ascend = concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/ascend");
    kernels_compile(&["-include", vendor.to_str().unwrap(), "-I", ascend]);
    let source = format!(
        "#include \"{}\"\n#include \"{ascend}/comm_collectives.h\"\n#include \"allreduce.cpp\"\n",
        vendor.display()
    );
    let kernel = compile(folder.path(), "ascend", &source);
    right("allreduce", &["-d", "2", "--iters", "20", "--kernel", kernel.to_str().unwrap()]);
}
