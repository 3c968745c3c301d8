//! Where output goes when nobody reads it.

use crate::support::{COLLECTIVES, Ended, command, ended};
use std::process::Stdio;

/// Runs a program whose standard output is a pipe that nobody reads any more.
fn unread(name: &str, args: &[&str]) -> Ended {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    ended(command(name, args).stdout(Stdio::from(writer)).output().unwrap())
}

#[test]
fn f76_a_closed_pipe_ends_every_program_quietly() {
    let mut calls: Vec<(&str, &[&str])> = Vec::new();
    for name in COLLECTIVES.into_iter().chain(["tp_ffn"]) {
        calls.extend([(name, &["-d", "3", "--iters", "50"][..]), (name, &["--help"])]);
    }
    calls.extend([
        ("allreduce", &["--json"][..]),
        ("allreduce", &["--quiet"]),
        ("independent_ranks", &["--spawn", "3", "--iters", "20"]),
        ("independent_ranks", &["--spawn", "3", "--json"]),
        ("hello", &[]),
        ("hello_kernel", &[]),
        ("hello_collective", &[]),
    ]);
    for (name, args) in calls {
        let end = unread(name, args);
        assert_eq!((end.code, end.err.as_str()), (Some(0), ""), "{name} {args:?}");
    }
}

/// The pipe is closed before the result is printed, and the exit code still says that it is wrong.
#[test]
fn f76_a_wrong_result_is_wrong_although_nobody_reads_it() {
    let folder = tempfile::tempdir().unwrap();
    let empty = "#include \"comm_kernel.h\"\nCOMM_KERNEL void kernel_entry(int64_t *) {}\n";
    let kernel = crate::support::compile(folder.path(), "empty", empty);
    let end = unread("allreduce", &["--quiet", "--kernel", kernel.to_str().unwrap()]);
    assert_eq!((end.code, end.err.as_str()), (Some(1), ""));
}

/// A refusal goes to standard error, which may be closed too.
#[test]
fn f76_an_error_that_nobody_reads_keeps_its_exit_code() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let end = command("allreduce", &["--fast"]).stderr(Stdio::from(writer)).output().unwrap();
    assert_eq!(end.status.code(), Some(2));
}

/// Any other error of standard output is reported.
#[test]
fn a_full_device_is_reported() {
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let end = ended(command("allreduce", &[]).stdout(Stdio::from(full)).output().unwrap());
    assert_eq!(end.code, Some(3), "{}", end.err);
    assert!(end.err.starts_with("error: standard output: "), "{}", end.err);
}
