//! `libcomm_sim.so` as C, C++ and Python programs use it, one program for each rank.
#![allow(missing_docs)]

use comm_context::conformance::{CLibrary, compile_kernel};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

static LIBRARY: LazyLock<CLibrary> = LazyLock::new(|| CLibrary::build("comm-sim-c", "comm_sim"));

/// Far above what a rank needs; a stuck one must not block the test run.
const TIMEOUT_S: &str = "30";

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(name)
}

fn compile(name: &str, into: &Path) -> PathBuf {
    LIBRARY.compile(&source(name), into, &["-ldl".to_owned(), "-pthread".to_owned()])
}

/// Starts one program for each rank, and expects each to print `ok`.
fn run_ranks(nranks: usize, path: &Path, program: &dyn Fn(usize) -> Command) {
    let ranks: Vec<_> = (0..nranks)
        .map(|rank| {
            let mut command = program(rank);
            command.env("CHIPCOMM_TIMEOUT_S", TIMEOUT_S).stdout(Stdio::piped()).stderr(Stdio::piped());
            command.spawn().unwrap()
        })
        .collect();
    for (rank, child) in ranks.into_iter().enumerate() {
        let out = child.wait_with_output().unwrap();
        let (stdout, stderr) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        let ok = out.status.success() && stdout.trim() == "ok";
        assert!(ok, "rank {rank}: {}\n{stdout}{stderr}", out.status);
    }
    assert!(!path.exists());
}

fn run_program(program: &Path, arguments: &[&Path]) {
    for nranks in [2, 4] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rootinfo");
        run_ranks(nranks, &path, &|rank| {
            let mut command = Command::new(program);
            command.args([rank.to_string(), nranks.to_string()]).arg(&path).args(arguments);
            command
        });
    }
}

#[test]
fn a_c_program_uses_every_function_of_the_header() {
    let folder = tempfile::tempdir().unwrap();
    run_program(&compile("ranks.c", folder.path()), &[]);
}

#[test]
fn a_cpp_kernel_reaches_its_peers_through_the_context() {
    let folder = tempfile::tempdir().unwrap();
    let kernel = compile_kernel(&source("kernel.cpp"), folder.path());
    run_program(&compile("ranks.cpp", folder.path()), &[&kernel]);
}

#[test]
fn cl_1_every_wrong_use_is_an_error_with_a_text() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile("misuse.c", folder.path());
    let path = folder.path().join("rootinfo");
    run_ranks(1, &path, &|_| {
        let mut command = Command::new(&program);
        command.arg(&path);
        command
    });
}

#[test]
fn cl_1_errors_need_no_standard_error() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile("misuse.c", folder.path());
    for stderr in ["2>&-", "2>/dev/full"] {
        let line = format!("exec {} {}/rootinfo {stderr}", program.display(), folder.path().display());
        let out = Command::new("sh").args(["-c", &line]).output().unwrap();
        assert!(out.status.success(), "{stderr}: {} {}", out.status, String::from_utf8_lossy(&out.stdout));
    }
}

#[test]
fn python_uses_the_library_through_ctypes() {
    if !Command::new("python3").arg("--version").output().is_ok_and(|out| out.status.success()) {
        println!("not run: there is no python3 on this machine");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rootinfo");
    run_ranks(2, &path, &|rank| {
        let mut command = Command::new("python3");
        command.arg(source("ranks.py")).args([rank.to_string(), "2".to_owned()]);
        command.arg(&path).arg(LIBRARY.path());
        command
    });
}
