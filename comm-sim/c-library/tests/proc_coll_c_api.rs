//! The collectives of `libcomm_sim.so` as C, C++ and Python programs use them, one program for each rank.
#![allow(missing_docs)]

mod support;

use comm_context::conformance::compile_kernel;
use std::process::Command;
use support::{LIBRARY, compile, run_program, run_python, run_ranks};

#[test]
fn a_c_program_uses_every_function_of_the_header() {
    let folder = tempfile::tempdir().unwrap();
    run_program(&compile("coll.c", folder.path()), &[]);
}

#[test]
fn a_cpp_program_waits_for_two_groups_in_opposite_order() {
    let folder = tempfile::tempdir().unwrap();
    run_program(&compile("coll.cpp", folder.path()), &[]);
}

#[test]
fn python_uses_the_collectives_through_ctypes() {
    run_python("coll.py");
}

// CO-10
#[test]
fn every_wrong_use_by_one_rank_is_an_error_with_a_text() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile("coll_misuse.c", folder.path());
    let path = folder.path().join("rootinfo");
    run_ranks(1, &path, &|_| {
        let mut command = Command::new(&program);
        command.arg(&path);
        command
    });
}

// CO-3, CO-5, CO-10
#[test]
fn ranks_that_do_not_agree_get_an_error_that_names_both() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile("coll_differ.c", folder.path());
    let cases = [
        "pools",
        "counts",
        "zero",
        "lists",
        "started",
        "types",
        "operations",
        "roots",
        "order",
        "message",
        "death",
    ];
    for (at, case) in cases.into_iter().enumerate() {
        for nranks in [2, 3] {
            let path = folder.path().join(format!("rootinfo-{at}-{nranks}"));
            run_ranks(nranks, &path, &|rank| {
                let mut command = Command::new(&program);
                command.args([rank.to_string(), nranks.to_string()]).arg(&path).arg(case);
                command
            });
        }
    }
}

/// Random pairs of calls, with one rank that differs or several.
// CO-3, CO-5
#[test]
fn random_calls_that_differ_are_named_on_every_rank() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile("coll_random_differ.c", folder.path());
    for nranks in [2, 3, 16] {
        let path = folder.path().join(format!("rootinfo-{nranks}"));
        run_ranks(nranks, &path, &|rank| {
            let mut command = Command::new(&program);
            command.args([rank.to_string(), nranks.to_string()]).arg(&path);
            command
        });
    }
}

/// The page's program runs, and its kernel compiles; the lane `readme` of CI runs that one.
#[test]
fn the_guide_is_right() {
    let guide = include_str!("../../../docs/guide-collectives.md");
    let block = |first_line: &str| {
        let (_, from) = guide.split_once(&format!("```{first_line}\n")).unwrap();
        from.split_once("```").unwrap().0
    };
    let folder = tempfile::tempdir().unwrap();
    let (program, kernel) = (folder.path().join("guide.c"), folder.path().join("kernel.cpp"));
    std::fs::write(&program, block("c")).unwrap();
    std::fs::write(&kernel, block("cpp file=target/guide/group.cpp")).unwrap();
    run_program(&LIBRARY.compile(&program, folder.path(), &[]), &[]);
    compile_kernel(&kernel, folder.path(), "-O1");
}
