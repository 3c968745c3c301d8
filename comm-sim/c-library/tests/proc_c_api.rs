//! `libcomm_sim.so` as C, C++ and Python programs use it, each rank a program of its own (CS-6).
//!
//! The library is the one that cargo builds beside this test program. The programs in `tests/c` are compiled here, with gcc and g++ as
//! strict as they come.
#![allow(missing_docs)]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Programs end by themselves long before; a stuck one must not take the test run with it.
const TIMEOUT_S: &str = "30";

/// The folder of the library, which is that of this program.
fn library_folder() -> PathBuf {
    let folder = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    assert!(folder.join("libcomm_sim.so").exists(), "cargo builds libcomm_sim.so into {}", folder.display());
    folder
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(name)
}

/// Compiles a program or, for `kernel.cpp`, a shared object.
fn compile(name: &str, into: &Path) -> PathBuf {
    let output = into.join(name.replace('.', "_"));
    let mut command = if name.ends_with(".cpp") {
        let mut command = Command::new("g++");
        command.arg("-std=c++17");
        command
    } else {
        let mut command = Command::new("gcc");
        command.arg("-std=c11");
        command
    };
    command.args(["-Wall", "-Wextra", "-Werror", "-pedantic", "-O2", "-I", comm_context::INCLUDE_DIR]);
    command.arg(source(name)).arg("-o").arg(&output);
    if name == "kernel.cpp" {
        command.args(["-shared", "-fPIC"]);
    } else {
        let folder = library_folder();
        command.arg("-L").arg(&folder).arg("-lcomm_sim").arg(format!("-Wl,-rpath,{}", folder.display()));
        command.args(["-ldl", "-pthread"]);
    }
    let built = command.output().expect("gcc and g++ are needed for this test");
    assert!(built.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&built.stderr));
    output
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
        let said = String::from_utf8_lossy(&out.stdout);
        let complaints = String::from_utf8_lossy(&out.stderr);
        assert!(
            out.status.success() && said.trim() == "ok",
            "rank {rank}: {}\n{said}{complaints}",
            out.status
        );
    }
    assert!(!path.exists());
}

fn ranks_of(program: &Path, arguments: &[&Path]) {
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
fn c_programs_do_everything_that_the_header_offers() {
    let folder = tempfile::tempdir().unwrap();
    ranks_of(&compile("ranks.c", folder.path()), &[]);
}

#[test]
fn a_cpp_kernel_reaches_its_peers_through_the_context() {
    let folder = tempfile::tempdir().unwrap();
    let kernel = compile("kernel.cpp", folder.path());
    ranks_of(&compile("ranks.cpp", folder.path()), &[&kernel]);
}

#[test]
fn cs_6_whatever_a_c_program_gets_wrong_is_an_error_with_a_text() {
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
fn cs_6_errors_do_not_need_a_standard_error_to_go_to() {
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
    let library = library_folder().join("libcomm_sim.so");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rootinfo");
    run_ranks(2, &path, &|rank| {
        let mut command = Command::new("python3");
        command.arg(source("ranks.py")).args([rank.to_string(), "2".to_owned()]).arg(&path).arg(&library);
        command
    });
}
