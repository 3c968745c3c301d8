//! `libcomm_sim.so` as C, C++ and Python programs use it, one program for each rank.
#![allow(missing_docs)]

mod support;

use comm_context::conformance::compile_kernel;
use std::process::Command;
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
