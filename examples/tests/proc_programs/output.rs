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
        ("hello_staged", &[]),
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

/// Lines of `RUST_LOG`, on standard error; standard output is the same with and without them.
#[test]
fn rust_log_shows_what_the_worker_reports() {
    let run = |filter: &str| {
        let mut command = command("allreduce", &["-d", "3", "--iters", "5", "--quiet"]);
        let end = ended(command.env("RUST_LOG", filter).output().unwrap());
        assert_eq!((end.code, end.out.lines().count()), (Some(0), 1), "{filter}: {}", end.err);
        end.err
    };
    let count = |text: &str, part: &str| text.lines().filter(|line| line.contains(part)).count();
    let debug = run("worker_orch=debug");
    // Once for each chip: from the parent only.
    assert_eq!(count(&debug, "chip is up"), 3, "{debug}");
    assert_eq!((count(&debug, "] run "), count(&debug, "] close took")), (1, 1), "{debug}");
    assert!(count(&run("worker_orch=info"), "] run ") == 0);
    assert_eq!(count(&run("worker_orch::tasks=trace"), "] done "), 15);
    for nothing in ["off", "", "rendezvous=trace"] {
        assert_eq!(run(nothing), "", "{nothing}");
    }
    assert!(run("worker_orch=loud").starts_with("RUST_LOG is ignored: \"worker_orch=loud\""));
}

/// A forked chip takes no lock of the logger.
#[test]
fn programs_that_log_everything_start_and_end() {
    for _ in 0..10 {
        for (name, args) in [("tp_ffn", ["-d", "4"]), ("domains", ["-d", "4"])] {
            let end = ended(command(name, &args).env("RUST_LOG", "trace").output().unwrap());
            assert_eq!(end.code, Some(0), "{name}: {}", end.err);
        }
    }
}
