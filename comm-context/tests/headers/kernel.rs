//! The kernel helpers, compiled and run with ranks as threads.

use std::fs;
use std::process::Command;

use crate::build::{Language, compile, compilers, output_of, source};

// CC-3, CC-9
#[test]
fn f26_f46_f52_f60_f71_signals_barrier_and_abort_do_what_they_say() {
    let dir = tempfile::tempdir().unwrap();
    for compiler in compilers(Language::Cpp17) {
        let program = dir.path().join(format!("kernel-{compiler}"));
        let mut build = compile(compiler, Language::Cpp17, &source("kernel.cpp"));
        output_of(build.args(["-O2", "-pthread", "-o"]).arg(&program));
        assert_eq!(output_of(&mut Command::new(&program)).trim(), "ok", "{compiler}");
    }
}

#[test]
fn adding_spans_is_vectorised() {
    let dir = tempfile::tempdir().unwrap();
    let unit = dir.path().join("add.cpp");
    fs::write(
        &unit,
        "#include \"comm_kernel.h\"\nvoid add(float *a, const float *b, size_t n) { comm_add(a, b, n); }\n",
    )
    .unwrap();
    let mut build = compile("g++", Language::Cpp17, &unit);
    let report =
        output_of(build.args(["-O3", "-fopt-info-vec-optimized", "-c", "-o"]).arg(dir.path().join("add.o")));
    assert!(report.contains("loop vectorized"), "g++ says: {report:?}");
}
