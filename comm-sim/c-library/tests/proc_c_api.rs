//! `libcomm_sim.so` as C, C++ and Python programs use it, one program for each rank.
#![allow(missing_docs)]

mod support;

use comm_context::conformance::compile_kernel;
use std::process::{Command, Stdio};
use support::{compile, run_program, run_python, run_ranks, source};

#[test]
fn a_c_program_uses_every_function_of_the_header() {
    let folder = tempfile::tempdir().unwrap();
    run_program(&compile("ranks.c", folder.path()), &[]);
}

#[test]
fn a_cpp_kernel_reaches_its_peers_through_the_context() {
    let folder = tempfile::tempdir().unwrap();
    let kernel = compile_kernel(&source("kernel.cpp"), folder.path(), "-O2");
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
    run_python("ranks.py");
}

/// Standard error names the rank that prints, and has a cause once; the last error has it each time.
#[test]
fn f75_errors_on_standard_error_name_the_rank_and_say_a_cause_once() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile("errors.c", folder.path());
    let path = folder.path().join("rootinfo");
    let start = |rank: &str| {
        let mut command = Command::new(&program);
        command.args([rank, "2"]).arg(&path).env("CHIPCOMM_TIMEOUT_S", "30");
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let (first, second) = (start("0"), start("1"));
    let (pid, died) = (first.id(), second.id());
    let (first, second) = (first.wait_with_output().unwrap(), second.wait_with_output().unwrap());
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let (returned, printed) = (text(&first.stdout), text(&first.stderr));
    assert!(first.status.success() && second.status.code() == Some(7), "{returned}{printed}");
    let [null, dtype, death, group, comm, again] = returned.lines().collect::<Vec<_>>()[..] else {
        panic!("{returned}")
    };
    let cause = format!("rank 1 (pid {died}) exited with status 7");
    for later in [group, comm, again] {
        assert!(later.contains("failed before") && later.contains(&cause), "{later}");
    }
    let repeated = "it failed because of the error above";
    let expected = [
        format!("[chipcomm] pid {pid}: {null}"),
        format!("[chipcomm] rank 0 (1 in its group): {dtype}"),
        format!("[chipcomm] rank 0 (1 in its group): {death}"),
        format!("[chipcomm] rank 0 (1 in its group): comm_coll_barrier: {repeated}"),
        format!("[chipcomm] rank 0: comm_barrier: {repeated}"),
        format!("[chipcomm] rank 0: comm_barrier: {repeated}"),
    ];
    println!("{printed}");
    assert_eq!(printed.lines().take(6).collect::<Vec<_>>(), expected);
    assert_eq!(printed.matches(&cause).count(), 1, "{printed}");
}
