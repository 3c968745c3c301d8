//! The four programs that a newcomer reads first.

use crate::support::{command, compile, ended, run};

fn prints(name: &str, args: &[&str], line: &str) {
    let ended = run(name, args);
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{name}\n{}", ended.out);
    assert_eq!(ended.out.lines().last(), Some(line), "{name}");
}

#[test]
fn a_function_a_kernel_and_a_collective_print_what_they_computed() {
    prints("hello", &[], "chip 0 doubled [1.0, 2.0, 3.0, 4.0]: [2.0, 4.0, 6.0, 8.0]");
    prints("hello_kernel", &[], "chip 0 scaled [1.0, 2.0, 3.0, 4.0] by 10: [10.0, 20.0, 30.0, 40.0]");
    prints("hello_collective", &[], "chip 1 has the sum [11.0, 22.0, 33.0, 44.0]");
    prints("hello_staged", &[], "chip 1 has the sum, from 300 to 1065");
}

/// Three tensors and two scalars, as the kernel of simpler's example takes them: behind the floats of the scratch are its signals.
const ONE_PHASE: &str = r#"
#include "sum_ranks.h"
COMM_KERNEL void kernel_entry(int64_t *args) {
    const auto input = comm_tensor<const float>(args[0]);
    float *mine = comm_tensor<float>(args[2]).data;
    const auto *ctx = comm_pointer<const CommContext>(args[4]);
    auto *signals = reinterpret_cast<int32_t *>(mine + input.count);
    comm_copy(mine, input.data, input.count);
    for (int peer = 0; peer < args[3]; ++peer) comm_notify(ctx, CommRemotePtr(ctx, signals, peer) + ctx->rankId, 1);
    for (int peer = 0; peer < args[3]; ++peer) {
        if (!comm_wait(ctx, signals + peer, 1)) return;
    }
    sum_ranks(ctx, comm_tensor<float>(args[1]).data, mine, input.count);
}
"#;

#[test]
fn the_program_of_the_page_for_users_of_simpler_is_right() {
    let folder = tempfile::tempdir().unwrap();
    let kernel = compile(folder.path(), "onephase", ONE_PHASE);
    let ended = run("ported", &[kernel.to_str().unwrap()]);
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{}", ended.out);
    // It compares the sums itself, and a kernel that does not sum is found.
    let nothing = compile(folder.path(), "nothing", "extern \"C\" void kernel_entry(long *) {}\n");
    let ended = run("ported", &[nothing.to_str().unwrap()]);
    assert!(ended.code != Some(0) && ended.err.contains("rank 0"), "{}", ended.err);
    let page = include_str!("../../../docs/coming-from-simpler.md");
    let (_, program) = include_str!("../../first/ported.rs").split_once("\n\n").unwrap();
    assert!(page.contains(program), "the page shows another program than the one that runs");
}

#[test]
fn a_kernel_of_the_user_runs_too() {
    let folder = tempfile::tempdir().unwrap();
    let kernel = compile(
        folder.path(),
        "mine",
        "#include \"comm_kernel.h\"\nCOMM_KERNEL void kernel_entry(int64_t *args) {\n\
         const auto x = comm_tensor<const float>(args[0]);\n\
         for (size_t i = 0; i < x.count; ++i) comm_tensor<float>(args[1]).data[i] = args[2] * x.data[i];\n}\n",
    );
    let line = "chip 0 scaled [1.0, 2.0, 3.0, 4.0] by 10: [10.0, 20.0, 30.0, 40.0]";
    prints("hello_kernel", &[kernel.to_str().unwrap()], line);
    let missing = run("hello_kernel", &["no/such.so"]);
    assert!(missing.code != Some(0) && missing.err.contains("no/such.so"), "{}", missing.err);
}

/// Their `main` returns a `Failure`, which the runtime prints with `Debug`.
#[test]
fn a_failure_that_main_returns_is_printed_as_text_with_its_table() {
    let folder = tempfile::tempdir().unwrap();
    let stuck = compile(
        folder.path(),
        "stuck",
        "#include <unistd.h>\nextern \"C\" void kernel_entry(long *) { while (true) pause(); }\n",
    );
    let mut stuck = command("hello_kernel", &[stuck.to_str().unwrap()]);
    let end = ended(stuck.env("CHIPCOMM_TIMEOUT_S", "1").output().unwrap());
    assert_eq!(end.code, Some(1), "{}{}", end.out, end.err);
    let mut lines = end.err.lines();
    let first = lines.next().unwrap_or_default();
    assert!(first.starts_with("Error: in run: timed out: "), "{}", end.err);
    assert!(lines.next().is_some_and(|line| line.trim_start().starts_with("chip 0 ")), "{}", end.err);
    assert!(!end.err.contains("Report {") && !end.err.contains("\\n"), "{}", end.err);
}

/// They are meant to be short, and to be copied without anything else of this package.
#[test]
fn each_has_under_60_lines_and_uses_nothing_but_worker_orch() {
    for (name, text) in [
        ("hello", include_str!("../../first/hello.rs")),
        ("hello_kernel", include_str!("../../first/hello_kernel.rs")),
        ("hello_collective", include_str!("../../first/hello_collective.rs")),
        ("hello_staged", include_str!("../../first/hello_staged.rs")),
    ] {
        assert!(text.lines().count() < 60, "{name}");
        let used = text.lines().filter_map(|line| line.strip_prefix("use "));
        assert!(used.clone().count() > 0, "{name}");
        assert!(
            used.clone().all(|path| path.starts_with("std::") || path.starts_with("worker_orch::")),
            "{name}"
        );
    }
}
